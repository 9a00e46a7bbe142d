//! The sending half: work requests become messages, one after the other.
//!
//! Read first: RFC 5040 5, RFC 5041 5. TCP keeps order and loses nothing, so there is no retry and
//! no acknowledgement: a Send or Write is complete once all of it has left, a READ once the last
//! byte of its response is placed. Completions keep the order of the queue nevertheless.

use std::collections::VecDeque;

use wire::MemoryKey;
use wire::iwarp::{
    AtomicRequest, Immediate, MessageOffset, Msn, Opcode, ReadRequest, Tagged, TaggedOffset,
    Untagged,
};

use super::answers::Awaited;
use super::burst::{Source, StreamBurst};
use crate::access::{Access, MemoryRange, Sge, Span};
use crate::completion::{Overrun, Status};
use crate::host::{Host, Memory};
use crate::qp::flush::Cause;
use crate::qp::send_queue::{SendQueue, SendWqe, WqeNumber};
use crate::qp::sge_cursor::SgeCursor;
use crate::qp::{Capabilities, Common, Operation, PostError, RemoteMemory, SendFlags, SendRequest};

/// What an RTR message names: siw's choice, and nobody looks at it.
pub(super) const RTR_STAG: MemoryKey = MemoryKey(1);

/// What came of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A segment is in the burst, or a work request needed none.
    Done,
    /// There is nothing, or something must arrive first.
    Idle,
}

/// Where the message at [`Requester::next`] is cut.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    /// Whether anything of it was sent.
    is_begun: bool,
    /// Bytes sent.
    offset: u32,
    /// Where they end in the elements.
    source: SgeCursor,
    /// Of a Write with immediate data: the Write is sent, the data is not.
    is_immediate_due: bool,
}

/// The sending half.
///
/// Invariant: `queue.head() <= left <= next <= queue.end()`; the awaited answers are those of work
/// requests before `next`, in their order.
#[derive(Debug)]
pub(super) struct Requester {
    pub queue: SendQueue,
    /// The message that is being cut, or the next one.
    next: WqeNumber,
    cut: Cut,
    /// All before it have left the program's memory.
    left: WqeNumber,
    /// A work request that cannot be sent; it ends once those before it are complete.
    failed: Option<(WqeNumber, Status)>,
    /// READs and atomics that the peer has to answer, at most ORD.
    pub awaited: VecDeque<Awaited>,
    ord: u16,
    /// A READ that is our RTR message takes one of them, before all others.
    pub is_rtr_awaited: bool,
    send_msn: Msn,
    request_msn: Msn,
    /// Names atomics in their responses.
    atomic_id: u32,
    /// Of the next atomic response.
    response_msn: Msn,
    /// Payload of a tagged and of an untagged segment that is not the last: multiples of 4.
    tagged_max: u32,
    untagged_max: u32,
    allows_extensions: bool,
    spans: Vec<Span>,
}

impl Requester {
    /// No stream yet.
    pub fn new(capabilities: &Capabilities, allows_extensions: bool) -> Self {
        Self {
            queue: SendQueue::new(
                capabilities.send_wr_max,
                capabilities.send_sge_max,
                capabilities.inline_max,
            ),
            next: WqeNumber::default(),
            cut: Cut::default(),
            left: WqeNumber::default(),
            failed: None,
            awaited: VecDeque::new(),
            ord: 0,
            is_rtr_awaited: false,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            atomic_id: 0,
            response_msn: Msn::FIRST,
            tagged_max: 4,
            untagged_max: 4,
            allows_extensions,
            spans: Vec::new(),
        }
    }

    /// The stream is there: ULPDUs have at most `mulpdu` bytes.
    pub fn start(&mut self, ord: u16, mulpdu: usize) {
        let payload = |header: usize| (mulpdu.saturating_sub(header) & !3).max(4) as u32;
        self.ord = ord;
        self.tagged_max = payload(Tagged::LENGTH);
        self.untagged_max = payload(Untagged::LENGTH);
    }

