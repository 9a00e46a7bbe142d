//! The extension headers that may follow a BTH, and sets of them.
//!
//! Read first: IBA 9.3, A14, A19 for the headers and their order.

use core::fmt;

/// The extension headers, in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "each variant is the standard's name of a header"
)]
pub enum Header {
    Rdeth,
    Xrceth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    Immediate,
    Ieth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
}

impl Header {
    /// All of them, in their order on the wire.
    pub const ALL: [Self; 11] = [
        Self::Rdeth,
        Self::Xrceth,
        Self::Deth,
        Self::Feth,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::Immediate,
        Self::Ieth,
        Self::CnpReserved,
    ];

    /// Bytes on the wire.
    pub const fn length(self) -> usize {
        match self {
            Self::Rdeth | Self::Xrceth | Self::Feth => 4,
            Self::Aeth | Self::Immediate | Self::Ieth => 4,
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Reth | Self::CnpReserved => 16,
            Self::AtomicEth => 28,
        }
    }
}

/// A set of extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Headers(u16);

impl Headers {
    /// No extension header.
    pub const EMPTY: Self = Self(0);

    /// The set of `headers`.
    pub const fn of(headers: &[Header]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < headers.len() {
            bits |= 1 << headers[index] as u16;
            index += 1;
        }
        Self(bits)
    }

    /// Whether `header` is in the set.
    #[inline]
    pub const fn contains(self, header: Header) -> bool {
        self.0 & (1 << header as u16) != 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Bytes of all headers of the set on the wire.
    pub const fn length(self) -> usize {
        let (mut length, mut index) = (0, 0);
        while index < Header::ALL.len() {
            if self.contains(Header::ALL[index]) {
                length += Header::ALL[index].length();
            }
            index += 1;
        }
        length
    }

    /// The headers of the set, in their order on the wire.
    pub fn iter(self) -> impl Iterator<Item = Header> {
        Header::ALL
            .into_iter()
            .filter(move |&header| self.contains(header))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
