//! Terminate: the last message of a direction, and why.
//!
//! Read first: RFC 5040 4.8, RFC 5041 7, RFC 5044 8, RFC 6581 8. Layer, error type and code, then
//! as much of the faulty segment as helps. There are two readings of the first 4 bytes. Linux's siw
//! lays them out as bit fields of a little-endian machine, so that layer and type change places and
//! the flags are mirrored. We send the RFC's; which one was received is guessed from what makes
//! sense ([`Reading::of`]).

use core::fmt;

use super::ddp::{Header, Tagged, Untagged};
use super::rdmap::ReadRequest;
use crate::bytes::{flags, header, read_u16};
use crate::error::{Layer, ParseError};

/// Why a stream ends: layer and error type (4 bits each), and a code that means something in these.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    layer_and_type: u8,
    code: u8,
}

macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $name:ident = $layer:literal / $type:literal / $code:literal, $text:literal;
    )+) => {
        impl TerminateCode {
            $(
                $(#[$doc])*
                pub const $name: Self = Self {
                    layer_and_type: $layer << 4 | $type,
                    code: $code,
                };
            )+

            /// All that have a name.
            pub const ALL: &[Self] = &[$( Self::$name ),+];

            /// The name.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$name => Some($text), )+
                    _ => None,
                }
            }
        }
    };
}

// spec: RFC 5040 4.8
codes! {
    /// The sender of the Terminate itself cannot go on.
    LOCAL_CATASTROPHIC = 0 / 0 / 0x00, "local-catastrophic-error";
    /// Read Request, invalidation: no such STag.
    REMOTE_INVALID_STAG = 0 / 1 / 0x00, "remote-protection-invalid-stag";
    /// Read Request: not inside the STag's memory.
    REMOTE_BOUNDS = 0 / 1 / 0x01, "remote-protection-base-or-bounds";
    /// Read Request: the STag's memory may not be read.
    REMOTE_ACCESS = 0 / 1 / 0x02, "remote-protection-access-rights";
    /// Read Request, invalidation: the STag is not for this stream.
    REMOTE_NOT_ASSOCIATED = 0 / 1 / 0x03, "remote-protection-stag-of-other-stream";
    /// Read Request: offset and length wrap.
    REMOTE_WRAP = 0 / 1 / 0x04, "remote-protection-offset-wrap";
    /// The STag cannot be invalidated.
    REMOTE_CANNOT_INVALIDATE = 0 / 1 / 0x09, "remote-protection-stag-cannot-be-invalidated";
    /// Memory, and no more is told.
    REMOTE_UNSPECIFIED = 0 / 1 / 0xff, "remote-protection-unspecified";
    /// RDMAP's version is not 1.
    RDMAP_VERSION = 0 / 2 / 0x05, "invalid-rdmap-version";
    /// No such opcode, or not here.
    UNEXPECTED_OPCODE = 0 / 2 / 0x06, "unexpected-opcode";
    /// Nothing more on this stream; more Reads than IRD, for one.
    STREAM_CATASTROPHIC = 0 / 2 / 0x07, "catastrophic-error-of-the-stream";
    /// Nothing more at all.
    GLOBAL_CATASTROPHIC = 0 / 2 / 0x08, "catastrophic-error-of-all";
    /// The STag cannot be invalidated, as siw says it.
    OPERATION_CANNOT_INVALIDATE = 0 / 2 / 0x09, "stag-cannot-be-invalidated";
    /// An operation, and no more is told.
    OPERATION_UNSPECIFIED = 0 / 2 / 0xff, "remote-operation-unspecified";
    /// DDP itself cannot go on.
    DDP_CATASTROPHIC = 1 / 0 / 0x00, "ddp-local-catastrophic-error";
    /// Tagged segment: no such STag, or not for writing.
    TAGGED_INVALID_STAG = 1 / 1 / 0x00, "tagged-invalid-stag";
    /// Tagged segment: not inside the STag's memory.
    TAGGED_BOUNDS = 1 / 1 / 0x01, "tagged-base-or-bounds";
    /// Tagged segment: the STag is not for this stream.
    TAGGED_NOT_ASSOCIATED = 1 / 1 / 0x02, "tagged-stag-of-other-stream";
    /// Tagged segment: offset and length wrap.
    TAGGED_WRAP = 1 / 1 / 0x03, "tagged-offset-wrap";
    /// Tagged segment: DDP's version is not 1.
    TAGGED_DDP_VERSION = 1 / 1 / 0x04, "tagged-invalid-ddp-version";
    /// Untagged segment: no such queue.
    INVALID_QUEUE = 1 / 2 / 0x01, "invalid-queue-number";
    /// Untagged segment: no receive is posted.
    NO_BUFFER = 1 / 2 / 0x02, "no-buffer";
    /// Untagged segment: not the next message.
    INVALID_MSN = 1 / 2 / 0x03, "invalid-msn";
    /// Untagged segment: not the next byte of the message.
    INVALID_OFFSET = 1 / 2 / 0x04, "invalid-message-offset";
    /// Untagged segment: longer than the receive.
    MESSAGE_TOO_LONG = 1 / 2 / 0x05, "message-too-long";
    /// Untagged segment: DDP's version is not 1.
    UNTAGGED_DDP_VERSION = 1 / 2 / 0x06, "untagged-invalid-ddp-version";
    /// The TCP connection is gone; only ever told locally.
    TCP_LOST = 2 / 0 / 0x01, "tcp-connection-lost";
    /// A CRC is wrong.
    CRC = 2 / 0 / 0x02, "mpa-crc";
    /// A marker or a length is wrong.
    MARKER_OR_LENGTH = 2 / 0 / 0x03, "mpa-marker-or-length";
    /// A start frame that is none.
    INVALID_START_FRAME = 2 / 0 / 0x04, "mpa-invalid-request-or-reply";
    /// MPA itself cannot go on. spec: RFC 6581 8
    MPA_CATASTROPHIC = 2 / 0 / 0x05, "mpa-local-catastrophic-error";
    /// The peer wants more Reads in flight than we take. spec: RFC 6581 8
    INSUFFICIENT_IRD = 2 / 0 / 0x06, "mpa-insufficient-ird";
    /// No RTR message that both can. spec: RFC 6581 8
    NO_MATCHING_RTR = 2 / 0 / 0x07, "mpa-no-matching-rtr";
}