    /// Whether the request could be posted, apart from the room for it.
    pub fn check(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let is_known = match request.operation {
            Operation::Send
            | Operation::SendInvalidate(_)
            | Operation::Write(_)
            | Operation::Read(_)
            | Operation::LocalInvalidate(_) => true,
            Operation::WriteImmediate(..)
            | Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. } => self.allows_extensions,
            // spec: RFC 7306 5: immediate data goes with Writes alone
            Operation::SendImmediate(_) => false,
        };
        if !is_known {
            return Err(PostError::NotOfTransport);
        }
        self.queue.check(request).map(drop)
    }

    /// Appends a work request.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.check(request)?;
        self.queue.push(request)
    }

    /// Whether the next segment must be of the message that was begun.
    pub fn is_amid_message(&self) -> bool {
        self.cut.is_begun
    }

    /// Whether everything before `end` is complete.
    pub fn is_drained_to(&self, end: WqeNumber) -> bool {
        self.queue.head() >= end
    }

    /// Appends a segment to `out`. Nothing from `end` on is begun.
    pub fn step<H: Host>(
        &mut self,
        common: &mut Common<H>,
        memory: &H::Memory,
        end: Option<WqeNumber>,
        out: &mut StreamBurst,
    ) -> Result<Step, Cause> {
        if let Some((number, status)) = self.failed {
            return if number == self.queue.head() {
                Err(Cause::Send(status))
            } else {
                Ok(Step::Idle)
            };
        }
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(Step::Idle);
        };
        if !self.cut.is_begun {
            if end.is_some_and(|end| self.next >= end) || !self.may_begin(wqe) {
                return Ok(Step::Idle);
            }
            if let Operation::LocalInvalidate(key) = wqe.operation {
                return self.invalidate(common, memory, key);
            }
        }
        let begun = self.begin(common, memory);
        match begun.and_then(|()| self.send_segment(common, memory, out)) {
            Ok(()) => {
                common.counters.sent_packets += 1;
                Ok(Step::Done)
            }
            Err(status) => {
                self.failed = Some((self.next, status));
                self.step(common, memory, end, out)
            }
        }
    }

    /// What was polled has left the program's memory: completes what is complete.
    pub fn burst_left<H: Host>(&mut self, common: &mut Common<H>) -> Result<(), Overrun> {
        self.left = self.next;
        self.complete(common)
    }

    /// A segment of work request `number` could not be gathered, and nothing from it on leaves.
    pub fn transmit_failed<H: Host>(&mut self, common: &mut Common<H>, number: WqeNumber) -> Cause {
        self.left = self.left.max(number);
        match self.complete(common) {
            Ok(()) if number == self.queue.head() => Cause::Send(Status::LocalProtection),
            // something before it still waits for an answer, and will not get it
            _ => Cause::Fault,
        }
    }

    /// The oldest awaited answer. It may come before all of the burst has left that its request is
    /// in, where the socket was full.
    pub fn oldest_awaited(&mut self) -> Option<(&mut Awaited, &SendWqe)> {
        let awaited = self.awaited.front_mut()?;
        let wqe = self.queue.get(awaited.request)?;
        Some((awaited, wqe))
    }

    /// Whether everything before the oldest awaited answer is complete.
    pub fn is_answer_next(&self) -> bool {
        let oldest = self.awaited.front();
        oldest.is_some_and(|one| one.request == self.queue.head())
    }

    /// Number of the next atomic response.
    pub fn response_msn(&self) -> Msn {
        self.response_msn
    }

    /// That one is here.
    pub fn next_response_msn(&mut self) {
        self.response_msn = self.response_msn.next();
    }

    /// The oldest awaited answer is complete.
    pub fn answered<H: Host>(&mut self, common: &mut Common<H>) -> Result<(), Overrun> {
        self.awaited.pop_front();
        self.complete(common)
    }

    /// Completes what has left and awaits nothing, in the order of the queue.
    fn complete<H: Host>(&mut self, common: &mut Common<H>) -> Result<(), Overrun> {
        while self.queue.head() < self.left {
            let head = self.queue.head();
            if self.awaited.front().is_some_and(|one| one.request == head) {
                break;
            }
            let Some(wqe) = self.queue.pop() else { break };
            common.complete_send(wqe)?;
        }
        Ok(())
    }

    fn may_begin(&self, wqe: &SendWqe) -> bool {
        let is_fenced = wqe.flags.contains(SendFlags::FENCE) && !self.awaited.is_empty();
        let has_room = match wqe.operation {
            // with ORD 0 it fails when its turn comes
            ref operation if operation.is_answered() => {
                let outstanding = self.awaited.len() + usize::from(self.is_rtr_awaited);
                self.ord == 0 || outstanding < usize::from(self.ord)
            }
            // an invalidation waits for all before it
            Operation::LocalInvalidate(_) => self.queue.head() == self.next,
            _ => true,
        };
        has_room && !is_fenced
    }

    /// Begins a message: what cannot be sent as a whole is not begun.
    fn begin<H: Host>(&mut self, common: &Common<H>, memory: &H::Memory) -> Result<(), Status> {
        if self.cut.is_begun {
            return Ok(());
        }
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let mut need = Access::empty();
        if wqe.operation.is_answered() {
            if self.ord == 0 {
                return Err(Status::LocalQpOperation); // it could never be sent
            }
            need = Access::LOCAL_WRITE;
        }
        SgeCursor::default().advance(&wqe.sges, wqe.length, |piece| {
            check(common, memory, piece, need).map(drop)
        })?;
        self.cut = Cut {
            is_begun: true,
            ..Cut::default()
        };
        Ok(())
    }

    /// Appends the next segment of the message that was begun.
    fn send_segment<H: Host>(
        &mut self,
        common: &mut Common<H>,
        memory: &H::Memory,
        out: &mut StreamBurst,
    ) -> Result<(), Status> {
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let (operation, is_solicited) = (wqe.operation, is_solicited(wqe));
        match operation {
            Operation::WriteImmediate(_, immediate) if self.cut.is_immediate_due => {
                self.send_immediate(immediate, is_solicited, out);
                Ok(())
            }
            Operation::Write(remote) => {
                let is_last = self.send_write(common, memory, remote, out)?;
                if is_last {
                    self.end_message();
                }
                Ok(())
            }
            Operation::WriteImmediate(remote, _) => {
                let is_last = self.send_write(common, memory, remote, out)?;
                self.cut.is_immediate_due = is_last;
                Ok(())
            }
            Operation::Send | Operation::SendInvalidate(_) | Operation::SendImmediate(_) => {
                self.send_send(common, memory, operation, is_solicited, out)
            }
            Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                self.send_request(out);
                Ok(())
            }
            // executed in its turn, without a segment
            Operation::LocalInvalidate(_) => Ok(()),
        }
    }

    /// A segment of a Write; whether it is the last.
    fn send_write<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        remote: RemoteMemory,
        out: &mut StreamBurst,
    ) -> Result<bool, Status> {
        let at = TaggedOffset(remote.address.wrapping_add(self.cut.offset.into()));
        let (length, is_last) = self.piece(self.tagged_max);
        let header = Tagged::new(Opcode::Write, is_last, remote.key, at);
        self.push_payload(common, memory, &header.to_bytes(), length, out)?;
        Ok(is_last)
    }

    fn send_send<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        operation: Operation,
        is_solicited: bool,
        out: &mut StreamBurst,
    ) -> Result<(), Status> {
        let (opcode, invalidate) = match (operation, is_solicited) {
            (Operation::SendInvalidate(key), false) => (Opcode::SendInvalidate, key),
            (Operation::SendInvalidate(key), true) => (Opcode::SendSolicitedInvalidate, key),
            (_, false) => (Opcode::Send, MemoryKey(0)),
            (_, true) => (Opcode::SendSolicited, MemoryKey(0)),
        };
        let at = MessageOffset(self.cut.offset);
        let (length, is_last) = self.piece(self.untagged_max);
        let header = Untagged {
            invalidate,
            ..Untagged::new(opcode, is_last, self.send_msn, at)
        };
        self.push_payload(common, memory, &header.to_bytes(), length, out)?;
        if is_last {
            self.send_msn = self.send_msn.next();
            self.end_message();
        }
        Ok(())
    }

    /// The immediate data behind a Write. spec: RFC 7306 5
    fn send_immediate(&mut self, immediate: [u8; 4], is_solicited: bool, out: &mut StreamBurst) {
        let opcode = if is_solicited {
            Opcode::ImmediateSolicited
        } else {
            Opcode::Immediate
        };
        let header = Untagged::new(opcode, true, self.send_msn, MessageOffset::default());
        let source = Source::Request(self.next);
        out.push(source, &header.to_bytes(), &widened(immediate).0, &[]);
        self.send_msn = self.send_msn.next();
        self.end_message();
    }

    /// A Read Request or an Atomic Request.
    fn send_request(&mut self, out: &mut StreamBurst) {
        let Some(wqe) = self.queue.get(self.next) else {
            return;
        };
        let (source, id) = (Source::Request(self.next), self.atomic_id);
        let header = |opcode| {
            let offset = MessageOffset::default();
            Untagged::new(opcode, true, self.request_msn, offset).to_bytes()
        };
        let mut push_atomic = |request: AtomicRequest| {
            let header = header(Opcode::AtomicRequest);
            out.push(source, &header, &request.to_bytes(), &[]);
            Some(id)
        };
        let atomic_id = match wqe.operation {
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let (key, at) = (remote.key, TaggedOffset(remote.address));
                push_atomic(AtomicRequest::compare_swap(id, key, at, compare, swap))
            }
            Operation::FetchAdd { remote, add } => {
                let (key, at) = (remote.key, TaggedOffset(remote.address));
                push_atomic(AtomicRequest::fetch_add(id, key, at, add))
            }
            Operation::Read(remote) => {
                let (sink, sink_offset) = sink_of(wqe);
                let request = ReadRequest {
                    sink,
                    sink_offset,
                    length: wqe.length,
                    source: remote.key,
                    source_offset: TaggedOffset(remote.address),
                };
                let header = header(Opcode::ReadRequest);
                out.push(source, &header, &request.to_bytes(), &[]);
                None
            }
            _ => return, // the caller knows which operations are answered
        };
        self.awaited.push_back(Awaited::new(self.next, atomic_id));
        self.atomic_id = self.atomic_id.wrapping_add(u32::from(atomic_id.is_some()));
        self.request_msn = self.request_msn.next();
        self.end_message();
    }

    /// Length of the next segment, and whether it is the last of its message.
    fn piece(&self, most: u32) -> (u32, bool) {
        let length = self.queue.get(self.next).map_or(0, |wqe| wqe.length);
        piece(length, self.cut.offset, most)
    }

    /// Appends a segment with the next `length` bytes of the message.
    fn push_payload<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        header: &[u8],
        length: u32,
        out: &mut StreamBurst,
    ) -> Result<(), Status> {
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let source = Source::Request(self.next);
        let start = self.cut.offset as usize;
        if let Some(inline) = wqe.inline.get(start..start + length as usize)
            && !inline.is_empty()
        {
            out.push(source, header, inline, &[]);
        } else {
            let spans = &mut self.spans;
            spans.clear();
            let elements = &wqe.sges;
            self.cut.source.advance(elements, length, |piece| {
                spans.push(check(common, memory, piece, Access::empty())?);
                Ok(())
            })?;
            out.push(source, header, &[], spans);
        }
        self.cut.offset += length;
        Ok(())
    }

    fn end_message(&mut self) {
        self.cut = Cut::default();
        self.next = self.next.next();
    }

    /// Makes a key of our own unusable; all before it is complete.
    fn invalidate<H: Host>(
        &mut self,
        common: &mut Common<H>,
        memory: &H::Memory,
        key: MemoryKey,
    ) -> Result<Step, Cause> {
        if memory.invalidate(key, common.scope()).is_err() {
            return Err(Cause::Send(Status::MemoryWindowBind));
        }
        self.next = self.next.next();
        self.left = self.next;
        self.complete(common).map_err(|_| Cause::Fault)?;
        Ok(Step::Done)
    }

    /// Nothing is sent or awaited any more; for after the flush.
    pub fn stop(&mut self) {
        self.next = self.queue.end();
        self.left = self.next;
        self.cut = Cut::default();
        self.failed = None;
        self.awaited.clear();
        self.is_rtr_awaited = false;
    }

    /// The Read of no bytes that is our RTR message: its response is awaited first, and completes
    /// nothing.
    pub fn push_rtr_read(&mut self, out: &mut StreamBurst) {
        let opcode = Opcode::ReadRequest;
        let header = Untagged::new(opcode, true, self.request_msn, MessageOffset::default());
        let request = ReadRequest {
            source: RTR_STAG,
            sink: RTR_STAG,
            ..ReadRequest::default()
        };
        let source = Source::Own;
        out.push(source, &header.to_bytes(), &request.to_bytes(), &[]);
        self.request_msn = self.request_msn.next();
        self.is_rtr_awaited = true;
    }

    /// Panics if it contradicts itself; for tests.
    pub fn assert_invariants(&self) {
        assert!(self.queue.head() <= self.left && self.left <= self.next);
        assert!(self.next <= self.queue.end());
        assert!(self.awaited.len() <= usize::from(self.ord));
        let numbers = self.awaited.iter().map(|one| one.request);
        assert!(numbers.clone().is_sorted());
        assert!(
            numbers
                .clone()
                .all(|one| one < self.next && one >= self.queue.head())
        );
    }
}

