//! RDMAP: which messages there are, and what follows the DDP header of each.
//!
//! Read first: RFC 5040 4, RFC 7306 5. One table tells of each opcode its name, its queue and the
//! length of its header; who sends, receives, checks and prints reads that table.

use core::ops::Range;

use super::ddp::{QueueNumber, TaggedOffset};
use super::terminate::{Reading, Terminate};
use crate::bytes::{header, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::MemoryKey;

/// The messages; the values are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Into the receiver's memory.
    Write = 0x0,
    /// Asks for memory of the receiver.
    ReadRequest = 0x1,
    /// What was asked for.
    ReadResponse = 0x2,
    /// Into a receive.
    Send = 0x3,
    /// The same, and an STag of the receiver becomes invalid.
    SendInvalidate = 0x4,
    /// With solicited event.
    SendSolicited = 0x5,
    /// Both.
    SendSolicitedInvalidate = 0x6,
    /// The stream is over, and why.
    Terminate = 0x7,
    /// 8 bytes into a completion. spec: RFC 7306 5
    Immediate = 0x8,
    /// The same with solicited event.
    ImmediateSolicited = 0x9,
    /// An atomic operation on memory of the receiver. spec: RFC 7306 5
    AtomicRequest = 0xa,
    /// Its result.
    AtomicResponse = 0xb,
}

/// What an opcode implies.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Its name.
    pub name: &'static str,
    /// The queue of its untagged segments; `None` if they are tagged.
    pub queue: Option<QueueNumber>,
    /// Bytes of its own header behind the DDP header, where it always has the same; such a message
    /// is one segment. Others carry data.
    pub header: Option<usize>,
    /// Of RFC 7306: used only where both ends were told so.
    pub is_extension: bool,
}

/// The table, by the number on the wire. spec: RFC 5040 4.1, RFC 7306 5.1
#[rustfmt::skip]
static TABLE: [OpcodeInfo; 12] = {
    use Opcode::*;
    const SEND: Option<QueueNumber> = Some(QueueNumber::SEND);
    const REQUEST: Option<QueueNumber> = Some(QueueNumber::REQUEST);
    const TERMINATE: Option<QueueNumber> = Some(QueueNumber::TERMINATE);
    const ATOMIC_RESPONSE: Option<QueueNumber> = Some(QueueNumber::ATOMIC_RESPONSE);
    const fn row(
        opcode: Opcode, name: &'static str, queue: Option<QueueNumber>, header: Option<usize>,
    ) -> OpcodeInfo {
        OpcodeInfo { opcode, name, queue, header, is_extension: opcode as u8 >= Immediate as u8 }
    }
    [
        row(Write, "WRITE", None, None),
        row(ReadRequest, "READ_REQUEST", REQUEST, Some(self::ReadRequest::LENGTH)),
        row(ReadResponse, "READ_RESPONSE", None, None),
        row(Send, "SEND", SEND, None),
        row(SendInvalidate, "SEND_INVALIDATE", SEND, None),
        row(SendSolicited, "SEND_SOLICITED", SEND, None),
        row(SendSolicitedInvalidate, "SEND_SOLICITED_INVALIDATE", SEND, None),
        row(Terminate, "TERMINATE", TERMINATE, None),
        row(Immediate, "IMMEDIATE", SEND, Some(self::Immediate::LENGTH)),
        row(ImmediateSolicited, "IMMEDIATE_SOLICITED", SEND, Some(self::Immediate::LENGTH)),
        row(AtomicRequest, "ATOMIC_REQUEST", REQUEST, Some(self::AtomicRequest::LENGTH)),
        row(AtomicResponse, "ATOMIC_RESPONSE", ATOMIC_RESPONSE, Some(self::AtomicResponse::LENGTH)),
    ]
};

impl Opcode {
    /// The opcode with a number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        TABLE.get(usize::from(number)).map(|row| row.opcode)
    }

    /// All of them, by their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.opcode)
    }

    /// What it implies.
    pub fn info(self) -> &'static OpcodeInfo {
        &TABLE[self as usize] // a row for each number; a test walks them
    }

    /// Whether an STag of the receiver becomes invalid.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Whether it wakes a receiver that waits for such messages only.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }
}