impl TerminateCode {
    /// Layer in the high 4 bits, error type in the low ones.
    pub const fn layer_and_type(self) -> u8 {
        self.layer_and_type
    }

    /// The code in these.
    pub const fn code(self) -> u8 {
        self.code
    }

    /// Whether it is about a segment, whose header then goes with it.
    pub const fn is_of_segment(self) -> bool {
        !matches!(self.layer_and_type, 0x00 | 0x10 | 0x20)
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, kind) = (self.layer_and_type >> 4, self.layer_and_type & 0xf);
        write!(f, "{layer}/{kind}/{:02x}", self.code)?;
        match self.name() {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How the first bytes of a Terminate are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As RFC 5040 draws them.
    Rfc,
    /// As siw lays them out on a little-endian machine.
    Swapped,
}

/// The flags of the third byte.
struct Flags {
    /// M: the segment length counts.
    length: u8,
    /// D: the DDP header is there.
    header: u8,
    /// R: the Read Request is there.
    request: u8,
}

impl Reading {
    const ALL: [Self; 2] = [Self::Rfc, Self::Swapped];

    /// The likely one: the first of both by which the bytes have a code with a name, no reserved
    /// bit, the length that the flags ask for, and a header if the code is about a segment; the
    /// RFC's if neither is that.
    pub fn of(payload: &[u8]) -> Self {
        let makes_sense = |reading: &Self| {
            let Flags {
                length,
                header,
                request,
            } = reading.flags();
            let used = length | header | request;
            payload.get(2).is_some_and(|flags| flags & !used == 0)
                && Terminate::parse(payload, *reading).is_ok_and(|terminate| {
                    terminate.code.name().is_some()
                        && terminate.code.is_of_segment() == terminate.header.is_some()
                })
        };
        let found = Self::ALL.into_iter().find(makes_sense);
        found.unwrap_or(Self::Rfc)
    }

