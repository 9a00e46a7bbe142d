//! Why a stream ends: what the peer is told, and what the own program.
//!
//! Read first: RFC 5040 4.8, RFC 5041 7. Checks give a [`Refusal`]; the Terminate, the completion
//! and the event are three views of it.

use wire::ParseError;
use wire::error::Reason;
use wire::iwarp::{
    Framer, Header, MessageOffset, Msn, Opcode, ReadRequest, Reading, Terminate, TerminateCode,
    Untagged,
};

use crate::access::{AccessError, MemoryRange};
use crate::completion::Status;

/// What a segment of the peer is refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// For the peer.
    pub code: TerminateCode,
    /// For the program.
    pub told: Told,
}

/// What tells the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The completion of the receive in hand; an event if there is none.
    Receive(Status),
    /// The completion of the oldest READ or atomic.
    Answer(Status),
    /// An event: the peer asked for something that makes no sense.
    Request,
    /// An event: the peer asked for memory that it may not use.
    Access,
    /// An event: it cannot go on.
    Fatal,
}

impl Refusal {
    /// Something that makes no sense.
    pub const fn request(code: TerminateCode) -> Self {
        let told = Told::Request;
        Self { code, told }
    }

    /// The stream itself is broken.
    pub fn of_framing(error: &ParseError) -> Self {
        let code = match error.reason {
            Reason::Checksum => TerminateCode::CRC,
            _ => TerminateCode::MARKER_OR_LENGTH,
        };
        let told = Told::Fatal;
        Self { code, told }
    }

    /// A header of RDMAP of the wrong length.
    pub fn of_message(error: &ParseError) -> Self {
        Self::request(match error.reason {
            Reason::TooLong { .. } => TerminateCode::MESSAGE_TOO_LONG,
            _ => TerminateCode::MARKER_OR_LENGTH,
        })
    }

    /// An RDMA Write that memory does not take. spec: RFC 5041 7
    pub fn of_write(error: AccessError, range: MemoryRange) -> Self {
        let code = match error {
            AccessError::UnknownKey | AccessError::NotPermitted | AccessError::Fault => {
                TerminateCode::TAGGED_INVALID_STAG
            }
            AccessError::WrongScope => TerminateCode::TAGGED_NOT_ASSOCIATED,
            AccessError::OutOfBounds if wraps(range) => TerminateCode::TAGGED_WRAP,
            AccessError::OutOfBounds | AccessError::Misaligned => TerminateCode::TAGGED_BOUNDS,
        };
        let told = Told::Access;
        Self { code, told }
    }

    /// A READ or an atomic that memory does not allow. spec: RFC 5040 4.8
    pub fn of_read(error: AccessError, range: MemoryRange) -> Self {
        Self::request(match error {
            AccessError::UnknownKey => TerminateCode::REMOTE_INVALID_STAG,
            AccessError::WrongScope => TerminateCode::REMOTE_NOT_ASSOCIATED,
            AccessError::OutOfBounds if wraps(range) => TerminateCode::REMOTE_WRAP,
            AccessError::OutOfBounds => TerminateCode::REMOTE_BOUNDS,
            AccessError::NotPermitted => TerminateCode::REMOTE_ACCESS,
            AccessError::Fault | AccessError::Misaligned => TerminateCode::REMOTE_UNSPECIFIED,
        })
    }

    /// An invalidation that is not allowed. spec: RFC 5040 4.8
    pub fn of_invalidation(error: AccessError) -> Self {
        let code = match error {
            AccessError::UnknownKey => TerminateCode::REMOTE_INVALID_STAG,
            AccessError::WrongScope => TerminateCode::REMOTE_NOT_ASSOCIATED,
            _ => TerminateCode::REMOTE_CANNOT_INVALIDATE,
        };
        let told = Told::Receive(Status::RemoteInvalidRequest);
        Self { code, told }
    }
}

fn wraps(range: MemoryRange) -> bool {
    range.address.checked_add(range.length).is_none()
}

/// The message, with as much of the faulty segment as the code asks for.
pub(super) fn about(code: TerminateCode, faulty: Option<(Header, &[u8])>) -> Terminate {
    let mut terminate = Terminate::new(code);
    if let Some((header, payload)) = faulty.filter(|_| code.is_of_segment()) {
        terminate.segment_length = Some(payload.len() as u16); // of a ULPDU
        terminate.header = Some(header);
        if header.control().opcode() == Some(Opcode::ReadRequest) {
            terminate.request = ReadRequest::parse(payload).ok();
        }
    }
    terminate
}

/// The ULPDU of a Terminate, the first and only one of its direction.
pub(super) fn ulpdu(terminate: &Terminate) -> Vec<u8> {
    let offset = MessageOffset::default();
    let header = Untagged::new(Opcode::Terminate, true, Msn::FIRST, offset);
    let mut ulpdu = header.to_bytes().to_vec();
    terminate.emit_into(Reading::Rfc, &mut ulpdu);
    ulpdu
}

/// Appends the FPDU of a Terminate that is the first of its stream.
pub(super) fn only_fpdu(code: TerminateCode, has_crc: bool, has_markers: bool, out: &mut Vec<u8>) {
    let ulpdu = ulpdu(&Terminate::new(code));
    let start = out.len();
    out.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
    out.extend_from_slice(&ulpdu);
    Framer::new(has_crc, has_markers).seal(out, start);
}
