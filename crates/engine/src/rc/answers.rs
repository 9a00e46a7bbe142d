//! What the responder has still to send: acknowledgements, atomic responses, READ responses.
//!
//! Sections to read first: IBA 9.7.5.1.2 (coalesced acknowledgements), 9.7.5 (READ responses). The
//! one idea: a queue in PSN order whose front may be a READ with a cursor. Its bound needs no
//! number: two acknowledgements never stand side by side, and READs and atomics are limited by
//! `max_dest_rd_atomic`.

use std::collections::VecDeque;

use wire::{Aeth, AtomicAckEth, Bth, HeaderRepr, Msn, Opcode, Psn, Syndrome};

use crate::access::{Access, AccessError, MemoryRange, Span};
use crate::burst::{Burst, Origin};
use crate::host::{Host, Memory};
use crate::qp::Common;
use crate::rc::resources::Source;

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A positive or negative acknowledgement.
    Acknowledge {
        /// Of this packet and all before it, or, negative, of all before it.
        psn: Psn,
        /// Which.
        syndrome: Syndrome,
        /// Messages completed.
        msn: Msn,
    },
    /// The value that an atomic found.
    Atomic {
        /// PSN of request and response.
        psn: Psn,
        /// The value.
        original: u64,
        /// Messages completed.
        msn: Msn,
        /// Whether it was answered before.
        is_duplicate: bool,
    },
    /// The rest of a READ.
    Read(ReadAnswer),
}

/// The responses of a READ that were not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadAnswer {
    /// PSN of the next response.
    pub next: Psn,
    /// What the next response starts with, to the end of the READ.
    pub rest: Source,
    /// Whether the next response is the first one.
    pub is_start: bool,
    /// PSN of the first response of the whole READ: says which one it is.
    pub request: Psn,
    /// Messages completed.
    pub msn: Msn,
    /// Whether it was answered before.
    pub is_duplicate: bool,
}

impl ReadAnswer {
    /// All responses to a new READ.
    pub fn new(request: Psn, source: Source, msn: Msn) -> Self {
        Self {
            next: request,
            rest: source,
            is_start: true,
            request,
            msn,
            is_duplicate: false,
        }
    }
}

impl Answer {
    fn psn(&self) -> Psn {
        match *self {
            Self::Acknowledge { psn, .. } | Self::Atomic { psn, .. } => psn,
            Self::Read(ReadAnswer { next, .. }) => next,
        }
    }

