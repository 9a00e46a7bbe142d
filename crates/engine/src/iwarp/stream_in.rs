//! What the peer sent: FPDUs off the stream, each to the checks of its kind.

use wire::iwarp::{
    AtomicResponse, Header, Msn, Opcode, Reading, Tagged, Terminate, TerminateCode, Untagged,
};

use super::queue_pair::{Phase, QueuePair, Stream};
use super::requester::{Requester, sink_of};
use super::responder::{Responder, check_msn, check_only};
use super::terminate::{self, Refusal, Told};
use crate::completion::Status;
use crate::host::Host;
use crate::qp::Common;
use crate::qp::scatter::scatter;
use crate::time::Instant;

/// What a segment was that was taken.
enum Taken {
    /// Something was placed, completed or asked for.
    Done,
    /// The peer cannot go on.
    Terminated(TerminateCode),
}

impl<H: Host> QueuePair<H> {
    /// Takes whole FPDUs from the front of `bytes` and gives how many bytes that was; the rest is
    /// to be given again, with more behind it, at most
    /// [`FPDU_MAX`](wire::iwarp::fpdu::FPDU_MAX) in all. Once the connection is over everything is
    /// taken and nothing looked at.
    pub fn handle_stream(&mut self, now: Instant, bytes: &[u8], memory: &H::Memory) -> usize {
        let mut taken = 0;
        while let Some(stream) = stream(&mut self.phase) {
            let fpdu = match stream.deframer.next(&bytes[taken..]) {
                Ok(Some(fpdu)) => fpdu,
                Ok(None) => {
                    stream.is_amid_fpdu = taken < bytes.len();
                    self.finish_if_drained(now);
                    return taken;
                }
                Err(error) => {
                    let refusal = Refusal::of_framing(&error);
                    let terminate = terminate::about(refusal.code, None);
                    self.refuse(now, refusal, terminate);
                    break;
                }
            };
            taken += fpdu.length;
            self.common.counters.received_packets += 1;
            let is_awaited = stream.opening.hear();
            stream.reminder.heard();
            let mut halves = Halves {
                common: &mut self.common,
                requester: &mut self.requester,
                responder: &mut self.responder,
                allows_extensions: self.allows_extensions,
                memory,
            };
            match halves.take(fpdu.ulpdu) {
                Ok(Taken::Done) if is_awaited => self.established(),
                Ok(Taken::Done) => {}
                Ok(Taken::Terminated(code)) => self.terminated(code),
                Err((refusal, terminate)) => self.refuse(now, refusal, terminate),
            }
        }
        bytes.len()
    }
}

/// The stream that is still looked at.
fn stream(phase: &mut Phase) -> Option<&mut Stream> {
    match phase {
        Phase::Streaming(stream) => Some(stream),
        Phase::Lingering { stream, .. } => stream.as_mut(),
        _ => None,
    }
}

/// What a segment works with.
struct Halves<'a, H: Host> {
    common: &'a mut Common<H>,
    requester: &'a mut Requester,
    responder: &'a mut Responder,
    allows_extensions: bool,
    memory: &'a H::Memory,
}

