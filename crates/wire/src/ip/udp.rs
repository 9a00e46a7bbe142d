//! UDP. RFC 768.

use core::ops::Range;

use crate::bytes::{header, read_u16};
use crate::error::{Layer, ParseError};

const SOURCE_PORT: Range<usize> = 0..2;
const DESTINATION_PORT: Range<usize> = 2..4;
const DATAGRAM_LENGTH: Range<usize> = 4..6;
const CHECKSUM: Range<usize> = 6..8;

/// A UDP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Udp {
    /// Port of the sender: flow entropy, any value.
    pub source_port: u16,
    /// Port of the receiver: 4791 for RoCEv2.
    pub destination_port: u16,
    /// As on the wire; 0 is "not computed", which RoCEv2 allows also over IPv6. Not checked: the
    /// ICRC is the stronger check.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// The header at the front of `bytes` and its payload.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let fields: &[u8; Self::LENGTH] = header(bytes, Layer::Udp)?;
        let length = usize::from(read_u16(&fields[DATAGRAM_LENGTH]));
        let Some(payload) = bytes.get(Self::LENGTH..length) else {
            let found = bytes.len();
            return Err(match length < Self::LENGTH {
                true => ParseError::too_short(Layer::Udp, "length", Self::LENGTH, length),
                false => ParseError::too_short(Layer::Udp, "datagram", length, found),
            });
        };
        let udp = Self {
            source_port: read_u16(&fields[SOURCE_PORT]),
            destination_port: read_u16(&fields[DESTINATION_PORT]),
            checksum: read_u16(&fields[CHECKSUM]),
        };
        Ok((udp, payload))
    }

    /// The bytes of the header of a datagram of `length` bytes, header included.
    pub fn to_bytes(&self, length: u16) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[SOURCE_PORT].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[DESTINATION_PORT].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[DATAGRAM_LENGTH].copy_from_slice(&length.to_be_bytes());
        bytes[CHECKSUM].copy_from_slice(&self.checksum.to_be_bytes());
        bytes
    }
}
