//! Messages as tables: each field with its place, once, for reading and for writing.
//!
//! Connection management has eleven messages with fields of odd widths, too many for named byte
//! ranges in two functions each. [`layout!`] makes a struct and its [`Field`] from lines that look
//! like the standard's tables: `name: Type = byte, bit;`. The bit is the field's highest one, 7
//! when it is left out. Bits that no field names are reserved: written as 0, not looked at.

use core::fmt;

use crate::field::{Gid, PKey, Psn, QKey, Qpn};

/// A value with a fixed width and a place.
///
/// Places are bit offsets, the most significant bit of the first byte being 0. Callers pass bytes
/// that hold the whole field.
pub(crate) trait Field: Sized {
    /// How many bits carry a value.
    const WIDTH: usize;

    /// The value at bit `at`.
    fn read(bytes: &[u8], at: usize) -> Self;

    /// Writes the value to bit `at`, over zeros.
    fn write(&self, bytes: &mut [u8], at: usize);

    /// Sets every bit that carries a value.
    fn mark(bytes: &mut [u8], at: usize) {
        for bit in at..at + Self::WIDTH {
            bytes[bit / 8] |= 0x80 >> (bit % 8);
        }
    }
}

/// Defines a message; see the [module](self).
macro_rules! layout {
    (
        $(#[$about:meta])*
        pub struct $name:ident: $length:literal bytes {
            $( $(#[$doc:meta])* $field:ident: $type:ty = $byte:literal $(, $bit:literal)?; )+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$doc])* pub $field: $type, )+
        }

        impl $crate::mad::layout::Field for $name {
            const WIDTH: usize =
                0 $( + <$type as $crate::mad::layout::Field>::WIDTH )+;

            fn read(bytes: &[u8], at: usize) -> Self {
                Self { $(
                    $field: <$type as $crate::mad::layout::Field>::read(
                        bytes,
                        at + $crate::mad::layout::place($byte, &[$($bit)?]),
                    ),
                )+ }
            }

            fn write(&self, bytes: &mut [u8], at: usize) {
                $(
                    $crate::mad::layout::Field::write(
                        &self.$field,
                        bytes,
                        at + $crate::mad::layout::place($byte, &[$($bit)?]),
                    );
                )+
            }

            fn mark(bytes: &mut [u8], at: usize) {
                $(
                    <$type as $crate::mad::layout::Field>::mark(
                        bytes,
                        at + $crate::mad::layout::place($byte, &[$($bit)?]),
                    );
                )+
            }
        }

        /// All bytes zero.
        impl Default for $name {
            fn default() -> Self {
                $crate::mad::layout::Field::read(&[0; $length], 0)
            }
        }

        #[cfg(test)]
        impl $name {
            /// The fields lie within the length and no two of them share a bit.
            pub(crate) fn check_layout() {
                let mut bytes = [0_u8; $length];
                <Self as $crate::mad::layout::Field>::mark(&mut bytes, 0);
                let marked: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
                let bits = <Self as $crate::mad::layout::Field>::WIDTH;
                assert_eq!(marked as usize, bits, stringify!($name));
            }
        }
    };
}
pub(crate) use layout;

/// The offset of the field whose highest bit is `bit` (7 if none is given) of byte `byte`.
pub(crate) const fn place(byte: usize, bit: &[usize]) -> usize {
    match bit {
        [bit, ..] => 8 * byte + 7 - *bit,
        [] => 8 * byte,
    }
}

fn read_bits(bytes: &[u8], at: usize, width: usize) -> u64 {
    (at..at + width).fold(0, |value, bit| {
        value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1)
    })
}

fn write_bits(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    for (place, bit) in (at..at + width).enumerate() {
        let is_set = value >> (width - 1 - place) & 1;
        bytes[bit / 8] |= (is_set as u8) << (7 - bit % 8);
    }
}

/// An unsigned number of `N` bits, at most 32.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits<const N: usize>(u32);

impl<const N: usize> Bits<N> {
    /// The largest.
    pub const MAX: Self = Self(u32::MAX >> (32 - N));

    /// The number, if it has at most `N` bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// The number, or the largest if it does not fit.
    pub const fn saturating(value: u32) -> Self {
        match Self::new(value) {
            Some(fits) => fits,
            None => Self::MAX,
        }
    }

    /// The low `N` bits of `value`.
    pub const fn truncated(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const N: usize> fmt::Debug for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const N: usize> fmt::Display for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A field of `N` bytes for somebody else: what is not used is zero, and nothing tells how much is
/// used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Padded<const N: usize>([u8; N]);

impl<const N: usize> Padded<N> {
    /// `bytes` and zeros, or `None` if there are more than `N`.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut padded = [0; N];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(padded))
    }

    /// All `N` bytes.
    pub fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The bytes up to the last one that is not zero.
    pub fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|&byte| byte != 0);
        &self.0[..end.map_or(0, |last| last + 1)]
    }
}

impl<const N: usize> Default for Padded<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Padded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N}:")?;
        self.trimmed()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> Field for [u8; N] {
    const WIDTH: usize = 8 * N;

    fn read(bytes: &[u8], at: usize) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(&bytes[at / 8..at / 8 + N]);
        value
    }

    fn write(&self, bytes: &mut [u8], at: usize) {
        bytes[at / 8..at / 8 + N].copy_from_slice(self);
    }
}

