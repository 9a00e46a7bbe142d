//! The table of queue pairs, and what a shard keeps for each.

use std::collections::VecDeque;

use crate::burst::QpIndex;
use crate::host::Host;
use crate::qp::Common;
use crate::rc::Turn;
use crate::rc::window::{DestinationIndex, Destinations};
use crate::shard::machine::Machine;
use crate::shard::timers::Armed;
use crate::time::Instant;

/// Indices of a slot; the last one of the last slot would be the multicast QPN.
const INDEX_MAX: u16 = 0xfffe;
/// QPN 0 and 1 are the management's.
const INDEX_MIN_OF_SLOT_0: u16 = 2;

/// One queue pair and what the shard knows about it.
pub(super) struct QueuePair<H: Host> {
    pub(super) common: Common<H>,
    pub(super) machine: Machine,
    pub(super) generation: u32,
    /// Of a connection, from RTR on.
    pub(super) destination: Option<DestinationIndex>,
    pub(super) is_ready: bool,
    /// The account that it waits for room in.
    pub(super) waits_for: Option<DestinationIndex>,
    /// The account that it waited for long enough: it goes before others that wait there.
    pub(super) woken_by: Option<DestinationIndex>,
    /// Packets that its turn has left.
    pub(super) quota: u32,
    /// As it was counted last.
    pub(super) is_in_flight: bool,
    pub(super) armed: Armed,
}

impl<H: Host> QueuePair<H> {
    /// Its state machine and what that works on. Without a destination any account does.
    pub(super) fn turn<'a>(
        &'a mut self,
        destinations: &'a mut Destinations,
        credit: &'a H::Credit,
        now: Instant,
        memory: &'a H::Memory,
    ) -> (&'a mut Machine, Turn<'a, H>) {
        let turn = Turn {
            now,
            common: &mut self.common,
            accounts: destinations,
            to: self.destination.unwrap_or(DestinationIndex::OWN),
            is_woken: self.woken_by.is_some(),
            credit,
            memory,
        };
        (&mut self.machine, turn)
    }

    /// Keeps `total`, the queue pairs that have something in flight, up to date.
    pub(super) fn count_in_flight(&mut self, total: &mut usize) {
        let is_in_flight = self.machine.charged().out > 0;
        match (self.is_in_flight, is_in_flight) {
            (false, true) => *total += 1,
            (true, false) => *total -= 1,
            _ => {}
        }
        self.is_in_flight = is_in_flight;
    }
}

/// The queue pairs by index.
///
/// Indices that were never used come first, then those free for the longest time, so that late
/// packets of a queue pair do not meet a new one. They go round from one that differs between
/// processes: the next owner of the slot does not begin with the numbers of the last.
pub(super) struct Places<H: Host> {
    /// By how far an index is from the first one given out.
    places: Vec<Option<Box<QueuePair<H>>>>,
    /// The lowest index there is.
    min: u16,
    /// The index given out first, counted from `min`.
    base: u16,
    free: VecDeque<QpIndex>,
    pub(super) generation: u32,
}

impl<H: Host> Places<H> {
    pub(super) fn new(slot: u8, first_index: u16) -> Self {
        let min = if slot == 0 { INDEX_MIN_OF_SLOT_0 } else { 0 };
        Self {
            places: Vec::new(),
            min,
            base: first_index.saturating_sub(min) % (INDEX_MAX - min + 1),
            free: VecDeque::new(),
            generation: 0,
        }
    }

    pub(super) fn allocate(&mut self) -> Option<QpIndex> {
        let fresh = self.places.len();
        if fresh < self.count() {
            self.places.push(None);
            let turned = (usize::from(self.base) + fresh) % self.count();
            return Some(QpIndex(self.min + turned as u16));
        }
        self.free.pop_front()
    }

    /// How many indices the slot has.
    fn count(&self) -> usize {
        usize::from(INDEX_MAX - self.min) + 1
    }

    pub(super) fn place(&self, index: QpIndex) -> Option<usize> {
        let count = self.count();
        let turned = usize::from(index.0.checked_sub(self.min)?);
        (turned < count).then(|| (turned + count - usize::from(self.base)) % count)
    }

    pub(super) fn get(&self, index: QpIndex) -> Option<&QueuePair<H>> {
        self.places.get(self.place(index)?)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, index: QpIndex) -> Option<&mut QueuePair<H>> {
        let place = self.place(index)?;
        self.places.get_mut(place)?.as_deref_mut()
    }

    pub(super) fn put(&mut self, index: QpIndex, qp: QueuePair<H>) {
        if let Some(place) = self.place(index)
            && let Some(empty) = self.places.get_mut(place)
        {
            *empty = Some(Box::new(qp));
        }
    }

    /// Gives an index back that was allocated and never put to use here.
    pub(super) fn release(&mut self, index: QpIndex) {
        debug_assert!(self.get(index).is_none());
        self.free.push_back(index);
    }

    pub(super) fn take(&mut self, index: QpIndex) -> Option<Box<QueuePair<H>>> {
        let place = self.place(index)?;
        let qp = self.places.get_mut(place)?.take()?;
        self.free.push_back(index);
        Some(qp)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuePair<H>> {
        self.places.iter().flatten().map(Box::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelHost;

    #[test]
    fn indices_go_round_from_the_first_and_each_has_one_place() {
        for (slot, first_index, total) in [(1, 0, 65_535), (1, 40_000, 65_535), (0, 0, 65_533)] {
            let mut places = Places::<ModelHost>::new(slot, first_index);
            let given: Vec<u16> = std::iter::from_fn(|| places.allocate())
                .map(|index| index.0)
                .collect();
            assert_eq!(given.len(), total);
            assert_eq!(given[0], first_index.max(places.min));
            for (place, index) in given.iter().enumerate() {
                assert_eq!(places.place(QpIndex(*index)), Some(place));
            }
            let mut sorted = given;
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), total);
            assert_eq!(sorted.last(), Some(&INDEX_MAX));
            assert_eq!(places.place(QpIndex(0xffff)), None);
        }
    }
}
