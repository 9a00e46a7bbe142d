//! Events that a program fetches from a descriptor: asynchronous ones of a context here, those of
//! completion queues in [`completion_channel`](crate::completion_channel), which is the same thing
//! with nothing but a cookie in each event.
//!
//! The descriptor is an eventfd that counts as a semaphore: one read is one event, and it is
//! readable exactly while an event is queued. Reading, which may block and may be cancelled, is
//! done by the caller, outside of this crate; then [`Events::pop`] gives what the token stood for.
//! The program may set `O_NONBLOCK`: nothing here reads without saying "do not wait" itself.
//!
//! Each event that was given must be acknowledged. Destroying an object takes back its queued
//! events and waits for the rest: afterwards no event can name it.

use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use engine::AsyncEvent;
use io::{Descriptor, Errno};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;

/// Asynchronous events of a context.
pub type EventQueue = Events<EventKind>;

/// What an asynchronous event says; the values of `enum ibv_event_type`. spec: IBA 11.6.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// A completion queue was overrun.
    CompletionQueueError = 0,
    /// A queue pair cannot go on.
    QueuePairFatal = 1,
    /// The responder refused a request as invalid.
    QueuePairRequestError = 2,
    /// The responder refused access.
    QueuePairAccessError = 3,
    /// The first packet arrived before RTS.
    CommunicationEstablished = 4,
    /// All that was started before SQD is done.
    SendQueueDrained = 5,
    /// The device is lost.
    DeviceFatal = 8,
    /// The interface came up.
    PortActive = 9,
    /// The interface went down.
    PortError = 10,
    /// The interface has another MAC, which the GID of iWARP is made of.
    LidChange = 11,
    /// Fewer receives are queued than the limit.
    SharedReceiveLimit = 15,
    /// No more receives will be taken for this queue pair.
    LastWqeReached = 16,
    /// The addresses of the interface changed.
    GidChange = 18,
}

impl EventKind {
    /// The event that a program sees for one of the engine, if any.
    pub const fn of(event: AsyncEvent) -> Option<Self> {
        match event {
            AsyncEvent::StateChanged { .. } => None,
            AsyncEvent::CommunicationEstablished(_) => Some(Self::CommunicationEstablished),
            AsyncEvent::SendQueueDrained(_) => Some(Self::SendQueueDrained),
            AsyncEvent::RequestError(_) => Some(Self::QueuePairRequestError),
            AsyncEvent::AccessError(_) => Some(Self::QueuePairAccessError),
            AsyncEvent::Fatal(_) => Some(Self::QueuePairFatal),
            AsyncEvent::LastWqeReached(_) => Some(Self::LastWqeReached),
        }
    }
}

/// Events queued at most. More than any program can owe: one for each armed completion queue or
/// change of state; what is over is dropped with a warning, as memory is worth more.
const QUEUED_MAX: usize = 1 << 20;

/// An event, and the object it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<K> {
    /// What happened.
    pub kind: K,
    /// What the program knows the object by; the number of the port or 0 for the device itself.
    pub cookie: u64,
}

/// A queue of events with a descriptor. Leaf lock, the last one in the order of the crate.
#[derive(Debug)]
pub struct Events<K> {
    descriptor: Descriptor,
    inner: Mutex<Inner<K>>,
    acknowledged: Condvar,
}

#[derive(Debug)]
struct Inner<K> {
    queue: VecDeque<Event<K>>,
    /// Events given and not yet acknowledged, by cookie; no entry is 0.
    owed: HashMap<u64, u64>,
}

impl<K> Events<K> {
    /// An empty queue.
    ///
    /// # Errors
    /// No descriptor is left: `EMFILE`, `ENFILE`.
    pub fn new() -> Result<Self, Errno> {
        // Low on purpose: programs watch it with `select()`.
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Self {
            descriptor: eventfd(0, flags)?.into(),
            inner: Mutex::new(Inner {
                queue: VecDeque::new(),
                owed: HashMap::new(),
            }),
            acknowledged: Condvar::new(),
        })
    }

    /// Appends an event and wakes whoever waits for the descriptor.
    pub fn push(&self, kind: K, cookie: u64) {
        // what comes back was warned of
        drop(self.offer(kind, cookie));
    }

    /// The same for who has use for an event that finds no room.
    ///
    /// # Errors
    /// The event, when too many wait.
    pub fn offer(&self, kind: K, cookie: u64) -> Result<(), K> {
        let mut inner = self.lock();
        if inner.queue.len() >= QUEUED_MAX {
            tracing::warn!(cookie, "nobody fetches events: one was dropped");
            return Err(kind);
        }
        inner.queue.push_back(Event { kind, cookie });
        // Within the lock, so that there are never more tokens than events. It cannot block: the
        // counter is far from its end.
        if let Err(errno) = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()) {
            tracing::warn!(%errno, "an event descriptor refuses writing");
        }
        Ok(())
    }

    /// The event that a token read from the descriptor stands for. `None` if it was taken back in
    /// the meantime: read again.
    pub fn pop(&self) -> Option<Event<K>> {
        let mut inner = self.lock();
        let event = inner.queue.pop_front()?;
        *inner.owed.entry(event.cookie).or_default() += 1;
        Some(event)
    }

    /// The oldest event without waiting; takes the token itself.
    pub fn try_next(&self) -> Option<Event<K>> {
        // A token without an event was left by a reader that is between read and `pop`.
        while self.take_token() {
            if let Some(event) = self.pop() {
                return Some(event);
            }
        }
        None
    }

    /// `count` events of an object were dealt with. More than were given count as all of them.
    pub fn acknowledge(&self, cookie: u64, count: u32) {
        let mut inner = self.lock();
        if let Some(owed) = inner.owed.get_mut(&cookie) {
            *owed = owed.saturating_sub(u64::from(count));
            if *owed == 0 {
                inner.owed.remove(&cookie);
                self.acknowledged.notify_all();
            }
        }
    }

    /// An object goes away: takes back its queued events and waits until every one that was given
    /// is acknowledged. Blocks for as long as the program likes; hold no lock. No event of the
    /// object may be pushed any more.
    pub fn retire(&self, cookie: u64) {
        drop(self.withdraw(cookie));
        self.wait_acknowledged(cookie);
    }

    /// Waits until every event of an object that was given is acknowledged; hold no lock.
    pub fn wait_acknowledged(&self, cookie: u64) {
        let _all_acknowledged = self
            .acknowledged
            .wait_while(self.lock(), |inner| inner.owed.contains_key(&cookie))
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Takes back the queued events of an object, oldest first.
    pub fn withdraw(&self, cookie: u64) -> Vec<K> {
        let mut inner = self.lock();
        let (withdrawn, kept) = std::mem::take(&mut inner.queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|event| event.cookie == cookie);
        inner.queue = kept;
        for _ in &withdrawn {
            // Where the token is gone, a reader has it: it will find no event and read again.
            self.take_token();
        }
        withdrawn.into_iter().map(|event| event.kind).collect()
    }

    /// Reads one token if there is one, whatever the flags of the descriptor.
    fn take_token(&self) -> bool {
        let mut token = [0; 8];
        // An offset of all ones stands for the position of the file, which an eventfd has not.
        let read = rustix::io::preadv2(
            &self.descriptor,
            &mut [IoSliceMut::new(&mut token)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        read.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // nothing between two consistent states can panic
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> AsFd for Events<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests;