/// A field through the one that it is made of.
macro_rules! field_as {
    ($( [$($generics:tt)*] $type:ty as $inner:ty, $from:expr, $to:expr; )+) => { $(
        impl<$($generics)*> $crate::mad::layout::Field for $type {
            const WIDTH: usize = <$inner as $crate::mad::layout::Field>::WIDTH;

            fn read(bytes: &[u8], at: usize) -> Self {
                let from: fn($inner) -> Self = $from;
                from($crate::mad::layout::Field::read(bytes, at))
            }

            fn write(&self, bytes: &mut [u8], at: usize) {
                let to: fn(&Self) -> $inner = $to;
                $crate::mad::layout::Field::write(&to(self), bytes, at);
            }
        }
    )+ };
}
pub(crate) use field_as;

macro_rules! number_fields {
    ($( [$($generics:tt)*] $type:ty, $bits:expr, $from:expr, $to:expr; )+) => { $(
        impl<$($generics)*> Field for $type {
            const WIDTH: usize = $bits;

            fn read(bytes: &[u8], at: usize) -> Self {
                let from: fn(u64) -> Self = $from;
                from(read_bits(bytes, at, Self::WIDTH))
            }

            fn write(&self, bytes: &mut [u8], at: usize) {
                let to: fn(&Self) -> u64 = $to;
                write_bits(bytes, at, Self::WIDTH, to(self));
            }
        }
    )+ };
}

number_fields! {
    [] bool, 1, |value| value != 0, |&flag| u64::from(flag);
    [] u8, 8, |value| value as u8, |&number| u64::from(number);
    [] u16, 16, |value| value as u16, |&number| u64::from(number);
    [] u32, 32, |value| value as u32, |&number| u64::from(number);
    [] u64, 64, |value| value, |&number| number;
    [const N: usize] Bits<N>, N, |value| Self::truncated(value as u32), |bits| bits.0.into();
    [] Qpn, 24, |value| Qpn::truncated(value as u32), |qpn| qpn.get().into();
    [] Psn, 24, |value| Psn::truncated(value as u32), |psn| psn.get().into();
}

field_as! {
    [] PKey as u16, PKey, |key| key.0;
    [] QKey as u32, QKey, |key| key.0;
    [] Gid as [u8; 16], Gid, |gid| gid.0;
    [const N: usize] Padded<N> as [u8; N], Padded, |padded| padded.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_odd_widths_keep_to_their_bits() {
        let mut bytes = [0; 4];
        Bits::<20>::truncated(0xabcde).write(&mut bytes, 4);
        assert_eq!(bytes, [0x0a, 0xbc, 0xde, 0]);
        assert_eq!(Bits::<20>::read(&bytes, 4).get(), 0xabcde);
        assert_eq!(Bits::<5>::read(&bytes, place(1, &[6])).get(), 0b01111);
        assert_eq!(Bits::<3>::new(8), None);
        assert_eq!(Bits::<3>::saturating(200).get(), 7);
        assert_eq!(Bits::<32>::MAX.get(), u32::MAX);
    }

    #[test]
    fn padded_bytes_are_zero_after_what_was_given() {
        let padded = Padded::<4>::new(b"hi").unwrap();
        assert_eq!(padded.bytes(), b"hi\0\0");
        assert_eq!(padded.trimmed(), b"hi");
        assert_eq!(Padded::<4>::new(b"hello"), None);
        assert_eq!(Padded::<4>::default().trimmed(), b"");
        assert_eq!(format!("{padded:?}"), "4:6869");
    }
}
