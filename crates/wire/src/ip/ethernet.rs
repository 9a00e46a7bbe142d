//! Ethernet II, with at most one 802.1Q tag.

use core::ops::Range;

use crate::bytes::{header, read_u16};
use crate::error::{Layer, ParseError};

const DESTINATION: Range<usize> = 0..6;
const SOURCE: Range<usize> = 6..12;
const TYPE: Range<usize> = 12..14;

/// The type of an 802.1Q tag.
const TAGGED: u16 = 0x8100;
const TAG_LENGTH: usize = 4;

/// Link addresses and VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// MAC of the receiver.
    pub destination: [u8; 6],
    /// MAC of the sender.
    pub source: [u8; 6],
    /// The tag control of 802.1Q, if the frame has one: priority, drop eligible, VLAN identifier.
    pub tag: Option<u16>,
}

impl Ethernet {
    /// Bytes on the wire without a tag.
    pub const LENGTH: usize = 14;

    /// The header at the front of `bytes`, the type of what follows, and what follows.
    pub fn parse(bytes: &[u8]) -> Result<(Self, u16, &[u8]), ParseError> {
        let addresses: &[u8; Self::LENGTH] = header(bytes, Layer::Ethernet)?;
        let mut ethernet = Self::default();
        ethernet
            .destination
            .copy_from_slice(&addresses[DESTINATION]);
        ethernet.source.copy_from_slice(&addresses[SOURCE]);
        let ethertype = read_u16(&addresses[TYPE]);
        let rest = &bytes[Self::LENGTH..];
        if ethertype != TAGGED {
            return Ok((ethernet, ethertype, rest));
        }
        let tag: &[u8; TAG_LENGTH] = header(rest, Layer::Ethernet)?;
        ethernet.tag = Some(read_u16(&tag[..2]));
        Ok((ethernet, read_u16(&tag[2..]), &rest[TAG_LENGTH..]))
    }

    /// Appends the header of a frame that carries `ethertype`.
    pub fn emit_into(&self, ethertype: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination);
        out.extend_from_slice(&self.source);
        if let Some(tag) = self.tag {
            out.extend_from_slice(&TAGGED.to_be_bytes());
            out.extend_from_slice(&tag.to_be_bytes());
        }
        out.extend_from_slice(&ethertype.to_be_bytes());
    }
}
