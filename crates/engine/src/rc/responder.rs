//! The responder of a reliable connection: the list of checks.
//!
//! Sections to read first: IBA 9.7.4 (responder), tables 58 and 59 (errors and their classes),
//! 9.7.5 (acknowledgements and duplicates). The one idea: `Responder::admit` is the standard's
//! order of checks; each gives a proof or a `Refusal`. What follows is in
//! `execute.rs`.

use wire::{AtomicEth, Attached, Msn, NakCode, Operation, Packet, Psn, Reth, Syndrome};

use crate::access::{Access, Grant, MemoryRange};
use crate::burst::Burst;
use crate::completion::{CompletionOpcode, WorkCompletion};
use crate::event::AsyncEvent;
use crate::host::{CompletionSink, Host, Memory, ReceiveSource, ReceiveWqe};
use crate::outcome::{DropReason, Outcome};
use crate::qp::{Common, State, scatter};
use crate::rc::answers::{Answer, Answers, ReadAnswer};
use crate::rc::refusal::Refusal;
use crate::rc::resources::{Resources, Source};
use crate::time::Instant;

/// Bytes of the longest message. spec: IBA C9-92
const MESSAGE_LENGTH_MAX: u64 = 1 << 31;

/// Bytes of the word of an atomic.
const ATOMIC_LENGTH: u32 = 8;

/// The half of a reliable connection that executes requests.
///
/// Invariant: `receive` is some while a SEND is half received, and else only within
/// `handle_request`.
#[derive(Debug, Default)]
pub struct Responder {
    /// PSN of the first request of the connection.
    first: Psn,
    /// ePSN: what the next new request must carry.
    pub(super) expected: Psn,
    /// Messages completed, 24 bits. spec: IBA 9.7.5
    pub(super) msn: Msn,
    /// Whether the requester was told to go back to `expected`; then it is not told again.
    is_gap_reported: bool,
    pub(super) message: Message,
    pub(super) receive: Option<ReceiveWqe>,
    pub(super) resources: Resources,
    pub(super) answers: Answers,
    is_established: bool,
}

/// What came of the message that is being received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Message {
    /// The next packet starts one.
    #[default]
    Between,
    /// A SEND, of which `placed` bytes are in its receive.
    Send { placed: u32 },
    /// A WRITE.
    Write(Target),
}

/// Where a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// From the check at the first packet; none for a WRITE of zero bytes.
    pub grant: Option<Grant>,
    /// Bytes of the message.
    pub length: u32,
    /// Bytes placed.
    pub placed: u32,
}

/// A request that passed all checks, with what they proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// There is room for its payload behind `placed` bytes of the receive in hand.
    Send { placed: u32 },
    /// Its payload fits the target.
    Write(Target),
    /// The memory may be read, at this moment.
    Read(Source),
    /// The word may be changed.
    Atomic(Grant, AtomicEth),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Handled {
    /// For whoever counts packets.
    pub outcome: Outcome,
    /// The queue pair must go to the error state. What reports it, a completion or an event, is
    /// pushed already; the NAK waits in the answers.
    pub fatal: bool,
}

impl Responder {
    /// A responder that was not started.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts at INIT to RTR.
    pub fn start(&mut self, first_psn: Psn, max_dest_rd_atomic: u8) {
        *self = Self {
            first: first_psn,
            expected: first_psn,
            resources: Resources::with_capacity(max_dest_rd_atomic),
            ..Self::default()
        };
    }

    /// Sets how many READs and atomics are remembered, in SQD.
    pub fn set_max_dest_rd_atomic(&mut self, max_dest_rd_atomic: u8) {
        self.resources.resize(max_dest_rd_atomic);
    }

    /// Takes a request of the peer. The caller has checked state, addresses and partition.
    pub fn handle_request<H: Host>(
        &mut self,
        common: &mut Common<H>,
        _now: Instant, // a responder has no timers
        packet: &Packet<'_>,
        memory: &H::Memory,
    ) -> Handled {
        if common.state == State::ReadyToReceive && !self.is_established {
            self.is_established = true;
            let event = AsyncEvent::CommunicationEstablished(common.index());
            common.events.push(event);
        }
        // 1. spec: IBA 9.7.4: the PSN
        match packet.bth().psn.distance_from(self.expected) {
            0 => self.handle_expected(common, packet, memory),
            1.. => self.handle_gap(common),
            _ => self.handle_duplicate(common, packet),
        }
    }

    /// Acknowledges once more all that was executed, which the standard allows at any time: the
    /// queue pair is about to go, and nobody will answer if the last acknowledgement was lost.
    pub fn repeat_acknowledgement<H: Host>(&mut self, common: &mut Common<H>) {
        if self.expected != self.first {
            self.acknowledge(common, self.expected.minus(1), Syndrome::ACK);
        }
    }

