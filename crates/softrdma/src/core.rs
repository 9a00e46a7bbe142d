//! The device without globals and threads: memory, the shard, and the verbs on them. The process
//! runs it on sockets, the simulator on its network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::qp::transition::check_modify;
use engine::qp::{AttributeMask, Attributes, Capabilities, SendRequest, State, Transport};
use engine::{Instant, PdId, QpView, ReceiveWqe, WorkCompletion};
use tap::Tap;
use wire::{MemoryKey, Mtu, Qpn};

use crate::completion_queue::CompletionQueue;
use crate::credit::SlotCredit;
use crate::error::{Error, Result};
use crate::event_queue::EventQueue;
use crate::front::{Carrier, Front};
use crate::hold::SERVICE_BOUND_NS;
use crate::linger::LOOKS;
use crate::memory::MemoryTable;
use crate::network::Network;
use crate::pace::Pace;
use crate::receive_queue::ReceiveQueue;
use crate::send_list::SendList;
use crate::shard::{DeviceHost, Inner, Served, Server, Shard};
use crate::shared_receive_queue::{Receives, SharedReceiveQueue};
use crate::steer::Steering;

/// How often the last acknowledgement is repeated when a queue pair goes: programs exit as soon as
/// they have what they want, and if the peer lost that acknowledgement nobody is left to repeat it.
const FAREWELLS: usize = 2;

/// A poller that found nothing for so long lets others run, in nanoseconds: on a busy machine they
/// are who it waits for.
const POLITE_AFTER_NS: u64 = 50_000;

/// A program whose polls found nothing for so long waits for what they bring, in nanoseconds.
const WAIT_NS: u64 = 3_000;

/// Where the time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The kernel's monotonic clock, on a machine that is so fast.
    Monotonic(Pace),
    /// Nanoseconds that a simulator sets.
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// How fast the machine is.
    pub fn pace(&self) -> Pace {
        match self {
            Self::Monotonic(pace) => *pace,
            Self::Simulated(_) => Pace::ORDINARY,
        }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        match self {
            Self::Monotonic(_) => Instant::from_nanos(io::clock::now_ns()),
            Self::Simulated(nanoseconds) => {
                Instant::from_nanos(nanoseconds.load(Ordering::Relaxed))
            }
        }
    }
}

/// What a new queue pair is made of.
pub struct QueuePairSpec {
    /// Its transport.
    pub transport: Transport,
    /// What carries its messages; a stream is a reliable connection.
    pub carrier: Carrier,
    /// Its protection domain.
    pub pd: PdId,
    /// Index of the link that it counts for.
    pub link: u32,
    /// Completions of sends.
    pub send_cq: Arc<CompletionQueue>,
    /// Completions of receives.
    pub receive_cq: Arc<CompletionQueue>,
    /// Where its receives come from, if not from a queue of its own.
    pub shared_receives: Option<Arc<SharedReceiveQueue>>,
    /// Its sizes, as granted.
    pub capabilities: Capabilities,
    /// Bounds the messages of datagrams.
    pub port_mtu: Mtu,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
    /// Where its asynchronous events go.
    pub events: Arc<EventQueue>,
}

/// Memory and a shard.
pub struct Core<N> {
    /// All registered memory of the process.
    pub memory: Arc<MemoryTable>,
    /// The queue pairs.
    pub shard: Shard<N>,
    clock: Clock,
}

impl<N: Network> Core<N> {
    /// A device whose queue pairs have numbers of the slot that `config` names.
    pub fn new(
        config: engine::Config,
        memory: Arc<MemoryTable>,
        credit: SlotCredit,
        network: N,
        tap: Tap,
        steering: Option<Steering>,
        clock: Clock,
    ) -> Self {
        let engine = engine::Shard::new(config, credit);
        Self {
            memory,
            shard: Shard::new(config.slot, engine, network, tap, steering, clock.pace()),
            clock,
        }
    }

