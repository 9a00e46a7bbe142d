//! How much is in flight towards one receive buffer, over all queue pairs of a shard.
//!
//! Read first: `docs/decisions/0005-credit.md`. A receiving socket accounts *truesize*: the bytes
//! of a datagram and the kernel's bookkeeping. What does not fit is lost, and a loss costs a round
//! of retransmission, so less in flight is faster. Each buffer has one account here. Its limit is
//! the least of what [`Credit`] allows, what losses have taught (`learned.rs`) and a fixed bound.
//! Answers to READs and atomics fill a buffer at our own end, which has an account as well.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use crate::burst::QpIndex;
use crate::host::Credit;
use crate::path::PathIndex;
use crate::rc::learned::Learned;
use crate::rc::ledger::Charge;
use crate::time::Instant;

/// Positions that a queue pair may have in flight: half of what would make an old acknowledgement
/// look like a new one. spec: IBA 9.7.5.1 (at most 2^23)
pub const POSITIONS_MAX: u64 = 1 << 22;

/// How often the time of [`STALL`] is doubled at most.
const STALL_DOUBLINGS: u32 = 6;

/// When nothing has left a full account for so long, one that waits and has nothing in flight may
/// send a packet all the same: what fills the account may be in flight towards a queue pair that is
/// gone. Twice as long for the next one, and so on: the receiver may only be waiting for a core.
pub const STALL: Duration = Duration::from_millis(10);

/// Bounds of what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes of truesize towards one buffer at most, but for one packet that may always be in
    /// flight.
    pub bytes: u64,
    /// The same at first towards a buffer of which nothing is known.
    pub first: u64,
    /// Longest READ request in bytes; a longer READ is asked for in several requests.
    pub read_chunk: u32,
}