    /// The PSN that the next new request must carry.
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether `poll_transmit` has something to give.
    pub fn has_output(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether a single acknowledgement, positive or negative, is all it would send.
    pub fn owes_only_acknowledgement(&self) -> bool {
        self.answers.is_one_acknowledgement()
    }

    /// Moves acknowledgements and responses to `out`, in PSN order, until it is full. Gives true if
    /// the queue pair must go to the error state, because memory of a READ is gone: the NAK waits
    /// in the answers and the event is pushed.
    #[must_use]
    pub fn poll_transmit<H: Host>(
        &mut self,
        common: &mut Common<H>,
        _now: Instant, // nothing here is late or early
        memory: &H::Memory,
        out: &mut Burst,
    ) -> bool {
        match self.answers.transmit(common, memory, out) {
            Ok(()) => false,
            Err((psn, _)) => {
                self.answer_failed(common, psn);
                true
            }
        }
    }

    /// The bytes of the READ response `psn` could not be gathered: it and all behind it are
    /// replaced by a NAK, and the caller moves the queue pair to the error state.
    pub fn answer_failed<H: Host>(&mut self, common: &mut Common<H>, psn: Psn) {
        self.answers.clear();
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        self.answers.acknowledge(psn, syndrome, self.msn);
        common.events.push(AsyncEvent::AccessError(common.index()));
    }

    /// The receive of a half received SEND, for the flush.
    pub fn current_receive(&mut self) -> Option<ReceiveWqe> {
        self.message = Message::Between;
        self.receive.take()
    }

    fn handle_expected<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        memory: &H::Memory,
    ) -> Handled {
        self.is_gap_reported = false;
        let done = match self.admit(common, packet, memory) {
            Ok(admitted) => self.execute(common, packet, admitted, memory),
            Err(refusal) => Err(refusal),
        };
        match done {
            Ok(()) => Handled::fine(Outcome::Delivered),
            Err(refusal) => self.refuse(common, packet, refusal),
        }
    }

    /// The checks after the PSN, in the order of the standard: sequence of opcodes, enabled
    /// operations, resources, length, receive, memory, extent, alignment.
    /// spec: IBA 9.7.4, table 58
    fn admit<H: Host>(
        &mut self,
        common: &Common<H>,
        packet: &Packet<'_>,
        memory: &H::Memory,
    ) -> Result<Admitted, Refusal> {
        let request = self.check_sequence(packet)?; // 2
        check_enabled(common, request)?; // 3
        self.check_resources(common, packet, request)?; // 4
        check_length(common, packet, request)?; // 5
        self.check_receive(packet, request)?; // 6
        let admitted = check_memory(common, request, memory)?; // 7
        check_extent(packet, admitted)?; // 8
        check_alignment(admitted)?; // 9
        Ok(admitted)
    }

    /// A SEND or WRITE goes on or starts; nothing else comes between. spec: IBA 9.7.4
    fn check_sequence(&self, packet: &Packet<'_>) -> Result<Request, Refusal> {
        use Operation::{CompareSwap, FetchAdd, ReadRequest, Send, Write};
        let opcode = packet.opcode();
        let begins = opcode.starts_message();
        match (self.message, opcode.operation()) {
            (Message::Send { placed }, Send) if !begins => Ok(Request::Send { placed }),
            (Message::Write(target), Write) if !begins => Ok(Request::GoOn(target)),
            (Message::Between, Send) if begins => Ok(Request::Send { placed: 0 }),
            (Message::Between, Write) if begins => request(packet.reth().map(Request::Write)),
            (Message::Between, ReadRequest) => request(packet.reth().map(Request::Read)),
            (Message::Between, CompareSwap | FetchAdd) => {
                request(packet.atomic_eth().map(Request::Atomic))
            }
            _ => Err(Refusal::InvalidRequest),
        }
    }

    /// READs and atomics need a place among the resources; what ends in a completion needs a
    /// receive, which is taken here. spec: IBA 9.7.4
    fn check_resources<H: Host>(
        &mut self,
        common: &Common<H>,
        packet: &Packet<'_>,
        request: Request,
    ) -> Result<(), Refusal> {
        match request {
            Request::Read(_) | Request::Atomic(_) => {
                if self.answers.outstanding() >= self.resources.capacity() {
                    return Err(Refusal::InvalidRequest);
                }
            }
            Request::Send { .. } | Request::Write(_) | Request::GoOn(_) => {
                let is_write = !matches!(request, Request::Send { .. });
                let has_immediate = packet.opcode().info().attached == Attached::Immediate;
                if self.receive.is_none() && (!is_write || has_immediate) {
                    let receive = common.receives.take().ok_or(Refusal::NotReady)?;
                    self.receive = Some(receive);
                }
            }
        }
        Ok(())
    }

