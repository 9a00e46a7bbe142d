//! RDETH: the end-to-end context of reliable datagrams.
//!
//! Read first: IBA 9.3. Decoded only: nobody is known to send RD.

use crate::bytes::{header, read_u24};
use crate::error::{Layer, ParseError};

/// Header of all RD packets. The reserved byte is ignored when read and written as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rdeth {
    /// Number of the end-to-end context, 24 bits.
    ee_context: u32,
}

impl Rdeth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 4;

    /// A header with the low 24 bits of `ee_context`.
    pub const fn truncated(ee_context: u32) -> Self {
        Self {
            ee_context: ee_context & 0x00ff_ffff,
        }
    }

    /// Number of the end-to-end context, 24 bits.
    pub const fn ee_context(self) -> u32 {
        self.ee_context
    }

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Rdeth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            ee_context: read_u24(bytes),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        self.ee_context.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let header = Rdeth::truncated(0xff01_0203);
        assert_eq!(header.to_bytes(), [0, 1, 2, 3]);
        assert_eq!(header.ee_context(), 0x01_0203);
        assert_eq!(Rdeth::parse(&[0xff, 1, 2, 3]), Ok(header));
        assert!(Rdeth::parse(&[0; 3]).is_err());
    }
}
