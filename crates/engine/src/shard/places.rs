//! The table of queue pairs, and what a shard keeps for each.

use std::collections::VecDeque;

use crate::burst::QpIndex;
use crate::host::Host;
use crate::qp::Common;
use crate::rc::window::{Destination, DestinationIndex, Destinations};
use crate::rc::{Rc, Turn};
use crate::shard::timers::Armed;
use crate::time::Instant;

/// Indices of a slot; the last one of the last slot would be the multicast QPN.
const INDEX_MAX: u16 = 0xfffe;

/// One queue pair and what the shard knows about it.
pub(super) struct QueuePair<H: Host> {
    pub(super) common: Common<H>,
    pub(super) rc: Rc,
    pub(super) generation: u32,
    /// From RTR on.
    pub(super) destination: Option<DestinationIndex>,
    pub(super) is_ready: bool,
    pub(super) is_waiting: bool,
    pub(super) armed: Armed,
}

impl<H: Host> QueuePair<H> {
    /// Calls `f` with what it works on. Before RTR there is no destination, and an empty one does.
    pub(super) fn with_turn<R>(
        &mut self,
        destinations: &mut Destinations,
        now: Instant,
        memory: &H::Memory,
        f: impl FnOnce(&mut Rc, &mut Turn<'_, H>) -> R,
    ) -> R {
        let mut nowhere = Destination::nowhere();
        let destination = match self.destination {
            Some(index) => destinations.get_mut(index),
            None => &mut nowhere,
        };
        let mut turn = Turn {
            now,
            common: &mut self.common,
            destination,
            memory,
        };
        f(&mut self.rc, &mut turn)
    }
}

/// The queue pairs by index.
///
/// Indices that were never used come first, then those free for the longest time, so that late
/// packets of a queue pair do not meet a new one.
pub(super) struct Places<H: Host> {
    places: Vec<Option<Box<QueuePair<H>>>>,
    first: u16,
    free: VecDeque<QpIndex>,
    pub(super) generation: u32,
}

impl<H: Host> Places<H> {
    pub(super) fn new(slot: u8) -> Self {
        Self {
            places: Vec::new(),
            first: if slot == 0 { 2 } else { 0 }, // QPN 0 and 1 are the management's
            free: VecDeque::new(),
            generation: 0,
        }
    }

    pub(super) fn allocate(&mut self) -> Option<QpIndex> {
        let fresh = self.places.len() + usize::from(self.first);
        if fresh <= usize::from(INDEX_MAX) {
            self.places.push(None);
            return Some(QpIndex(fresh as u16));
        }
        self.free.pop_front()
    }

    pub(super) fn place(&self, index: QpIndex) -> Option<usize> {
        index.0.checked_sub(self.first).map(usize::from)
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