/// What a segment carries behind its DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Bytes for a buffer.
    Data(&'a [u8]),
    /// See [`ReadRequest`].
    ReadRequest(ReadRequest),
    /// See [`Terminate`].
    Terminate(Terminate, Reading),
    /// See [`Immediate`].
    Immediate(Immediate),
    /// See [`AtomicRequest`].
    AtomicRequest(AtomicRequest),
    /// See [`AtomicResponse`].
    AtomicResponse(AtomicResponse),
}

impl<'a> Body<'a> {
    /// What `payload` is in a segment of that opcode.
    pub fn parse(opcode: Opcode, payload: &'a [u8]) -> Result<Self, ParseError> {
        match opcode {
            Opcode::ReadRequest => ReadRequest::parse(payload).map(Self::ReadRequest),
            Opcode::Terminate => {
                let reading = Reading::of(payload);
                let terminate = Terminate::parse(payload, reading)?;
                Ok(Self::Terminate(terminate, reading))
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                Immediate::parse(payload).map(Self::Immediate)
            }
            Opcode::AtomicRequest => AtomicRequest::parse(payload).map(Self::AtomicRequest),
            Opcode::AtomicResponse => AtomicResponse::parse(payload).map(Self::AtomicResponse),
            _ => Ok(Self::Data(payload)),
        }
    }

    /// Appends it to `out`.
    pub fn emit_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Data(bytes) => out.extend_from_slice(bytes),
            Self::ReadRequest(request) => out.extend_from_slice(&request.to_bytes()),
            Self::Terminate(terminate, reading) => terminate.emit_into(*reading, out),
            Self::Immediate(immediate) => out.extend_from_slice(&immediate.0),
            Self::AtomicRequest(request) => out.extend_from_slice(&request.to_bytes()),
            Self::AtomicResponse(response) => out.extend_from_slice(&response.to_bytes()),
        }
    }
}

/// The bytes of a header of exactly `N`: longer is as wrong as shorter.
fn exactly<const N: usize>(payload: &[u8]) -> Result<&[u8; N], ParseError> {
    let fields = header(payload, Layer::Rdmap)?;
    if payload.len() > N {
        let found = payload.len();
        return Err(ParseError::too_long(Layer::Rdmap, "message", N, found));
    }
    Ok(fields)
}

/// Asks for memory of the receiver. spec: RFC 5040 4.4
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// The asker's buffer, named in the response.
    pub sink: MemoryKey,
    /// Where in it.
    pub sink_offset: TaggedOffset,
    /// How many bytes.
    pub length: u32,
    /// The memory asked for.
    pub source: MemoryKey,
    /// Where in it.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LENGTH: usize = 28;

    const SINK: Range<usize> = 0..4;
    const SINK_OFFSET: Range<usize> = 4..12;
    const READ_LENGTH: Range<usize> = 12..16;
    const SOURCE: Range<usize> = 16..20;
    const SOURCE_OFFSET: Range<usize> = 20..28;

    /// The request that is all of `payload`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        exactly(payload).map(Self::from_bytes)
    }

    /// The request in bytes of the right number.
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            sink: MemoryKey(read_u32(&bytes[Self::SINK])),
            sink_offset: TaggedOffset(read_u64(&bytes[Self::SINK_OFFSET])),
            length: read_u32(&bytes[Self::READ_LENGTH]),
            source: MemoryKey(read_u32(&bytes[Self::SOURCE])),
            source_offset: TaggedOffset(read_u64(&bytes[Self::SOURCE_OFFSET])),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[Self::SINK].copy_from_slice(&self.sink.0.to_be_bytes());
        bytes[Self::SINK_OFFSET].copy_from_slice(&self.sink_offset.0.to_be_bytes());
        bytes[Self::READ_LENGTH].copy_from_slice(&self.length.to_be_bytes());
        bytes[Self::SOURCE].copy_from_slice(&self.source.0.to_be_bytes());
        bytes[Self::SOURCE_OFFSET].copy_from_slice(&self.source_offset.0.to_be_bytes());
        bytes
    }
}

