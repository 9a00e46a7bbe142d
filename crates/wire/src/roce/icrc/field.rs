//! What a 16-bit field of the pseudo header does to the checksum, and back.
//!
//! Where the fields are, counted from the eight bytes of ones: IPv4 total length 10, identification
//! 12, UDP length 32, of 36 bytes; IPv6 payload length 12, UDP length 52, of 56.

use super::crc::{POLYNOMIAL, shift_byte};

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

/// The state `bytes` zero bytes later.
const fn shift(mut state: u32, bytes: usize) -> u32 {
    let mut done = 0;
    while done < bytes {
        state = shift_byte(state);
        done += 1;
    }
    state
}

/// The 16-bit value that, `following` bytes before the end (itself included), explains a difference of
/// two checksums; `None` if no value does.
#[inline]
pub(super) fn sixteen_bits_before(difference: u32, following: usize) -> Option<u16> {
    let at_field = unshift(difference, following);
    // The first byte of the field is in the low bits of the register: big-endian turned around.
    let value = u16::try_from(at_field).ok()?;
    Some(value.swap_bytes())
}

/// The state `bytes` zero bytes earlier: multiplied by x^(-8·bytes) modulo the polynomial.
#[inline]
fn unshift(state: u32, bytes: usize) -> u32 {
    let low = multiply(state, UNSHIFT_BY_1[bytes % 256]);
    match bytes / 256 % 256 {
        0 => low,
        high => multiply(low, UNSHIFT_BY_256[high]),
    }
}

/// `UNSHIFT_BY_1[n]`: x^(-8·n).
static UNSHIFT_BY_1: [u32; 256] = powers(unshift_byte(ONE));
/// `UNSHIFT_BY_256[n]`: x^(-8·256·n).
static UNSHIFT_BY_256: [u32; 256] = powers({
    let powers = powers(unshift_byte(ONE));
    multiply(powers[255], powers[1])
});

/// The polynomial 1; the highest bit is the lowest power.
const ONE: u32 = 1 << 31;

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut n = 1;
    while n < 256 {
        powers[n] = multiply(powers[n - 1], base);
        n += 1;
    }
    powers
}

/// The state one zero byte earlier. Where the register's highest bit is set the polynomial was
/// subtracted: its own highest bit always is.
const fn unshift_byte(mut state: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        state = if state >> 31 != 0 {
            ((state ^ POLYNOMIAL) << 1) | 1
        } else {
            state << 1
        };
        bit += 1;
    }
    state
}

/// The product of two polynomials modulo the CRC's.
#[inline]
const fn multiply(mut a: u32, b: u32) -> u32 {
    // From the lowest power of b (its highest bit) on; a is multiplied by x each time. No branches:
    // the bits are as good as random.
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= a & ((b >> bit) & 1).wrapping_neg();
        a = (a >> 1) ^ (POLYNOMIAL & (a & 1).wrapping_neg());
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unshift_undoes_shift() {
        for state in [1, 0x8000_0000, 0xdead_beef, 0xffff_ffff] {
            for bytes in [0, 1, 2, 24, 255, 256, 257, 1044, 4096, 65_535] {
                assert_eq!(unshift(shift(state, bytes), bytes), state, "{bytes} bytes");
            }
        }
    }

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
