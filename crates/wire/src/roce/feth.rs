//! FETH, the flush extended transport header: how far written data must have got, and how much of
//! it.
//!
//! Read first: IBA A19.

use core::fmt;

use crate::bytes::header;
use crate::error::{Layer, ParseError};

const PLACEMENT: u32 = 0x0f;
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY: u32 = 0x03;

/// A FLUSH request's own header. Reserved bits are ignored when read and written as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feth {
    /// PLT: how far the data must have got.
    pub placement: Placement,
    /// SEL: which data.
    pub selectivity: Selectivity,
}

/// PLT: four bits, of which the standard defines two; they may be combined.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Placement(u8);

impl Placement {
    /// Visible to everybody at the responder.
    pub const GLOBAL_VISIBILITY: Self = Self(1);
    /// In persistent memory.
    pub const PERSISTENCE: Self = Self(2);

    /// The low four bits of `bits`.
    pub const fn truncated(bits: u8) -> Self {
        Self(bits & PLACEMENT as u8)
    }

    /// The four bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all of `other` is asked for.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether at least one of the defined bits is set and no other.
    pub const fn is_valid(self) -> bool {
        self.0 != 0 && self.0 & !3 == 0
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placement({:#x})", self.0)
    }
}

/// SEL: two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selectivity {
    /// The range of the RETH.
    #[default]
    Range,
    /// The whole memory region.
    Region,
    /// 2, reserved.
    Reserved2,
    /// 3, reserved.
    Reserved3,
}

impl Feth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 4;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Feth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        let word = u32::from_be_bytes(*bytes);
        Self {
            placement: Placement::truncated((word & PLACEMENT) as u8),
            selectivity: match (word >> SELECTIVITY_SHIFT) & SELECTIVITY {
                0 => Selectivity::Range,
                1 => Selectivity::Region,
                2 => Selectivity::Reserved2,
                _ => Selectivity::Reserved3,
            },
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let selectivity = (self.selectivity as u32) << SELECTIVITY_SHIFT;
        (selectivity | u32::from(self.placement.0)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_64_values_and_reserved_bits() {
        for low in 0..64_u8 {
            let feth = Feth::from_bytes(&[0, 0, 0, low]);
            assert_eq!(feth.to_bytes(), [0, 0, 0, low]);
            assert_eq!(Feth::parse(&[0xff, 0xff, 0xff, 0xc0 | low]), Ok(feth));
            let defined = [1, 2, 3].contains(&(low & 15));
            assert_eq!(feth.placement.is_valid(), defined, "PLT {}", low & 15);
        }
        let both = Feth::from_bytes(&[0, 0, 0, 0x13]);
        assert!(both.placement.contains(Placement::GLOBAL_VISIBILITY));
        assert!(both.placement.contains(Placement::PERSISTENCE));
        assert_eq!(both.selectivity, Selectivity::Region);
        assert!(Feth::parse(&[0; 3]).is_err());
    }
}