/// 8 bytes that the receiver finds in a completion. spec: RFC 7306 5
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Immediate(pub [u8; 8]);

impl Immediate {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// The data that is all of `payload`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        exactly(payload).copied().map(Self)
    }
}

/// An atomic operation on 8 bytes of the receiver. spec: RFC 7306 5.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Which.
    pub operation: AtomicCode,
    /// Comes back in the response.
    pub id: u32,
    /// The memory.
    pub remote: MemoryKey,
    /// Where in it: a multiple of 8.
    pub remote_offset: TaggedOffset,
    /// What is added or swapped in.
    pub data: u64,
    /// FetchAdd: no carry out of these bits, so 0 is one number of 64 bits. CmpSwap: the bits that
    /// are replaced. spec: RFC 7306 5.2.1
    pub mask: u64,
    /// What the value must be.
    pub compare: u64,
    /// The bits of it that are compared.
    pub compare_mask: u64,
}

/// Which atomic operation, 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicCode {
    /// Add.
    FetchAdd,
    /// Compare, swap if equal.
    CompareSwap,
    /// A number without a name. [`Self::from_number`] makes it of such numbers only.
    Unknown(u8),
}

impl AtomicCode {
    /// The meaning of the low 4 bits of `number`.
    pub const fn from_number(number: u8) -> Self {
        match number & 0xf {
            0 => Self::FetchAdd,
            2 => Self::CompareSwap,
            other => Self::Unknown(other),
        }
    }

    /// The number.
    pub const fn number(self) -> u8 {
        match self {
            Self::FetchAdd => 0,
            Self::CompareSwap => 2,
            Self::Unknown(number) => number & 0xf,
        }
    }
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LENGTH: usize = 52;

    const OPERATION: usize = 3; // behind 28 reserved bits
    const ID: Range<usize> = 4..8;
    const REMOTE: Range<usize> = 8..12;
    const REMOTE_OFFSET: Range<usize> = 12..20;
    const DATA: Range<usize> = 20..28;
    const MASK: Range<usize> = 28..36;
    const COMPARE: Range<usize> = 36..44;
    const COMPARE_MASK: Range<usize> = 44..52;

    /// Adds `add` to one number of 64 bits.
    pub const fn fetch_add(id: u32, remote: MemoryKey, at: TaggedOffset, add: u64) -> Self {
        Self {
            operation: AtomicCode::FetchAdd,
            id,
            remote,
            remote_offset: at,
            data: add,
            mask: 0,
            compare: 0,
            compare_mask: u64::MAX,
        }
    }

    /// Compares and swaps all 64 bits.
    pub const fn compare_swap(
        id: u32,
        remote: MemoryKey,
        at: TaggedOffset,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self {
            operation: AtomicCode::CompareSwap,
            id,
            remote,
            remote_offset: at,
            data: swap,
            mask: u64::MAX,
            compare,
            compare_mask: u64::MAX,
        }
    }

    /// The request that is all of `payload`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; Self::LENGTH] = exactly(payload)?;
        Ok(Self {
            operation: AtomicCode::from_number(bytes[Self::OPERATION]),
            id: read_u32(&bytes[Self::ID]),
            remote: MemoryKey(read_u32(&bytes[Self::REMOTE])),
            remote_offset: TaggedOffset(read_u64(&bytes[Self::REMOTE_OFFSET])),
            data: read_u64(&bytes[Self::DATA]),
            mask: read_u64(&bytes[Self::MASK]),
            compare: read_u64(&bytes[Self::COMPARE]),
            compare_mask: read_u64(&bytes[Self::COMPARE_MASK]),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[Self::OPERATION] = self.operation.number();
        bytes[Self::ID].copy_from_slice(&self.id.to_be_bytes());
        bytes[Self::REMOTE].copy_from_slice(&self.remote.0.to_be_bytes());
        bytes[Self::REMOTE_OFFSET].copy_from_slice(&self.remote_offset.0.to_be_bytes());
        bytes[Self::DATA].copy_from_slice(&self.data.to_be_bytes());
        bytes[Self::MASK].copy_from_slice(&self.mask.to_be_bytes());
        bytes[Self::COMPARE].copy_from_slice(&self.compare.to_be_bytes());
        bytes[Self::COMPARE_MASK].copy_from_slice(&self.compare_mask.to_be_bytes());
        bytes
    }
}

/// The result of an atomic operation. spec: RFC 7306 5.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Of the request.
    pub id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LENGTH: usize = 12;

