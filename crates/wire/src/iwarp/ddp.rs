//! DDP headers: where the payload of a segment goes.
//!
//! Read first: RFC 5041 4, RFC 5040 4.1. A *tagged* segment names memory of the receiver by STag
//! and offset; an *untagged* one a queue, a message in it and an offset in that message. The first
//! two bytes are DDP's and RDMAP's control fields. They are kept as they were read: a Terminate
//! carries the header that was wrong.

use core::ops::Range;

use super::rdmap::{Body, Opcode};
use super::terminate::TerminateCode;
use crate::bytes::{flags, header, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::MemoryKey;

/// An offset in memory that an STag names; by convention of verbs an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaggedOffset(pub u64);

/// An offset in an untagged message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MessageOffset(pub u32);

/// Number of a message in its queue and direction: from 1 on, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// The first message.
    pub const FIRST: Self = Self(1);

    /// The number of the next message.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Which queue of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Sends and immediate data.
    pub const SEND: Self = Self(0);
    /// Read Requests and Atomic Requests.
    pub const REQUEST: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses.
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

/// The control fields of DDP and RDMAP: two bytes as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control([u8; 2]);

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION: u8 = 0x03;
const RDMAP_VERSION: u8 = 0xc0;
const OPCODE: u8 = 0x0f;

/// Version 1 of either protocol, in place.
const DDP_VERSION_1: u8 = 0x01;
const RDMAP_VERSION_1: u8 = 0x40;

impl Control {
    /// The fields of a segment of ours.
    pub fn new(opcode: Opcode, is_last: bool) -> Self {
        let is_tagged = opcode.info().queue.is_none();
        let ddp = flags(&[(is_tagged, TAGGED), (is_last, LAST)]) | DDP_VERSION_1;
        Self([ddp, RDMAP_VERSION_1 | opcode as u8])
    }

    /// T: the header is a tagged one.
    pub const fn is_tagged(self) -> bool {
        self.0[0] & TAGGED != 0
    }

    /// L: no more segments of this message.
    pub const fn is_last(self) -> bool {
        self.0[0] & LAST != 0
    }

    /// The opcode, if its number is one; look at [`Header::check`] for whether it makes sense.
    pub fn opcode(self) -> Option<Opcode> {
        Opcode::from_number(self.0[1] & OPCODE)
    }
}

/// A tagged header. spec: RFC 5041 4.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// What kind of segment.
    pub control: Control,
    /// The memory.
    pub stag: MemoryKey,
    /// Where the payload goes in it.
    pub offset: TaggedOffset,
}

/// An untagged header. spec: RFC 5041 4.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// What kind of segment.
    pub control: Control,
    /// The STag to invalidate, in messages that do; else 0.
    pub invalidate: MemoryKey,
    /// The queue.
    pub queue: QueueNumber,
    /// The message.
    pub msn: Msn,
    /// Where the payload goes in it.
    pub offset: MessageOffset,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Into memory that the sender names.
    Tagged(Tagged),
    /// Into a buffer that the receiver chose.
    Untagged(Untagged),
}

impl Tagged {
    /// Bytes on the wire.
    pub const LENGTH: usize = 14;

    const STAG: Range<usize> = 2..6;
    const OFFSET: Range<usize> = 6..14;

    /// A header of ours.
    pub fn new(opcode: Opcode, is_last: bool, stag: MemoryKey, offset: TaggedOffset) -> Self {
        let control = Control::new(opcode, is_last);
        Self {
            control,
            stag,
            offset,
        }
    }

    fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            control: Control([bytes[0], bytes[1]]),
            stag: MemoryKey(read_u32(&bytes[Self::STAG])),
            offset: TaggedOffset(read_u64(&bytes[Self::OFFSET])),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..2].copy_from_slice(&self.control.0);
        bytes[Self::STAG].copy_from_slice(&self.stag.0.to_be_bytes());
        bytes[Self::OFFSET].copy_from_slice(&self.offset.0.to_be_bytes());
        bytes
    }
}

impl Untagged {
    /// Bytes on the wire.
    pub const LENGTH: usize = 18;

    const INVALIDATE: Range<usize> = 2..6;
    const QUEUE: Range<usize> = 6..10;
    const MSN: Range<usize> = 10..14;
    const OFFSET: Range<usize> = 14..18;

