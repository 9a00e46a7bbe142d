//! Completion queues of programs: the queue itself, and progress for who polls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use engine::{Status, WorkCompletion};

use crate::completion_channel::CompletionChannel;
use crate::completion_queue::{CompletionQueue as Queue, CompletionQueueError};
use crate::device::Context;
use crate::error::{Error, Result};
use crate::registry;

/// A queue that was polled and not armed for so long is no longer watched: arming anew costs a
/// wake.
const WATCH_NS: u64 = 10_000_000;

/// Completions taken from the ring at once by [`CompletionQueue::wait`].
const BATCH: usize = 64;

/// A completion queue. spec: IBA 10.8
pub struct CompletionQueue {
    context: Arc<Context>,
    queue: Arc<Queue>,
    /// Its number in the registry.
    number: u32,
    /// Lanes whose threads were asked to watch the sockets for it, one bit each.
    watched: AtomicU64,
    /// When they were asked last, in nanoseconds of the clock.
    watched_at_ns: AtomicU64,
    /// The lane that was served first, of several.
    turn: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Arc<Context>,
        size: u32,
        channel: Option<&Arc<CompletionChannel>>,
        vector: u32,
    ) -> Result<Self> {
        context.check()?;
        if vector as usize >= io::thread::cores() {
            return Err(Error::Invalid("the device has fewer completion vectors"));
        }
        let queue = Queue::new(size, channel.cloned(), Arc::clone(&context.events))
            .map_err(Error::CompletionQueue)?;
        let queue = Arc::new(queue);
        let number = context.process.registry.queues.add(registry::Queue {
            context: context.number,
            queue: Arc::downgrade(&queue),
        });
        Ok(Self {
            context: Arc::clone(context),
            queue,
            number,
            watched: AtomicU64::new(0),
            watched_at_ns: AtomicU64::new(0),
            turn: AtomicU32::new(0),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Sets what events carry to name this queue.
    pub fn set_cookie(&self, cookie: u64) {
        self.queue.set_cookie(cookie);
    }

    /// Takes completions, and looks for new ones when there are none. Returns how many.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> usize {
        let process = &self.context.process;
        if io::fork::generation() != process.generation() {
            return 0;
        }
        if self.watched.load(Ordering::Relaxed) != 0 {
            self.take_back();
        }
        let lanes = self.queue.shards();
        let first = self.next_turn(lanes);
        let mut count = 0;
        for set in [lanes & first, lanes & !first] {
            for lane in process.lanes.of(set) {
                // once there are completions the other lanes only transmit
                let room = if count == 0 { &mut *into } else { &mut [] };
                let wake = || lane.attendant.wake.wake();
                let step_aside = || process.courtesy.step_aside();
                count += lane.core.poll(&self.queue, room, wake, step_aside);
            }
        }
        count
    }

    /// Which lanes are to be served before the rest: of several, each is the first in turn, so that
    /// one that always has completions does not keep the others waiting.
    fn next_turn(&self, lanes: u64) -> u64 {
        if lanes.count_ones() < 2 {
            return !0;
        }
        let last = self.turn.load(Ordering::Relaxed);
        let above = lanes & (!1 << last);
        let next = if above == 0 { lanes } else { above }.trailing_zeros();
        self.turn.store(next, Ordering::Relaxed);
        !0 << next
    }

    /// A program that has stopped to wait for events serves itself from now on.
    fn take_back(&self) {
        let since = io::clock::now_ns().saturating_sub(self.watched_at_ns.load(Ordering::Relaxed));
        if since > WATCH_NS && !self.queue.is_armed() {
            self.unwatch();
            // another thread may have armed it in between
            self.watch_if_armed();
        }
    }

    fn unwatch(&self) {
        let watched = self.watched.swap(0, Ordering::SeqCst);
        for lane in self.context.process.lanes.of(watched) {
            lane.attendant.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Hands the sockets of its lanes to their threads: the program will wait in its own epoll,
    /// which the library cannot see.
    fn watch(&self) {
        self.watched_at_ns
            .store(io::clock::now_ns(), Ordering::Relaxed);
        let lanes = self.queue.shards();
        let watched = self.watched.fetch_or(lanes, Ordering::SeqCst);
        let process = &self.context.process;
        for lane in process.lanes.of(lanes & !watched) {
            lane.attendant.watched.fetch_add(1, Ordering::SeqCst);
        }
        for lane in process.lanes.of(lanes) {
            lane.attendant.wake_before_blocking();
        }
    }

    /// The same if an event was asked for.
    pub(crate) fn watch_if_armed(&self) {
        if self.queue.is_armed() && self.queue.channel().is_some() {
            self.watch();
        }
    }

    /// One event for the next completion; with `solicited_only` for the next solicited one or
    /// error.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn request_notify(&self, solicited_only: bool) -> Result<()> {
        let process = &self.context.process;
        if io::fork::generation() != process.generation() {
            return Err(Error::Forked);
        }
        self.queue.request_notify(solicited_only);
        if self.queue.channel().is_some() {
            self.watch();
        }
        for lane in process.lanes.of(self.queue.shards()) {
            lane.attendant.wake_before(lane.core.flush());
        }
        Ok(())
    }

    /// Changes the size to at least `size`.
    ///
    /// # Errors
    /// [`Error::CompletionQueue`].
    pub fn resize(&self, size: u32) -> Result<u32> {
        let process = &self.context.process;
        if io::fork::generation() == process.generation() {
            // what was posted before may have completions, which count
            for lane in process.lanes.of(self.queue.shards()) {
                lane.core.catch_up();
            }
        }
        self.queue.resize(size).map_err(Error::CompletionQueue)
    }

    /// Ends its events: waits until those given are acknowledged. C's `destroy` calls it.
    ///
    /// # Errors
    /// [`Error::CompletionQueue`] while queue pairs use it.
    pub fn close(&self) -> Result<()> {
        self.queue.close().map_err(Error::CompletionQueue)
    }

    /// Polls until there is a completion or `timeout` passed, and gives all that are there; empty
    /// after the timeout.
    pub fn wait(&self, timeout: Duration) -> Vec<Completion> {
        let deadline = std::time::Instant::now() + timeout;
        let empty =
            WorkCompletion::success(0, engine::CompletionOpcode::Send, 0, wire::Qpn::default());
        let mut taken = [empty; BATCH];
        loop {
            let count = self.poll(&mut taken);
            if count > 0 {
                return taken[..count].iter().copied().map(Completion).collect();
            }
            if std::time::Instant::now() >= deadline {
                return Vec::new();
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.unwatch();
        let process = &self.context.process;
        // a child must not touch its parent's lock
        if io::fork::generation() == process.generation() {
            process.registry.queues.remove(self.number);
        }
    }
}

/// A completion, which is a result.
#[derive(Clone, Copy, Debug)]
pub struct Completion(pub WorkCompletion);

impl Completion {
    /// What was done, or why not.
    ///
    /// # Errors
    /// [`WorkError`] for any status but success.
    pub fn result(&self) -> std::result::Result<WorkCompletion, WorkError> {
        match self.0.status {
            Status::Success => Ok(self.0),
            status => Err(WorkError {
                id: self.0.id,
                status,
                vendor: self.0.vendor_error,
            }),
        }
    }
}

/// A work request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {id} failed: {status:?}")]
pub struct WorkError {
    /// The program's number of it.
    pub id: u64,
    /// How.
    pub status: Status,
    /// A finer reason; 0 where there is none.
    pub vendor: u32,
}

impl From<CompletionQueueError> for Error {
    fn from(error: CompletionQueueError) -> Self {
        Self::CompletionQueue(error)
    }
}
