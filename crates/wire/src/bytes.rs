//! Big-endian numbers in the named ranges of a header.
//!
//! The ranges are constants of a header whose length the caller has checked. A range of another
//! width than its number is a bug in this crate that any test of that header shows.

use crate::error::{Layer, ParseError};

/// The 16-bit number in `field`.
#[inline]
pub(crate) fn read_u16(field: &[u8]) -> u16 {
    let mut value = [0; 2];
    value.copy_from_slice(field);
    u16::from_be_bytes(value)
}

/// The 24-bit number in the low three bytes of `field`; its first byte is another field.
#[inline]
pub(crate) fn read_u24(field: &[u8]) -> u32 {
    read_u32(field) & 0x00ff_ffff
}

/// The 32-bit number in `field`.
#[inline]
pub(crate) fn read_u32(field: &[u8]) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(field);
    u32::from_be_bytes(value)
}

/// The 64-bit number in `field`.
#[inline]
pub(crate) fn read_u64(field: &[u8]) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(field);
    u64::from_be_bytes(value)
}

/// The bits whose flag is set.
pub(crate) fn flags(flags: &[(bool, u8)]) -> u8 {
    let set = flags.iter().filter(|(is_set, _)| *is_set);
    set.fold(0, |bits, (_, bit)| bits | bit)
}

/// The first `N` bytes, or an error that names the layer.
#[inline]
pub(crate) fn header<const N: usize>(bytes: &[u8], layer: Layer) -> Result<&[u8; N], ParseError> {
    match bytes.first_chunk() {
        Some(chunk) => Ok(chunk),
        None => Err(ParseError::too_short(layer, "header", N, bytes.len())),
    }
}
