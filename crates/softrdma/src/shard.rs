//! The lock section: one engine, its sockets and buffers, served by whoever has the lock.
//!
//! Nobody waits behind a preempted holder on the data path: posters and pollers `try_lock`. What
//! they could not hand over stays in the queue pair's send ring and is announced in `pending`,
//! which the holder looks at again after it has let go.
//!
//! Lock order of the crate: control → shard → receive queue → completion queue → channel.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use engine::{AsyncEvent, Burst, Host, Instant, Path, PathMeta, QpIndex};
use io::udp::SendOutcome;
use tap::{Delayed, DropReason, Tap, Verdict};
use wire::Packet;

use crate::completion_queue::CompletionQueue;
use crate::front::Front;
use crate::memory::MemoryTable;
use crate::network::{Network, OutgoingRun, RxBuffer};
use crate::receive_queue::ReceiveQueue;
use crate::ring::PostedSend;
use crate::run::next_run;
use crate::seal::{SealFault, Sealer};
use crate::steer::Steering;

/// Packets asked of the engine at once: a few full runs.
const BURST_PACKETS: usize = 256;
/// Datagrams taken before the lock section looks at its other work.
const DATAGRAMS_PER_SECTION: usize = 32;
/// Delayed packets held by a fault plan.
const DELAYED_MAX: usize = 4096;
/// When a run that found no room is offered again.
const BLOCKED_RETRY_NS: u64 = 200_000;

/// The host of the device's engine.
pub struct DeviceHost;

impl Host for DeviceHost {
    type Memory = MemoryTable;
    type Receives = Arc<ReceiveQueue>;
    type Completions = Arc<CompletionQueue>;
}

/// One slot of the process: a lock around [`Inner`], and what is looked at without it.
pub struct Shard<N> {
    inner: Mutex<Inner<N>>,
    /// Queue pairs with something in their send ring.
    pending: Mutex<Vec<QpIndex>>,
    has_pending: AtomicBool,
    /// When somebody was last inside a poll, in nanoseconds of the clock.
    last_poll_ns: AtomicU64,
    /// Since when polls find nothing; 0 while they do.
    idle_since_ns: AtomicU64,
}

/// What the lock protects.
pub struct Inner<N> {
    /// The queue pairs.
    pub engine: engine::Shard<DeviceHost>,
    /// Where datagrams come and go.
    pub network: N,
    /// The side of each queue pair that programs touch without the lock.
    pub fronts: HashMap<QpIndex, Arc<Front>>,
    slot: u8,
    receive: RxBuffer,
    burst: Burst,
    sealer: Sealer,
    tap: Tap,
    delayed: Delayed<OwnedPacket>,
    delayed_arrivals: Delayed<Arrival>,
    /// Sealed runs that the kernel had no room for, oldest first; at most one burst.
    blocked: VecDeque<OwnedRun>,
    /// Routes on which the kernel does not segment.
    without_gso: Vec<Path>,
    steering: Option<Steering>,
    /// Kept for its memory.
    posted: Vec<PostedSend>,
}

/// A packet that left its run.
#[derive(Clone, Debug)]
struct OwnedPacket {
    bytes: Vec<u8>,
    path: Path,
    dest: wire::Qpn,
}

/// A packet that arrived and waits.
#[derive(Clone, Debug)]
struct Arrival {
    bytes: Vec<u8>,
    meta: PathMeta,
    source_port: u16,
}

/// A run that the kernel had no room for.
#[derive(Debug)]
struct OwnedRun {
    bytes: Vec<u8>,
    segment_size: usize,
    path: Path,
    dest: wire::Qpn,
}

impl<N: Network> Shard<N> {
    /// A shard for `slot` with an engine that draws its numbers from `seed`.
    pub fn new(
        slot: u8,
        engine: engine::Shard<DeviceHost>,
        network: N,
        tap: Tap,
        steering: Option<Steering>,
    ) -> Self {
        Self {
            inner: Mutex::new(Inner {
                engine,
                network,
                fronts: HashMap::new(),
                slot,
                receive: RxBuffer::default(),
                burst: Burst::with_bound(BURST_PACKETS),
                sealer: Sealer::default(),
                tap,
                delayed: Delayed::with_bound(DELAYED_MAX),
                delayed_arrivals: Delayed::with_bound(DELAYED_MAX),
                blocked: VecDeque::new(),
                without_gso: Vec::new(),
                steering,
                posted: Vec::new(),
            }),
            pending: Mutex::new(Vec::new()),
            has_pending: AtomicBool::new(false),
            last_poll_ns: AtomicU64::new(0),
            idle_since_ns: AtomicU64::new(0),
        }
    }

