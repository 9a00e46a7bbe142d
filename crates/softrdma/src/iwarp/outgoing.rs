//! What is on its way out of a stream: from ULPDUs to bytes that the kernel takes, many at once.
//!
//! Where an FPDU has neither CRC nor markers, long payload goes from the program's memory straight
//! into the socket: the kernel copies it, and says so where it cannot. Everything else is copied
//! behind its header. What the socket has no room for is copied too, within the same lock section:
//! nothing here names memory of the program when that ends.

use engine::AccessError;
use engine::iwarp::{Source, StreamBurst, UlpduOut};
use io::tcp::{Gather, Part, Sending, Stream};
use wire::iwarp::Framer;

use crate::memory::MemoryTable;

/// Bytes that leave, or arrive, in one system call.
pub(super) const BURST_BYTES: usize = 256 << 10;

/// Payload that is shorter is copied: another piece costs the kernel as much.
const COPIED_MAX: u32 = 2048;

/// So much emptied memory is kept for the next streams; each is about a burst.
const SPARES_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Outgoing {
    framer: Framer,
    waiting: Waiting,
}

/// What is on its way. A stream has memory for it only as long as there is something.
#[derive(Debug, Default)]
struct Waiting {
    /// Headers, trailers and copied payload.
    own: Vec<u8>,
    /// What is sent in this order, those before `next` already.
    parts: Vec<Part>,
    next: usize,
    /// Bytes of all parts since the first, and those that were sent.
    queued: usize,
    sent: usize,
    /// Where each ULPDU ends, counted as `queued`.
    ends: Vec<(usize, Source)>,
}

/// What the streams of a shard send with, one after the other.
#[derive(Debug)]
pub(super) struct Workspace {
    /// What leaves a queue pair next.
    pub burst: StreamBurst,
    gather: Gather,
    spares: Vec<Waiting>,
}

impl Workspace {
    pub fn new() -> Self {
        Self {
            burst: StreamBurst::with_bound(BURST_BYTES),
            gather: Gather::default(),
            spares: Vec::new(),
        }
    }

    fn take(&mut self) -> Waiting {
        self.spares.pop().unwrap_or_default()
    }

    /// Takes back the memory of what has left.
    fn put(&mut self, mut emptied: Waiting) {
        if self.spares.len() < SPARES_MAX {
            emptied.clear();
            self.spares.push(emptied);
        }
    }
}

/// What came of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything has left.
    All,
    /// The socket is full; the rest is copied.
    Full,
    /// Memory of the program is gone: nothing from this ULPDU on will leave. If some of it has,
    /// nothing else can follow.
    Fault {
        /// Whose ULPDU it was.
        source: Source,
        /// Whether some of it has left.
        is_amid: bool,
    },
    /// The connection is over.
    Lost,
}

impl Outgoing {
    /// Of a stream that has no FPDUs yet.
    pub fn new() -> Self {
        Self {
            framer: Framer::new(false, false),
            waiting: Waiting::default(),
        }
    }

    /// FPDUs begin.
    pub fn start(&mut self, has_crc: bool, has_markers: bool) {
        self.framer = Framer::new(has_crc, has_markers);
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.waiting.parts.is_empty()
    }

    /// Bytes of memory that it has for what is on its way.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.waiting.own.capacity()
    }

    /// Appends what is no FPDU.
    pub fn push(&mut self, bytes: &[u8]) {
        let waiting = &mut self.waiting;
        let from = waiting.own.len();
        waiting.own.extend_from_slice(bytes);
        waiting.put(from);
        waiting.ends.push((waiting.queued, Source::Own));
    }

    /// Appends the FPDUs of the burst. [`Self::flush`] follows in the same lock section.
    ///
    /// # Errors
    /// Whose ULPDU could not be gathered; it and all behind it are left out.
    pub fn frame(&mut self, work: &mut Workspace, memory: &MemoryTable) -> Result<(), Source> {
        if self.waiting.own.capacity() == 0 {
            self.waiting = work.take();
        }
        let burst = &work.burst;
        let needs_bytes = self.framer.needs_bytes();
        for ulpdu in burst.ulpdus() {
            let before = self.waiting.mark();
            let framed = if needs_bytes {
                self.seal(burst, ulpdu, memory)
            } else {
                self.waiting.gather(burst, ulpdu, memory)
            };
            if framed.is_err() {
                self.waiting.take_back(before);
                return Err(ulpdu.source);
            }
            self.waiting.ends.push((self.waiting.queued, ulpdu.source));
        }
        Ok(())
    }

    /// An FPDU whose bytes have to be at hand.
    fn seal(
        &mut self,
        burst: &StreamBurst,
        ulpdu: &UlpduOut,
        memory: &MemoryTable,
    ) -> Result<(), AccessError> {
        let own = &mut self.waiting.own;
        let from = own.len();
        own.extend_from_slice(burst.header(ulpdu));
        for span in burst.spans(ulpdu) {
            memory.append(span, own)?;
        }
        self.framer.seal(own, from);
        self.waiting.put(from);
        Ok(())
    }

    /// Sends what there is. Once it is done, no memory of the program is named any more, and if all
    /// has left the memory for it is the next stream's.
    pub fn flush(
        &mut self,
        stream: &Stream,
        work: &mut Workspace,
        memory: &MemoryTable,
    ) -> Flushed {
        let waiting = &mut self.waiting;
        while !waiting.parts.is_empty() {
            let parts = &waiting.parts[waiting.next..];
            match stream.send(&waiting.own, parts, &mut work.gather) {
                Sending::Sent(count) => {
                    waiting.advance(count);
                    if waiting.sent == waiting.queued {
                        waiting.clear();
                    } else if waiting.parts.len() - waiting.next < io::tcp::PARTS_MAX {
                        return waiting.keep(work, memory).unwrap_or(Flushed::Full);
                    }
                }
                Sending::Full => return waiting.keep(work, memory).unwrap_or(Flushed::Full),
                Sending::Fault => {
                    // it may be back already: then it is sent as a copy
                    if let Some(fault) = waiting.keep(work, memory) {
                        return fault;
                    }
                }
                Sending::Lost(errno) => {
                    tracing::debug!(%errno, "a stream is lost");
                    self.clear();
                    return Flushed::Lost;
                }
            }
        }
        if waiting.own.capacity() > 0 {
            work.put(std::mem::take(waiting));
        }
        Flushed::All
    }

    /// Bytes that wait, all of them copies; nothing waits then.
    pub fn take(&mut self) -> Vec<u8> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut bytes = Vec::new();
        for part in &waiting.parts[waiting.next..] {
            if let Part::Own(range) = part {
                bytes.extend_from_slice(&waiting.own[range.clone()]);
            }
        }
        bytes
    }

    /// Forgets what has not left.
    pub fn clear(&mut self) {
        self.waiting = Waiting::default();
    }
}