fn is_solicited(wqe: &SendWqe) -> bool {
    wqe.flags.contains(SendFlags::SOLICITED)
}

/// What the response to a READ names: its first element, or nothing if it has no bytes. Where the
/// bytes go is known from the request; the name is only compared.
pub(super) fn sink_of(wqe: &SendWqe) -> (MemoryKey, TaggedOffset) {
    match wqe.sges.first() {
        Some(sge) if wqe.length > 0 => (sge.key, TaggedOffset(sge.address)),
        _ => (MemoryKey(0), TaggedOffset(0)),
    }
}

/// Immediate data of verbs, 4 bytes, in the 8 of RFC 7306.
fn widened(immediate: [u8; 4]) -> Immediate {
    let [a, b, c, d] = immediate;
    Immediate([a, b, c, d, 0, 0, 0, 0])
}

/// Length of the segment at `offset` of a message, and whether it is the last.
pub(super) fn piece(length: u32, offset: u32, most: u32) -> (u32, bool) {
    let rest = length - offset;
    (rest.min(most), rest <= most)
}

fn check<H: Host>(
    common: &Common<H>,
    memory: &H::Memory,
    piece: Sge,
    need: Access,
) -> Result<Span, Status> {
    let range = MemoryRange {
        address: piece.address,
        length: piece.length.into(),
    };
    let grant = memory.check(piece.key, common.scope(), range, need);
    let span = grant.ok().and_then(|grant| grant.span(0, piece.length));
    span.ok_or(Status::LocalProtection)
}
