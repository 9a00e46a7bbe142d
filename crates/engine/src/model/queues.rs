//! Queues of the model.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::completion::{Overrun, WorkCompletion};
use crate::host::{CompletionSink, ReceiveSource, ReceiveWqe};

/// A receive queue or shared receive queue; a clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct ReceiveQueue {
    waiting: Rc<RefCell<VecDeque<ReceiveWqe>>>,
    capacity: usize,
    is_shared: bool,
}

impl ReceiveQueue {
    /// A queue of one queue pair.
    pub fn new(capacity: usize) -> Self {
        Self {
            waiting: Rc::default(),
            capacity,
            is_shared: false,
        }
    }

    /// A queue that several queue pairs take from.
    pub fn shared(capacity: usize) -> Self {
        Self {
            is_shared: true,
            ..Self::new(capacity)
        }
    }

    /// Posts a receive; gives it back if the queue is full.
    pub fn post(&self, wqe: ReceiveWqe) -> Result<(), ReceiveWqe> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == self.capacity {
            return Err(wqe);
        }
        waiting.push_back(wqe);
        Ok(())
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

impl ReceiveSource for ReceiveQueue {
    fn take(&self) -> Option<ReceiveWqe> {
        self.waiting.borrow_mut().pop_front()
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// A completion queue; a clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Rc<RefCell<Completions>>,
}

#[derive(Debug)]
struct Completions {
    waiting: VecDeque<WorkCompletion>,
    capacity: usize,
    /// Pushes that would have woken a program that waits for solicited completions only.
    solicited: u64,
    is_overrun: bool,
}

impl CompletionQueue {
    /// A queue for `capacity` completions.
    pub fn new(capacity: usize) -> Self {
        Self {
            inner: Rc::new(RefCell::new(Completions {
                waiting: VecDeque::new(),
                capacity,
                solicited: 0,
                is_overrun: false,
            })),
        }
    }

    /// Takes the oldest completion.
    pub fn poll(&self) -> Option<WorkCompletion> {
        self.inner.borrow_mut().waiting.pop_front()
    }

    /// Takes all completions, oldest first.
    pub fn drain(&self) -> Vec<WorkCompletion> {
        self.inner.borrow_mut().waiting.drain(..).collect()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.inner.borrow().waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.inner.borrow().waiting.is_empty()
    }

    /// How many solicited completions were pushed since the queue was made.
    pub fn solicited(&self) -> u64 {
        self.inner.borrow().solicited
    }

    /// Whether a completion was lost; the queue takes no more then. spec: IBA 11.6.3.3
    pub fn is_overrun(&self) -> bool {
        self.inner.borrow().is_overrun
    }
}

impl CompletionSink for CompletionQueue {
    fn push(&self, completion: WorkCompletion, solicited: bool) -> Result<(), Overrun> {
        let mut inner = self.inner.borrow_mut();
        if inner.is_overrun || inner.waiting.len() == inner.capacity {
            inner.is_overrun = true;
            return Err(Overrun);
        }
        inner.waiting.push_back(completion);
        inner.solicited += u64::from(solicited);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wire::Qpn;

    use super::*;
    use crate::completion::CompletionOpcode;

    fn completion(id: u64) -> WorkCompletion {
        WorkCompletion::success(id, CompletionOpcode::Send, 0, Qpn::truncated(1))
    }

    #[test]
    fn a_full_completion_queue_is_in_error_for_good() {
        let queue = CompletionQueue::new(1);
        assert_eq!(queue.push(completion(1), false), Ok(()));
        assert_eq!(queue.push(completion(2), false), Err(Overrun));
        assert_eq!(queue.poll().map(|c| c.id), Some(1));
        assert_eq!(queue.push(completion(3), false), Err(Overrun));
        assert!(queue.is_overrun());
    }

    #[test]
    fn a_clone_of_a_receive_queue_is_the_same_queue() {
        let queue = ReceiveQueue::new(1);
        let other = queue.clone();
        assert_eq!(queue.post(ReceiveWqe::default()), Ok(()));
        assert!(other.post(ReceiveWqe::default()).is_err(), "full");
        assert_eq!(other.take(), Some(ReceiveWqe::default()));
        assert!(queue.is_empty());
    }
}