    const fn flags(self) -> Flags {
        match self {
            Self::Rfc => Flags {
                length: 0x80,
                header: 0x40,
                request: 0x20,
            },
            Self::Swapped => Flags {
                length: 0x01,
                header: 0x02,
                request: 0x04,
            },
        }
    }

    /// Layer and type as the RFC has them, from a byte in this reading, and back.
    const fn order(self, byte: u8) -> u8 {
        match self {
            Self::Rfc => byte,
            Self::Swapped => byte.rotate_left(4),
        }
    }
}

/// The body of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub code: TerminateCode,
    /// Payload bytes of the faulty segment.
    pub segment_length: Option<u16>,
    /// Its header.
    pub header: Option<Header>,
    /// The Read Request in it.
    pub request: Option<ReadRequest>,
}

/// Bytes of the control field.
const CONTROL_LENGTH: usize = 4;
/// Bytes of the length of the faulty segment.
const SEGMENT_LENGTH: usize = 2;

impl Terminate {
    /// Bytes of the longest one.
    pub const LENGTH_MAX: usize =
        CONTROL_LENGTH + SEGMENT_LENGTH + Untagged::LENGTH + ReadRequest::LENGTH;

    /// One that says why and no more.
    pub const fn new(code: TerminateCode) -> Self {
        Self {
            code,
            segment_length: None,
            header: None,
            request: None,
        }
    }

    /// The Terminate that is all of `payload`, in one reading. Reserved bits are not looked at.
    pub fn parse(payload: &[u8], reading: Reading) -> Result<Self, ParseError> {
        let control: &[u8; CONTROL_LENGTH] = header(payload, Layer::Terminate)?;
        let bits = reading.flags();
        let is_set = |bit: u8| control[2] & bit != 0;
        let mut rest = &payload[CONTROL_LENGTH..];
        let mut terminate = Self::new(TerminateCode {
            layer_and_type: reading.order(control[0]),
            code: control[1],
        });
        if is_set(bits.length | bits.header) {
            let length = read_u16(take::<SEGMENT_LENGTH>(&mut rest)?);
            terminate.segment_length = is_set(bits.length).then_some(length);
        }
        if is_set(bits.header) {
            let (header, behind) = Header::parse(rest)?;
            terminate.header = Some(header);
            rest = behind;
        }
        if is_set(bits.request) {
            let request = take::<{ ReadRequest::LENGTH }>(&mut rest)?;
            terminate.request = Some(ReadRequest::from_bytes(request));
        }
        if rest.is_empty() {
            return Ok(terminate);
        }
        let (all, over) = (payload.len(), rest.len());
        let allowed = all - over;
        Err(ParseError::too_long(
            Layer::Terminate,
            "message",
            allowed,
            all,
        ))
    }

    /// Appends it to `out`.
    pub fn emit_into(&self, reading: Reading, out: &mut Vec<u8>) {
        let bits = reading.flags();
        let set = flags(&[
            (self.segment_length.is_some(), bits.length),
            (self.header.is_some(), bits.header),
            (self.request.is_some(), bits.request),
        ]);
        let first = reading.order(self.code.layer_and_type);
        out.extend_from_slice(&[first, self.code.code, set, 0]);
        if self.segment_length.is_some() || self.header.is_some() {
            let length = self.segment_length.unwrap_or_default();
            out.extend_from_slice(&length.to_be_bytes());
        }
        if let Some(header) = &self.header {
            header.emit_into(out);
        }
        if let Some(request) = &self.request {
            out.extend_from_slice(&request.to_bytes());
        }
    }
}

