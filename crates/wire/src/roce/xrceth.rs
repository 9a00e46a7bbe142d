//! XRCETH: the shared receive queue that an XRC request is for.
//!
//! Read first: IBA A14. Follows the BTH of XRC requests; responses have none.

use crate::bytes::{header, read_u24};
use crate::error::{Layer, ParseError};

/// Extended header of XRC requests. The reserved byte is ignored when read and written as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xrceth {
    /// Number of the shared receive queue, 24 bits.
    srq_number: u32,
}

impl Xrceth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 4;

    /// A header with the low 24 bits of `srq_number`.
    pub const fn truncated(srq_number: u32) -> Self {
        Self {
            srq_number: srq_number & 0x00ff_ffff,
        }
    }

    /// Number of the shared receive queue, 24 bits.
    pub const fn srq_number(self) -> u32 {
        self.srq_number
    }

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Xrceth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            srq_number: read_u24(bytes),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        self.srq_number.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let header = Xrceth::truncated(0xff01_0203);
        assert_eq!(header.to_bytes(), [0, 1, 2, 3]);
        assert_eq!(header.srq_number(), 0x01_0203);
        assert_eq!(Xrceth::parse(&[0xff, 1, 2, 3]), Ok(header));
        assert!(Xrceth::parse(&[0; 3]).is_err());
    }
}