impl Default for WindowConfig {
    /// 512 KiB, more than what loopback needs for its full speed; 64 KiB at first where nothing is
    /// known. READs are asked for by 64 KiB.
    fn default() -> Self {
        Self {
            bytes: 512 << 10,
            first: 64 << 10,
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
    /// What the host's credit and the configuration allow.
    allowed: u64,
    learned: Learned,
    in_flight: u64,
    /// What the other senders to the buffer were told.
    noted: u64,
    waiting: VecDeque<QpIndex>,
    /// The first of them found no room for its packet.
    is_tight: bool,
    /// One of those who waited has its turn now; the next comes after it.
    is_waking: bool,
    /// When something last left it.
    released_at: Instant,
    /// When it is looked at whether those who wait are stuck.
    looked_at: Option<Instant>,
    /// One packet may be sent whatever is in flight.
    has_permit: bool,
    /// Permits since something last left.
    permits: u32,
}

impl Destination {
    fn new(buffer: Buffer, config: &WindowConfig) -> Self {
        let first = match buffer {
            Buffer::Here(_) => config.bytes,
            Buffer::There(..) => config.first,
        };
        Self {
            buffer,
            references: 0,
            allowed: config.bytes,
            learned: Learned::starting(first, config.bytes),
            in_flight: 0,
            noted: 0,
            waiting: VecDeque::new(),
            is_tight: false,
            is_waking: false,
            released_at: Instant::default(),
            looked_at: None,
            has_permit: false,
            permits: 0,
        }
    }

    /// Which buffer this is about.
    pub fn buffer(&self) -> Buffer {
        self.buffer
    }

    /// Looks again how much may be in flight.
    pub fn refresh(&mut self, credit: &impl Credit, config: &WindowConfig) {
        if let Buffer::Here(slot) = self.buffer {
            let allowed = credit.allowance(slot).min(config.bytes);
            self.is_tight &= allowed <= self.allowed;
            self.allowed = allowed;
        }
    }

    /// Tells other senders to the same buffer what is in flight from here.
    pub fn tell(&mut self, credit: &impl Credit) {
        if let Buffer::Here(slot) = self.buffer
            && self.noted != self.in_flight
        {
            self.noted = self.in_flight;
            credit.note(slot, self.in_flight);
        }
    }

    /// Whether another packet of so many bytes of truesize may leave. With nothing in flight one
    /// always may: its acknowledgement is what wakes the next.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight + bytes <= self.limit() || self.has_permit
    }

    /// The same, with others that wait taken into account, which only one that was woken may pass.
    /// One that finds no room is not woken again before something changes.
    pub fn admit(&mut self, bytes: u64, may_pass: bool) -> bool {
        if self.has_waiting() && !may_pass {
            return false;
        }
        let has_room = self.has_room_for(bytes);
        self.is_tight = !has_room;
        has_room
    }

    /// Bytes of truesize in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The bound of `in_flight`; never 0.
    pub fn limit(&self) -> u64 {
        self.allowed.min(self.learned.bytes()).max(1)
    }

    /// Something left.
    pub fn charge(&mut self, bytes: u64) {
        self.in_flight += bytes;
        self.has_permit = false;
    }

    /// Something was acknowledged.
    pub fn acknowledge(&mut self, now: Instant, bytes: u64) {
        if bytes > 0 {
            self.learned.acknowledged(self.in_flight, bytes);
            self.released_at = now;
            self.permits = 0;
            self.subtract(bytes);
        }
    }

    /// Something is given up: as lost, or with its queue pair.
    pub fn give_up(&mut self, bytes: u64) {
        self.learned.gave_up(bytes);
        self.subtract(bytes);
    }

    /// Something that is in flight was lost.
    pub fn lose(&mut self) {
        self.learned.lost(self.in_flight);
    }

    fn subtract(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.in_flight, "released more than was charged");
        self.is_tight &= bytes == 0;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Whether somebody waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// `qp` has more to send and waits for room, before all others if its turn is not over. Gives
    /// when to look whether it is stuck, if nobody will look before.
    pub fn wait(&mut self, qp: QpIndex, goes_on: bool, now: Instant) -> Option<Instant> {
        if goes_on {
            self.waiting.push_front(qp);
        } else {
            self.waiting.push_back(qp);
        }
        if self.looked_at.is_some() {
            return None;
        }
        self.looked_at = Some(now.plus(STALL));
        self.looked_at
    }

    /// The queue pair that waited longest, if there is room for it and nobody woken before has its
    /// turn still to come.
    pub fn wake(&mut self) -> Option<QpIndex> {
        let may_have_room = self.in_flight < self.limit() || self.has_permit;
        if may_have_room && !self.is_tight && !self.is_waking {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// The turn of one that was woken is to come, or over: then the next may be woken.
    pub fn set_waking(&mut self, is_waking: bool) {
        self.is_waking = is_waking;
    }

    /// The look that [`wait`](Self::wait) asked for at `at`. Gives when to look again; `None` too
    /// if it was asked for by a former account of this index.
    pub fn look(&mut self, at: Instant, now: Instant) -> Option<Instant> {
        if self.looked_at == Some(at) {
            self.looked_at = self.has_waiting().then(|| now.plus(STALL));
            return self.looked_at;
        }
        None
    }

    /// Lets a packet go of the first that waits and `has_nothing_in_flight`, if nothing moved for
    /// too long. Whoever has something in flight has a timer that tells more.
    pub fn relieve(&mut self, now: Instant, has_nothing_in_flight: impl Fn(QpIndex) -> bool) {
        let patience = STALL * (1 << self.permits.min(STALL_DOUBLINGS));
        if now.since(self.released_at) < patience {
            return;
        }
        let stuck = self
            .waiting
            .iter()
            .position(|&qp| has_nothing_in_flight(qp));
        if let Some(qp) = stuck.and_then(|index| self.waiting.remove(index)) {
            self.waiting.push_front(qp);
            self.has_permit = true;
            self.is_tight = false;
            self.permits += 1;
            self.released_at = now; // the next one has its own patience
        }
    }
}

/// Names an account of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationIndex(u32);

impl DestinationIndex {
    /// The account of the shard's own receive buffer, which is always there. Queue pairs without a
    /// connection have it too: they send nothing.
    pub const OWN: Self = Self(0);
}

/// All accounts of a shard; queue pairs to the same buffer share one.
#[derive(Debug)]
pub struct Destinations {
    config: WindowConfig,
    entries: Vec<Destination>,
    free: Vec<DestinationIndex>,
    by_buffer: HashMap<Buffer, DestinationIndex>,
}

impl Destinations {
    /// The account of the own buffer, that of `slot`.
    pub fn new(slot: u8, config: WindowConfig) -> Self {
        let mut destinations = Self {
            config,
            entries: Vec::new(),
            free: Vec::new(),
            by_buffer: HashMap::new(),
        };
        destinations.acquire(Buffer::Here(slot));
        destinations
    }

    /// The account of a buffer, for one more queue pair.
    pub fn acquire(&mut self, buffer: Buffer) -> DestinationIndex {
        let index = match self.by_buffer.get(&buffer) {
            Some(&index) => index,
            None => self.open(buffer),
        };
        self.get_mut(index).references += 1;
        index
    }

    fn open(&mut self, buffer: Buffer) -> DestinationIndex {
        let entry = Destination::new(buffer, &self.config);
        let index = match self.free.pop() {
            Some(index) => {
                *self.get_mut(index) = entry;
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

    /// What is charged to the account `to` and to the own one is in flight no more.
    pub fn give_up(&mut self, to: DestinationIndex, charge: Charge) {
        self.get_mut(to).give_up(charge.out);
        self.get_mut(DestinationIndex::OWN).give_up(charge.back);
    }

    /// Looks again how much may be in flight towards a buffer.
    pub fn refresh(&mut self, index: DestinationIndex, credit: &impl Credit) {
        let config = self.config;
        self.get_mut(index).refresh(credit, &config);
    }

    /// The account.
    pub fn get_mut(&mut self, index: DestinationIndex) -> &mut Destination {
        &mut self.entries[index.0 as usize]
    }

    /// The account.
    pub fn get(&self, index: DestinationIndex) -> &Destination {
        &self.entries[index.0 as usize]
    }

    /// All accounts that somebody uses.
    pub fn iter(&self) -> impl Iterator<Item = (DestinationIndex, &Destination)> {
        let indexed = self.entries.iter().enumerate();
        indexed
            .filter(|(_, entry)| entry.references > 0)
            .map(|(index, entry)| (DestinationIndex(index as u32), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelCredit;

    const CONFIG: WindowConfig = WindowConfig {
        bytes: 100,
        first: 100,
        read_chunk: 0,
    };

    fn there(slot: u8) -> Buffer {
        Buffer::There(PathIndex(0), slot)
    }

    #[test]
    fn queue_pairs_to_one_destination_share_an_account() {
        let mut destinations = Destinations::new(3, CONFIG);
        let one = destinations.acquire(there(7));
        let same = destinations.acquire(there(7));
        let other = destinations.acquire(there(8));
        assert_eq!(one, same);
        assert_ne!(one, other);
        destinations.release(one);
        destinations.get_mut(same).charge(100);
        assert!(!destinations.get(same).has_room_for(1));
        assert!(destinations.get(other).has_room_for(1));
        destinations.get_mut(same).give_up(100);
        destinations.release(same);
        assert_eq!(destinations.acquire(Buffer::Here(1)), one, "reused");
        assert_eq!(
            destinations.acquire(Buffer::Here(3)),
            DestinationIndex::OWN,
            "whoever sends to itself fills the buffer that its READs fill"
        );
    }

    #[test]
    fn who_waits_is_woken_in_order_once_there_is_room() {
        let now = Instant::default();
        let mut destination = Destination::new(there(0), &CONFIG);
        destination.charge(100);
        assert_eq!(
            destination.wait(QpIndex(1), false, now),
            Some(now.plus(STALL))
        );
        assert_eq!(destination.wait(QpIndex(2), false, now), None);
        assert_eq!(destination.wake(), None);
        destination.acknowledge(now, 1);
        assert_eq!(destination.wake(), Some(QpIndex(1)));
        destination.charge(1);
        assert_eq!(destination.wake(), None);
    }

    #[test]
    fn an_account_that_nothing_leaves_lets_a_packet_go_of_who_has_none_in_flight() {
        let start = Instant::from_nanos(1_000_000_000);
        let mut destination = Destination::new(there(0), &CONFIG);
        destination.charge(100);
        destination.acknowledge(start, 1);
        destination.charge(1);
        let look = destination
            .wait(QpIndex(1), false, start)
            .expect("the first");
        assert_eq!(destination.wait(QpIndex(2), false, start), None);
        destination.relieve(look, |_| false);
        assert_eq!(destination.wake(), None, "all have timers of their own");
        destination.relieve(look, |qp| qp == QpIndex(2));
        assert_eq!(destination.wake(), Some(QpIndex(2)));
        destination.charge(1);
        assert!(!destination.has_room_for(1), "one packet only");
        let next = destination.look(look, look).expect("one still waits");
        assert_eq!(destination.look(look, next), None, "not the look it has");
        // the next one has to wait twice as long
        destination.relieve(look.plus(STALL), |_| true);
        assert_eq!(destination.wake(), None);
        destination.relieve(look.plus(2 * STALL), |_| true);
        assert_eq!(destination.wake(), Some(QpIndex(1)));
    }

    #[test]
    fn the_limit_follows_the_allowance_but_not_to_nothing() {
        let credit = ModelCredit::known();
        let mut destination = Destination::new(Buffer::Here(5), &CONFIG);
        for (allowed, limit) in [(70, 70), (1000, 100), (0, 1)] {
            credit.allow(5, allowed);
            destination.refresh(&credit, &CONFIG);
            assert_eq!(destination.limit(), limit);
        }
        destination.charge(40);
        destination.tell(&credit);
        assert_eq!(credit.noted(5), 40);
    }
}
