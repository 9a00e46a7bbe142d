//! Receive queues: a ring behind a leaf lock. Posting does not take the shard's lock, and a
//! responder takes one work request at a time, by value.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::{ReceiveSource, ReceiveWqe};

use crate::ring::Full;

/// The receive queue of one queue pair, held by handle.
#[derive(Debug)]
pub struct ReceiveQueue {
    ring: Mutex<VecDeque<ReceiveWqe>>,
    capacity: usize,
}

impl ReceiveQueue {
    /// A queue for `capacity` work requests, as the program was told.
    pub fn new(capacity: u32) -> Self {
        Self {
            ring: Mutex::default(),
            capacity: capacity as usize,
        }
    }

    /// Appends a work request.
    ///
    /// # Errors
    /// [`Full`] if none can be taken.
    pub fn post(&self, wqe: ReceiveWqe) -> Result<(), Full> {
        let mut ring = self.lock();
        if ring.len() >= self.capacity {
            return Err(Full);
        }
        ring.push_back(wqe);
        Ok(())
    }

    /// Forgets all work requests: the queue pair went to RESET.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Work requests that wait for a message.
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// How many it can hold.
    pub fn capacity(&self) -> u32 {
        // it was made from a u32
        self.capacity as u32
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ReceiveWqe>> {
        // nothing between two consistent states can panic
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveSource for ReceiveQueue {
    fn take(&self) -> Option<ReceiveWqe> {
        self.lock().pop_front()
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wqe(id: u64) -> ReceiveWqe {
        ReceiveWqe {
            id,
            ..ReceiveWqe::default()
        }
    }

    #[test]
    fn first_in_first_out_up_to_its_capacity() {
        let queue = ReceiveQueue::new(3);
        for id in 1..=3 {
            assert_eq!(queue.post(wqe(id)), Ok(()));
        }
        assert_eq!(queue.post(wqe(4)), Err(Full));
        assert_eq!(queue.take().map(|wqe| wqe.id), Some(1));
        assert_eq!(queue.post(wqe(4)), Ok(()));
        let rest: Vec<_> = std::iter::from_fn(|| queue.take())
            .map(|wqe| wqe.id)
            .collect();
        assert_eq!(rest, [2, 3, 4]);
    }

    #[test]
    fn a_queue_of_no_work_requests_takes_none() {
        assert_eq!(ReceiveQueue::new(0).post(wqe(1)), Err(Full));
    }

    #[test]
    fn reset_forgets() {
        let queue = ReceiveQueue::new(2);
        queue.post(wqe(1)).expect("there is room");
        queue.clear();
        assert_eq!(queue.waiting(), 0);
        assert!(queue.take().is_none());
    }
}
