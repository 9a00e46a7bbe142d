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
    /// Bytes of truesize towards one destination at most. Nothing more is started once this is
    /// reached, so it is passed by at most one request of each queue pair. What [`Credit`] allows
    /// may be less.
    ///
    /// [`Credit`]: crate::host::Credit
    pub bytes: u64,
    /// The same towards a destination whose receive buffer is not known.
    pub bytes_unknown: u64,
    /// Charged for a packet besides its payload.
    pub packet_overhead: u32,
    /// Longest READ request in bytes; a longer READ is asked for in several requests.
    pub read_chunk: u32,
}

impl Default for WindowConfig {
    /// 512 KiB where the buffer is known, more than what loopback needs for its full speed; else
    /// 128 KiB, which the kernel's default holds. READs are asked for by 64 KiB.
    fn default() -> Self {
        Self {
            bytes: 512 << 10,
            bytes_unknown: 128 << 10,
            packet_overhead: DATAGRAM_OVERHEAD,
            read_chunk: 64 << 10,
        }
    }
}

/// A receive buffer: what an account is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// That of a slot of this host, by whichever path.
    Here(u8),
    /// That of a slot at the end of a path.
    There(PathIndex, u8),
}

/// One account.
#[derive(Debug)]
pub struct Destination {
    buffer: Buffer,
    references: u32,
    limit: u64,
    in_flight: u64,
    /// What the other senders to the buffer were told.
    noted: u64,
    waiting: VecDeque<QpIndex>,
}

impl Destination {
    /// An account of its own, for a queue pair that is not connected.
    pub fn nowhere() -> Self {
        Self {
            buffer: Buffer::Here(0),
            references: 0,
            limit: 0,
            in_flight: 0,
            noted: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Which buffer this is about.
    pub fn buffer(&self) -> Buffer {
        self.buffer
    }

    /// From now on so many bytes of truesize may be in flight.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Bytes in flight, if that changed since the last call.
    pub fn take_news(&mut self) -> Option<u64> {
        (self.noted != self.in_flight).then(|| {
            self.noted = self.in_flight;
            self.noted
        })
    }

    /// Whether somebody waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
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
    by_buffer: HashMap<Buffer, DestinationIndex>,
}

impl Destinations {
    /// The account of a buffer, for one more queue pair.
    pub fn acquire(&mut self, buffer: Buffer, limit: u64) -> DestinationIndex {
        if let Some(&index) = self.by_buffer.get(&buffer) {
            self.entries[index.0 as usize].references += 1;
            return index;
        }
        let entry = Destination {
            buffer,
            references: 1,
            limit,
            in_flight: 0,
            noted: 0,
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
        self.by_buffer.insert(buffer, index);
        index
    }

    /// One queue pair less. What it had in flight must have been released before.
    pub fn release(&mut self, index: DestinationIndex) {
        let entry = &mut self.entries[index.0 as usize];
        entry.references -= 1;
        if entry.references == 0 {
            debug_assert_eq!(entry.in_flight, 0, "in flight without a queue pair");
            self.by_buffer.remove(&entry.buffer);
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
        let one = destinations.acquire(Buffer::There(PathIndex(0), 7), 100);
        let same = destinations.acquire(Buffer::There(PathIndex(0), 7), 100);
        let other = destinations.acquire(Buffer::There(PathIndex(0), 8), 100);
        assert_eq!(one, same);
        assert_ne!(one, other);
        destinations.release(one);
        destinations.get_mut(same).charge(100);
        assert!(!destinations.get(same).has_room());
        assert!(destinations.get(other).has_room());
        destinations.get_mut(same).release(100);
        destinations.release(same);
        let next = destinations.acquire(Buffer::Here(1), 100);
        assert_eq!(next, one, "reused");
    }

    #[test]
    fn who_waits_is_woken_in_order_once_there_is_room() {
        let mut destinations = Destinations::default();
        let index = destinations.acquire(Buffer::Here(0), 10);
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