    /// The lock, waiting for it: for verbs that are not on the data path.
    pub fn lock(&self) -> MutexGuard<'_, Inner<N>> {
        // a panic inside was reported by the guard of the C library; the state machines are
        // consistent between calls
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner<N>>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Says that the queue pair has something in its send ring.
    pub fn announce(&self, front: &Front) {
        if front.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(front.index());
        self.has_pending.store(true, Ordering::SeqCst);
    }

    /// Transmits what was announced, if nobody has the lock; whoever has it does it otherwise.
    pub fn transmit_pending(&self, now: Instant, memory: &MemoryTable) -> Option<Instant> {
        let mut deadline = None;
        while self.has_pending.load(Ordering::SeqCst) {
            let mut inner = self.try_lock()?;
            self.take_pending(&mut inner);
            inner.transmit(now, memory);
            inner.deliver_events();
            deadline = inner.next_deadline(now);
        }
        deadline
    }

    /// One lock section: what was posted, what arrived, what is due, what must leave.
    /// Returns how many packets arrived.
    pub fn serve_locked(&self, inner: &mut Inner<N>, now: Instant, memory: &MemoryTable) -> usize {
        self.take_pending(inner);
        let packets = inner.receive(now, memory);
        inner.engine.handle_timeout(now, memory);
        inner.release_delayed(now);
        inner.transmit(now, memory);
        inner.deliver_events();
        packets
    }

    /// Serves if nobody has the lock. `None` means that somebody else is serving.
    pub fn serve(&self, now: Instant, memory: &MemoryTable) -> Option<Served> {
        let mut served = {
            let mut inner = self.try_lock()?;
            let packets = self.serve_locked(&mut inner, now, memory);
            Served {
                packets,
                deadline: inner.next_deadline(now),
            }
        };
        // somebody may have posted while the lock was held and gone away
        if let Some(deadline) = self.transmit_pending(now, memory) {
            served.deadline = Some(deadline);
        }
        Some(served)
    }

    /// Leaves a stamp: somebody polls, the background thread may sleep.
    pub fn stamp_poll(&self, now: Instant) {
        self.last_poll_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Takes note of a poll that found something or nothing, and says for how many nanoseconds
    /// polls have been finding nothing.
    pub fn idle_for(&self, now: Instant, is_idle: bool) -> u64 {
        if !is_idle {
            self.idle_since_ns.store(0, Ordering::Relaxed);
            return 0;
        }
        match self.idle_since_ns.load(Ordering::Relaxed) {
            0 => {
                self.idle_since_ns.store(now.as_nanos(), Ordering::Relaxed);
                0
            }
            since => now.as_nanos().saturating_sub(since),
        }
    }

    /// When somebody last polled.
    pub fn last_poll(&self) -> Instant {
        Instant::from_nanos(self.last_poll_ns.load(Ordering::Relaxed))
    }

    fn take_pending(&self, inner: &mut Inner<N>) {
        if !self.has_pending.swap(false, Ordering::SeqCst) {
            return;
        }
        let announced =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for index in announced {
            let Some(front) = inner.fronts.get(&index).cloned() else {
                continue;
            };
            // before the ring is emptied: a post that comes now announces itself again
            front.announced.store(false, Ordering::Release);
            inner.hand_over(&front);
        }
    }
}

/// What a lock section found.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Packets that arrived.
    pub packets: usize,
    /// When it must be served again at the latest.
    pub deadline: Option<Instant>,
}