    /// A SEND must fit its receive. spec: IBA 9.7.4
    fn check_receive(&self, packet: &Packet<'_>, request: Request) -> Result<(), Refusal> {
        let Request::Send { placed } = request else {
            return Ok(());
        };
        let capacity = self.receive.as_ref().map_or(0, scatter::capacity);
        if u64::from(placed) + packet.payload().len() as u64 > capacity {
            return Err(Refusal::TooLong);
        }
        Ok(())
    }

    /// A request before the expected one is missing. One NAK per gap. spec: IBA 9.7.5
    fn handle_gap<H: Host>(&mut self, common: &mut Common<H>) -> Handled {
        common.counters.out_of_sequence_requests += 1;
        if self.is_gap_reported {
            return Handled::fine(Outcome::Dropped(DropReason::OutOfSequence));
        }
        self.is_gap_reported = true;
        let syndrome = Syndrome::Nak(NakCode::SequenceError);
        self.acknowledge(common, self.expected, syndrome);
        Handled::fine(Outcome::Delivered)
    }

    /// A request that was executed before. spec: IBA 9.7.5, C9-105
    fn handle_duplicate<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
    ) -> Handled {
        common.counters.duplicate_requests += 1;
        let psn = packet.bth().psn;
        let is_known = match packet.opcode().operation() {
            Operation::Send | Operation::Write => {
                self.acknowledge(common, self.expected.minus(1), Syndrome::ACK);
                true
            }
            Operation::ReadRequest => self.read_again(common, packet),
            Operation::CompareSwap | Operation::FetchAdd => {
                let original = packet
                    .atomic_eth()
                    .and_then(|request| self.resources.original(psn, packet.opcode(), &request));
                if let Some(original) = original {
                    self.answers.push_again(Answer::Atomic {
                        psn,
                        original,
                        msn: self.msn,
                        is_duplicate: true,
                    });
                }
                original.is_some()
            }
            _ => false,
        };
        Handled::fine(if is_known {
            Outcome::Delivered
        } else {
            Outcome::Dropped(DropReason::UnknownDuplicate)
        })
    }

    /// Answers a duplicate READ from the memory as it is now; the rest of a READ is a READ of its
    /// own and starts with FIRST or ONLY. False if nothing covers it.
    fn read_again<H: Host>(&mut self, common: &Common<H>, packet: &Packet<'_>) -> bool {
        let next = packet.bth().psn;
        let Some(rest) = packet.reth().map(Source::of) else {
            return false;
        };
        let Some(request) = self.resources.covering_read(next, rest, common.mtu()) else {
            return false;
        };
        self.answers.read_again(ReadAnswer {
            next,
            rest,
            is_start: true,
            request,
            msn: self.msn,
            is_duplicate: true,
        });
        true
    }

    /// Says no: to the requester, and to the own program by the completion of the receive in hand
    /// or by an event. spec: IBA 9.7.4, 11.6.3.1
    fn refuse<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        refusal: Refusal,
    ) -> Handled {
        let psn = packet.bth().psn;
        let syndrome = refusal.syndrome(common.attributes.min_rnr_timer);
        if refusal != Refusal::CannotInvalidate || packet.bth().ack_request {
            self.acknowledge(common, psn, syndrome);
        }
        if refusal == Refusal::NotReady {
            // what is in flight behind this packet is no gap of its own
            self.is_gap_reported = true;
            common.counters.sent_rnr_naks += 1;
            return Handled::fine(Outcome::Delivered);
        }
        self.message = Message::Between;
        let event = match self.receive.take() {
            Some(receive) => {
                let opcode = match packet.opcode().operation() {
                    Operation::Write => CompletionOpcode::ReceiveRdmaWithImmediate,
                    _ => CompletionOpcode::Receive,
                };
                let completion =
                    WorkCompletion::error(receive.id, opcode, refusal.status(), common.qpn);
                common
                    .receive_cq
                    .push(completion, true)
                    .err()
                    .map(|_| AsyncEvent::Fatal(common.index()))
            }
            None => Some(refusal.event(common.index())),
        };
        common.events.extend(event);
        Handled {
            outcome: Outcome::Delivered,
            fatal: true,
        }
    }

    pub(super) fn acknowledge<H: Host>(
        &mut self,
        common: &mut Common<H>,
        psn: Psn,
        syndrome: Syndrome,
    ) {
        let is_merged = self.answers.acknowledge(psn, syndrome, self.msn);
        common.counters.deferred_acks += u64::from(is_merged);
    }
}