    /// A header of ours, in the queue of its opcode; of a tagged opcode in the one of Sends.
    pub fn new(opcode: Opcode, is_last: bool, msn: Msn, offset: MessageOffset) -> Self {
        Self {
            control: Control::new(opcode, is_last),
            invalidate: MemoryKey(0),
            queue: opcode.info().queue.unwrap_or(QueueNumber::SEND),
            msn,
            offset,
        }
    }

    fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            control: Control([bytes[0], bytes[1]]),
            invalidate: MemoryKey(read_u32(&bytes[Self::INVALIDATE])),
            queue: QueueNumber(read_u32(&bytes[Self::QUEUE])),
            msn: Msn(read_u32(&bytes[Self::MSN])),
            offset: MessageOffset(read_u32(&bytes[Self::OFFSET])),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..2].copy_from_slice(&self.control.0);
        bytes[Self::INVALIDATE].copy_from_slice(&self.invalidate.0.to_be_bytes());
        bytes[Self::QUEUE].copy_from_slice(&self.queue.0.to_be_bytes());
        bytes[Self::MSN].copy_from_slice(&self.msn.0.to_be_bytes());
        bytes[Self::OFFSET].copy_from_slice(&self.offset.0.to_be_bytes());
        bytes
    }
}

impl Header {
    /// The header at the front of a ULPDU and the payload behind it. Nothing but the length is
    /// checked; see [`Self::check`].
    pub fn parse(ulpdu: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let control: &[u8; 2] = header(ulpdu, Layer::Ddp)?;
        if Control(*control).is_tagged() {
            let fields = header(ulpdu, Layer::Ddp)?;
            let parsed = Self::Tagged(Tagged::from_bytes(fields));
            Ok((parsed, &ulpdu[Tagged::LENGTH..]))
        } else {
            let fields = header(ulpdu, Layer::Ddp)?;
            let parsed = Self::Untagged(Untagged::from_bytes(fields));
            Ok((parsed, &ulpdu[Untagged::LENGTH..]))
        }
    }

    /// The control fields.
    pub const fn control(&self) -> Control {
        match self {
            Self::Tagged(tagged) => tagged.control,
            Self::Untagged(untagged) => untagged.control,
        }
    }

    /// Bytes on the wire.
    pub const fn length(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LENGTH,
            Self::Untagged(_) => Untagged::LENGTH,
        }
    }

    /// Appends it to `out`.
    pub fn emit_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tagged(tagged) => out.extend_from_slice(&tagged.to_bytes()),
            Self::Untagged(untagged) => out.extend_from_slice(&untagged.to_bytes()),
        }
    }

    /// What message this is of, or what to tell the sender of a header that no message has: the
    /// versions of DDP and RDMAP, the opcode, the kind of segment that it has, its queue, in that
    /// order. spec: RFC 5041 5, RFC 5040 4.8
    pub fn check(&self) -> Result<Opcode, TerminateCode> {
        let Control([ddp, rdmap]) = self.control();
        if ddp & DDP_VERSION != DDP_VERSION_1 {
            return Err(match self {
                Self::Tagged(_) => TerminateCode::TAGGED_DDP_VERSION,
                Self::Untagged(_) => TerminateCode::UNTAGGED_DDP_VERSION,
            });
        }
        if rdmap & RDMAP_VERSION != RDMAP_VERSION_1 {
            return Err(TerminateCode::RDMAP_VERSION);
        }
        let opcode = self.control().opcode();
        let opcode = opcode.ok_or(TerminateCode::UNEXPECTED_OPCODE)?;
        match (self, opcode.info().queue) {
            (Self::Tagged(_), None) => Ok(opcode),
            (Self::Untagged(untagged), Some(queue)) if untagged.queue == queue => Ok(opcode),
            (Self::Untagged(_), Some(_)) => Err(TerminateCode::INVALID_QUEUE),
            _ => Err(TerminateCode::UNEXPECTED_OPCODE),
        }
    }
}

/// A whole ULPDU, understood; for those who look on. The engine checks step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Where it goes.
    pub header: Header,
    /// What it is of.
    pub opcode: Opcode,
    /// What it carries.
    pub body: Body<'a>,
}