    /// Whether it takes one of the requester's `max_rd_atomic`: duplicates may be stale, so they
    /// don't.
    fn is_outstanding(&self) -> bool {
        match self {
            Self::Acknowledge { .. } => false,
            Self::Atomic { is_duplicate, .. } => !is_duplicate,
            Self::Read(read) => !read.is_duplicate,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
}

impl Answers {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an acknowledgement is all there is.
    pub fn is_one_acknowledgement(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue.front(), Some(Answer::Acknowledge { .. }))
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// READs and atomics that the requester cannot have an answer to.
    pub fn outstanding(&self) -> usize {
        self.queue
            .iter()
            .filter(|answer| answer.is_outstanding())
            .count()
    }

    /// Queues an acknowledgement, merged with the one at the end of the queue if there is one.
    /// Gives whether one of the two will not be sent. spec: IBA 9.7.5.1.2
    pub fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: Msn) -> bool {
        let new = Answer::Acknowledge { psn, syndrome, msn };
        let is_positive = |syndrome| matches!(syndrome, Syndrome::Ack { .. });
        let Some(newest) = self.queue.back_mut() else {
            self.queue.push_back(new);
            return false;
        };
        match *newest {
            // a NAK says already what an acknowledgement of the packets before it would
            Answer::Acknowledge {
                psn: refused,
                syndrome: old,
                ..
            } if !is_positive(old) && is_positive(syndrome) && psn.distance_from(refused) < 0 => {
                true
            }
            Answer::Acknowledge { .. } => {
                *newest = new;
                true
            }
            Answer::Atomic { .. } | Answer::Read(_) => {
                self.queue.push_back(new);
                false
            }
        }
    }

    /// Queues the answer to a new READ or atomic, behind all others.
    pub fn push(&mut self, answer: Answer) {
        self.queue.push_back(answer);
    }

    /// Queues the answer to a duplicate atomic where its PSN belongs, unless it waits already.
    pub fn push_again(&mut self, answer: Answer) {
        let psn = answer.psn();
        let is_queued = self
            .queue
            .iter()
            .any(|queued| matches!(queued, Answer::Atomic { psn: p, .. } if *p == psn));
        if !is_queued {
            self.insert(answer);
        }
    }

    /// Queues the answer to a duplicate READ. One READ is never in the queue twice: if some of its
    /// responses still wait they start again at the PSN asked for, which says that the requester
    /// has all before.
    pub fn read_again(&mut self, again: ReadAnswer) {
        let waiting = self.queue.iter_mut().find_map(|queued| match queued {
            Answer::Read(read) if read.request == again.request => Some(read),
            _ => None,
        });
        match waiting {
            Some(read) => {
                *read = ReadAnswer {
                    is_duplicate: read.is_duplicate,
                    ..again
                }
            }
            None => self.insert(Answer::Read(again)),
        }
    }

    /// Drops the answer to the READ or atomic with PSN `request`, whose resource was forgotten.
    pub fn forget(&mut self, request: Psn) {
        self.queue.retain(|queued| match queued {
            Answer::Acknowledge { .. } => true,
            Answer::Atomic { psn, .. } => *psn != request,
            Answer::Read(read) => read.request != request,
        });
    }

    /// Moves answers to `out`, in PSN order, until it is full. The memory of a READ is checked
    /// here, as it may have changed since the request: what cannot be read any more is given back
    /// with the PSN of its response.
    pub fn transmit<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        out: &mut Burst,
    ) -> Result<(), (Psn, AccessError)> {
        while !out.is_full() {
            let Some(answer) = self.queue.front_mut() else {
                break;
            };
            let is_done = match answer {
                Answer::Acknowledge { psn, syndrome, msn } => {
                    let aeth = Aeth {
                        syndrome: *syndrome,
                        msn: *msn,
                    };
                    send(
                        common,
                        Opcode::RC_ACKNOWLEDGE,
                        *psn,
                        Some(aeth),
                        None,
                        &[],
                        out,
                    );
                    true
                }
                Answer::Atomic {
                    psn, original, msn, ..
                } => {
                    // spec: IBA 9.7.5: its own opcode, never a plain acknowledgement
                    let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                    send(
                        common,
                        opcode,
                        *psn,
                        Some(ack(*msn)),
                        Some(*original),
                        &[],
                        out,
                    );
                    true
                }
                Answer::Read(read) => read
                    .transmit(common, memory, out)
                    .map_err(|error| (read.next, error))?,
            };
            if is_done {
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    /// Puts `answer` before the first one with a later PSN.
    fn insert(&mut self, answer: Answer) {
        let psn = answer.psn();
        let index = self
            .queue
            .iter()
            .position(|queued| queued.psn().distance_from(psn) > 0)
            .unwrap_or(self.queue.len());
        self.queue.insert(index, answer);
    }
}

impl ReadAnswer {
    /// Sends responses until `out` is full; gives whether that was all.
    fn transmit<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        out: &mut Burst,
    ) -> Result<bool, AccessError> {
        if self.rest.length == 0 {
            self.send_next(common, &[], out);
            return Ok(true);
        }
        let range = MemoryRange {
            address: self.rest.address,
            length: self.rest.length.into(),
        };
        let grant = memory.check(self.rest.key, common.scope(), range, Access::REMOTE_READ)?;
        let mut offset = 0;
        while self.rest.length > 0 && !out.is_full() {
            let length = self.rest.length.min(common.mtu());
            let span = grant.span(offset, length).ok_or(AccessError::OutOfBounds)?;
            self.send_next(common, &[span], out);
            offset += u64::from(length);
        }
        Ok(self.rest.length == 0)
    }

    /// Sends one response and moves past it.
    fn send_next<H: Host>(&mut self, common: &Common<H>, spans: &[Span], out: &mut Burst) {
        let length: u32 = spans.iter().map(Span::length).sum();
        let is_last = length == self.rest.length;
        // spec: IBA 9.7.5: the AETH is in all but the middle
        let (opcode, aeth) = match (self.is_start, is_last) {
            (true, true) => (Opcode::RC_READ_RESPONSE_ONLY, Some(ack(self.msn))),
            (true, false) => (Opcode::RC_READ_RESPONSE_FIRST, Some(ack(self.msn))),
            (false, true) => (Opcode::RC_READ_RESPONSE_LAST, Some(ack(self.msn))),
            (false, false) => (Opcode::RC_READ_RESPONSE_MIDDLE, None),
        };
        send(common, opcode, self.next, aeth, None, spans, out);
        self.is_start = false;
        self.next = self.next.plus(1);
        self.rest.address = self.rest.address.wrapping_add(length.into());
        self.rest.length -= length;
    }
}

fn ack(msn: Msn) -> Aeth {
    Aeth {
        syndrome: Syndrome::ACK,
        msn,
    }
}

fn send<H: Host>(
    common: &Common<H>,
    opcode: Opcode,
    psn: Psn,
    aeth: Option<Aeth>,
    original: Option<u64>,
    spans: &[Span],
    out: &mut Burst,
) {
    let mut header = HeaderRepr::new(Bth::new(opcode, common.attributes.dest_qpn, psn));
    header.aeth = aeth;
    header.atomic_ack = original.map(|original| AtomicAckEth { original });
    let origin = Origin {
        qp: common.index(),
        psn,
        is_response: true,
    };
    out.push(common.path, origin, &mut header, &[], spans);
}
