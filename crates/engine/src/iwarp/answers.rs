//! READs and atomics under way: those that we await, and those that we owe.
//!
//! Read first: RFC 5040 4.4 and 5, RFC 7306 5. Answers come in the order of the requests, so both
//! are queues. How many the peer may ask for is bounded by IRD.

use std::collections::VecDeque;

use wire::iwarp::{
    AtomicResponse, Header, MessageOffset, Msn, Opcode, ReadRequest, Tagged, TaggedOffset,
    TerminateCode, Untagged,
};

use super::burst::{Source, StreamBurst};
use super::requester::{Step, piece};
use super::terminate::{self, Refusal};
use crate::access::{Access, AccessError, MemoryRange, Span};
use crate::host::{Host, Memory};
use crate::qp::Common;
use crate::qp::send_queue::WqeNumber;

/// An answer that the peer owes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Which work request it completes.
    pub request: WqeNumber,
    /// The ID of an atomic; none of a READ.
    pub atomic_id: Option<u32>,
    /// Bytes placed.
    pub placed: u32,
}

impl Awaited {
    pub fn new(request: WqeNumber, atomic_id: Option<u32>) -> Self {
        Self {
            request,
            atomic_id,
            placed: 0,
        }
    }
}

/// An answer that we owe.
#[derive(Debug)]
enum Answer {
    /// To a READ, of which `sent` bytes have been answered; and the header that it came with.
    Read {
        header: Untagged,
        request: ReadRequest,
        sent: u32,
    },
    /// To an atomic, which was done when it came.
    Atomic(AtomicResponse),
}

/// What we owe, oldest first.
#[derive(Debug)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// IRD: most of them.
    most: u16,
    /// Of atomic responses.
    msn: Msn,
    tagged_max: u32,
    spans: Vec<Span>,
}

impl Answers {
    /// Nothing can be asked yet.
    pub fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            most: 0,
            msn: Msn::FIRST,
            tagged_max: 4,
            spans: Vec::new(),
        }
    }

    /// The stream is there: ULPDUs have at most `mulpdu` bytes.
    pub fn start(&mut self, ird: u16, mulpdu: usize) {
        self.most = ird;
        self.tagged_max = (mulpdu.saturating_sub(Tagged::LENGTH) & !3).max(4) as u32;
    }

    /// Whether nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the next segment must be of the answer that was begun.
    pub fn is_amid_answer(&self) -> bool {
        matches!(self.queue.front(), Some(Answer::Read { sent: 1.., .. }))
    }

    /// Whether one more may be asked. spec: RFC 5040 6.1 (IRD)
    pub fn check_room(&self) -> Result<(), Refusal> {
        if self.queue.len() < usize::from(self.most) {
            return Ok(());
        }
        Err(Refusal::request(TerminateCode::STREAM_CATASTROPHIC))
    }

    /// A READ was asked for.
    pub fn owe_read(&mut self, header: Untagged, request: ReadRequest) {
        self.queue.push_back(Answer::Read {
            header,
            request,
            sent: 0,
        });
    }

    /// An atomic was done.
    pub fn owe_atomic(&mut self, response: AtomicResponse) {
        self.queue.push_back(Answer::Atomic(response));
    }

    /// Nothing is owed any more.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// Appends a segment of the oldest answer to `out`. The memory of a READ is looked at now: if
    /// it is gone the answer is the Terminate.
    pub fn step<H: Host>(
        &mut self,
        common: &mut Common<H>,
        memory: &H::Memory,
        out: &mut StreamBurst,
    ) -> Result<Step, (Refusal, wire::iwarp::Terminate)> {
        let is_done = match self.queue.front_mut() {
            None => return Ok(Step::Idle),
            Some(Answer::Atomic(response)) => {
                let offset = MessageOffset::default();
                let header = Untagged::new(Opcode::AtomicResponse, true, self.msn, offset);
                let body = response.to_bytes();
                out.push(Source::Answer, &header.to_bytes(), &body, &[]);
                self.msn = self.msn.next();
                true
            }
            Some(Answer::Read {
                header,
                request,
                sent,
            }) => {
                let (length, is_last) = piece(request.length, *sent, self.tagged_max);
                let offset = |start: TaggedOffset| start.0.wrapping_add(u64::from(*sent));
                let range = MemoryRange {
                    address: offset(request.source_offset),
                    length: length.into(),
                };
                self.spans.clear();
                // spec: RFC 5040 5: of a READ of no bytes the STag is not looked at
                if length > 0 {
                    let span = span(common, memory, request, range).map_err(|error| {
                        let refusal = Refusal::of_read(error, range);
                        let faulty = (Header::Untagged(*header), &request.to_bytes()[..]);
                        (refusal, terminate::about(refusal.code, Some(faulty)))
                    })?;
                    self.spans.push(span);
                }
                let at = TaggedOffset(offset(request.sink_offset));
                let header = Tagged::new(Opcode::ReadResponse, is_last, request.sink, at);
                out.push(Source::Answer, &header.to_bytes(), &[], &self.spans);
                *sent += length;
                is_last
            }
        };
        if is_done {
            self.queue.pop_front();
        }
        common.counters.sent_packets += 1;
        Ok(Step::Done)
    }
}

fn span<H: Host>(
    common: &Common<H>,
    memory: &H::Memory,
    request: &ReadRequest,
    range: MemoryRange,
) -> Result<Span, AccessError> {
    let grant = memory.check(request.source, common.scope(), range, Access::REMOTE_READ)?;
    let length = range.length as u32; // of a segment
    grant.span(0, length).ok_or(AccessError::OutOfBounds)
}
