//! Shared receive queues: one ring behind a leaf lock, for any number of queue pairs of any lane.
//! spec: IBA 10.2.9
//!
//! A responder takes one work request by value and owns it until its completion, so the lock is
//! held for one push or pop and never asked for again. What was taken is complete in the order of
//! its own queue pair; between queue pairs there is none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::qp::PostError;
use engine::{ReceiveSource, ReceiveWqe};

use crate::attributes::{MAX_SRQ_SGE, MAX_SRQ_WR};
use crate::error::{Error, Result};
use crate::event_queue::{EventKind, EventQueue};
use crate::receive_queue::ReceiveQueue;
use crate::ring::capacity_for;

/// A shared receive queue, held by handle.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    /// What the program knows the queue by: its events carry it.
    cookie: AtomicU64,
    /// Its number in the list of what the process has.
    number: AtomicU32,
    ring: Mutex<Ring>,
    sge_max: u32,
    /// Queue pairs that use it.
    users: AtomicU32,
    /// Asynchronous events of the context.
    events: Arc<EventQueue>,
}

#[derive(Debug)]
struct Ring {
    waiting: VecDeque<ReceiveWqe>,
    capacity: u32,
    /// Fewer waiting than this raise an event, once; 0 is not armed.
    limit: u32,
}

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveAttributes {
    /// Receives outstanding.
    pub wr_max: u32,
    /// Elements of a receive.
    pub sge_max: u32,
    /// An event tells when fewer receives wait than this; 0 once it did, or if nobody asked.
    pub limit: u32,
}

impl SharedReceiveQueue {
    /// A queue for at least `wr_max` receives of up to `sge_max` elements; an event that the limit
    /// was reached goes to `events`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond those of the device.
    pub fn new(wr_max: u32, sge_max: u32, events: Arc<EventQueue>) -> Result<Self> {
        if sge_max > MAX_SRQ_SGE {
            return Err(Error::Invalid("more elements than max_srq_sge"));
        }
        Ok(Self {
            cookie: AtomicU64::new(0),
            number: AtomicU32::new(0),
            ring: Mutex::new(Ring {
                waiting: VecDeque::new(),
                capacity: checked_capacity(wr_max)?,
                limit: 0,
            }),
            sge_max,
            users: AtomicU32::new(0),
            events,
        })
    }