impl<N: Network> Inner<N> {
    /// When this must be served again, whatever arrives.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let blocked = (!self.blocked.is_empty())
            .then(|| Instant::from_nanos(now.as_nanos() + BLOCKED_RETRY_NS));
        let delayed = self.delayed.next_deadline().map(Instant::from_nanos);
        let arrivals = self
            .delayed_arrivals
            .next_deadline()
            .map(Instant::from_nanos);
        [self.engine.next_deadline(), delayed, arrivals, blocked]
            .into_iter()
            .flatten()
            .min()
    }

    /// Gives what was posted to the engine.
    pub fn hand_over(&mut self, front: &Front) {
        front.hand_over(&mut self.engine, &mut self.posted);
    }

    /// The same, and tells the queue pair's ring how much room it has.
    pub fn settle(&mut self, front: &Front) {
        front.settle(&mut self.engine, &mut self.posted);
    }

    /// Readable when another process passed a packet on to us.
    pub fn steering_fd(&self) -> Option<BorrowedFd<'_>> {
        self.steering.as_ref().map(Steering::fd)
    }

    /// Counters of the tap, with rxe's names.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Takes what arrived, a bounded number of datagrams. Returns the number of packets.
    fn receive(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut packets = 0;
        for _ in 0..DATAGRAMS_PER_SECTION {
            match self.network.receive(&mut self.receive) {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => {
                    tracing::warn!(%errno, "the receive socket failed");
                    break;
                }
            }
            let receive = std::mem::take(&mut self.receive.bytes);
            let segment_size = self.receive.segment_size.max(1);
            for bytes in receive[..self.receive.length].chunks(segment_size) {
                packets += 1;
                self.arrive(now, bytes, memory);
            }
            self.receive.bytes = receive;
        }
        packets + self.take_delayed_arrivals(now, memory) + self.receive_steered(now, memory)
    }

    /// Packets that arrived at another process of this host and were passed on.
    fn receive_steered(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut packets = 0;
        while let Some(packet) = self.steering.as_mut().and_then(Steering::receive) {
            packets += 1;
            if let Ok(parsed) = Packet::parse(&packet.bytes) {
                // verified by who passed it on, with its original addresses
                self.hand_in(now, &parsed, &packet.meta, memory);
            }
            if packets == DATAGRAMS_PER_SECTION {
                break;
            }
        }
        packets
    }

    /// What the fault plan makes of a packet that arrived.
    fn arrive(&mut self, now: Instant, bytes: &[u8], memory: &MemoryTable) {
        let meta = self.receive.meta;
        let port = self.receive.source_port;
        match self.tap.incoming(now.as_nanos(), bytes) {
            Verdict::Pass => self.check(now, bytes, &meta, port, memory),
            Verdict::Drop => {}
            Verdict::Duplicate => {
                self.check(now, bytes, &meta, port, memory);
                self.check(now, bytes, &meta, port, memory);
            }
            Verdict::Corrupt { bit } => {
                let mut damaged = bytes.to_vec();
                flip(&mut damaged, bit);
                self.check(now, &damaged, &meta, port, memory);
            }
            Verdict::Delay { until_ns } => {
                let arrival = Arrival {
                    bytes: bytes.to_vec(),
                    meta,
                    source_port: port,
                };
                if self.delayed_arrivals.push(until_ns, arrival).is_err() {
                    self.tap.dropped(DropReason::FaultInjected);
                }
            }
        }
    }

    /// Packets whose arrival was delayed until now.
    fn take_delayed_arrivals(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut packets = 0;
        while let Some(arrival) = self.delayed_arrivals.pop_due(now.as_nanos()) {
            packets += 1;
            self.check(
                now,
                &arrival.bytes,
                &arrival.meta,
                arrival.source_port,
                memory,
            );
        }
        packets
    }

    /// From bytes to a packet that is ours. spec: IBA 9.6.1, A17.3
    fn check(
        &mut self,
        now: Instant,
        bytes: &[u8],
        meta: &PathMeta,
        port: u16,
        memory: &MemoryTable,
    ) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.tap.dropped(DropReason::from(error)),
        };
        if !self.sealer.verify(meta, port, bytes) {
            return self.tap.dropped(DropReason::BadIcrc);
        }
        if packet.bth().destination.slot() != self.slot {
            let slot = packet.bth().destination.slot();
            let passed = self
                .steering
                .as_mut()
                .is_some_and(|steering| steering.pass_on(slot, meta, bytes, now.as_nanos()));
            return self.tap.foreign(passed);
        }
        self.hand_in(now, &packet, meta, memory);
    }

    fn hand_in(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &MemoryTable,
    ) {
        match self.engine.handle_datagram(now, packet, meta, memory) {
            engine::Outcome::Delivered => self.tap.received(),
            engine::Outcome::Foreign => self.tap.dropped(DropReason::ForeignSlot),
            engine::Outcome::Dropped(reason) => self.tap.dropped(drop_reason(reason)),
        }
    }

    /// Seals and sends until the engine has nothing more or the kernel no room.
    pub fn transmit(&mut self, now: Instant, memory: &MemoryTable) {
        if !self.retry_blocked() {
            return;
        }
        loop {
            let mut burst = std::mem::take(&mut self.burst);
            burst.clear();
            self.engine.poll_transmit(now, memory, &mut burst);
            let is_done = burst.is_empty();
            if !is_done {
                self.send_burst(now, &mut burst, memory);
            }
            self.burst = burst;
            if is_done || !self.blocked.is_empty() {
                return;
            }
        }
    }

    /// Sends what the kernel had no room for; whether all of it left.
    fn retry_blocked(&mut self) -> bool {
        while let Some(run) = self.blocked.front() {
            let outgoing = OutgoingRun {
                bytes: &run.bytes,
                segment_size: run.segment_size,
                path: &run.path,
                dest: run.dest,
            };
            if matches!(self.network.transmit(&outgoing), SendOutcome::WouldBlock) {
                return false;
            }
            self.blocked.pop_front();
        }
        true
    }

    fn send_burst(&mut self, now: Instant, burst: &mut Burst, memory: &MemoryTable) {
        let mut from = 0;
        while from < burst.packets().len() {
            let Some(path) = self.engine.path(burst.packets()[from].path).copied() else {
                debug_assert!(false, "packets of a burst have paths");
                from += 1;
                continue;
            };
            let count = self.run_length(&burst.packets()[from..], &path);
            match self.send_run(now, burst, from..from + count, &path, memory) {
                Ok(()) => from += count,
                Err(RunFault::Gather(at)) => {
                    // its memory is gone: this work request or answer fails, and what the same
                    // side of the queue pair wanted to send behind it must not leave
                    let origin = burst.packets()[at].origin;
                    self.engine.transmit_failed(now, origin, memory);
                    burst.discard(at, |packet| {
                        packet.origin.qp == origin.qp
                            && packet.origin.is_response == origin.is_response
                    });
                }
                Err(RunFault::GsoRefused) => self.without_gso.push(path),
            }
        }
    }

    /// How many packets may share a datagram here.
    fn run_length(&self, packets: &[engine::PacketOut], path: &Path) -> usize {
        // with a fault plan each packet may be damaged or delayed, so each is finished alone
        if self.tap.has_plan() || self.without_gso.contains(path) {
            1
        } else {
            next_run(packets)
        }
    }

    fn send_run(
        &mut self,
        now: Instant,
        burst: &Burst,
        range: std::ops::Range<usize>,
        path: &Path,
        memory: &MemoryTable,
    ) -> Result<(), RunFault> {
        let dest = burst.packets()[range.start].dest;
        let port = match self.network.source_port(path, dest) {
            Ok(port) => port,
            Err(errno) => {
                tracing::warn!(%errno, "no transmit socket");
                self.tap.dropped(DropReason::SendFailed);
                return Ok(());
            }
        };
        let count = range.len();
        let sealed = match self.sealer.seal(burst, range, memory, path, port) {
            Ok(sealed) => sealed,
            Err(SealFault { packet }) => return Err(RunFault::Gather(packet)),
        };
        let run = OutgoingRun {
            bytes: sealed.bytes,
            segment_size: sealed.segment_size,
            path,
            dest,
        };
        if self.tap.has_plan() {
            let verdict = self.tap.outgoing(now.as_nanos(), run.bytes);
            let mut held = OwnedRun::of(&run);
            return self.apply(now, verdict, &mut held);
        }
        if !self.blocked.is_empty() {
            self.tap.sent(count);
            self.blocked.push_back(OwnedRun::of(&run));
            return Ok(());
        }
        match self.network.transmit(&run) {
            SendOutcome::Sent => self.tap.sent(count),
            SendOutcome::WouldBlock => {
                self.tap.sent(count);
                self.blocked.push_back(OwnedRun::of(&run));
            }
            SendOutcome::GsoRefused if count > 1 => return Err(RunFault::GsoRefused),
            outcome => {
                tracing::debug!(?outcome, remote = %path.remote, "a run could not leave");
                self.tap.dropped(DropReason::SendFailed);
            }
        }
        Ok(())
    }

    /// Does with a single finished packet what the fault plan says.
    fn apply(
        &mut self,
        now: Instant,
        verdict: Verdict,
        run: &mut OwnedRun,
    ) -> Result<(), RunFault> {
        match verdict {
            Verdict::Pass => self.send_owned(run),
            Verdict::Drop => {}
            Verdict::Duplicate => {
                self.send_owned(run);
                self.send_owned(run);
            }
            Verdict::Corrupt { bit } => {
                flip(&mut run.bytes, bit);
                self.send_owned(run);
            }
            Verdict::Delay { until_ns } => {
                let owned = OwnedPacket {
                    bytes: run.bytes.clone(),
                    path: run.path,
                    dest: run.dest,
                };
                if self
                    .delayed
                    .push(until_ns.max(now.as_nanos()), owned)
                    .is_err()
                {
                    self.tap.dropped(DropReason::FaultInjected);
                }
            }
        }
        Ok(())
    }

    /// Sends packets whose time has come.
    pub fn release_delayed(&mut self, now: Instant) {
        while let Some(packet) = self.delayed.pop_due(now.as_nanos()) {
            let segment_size = packet.bytes.len();
            let run = OwnedRun {
                bytes: packet.bytes,
                segment_size,
                path: packet.path,
                dest: packet.dest,
            };
            self.send_owned(&run);
        }
    }

    fn send_owned(&mut self, run: &OwnedRun) {
        let outgoing = OutgoingRun {
            bytes: &run.bytes,
            segment_size: run.segment_size,
            path: &run.path,
            dest: run.dest,
        };
        match self.network.transmit(&outgoing) {
            SendOutcome::Sent => self.tap.sent(1),
            _ => self.tap.dropped(DropReason::SendFailed),
        }
    }

    /// Gives the engine's events to the queue pairs' contexts.
    pub fn deliver_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            let index = match event {
                AsyncEvent::StateChanged { qp, .. }
                | AsyncEvent::CommunicationEstablished(qp)
                | AsyncEvent::SendQueueDrained(qp)
                | AsyncEvent::RequestError(qp)
                | AsyncEvent::AccessError(qp)
                | AsyncEvent::Fatal(qp)
                | AsyncEvent::LastWqeReached(qp) => qp,
            };
            let Some(front) = self.fronts.get(&index).cloned() else {
                continue;
            };
            if let AsyncEvent::StateChanged { state, .. } = event {
                front.set_state(state);
                // a receive may have been posted between the flush and this store
                self.engine.flush_receives(index);
            }
            front.report(event);
        }
    }
}

