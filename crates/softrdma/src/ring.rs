//! The send ring: what was posted and not yet given to the engine. Posting takes this leaf lock
//! only, so nobody who posts waits behind whoever serves the shard.
//!
//! A work request that was accepted here must never be refused by the engine, so the bound covers
//! both: requests in the ring and in the engine's send queue. Only who serves the shard changes the
//! latter, and tells it at the end of its section ([`SendRing::settle`]); in between the bound is
//! on the safe side.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Sge;
use engine::qp::{Operation, Payload, SendFlags, SendRequest};
use smallvec::SmallVec;

/// The queue holds as many work requests as the program was told it would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Work requests that a queue has room for if a program asks for `size`: one less than a power of
/// two, as rings of other providers have, which programs have come to expect.
pub const fn capacity_for(size: u32) -> u32 {
    // size + 1 cannot overflow to a wrong power: sizes are bounded far below by the device
    size.saturating_add(1).next_power_of_two() - 1
}

/// A send work request that outlives the call that posted it. Its scatter/gather elements stay
/// unresolved; inline data was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedSend {
    id: u64,
    operation: Operation,
    flags: SendFlags,
    payload: PostedPayload,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PostedPayload {
    Sges(SmallVec<[Sge; 2]>),
    Inline(SmallVec<[u8; 32]>),
}

impl PostedSend {
    /// As the engine takes it.
    pub fn request(&self) -> SendRequest<'_> {
        SendRequest {
            id: self.id,
            operation: self.operation,
            flags: self.flags,
            payload: match &self.payload {
                PostedPayload::Sges(sges) => Payload::Sges(sges),
                PostedPayload::Inline(bytes) => Payload::Inline(bytes),
            },
        }
    }
}

impl From<&SendRequest<'_>> for PostedSend {
    fn from(request: &SendRequest<'_>) -> Self {
        Self {
            id: request.id,
            operation: request.operation,
            flags: request.flags,
            payload: match request.payload {
                Payload::Sges(sges) => PostedPayload::Sges(SmallVec::from_slice(sges)),
                Payload::Inline(bytes) => PostedPayload::Inline(SmallVec::from_slice(bytes)),
            },
        }
    }
}

/// Many posters, one taker.
#[derive(Debug)]
pub struct SendRing {
    inner: Mutex<Inner>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Inner {
    posted: Vec<PostedSend>,
    /// Work requests that the program owns no place for: posted, drained or in the engine.
    outstanding: usize,
}

impl SendRing {
    /// For `capacity` work requests, as the program was told.
    pub fn new(capacity: u32) -> Self {
        Self {
            inner: Mutex::default(),
            capacity: capacity as usize,
        }
    }

    /// Appends a work request.
    ///
    /// # Errors
    /// [`Full`], as of the last [`settle`](Self::settle).
    pub fn push(&self, request: &SendRequest<'_>) -> Result<(), Full> {
        let mut inner = self.lock();
        if inner.outstanding >= self.capacity {
            return Err(Full);
        }
        inner.outstanding += 1;
        inner.posted.push(PostedSend::from(request));
        Ok(())
    }

    /// Appends all of them in order, or none.
    ///
    /// # Errors
    /// [`Full`] if there is not room for all, as of the last [`settle`](Self::settle).
    pub fn push_all<'a>(
        &self,
        requests: impl ExactSizeIterator<Item = SendRequest<'a>>,
    ) -> Result<(), Full> {
        let mut inner = self.lock();
        if requests.len() > self.capacity.saturating_sub(inner.outstanding) {
            return Err(Full);
        }
        inner.outstanding += requests.len();
        inner
            .posted
            .extend(requests.map(|request| PostedSend::from(&request)));
        Ok(())
    }

    /// Moves all that was posted to `into`, in order. An empty `into` costs no copy.
    pub fn drain(&self, into: &mut Vec<PostedSend>) {
        let mut inner = self.lock();
        if into.is_empty() {
            std::mem::swap(&mut inner.posted, into);
        } else {
            into.append(&mut inner.posted);
        }
    }

    /// Tells how many work requests the engine's send queue holds, after all that was drained is in
    /// it. For whoever serves the shard.
    pub fn settle(&self, in_engine: usize) {
        let mut inner = self.lock();
        inner.outstanding = inner.posted.len() + in_engine;
    }

    /// Forgets what was posted: the queue pair went to RESET, its engine side too.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Whether there is nothing to drain.
    pub fn is_empty(&self) -> bool {
        self.lock().posted.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // nothing between two consistent states can panic
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn send(id: u64, payload: Payload<'_>) -> SendRequest<'_> {
        SendRequest {
            id,
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload,
        }
    }

    fn ids(posted: &[PostedSend]) -> Vec<u64> {
        posted.iter().map(|send| send.request().id).collect()
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
        for request in [
            send(7, Payload::Sges(&sges)),
            send(8, Payload::Inline(&inline)),
        ] {
            assert_eq!(PostedSend::from(&request).request(), request);
        }
    }

    #[test]
    fn the_bound_covers_what_the_engine_holds() {
        let ring = SendRing::new(3);
        for id in 0..3 {
            assert_eq!(ring.push(&send(id, Payload::Sges(&[]))), Ok(()));
        }
        assert_eq!(ring.push(&send(3, Payload::Sges(&[]))), Err(Full));
        let mut taken = Vec::new();
        ring.drain(&mut taken);
        assert_eq!(ids(&taken), [0, 1, 2]);
        // drained is not done
        assert_eq!(ring.push(&send(3, Payload::Sges(&[]))), Err(Full));
        ring.settle(2);
        assert_eq!(ring.push(&send(3, Payload::Sges(&[]))), Ok(()));
        assert_eq!(ring.push(&send(4, Payload::Sges(&[]))), Err(Full));
        ring.clear();
        assert!(ring.is_empty());
        assert_eq!(ring.push(&send(5, Payload::Sges(&[]))), Ok(()));
    }

    #[test]
    fn all_of_a_batch_or_none() {
        let batch = |first: u64, count: u64| {
            (first..first + count)
                .map(|id| send(id, Payload::Sges(&[])))
                .collect::<Vec<_>>()
        };
        let ring = SendRing::new(3);
        assert_eq!(ring.push_all(batch(0, 4).into_iter()), Err(Full));
        assert!(ring.is_empty());
        assert_eq!(ring.push_all(batch(0, 2).into_iter()), Ok(()));
        assert_eq!(ring.push_all(batch(2, 2).into_iter()), Err(Full));
        assert_eq!(ring.push_all(batch(2, 1).into_iter()), Ok(()));
        assert_eq!(ring.push_all(batch(3, 0).into_iter()), Ok(()));
        let mut taken = Vec::new();
        ring.drain(&mut taken);
        assert_eq!(ids(&taken), [0, 1, 2]);
    }

    #[test]
    fn draining_appends() {
        let ring = SendRing::new(10);
        let mut taken = Vec::new();
        for id in 0..4 {
            ring.push(&send(id, Payload::Sges(&[])))
                .expect("there is room");
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
        let mut taken = Vec::new();
        thread::scope(|scope| {
            for thread in 0..4 {
                let ring = &ring;
                scope.spawn(move || {
                    for count in 0..EACH {
                        ring.push(&send(thread << 32 | count, Payload::Sges(&[])))
                            .expect("room for all");
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
