//! DETH, the datagram extended transport header: who sent a datagram and the key to get in.
//!
//! Read first: IBA 9.3, 10.2.5 (Q_Keys).

use core::ops::Range;

use crate::bytes::{header, read_u24, read_u32};
use crate::error::{Layer, ParseError};
use crate::field::{QKey, Qpn};

const QKEY: Range<usize> = 0..4;
const SOURCE: Range<usize> = 4..8; // the low 24 bits

/// Datagram header of UD and RD requests. The reserved byte is ignored when read and written as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Must equal the receiving queue pair's.
    pub qkey: QKey,
    /// The sending queue pair.
    pub source: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Deth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            qkey: QKey(read_u32(&bytes[QKEY])),
            source: Qpn::truncated(read_u24(&bytes[SOURCE])),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[QKEY].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes[SOURCE].copy_from_slice(&self.source.get().to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let deth = Deth {
            qkey: QKey(0x0102_0304),
            source: Qpn::truncated(0x06_0708),
        };
        assert_eq!(deth.to_bytes(), [1, 2, 3, 4, 0, 6, 7, 8]);
        assert_eq!(Deth::parse(&[1, 2, 3, 4, 0xff, 6, 7, 8]), Ok(deth));
        assert!(Deth::parse(&[0; 7]).is_err());
    }
}
