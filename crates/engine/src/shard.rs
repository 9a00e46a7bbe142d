//! A shard: all queue pairs of one slot, and the only way to drive them.
//!
//! Read first: the contract in the crate's page. The shard finds the queue pair that a packet is
//! for, takes turns among those that have something to send, and keeps what they share: paths, what
//! is in flight towards each destination, and deadlines.

use core::time::Duration;
use std::collections::VecDeque;

use wire::{Mtu, PKey, Packet, Qpn};

use crate::access::{PdId, Span};
use crate::burst::{Burst, Origin, QpIndex};
use crate::event::AsyncEvent;
use crate::host::Host;
use crate::multicast::{AttachError, Group, Groups, Membership};
use crate::outcome::{Counters, DropReason, Outcome};
use crate::path::{Path, PathIndex, PathMeta};
use crate::qp::{
    Attributes, Capabilities, Common, PostError, SendRequest, State, Transport, flush,
};
use crate::rc::ledger::Charge;
use crate::rc::window::{DestinationIndex, Destinations, WindowConfig};
use crate::rc::{self, Pause, Timer, Turn};
use crate::shard::machine::Machine;
use crate::shard::paths::Paths;
use crate::shard::places::{Places, QueuePair};
use crate::shard::timers::{Armed, Entry, Timers};
use crate::time::Instant;

mod machine;
mod modify;
pub(crate) mod paths;
mod places;
mod timers;

/// Packets of one queue pair before the next one has its turn: enough for a full run of 4 KiB
/// packets, and for a third of one of small packets.
const TURN_PACKETS: u32 = 32;

/// What a shard is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Top 8 bits of its QPNs.
    pub slot: u8,
    /// Index of the first queue pair. Processes that follow each other in a slot should differ in
    /// it, so that packets for the former meet no queue pair of the latter.
    pub first_index: u16,
    /// Bounds of what is in flight.
    pub window: WindowConfig,
    /// No acknowledgement timeout is shorter, whatever the queue pair says: a process that waits
    /// for a core does not answer in microseconds. spec: IBA 9.7.6.1.3
    pub timeout_min: Duration,
}

impl Config {
    /// The defaults for a slot; timeouts of at least 4 ms, which is what the kernel's own device
    /// rounds up to.
    pub fn for_slot(slot: u8) -> Self {
        Self {
            slot,
            first_index: 0,
            window: WindowConfig::default(),
            timeout_min: Duration::from_millis(4),
        }
    }
}

/// What a queue pair is made of.
pub struct QpOptions<H: Host> {
    /// Its transport.
    pub transport: Transport,
    /// Its protection domain.
    pub pd: PdId,
    /// Its sizes.
    pub capabilities: Capabilities,
    /// Bounds the messages of datagrams; a connection has the MTU of its path.
    pub port_mtu: Mtu,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
    /// Completions of sends.
    pub send_cq: H::Completions,
    /// Completions of receives.
    pub receive_cq: H::Completions,
    /// Receives.
    pub receives: H::Receives,
}

/// Why no queue pair was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The transport is not implemented.
    Unsupported,
    /// Every index of the slot is in use.
    TooMany,
}

/// What became of a send that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the send queue.
    Queued,
    /// It was flushed at once: the queue pair is in an error state.
    Flushed,
}

/// What `query` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpView {
    /// Its number.
    pub qpn: Qpn,
    /// Its transport.
    pub transport: Transport,
    /// Its protection domain.
    pub pd: PdId,
    /// Its state.
    pub state: State,
    /// In SQD: whether work that was started is not complete yet.
    pub is_draining: bool,
    /// What `modify` set; `sq_psn` is the PSN that is sent next, `rq_psn` the one that is expected
    /// next.
    pub attributes: Attributes,
    /// Its sizes.
    pub capabilities: Capabilities,
    /// What was counted.
    pub counters: Counters,
}

/// All queue pairs of a slot.
pub struct Shard<H: Host> {
    config: Config,
    places: Places<H>,
    paths: Paths,
    destinations: Destinations,
    credit: H::Credit,
    timers: Timers,
    /// When to look at full accounts that somebody waits for; all were asked for the same time
    /// ahead, so the earliest is first.
    looks: VecDeque<(Instant, DestinationIndex)>,
    groups: Groups,
    /// Those that may have something to send, in the order of their turns.
    ready: VecDeque<QpIndex>,
    events: VecDeque<AsyncEvent>,
    /// Queue pairs that have something in flight.
    in_flight: usize,
    /// Counts of the queue pairs that are gone.
    past: Counters,
    /// Datagram queue pairs with packets in the burst that was filled last.
    leaving: Vec<QpIndex>,
    /// Spans of the packet that is being made; kept for its memory.
    spans: Vec<Span>,
}

