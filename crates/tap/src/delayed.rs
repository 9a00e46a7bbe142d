//! Packets that wait for their time: a bounded queue ordered by it.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

/// Packets that wait. `P` is what the owner of the tap makes of a packet: bytes with where they go.
///
/// Invariant: at most `bound` packets; equal times leave in the order in which they came.
#[derive(Debug)]
pub struct Delayed<P> {
    waiting: BinaryHeap<Waiting<P>>,
    bound: usize,
    /// Packets pushed so far: tells equal times apart.
    pushed: u64,
}

#[derive(Debug)]
struct Waiting<P> {
    until_ns: u64,
    number: u64,
    packet: P,
}

impl<P> Delayed<P> {
    /// An empty queue for at most `bound` packets.
    pub fn with_bound(bound: usize) -> Self {
        Self {
            waiting: BinaryHeap::new(),
            bound,
            pushed: 0,
        }
    }

    /// Keeps `packet` until `until_ns`.
    ///
    /// # Errors
    /// Gives the packet back if the queue is full.
    pub fn push(&mut self, until_ns: u64, packet: P) -> Result<(), P> {
        if self.waiting.len() >= self.bound {
            return Err(packet);
        }
        let number = self.pushed;
        self.pushed += 1;
        self.waiting.push(Waiting {
            until_ns,
            number,
            packet,
        });
        Ok(())
    }

    /// The next packet whose time has come at `now_ns`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<P> {
        let next = self.waiting.peek_mut()?;
        if next.until_ns > now_ns {
            return None;
        }
        Some(std::collections::binary_heap::PeekMut::pop(next).packet)
    }

    /// When the next packet's time comes.
    pub fn next_deadline(&self) -> Option<u64> {
        self.waiting.peek().map(|next| next.until_ns)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The earliest is the greatest: a heap gives its greatest first.
impl<P> Ord for Waiting<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.until_ns, other.number).cmp(&(self.until_ns, self.number))
    }
}

impl<P> PartialOrd for Waiting<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Waiting<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Waiting<P> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_by_time_and_equal_times_in_order() {
        let mut delayed = Delayed::with_bound(8);
        for (until, name) in [(30, "c"), (10, "a"), (30, "d"), (20, "b")] {
            delayed.push(until, name).unwrap();
        }
        assert_eq!(delayed.next_deadline(), Some(10));
        assert_eq!(delayed.pop_due(9), None);
        assert_eq!(delayed.pop_due(25), Some("a"));
        assert_eq!(delayed.pop_due(25), Some("b"));
        assert_eq!(delayed.pop_due(25), None);
        assert_eq!(delayed.next_deadline(), Some(30));
        assert_eq!(delayed.pop_due(30), Some("c"));
        assert_eq!(delayed.pop_due(30), Some("d"));
        assert_eq!(delayed.next_deadline(), None);
        assert!(delayed.is_empty());
    }

    #[test]
    fn a_full_queue_gives_the_packet_back() {
        let mut delayed = Delayed::with_bound(2);
        assert_eq!(delayed.push(1, 'a'), Ok(()));
        assert_eq!(delayed.push(2, 'b'), Ok(()));
        assert_eq!(delayed.push(0, 'c'), Err('c'));
        assert_eq!(delayed.len(), 2);
        assert_eq!(delayed.pop_due(5), Some('a'));
        assert_eq!(delayed.push(0, 'c'), Ok(()));
        assert_eq!(delayed.pop_due(5), Some('c'));
    }
}