impl Waiting {
    /// An FPDU whose long payload stays where it is.
    fn gather(
        &mut self,
        burst: &StreamBurst,
        ulpdu: &UlpduOut,
        memory: &MemoryTable,
    ) -> Result<(), AccessError> {
        let mut from = self.own.len();
        self.own.extend_from_slice(burst.header(ulpdu));
        for span in burst.spans(ulpdu) {
            if span.length() <= COPIED_MAX {
                memory.append(span, &mut self.own)?;
                continue;
            }
            let address = memory.locate(span)?;
            let address = usize::try_from(address).map_err(|_| AccessError::Fault)?;
            self.put(from);
            from = self.own.len();
            let length = span.length() as usize;
            self.parts.push(Part::Elsewhere { address, length });
            self.queued += length;
        }
        let trailer = Framer::trailer_length(ulpdu.length.into());
        self.own.resize(self.own.len() + trailer, 0);
        self.put(from);
        Ok(())
    }

    /// What was appended to the own bytes is a part, or the end of the last one.
    fn put(&mut self, from: usize) {
        let to = self.own.len();
        self.queued += to - from;
        match self.parts.last_mut() {
            Some(Part::Own(last)) if last.end == from => last.end = to,
            _ if from == to => {}
            _ => self.parts.push(Part::Own(from..to)),
        }
    }

    /// How much there is.
    fn mark(&self) -> (usize, usize, usize) {
        (self.own.len(), self.parts.len(), self.queued)
    }

    /// Leaves out what was appended since.
    fn take_back(&mut self, (own, parts, queued): (usize, usize, usize)) {
        self.own.truncate(own);
        self.parts.truncate(parts);
        self.queued = queued;
        if let Some(Part::Own(last)) = self.parts.last_mut() {
            last.end = last.end.min(own);
        }
    }

    fn clear(&mut self) {
        self.own.clear();
        self.parts.clear();
        self.ends.clear();
        (self.next, self.queued, self.sent) = (0, 0, 0);
    }

    fn advance(&mut self, mut count: usize) {
        self.sent += count;
        while let Some(part) = self.parts.get_mut(self.next) {
            let length = part.length();
            if count < length {
                match part {
                    Part::Own(range) => range.start += count,
                    Part::Elsewhere { address, length } => {
                        *address += count;
                        *length -= count;
                    }
                }
                return;
            }
            count -= length;
            self.next += 1;
        }
    }

    /// Copies what waits; what is wrong if that cannot be done.
    fn keep(&mut self, work: &mut Workspace, memory: &MemoryTable) -> Option<Flushed> {
        let is_kept = |part: &Part| matches!(part, Part::Own(_));
        if self.parts[self.next..].iter().all(is_kept) {
            return None;
        }
        let mut kept = work.take();
        let mut fault = None;
        for part in &self.parts[self.next..] {
            match part {
                Part::Own(range) => kept.own.extend_from_slice(&self.own[range.clone()]),
                Part::Elsewhere { address, length } => {
                    let address = *address as u64; // of this process
                    let copied = memory.append_program(address, *length, &mut kept.own);
                    if copied.is_err() {
                        fault = Some(self.sent + kept.own.len());
                        break;
                    }
                }
            }
        }
        std::mem::swap(&mut self.own, &mut kept.own);
        work.put(kept);
        let outcome = fault.map(|at| self.give_up(at));
        self.parts.clear();
        self.next = 0;
        if self.own.is_empty() {
            self.clear();
        } else {
            self.parts.push(Part::Own(0..self.own.len()));
            self.queued = self.sent + self.own.len();
        }
        outcome
    }

    /// The ULPDU with the byte at `at` cannot be sent: only what is before it is kept.
    fn give_up(&mut self, at: usize) -> Flushed {
        let index = self.ends.partition_point(|(end, _)| *end <= at);
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].0);
        let source = self.ends.get(index).map_or(Source::Own, |(_, of)| *of);
        self.ends.truncate(index);
        let is_amid = start < self.sent;
        self.own.truncate(start.saturating_sub(self.sent));
        Flushed::Fault { source, is_amid }
    }
}