/// Takes `N` bytes off the front of `rest`.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], ParseError> {
    let taken = header(rest, Layer::Terminate)?;
    *rest = &rest[N..];
    Ok(taken)
}

/// The longest header fits: [`Terminate::LENGTH_MAX`] counts with it.
const _: () = assert!(Tagged::LENGTH <= Untagged::LENGTH);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryKey;
    use crate::iwarp::{MessageOffset, Msn, Opcode, TaggedOffset};

    fn refused_read() -> Terminate {
        let header = Untagged::new(
            Opcode::ReadRequest,
            true,
            Msn::FIRST,
            MessageOffset::default(),
        );
        Terminate {
            segment_length: Some(0),
            header: Some(Header::Untagged(header)),
            request: Some(ReadRequest {
                length: 8,
                ..ReadRequest::default()
            }),
            ..Terminate::new(TerminateCode::REMOTE_BOUNDS)
        }
    }

    fn refused_write() -> Terminate {
        let stag = MemoryKey(0x1234);
        let header = Tagged::new(Opcode::Write, true, stag, TaggedOffset(7));
        Terminate {
            segment_length: Some(100),
            header: Some(Header::Tagged(header)),
            ..Terminate::new(TerminateCode::TAGGED_INVALID_STAG)
        }
    }

    #[test]
    fn the_control_field_in_both_readings() {
        for (terminate, rfc, swapped) in [
            (refused_read(), [0x01, 1, 0xe0, 0], [0x10, 1, 0x07, 0]),
            (refused_write(), [0x11, 0, 0xc0, 0], [0x11, 0, 0x03, 0]),
            (
                Terminate::new(TerminateCode::CRC),
                [0x20, 2, 0, 0],
                [0x02, 2, 0, 0],
            ),
        ] {
            for (reading, control) in [(Reading::Rfc, rfc), (Reading::Swapped, swapped)] {
                let mut out = Vec::new();
                terminate.emit_into(reading, &mut out);
                assert_eq!(out[..4], control);
                assert_eq!(Terminate::parse(&out, reading), Ok(terminate));
                assert_eq!(Reading::of(&out), reading, "{terminate:?}");
            }
        }
    }

    /// With a header where there can be one, every code is understood as what it is.
    #[test]
    fn a_code_is_recognised_in_either_reading() {
        for &code in TerminateCode::ALL {
            let mut terminate = if code.is_of_segment() {
                refused_write()
            } else {
                Terminate::new(code)
            };
            terminate.code = code;
            for reading in [Reading::Rfc, Reading::Swapped] {
                let mut out = Vec::new();
                terminate.emit_into(reading, &mut out);
                let guessed = Terminate::parse(&out, Reading::of(&out)).unwrap();
                assert_eq!(guessed, terminate, "{code} {reading:?}");
            }
        }
    }

    #[test]
    fn what_the_flags_announce_must_be_there_and_nothing_else() {
        let mut out = Vec::new();
        refused_read().emit_into(Reading::Rfc, &mut out);
        assert_eq!(out.len(), Terminate::LENGTH_MAX);
        for length in 0..out.len() {
            let parsed = Terminate::parse(&out[..length], Reading::Rfc);
            assert!(parsed.is_err(), "{length} bytes");
        }
        out.push(0);
        let error = Terminate::parse(&out, Reading::Rfc).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Terminate message: too long: 53 bytes where 52 are allowed"
        );
    }

    #[test]
    fn text() {
        assert_eq!(TerminateCode::NO_BUFFER.to_string(), "1/2/02 no-buffer");
        let unknown = TerminateCode {
            layer_and_type: 0x37,
            code: 9,
        };
        assert_eq!(unknown.to_string(), "3/7/09");
    }
}
