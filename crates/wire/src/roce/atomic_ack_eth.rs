//! AtomicAckETH: what the word held before the atomic operation.
//!
//! Read first: IBA 9.3. Follows the AETH in an ATOMIC ACKNOWLEDGE.

use crate::bytes::header;
use crate::error::{Layer, ParseError};

/// The answer to an atomic request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The value before the operation, also when COMPARE SWAP did not swap.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::AtomicAckEth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        self.original.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let answer = AtomicAckEth {
            original: 0x0102_0304_0506_0708,
        };
        assert_eq!(answer.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicAckEth::parse(&answer.to_bytes()), Ok(answer));
        assert!(AtomicAckEth::parse(&[0; 7]).is_err());
    }
}