impl<'a> Segment<'a> {
    /// The segment in a ULPDU.
    pub fn parse(ulpdu: &'a [u8]) -> Result<Self, ParseError> {
        let (header, payload) = Header::parse(ulpdu)?;
        let opcode = header.check().map_err(|code| {
            let value = u32::from(code.layer_and_type()) << 8 | u32::from(code.code());
            ParseError::unsupported(Layer::Ddp, "control", value)
        })?;
        Ok(Self {
            header,
            opcode,
            body: Body::parse(opcode, payload)?,
        })
    }

    /// Appends the ULPDU to `out`.
    pub fn emit_into(&self, out: &mut Vec<u8>) {
        self.header.emit_into(out);
        self.body.emit_into(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let tagged = Tagged {
            control: Control([0xc1, 0x40]),
            stag: MemoryKey(0x0304_0506),
            offset: TaggedOffset(0x0708_090a_0b0c_0d0e),
        };
        let mut bytes: Vec<u8> = (1..=18).collect();
        bytes[..2].copy_from_slice(&[0xc1, 0x40]);
        assert_eq!(tagged.to_bytes(), bytes[..14]);
        let (header, payload) = Header::parse(&bytes).unwrap();
        assert_eq!((header, payload), (Header::Tagged(tagged), &bytes[14..]));
        assert!(Header::parse(&bytes[..13]).is_err());

        bytes[..2].copy_from_slice(&[0x41, 0x43]);
        let untagged = Untagged {
            control: Control([0x41, 0x43]),
            invalidate: MemoryKey(0x0304_0506),
            queue: QueueNumber(0x0708_090a),
            msn: Msn(0x0b0c_0d0e),
            offset: MessageOffset(0x0f10_1112),
        };
        assert_eq!(untagged.to_bytes(), bytes[..18]);
        let (header, payload) = Header::parse(&bytes).unwrap();
        assert_eq!((header, payload), (Header::Untagged(untagged), &[][..]));
        assert!(Header::parse(&bytes[..17]).is_err());
        assert!(Header::parse(&bytes[..1]).is_err());
    }

    #[test]
    fn control_fields_of_every_message() {
        for opcode in Opcode::all() {
            let tagged = opcode.info().queue.is_none();
            let low = 0x40 | opcode as u8;
            let (last, not_last) = if tagged { (0xc1, 0x81) } else { (0x41, 0x01) };
            assert_eq!(Control::new(opcode, true), Control([last, low]));
            assert_eq!(Control::new(opcode, false), Control([not_last, low]));
            let header = match tagged {
                true => Header::Tagged(Tagged::new(
                    opcode,
                    true,
                    MemoryKey(1),
                    TaggedOffset::default(),
                )),
                false => Header::Untagged(Untagged::new(
                    opcode,
                    true,
                    Msn::FIRST,
                    MessageOffset::default(),
                )),
            };
            assert_eq!(header.check(), Ok(opcode));
        }
    }

    #[test]
    fn a_header_that_no_message_has_is_refused_by_its_first_fault() {
        let check = |first: u8, second: u8, queue: u8| {
            let mut bytes = [0; 18];
            bytes[..2].copy_from_slice(&[first, second]);
            bytes[9] = queue;
            Header::parse(&bytes).unwrap().0.check()
        };
        use TerminateCode as Code;
        // of a tagged header the byte of the queue is one of the offset's
        for (first, second, queue, expected) in [
            (0xc0, 0x80, 9, Code::TAGGED_DDP_VERSION),
            (0x42, 0x80, 9, Code::UNTAGGED_DDP_VERSION),
            (0x41, 0x8f, 9, Code::RDMAP_VERSION),
            (0x41, 0x4c, 9, Code::UNEXPECTED_OPCODE),
            (0x41, 0x40, 0, Code::UNEXPECTED_OPCODE), // a Write is tagged
            (0xc1, 0x43, 0, Code::UNEXPECTED_OPCODE), // a Send is not
            (0x41, 0x43, 1, Code::INVALID_QUEUE),     // nor in that queue
            (0x41, 0x43, 4, Code::INVALID_QUEUE),
        ] {
            assert_eq!(check(first, second, queue), Err(expected), "{first:#x}");
        }
        // reserved bits mean nothing
        assert_eq!(check(0x7d, 0x73, 0), Ok(Opcode::Send));
    }

    #[test]
    fn message_numbers_wrap() {
        assert_eq!(Msn(u32::MAX).next(), Msn(0));
    }
}
