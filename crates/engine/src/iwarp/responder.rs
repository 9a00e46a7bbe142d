//! The receiving half: segments of the peer's requests, in the order of the stream.
//!
//! Read first: RFC 5041 5 and 7, RFC 5040 5. Each kind of segment has its list of checks, the last
//! of which is about memory; then bytes are placed, and the last segment of a message completes
//! its receive. A tagged segment stands for itself: nothing is kept from one to the next.

use wire::MemoryKey;
use wire::iwarp::{
    AtomicCode, AtomicRequest, AtomicResponse, Immediate, Msn, Opcode, ReadRequest, Tagged,
    TerminateCode, Untagged,
};

use super::answers::Answers;
use super::terminate::{Refusal, Told};
use crate::access::{Access, AccessError, AtomicOperation, Grant, MemoryRange};
use crate::completion::{CompletionOpcode, Status, WorkCompletion};
use crate::host::{CompletionSink, Host, Memory, ReceiveSource, ReceiveWqe};
use crate::qp::Common;
use crate::qp::scatter::{self, scatter};

/// A Send of which the last segment has not come.
#[derive(Debug)]
struct OpenSend {
    receive: ReceiveWqe,
    opcode: Opcode,
    /// Bytes placed.
    placed: u32,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Responder {
    pub answers: Answers,
    open: Option<OpenSend>,
    /// What comes next in the queue of Sends and in that of requests.
    send_msn: Msn,
    request_msn: Msn,
    /// Bytes of the Write that is coming, and of the last whole one: for immediate data.
    write_length: u32,
    whole_write: u32,
    /// The first Send is the RTR message: it has no bytes and takes no receive.
    pub awaits_rtr_send: bool,
}

impl Responder {
    /// No stream yet.
    pub fn new() -> Self {
        Self {
            answers: Answers::new(),
            open: None,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            write_length: 0,
            whole_write: 0,
            awaits_rtr_send: false,
        }
    }

    /// The receive of a Send that did not come as a whole.
    pub fn take_receive(&mut self) -> Option<ReceiveWqe> {
        self.open.take().map(|open| open.receive)
    }

    /// An RDMA Write: STag, then bounds, then rights, at each segment. spec: RFC 5041 7
    pub fn place_write<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        header: &Tagged,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let is_last = header.control.is_last();
        let length = payload.len() as u32; // of a ULPDU
        // spec: RFC 5040 5: of a Write of no bytes the STag is not looked at
        if length > 0 {
            let range = MemoryRange {
                address: header.offset.0,
                length: length.into(),
            };
            grant(common, memory, header.stag, range, Access::REMOTE_WRITE)
                .and_then(|grant| memory.place(&grant, 0, payload, is_last))
                .map_err(|error| Refusal::of_write(error, range))?;
        }
        self.write_length = self.write_length.saturating_add(length);
        if is_last {
            self.whole_write = core::mem::take(&mut self.write_length);
        }
        Ok(())
    }

    /// A segment of a Send: message number, receive, offset, length, then memory.
    /// spec: RFC 5041 7
    pub fn receive_send<H: Host>(
        &mut self,
        common: &mut Common<H>,
        memory: &H::Memory,
        opcode: Opcode,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        check_msn(header, self.send_msn)?;
        if self.awaits_rtr_send {
            return self.take_rtr_send(header, payload);
        }
        if self.open.is_none() {
            let receive = take_receive(common)?;
            self.open = Some(OpenSend {
                receive,
                opcode,
                placed: 0,
            });
        }
        let Some(open) = &mut self.open else {
            return Ok(()); // it was made above
        };
        if open.opcode != opcode {
            return Err(Refusal::request(TerminateCode::UNEXPECTED_OPCODE));
        }
        check_offset(header, open.placed)?;
        let end = u64::from(open.placed) + payload.len() as u64;
        let placed = u32::try_from(end).ok();
        let Some(placed) = placed.filter(|_| end <= scatter::capacity(&open.receive)) else {
            return Err(Refusal {
                code: TerminateCode::MESSAGE_TOO_LONG,
                told: Told::Receive(Status::LocalLength),
            });
        };
        let is_last = header.control.is_last();
        let sges = open.receive.sges.iter();
        scatter(common, sges, open.placed, payload, is_last, memory).map_err(|_| Refusal {
            code: TerminateCode::DDP_CATASTROPHIC,
            told: Told::Receive(Status::LocalProtection),
        })?;
        open.placed = placed;
        if !is_last {
            return Ok(());
        }
        self.send_msn = self.send_msn.next();
        let mut invalidated = None;
        if opcode.invalidates() {
            memory
                .invalidate(header.invalidate, common.scope())
                .map_err(Refusal::of_invalidation)?;
            invalidated = Some(header.invalidate);
        }
        let Some(receive) = self.take_receive() else {
            return Ok(());
        };
        let kind = CompletionOpcode::Receive;
        let completion = WorkCompletion {
            invalidated,
            has_grh: false,
            ..WorkCompletion::success(receive.id, kind, placed, common.qpn)
        };
        complete(common, completion, opcode)
    }