    /// Sets what events carry to name this queue. Before anything can be taken.
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }

    /// Sets its number in the list of what the process has.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Its sizes as they are now.
    pub fn attributes(&self) -> SharedReceiveAttributes {
        let ring = self.lock();
        SharedReceiveAttributes {
            wr_max: ring.capacity,
            sge_max: self.sge_max,
            limit: ring.limit,
        }
    }

    /// Appends a receive.
    ///
    /// # Errors
    /// [`Error::ReceiveQueueFull`], or [`Error::Post`] for too many elements.
    pub fn post(&self, wqe: ReceiveWqe) -> Result<()> {
        if wqe.sges.len() > self.sge_max as usize {
            return Err(Error::Post(PostError::TooManySges));
        }
        let mut ring = self.lock();
        if ring.waiting.len() >= ring.capacity as usize {
            return Err(Error::ReceiveQueueFull);
        }
        ring.waiting.push_back(wqe);
        Ok(())
    }

    /// Changes what is given: its size, to at least `wr_max`, and the limit that raises an event.
    /// One that is above what waits now raises it when the next receive is taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size below what waits or below the limit, and for a limit above the
    /// size; nothing was changed.
    pub fn modify(&self, wr_max: Option<u32>, limit: Option<u32>) -> Result<()> {
        let mut ring = self.lock();
        let capacity = match wr_max {
            Some(wr_max) if (wr_max as usize) < ring.waiting.len() => {
                return Err(Error::Invalid("more receives wait than are to fit"));
            }
            Some(wr_max) if limit.is_none() && wr_max < ring.limit => {
                return Err(Error::Invalid("the limit is above the new size"));
            }
            Some(wr_max) => checked_capacity(wr_max)?,
            None => ring.capacity,
        };
        let limit = limit.unwrap_or(ring.limit);
        if limit > capacity {
            return Err(Error::Invalid("the limit is above the size"));
        }
        (ring.capacity, ring.limit) = (capacity, limit);
        Ok(())
    }

    /// Counts a queue pair that uses the queue, until the value is dropped.
    pub fn attach(self: &Arc<Self>) -> SharedReceiveUse {
        self.users.fetch_add(1, Ordering::AcqRel);
        SharedReceiveUse(Arc::clone(self))
    }

    /// Ends its events, before it is destroyed: takes back queued ones, waits for the program to
    /// acknowledge the others. May block; hold no lock.
    ///
    /// # Errors
    /// [`Error::Busy`], and nothing was done.
    pub fn close(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy("the shared receive queue"));
        }
        self.events.retire(self.cookie());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // nothing between two consistent states can panic
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveSource for SharedReceiveQueue {
    fn take(&self) -> Option<ReceiveWqe> {
        let mut ring = self.lock();
        let taken = ring.waiting.pop_front()?;
        if ring.waiting.len() < ring.limit as usize {
            ring.limit = 0;
            drop(ring);
            self.events
                .push(EventKind::SharedReceiveLimit, self.cookie());
        }
        Some(taken)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// The use of a shared receive queue by one queue pair.
#[derive(Debug)]
pub struct SharedReceiveUse(Arc<SharedReceiveQueue>);

impl Drop for SharedReceiveUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where a queue pair takes its receives from.
#[derive(Clone, Debug)]
pub enum Receives {
    /// A queue of its own.
    Own(Arc<ReceiveQueue>),
    /// One of several queue pairs.
    Shared(Arc<SharedReceiveQueue>),
}

impl Receives {
    /// The number of the queue, if it is a shared one.
    pub(crate) fn shared_number(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Shared(queue) => Some(queue.number()),
        }
    }
}

impl ReceiveSource for Receives {
    fn take(&self) -> Option<ReceiveWqe> {
        match self {
            Self::Own(queue) => queue.take(),
            Self::Shared(queue) => queue.take(),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

fn checked_capacity(wr_max: u32) -> Result<u32> {
    if wr_max == 0 || wr_max > MAX_SRQ_WR {
        return Err(Error::Invalid(
            "a shared receive queue holds 1 to max_srq_wr receives",
        ));
    }
    Ok(capacity_for(wr_max))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use engine::Sge;
    use wire::MemoryKey;

    use super::*;

    fn queue(wr_max: u32) -> Arc<SharedReceiveQueue> {
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let queue = SharedReceiveQueue::new(wr_max, 1, events).expect("sizes within bounds");
        queue.set_cookie(7);
        Arc::new(queue)
    }

    fn wqe(id: u64) -> ReceiveWqe {
        ReceiveWqe {
            id,
            ..ReceiveWqe::default()
        }
    }

    /// How many events of the limit wait.
    fn reached(queue: &SharedReceiveQueue) -> usize {
        let events = std::iter::from_fn(|| queue.events.try_next());
        events
            .inspect(|event| {
                assert_eq!(
                    (event.kind, event.cookie),
                    (EventKind::SharedReceiveLimit, 7)
                );
                queue.events.acknowledge(event.cookie, 1);
            })
            .count()
    }

    #[test]
    fn first_in_first_out_up_to_its_size() {
        let queue = queue(2);
        assert_eq!(queue.attributes().wr_max, 3);
        for id in 1..=3 {
            queue.post(wqe(id)).expect("there is room");
        }
        assert!(matches!(queue.post(wqe(4)), Err(Error::ReceiveQueueFull)));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(taken, [wqe(1), wqe(2), wqe(3)]);
        let sge = Sge {
            address: 0,
            length: 0,
            key: MemoryKey(0),
        };
        let long = ReceiveWqe {
            id: 5,
            sges: [sge, sge].into_iter().collect(),
        };
        assert!(matches!(queue.post(long), Err(Error::Post(_))));
    }

    #[test]
    fn the_limit_raises_one_event_when_fewer_wait() {
        let queue = queue(7);
        (0..4).for_each(|id| queue.post(wqe(id)).expect("there is room"));
        queue.modify(None, Some(3)).expect("below the size");
        queue.take();
        assert_eq!((reached(&queue), queue.attributes().limit), (0, 3));
        queue.take();
        assert_eq!((reached(&queue), queue.attributes().limit), (1, 0));
        queue.take();
        assert_eq!(reached(&queue), 0, "once");
    }

    #[test]
    fn a_limit_above_what_waits_is_reached_by_the_next_take() {
        let queue = queue(7);
        queue.post(wqe(0)).expect("there is room");
        queue.modify(None, Some(5)).expect("below the size");
        assert_eq!(reached(&queue), 0);
        assert!(queue.take().is_some());
        assert_eq!(reached(&queue), 1);
        queue.modify(None, Some(5)).expect("below the size");
        assert!(queue.take().is_none());
        assert_eq!(reached(&queue), 0, "nothing was taken");
    }

    #[test]
    fn sizes_that_do_not_fit_change_nothing() {
        let queue = queue(7);
        (0..4).for_each(|id| queue.post(wqe(id)).expect("there is room"));
        for (wr_max, limit) in [
            (Some(3), None),
            (Some(0), None),
            (Some(MAX_SRQ_WR + 1), None),
            (None, Some(8)),
            (Some(4), Some(8)),
        ] {
            let refused = queue.modify(wr_max, limit);
            assert!(
                matches!(refused, Err(Error::Invalid(_))),
                "{wr_max:?} {limit:?}"
            );
        }
        assert_eq!(
            (queue.attributes().wr_max, queue.attributes().limit),
            (7, 0)
        );
        queue.modify(Some(12), Some(12)).expect("both fit");
        assert_eq!(
            (queue.attributes().wr_max, queue.attributes().limit),
            (15, 12)
        );
        assert!(queue.modify(Some(8), None).is_err(), "below the limit");
    }

    #[test]
    fn it_is_busy_while_queue_pairs_use_it() {
        let queue = queue(1);
        let user = queue.attach();
        assert!(matches!(queue.close(), Err(Error::Busy(_))));
        drop(user);
        assert!(queue.close().is_ok());
    }

    #[test]
    fn several_threads_take_each_receive_once_and_in_order() {
        const COUNT: u64 = 10_000;
        let queue = queue(COUNT as u32);
        let takes = || {
            let mut taken = Vec::new();
            while taken.last() < Some(&COUNT) {
                match queue.take() {
                    Some(wqe) => taken.push(wqe.id),
                    None => thread::yield_now(),
                }
            }
            taken
        };
        let mut all: Vec<u64> = thread::scope(|scope| {
            let takers = [scope.spawn(takes), scope.spawn(takes)];
            for id in 0..COUNT {
                queue.post(wqe(id)).expect("there is room");
            }
            // one for each, to end with
            queue.post(wqe(COUNT)).expect("there is room");
            queue.post(wqe(COUNT + 1)).expect("there is room");
            takers
                .map(|taker| taker.join().expect("it does not panic"))
                .into_iter()
                .inspect(|taken| assert!(taken.is_sorted()))
                .flatten()
                .collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..COUNT + 2).collect::<Vec<_>>());
    }
}