impl<H: Host> Halves<'_, H> {
    fn take(&mut self, ulpdu: &[u8]) -> Result<Taken, (Refusal, Terminate)> {
        let Ok((header, payload)) = Header::parse(ulpdu) else {
            let refusal = Refusal::request(TerminateCode::MARKER_OR_LENGTH);
            return Err((refusal, terminate::about(refusal.code, None)));
        };
        self.dispatch(&header, payload).map_err(|refusal| {
            let terminate = terminate::about(refusal.code, Some((header, payload)));
            (refusal, terminate)
        })
    }

    /// Versions, opcode and queue, then what the opcode asks for. spec: RFC 5041 7, RFC 5040 4.8
    fn dispatch(&mut self, header: &Header, payload: &[u8]) -> Result<Taken, Refusal> {
        let opcode = header.check().map_err(Refusal::request)?;
        if opcode.info().is_extension && !self.allows_extensions {
            return Err(Refusal::request(TerminateCode::UNEXPECTED_OPCODE));
        }
        let Self {
            common,
            responder,
            memory,
            ..
        } = self;
        match (header, opcode) {
            (Header::Tagged(tagged), Opcode::Write) => {
                responder.place_write(common, memory, tagged, payload)?;
            }
            (Header::Tagged(tagged), _) => self.take_response(tagged, payload)?,
            (Header::Untagged(untagged), Opcode::ReadRequest) => {
                responder.take_read(common, memory, untagged, payload)?;
            }
            (Header::Untagged(untagged), Opcode::AtomicRequest) => {
                responder.do_atomic(common, memory, untagged, payload)?;
            }
            (Header::Untagged(untagged), Opcode::AtomicResponse) => {
                self.take_atomic_response(untagged, payload)?;
            }
            (Header::Untagged(untagged), Opcode::Immediate | Opcode::ImmediateSolicited) => {
                responder.receive_immediate(common, opcode, untagged, payload)?;
            }
            (Header::Untagged(untagged), Opcode::Terminate) => {
                return take_terminate(untagged, payload).map(Taken::Terminated);
            }
            (Header::Untagged(untagged), _) => {
                responder.receive_send(common, memory, opcode, untagged, payload)?;
            }
        }
        Ok(Taken::Done)
    }

    /// A segment of the response to the oldest READ: it must go on where the last one ended, and
    /// never beyond what was asked for. spec: RFC 5040 5, RFC 5041 7
    fn take_response(&mut self, header: &Tagged, payload: &[u8]) -> Result<(), Refusal> {
        let is_last = header.control.is_last();
        if self.requester.is_rtr_awaited {
            // the READ of no bytes that was our RTR message
            if !payload.is_empty() || !is_last {
                return Err(Refusal::request(TerminateCode::TAGGED_BOUNDS));
            }
            self.requester.is_rtr_awaited = false;
            return Ok(());
        }
        let unexpected = Refusal::request(TerminateCode::UNEXPECTED_OPCODE);
        let (awaited, wqe) = self.requester.oldest_awaited().ok_or(unexpected)?;
        if awaited.atomic_id.is_some() {
            return Err(unexpected);
        }
        let length = payload.len() as u32; // of a ULPDU
        if length > 0 {
            let (stag, offset) = sink_of(wqe);
            if header.stag != stag {
                return Err(bad_response(TerminateCode::TAGGED_INVALID_STAG));
            }
            let expected = offset.0.wrapping_add(awaited.placed.into());
            if header.offset.0 != expected || length > wqe.length - awaited.placed {
                return Err(bad_response(TerminateCode::TAGGED_BOUNDS));
            }
            let sges = wqe.sges.iter();
            let placed = awaited.placed;
            scatter(self.common, sges, placed, payload, is_last, self.memory)
                .map_err(|_| lost_sink())?;
            awaited.placed += length;
        }
        if !is_last {
            return Ok(());
        }
        if awaited.placed < wqe.length {
            return Err(bad_response(TerminateCode::TAGGED_BOUNDS));
        }
        self.answered()
    }

    /// The response to the oldest atomic. spec: RFC 7306 5.2
    fn take_atomic_response(&mut self, header: &Untagged, payload: &[u8]) -> Result<(), Refusal> {
        check_msn(header, self.requester.response_msn())?;
        check_only(header)?;
        let response =
            AtomicResponse::parse(payload).map_err(|error| Refusal::of_message(&error))?;
        let unexpected = Refusal::request(TerminateCode::UNEXPECTED_OPCODE);
        let (awaited, wqe) = self.requester.oldest_awaited().ok_or(unexpected)?;
        if awaited.atomic_id != Some(response.id) {
            return Err(unexpected);
        }
        let (sges, original) = (wqe.sges.iter(), response.original.to_ne_bytes());
        scatter(self.common, sges, 0, &original, true, self.memory).map_err(|_| lost_sink())?;
        self.requester.next_response_msn();
        self.answered()
    }

    fn answered(&mut self) -> Result<(), Refusal> {
        let completed = self.requester.answered(self.common);
        completed.map_err(|_| Refusal {
            code: TerminateCode::LOCAL_CATASTROPHIC,
            told: Told::Fatal,
        })
    }
}

/// A response that does not fit its READ.
fn bad_response(code: TerminateCode) -> Refusal {
    let told = Told::Answer(Status::LocalLength);
    Refusal { code, told }
}

/// Where the answer goes is gone.
fn lost_sink() -> Refusal {
    Refusal {
        code: TerminateCode::TAGGED_INVALID_STAG,
        told: Told::Answer(Status::LocalProtection),
    }
}

/// A Terminate ends the stream whatever it says; what it says is for people.
fn take_terminate(header: &Untagged, payload: &[u8]) -> Result<TerminateCode, Refusal> {
    check_msn(header, Msn::FIRST)?;
    let read = Terminate::parse(payload, Reading::of(payload));
    let unspecified = TerminateCode::OPERATION_UNSPECIFIED;
    Ok(read.map_or(unspecified, |terminate| terminate.code))
}
