//! ImmDt and IETH: four bytes that the last packet of a message hands to the receiver's completion.
//!
//! Read first: IBA 9.3. Immediate data are passed through in wire order, as `imm_data` of the verbs
//! is; an IETH is the R_Key to invalidate. Both are so small that the plain values are their
//! `Repr`.

use crate::bytes::header;
use crate::error::{Layer, ParseError};
use crate::field::MemoryKey;

/// Bytes of either header on the wire.
pub const LENGTH: usize = 4;

/// The immediate data at the front of `bytes`.
#[inline]
pub fn parse_immediate(bytes: &[u8]) -> Result<[u8; LENGTH], ParseError> {
    header(bytes, Layer::Immediate).copied()
}

/// The key to invalidate at the front of `bytes`.
#[inline]
pub fn parse_ieth(bytes: &[u8]) -> Result<MemoryKey, ParseError> {
    header(bytes, Layer::Ieth).map(|bytes| MemoryKey(u32::from_be_bytes(*bytes)))
}

/// The bytes of an IETH.
#[inline]
pub fn ieth_to_bytes(key: MemoryKey) -> [u8; LENGTH] {
    key.0.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_keeps_wire_order_and_ieth_is_big_endian() {
        assert_eq!(parse_immediate(&[1, 2, 3, 4, 5]), Ok([1, 2, 3, 4]));
        assert_eq!(parse_ieth(&[1, 2, 3, 4]), Ok(MemoryKey(0x0102_0304)));
        assert_eq!(ieth_to_bytes(MemoryKey(0x0102_0304)), [1, 2, 3, 4]);
        assert!(parse_immediate(&[0; 3]).is_err());
        assert!(parse_ieth(&[0; 3]).is_err());
    }
}
