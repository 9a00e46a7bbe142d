//! Start frames: the MPA request of who connects and the reply of who accepts.
//!
//! Read first: RFC 5044 7.1, RFC 6581 4, 6 and 9. Each is the first thing that its sender writes
//! into the stream, and may come in pieces of any size: [`StartFrame::parse`] gives nothing until
//! it is whole, and an error as soon as it can be no start frame any more.

use core::ops::Range;

use crate::bytes::{flags, header, read_u16};
use crate::error::{Layer, ParseError};

const HEADER_LENGTH: usize = 20;
const FLAGS: usize = 16;
const REVISION: usize = 17;
const PRIVATE_DATA_LENGTH: Range<usize> = 18..20;

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// From who connects.
    Request,
    /// From who was asked.
    Reply,
}

impl Kind {
    /// What the frame begins with.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// Revision of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// RFC 5044.
    One = 1,
    /// RFC 6581: the enhanced setup.
    Two = 2,
}

impl Revision {
    /// The revision with this number, if it is known.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// READs and atomics outstanding, 14 bits. spec: RFC 6581 9
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Depth(u16);

impl Depth {
    /// The sender does not negotiate this number.
    pub const NOT_NEGOTIATED: Self = Self(0x3fff);
    /// The largest number that is one.
    pub const MAX: Self = Self(0x3ffe);

    /// The depth with this number; [`Self::MAX`] if it does not fit.
    pub const fn saturating(number: u16) -> Self {
        if number < Self::NOT_NEGOTIATED.0 {
            Self(number)
        } else {
            Self::MAX
        }
    }

    /// The number; `None` if it is not negotiated.
    pub const fn get(self) -> Option<u16> {
        if self.0 == Self::NOT_NEGOTIATED.0 {
            None
        } else {
            Some(self.0)
        }
    }

    const fn truncated(word: u16) -> Self {
        Self(word & Self::NOT_NEGOTIATED.0)
    }
}

/// The enhanced setup, in the first bytes of the private data. Depths are those of the sender of
/// the frame. spec: RFC 6581 9
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// READs and atomics that the sender takes as responder.
    pub ird: Depth,
    /// READs and atomics that the sender wants in flight.
    pub ord: Depth,
    /// A: who connects sends an RTR message first, so that who accepts may send.
    pub peer_to_peer: bool,
    /// B: the RTR message may be a Send of no bytes.
    pub rtr_send: bool,
    /// C: the RTR message may be an RDMA Write of no bytes.
    pub rtr_write: bool,
    /// D: the RTR message may be an RDMA Read of no bytes.
    pub rtr_read: bool,
}

const FIRST_FLAG: u16 = 0x8000;
const SECOND_FLAG: u16 = 0x4000;

impl Enhanced {
    /// Bytes of the private data.
    pub const LENGTH: usize = 4;

    fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        let (ird, ord) = (read_u16(&bytes[..2]), read_u16(&bytes[2..]));
        Self {
            ird: Depth::truncated(ird),
            ord: Depth::truncated(ord),
            peer_to_peer: ird & FIRST_FLAG != 0,
            rtr_send: ird & SECOND_FLAG != 0,
            rtr_write: ord & FIRST_FLAG != 0,
            rtr_read: ord & SECOND_FLAG != 0,
        }
    }

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let word = |depth: Depth, first: bool, second: bool| {
            depth.0 + u16::from(first) * FIRST_FLAG + u16::from(second) * SECOND_FLAG
        };
        let ird = word(self.ird, self.peer_to_peer, self.rtr_send).to_be_bytes();
        let ord = word(self.ord, self.rtr_write, self.rtr_read).to_be_bytes();
        [ird[0], ird[1], ord[0], ord[1]]
    }
}

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartFrame<'a> {
    /// Which.
    pub kind: Kind,
    /// The sender's revision; a reply has at most the one of its request.
    pub revision: Revision,
    /// M: the sender wants to *receive* markers.
    pub wants_markers: bool,
    /// C: the sender wants CRCs.
    pub wants_crc: bool,
    /// R, of a reply: there will be no connection. Nothing in a request.
    pub is_rejected: bool,
    /// The enhanced setup; of revision 2 only.
    pub enhanced: Option<Enhanced>,
    /// Flag bits without meaning: 0 of our own. siw has a private one, 0x08.
    pub reserved: u8,
    /// The consumer's; exactly as long as it was given.
    pub private_data: &'a [u8],
}