impl<H: Host> Shard<H> {
    /// A shard without queue pairs.
    pub fn new(config: Config, credit: H::Credit) -> Self {
        Self {
            config,
            places: Places::new(config.slot, config.first_index),
            paths: Paths::default(),
            destinations: Destinations::new(config.slot, config.window),
            credit,
            timers: Timers::default(),
            looks: VecDeque::new(),
            groups: Groups::default(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            in_flight: 0,
            past: Counters::default(),
            leaving: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Makes a queue pair, in RESET.
    pub fn create_qp(&mut self, options: QpOptions<H>) -> Result<Qpn, CreateError> {
        let machine = Machine::new(&options, &self.config)?;
        let index = self.places.allocate().ok_or(CreateError::TooMany)?;
        self.places.generation = self.places.generation.wrapping_add(1);
        let qpn = Qpn::from_parts(self.config.slot, index.0);
        let qp = QueuePair {
            machine,
            common: Common {
                qpn,
                state: State::Reset,
                attributes: Attributes::default(),
                capabilities: options.capabilities,
                pd: options.pd,
                signal_all: options.signal_all,
                path: PathIndex(0),
                send_cq: options.send_cq,
                receive_cq: options.receive_cq,
                receives: options.receives,
                events: Vec::new(),
                counters: Counters::default(),
            },
            generation: self.places.generation,
            destination: None,
            is_ready: false,
            is_in_flight: false,
            waits_for: None,
            woken_by: None,
            quota: TURN_PACKETS,
            armed: Armed::default(),
        };
        self.places.put(index, qp);
        Ok(qpn)
    }

    /// A number for a queue pair that is not of this shard but looks like one of it: one of iWARP,
    /// whose number means nothing on the wire.
    ///
    /// # Errors
    /// [`CreateError::TooMany`]
    pub fn reserve_qpn(&mut self) -> Result<Qpn, CreateError> {
        let index = self.places.allocate().ok_or(CreateError::TooMany)?;
        Ok(Qpn::from_parts(self.config.slot, index.0))
    }

    /// Gives such a number back.
    pub fn release_qpn(&mut self, index: QpIndex) {
        self.places.release(index);
    }

    /// Takes a queue pair away, with all that was posted to it; there are no completions. False if
    /// there is none.
    pub fn destroy_qp(&mut self, index: QpIndex) -> bool {
        self.leave(index);
        let Some(qp) = self.places.take(index) else {
            return false;
        };
        self.past.add(&qp.common.counters);
        if matches!(qp.machine, Machine::Ud(_)) {
            self.groups.forget(index);
        }
        true
    }

    /// Attaches a datagram queue pair to a group: from now on it gets what is sent to it, whatever
    /// its state then admits.
    ///
    /// # Errors
    /// [`AttachError`]; nothing was changed.
    pub fn attach(&mut self, index: QpIndex, group: Group) -> Result<Membership, AttachError> {
        match self.places.get(index).map(|qp| &qp.machine) {
            Some(Machine::Ud(_)) => self.groups.attach(group, index),
            Some(Machine::Rc(_)) => Err(AttachError::NotDatagrams),
            None => Err(AttachError::NoQueuePair),
        }
    }

    /// Ends that.
    pub fn detach(&mut self, index: QpIndex, group: Group) -> Membership {
        self.groups.detach(group, index)
    }

    /// Acknowledges once more what a queue pair has executed: to be called, and transmitted, before
    /// it is destroyed. See `docs/decisions/0004-farewell.md`.
    pub fn repeat_acknowledgement(&mut self, index: QpIndex) {
        if let Some(qp) = self.places.get_mut(index)
            && qp.common.state.receives_requests()
            && let Machine::Rc(rc) = &mut qp.machine
        {
            rc.responder.repeat_acknowledgement(&mut qp.common);
            self.make_ready(index);
        }
    }

    /// What is known about a queue pair.
    pub fn query_qp(&self, index: QpIndex) -> Option<QpView> {
        let QueuePair {
            common, machine, ..
        } = self.places.get(index)?;
        let mut attributes = common.attributes;
        attributes.state = common.state;
        if rc::sends_requests(common.state) {
            attributes.sq_psn = machine.next_psn();
        }
        if common.state.receives_requests()
            && let Some(expected) = machine.expected_psn()
        {
            attributes.rq_psn = expected;
        }
        Some(QpView {
            qpn: common.qpn,
            transport: machine.transport(),
            pd: common.pd,
            state: common.state,
            is_draining: common.state == State::SendQueueDrained && !machine.is_drained(),
            attributes,
            capabilities: common.capabilities,
            counters: common.counters,
        })
    }

    /// Counts of a queue pair.
    pub fn counters_of(&self, index: QpIndex) -> Option<Counters> {
        self.places.get(index).map(|qp| qp.common.counters)
    }

    /// Counts of all queue pairs, also of those that are gone.
    pub fn counters(&self) -> Counters {
        let mut sum = self.past;
        for qp in self.places.iter() {
            sum.add(&qp.common.counters);
        }
        sum
    }

    /// Bytes in flight over all destinations, in truesize.
    pub fn in_flight_bytes(&self) -> u64 {
        let charged = |qp: &QueuePair<H>| qp.machine.charged().out;
        self.places.iter().map(charged).sum()
    }

    /// Whether any queue pair waits for an answer to something.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// The path of packets in a burst.
    pub fn path(&self, index: PathIndex) -> Option<&Path> {
        self.paths.get(index)
    }

    /// Posts a send. In the error state it is accepted and flushed at once.
    pub fn post_send(
        &mut self,
        index: QpIndex,
        request: &SendRequest<'_>,
    ) -> Result<Posted, PostError> {
        let qp = self.places.get_mut(index).ok_or(PostError::NoQueuePair)?;
        match qp.common.state {
            State::ReadyToSend | State::SendQueueDrained => qp.machine.post(request)?,
            State::Error | State::SendQueueError => {
                qp.machine.check(request)?;
                flush::flush_send(&qp.common, request);
                return Ok(Posted::Flushed);
            }
            State::Reset | State::Init | State::ReadyToReceive => {
                return Err(PostError::WrongState);
            }
        }
        self.make_ready(index);
        Ok(Posted::Queued)
    }

    /// Sends that were queued, since the queue pair was made, and have left the queue again.
    pub fn sends_completed(&self, index: QpIndex) -> u64 {
        self.places
            .get(index)
            .map_or(0, |qp| qp.machine.queue().head().0)
    }

    /// Flushes the receives that were posted to a queue pair in the error state. To be called after
    /// each such post; does nothing in other states.
    pub fn flush_receives(&mut self, index: QpIndex) {
        if let Some(qp) = self.places.get(index)
            && qp.common.state == State::Error
        {
            flush::flush_receives(&qp.common);
        }
    }

    /// Takes a packet whose ICRC was checked.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &H::Memory,
    ) -> Outcome {
        let destination = packet.bth().destination;
        // spec: IBA 9.6.1: the one goes with the other
        match (
            destination == Qpn::MULTICAST,
            meta.destination.is_multicast(),
        ) {
            (false, false) => {}
            (true, true) => return self.handle_multicast(now, packet, meta, memory),
            _ => return Outcome::Dropped(DropReason::WrongAddress),
        }
        if destination.slot() != self.config.slot {
            return Outcome::Foreign;
        }
        self.deliver(now, QpIndex(destination.index()), packet, meta, memory)
    }

    /// A copy for each queue pair that is attached to the group. spec: IBA 10.5
    fn handle_multicast(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &H::Memory,
    ) -> Outcome {
        let group = Group {
            address: meta.destination,
            interface: meta.interface,
        };
        let mut outcome = Outcome::Dropped(DropReason::UnknownQp);
        let mut place = 0;
        while let Some(member) = self.groups.member(&group, place) {
            place += 1;
            let of_member = self.deliver(now, member, packet, meta, memory);
            if outcome != Outcome::Delivered {
                outcome = of_member;
            }
        }
        outcome
    }

    /// Gives a packet to a queue pair.
    fn deliver(
        &mut self,
        now: Instant,
        index: QpIndex,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &H::Memory,
    ) -> Outcome {
        let Some(qp) = self.places.get_mut(index) else {
            return Outcome::Dropped(DropReason::UnknownQp);
        };
        if let Err(reason) = admit(qp, packet, meta) {
            return Outcome::Dropped(reason);
        }
        qp.common.counters.received_packets += 1;
        let (machine, mut turn) = qp.turn(&mut self.destinations, &self.credit, now, memory);
        let outcome = machine.handle_packet(&mut turn, packet, meta);
        self.after(index);
        outcome
    }

    /// Lets timers fire.
    pub fn handle_timeout(&mut self, now: Instant, memory: &H::Memory) {
        while let Some(entry) = self.timers.pop_due(now) {
            let Some(qp) = self.places.get_mut(entry.qp) else {
                continue;
            };
            if qp.generation != entry.generation || !qp.armed.disarm(&entry) {
                continue;
            }
            let is_due = qp
                .machine
                .deadline(entry.timer)
                .is_some_and(|deadline| deadline <= now);
            if is_due {
                self.with_turn(entry.qp, now, memory, |machine, turn| {
                    machine.handle_timer(turn, entry.timer);
                });
            }
            self.after(entry.qp);
        }
        while let Some(&(at, account)) = self.looks.front()
            && at <= now
        {
            self.looks.pop_front();
            self.look(account, at, now);
        }
    }

    /// Looks at an account that somebody waited for.
    fn look(&mut self, index: DestinationIndex, at: Instant, now: Instant) {
        let account = self.destinations.get_mut(index);
        if let Some(again) = account.look(at, now) {
            self.looks.push_back((again, index));
            account.relieve(now, |qp| {
                let charged = self.places.get(qp).map(|qp| qp.machine.charged());
                charged.is_none_or(|charge| charge == Charge::default())
            });
            self.wake(index);
        }
    }

    /// When `handle_timeout` must be called at the latest; it may turn out to be too early.
    pub fn next_deadline(&self) -> Option<Instant> {
        let look = self.looks.front().map(|(at, _)| *at);
        [self.timers.earliest(), look].into_iter().flatten().min()
    }

    /// The own receive buffer overflowed: less is asked for at once.
    pub fn receive_buffer_overflowed(&mut self) {
        self.destinations.get_mut(DestinationIndex::OWN).lose();
    }

    /// Fills `out`, one queue pair after another; what does not fit stays ready. The burst that was
    /// filled before has been sent.
    pub fn poll_transmit(&mut self, now: Instant, memory: &H::Memory, out: &mut Burst) {
        self.burst_left();
        while !out.is_full() {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            let Some(qp) = self.places.get_mut(index) else {
                continue;
            };
            qp.is_ready = false;
            let (spans, quota) = (&mut self.spans, qp.quota);
            let (machine, mut turn) = qp.turn(&mut self.destinations, &self.credit, now, memory);
            let pause = match machine {
                Machine::Rc(rc) => rc.poll_transmit(&mut turn, spans, out, quota),
                Machine::Ud(ud) => {
                    let was_leaving = ud.is_leaving();
                    let paths = &mut self.paths;
                    let pause = ud.poll_transmit(turn.common, paths, memory, spans, out, quota);
                    if ud.is_leaving() && !was_leaving {
                        self.leaving.push(index);
                    }
                    pause
                }
            };
            self.pause(now, index, pause);
        }
    }

    /// Datagrams of the burst that was filled last are complete.
    fn burst_left(&mut self) {
        let mut leaving = core::mem::take(&mut self.leaving);
        for index in leaving.drain(..) {
            if let Some(qp) = self.places.get_mut(index)
                && let Machine::Ud(ud) = &mut qp.machine
            {
                ud.burst_left(&mut qp.common);
                self.after(index);
            }
        }
        self.leaving = leaving;
        self.paths.trim();
    }

    /// What comes after a turn of a queue pair. One that waited for it and could not send all that
    /// it may in a turn goes on with it later, before the others.
    fn pause(&mut self, now: Instant, index: QpIndex, pause: Pause) {
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        let woken_by = qp.woken_by.take();
        qp.quota = TURN_PACKETS;
        match pause {
            Pause::Busy { unused } if unused > 0 => {
                // the burst was full, so the turn is not over
                (qp.woken_by, qp.quota) = (woken_by, unused);
                self.conclude(index);
                return self.make_ready(index);
            }
            Pause::Full { account, unused } => {
                let goes_on = woken_by.is_some() && unused > 0;
                if goes_on {
                    qp.quota = unused;
                }
                if qp.waits_for.replace(account) != Some(account) {
                    let waiting = self.destinations.get_mut(account);
                    let look = waiting.wait(index, goes_on, now);
                    self.looks.extend(look.map(|at| (at, account)));
                }
            }
            Pause::Busy { .. } | Pause::Idle => {}
        }
        self.end_turn(woken_by);
        self.conclude(index);
        if matches!(pause, Pause::Busy { .. }) {
            self.make_ready(index);
        }
    }

    /// The turn of one that was woken is over.
    fn end_turn(&mut self, woken_by: Option<DestinationIndex>) {
        if let Some(account) = woken_by {
            self.destinations.get_mut(account).set_waking(false);
            self.wake(account);
        }
    }

    /// A packet of the last burst could not be gathered: its memory is gone.
    pub fn transmit_failed(&mut self, now: Instant, origin: Origin, memory: &H::Memory) {
        self.with_turn(origin.qp, now, memory, |machine, turn| {
            machine.transmit_failed(turn, origin);
        });
        self.after(origin.qp);
    }

    /// Calls `f` with a queue pair and what it works on, if it is there.
    fn with_turn(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &H::Memory,
        f: impl FnOnce(&mut Machine, &mut Turn<'_, H>),
    ) {
        if let Some(qp) = self.places.get_mut(index) {
            let (machine, mut turn) = qp.turn(&mut self.destinations, &self.credit, now, memory);
            f(machine, &mut turn);
        }
    }

    /// The oldest event that was not given out.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Panics if a queue pair contradicts itself; for tests.
    pub fn assert_invariants(&self) {
        for qp in self.places.iter() {
            qp.machine.assert_invariants();
        }
        for (index, account) in self.destinations.iter() {
            let is_own = index == DestinationIndex::OWN;
            let charged = self.places.iter().map(|qp| {
                let charge = qp.machine.charged();
                let out = (qp.destination == Some(index)).then_some(charge.out);
                let back = is_own.then_some(charge.back);
                out.unwrap_or(0) + back.unwrap_or(0)
            });
            let charged: u64 = charged.sum();
            assert_eq!(account.in_flight(), charged, "{:?}", account.buffer());
        }
    }

    /// Something happened to a queue pair: it may have something to send now.
    fn after(&mut self, index: QpIndex) {
        self.conclude(index);
        self.make_ready(index);
    }

    /// Collects events, arms timers, and wakes who waits for what was released.
    fn conclude(&mut self, index: QpIndex) {
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        self.events.extend(qp.common.events.drain(..));
        qp.count_in_flight(&mut self.in_flight);
        for timer in Timer::ALL {
            if let Some(at) = qp.machine.deadline(timer) {
                let entry = Entry {
                    at,
                    qp: index,
                    generation: qp.generation,
                    timer,
                };
                self.timers.arm(&mut qp.armed, entry);
            }
        }
        if let Some(destination) = qp.destination {
            self.settle(destination);
        }
        self.settle(DestinationIndex::OWN);
    }

    /// What is in flight towards a buffer may have changed: tells the other senders, and wakes who
    /// waits here.
    fn settle(&mut self, account: DestinationIndex) {
        self.destinations.get_mut(account).tell(&self.credit);
        self.wake(account);
    }

    /// Makes the first one ready that waits for room towards a destination, if there is room. Its
    /// turn wakes the next one.
    fn wake(&mut self, destination: DestinationIndex) {
        if !self.destinations.get(destination).has_waiting() {
            return;
        }
        self.destinations.refresh(destination, &self.credit);
        while let Some(index) = self.destinations.get_mut(destination).wake() {
            let Some(qp) = self.places.get_mut(index) else {
                continue;
            };
            if qp.waits_for != Some(destination) {
                continue; // it is another queue pair by now, or waits for something else
            }
            qp.waits_for = None;
            qp.woken_by = Some(destination);
            self.destinations.get_mut(destination).set_waking(true);
            self.make_ready(index);
            break;
        }
    }

    fn make_ready(&mut self, index: QpIndex) {
        if let Some(qp) = self.places.get_mut(index)
            && !qp.is_ready
        {
            qp.is_ready = true;
            self.ready.push_back(index);
        }
    }
}

/// Whether a packet is for this queue pair and its state takes it, in the standard's order.
/// spec: IBA 9.6.1
fn admit<H: Host>(
    qp: &QueuePair<H>,
    packet: &Packet<'_>,
    meta: &PathMeta,
) -> Result<(), DropReason> {
    let QueuePair {
        common, machine, ..
    } = qp;
    let bth = packet.bth();
    if bth.opcode.transport() != machine.wire_transport() {
        return Err(DropReason::WrongTransport);
    }
    let is_taken = if bth.opcode.is_response() {
        rc::sends_requests(common.state)
    } else {
        common.state.receives_requests()
    };
    if !is_taken {
        return Err(DropReason::WrongState);
    }
    if matches!(machine, Machine::Rc(_)) && !is_on(&common.attributes.path, meta) {
        return Err(DropReason::WrongAddress);
    }
    if !bth.pkey.matches(PKey::DEFAULT) {
        return Err(DropReason::BadPKey);
    }
    Ok(())
}

/// Whether a packet came the way of a connection.
fn is_on(path: &Path, meta: &PathMeta) -> bool {
    let is_here = path.interface == 0 || meta.interface == 0 || path.interface == meta.interface;
    path.remote == meta.source && path.local == meta.destination && is_here
}
