//! The lock section: one engine, its sockets and buffers, served by whoever has the lock.
//!
//! Nobody waits behind a preempted holder on the data path: posters and pollers `try_lock`. What
//! they could not hand over stays in the queue pair's send ring and is announced in `pending`,
//! which the holder looks at again after it has let go.
//!
//! Lock order of the crate: control → connections → shard → receive queue → completion queue →
//! channel.

mod arrive;
mod transmit;

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use engine::qp::SendRequest;
use engine::{AsyncEvent, Burst, Counters, Host, Instant, Path, QpIndex, QpView};
use tap::{Delayed, Tap};

use crate::completion_queue::CompletionQueue;
use crate::counting::{self, Ledger};
use crate::credit::SlotCredit;
use crate::error::{Error, Result};
use crate::front::Front;
use crate::gsi::{self, Inbox};
use crate::hold::Hold;
use crate::iwarp::Streams;
use crate::lane::Attendant;
use crate::linger::Linger;
use crate::memory::MemoryTable;
use crate::network::{Network, RxBuffer};
use crate::pace::Pace;
use crate::seal::Sealer;
use crate::send_list::SendList;
use crate::shard::arrive::Arrival;
use crate::shard::transmit::OwnedRun;
use crate::shared_receive_queue::Receives;
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
    type Receives = Receives;
    type Completions = Arc<CompletionQueue>;
    type Credit = SlotCredit;
}

/// One slot of the process: a lock around [`Inner`], and what is looked at without it.
pub struct Shard<N> {
    inner: Mutex<Inner<N>>,
    /// Queue pairs with something in their send ring.
    pending: Mutex<Vec<QpIndex>>,
    has_pending: AtomicBool,
    /// Whether messages of connection management wait.
    has_messages: AtomicBool,
    /// Whether there is an epoll of streams.
    has_streams: AtomicBool,
    /// Whether something is known to wait at the steering socket.
    is_steered: AtomicBool,
    /// The thread that deals with them.
    reader: OnceLock<Arc<Attendant>>,
    /// What may wait for company.
    pub hold: Hold,
    /// Whether polls stay for the peer's answer.
    pub linger: Linger,
    /// Changes when there is something new to count.
    counted_mark: AtomicU64,
    /// When somebody was last inside a poll, in nanoseconds of the clock.
    last_poll_ns: AtomicU64,
    /// Whether the last to find packets was not a poll.
    is_neglected: AtomicBool,
    /// Since when polls find nothing; 0 while they do.
    idle_since_ns: AtomicU64,
}

/// What the lock protects.
pub struct Inner<N> {
    /// The queue pairs.
    pub engine: engine::Shard<DeviceHost>,
    /// Those of iWARP, with their connections.
    pub(crate) streams: Streams,
    /// Where datagrams come and go.
    pub network: N,
    /// The side of each queue pair that programs touch without the lock.
    pub fronts: HashMap<QpIndex, Arc<Front>>,
    /// Messages of connection management that wait for who manages the connections.
    pub gsi: Inbox,
    slot: u8,
    receive: RxBuffer,
    burst: Burst,
    sealer: Sealer,
    tap: Tap,
    delayed: Delayed<OwnedRun>,
    delayed_arrivals: Delayed<Arrival>,
    /// Sealed runs that the kernel had no room for, oldest first; at most one burst.
    blocked: VecDeque<OwnedRun>,
    /// Routes on which the kernel does not segment.
    without_gso: Vec<Path>,
    steering: Option<Steering>,
    pub(crate) ledger: Ledger,
    /// Datagrams that the own receive buffer had no room for, as last seen.
    dropped_seen: u64,
    /// Kept for its memory.
    posted: SendList,
    /// Sections so far.
    sections: u32,
    /// Of the next packet from QP 1.
    management_psn: u32,
}