    const ID: Range<usize> = 0..4;
    const ORIGINAL: Range<usize> = 4..12;

    /// The response that is all of `payload`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; Self::LENGTH] = exactly(payload)?;
        Ok(Self {
            id: read_u32(&bytes[Self::ID]),
            original: read_u64(&bytes[Self::ORIGINAL]),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[Self::ID].copy_from_slice(&self.id.to_be_bytes());
        bytes[Self::ORIGINAL].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table() {
        let lines: Vec<String> = Opcode::all()
            .map(|opcode| {
                let info = opcode.info();
                assert_eq!(info.opcode, opcode);
                assert_eq!(Opcode::from_number(opcode as u8), Some(opcode));
                let queue = info.queue.map_or("tagged".to_owned(), |q| q.0.to_string());
                let header = info.header.map_or("data".to_owned(), |n| n.to_string());
                let extension = if info.is_extension { " RFC 7306" } else { "" };
                format!(
                    "{:x} {} {queue} {header}{extension}",
                    opcode as u8, info.name
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                "0 WRITE tagged data",
                "1 READ_REQUEST 1 28",
                "2 READ_RESPONSE tagged data",
                "3 SEND 0 data",
                "4 SEND_INVALIDATE 0 data",
                "5 SEND_SOLICITED 0 data",
                "6 SEND_SOLICITED_INVALIDATE 0 data",
                "7 TERMINATE 2 data",
                "8 IMMEDIATE 0 8 RFC 7306",
                "9 IMMEDIATE_SOLICITED 0 8 RFC 7306",
                "a ATOMIC_REQUEST 1 52 RFC 7306",
                "b ATOMIC_RESPONSE 3 12 RFC 7306",
            ]
        );
        assert_eq!(Opcode::from_number(12), None);
    }

    /// The bytes 1, 2, 3, … are read, written again, and neither a byte more nor one less is taken.
    #[test]
    fn layouts() {
        let counting: Vec<u8> = (1..=60).collect();
        for opcode in Opcode::all() {
            let Some(length) = opcode.info().header else {
                continue;
            };
            let body = Body::parse(opcode, &counting[..length]).unwrap();
            let mut out = Vec::new();
            body.emit_into(&mut out);
            let reserved = matches!(opcode, Opcode::AtomicRequest);
            let from = if reserved { 4 } else { 0 };
            assert_eq!(out[from..], counting[from..length], "{opcode:?}");
            assert!(Body::parse(opcode, &counting[..length - 1]).is_err());
            assert!(Body::parse(opcode, &counting[..length + 1]).is_err());
        }
    }

    #[test]
    fn plain_atomics_have_the_masks_of_one_word() {
        let (key, at) = (MemoryKey(7), TaggedOffset(8));
        let add = AtomicRequest::fetch_add(1, key, at, 5);
        assert_eq!((add.mask, add.compare, add.compare_mask), (0, 0, u64::MAX));
        let swap = AtomicRequest::compare_swap(1, key, at, 5, 6);
        assert_eq!((swap.mask, swap.compare_mask), (u64::MAX, u64::MAX));
        for request in [add, swap] {
            assert_eq!(AtomicRequest::parse(&request.to_bytes()), Ok(request));
        }
        assert_eq!(AtomicCode::from_number(0xf2), AtomicCode::CompareSwap);
        assert_eq!(AtomicCode::from_number(3), AtomicCode::Unknown(3));
    }
}
