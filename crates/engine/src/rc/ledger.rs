//! What a queue pair is charged for what it has in flight, datagram by datagram.

use std::collections::VecDeque;

use crate::qp::position::Position;

/// Bytes of truesize in the two buffers that an exchange fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// In the peer's: requests.
    pub out: u64,
    /// In our own: answers to READs and atomics.
    pub back: u64,
}

impl Charge {
    fn add(&mut self, other: Self) {
        self.out += other.out;
        self.back += other.back;
    }

    fn subtract(&mut self, other: Self) {
        self.out -= other.out;
        self.back -= other.back;
    }
}

/// The requests of one datagram.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// One past its last position.
    end: Position,
    run: u64,
    charge: Charge,
}

/// All charges of a queue pair, oldest first. A datagram is released as a whole, when its last
/// packet is acknowledged: that is how the receiver gives its memory back.
///
/// Invariant: ends grow, and `total` is the sum of the entries.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: VecDeque<Entry>,
    total: Charge,
}

impl Ledger {
    /// What is charged.
    pub fn total(&self) -> Charge {
        self.total
    }

    /// A request up to `end` leaves in datagram `run`.
    pub fn charge(&mut self, end: Position, run: u64, charge: Charge) {
        self.total.add(charge);
        match self.entries.back_mut() {
            Some(last) if last.run == run => {
                last.end = end;
                last.charge.add(charge);
            }
            _ => self.entries.push_back(Entry { end, run, charge }),
        }
    }

    /// Everything before `acked` has arrived: what is given back.
    pub fn release_before(&mut self, acked: Position) -> Charge {
        let mut released = Charge::default();
        while let Some(oldest) = self.entries.front()
            && oldest.end <= acked
        {
            released.add(oldest.charge);
            self.entries.pop_front();
        }
        self.total.subtract(released);
        released
    }

    /// Nothing is in flight any more: what is given back.
    pub fn clear(&mut self) -> Charge {
        self.entries.clear();
        core::mem::take(&mut self.total)
    }

    /// Panics unless exactly the positions from `acked` to `sent` are charged; for tests.
    pub fn assert_covers(&self, acked: Position, sent: Position) {
        let mut sum = Charge::default();
        let mut before = acked;
        for entry in &self.entries {
            assert!(before < entry.end, "ends grow");
            assert!(entry.charge.out > 0, "nothing is free of charge");
            before = entry.end;
            sum.add(entry.charge);
        }
        assert_eq!(before, sent.max(acked), "all that is in flight is charged");
        assert_eq!(sum, self.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(out: u64) -> Charge {
        Charge { out, back: 0 }
    }

    #[test]
    fn a_datagram_is_given_back_when_its_last_packet_is_acknowledged() {
        let mut ledger = Ledger::default();
        for (end, run, bytes) in [(1, 7, 832), (2, 7, 80), (3, 8, 832)] {
            ledger.charge(Position(end), run, out(bytes));
        }
        ledger.assert_covers(Position(0), Position(3));
        assert_eq!(ledger.release_before(Position(1)), out(0));
        ledger.assert_covers(Position(1), Position(3));
        assert_eq!(ledger.release_before(Position(2)), out(912));
        assert_eq!(ledger.total(), out(832));
        let read = Charge { out: 0, back: 9 };
        ledger.charge(Position(9), 8, read);
        assert_eq!(ledger.clear(), Charge { out: 832, back: 9 });
        ledger.assert_covers(Position(2), Position(2));
    }
}
