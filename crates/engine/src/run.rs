//! Which packets leave in one datagram, and what that takes of the receiver's buffer.
//!
//! Every datagram handed to the kernel costs the same whatever its size, so filling them is
//! everything. One segmented send carries equal packets and a last one that may be shorter. Hence:
//! equal packets of different messages and queue pairs share a run, a shorter packet ends it, and a
//! First (longer than the Middle behind it by its RETH) makes a run of two. All go along one path
//! to one destination slot: the receiver's kernel steers a run by its first packet alone.

use wire::Qpn;

use crate::path::PathIndex;

/// Packets of a run at most. (`UDP_MAX_SEGMENTS` of Linux)
pub const PACKETS_MAX: u32 = 128;

/// Bytes of a run at most: what one UDP datagram over IPv4 holds.
pub const BYTES_MAX: u32 = 65_507;

/// What the kernel adds to the bytes of a datagram in its accounts, and the least it counts for
/// one (measured on Linux 6.18).
pub const DATAGRAM_OVERHEAD: u32 = 832;

/// A run that is still growing or not: the packets that share a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    path: PathIndex,
    slot: u8,
    segment_size: u32,
    packets: u32,
    bytes: u32,
    is_closed: bool,
}

impl Run {
    /// A run of one packet with so many bytes of UDP payload.
    pub fn of(path: PathIndex, dest: Qpn, sealed_length: usize) -> Self {
        let length = sealed_length as u32; // at most a path MTU and headers
        Self {
            path,
            slot: dest.slot(),
            segment_size: length,
            packets: 1,
            bytes: length,
            is_closed: false,
        }
    }

    /// The run with one more packet; `None` if that packet begins another one.
    #[must_use]
    pub fn with(&self, path: PathIndex, dest: Qpn, sealed_length: usize) -> Option<Self> {
        let length = sealed_length as u32;
        let joins = !self.is_closed
            && self.packets < PACKETS_MAX
            && self.bytes + length <= BYTES_MAX
            && length <= self.segment_size
            && path == self.path
            && dest.slot() == self.slot;
        joins.then(|| Self {
            packets: self.packets + 1,
            bytes: self.bytes + length,
            is_closed: length < self.segment_size,
            ..*self
        })
    }

    /// What the receiver's kernel counts for the datagram: a segmented one has its bytes in pages,
    /// a single packet in a block whose size is a power of two.
    pub fn truesize(&self) -> u64 {
        if self.packets > 1 {
            u64::from(self.bytes + DATAGRAM_OVERHEAD)
        } else {
            alone(self.bytes)
        }
    }
}

/// What the kernel counts for a datagram of one packet. Its bytes, lower headers and part of the
/// bookkeeping share a block: one of 576 bytes, or a power of two; the rest takes 256 bytes.
pub fn alone(length: u32) -> u64 {
    const BLOCK_OVERHEAD: u32 = 408;
    const BOOKKEEPING: u32 = 256;
    const SMALL_BLOCK: u32 = DATAGRAM_OVERHEAD - BOOKKEEPING;
    let needed = length + BLOCK_OVERHEAD;
    let block = if needed <= SMALL_BLOCK {
        SMALL_BLOCK
    } else {
        needed.next_power_of_two()
    };
    u64::from(block + BOOKKEEPING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truesize_is_what_was_measured() {
        for (length, truesize) in [(20, 832), (1040, 2304), (4112, 8448)] {
            assert_eq!(alone(length), truesize);
        }
        let mut run = Run::of(PathIndex(0), Qpn::GSI, 4112);
        for _ in 1..15 {
            run = run.with(PathIndex(0), Qpn::GSI, 4112).expect("it joins");
        }
        assert_eq!(run.with(PathIndex(0), Qpn::GSI, 4112), None);
        assert_eq!(run.truesize(), 15 * 4112 + 832);
    }
}
