//! Completion queues: a ring behind a leaf lock, one-shot arming, and an overrun that is
//! remembered.
//!
//! Sections to read first: IBA 11.4.2 (poll, request notification), 10.8.2 (overrun).
//!
//! A completion is appended and the arming looked at under one lock, so none can fall between a
//! poll that found nothing and the arming that follows. The event itself is pushed after the lock
//! was let go: it costs a system call, and a poller should not wait for that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{CompletionSink, Overrun, WorkCompletion};

use crate::completion_channel::{Attachment, CompletionChannel};
use crate::event_queue::{EventKind, EventQueue};
use crate::ring::capacity_for;

/// The most completions that a queue can be asked to hold, `max_cqe` of the device. Memory is taken
/// as they come.
pub const COMPLETIONS_MAX: u32 = (1 << 22) - 1;

/// Why a completion queue cannot be made, resized or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionQueueError {
    /// Not 1 to [`COMPLETIONS_MAX`], or fewer than are in the queue.
    #[error("a completion queue holds 1 to 4194303 completions, and at least those that are in it")]
    InvalidSize,
    /// Queue pairs use it.
    #[error("queue pairs use the completion queue")]
    Busy,
}

/// A completion queue. Shared by handle: several queue pairs push, any thread polls.
#[derive(Debug)]
pub struct CompletionQueue {
    /// What the program knows the queue by: its events carry it.
    cookie: AtomicU64,
    ring: Mutex<Ring>,
    /// Bit i is set if shard i may push here.
    shards: AtomicU64,
    /// Queue pairs that use it, twice if for both directions.
    users: AtomicU32,
    /// Asynchronous events of the context.
    events: Arc<EventQueue>,
}

#[derive(Debug)]
struct Ring {
    completions: VecDeque<WorkCompletion>,
    capacity: usize,
    armed: Armed,
    /// A completion was lost. There is no way back. spec: IBA 10.8.2
    is_overrun: bool,
    /// Until the queue is closed.
    channel: Option<Attachment>,
}

/// What wakes the program; the wider of two wishes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    Not,
    Solicited,
    Any,
}

impl CompletionQueue {
    /// A queue for at least `size` completions; events go to `channel`, an overrun to `events`.
    ///
    /// # Errors
    /// [`CompletionQueueError::InvalidSize`]
    pub fn new(
        size: u32,
        channel: Option<Arc<CompletionChannel>>,
        events: Arc<EventQueue>,
    ) -> Result<Self, CompletionQueueError> {
        let capacity = checked_capacity(size)?;
        Ok(Self {
            cookie: AtomicU64::new(0),
            ring: Mutex::new(Ring {
                completions: VecDeque::new(),
                capacity: capacity as usize,
                armed: Armed::Not,
                is_overrun: false,
                channel: channel.map(Attachment::new),
            }),
            shards: AtomicU64::new(0),
            users: AtomicU32::new(0),
            events,
        })
    }

    /// Sets what events carry to name this queue. Before anything can push.
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// What events carry to name this queue.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }

    /// How many completions it holds, as the program was told.
    pub fn capacity(&self) -> u32 {
        // at most COMPLETIONS_MAX
        self.lock().capacity as u32
    }

    /// Queues that complete to it: a queue pair has two.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    /// Completions that wait to be polled.
    pub fn waiting(&self) -> usize {
        self.lock().completions.len()
    }

    /// Takes the oldest completions, as many as there are places in `into`. Returns how many.
    pub fn poll(&self, into: &mut [WorkCompletion]) -> usize {
        let mut ring = self.lock();
        let count = ring.completions.len().min(into.len());
        for (place, completion) in into.iter_mut().zip(ring.completions.drain(..count)) {
            *place = completion;
        }
        count
    }

    /// One event for the next completion that is added after this call; with `solicited_only` for
    /// the next one that is solicited or an error. Completions that are there raise none.
    pub fn request_notify(&self, solicited_only: bool) {
        let wish = if solicited_only {
            Armed::Solicited
        } else {
            Armed::Any
        };
        let mut ring = self.lock();
        ring.armed = ring.armed.max(wish);
    }

    /// Whether the next completion may raise an event.
    pub fn is_armed(&self) -> bool {
        self.lock().armed != Armed::Not
    }

    /// Changes the size to at least `size`; returns what was granted.
    ///
    /// # Errors
    /// [`CompletionQueueError::InvalidSize`]
    pub fn resize(&self, size: u32) -> Result<u32, CompletionQueueError> {
        let capacity = checked_capacity(size)?;
        let mut ring = self.lock();
        if (size as usize) < ring.completions.len() {
            return Err(CompletionQueueError::InvalidSize);
        }
        ring.capacity = capacity as usize;
        Ok(capacity)
    }

    /// The channel that its events go to.
    pub fn channel(&self) -> Option<Arc<CompletionChannel>> {
        self.lock()
            .channel
            .as_ref()
            .map(|attachment| Arc::clone(attachment.channel()))
    }

    /// Says that `shard` (below 64) may push here.
    pub fn add_shard(&self, shard: u32) {
        self.shards.fetch_or(1 << (shard & 63), Ordering::Relaxed);
    }

    /// Shards that may push here, one bit each.
    pub fn shards(&self) -> u64 {
        self.shards.load(Ordering::Relaxed)
    }

    /// Counts a queue pair that uses the queue, until the value is dropped.
    pub fn attach(self: &Arc<Self>) -> CompletionQueueUse {
        self.users.fetch_add(1, Ordering::AcqRel);
        CompletionQueueUse(Arc::clone(self))
    }

    /// Ends its events, before it is destroyed: takes back queued ones, waits for the program to
    /// acknowledge the others, lets the channel go. May block; hold no lock.
    ///
    /// # Errors
    /// [`CompletionQueueError::Busy`], and nothing was done.
    pub fn close(&self) -> Result<(), CompletionQueueError> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(CompletionQueueError::Busy);
        }
        let cookie = self.cookie();
        let channel = self.lock().channel.take();
        if let Some(attachment) = &channel {
            attachment.channel().events.retire(cookie);
        }
        self.events.retire(cookie);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // nothing between two consistent states can panic
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompletionSink for CompletionQueue {
    fn push(&self, completion: WorkCompletion, solicited: bool) -> Result<(), Overrun> {
        let mut ring = self.lock();
        if ring.is_overrun {
            return Err(Overrun);
        }
        if ring.completions.len() >= ring.capacity {
            ring.is_overrun = true;
            drop(ring);
            self.events
                .push(EventKind::CompletionQueueError, self.cookie());
            return Err(Overrun);
        }
        ring.completions.push_back(completion);
        let wakes = match ring.armed {
            Armed::Not => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if wakes {
            ring.armed = Armed::Not;
            let channel = ring
                .channel
                .as_ref()
                .map(|attachment| Arc::clone(attachment.channel()));
            drop(ring);
            if let Some(channel) = channel {
                channel.events.push((), self.cookie());
            }
        }
        Ok(())
    }
}

/// The use of a completion queue by one queue pair in one direction.
#[derive(Debug)]
pub struct CompletionQueueUse(Arc<CompletionQueue>);

impl CompletionQueueUse {
    /// The queue.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.0
    }
}

impl Drop for CompletionQueueUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn checked_capacity(size: u32) -> Result<u32, CompletionQueueError> {
    if size == 0 || size > COMPLETIONS_MAX {
        return Err(CompletionQueueError::InvalidSize);
    }
    Ok(capacity_for(size))
}

#[cfg(test)]
mod tests;