impl<N: Network> Shard<N> {
    /// A shard for `slot` with an engine that draws its numbers from `seed`.
    pub fn new(
        slot: u8,
        engine: engine::Shard<DeviceHost>,
        network: N,
        tap: Tap,
        steering: Option<Steering>,
        pace: Pace,
    ) -> Self {
        Self {
            inner: Mutex::new(Inner {
                engine,
                streams: Streams::default(),
                network,
                fronts: HashMap::new(),
                gsi: Inbox::default(),
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
                ledger: Ledger::default(),
                dropped_seen: 0,
                posted: SendList::default(),
                sections: 0,
                management_psn: 0,
            }),
            pending: Mutex::new(Vec::new()),
            has_pending: AtomicBool::new(false),
            has_messages: AtomicBool::new(false),
            has_streams: AtomicBool::new(false),
            is_steered: AtomicBool::new(false),
            reader: OnceLock::new(),
            hold: Hold::new(pace),
            linger: Linger::new(pace),
            counted_mark: AtomicU64::new(0),
            last_poll_ns: AtomicU64::new(0),
            is_neglected: AtomicBool::new(false),
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

    /// Says that the queue pair has something to send, in its ring or in the engine.
    pub fn announce(&self, front: &Front) {
        if front.has_sends() && !front.announced.swap(true, Ordering::AcqRel) {
            self.pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(front.index());
        }
        // a line that stays shared while one post follows another
        if !self.has_pending.load(Ordering::SeqCst) {
            self.has_pending.store(true, Ordering::SeqCst);
        }
    }

    /// Transmits what was posted and what is owed, if nobody has the lock; whoever has it does it
    /// otherwise.
    pub fn transmit_pending(&self, now: Instant, memory: &MemoryTable) -> Option<Instant> {
        let mut deadline = None;
        while self.has_pending() {
            let mut inner = self.try_lock()?;
            self.take_pending(&mut inner);
            inner.transmit(now, memory);
            self.leave(&mut inner);
            deadline = inner.next_deadline(now);
        }
        deadline
    }

    /// Whether something that was posted waits to be transmitted.
    pub fn has_posts(&self) -> bool {
        self.has_pending.load(Ordering::SeqCst)
    }

    /// Whether anything does: what was posted, or what is owed.
    pub fn has_pending(&self) -> bool {
        self.has_posts() || self.hold.owes()
    }

    /// Whether there are streams to listen to.
    pub(crate) fn has_streams(&self) -> bool {
        self.has_streams.load(Ordering::Acquire)
    }

    /// The steering socket is readable: the next section looks at it, whose turn it may be.
    pub(crate) fn expect_steered(&self) {
        self.is_steered.store(true, Ordering::Release);
    }

    /// Names the thread that deals with messages of connection management, once.
    pub(crate) fn set_reader(&self, reader: &Arc<Attendant>) {
        // the first one stays
        let _ = self.reader.set(Arc::clone(reader));
    }

    /// The messages of connection management that came, oldest first.
    pub fn take_messages(&self) -> Vec<gsi::Arrival> {
        if !self.has_messages.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut inner = self.lock();
        self.has_messages.store(false, Ordering::Release);
        std::iter::from_fn(|| inner.gsi.take()).collect()
    }

    /// One lock section: what was posted, what arrived, what is due, what must leave.
    pub fn serve_locked(&self, inner: &mut Inner<N>, now: Instant, memory: &MemoryTable) {
        self.section(inner, now, memory, Server::Anybody);
    }

    /// Serves if nobody has the lock. `None` means that somebody else is serving.
    pub fn serve(&self, now: Instant, memory: &MemoryTable, server: Server<'_>) -> Option<Served> {
        let mut inner = self.try_lock()?;
        let packets = self.section(&mut inner, now, memory, server);
        let mut served = Served {
            packets,
            deadline: inner.next_deadline(now),
        };
        drop(inner);
        // somebody may have posted while the lock was held and gone away
        if self.has_posts()
            && let Some(deadline) = self.transmit_pending(now, memory)
        {
            served.deadline = Some(deadline);
        }
        Some(served)
    }

    fn section(
        &self,
        inner: &mut Inner<N>,
        now: Instant,
        memory: &MemoryTable,
        server: Server<'_>,
    ) -> usize {
        let had_pending = self.take_pending(inner);
        if self.is_steered.load(Ordering::Relaxed) && self.is_steered.swap(false, Ordering::Acquire)
        {
            inner.look_for_steered();
        }
        let reads = inner.streams.serve(now, memory, server);
        let packets = inner.receive(now, memory, server);
        inner.engine.handle_timeout(now, memory);
        inner.release_delayed(now);
        let waits = !had_pending && server.lets_wait() && self.hold.defer(packets);
        if !waits {
            inner.transmit(now, memory);
        }
        self.leave(inner);
        if reads + packets > 0 {
            let is_neglected = !matches!(server, Server::Poller(_));
            self.set_neglected(is_neglected);
            if is_neglected {
                self.linger.bring(now);
            }
        }
        reads + packets
    }

    /// What is told to those who look without the lock.
    fn leave(&self, inner: &mut Inner<N>) {
        inner.deliver_events();
        if !inner.gsi.is_empty()
            && !self.has_messages.swap(true, Ordering::AcqRel)
            && let Some(reader) = self.reader.get()
        {
            // whoever served may have nothing to do with connections
            reader.wake.wake();
        }
        if inner.streams.fd().is_some() && !self.has_streams() {
            self.has_streams.store(true, Ordering::Release);
        }
        let is_in_flight = inner.engine.is_in_flight() || inner.streams.is_in_flight();
        self.hold.set_in_flight(is_in_flight);
        let mark = counting::mark(&inner.tap).wrapping_add(inner.streams.visits());
        self.counted_mark.store(mark, Ordering::Relaxed);
    }

    /// Changes when there is something new to count.
    pub fn counted_mark(&self) -> u64 {
        self.counted_mark.load(Ordering::Relaxed)
    }

    /// Leaves a stamp: somebody polls and brings what comes, the background thread may sleep.
    pub fn stamp_poll(&self, now: Instant) {
        self.set_neglected(false);
        self.last_poll_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Leaves a stamp, unless packets had to be brought by somebody else. A program that takes what
    /// is there at once, as sends on a stream are complete when they leave, may wait for the
    /// peer's bytes in memory then.
    pub fn note_poll(&self, now: Instant) {
        if !self.is_neglected.load(Ordering::Relaxed) {
            self.last_poll_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Says whether the last to find packets was a poll.
    fn set_neglected(&self, is_neglected: bool) {
        // the line stays shared while nothing changes
        if self.is_neglected.load(Ordering::Relaxed) != is_neglected {
            self.is_neglected.store(is_neglected, Ordering::Relaxed);
        }
    }

    /// For how many nanoseconds nobody polled.
    pub fn silence_ns(&self, now: Instant) -> u64 {
        now.as_nanos()
            .saturating_sub(self.last_poll_ns.load(Ordering::Relaxed))
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

    /// Hands what was posted to the engine; whether there was anything, or something is owed.
    fn take_pending(&self, inner: &mut Inner<N>) -> bool {
        let had_posts = self.has_pending.swap(false, Ordering::SeqCst);
        let owed = self.hold.owes();
        if had_posts || owed {
            self.hold.take();
        }
        if !had_posts {
            return owed;
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
        true
    }
}

/// Who serves.
#[derive(Clone, Copy)]
pub enum Server<'a> {
    /// A program that polls this queue. Completions end the section, and then what answers few
    /// packets is left to the program's own answer, or to its next poll.
    Poller(&'a CompletionQueue),
    /// The background thread of a program that was polling a moment ago: what answers few packets
    /// is left to the program for a while.
    Behind,
    /// Anybody else.
    Anybody,
}

impl Server<'_> {
    /// Whether the section need not look for more.
    pub(crate) fn has_enough(self) -> bool {
        matches!(self, Self::Poller(queue) if queue.waiting() > 0)
    }

    /// Whether answers may wait for company.
    fn lets_wait(self) -> bool {
        match self {
            Self::Poller(_) => self.has_enough(),
            Self::Behind => true,
            Self::Anybody => false,
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
        let streams = self.streams.next_deadline(now);
        let packets = self.engine.next_deadline();
        [packets, streams, delayed, arrivals, blocked]
            .into_iter()
            .flatten()
            .min()
    }

    /// Gives what was posted to the engine.
    pub fn hand_over(&mut self, front: &Front) {
        if front.is_stream() {
            front.hand_over(&mut self.streams, &mut self.posted);
        } else {
            front.hand_over(&mut self.engine, &mut self.posted);
        }
    }

    /// Gives one more send to the engine, after what was posted before it.
    pub fn post(&mut self, front: &Front, request: &SendRequest<'_>) {
        if front.has_sends() {
            self.hand_over(front);
        }
        if front.is_stream() {
            front.post(&mut self.streams, request);
        } else {
            front.post(&mut self.engine, request);
        }
    }

    /// Tells the queue pair's ring how much room it has.
    pub fn settle(&mut self, front: &Front) {
        self.hand_over(front);
        if front.is_stream() {
            front.settle(&self.streams);
        } else {
            front.settle(&self.engine);
        }
    }

    /// Flushes the receives that were posted to a queue pair in the error state.
    pub fn flush_receives(&mut self, front: &Front) {
        if front.is_stream() {
            self.streams.flush_receives(front.index());
        } else {
            self.engine.flush_receives(front.index());
        }
    }

    /// Everything about the queue pair with this index.
    pub fn query(&self, index: QpIndex) -> Option<QpView> {
        let packets = self.engine.query_qp(index);
        packets.or_else(|| self.streams.query(index))
    }

    /// What the queue pair with this index has counted.
    pub(crate) fn counters_of(&self, index: QpIndex) -> Option<Counters> {
        let packets = self.engine.counters_of(index);
        packets.or_else(|| self.streams.counters_of(index))
    }

    /// The streams, for a queue pair that is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other.
    pub(crate) fn streams_of(&mut self, front: &Front) -> Result<&mut Streams> {
        if front.is_stream() {
            Ok(&mut self.streams)
        } else {
            Err(Error::Invalid("the queue pair is not one of iWARP"))
        }
    }

    /// Whether no queue pair has packets.
    pub(crate) fn has_only_streams(&self) -> bool {
        let streams = self.streams.count();
        streams > 0 && self.fronts.len() == streams
    }

    /// Readable when another process passed a packet on to us.
    pub fn steering_fd(&self) -> Option<BorrowedFd<'_>> {
        self.steering.as_ref().map(Steering::fd)
    }

    /// Counters of the tap, with rxe's names.
    pub fn tap(&self) -> &Tap {
        &self.tap
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

/// Inverts one bit, as a fault plan says; the tap names bits inside the packet.
fn flip(bytes: &mut [u8], bit: usize) {
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}