/// What a packet asks for, once its opcode is one that may come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A packet of a SEND of which `placed` bytes came before.
    Send {
        placed: u32,
    },
    /// The first or only packet of a WRITE.
    Write(Reth),
    /// A later packet of a WRITE.
    GoOn(Target),
    Read(Reth),
    Atomic(AtomicEth),
}

/// Every packet of these opcodes has the header: without it there is nothing to execute.
fn request(request: Option<Request>) -> Result<Request, Refusal> {
    request.ok_or(Refusal::InvalidRequest)
}

/// The queue pair must allow the operation; SEND always is. spec: IBA 9.7.4
fn check_enabled<H: Host>(common: &Common<H>, request: Request) -> Result<(), Refusal> {
    let need = match request {
        Request::Send { .. } => Access::empty(),
        Request::Write(_) | Request::GoOn(_) => Access::REMOTE_WRITE,
        Request::Read(_) => Access::REMOTE_READ,
        Request::Atomic(_) => Access::REMOTE_ATOMIC,
    };
    if common.attributes.access.contains(need) {
        Ok(())
    } else {
        Err(Refusal::InvalidRequest)
    }
}

/// Full packets but for the last, which is not empty; no message above 2^31 bytes.
/// spec: IBA C9-92, C9-94
fn check_length<H: Host>(
    common: &Common<H>,
    packet: &Packet<'_>,
    request: Request,
) -> Result<(), Refusal> {
    let message_length = match request {
        Request::Send { placed } => u64::from(placed) + packet.payload().len() as u64,
        Request::Write(reth) | Request::Read(reth) => reth.dma_length.into(),
        Request::GoOn(target) => target.length.into(),
        Request::Atomic(_) => u64::from(ATOMIC_LENGTH),
    };
    if message_length <= MESSAGE_LENGTH_MAX && packet.payload_fits(common.attributes.path_mtu) {
        Ok(())
    } else {
        Err(Refusal::InvalidRequest)
    }
}

/// Key, domain, right and bounds of the whole message, at its first packet. The key of zero bytes
/// is not looked at. spec: IBA 9.7.4, C9-88
fn check_memory<H: Host>(
    common: &Common<H>,
    request: Request,
    memory: &H::Memory,
) -> Result<Admitted, Refusal> {
    let check = |key, address, length: u32, need| {
        if length == 0 {
            return Ok(None);
        }
        let range = MemoryRange {
            address,
            length: length.into(),
        };
        memory
            .check(key, common.scope(), range, need)
            .map(Some)
            .map_err(|_| Refusal::RemoteAccess)
    };
    match request {
        Request::Send { placed } => Ok(Admitted::Send { placed }),
        Request::GoOn(target) => Ok(Admitted::Write(target)),
        Request::Write(reth) => {
            let grant = check(reth.rkey, reth.va, reth.dma_length, Access::REMOTE_WRITE)?;
            Ok(Admitted::Write(Target {
                grant,
                length: reth.dma_length,
                placed: 0,
            }))
        }
        Request::Read(reth) => {
            // the answers check again when they are made: nothing is kept
            check(reth.rkey, reth.va, reth.dma_length, Access::REMOTE_READ)?;
            Ok(Admitted::Read(Source::of(reth)))
        }
        Request::Atomic(atomic) => {
            let grant = check(atomic.rkey, atomic.va, ATOMIC_LENGTH, Access::REMOTE_ATOMIC)?;
            let grant = grant.ok_or(Refusal::RemoteAccess)?;
            Ok(Admitted::Atomic(grant, atomic))
        }
    }
}

/// The payload of a WRITE stays within its length, and its last packet ends there.
/// spec: IBA 9.7.4
fn check_extent(packet: &Packet<'_>, admitted: Admitted) -> Result<(), Refusal> {
    let Admitted::Write(target) = admitted else {
        return Ok(());
    };
    let end = u64::from(target.placed) + packet.payload().len() as u64;
    let length = u64::from(target.length);
    let is_right = if packet.opcode().ends_message() {
        end == length
    } else {
        end < length
    };
    if is_right {
        Ok(())
    } else {
        Err(Refusal::InvalidRequest)
    }
}

/// Atomics work on naturally aligned words. spec: IBA 9.7.4
fn check_alignment(admitted: Admitted) -> Result<(), Refusal> {
    match admitted {
        Admitted::Atomic(_, atomic) if !atomic.va.is_multiple_of(ATOMIC_LENGTH.into()) => {
            Err(Refusal::InvalidRequest)
        }
        _ => Ok(()),
    }
}

impl Handled {
    fn fine(outcome: Outcome) -> Self {
        Self {
            outcome,
            fatal: false,
        }
    }
}

#[cfg(test)]
mod tests;
