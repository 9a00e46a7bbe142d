//! Deadlines of all queue pairs of a shard.
//!
//! A queue pair has at most one live entry for each of its timers. An acknowledgement moves a
//! deadline later, and that changes nothing here: when an entry comes up the queue pair is asked
//! for its real deadline and the entry is made again. Entries of queue pairs that are gone die when
//! they come up.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::burst::QpIndex;
use crate::rc::Timer;
use crate::time::Instant;

/// When which timer of which queue pair is to be looked at. Ordered by time first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// When.
    pub at: Instant,
    /// Of which queue pair.
    pub qp: QpIndex,
    /// And of which of the queue pairs that had this index.
    pub generation: u32,
    /// Which timer.
    pub timer: Timer,
}

/// For which instants a queue pair has a live entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Armed {
    at: [Option<Instant>; Timer::ALL.len()],
}

/// The deadlines.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
}

impl Timers {
    /// Makes an entry unless there is one that comes up soon enough.
    pub fn arm(&mut self, armed: &mut Armed, entry: Entry) {
        let at = &mut armed.at[entry.timer as usize];
        if at.is_none_or(|armed| entry.at < armed) {
            *at = Some(entry.at);
            self.heap.push(Reverse(entry));
        }
    }

    /// Takes the earliest entry if its time has come.
    pub fn pop_due(&mut self, now: Instant) -> Option<Entry> {
        let Reverse(entry) = self.heap.peek()?;
        if entry.at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// When the earliest entry comes up; it may turn out to be of no use.
    pub fn earliest(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }
}

impl Armed {
    /// Whether `entry`, which came up, is the live one of its timer; there is none from then on.
    pub fn disarm(&mut self, entry: &Entry) -> bool {
        let at = &mut self.at[entry.timer as usize];
        let is_live = *at == Some(entry.at);
        if is_live {
            *at = None;
        }
        is_live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64) -> Entry {
        Entry {
            at: Instant::from_nanos(at),
            qp: QpIndex(1),
            generation: 0,
            timer: Timer::Acknowledgement,
        }
    }

    #[test]
    fn a_later_deadline_makes_no_entry_and_an_earlier_one_replaces() {
        let mut timers = Timers::default();
        let mut armed = Armed::default();
        timers.arm(&mut armed, entry(50));
        timers.arm(&mut armed, entry(70));
        timers.arm(&mut armed, entry(20));
        assert_eq!(timers.earliest(), Some(Instant::from_nanos(20)));
        let now = Instant::from_nanos(100);
        let due: Vec<_> = core::iter::from_fn(|| timers.pop_due(now)).collect();
        assert_eq!(due, [entry(20), entry(50)]);
        assert!(armed.disarm(&due[0]));
        assert!(!armed.disarm(&due[1]), "replaced by the earlier one");
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut timers = Timers::default();
        timers.arm(&mut Armed::default(), entry(50));
        assert_eq!(timers.pop_due(Instant::from_nanos(49)), None);
        assert_eq!(timers.pop_due(Instant::from_nanos(50)), Some(entry(50)));
        assert_eq!(timers.earliest(), None);
    }
}
