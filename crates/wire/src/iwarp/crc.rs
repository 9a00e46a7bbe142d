//! CRC-32C, which closes an FPDU: the polynomial of Castagnoli, as iSCSI's digests have it.
//!
//! Read first: RFC 5044 4. The one field of iWARP whose *low* byte comes first.

/// A checksum over the bytes given so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc(u32);

impl Crc {
    /// Bytes on the wire.
    pub const LENGTH: usize = 4;

    /// The checksum over `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self::default().with(bytes)
    }

    /// The checksum over what came before and `bytes`.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// As it is sent.
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worked_values() {
        let counting: Vec<u8> = (0..32).collect();
        for (bytes, on_wire) in [
            (&b""[..], 0x0000_0000_u32),
            (b"123456789", 0x8392_06e3),
            (&[0; 32], 0xaa36_918a),
            (&[0xff; 32], 0x43ab_a862),
            (&counting, 0x4e79_dd46),
        ] {
            assert_eq!(Crc::of(bytes).to_bytes(), on_wire.to_be_bytes());
        }
    }

    #[test]
    fn piece_by_piece_is_the_same() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 + i / 3) as u8).collect();
        for cut in [0, 1, 7, 8, 255, 4096, 5000] {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(Crc::of(head).with(tail), Crc::of(&bytes), "cut at {cut}");
        }
    }
}
