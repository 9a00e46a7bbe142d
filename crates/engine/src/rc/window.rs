//! How much is in flight towards one destination, over all queue pairs of a shard.
//!
//! A receiving socket accounts *truesize*: the bytes of a datagram and about 832 for its
//! bookkeeping, whatever the size. What does not fit is lost, and a loss costs a round of
//! retransmission, so less in flight is faster. The model here charges each packet its payload and
//! a fixed overhead. Several packets of one run share a datagram, so a sender that makes runs may
//! configure less than 832 for a packet. Answers to READs are charged to the same account: they
//! fill a buffer at our end that the responder cannot know.

use std::collections::{HashMap, VecDeque};

use crate::burst::QpIndex;
use crate::path::PathIndex;

/// What the kernel adds to a datagram in its accounts, in bytes (measured on Linux 6.18).
pub const DATAGRAM_OVERHEAD: u32 = 832;

/// Positions that a queue pair may have in flight: half of what would make an old acknowledgement
/// look like a new one. spec: IBA 9.7.5.1 (at most 2^23)
pub const POSITIONS_MAX: u64 = 1 << 22;

/// Bounds of what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes of truesize towards one destination. Nothing more is started once this is reached, so
    /// it is passed by at most one request of each queue pair.
    pub bytes: u64,
    /// Charged for a packet besides its payload.
    pub packet_overhead: u32,
    /// Longest READ request in bytes; a longer READ is asked for in several requests.
    pub read_chunk: u32,
}

impl Default for WindowConfig {
    /// 128 KiB, where loopback reaches its full speed and the default receive buffer still holds
    /// it; READs are asked for by 64 KiB.
    fn default() -> Self {
        Self {
            bytes: 128 << 10,
            packet_overhead: DATAGRAM_OVERHEAD,
            read_chunk: 64 << 10,
        }
    }
}

/// One account: a path and the slot byte of the destination QPN, which is one receive buffer.
#[derive(Debug)]
pub struct Destination {
    key: (PathIndex, u8),
    references: u32,
    limit: u64,
    in_flight: u64,
    waiting: VecDeque<QpIndex>,
}

impl Destination {
    /// An account of its own, for a queue pair that is not connected.
    pub fn nowhere() -> Self {
        Self {
            key: (PathIndex(0), 0),
            references: 0,
            limit: 0,
            in_flight: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Whether another request may be started.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Bytes of truesize in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The bound of `in_flight`.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Something left.
    pub fn charge(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// Something arrived or is given up as lost.
    pub fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.in_flight, "released more than was charged");
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// `qp` has more to send and waits for room.
    pub fn wait(&mut self, qp: QpIndex) {
        self.waiting.push_back(qp);
    }

    /// The queue pair that waited longest, if there is room for it. Whoever is woken and leaves
    /// room must wake the next one: nobody else will.
    pub fn wake(&mut self) -> Option<QpIndex> {
        if self.has_room() {
            self.waiting.pop_front()
        } else {
            None
        }
    }
}

/// Names an account of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationIndex(u32);

/// All accounts of a shard; queue pairs to the same destination share one.
#[derive(Debug, Default)]
pub struct Destinations {
    entries: Vec<Destination>,
    free: Vec<DestinationIndex>,
    by_key: HashMap<(PathIndex, u8), DestinationIndex>,
}

impl Destinations {
    /// The account of a path and slot, for one more queue pair.
    pub fn acquire(&mut self, path: PathIndex, slot: u8, limit: u64) -> DestinationIndex {
        let key = (path, slot);
        if let Some(&index) = self.by_key.get(&key) {
            self.entries[index.0 as usize].references += 1;
            return index;
        }
        let entry = Destination {
            key,
            references: 1,
            limit,
            in_flight: 0,
            waiting: VecDeque::new(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index.0 as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                DestinationIndex(self.entries.len() as u32 - 1)
            }
        };
        self.by_key.insert(key, index);
        index
    }

    /// One queue pair less. What it had in flight must have been released before.
    pub fn release(&mut self, index: DestinationIndex) {
        let entry = &mut self.entries[index.0 as usize];
        entry.references -= 1;
        if entry.references == 0 {
            debug_assert_eq!(entry.in_flight, 0, "in flight without a queue pair");
            self.by_key.remove(&entry.key);
            self.free.push(index);
        }
    }

    /// The account.
    pub fn get_mut(&mut self, index: DestinationIndex) -> &mut Destination {
        &mut self.entries[index.0 as usize]
    }

    /// The account.
    pub fn get(&self, index: DestinationIndex) -> &Destination {
        &self.entries[index.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_to_one_destination_share_an_account() {
        let mut destinations = Destinations::default();
        let one = destinations.acquire(PathIndex(0), 7, 100);
        let same = destinations.acquire(PathIndex(0), 7, 100);
        let other = destinations.acquire(PathIndex(0), 8, 100);
        assert_eq!(one, same);
        assert_ne!(one, other);
        destinations.release(one);
        destinations.get_mut(same).charge(100);
        assert!(!destinations.get(same).has_room());
        assert!(destinations.get(other).has_room());
        destinations.get_mut(same).release(100);
        destinations.release(same);
        assert_eq!(destinations.acquire(PathIndex(3), 1, 100), one, "reused");
    }

    #[test]
    fn who_waits_is_woken_in_order_once_there_is_room() {
        let mut destinations = Destinations::default();
        let index = destinations.acquire(PathIndex(0), 0, 10);
        let destination = destinations.get_mut(index);
        destination.charge(10);
        destination.wait(QpIndex(1));
        destination.wait(QpIndex(2));
        assert_eq!(destination.wake(), None);
        destination.release(1);
        assert_eq!(destination.wake(), Some(QpIndex(1)));
        destination.charge(1);
        assert_eq!(destination.wake(), None);
    }
}
