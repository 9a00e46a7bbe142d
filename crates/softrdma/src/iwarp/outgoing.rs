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

/// See the module.
#[derive(Debug)]
pub(super) struct Outgoing {
    framer: Framer,
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
    /// Kept for their memory.
    spare: Vec<u8>,
    gather: Gather,
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
            own: Vec::new(),
            parts: Vec::new(),
            next: 0,
            queued: 0,
            sent: 0,
            ends: Vec::new(),
            spare: Vec::new(),
            gather: Gather::default(),
        }
    }

    /// FPDUs begin.
    pub fn start(&mut self, has_crc: bool, has_markers: bool) {
        self.framer = Framer::new(has_crc, has_markers);
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Appends what is no FPDU.
    pub fn push(&mut self, bytes: &[u8]) {
        let from = self.own.len();
        self.own.extend_from_slice(bytes);
        self.put(from);
        self.ends.push((self.queued, Source::Own));
    }

    /// Appends the FPDUs of a burst. [`Self::flush`] follows in the same lock section.
    ///
    /// # Errors
    /// Whose ULPDU could not be gathered; it and all behind it are left out.
    pub fn frame(&mut self, burst: &StreamBurst, memory: &MemoryTable) -> Result<(), Source> {
        let needs_bytes = self.framer.needs_bytes();
        for ulpdu in burst.ulpdus() {
            let before = (self.own.len(), self.parts.len(), self.queued);
            let framed = if needs_bytes {
                self.seal(burst, ulpdu, memory)
            } else {
                self.gather(burst, ulpdu, memory)
            };
            if framed.is_err() {
                self.take_back(before);
                return Err(ulpdu.source);
            }
            self.ends.push((self.queued, ulpdu.source));
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
        let from = self.own.len();
        self.own.extend_from_slice(burst.header(ulpdu));
        for span in burst.spans(ulpdu) {
            memory.append(span, &mut self.own)?;
        }
        self.framer.seal(&mut self.own, from);
        self.put(from);
        Ok(())
    }

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

    /// Leaves out what was appended since.
    fn take_back(&mut self, (own, parts, queued): (usize, usize, usize)) {
        self.own.truncate(own);
        self.parts.truncate(parts);
        self.queued = queued;
        if let Some(Part::Own(last)) = self.parts.last_mut() {
            last.end = last.end.min(own);
        }
    }

    /// Sends what there is. Once it is done, no memory of the program is named any more.
    pub fn flush(&mut self, stream: &Stream, memory: &MemoryTable) -> Flushed {
        while !self.parts.is_empty() {
            let parts = &self.parts[self.next..];
            match stream.send(&self.own, parts, &mut self.gather) {
                Sending::Sent(count) => {
                    self.advance(count);
                    if self.sent == self.queued {
                        self.clear();
                    } else if self.parts.len() - self.next < io::tcp::PARTS_MAX {
                        return self.keep(memory).unwrap_or(Flushed::Full);
                    }
                }
                Sending::Full => return self.keep(memory).unwrap_or(Flushed::Full),
                Sending::Fault => {
                    // it may be back already: then it is sent as a copy
                    if let Some(fault) = self.keep(memory) {
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
        Flushed::All
    }

    /// Bytes that wait, all of them copies; nothing waits then.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts[self.next..] {
            if let Part::Own(range) = part {
                bytes.extend_from_slice(&self.own[range.clone()]);
            }
        }
        self.clear();
        bytes
    }

    /// Forgets what has not left.
    pub fn clear(&mut self) {
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
    fn keep(&mut self, memory: &MemoryTable) -> Option<Flushed> {
        let is_kept = |part: &Part| matches!(part, Part::Own(_));
        if self.parts[self.next..].iter().all(is_kept) {
            return None;
        }
        self.spare.clear();
        let mut fault = None;
        for part in &self.parts[self.next..] {
            match part {
                Part::Own(range) => self.spare.extend_from_slice(&self.own[range.clone()]),
                Part::Elsewhere { address, length } => {
                    let address = *address as u64; // of this process
                    let copied = memory.append_program(address, *length, &mut self.spare);
                    if copied.is_err() {
                        fault = Some(self.sent + self.spare.len());
                        break;
                    }
                }
            }
        }
        std::mem::swap(&mut self.own, &mut self.spare);
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