    /// Now, as this device has it.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// How fast the machine is.
    pub fn pace(&self) -> Pace {
        self.clock.pace()
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when the slot has no number left, [`Error::Unsupported`] for a transport
    /// that is not implemented, [`Error::NoTransport`] for one that iWARP does not have.
    pub fn create_queue_pair(&self, spec: QueuePairSpec) -> Result<Arc<Front>> {
        let receives = match &spec.shared_receives {
            Some(queue) => Receives::Shared(Arc::clone(queue)),
            None => Receives::Own(Arc::new(ReceiveQueue::new(
                spec.capabilities.receive_wr_max,
            ))),
        };
        if let Carrier::Stream { has_extensions } = spec.carrier {
            return self.create_stream(spec, receives, has_extensions);
        }
        let mut inner = self.shard.lock();
        let options = engine::QpOptions::<DeviceHost> {
            transport: spec.transport,
            pd: spec.pd,
            capabilities: spec.capabilities,
            port_mtu: spec.port_mtu,
            signal_all: spec.signal_all,
            send_cq: Arc::clone(&spec.send_cq),
            receive_cq: Arc::clone(&spec.receive_cq),
            receives: receives.clone(),
        };
        let qpn = inner.engine.create_qp(options).map_err(cannot_create)?;
        Ok(inner.put_front(qpn, spec, receives))
    }

    /// The same of iWARP.
    fn create_stream(
        &self,
        spec: QueuePairSpec,
        receives: Receives,
        extensions: bool,
    ) -> Result<Arc<Front>> {
        if spec.transport != Transport::Rc {
            return Err(Error::NoTransport(
                "a device of iWARP has reliable connections (RC) only: take one of type rxe",
            ));
        }
        let mut inner = self.shard.lock();
        let qpn = inner.engine.reserve_qpn().map_err(cannot_create)?;
        let options = engine::iwarp::Options {
            qpn,
            pd: spec.pd,
            capabilities: spec.capabilities,
            signal_all: spec.signal_all,
            send_cq: Arc::clone(&spec.send_cq),
            receive_cq: Arc::clone(&spec.receive_cq),
            receives: receives.clone(),
            extensions,
        };
        let front = inner.put_front(qpn, spec, receives);
        inner.streams.add(options, &front);
        Ok(front)
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// [`Error::Modify`] names what is wrong; nothing was changed.
    pub fn modify(
        &self,
        front: &Front,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<()> {
        let now = self.now();
        let mut inner = self.shard.lock();
        // what was posted before this call belongs to the state before it
        inner.hand_over(front);
        if front.is_stream() {
            let state = mask.contains(AttributeMask::STATE);
            let access = mask.contains(AttributeMask::ACCESS_FLAGS);
            let changes = (
                state.then_some(attributes.state),
                access.then_some(attributes.access),
            );
            let streams = &mut inner.streams;
            if !streams.modify(front.index(), now, &self.memory, changes) {
                return Err(stateless(front.state(), attributes.state));
            }
            self.shard.serve_locked(&mut inner, now, &self.memory);
            return Ok(());
        }
        let state = inner
            .engine
            .modify_qp(now, front.index(), attributes, mask, &self.memory)
            .map_err(Error::Modify)?;
        if state == State::Reset {
            front.clear();
        }
        front.set_state(state);
        self.shard.serve_locked(&mut inner, now, &self.memory);
        Ok(())
    }

    /// Puts those into the error state whose device is gone.
    pub fn lose_queue_pairs(&self, is_lost: impl Fn(&Front) -> bool) {
        self.end_queue_pairs(&mut self.shard.lock(), is_lost);
    }

    /// The same in a lock section.
    pub(crate) fn end_queue_pairs(&self, inner: &mut Inner<N>, is_lost: impl Fn(&Front) -> bool) {
        let now = self.now();
        let attributes = Attributes {
            state: State::Error,
            ..Attributes::default()
        };
        for (index, front) in inner.fronts.clone() {
            if !is_lost(&front) {
                continue;
            }
            if front.is_stream() {
                let to_error = (Some(State::Error), None);
                inner.streams.modify(index, now, &self.memory, to_error);
                continue;
            }
            // a queue pair in RESET has nothing to flush and stays there
            let (engine, mask) = (&mut inner.engine, AttributeMask::STATE);
            let _ = engine.modify_qp(now, index, &attributes, mask, &self.memory);
            front.set_state(State::Error);
        }
        inner.deliver_events();
    }

    /// Whether [`Self::modify`] would take these attributes in the present state, addresses aside.
    ///
    /// # Errors
    /// [`Error::Modify`].
    pub fn check_modify(
        &self,
        front: &Front,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<()> {
        check_modify(front.transport(), front.state(), attributes, mask)
            .map(|_| ())
            .map_err(Error::Modify)
    }

    /// Everything about a queue pair as it is now.
    pub fn query(&self, front: &Front) -> Option<QpView> {
        self.shard.lock().query(front.index())
    }

    /// Takes a queue pair away. What was posted is sent as far as it may leave now, and vanishes
    /// without completions.
    pub fn destroy_queue_pair(&self, front: &Front) {
        let mut inner = self.shard.lock();
        // what was posted just before may still wait for company
        inner.hand_over(front);
        if front.is_stream() {
            let counters = inner
                .streams
                .destroy(front.index(), self.now(), &self.memory);
            inner.outlive(front.link(), &counters.unwrap_or_default());
            inner.engine.release_qpn(front.index());
            inner.fronts.remove(&front.index());
            return;
        }
        inner.transmit(self.now(), &self.memory);
        for _ in 0..FAREWELLS {
            inner.engine.repeat_acknowledgement(front.index());
            inner.transmit(self.now(), &self.memory);
        }
        inner.release_delayed(Instant::from_nanos(u64::MAX));
        if let Some(counters) = inner.engine.counters_of(front.index()) {
            inner.outlive(front.link(), &counters);
        }
        inner.engine.destroy_qp(front.index());
        inner.fronts.remove(&front.index());
    }

    /// Posts one send work request and transmits it if nobody else has the lock.
    ///
    /// # Errors
    /// [`Error::Post`]; nothing was queued.
    pub fn post_send(&self, front: &Front, request: &SendRequest<'_>) -> Result<()> {
        self.queue_send(front, request)?;
        self.kick(front);
        Ok(())
    }

    /// Queues a send work request without transmitting; [`Self::kick`] follows.
    ///
    /// # Errors
    /// [`Error::Post`]; nothing was queued.
    pub fn queue_send(&self, front: &Front, request: &SendRequest<'_>) -> Result<()> {
        front.check_send(request)?;
        front.reserve_sends(1, || self.shard.lock().settle(front))?;
        self.place(front, std::iter::once(*request));
        Ok(())
    }

    /// Queues all sends of a list, or none; otherwise as [`Self::queue_send`].
    ///
    /// # Errors
    /// [`Error::Post`]; nothing was queued.
    pub fn queue_sends(&self, front: &Front, list: &SendList) -> Result<()> {
        for request in list.requests() {
            front.check_send(&request)?;
        }
        front.reserve_sends(list.len(), || self.shard.lock().settle(front))?;
        self.place(front, list.requests());
        Ok(())
    }

    /// Gives sends to the engine; or leaves them in the ring if somebody else serves the shard.
    fn place<'a>(&self, front: &Front, requests: impl Iterator<Item = SendRequest<'a>>) {
        let mut inner = self.shard.try_lock();
        for request in requests {
            match &mut inner {
                Some(inner) => inner.post(front, &request),
                None => front.queue_send(&request),
            }
            self.shard.hold.add(&request, front.is_stream());
        }
    }

    /// Transmits what was queued, or lets it wait for company. Returns when the shard must be
    /// served next, if that is known.
    pub fn kick(&self, front: &Front) -> Option<Instant> {
        self.shard.announce(front);
        let since_poll = || self.shard.silence_ns(self.now());
        if self.shard.hold.may_wait(since_poll) {
            return None;
        }
        let now = self.now();
        let is_polling = self.is_polling(now);
        let deadline = self.shard.transmit_pending(now, &self.memory);
        if is_polling {
            self.shard.note_poll(self.now());
        }
        deadline
    }

    /// Whether the program looked for completions a moment ago. The time that its calls spend in
    /// here does not count, or the thread would take the work from a program that is at it: where
    /// copies are slow, sending one burst may take longer than such a moment.
    fn is_polling(&self, now: Instant) -> bool {
        self.shard.silence_ns(now) < self.pace().stretch(SERVICE_BOUND_NS)
    }

    /// Transmits what waits for company: the program is about to do something else.
    pub fn flush(&self) -> Option<Instant> {
        if self.shard.has_pending() {
            self.shard.transmit_pending(self.now(), &self.memory)
        } else {
            None
        }
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`Error::ReceiveQueueFull`], or [`Error::Post`] in RESET and for too many elements;
    /// [`Error::Invalid`] if its receives come from a shared queue.
    pub fn post_receive(&self, front: &Front, wqe: ReceiveWqe) -> Result<()> {
        front.queue_receive(wqe)?;
        // after the push: either the flush that set the state saw it, or this does
        if front.state() == State::Error {
            self.shard.lock().flush_receives(front);
        }
        Ok(())
    }

    /// Takes completions; looks for new ones if there are none. `wake` is called when the
    /// background thread listens in vain, `step_aside` after so many polls without anything that
    /// others should run.
    pub fn poll(
        &self,
        queue: &CompletionQueue,
        into: &mut [WorkCompletion],
        wake: impl FnOnce(),
        step_aside: impl FnOnce(),
    ) -> usize {
        let count = queue.poll(into);
        let now = self.now();
        if self.shard.hold.recalls_thread(self.shard.silence_ns(now)) {
            wake();
        }
        self.shard.note_poll(now);
        if count > 0 || into.is_empty() {
            // acknowledgements that wait go with the answer, or with the poll that finds nothing
            if self.shard.has_posts() {
                self.shard.transmit_pending(now, &self.memory);
                self.shard.note_poll(self.now());
            }
            self.shard.idle_for(now, false);
            self.stay(queue, &into[..count]);
            return count;
        }
        let served = self.shard.serve(now, &self.memory, Server::Poller(queue));
        let count = queue.poll(into);
        let is_idle = count == 0 && served.is_none_or(|served| served.packets == 0);
        if !is_idle {
            self.shard.note_poll(self.now());
        }
        let idle = self.shard.idle_for(now, is_idle);
        if idle > self.pace().stretch(WAIT_NS) {
            self.shard.stamp_poll(now);
        }
        if idle > self.pace().stretch(POLITE_AFTER_NS) {
            step_aside();
        }
        self.stay(queue, &into[..count]);
        count
    }

    /// Looks for the peer's answer to sends that are complete, where the program would wait for it
    /// in memory and leave it to the background thread to bring it.
    fn stay(&self, queue: &CompletionQueue, taken: &[WorkCompletion]) {
        let gives_work = |taken: &WorkCompletion| taken.is_receive;
        if taken.is_empty() || taken.iter().any(gives_work) || queue.waiting() > 0 {
            return;
        }
        let linger = &self.shard.linger;
        if !linger.may_stay(self.now()) {
            return;
        }
        for _ in 0..LOOKS {
            let now = self.now();
            self.shard.note_poll(now);
            match self.shard.serve(now, &self.memory, Server::Poller(queue)) {
                Some(served) if served.packets > 0 => {
                    linger.bring(self.now());
                    return;
                }
                // somebody else is about to bring them
                None => return,
                Some(_) => std::hint::spin_loop(),
            }
        }
        linger.fail();
    }

    /// Serves the shard if nobody else does.
    pub fn serve(&self, server: Server<'_>) -> Option<Served> {
        self.shard.serve(self.now(), &self.memory, server)
    }

    /// Does what was posted and takes what has come, after whoever is at it already.
    pub fn catch_up(&self) {
        let mut inner = self.shard.lock();
        self.shard
            .serve_locked(&mut inner, self.now(), &self.memory);
    }

    /// Makes a key unusable. When this returns no packet can use the memory any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that is not registered.
    pub fn deregister(&self, key: MemoryKey) -> Result<()> {
        self.memory
            .deregister(key)
            .map_err(|_| Error::Invalid("no region has this key"))?;
        self.outlast_spans();
        Ok(())
    }

    /// Waits for the end of every span of memory that was made before.
    pub fn outlast_spans(&self) {
        // spans live within a lock section: who takes the lock once has seen the last of them
        drop(self.shard.lock());
    }
}

impl<N: Network> Inner<N> {
    /// The side of a new queue pair that programs touch.
    fn put_front(&mut self, qpn: Qpn, spec: QueuePairSpec, receives: Receives) -> Arc<Front> {
        let queues = [spec.send_cq.attach(), spec.receive_cq.attach()];
        let front = Front::new(
            qpn,
            spec.link,
            (spec.transport, spec.carrier, spec.port_mtu),
            spec.capabilities,
            receives,
            spec.events,
            queues,
        );
        let front = Arc::new(front);
        self.fronts.insert(front.index(), Arc::clone(&front));
        front
    }
}

/// A queue pair of iWARP cannot be moved so.
fn stateless(from: State, to: State) -> Error {
    match (from, to) {
        (State::Reset | State::Init | State::ReadyToReceive, State::ReadyToSend) => {
            Error::NotConnected
        }
        _ => Error::Invalid("this state comes with a connection, or goes with it"),
    }
}

fn cannot_create(error: engine::CreateError) -> Error {
    match error {
        engine::CreateError::TooMany => Error::NoRoom("queue pair"),
        engine::CreateError::Unsupported => Error::Unsupported("this transport"),
    }
}

#[cfg(test)]
mod tests;
