//! AtomicETH: the remote word and the operands of COMPARE SWAP and FETCH ADD.
//!
//! Read first: IBA 9.3. Operands travel big-endian; memory holds them in host order.

use core::ops::Range;

use crate::bytes::{header, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::MemoryKey;

const VA: Range<usize> = 0..8;
const RKEY: Range<usize> = 8..12;
const SWAP_OR_ADD: Range<usize> = 12..20;
const COMPARE: Range<usize> = 20..28;

/// An atomic request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8 in a valid request.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: MemoryKey,
    /// COMPARE SWAP: the new value. FETCH ADD: what to add.
    pub swap_or_add: u64,
    /// COMPARE SWAP: the value that must be there. FETCH ADD: ignored.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 28;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::AtomicEth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            va: read_u64(&bytes[VA]),
            rkey: MemoryKey(read_u32(&bytes[RKEY])),
            swap_or_add: read_u64(&bytes[SWAP_OR_ADD]),
            compare: read_u64(&bytes[COMPARE]),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[VA].copy_from_slice(&self.va.to_be_bytes());
        bytes[RKEY].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[SWAP_OR_ADD].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[COMPARE].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let atomic = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: MemoryKey(0x090a_0b0c),
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!(atomic.to_bytes(), bytes);
        assert_eq!(AtomicEth::parse(&bytes), Ok(atomic));
        assert!(AtomicEth::parse(&bytes[..27]).is_err());
    }
}
