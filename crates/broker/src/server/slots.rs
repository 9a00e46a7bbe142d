//! Which slot is whose. Pure state: sockets and clocks are the caller's.
//!
//! The rule: a slot of an ended process is drained, and used again only after it was quiet for
//! [`QUIET`], oldest first. Peers that have not noticed the end are still sending to it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::protocol::SLOT_COUNT;

/// How long nothing may have arrived before a slot is used again.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// A slot that never becomes quiet is used again after this: no peer can hold it for ever.
pub(super) const COOLING_MAX: Duration = Duration::from_secs(30);

/// Who has a slot: the key of a client connection.
pub(super) type Owner = u64;

#[derive(Clone, Copy, Debug)]
struct Cooling {
    slot: u8,
    since: Instant,
    last_packet: Instant,
}

impl Cooling {
    fn ready_at(&self) -> Instant {
        (self.last_packet + QUIET).min(self.since + COOLING_MAX)
    }
}

/// All slots but 0, which is the broker's own.
#[derive(Debug)]
pub(super) struct Slots {
    owners: Vec<Option<Owner>>,
    /// Ready to be leased, in the order of reuse.
    free: VecDeque<u8>,
    /// Waiting for quiet, oldest first.
    cooling: VecDeque<Cooling>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            owners: vec![None; SLOT_COUNT],
            free: (1..=u8::MAX).collect(),
            cooling: VecDeque::new(),
        }
    }

    /// A slot for `owner`, or `None` if none is ready.
    pub(super) fn lease(&mut self, owner: Owner, now: Instant) -> Option<u8> {
        self.settle(now);
        let slot = self.free.pop_front()?;
        self.owners[usize::from(slot)] = Some(owner);
        Some(slot)
    }

    /// Whether more than half of all are ready: only then somebody who has one gets another.
    pub(super) fn has_plenty(&self) -> bool {
        self.free.len() > (SLOT_COUNT - 1) / 2
    }

    /// The slot that cools for the longest time, quiet or not: somebody who keeps sending to dead
    /// slots must not keep the living out. `None` if none has cooled for [`QUIET`].
    pub(super) fn lease_unquiet(&mut self, owner: Owner, now: Instant) -> Option<u8> {
        let oldest = self
            .cooling
            .front()
            .filter(|cooling| cooling.since + QUIET <= now)?;
        let slot = oldest.slot;
        self.cooling.pop_front();
        self.owners[usize::from(slot)] = Some(owner);
        Some(slot)
    }

    /// Undoes [`Self::lease`] of a slot that was never handed out.
    pub(super) fn put_back(&mut self, slot: u8) {
        self.owners[usize::from(slot)] = None;
        self.free.push_front(slot);
    }

    /// Ends a lease; `false` if the slot is not the owner's.
    pub(super) fn release(&mut self, slot: u8, owner: Owner, now: Instant) -> bool {
        let entry = &mut self.owners[usize::from(slot)];
        if *entry != Some(owner) {
            return false;
        }
        *entry = None;
        self.cooling.push_back(Cooling {
            slot,
            since: now,
            last_packet: now,
        });
        true
    }

    /// Who has a slot.
    pub(super) fn owner(&self, slot: u8) -> Option<Owner> {
        self.owners[usize::from(slot)]
    }

    /// The slots of `owner`.
    pub(super) fn of(&self, owner: Owner) -> Vec<u8> {
        self.leased()
            .filter(|(_, held_by)| *held_by == owner)
            .map(|(slot, _)| slot)
            .collect()
    }

    /// All leases.
    pub(super) fn leased(&self) -> impl Iterator<Item = (u8, Owner)> {
        (0..=u8::MAX)
            .zip(&self.owners)
            .filter_map(|(slot, owner)| Some((slot, (*owner)?)))
    }

    /// The slots that wait for quiet: the broker drains these.
    pub(super) fn cooling(&self) -> Vec<u8> {
        self.cooling.iter().map(|cooling| cooling.slot).collect()
    }

    /// A packet arrived at a slot that waits for quiet.
    pub(super) fn packet_seen(&mut self, slot: u8, now: Instant) {
        if let Some(cooling) = self.cooling.iter_mut().find(|c| c.slot == slot) {
            cooling.last_packet = now;
        }
    }

    /// Moves slots that have been quiet long enough to the end of the free ones; says which.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<u8> {
        let (ready, waiting) = self
            .cooling
            .drain(..)
            .partition::<VecDeque<_>, _>(|cooling| cooling.ready_at() <= now);
        self.cooling = waiting;
        let ready: Vec<u8> = ready.iter().map(|cooling| cooling.slot).collect();
        self.free.extend(&ready);
        ready
    }

    /// When the next slot may be ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.cooling.iter().map(Cooling::ready_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_never_quiet_goes_to_who_waited_long_enough() {
        let mut slots = Slots::new();
        let start = Instant::now();
        while slots.lease(1, start).is_some() {}
        assert!(slots.release(7, 1, start) && slots.release(9, 1, start));
        let noisy = start + QUIET;
        slots.packet_seen(7, noisy);
        slots.packet_seen(9, noisy);
        assert_eq!(slots.lease(2, noisy), None);
        assert_eq!(
            slots.lease_unquiet(2, noisy - Duration::from_millis(1)),
            None
        );
        assert_eq!(slots.lease_unquiet(2, noisy), Some(7));
        assert_eq!(slots.of(2), [7]);
        assert_eq!(slots.cooling(), [9]);
    }

    #[test]
    fn slot_zero_is_never_leased_and_255_are() {
        let mut slots = Slots::new();
        let now = Instant::now();
        let leased: Vec<u8> = std::iter::from_fn(|| slots.lease(1, now)).collect();
        assert_eq!(leased, (1..=255).collect::<Vec<u8>>());
        assert_eq!(slots.leased().count(), 255);
    }

    #[test]
    fn there_are_plenty_while_over_half_are_ready() {
        let mut slots = Slots::new();
        let start = Instant::now();
        for _ in 0..127 {
            assert!(slots.has_plenty());
            slots.lease(1, start);
        }
        assert!(slots.has_plenty(), "128 of 255");
        slots.lease(1, start);
        assert!(!slots.has_plenty());
        slots.release(1, 1, start);
        assert!(!slots.has_plenty(), "it waits for quiet");
        slots.settle(start + QUIET);
        assert!(slots.has_plenty());
    }

    #[test]
    fn a_slot_is_reused_oldest_first_after_a_quiet_second() {
        let mut slots = Slots::new();
        let start = Instant::now();
        while slots.lease(1, start).is_some() {}
        assert!(slots.release(9, 1, start));
        assert!(slots.release(4, 1, start + Duration::from_millis(10)));
        assert_eq!(slots.lease(2, start + Duration::from_millis(999)), None);
        let later = start + Duration::from_millis(1500);
        assert_eq!(slots.lease(2, later), Some(9));
        assert_eq!(slots.lease(2, later), Some(4));
        assert_eq!(slots.of(2), [4, 9]);
    }

    #[test]
    fn a_packet_makes_a_slot_wait_again_but_not_for_ever() {
        let mut slots = Slots::new();
        let start = Instant::now();
        while slots.lease(1, start).is_some() {}
        slots.release(9, 1, start);
        let mut now = start;
        while now < start + COOLING_MAX {
            assert_eq!(slots.lease(2, now), None);
            slots.packet_seen(9, now);
            now += QUIET / 2;
        }
        assert_eq!(slots.next_deadline(), Some(start + COOLING_MAX));
        assert_eq!(slots.lease(2, now), Some(9));
    }

    #[test]
    fn unused_slots_come_before_used_ones() {
        let mut slots = Slots::new();
        let start = Instant::now();
        assert_eq!(slots.lease(1, start), Some(1));
        slots.release(1, 1, start);
        assert_eq!(slots.lease(1, start + 5 * QUIET), Some(2));
    }

    #[test]
    fn only_the_owner_releases_and_only_once() {
        let mut slots = Slots::new();
        let now = Instant::now();
        let slot = slots.lease(1, now).expect("all are free");
        assert!(!slots.release(slot, 2, now));
        assert!(!slots.release(0, 1, now));
        assert!(slots.release(slot, 1, now));
        assert!(!slots.release(slot, 1, now));
    }

    #[test]
    fn a_slot_that_could_not_be_handed_out_is_next_again() {
        let mut slots = Slots::new();
        let now = Instant::now();
        let slot = slots.lease(1, now).expect("all are free");
        slots.put_back(slot);
        assert_eq!(slots.lease(1, now), Some(slot));
    }
}
