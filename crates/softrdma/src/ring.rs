//! The send ring: what was posted while somebody else served the shard, and not yet given to the
//! engine. Nobody who posts waits behind whoever serves.
//!
//! A work request that was accepted must never be refused by the engine, so room is reserved for
//! each before it goes either way. Only who has the shard's lock learns what is complete, and gives
//! the room back ([`SendRing::settle`]); in between the bound is on the safe side.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::qp::SendRequest;

use crate::send_list::SendList;

/// The queue holds as many work requests as the program was told it would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Work requests that a queue has room for if a program asks for `size`: one less than a power of
/// two, as rings of other providers have, which programs have come to expect.
pub const fn capacity_for(size: u32) -> u32 {
    // size + 1 cannot overflow to a wrong power: sizes are bounded far below by the device
    size.saturating_add(1).next_power_of_two() - 1
}

/// Many posters, one taker.
#[derive(Debug)]
pub struct SendRing {
    posted: Mutex<SendList>,
    /// Whether `posted` is not empty.
    has_posted: AtomicBool,
    /// Work requests that the program owns no place for: posted or in the engine.
    reserved: AtomicUsize,
    /// Work requests that the engine had completed when it was last asked.
    completed: AtomicU64,
    capacity: usize,
}

impl SendRing {
    /// For `capacity` work requests, as the program was told.
    pub fn new(capacity: u32) -> Self {
        Self {
            posted: Mutex::default(),
            has_posted: AtomicBool::new(false),
            reserved: AtomicUsize::new(0),
            completed: AtomicU64::new(0),
            capacity: capacity as usize,
        }
    }

    /// Reserves room for `count` work requests, all or none.
    ///
    /// # Errors
    /// [`Full`], as of the last [`settle`](Self::settle).
    pub fn reserve(&self, count: usize) -> Result<(), Full> {
        let reserved = self.reserved.fetch_add(count, Ordering::Relaxed);
        if reserved.saturating_add(count) <= self.capacity {
            return Ok(());
        }
        self.release(count);
        Err(Full)
    }

    /// Gives room back that was reserved for work requests which went nowhere.
    pub fn release(&self, count: usize) {
        self.reserved.fetch_sub(count, Ordering::Relaxed);
    }

    /// Appends a work request for which room was reserved.
    pub fn push(&self, request: &SendRequest<'_>) {
        let mut posted = self.lock();
        posted.push(request);
        self.has_posted.store(true, Ordering::Release);
    }

    /// Moves all that was posted to `into`, in order. An empty `into` costs no copy.
    pub fn drain(&self, into: &mut SendList) {
        if self.is_empty() {
            return;
        }
        let mut posted = self.lock();
        self.has_posted.store(false, Ordering::Release);
        if into.is_empty() {
            std::mem::swap(&mut *posted, into);
        } else {
            posted.requests().for_each(|request| into.push(&request));
            posted.clear();
        }
    }

    /// Gives back the room of what is complete: `completed` work requests of the engine's send
    /// queue so far. For whoever has the shard's lock.
    pub fn settle(&self, completed: u64) {
        let before = self.completed.swap(completed, Ordering::Relaxed);
        self.release(completed.wrapping_sub(before) as usize);
    }

    /// Forgets what was posted: the queue pair went to RESET, its engine side too.
    pub fn clear(&self) {
        let mut posted = self.lock();
        self.has_posted.store(false, Ordering::Release);
        self.release(posted.len());
        posted.clear();
    }

    /// Whether there is nothing to drain.
    pub fn is_empty(&self) -> bool {
        !self.has_posted.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, SendList> {
        // nothing between two consistent states can panic
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use engine::Sge;
    use engine::qp::{Operation, Payload, SendFlags};

    use super::*;

    fn send(id: u64, payload: Payload<'_>) -> SendRequest<'_> {
        SendRequest {
            id,
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload,
            to: None,
        }
    }

    fn ids(posted: &SendList) -> Vec<u64> {
        posted.requests().map(|request| request.id).collect()
    }

    #[test]
    fn capacities_that_programs_are_told() {
        // verbs-semantics: examples that the kernel's device gave
        let examples = [
            (0, 0),
            (1, 1),
            (2, 3),
            (10, 15),
            (16, 31),
            (100, 127),
            (128, 255),
        ];
        for (size, capacity) in examples {
            assert_eq!(capacity_for(size), capacity, "size {size}");
        }
        assert_eq!(capacity_for(32_767), 32_767);
    }

    #[test]
    fn a_request_comes_out_as_it_went_in() {
        let sges = [Sge {
            address: 1,
            length: 2,
            key: wire::MemoryKey(3),
        }; 3];
        let inline: Vec<u8> = (0..100).collect();
        let ring = SendRing::new(3);
        let mut taken = SendList::default();
        for request in [
            send(7, Payload::Sges(&sges)),
            send(8, Payload::Inline(&inline)),
        ] {
            ring.push(&request);
            ring.drain(&mut taken);
            assert!(taken.requests().eq([request]));
            taken.clear();
        }
    }

    #[test]
    fn the_bound_covers_what_the_engine_holds() {
        let ring = SendRing::new(3);
        assert_eq!(ring.reserve(3), Ok(()));
        for id in 0..3 {
            ring.push(&send(id, Payload::Sges(&[])));
        }
        assert_eq!(ring.reserve(1), Err(Full));
        let mut taken = SendList::default();
        ring.drain(&mut taken);
        assert_eq!(ids(&taken), [0, 1, 2]);
        assert_eq!(ring.reserve(1), Err(Full), "drained is not done");
        ring.settle(1);
        assert_eq!(ring.reserve(2), Err(Full), "all or none");
        assert_eq!(ring.reserve(1), Ok(()));
        ring.push(&send(3, Payload::Sges(&[])));
        assert_eq!(ring.reserve(1), Err(Full));
        ring.clear();
        assert!(ring.is_empty());
        assert_eq!(ring.reserve(1), Ok(()), "the engine has two, the ring none");
        assert_eq!(ring.reserve(1), Err(Full));
        // the engine forgot its two as well
        ring.settle(3);
        assert_eq!(ring.reserve(2), Ok(()));
    }

    #[test]
    fn draining_appends() {
        let ring = SendRing::new(10);
        let mut taken = SendList::default();
        for id in 0..4 {
            ring.push(&send(id, Payload::Sges(&[])));
            if id % 2 == 1 {
                ring.drain(&mut taken);
            }
        }
        assert_eq!(ids(&taken), [0, 1, 2, 3]);
    }

    #[test]
    fn posters_keep_their_own_order() {
        const EACH: u64 = 2_000;
        let ring = SendRing::new(4 * EACH as u32);
        let mut taken = SendList::default();
        thread::scope(|scope| {
            for thread in 0..4 {
                let ring = &ring;
                scope.spawn(move || {
                    for count in 0..EACH {
                        ring.push(&send(thread << 32 | count, Payload::Sges(&[])));
                    }
                });
            }
            while taken.len() < 4 * EACH as usize {
                ring.drain(&mut taken);
                thread::yield_now();
            }
        });
        for thread in 0..4 {
            let own = ids(&taken).into_iter().filter(|id| id >> 32 == thread);
            assert!(
                own.map(|id| id & 0xffff_ffff).eq(0..EACH),
                "thread {thread}"
            );
        }
    }
}
