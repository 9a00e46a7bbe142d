//! What one field does to the checksum, and back.
//!
//! Where the fields are, counted from the eight bytes of ones: IPv4 total length 10, identification
//! 12, UDP length 32, of 36 bytes; IPv6 payload length 12, UDP length 52, of 56.

use super::crc::{shift, unshift};
use crate::roce::bth::NOT_COVERED;

/// Bytes of the pseudo header with IPv4: ones, IPv4, UDP.
pub(super) const V4_LENGTH: usize = 8 + 20 + 8;
/// Bytes of the pseudo header with IPv6: ones, IPv6, UDP.
pub(super) const V6_LENGTH: usize = 8 + 40 + 8;

/// IPv4 total length.
pub(super) static V4_TOTAL_LENGTH: Field = Field::before_end(V4_LENGTH - 10);
/// IPv4 identification.
pub(super) static V4_IDENTIFICATION: Field = Field::before_end(V4_AFTER_IDENTIFICATION);
/// UDP length after IPv4.
pub(super) static V4_UDP_LENGTH: Field = Field::before_end(V4_LENGTH - 32);
/// IPv6 payload length and UDP length, which are equal.
pub(super) static V6_BOTH_LENGTHS: Field =
    Field::before_end(V6_LENGTH - 12).and(&Field::before_end(V6_LENGTH - 52));

/// Bytes of the pseudo header from the identification on, itself included.
pub(super) const V4_AFTER_IDENTIFICATION: usize = V4_LENGTH - 12;

/// The effect of a field's value on the state at the end of the pseudo header, byte by byte.
pub(super) struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// A field that starts `bytes` before the end, itself included.
    const fn before_end(bytes: usize) -> Self {
        let mut field = Self {
            high: [0; 256],
            low: [0; 256],
        };
        let mut value = 0;
        while value < 256 {
            field.high[value] = shift(value as u32, bytes);
            field.low[value] = shift(value as u32, bytes - 1);
            value += 1;
        }
        field
    }

    /// Two fields that have the same value.
    const fn and(mut self, other: &Self) -> Self {
        let mut value = 0;
        while value < 256 {
            self.high[value] ^= other.high[value];
            self.low[value] ^= other.low[value];
            value += 1;
        }
        self
    }

    /// What `value` in place of 0 changes.
    #[inline]
    pub(super) fn effect(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

/// The 16-bit value that, `following` bytes before the end (itself included), explains a difference
/// of two checksums; `None` if no value does.
#[inline]
pub(super) fn sixteen_bits_before(difference: u32, following: usize) -> Option<u16> {
    let at_field = unshift(difference, following);
    // The first byte of the field is in the low bits of the register: big-endian turned around.
    let value = u16::try_from(at_field).ok()?;
    Some(value.swap_bytes())
}

/// What the BTH's fifth byte changes by not being ones, as a difference of the state *before* the
/// BTH: the byte enters the register's low bits four bytes later. So it is masked without a copy or
/// a second run, whatever follows. By the byte XOR 0xff.
static BTH_NOT_COVERED: [u32; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        table[value] = unshift(value as u32, NOT_COVERED);
        value += 1;
    }
    table
};

/// What to add to the state before a BTH so that its fifth byte counts as ones.
#[inline]
pub(super) fn mask_of_bth(fifth_byte: u8) -> u32 {
    BTH_NOT_COVERED[usize::from(fifth_byte ^ 0xff)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_field_is_found_again_and_only_those() {
        for value in 0..=u16::MAX {
            let difference = V4_IDENTIFICATION.effect(value);
            let found = sixteen_bits_before(difference, V4_AFTER_IDENTIFICATION);
            assert_eq!(found, Some(value));
        }
        // one bit outside the 16
        let outside = shift(0x0001_0000, V4_AFTER_IDENTIFICATION);
        assert_eq!(sixteen_bits_before(outside, V4_AFTER_IDENTIFICATION), None);
    }
}