/// Why a run did not leave as it was cut.
enum RunFault {
    /// The packet with this index in the burst could not be gathered.
    Gather(usize),
    /// The kernel does not segment on this route.
    GsoRefused,
}

impl OwnedRun {
    fn of(run: &OutgoingRun<'_>) -> Self {
        Self {
            bytes: run.bytes.to_vec(),
            segment_size: run.segment_size,
            path: *run.path,
            dest: run.dest,
        }
    }
}

fn flip(bytes: &mut [u8], bit: usize) {
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

fn drop_reason(reason: engine::DropReason) -> DropReason {
    match reason {
        engine::DropReason::UnknownQp => DropReason::UnknownQp,
        engine::DropReason::WrongTransport => DropReason::WrongTransport,
        engine::DropReason::WrongState => DropReason::WrongState,
        engine::DropReason::WrongAddress => DropReason::WrongAddress,
        engine::DropReason::BadPKey => DropReason::BadPKey,
        engine::DropReason::StaleResponse => DropReason::StaleResponse,
        engine::DropReason::ResponseGap => DropReason::ResponseGap,
        engine::DropReason::OutOfSequence => DropReason::OutOfSequence,
        engine::DropReason::UnknownDuplicate => DropReason::UnknownDuplicate,
        engine::DropReason::Reserved => DropReason::Reserved,
    }
}