impl<'a> StartFrame<'a> {
    /// Bytes before the private data.
    pub const HEADER_LENGTH: usize = HEADER_LENGTH;
    /// Most private data, the enhanced setup included. spec: RFC 5044 7.1
    pub const PRIVATE_DATA_MAX: usize = 512;
    /// The longest frame.
    pub const LENGTH_MAX: usize = Self::HEADER_LENGTH + Self::PRIVATE_DATA_MAX;

    /// A frame that wants and says nothing.
    pub const fn new(kind: Kind, revision: Revision) -> Self {
        Self {
            kind,
            revision,
            wants_markers: false,
            wants_crc: false,
            is_rejected: false,
            enhanced: None,
            reserved: 0,
            private_data: &[],
        }
    }

    /// How many bytes are missing of the frame that begins with `bytes`, as far as these tell.
    pub fn missing(bytes: &[u8]) -> usize {
        let end = match header::<HEADER_LENGTH>(bytes, Layer::Mpa) {
            Ok(fixed) => HEADER_LENGTH + usize::from(read_u16(&fixed[PRIVATE_DATA_LENGTH])),
            Err(_) => HEADER_LENGTH,
        };
        end.saturating_sub(bytes.len())
    }

    /// The frame at the front of `bytes` and its length, or `None` if more bytes are needed.
    pub fn parse(kind: Kind, bytes: &'a [u8]) -> Result<Option<(Self, usize)>, ParseError> {
        let key = kind.key();
        let seen = bytes.len().min(key.len());
        if bytes[..seen] != key[..seen] {
            return Err(ParseError::unsupported(Layer::Mpa, "key", 0));
        }
        let Ok(fixed) = header::<HEADER_LENGTH>(bytes, Layer::Mpa) else {
            return Ok(None);
        };
        let Some(revision) = Revision::from_number(fixed[REVISION]) else {
            let value = fixed[REVISION].into();
            return Err(ParseError::unsupported(Layer::Mpa, "revision", value));
        };
        let length = usize::from(read_u16(&fixed[PRIVATE_DATA_LENGTH]));
        if length > Self::PRIVATE_DATA_MAX {
            let allowed = Self::PRIVATE_DATA_MAX;
            return Err(ParseError::too_long(
                Layer::Mpa,
                "private data",
                allowed,
                length,
            ));
        }
        let meaningful = meaningful_flags(revision);
        let flags = fixed[FLAGS] & meaningful;
        let is_enhanced = flags & ENHANCED != 0;
        if is_enhanced && length < Enhanced::LENGTH {
            let needed = Enhanced::LENGTH;
            return Err(ParseError::too_short(
                Layer::Mpa,
                "enhanced setup",
                needed,
                length,
            ));
        }
        let end = Self::HEADER_LENGTH + length;
        let Some(mut private_data) = bytes.get(Self::HEADER_LENGTH..end) else {
            return Ok(None);
        };
        let mut enhanced = None;
        if is_enhanced && let Some((first, rest)) = private_data.split_first_chunk() {
            enhanced = Some(Enhanced::from_bytes(first));
            private_data = rest;
        }
        let frame = Self {
            kind,
            revision,
            wants_markers: flags & MARKERS != 0,
            wants_crc: flags & CRC != 0,
            is_rejected: flags & REJECTED != 0,
            enhanced,
            reserved: fixed[FLAGS] & !meaningful,
            private_data,
        };
        Ok(Some((frame, end)))
    }

    /// Appends the frame to `out`, unless the private data is too long for one. The enhanced setup
    /// is left out where the revision has none.
    pub fn emit_into(&self, out: &mut Vec<u8>) -> Result<(), ParseError> {
        let enhanced = self.enhanced.filter(|_| self.revision == Revision::Two);
        let setup = enhanced.map(Enhanced::to_bytes);
        let setup = setup.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let length = setup.len() + self.private_data.len();
        if length > Self::PRIVATE_DATA_MAX {
            let allowed = Self::PRIVATE_DATA_MAX;
            return Err(ParseError::too_long(
                Layer::Mpa,
                "private data",
                allowed,
                length,
            ));
        }
        let flags = flags(&[
            (self.wants_markers, MARKERS),
            (self.wants_crc, CRC),
            (self.is_rejected, REJECTED),
            (enhanced.is_some(), ENHANCED),
        ]) | (self.reserved & !meaningful_flags(self.revision));
        out.extend_from_slice(self.kind.key());
        out.extend_from_slice(&[flags, self.revision as u8]);
        out.extend_from_slice(&(length as u16).to_be_bytes()); // at most PRIVATE_DATA_MAX
        out.extend_from_slice(setup);
        out.extend_from_slice(self.private_data);
        Ok(())
    }
}

