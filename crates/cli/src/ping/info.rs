//! What the ends tell each other of their buffers: an address, an R_Key and a length, 16 bytes in
//! network order.

use softrdma::RemoteRegion;

/// A buffer of the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BufferInfo {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

impl BufferInfo {
    /// Bytes of it.
    pub(super) const LENGTH: usize = 16;

    pub(super) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        Self {
            address: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The memory that it names.
    pub(super) fn remote(self) -> RemoteRegion {
        RemoteRegion {
            address: self.address,
            length: self.length.into(),
            key: self.key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_network_order() {
        let info = BufferInfo {
            address: 0x0102_0304_0506_0708,
            key: 0x0a0b_0c0d,
            length: 64,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 64];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(BufferInfo::from_bytes(bytes), info);
    }
}
