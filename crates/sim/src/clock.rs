//! Virtual time: what happens next, and when.

use core::cmp::Ordering;
use core::time::Duration;
use std::collections::BinaryHeap;

use engine::Instant;

/// Events in the order of their times. What is due at the same time comes in the order in which it
/// was planned, so that a run depends on its seed alone.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Instant,
    planned: BinaryHeap<Planned<E>>,
    count: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    /// Nothing planned, time 0.
    pub fn new() -> Self {
        Self {
            now: Instant::default(),
            planned: BinaryHeap::new(),
            count: 0,
        }
    }

    /// The time of the event that was taken last.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Plans an event; a time in the past is now.
    pub fn at(&mut self, at: Instant, event: E) {
        self.count += 1;
        self.planned.push(Planned {
            at: at.max(self.now),
            number: self.count,
            event,
        });
    }

    /// Plans an event.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now.plus(delay), event);
    }

    /// Takes the next event and moves the time to it.
    pub fn take(&mut self) -> Option<E> {
        let planned = self.planned.pop()?;
        self.now = planned.at;
        Some(planned.event)
    }

    /// How many events were planned so far.
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // the heap gives the greatest first
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Planned<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_plan() {
        let mut agenda = Agenda::new();
        agenda.after(Duration::from_nanos(5), "c");
        agenda.after(Duration::from_nanos(1), "a");
        agenda.after(Duration::from_nanos(1), "b");
        let order: Vec<_> = core::iter::from_fn(|| agenda.take()).collect();
        assert_eq!(order, ["a", "b", "c"]);
        assert_eq!(agenda.now(), Instant::from_nanos(5));
    }

    #[test]
    fn the_past_is_now() {
        let mut agenda = Agenda::new();
        agenda.after(Duration::from_nanos(5), 1);
        agenda.take();
        agenda.at(Instant::from_nanos(2), 2);
        agenda.take();
        assert_eq!(agenda.now(), Instant::from_nanos(5));
    }
}