/// The flag bits that mean something in a revision.
const fn meaningful_flags(revision: Revision) -> u8 {
    let plain = MARKERS | CRC | REJECTED;
    match revision {
        Revision::One => plain,
        Revision::Two => plain | ENHANCED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x06\x80\x02\xc0\x01hi";

    fn request() -> StartFrame<'static> {
        StartFrame {
            wants_crc: true,
            enhanced: Some(Enhanced {
                ird: Depth::saturating(2),
                ord: Depth::saturating(1),
                peer_to_peer: true,
                rtr_send: false,
                rtr_write: true,
                rtr_read: true,
            }),
            private_data: b"hi",
            ..StartFrame::new(Kind::Request, Revision::Two)
        }
    }

    #[test]
    fn a_frame_is_read_once_it_is_whole() {
        for length in 0..REQUEST.len() {
            let parsed = StartFrame::parse(Kind::Request, &REQUEST[..length]);
            assert_eq!(parsed, Ok(None), "{length} bytes");
        }
        let more = [REQUEST, b"early"].concat();
        let parsed = StartFrame::parse(Kind::Request, &more);
        assert_eq!(parsed, Ok(Some((request(), REQUEST.len()))));
        let mut out = Vec::new();
        request().emit_into(&mut out).unwrap();
        assert_eq!(out, REQUEST);
    }

    #[test]
    fn what_can_be_no_frame_is_refused_at_once() {
        let refusal = |bytes: &[u8]| {
            let parsed = StartFrame::parse(Kind::Request, bytes);
            parsed.unwrap_err().to_string()
        };
        assert_eq!(refusal(b"MPA ID Re_"), "MPA key: unsupported value 0x0");
        let reply = StartFrame::parse(Kind::Reply, REQUEST);
        assert!(reply.is_err(), "a request is no reply");
        let with = |at: usize, value: u8| {
            let mut bytes = REQUEST.to_vec();
            bytes[at] = value;
            refusal(&bytes[..StartFrame::HEADER_LENGTH])
        };
        assert_eq!(with(17, 3), "MPA revision: unsupported value 0x3");
        assert_eq!(with(17, 0), "MPA revision: unsupported value 0x0");
        assert_eq!(
            with(18, 2),
            "MPA private data: too long: 518 bytes where 512 are allowed"
        );
        assert_eq!(
            with(19, 3),
            "MPA enhanced setup: too short: 3 bytes where 4 are needed"
        );
    }

    #[test]
    fn revision_1_has_no_enhanced_setup() {
        let mut bytes = REQUEST.to_vec();
        bytes[REVISION] = 1;
        let (frame, _) = StartFrame::parse(Kind::Request, &bytes).unwrap().unwrap();
        assert_eq!(frame.enhanced, None);
        assert_eq!(frame.private_data.len(), 6);
        assert_eq!(frame.reserved, ENHANCED);
        let mut out = Vec::new();
        frame.emit_into(&mut out).unwrap();
        assert_eq!(out, bytes);
    }

    #[test]
    fn private_data_is_bounded_with_the_enhanced_setup() {
        let most = [7; StartFrame::PRIVATE_DATA_MAX];
        let mut frame = request();
        let mut out = Vec::new();
        frame.private_data = &most[..508];
        frame.emit_into(&mut out).unwrap();
        assert_eq!(out.len(), StartFrame::LENGTH_MAX);
        let parsed = StartFrame::parse(Kind::Request, &out).unwrap();
        assert_eq!(parsed, Some((frame, out.len())));
        frame.private_data = &most[..509];
        assert!(frame.emit_into(&mut out).is_err());
    }

    #[test]
    fn all_ones_is_no_number_of_reads() {
        assert_eq!(Depth::NOT_NEGOTIATED.get(), None);
        assert_eq!(Depth::saturating(0x3fff).get(), Some(0x3ffe));
        assert_eq!(Depth::saturating(128).get(), Some(128));
    }
}
