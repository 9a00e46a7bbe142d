//! The lanes of a process: one from its first queue pair on, and more, up to the number of
//! processors, when several threads make queue pairs and the broker has slots to spare.
//!
//! A lane is never taken away, so its index, which completion queues remember, stays its own.

use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::completion_queue::CompletionQueue;
use crate::error::{Error, Result};
use crate::lane::{Lane, Place};

/// More would take slots from other programs and hardly make one faster.
const LANES_MAX: usize = 16;

thread_local! {
    /// Where this thread made its last queue pair. Of another process object it is a hint as good
    /// as any.
    static OWN_LANE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// See the module.
pub struct Lanes {
    lanes: [OnceLock<Arc<Lane>>; LANES_MAX],
    max: usize,
    choosing: Mutex<()>,
}

impl Lanes {
    /// None yet, and one for each of so many processors at most.
    pub(crate) fn new(processors: usize) -> Self {
        Self {
            lanes: [const { OnceLock::new() }; LANES_MAX],
            max: processors.clamp(1, LANES_MAX),
            choosing: Mutex::new(()),
        }
    }

    /// The lane with this index if it is there.
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Lane>> {
        self.lanes.get(index)?.get()
    }

    /// The lanes of a set, one bit each, lowest first.
    pub(crate) fn of(&self, set: u64) -> impl Iterator<Item = &Arc<Lane>> {
        bits(set).filter_map(|index| self.get(index))
    }

    /// All lanes. One that is missed was not there when this was called, and sees everything that
    /// the caller stored before.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Lane>> {
        fence(Ordering::SeqCst); // pairs with that of `add`
        self.lanes.iter().map_while(OnceLock::get)
    }

    /// A place for a queue pair that completes to these queues, which remember the lane. `make`
    /// makes the lane with the index that it is given.
    ///
    /// # Errors
    /// What `make` says when there is no lane at all.
    pub(crate) fn place(
        &self,
        queues: [&CompletionQueue; 2],
        make: impl FnOnce(usize) -> Result<Lane>,
    ) -> Result<Place> {
        let _choosing = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        let load: Vec<u32> = self.all().map(|lane| lane.queue_pairs()).collect();
        let fed = queues.map(CompletionQueue::shards);
        let index = match choose(&load, OWN_LANE.get(), fed, self.max) {
            Choice::Fed(index) => index,
            Choice::Own(index) => {
                OWN_LANE.set(Some(index));
                index
            }
            Choice::New { otherwise } => {
                let index = match (make(load.len()), otherwise) {
                    (Ok(lane), _) => self.add(load.len(), lane),
                    (Err(error), Some(index)) => {
                        tracing::debug!(%error, "no lane for another thread");
                        index
                    }
                    (Err(error), None) => return Err(error),
                };
                OWN_LANE.set(Some(index));
                index
            }
        };
        for queue in queues {
            queue.add_shard(index as u32); // below LANES_MAX
        }
        self.get(index).map(Place::new).ok_or(Error::DeviceFatal)
    }

    /// The first lane, made if there is none: connection management uses it.
    ///
    /// # Errors
    /// What `make` says.
    pub(crate) fn first(&self, make: impl FnOnce(usize) -> Result<Lane>) -> Result<&Arc<Lane>> {
        let _choosing = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.get(0).is_none() {
            self.add(0, make(0)?);
        }
        self.get(0).ok_or(Error::DeviceFatal)
    }

    /// Shows a new lane to everybody. Within the lock.
    fn add(&self, index: usize, lane: Lane) -> usize {
        let attendant = Arc::clone(&lane.attendant);
        // the lock makes this the only one who sets it
        let _ = self.lanes[index].set(Arc::new(lane));
        fence(Ordering::SeqCst); // pairs with that of `all`
        attendant.wake.wake();
        index
    }
}

/// Which lane a queue pair gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// One that completes to the same queue: whoever polls it has one lane to serve.
    Fed(usize),
    /// The calling thread's.
    Own(usize),
    /// A new one for the calling thread, or this one if none can be made.
    New { otherwise: Option<usize> },
}

/// `load` has the queue pairs of each lane, `own` is where the calling thread made its last one,
/// `fed` are the lanes that complete to the send queue and to the receive queue.
fn choose(load: &[u32], own: Option<usize>, fed: [u64; 2], max: usize) -> Choice {
    let own = own.filter(|index| *index < load.len());
    for set in fed {
        let has_own = own.filter(|index| set & 1 << index != 0);
        if let Some(index) = has_own.or_else(|| bits(set).next()) {
            return Choice::Fed(index);
        }
    }
    if let Some(index) = own {
        return Choice::Own(index);
    }
    let least_used = (0..load.len()).min_by_key(|index| load[*index]);
    match least_used {
        Some(index) if load[index] == 0 || load.len() >= max => Choice::Own(index),
        otherwise => Choice::New { otherwise },
    }
}

/// The indices of the bits of a set, lowest first.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        lowest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNFED: [u64; 2] = [0, 0];

    #[test]
    fn each_thread_gets_a_lane_while_there_are_processors() {
        let none = Choice::New { otherwise: None };
        assert_eq!(choose(&[], None, UNFED, 2), none);
        assert_eq!(
            choose(&[5], None, UNFED, 2),
            Choice::New { otherwise: Some(0) }
        );
        assert_eq!(choose(&[5, 2], Some(0), UNFED, 2), Choice::Own(0));
        assert_eq!(choose(&[5, 2], Some(1), UNFED, 4), Choice::Own(1));
        assert_eq!(
            choose(&[5, 2], None, UNFED, 4),
            Choice::New { otherwise: Some(1) }
        );
    }

    #[test]
    fn more_threads_than_lanes_share_the_least_used() {
        assert_eq!(choose(&[3, 2, 2], None, UNFED, 3), Choice::Own(1));
        assert_eq!(choose(&[1], None, UNFED, 1), Choice::Own(0));
    }

    #[test]
    fn an_empty_lane_comes_before_a_new_one() {
        assert_eq!(choose(&[3, 0], None, UNFED, 16), Choice::Own(1));
    }

    #[test]
    fn a_queue_that_is_fed_decides_and_the_send_queue_first() {
        assert_eq!(choose(&[3, 2], Some(0), [0b10, 0b01], 16), Choice::Fed(1));
        assert_eq!(choose(&[3, 2], Some(0), [0, 0b10], 16), Choice::Fed(1));
        assert_eq!(choose(&[3, 0], None, [0b01, 0], 16), Choice::Fed(0));
        assert_eq!(choose(&[3, 2], Some(1), [0b11, 0], 16), Choice::Fed(1));
    }

    #[test]
    fn a_lane_of_a_process_object_that_is_gone_means_nothing() {
        assert_eq!(
            choose(&[1], Some(1), UNFED, 2),
            Choice::New { otherwise: Some(0) }
        );
    }

    #[test]
    fn sets_are_gone_through_from_below() {
        assert_eq!(bits(0).count(), 0);
        assert_eq!(bits(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
    }
}
