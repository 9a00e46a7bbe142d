//! RETH, the RDMA extended transport header: which remote memory a WRITE, READ, FLUSH or
//! ATOMIC WRITE means.
//!
//! Read first: IBA 9.3. In a WRITE of several packets it is in the first one only, with the length
//! of the whole message.

use core::ops::Range;

use crate::bytes::{header, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::MemoryKey;

const VA: Range<usize> = 0..8;
const RKEY: Range<usize> = 8..12;
const DMA_LENGTH: Range<usize> = 12..16;

/// Remote memory: address, key, length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: MemoryKey,
    /// Bytes of the whole message; the standard allows up to 2^31. spec: IBA C9-92
    pub dma_length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 16;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Reth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            va: read_u64(&bytes[VA]),
            rkey: MemoryKey(read_u32(&bytes[RKEY])),
            dma_length: read_u32(&bytes[DMA_LENGTH]),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[VA].copy_from_slice(&self.va.to_be_bytes());
        bytes[RKEY].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[DMA_LENGTH].copy_from_slice(&self.dma_length.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let reth = Reth {
            va: 0x0102_0304_0506_0708,
            rkey: MemoryKey(0x090a_0b0c),
            dma_length: 0x0d0e_0f10,
        };
        let bytes: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!(reth.to_bytes(), bytes);
        assert_eq!(Reth::parse(&bytes), Ok(reth));
        assert!(Reth::parse(&bytes[..15]).is_err());
    }
}