    /// Immediate data: it takes a receive, and tells of the Write before it. spec: RFC 7306 5
    pub fn receive_immediate<H: Host>(
        &mut self,
        common: &mut Common<H>,
        opcode: Opcode,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        check_msn(header, self.send_msn)?;
        if self.open.is_some() {
            return Err(Refusal::request(TerminateCode::UNEXPECTED_OPCODE));
        }
        check_only(header)?;
        let immediate = Immediate::parse(payload).map_err(|error| Refusal::of_message(&error))?;
        let receive = take_receive(common)?;
        self.send_msn = self.send_msn.next();
        let [a, b, c, d, ..] = immediate.0;
        let kind = CompletionOpcode::ReceiveRdmaWithImmediate;
        let length = core::mem::take(&mut self.whole_write);
        let completion = WorkCompletion {
            immediate: Some([a, b, c, d]),
            has_grh: false,
            ..WorkCompletion::success(receive.id, kind, length, common.qpn)
        };
        complete(common, completion, opcode)
    }

    /// A Read Request: message number, how many there are, then memory, which is looked at again
    /// when it is answered. spec: RFC 5040 4.8
    pub fn take_read<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.check_request(header)?;
        let request = ReadRequest::parse(payload).map_err(|error| Refusal::of_message(&error))?;
        self.answers.check_room()?;
        if request.length > 0 {
            let range = MemoryRange {
                address: request.source_offset.0,
                length: request.length.into(),
            };
            grant(common, memory, request.source, range, Access::REMOTE_READ)
                .map_err(|error| Refusal::of_read(error, range))?;
        }
        self.request_msn = self.request_msn.next();
        self.answers.owe_read(*header, request);
        Ok(())
    }

    /// An Atomic Request, done at once. Masks that are not those of one whole number are refused.
    /// spec: RFC 7306 5.1, 5.2
    pub fn do_atomic<H: Host>(
        &mut self,
        common: &Common<H>,
        memory: &H::Memory,
        header: &Untagged,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        self.check_request(header)?;
        let request = AtomicRequest::parse(payload).map_err(|error| Refusal::of_message(&error))?;
        self.answers.check_room()?;
        let operation =
            whole_word(&request).ok_or(Refusal::request(TerminateCode::OPERATION_UNSPECIFIED))?;
        let range = MemoryRange {
            address: request.remote_offset.0,
            length: 8,
        };
        let aligned = if range.address.is_multiple_of(8) {
            Ok(())
        } else {
            Err(AccessError::Misaligned)
        };
        let original = aligned
            .and_then(|()| grant(common, memory, request.remote, range, Access::REMOTE_ATOMIC))
            .and_then(|grant| memory.atomic(&grant, operation))
            .map_err(|error| Refusal::of_read(error, range))?;
        self.request_msn = self.request_msn.next();
        let id = request.id;
        self.answers.owe_atomic(AtomicResponse { id, original });
        Ok(())
    }

    fn check_request(&self, header: &Untagged) -> Result<(), Refusal> {
        check_msn(header, self.request_msn)?;
        check_only(header)
    }

    fn take_rtr_send(&mut self, header: &Untagged, payload: &[u8]) -> Result<(), Refusal> {
        check_only(header)?;
        if !payload.is_empty() {
            return Err(Refusal::request(TerminateCode::NO_MATCHING_RTR));
        }
        self.awaits_rtr_send = false;
        self.send_msn = self.send_msn.next();
        Ok(())
    }
}

/// The next message of its queue? spec: RFC 5041 7
pub(super) fn check_msn(header: &Untagged, expected: Msn) -> Result<(), Refusal> {
    if header.msn == expected {
        return Ok(());
    }
    Err(Refusal::request(TerminateCode::INVALID_MSN))
}

/// The next byte of its message? spec: RFC 5041 7
fn check_offset(header: &Untagged, expected: u32) -> Result<(), Refusal> {
    if header.offset.0 == expected {
        return Ok(());
    }
    Err(Refusal::request(TerminateCode::INVALID_OFFSET))
}

/// A message of one segment? Its buffer has no room for more. spec: RFC 5040 4
pub(super) fn check_only(header: &Untagged) -> Result<(), Refusal> {
    check_offset(header, 0)?;
    if header.control.is_last() {
        return Ok(());
    }
    Err(Refusal::request(TerminateCode::MESSAGE_TOO_LONG))
}

/// There is no second try: without a receive the stream is over. spec: RFC 5041 7
/// What the peer may do here: both its stream and the region must allow it.
fn grant<H: Host>(
    common: &Common<H>,
    memory: &H::Memory,
    key: MemoryKey,
    range: MemoryRange,
    need: Access,
) -> Result<Grant, AccessError> {
    if !common.attributes.access.contains(need) {
        return Err(AccessError::NotPermitted);
    }
    memory.check(key, common.scope(), range, need)
}

fn take_receive<H: Host>(common: &Common<H>) -> Result<ReceiveWqe, Refusal> {
    let receive = common.receives.take();
    receive.ok_or(Refusal::request(TerminateCode::NO_BUFFER))
}

fn complete<H: Host>(
    common: &mut Common<H>,
    completion: WorkCompletion,
    opcode: Opcode,
) -> Result<(), Refusal> {
    common.counters.rdma_receives += 1;
    let pushed = common.receive_cq.push(completion, opcode.is_solicited());
    pushed.map_err(|_| Refusal {
        code: TerminateCode::LOCAL_CATASTROPHIC,
        told: Told::Fatal,
    })
}

/// The operation on 8 bytes that a request is, if its masks make it one.
fn whole_word(request: &AtomicRequest) -> Option<AtomicOperation> {
    match request.operation {
        AtomicCode::FetchAdd if request.mask == 0 => {
            Some(AtomicOperation::FetchAdd { add: request.data })
        }
        AtomicCode::CompareSwap if request.mask & request.compare_mask == u64::MAX => {
            Some(AtomicOperation::CompareSwap {
                compare: request.compare,
                swap: request.data,
            })
        }
        _ => None,
    }
}
