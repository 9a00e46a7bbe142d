//! Completions come in the order of the work requests, and exactly one for each that needs one.
//! spec: IBA 10.8.3.3

use std::collections::VecDeque;

use engine::qp::send_queue::completion_opcode;
use engine::qp::{Operation, SendFlags};
use engine::{Status, WorkCompletion};

/// One work request of a send queue as it was posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    operation: Operation,
    length: u32,
    is_signaled: bool,
}

/// The order of one send queue. Work requests are numbered from 0.
#[derive(Debug, Default)]
pub struct SendOrder {
    posted: Vec<Posted>,
    /// Those before it are complete for sure.
    completed: usize,
    failed: Option<(usize, Status)>,
}

impl SendOrder {
    /// The next work request was posted.
    pub fn post(&mut self, operation: Operation, length: u32, flags: SendFlags) {
        self.posted.push(Posted {
            operation,
            length,
            is_signaled: flags.contains(SendFlags::SIGNALED),
        });
    }

    /// How many were posted.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// All before this number are complete, with success or not.
    pub fn completed(&self) -> usize {
        self.completed
    }

    /// The first that failed, and how.
    pub fn failed(&self) -> Option<(usize, Status)> {
        self.failed
    }

    /// Takes the completion of work request `number`.
    pub fn complete(&mut self, number: usize, completion: &WorkCompletion) -> Result<(), String> {
        let Some(posted) = self.posted.get(number) else {
            return Err(format!("send {number} completes and was not posted"));
        };
        if number < self.completed {
            return Err(format!("send {number} completes again or out of order"));
        }
        let silent = &self.posted[self.completed..number];
        if let Some(skipped) = silent.iter().position(|posted| posted.is_signaled) {
            let skipped = self.completed + skipped;
            return Err(format!("send {number} completes before send {skipped}"));
        }
        let status = completion.status;
        match self.failed {
            Some((failed, _)) if status != Status::Flushed || number != self.completed => {
                return Err(format!(
                    "send {number} completes with {status:?} after send {failed} failed; \
                     next is the flush of send {}",
                    self.completed
                ));
            }
            None if status == Status::Success => {
                if !posted.is_signaled {
                    return Err(format!("send {number} completes and is not signaled"));
                }
                let opcode = completion_opcode(&posted.operation);
                if (completion.opcode, completion.length) != (opcode, posted.length) {
                    return Err(format!(
                        "send {number} of {} bytes completes as {completion:?}",
                        posted.length
                    ));
                }
            }
            None => self.failed = Some((number, status)),
            Some(_) => {}
        }
        self.completed = number + 1;
        Ok(())
    }
}

/// The order of one receive queue. Work requests are named by their ids.
#[derive(Debug, Default)]
pub struct ReceiveOrder {
    waiting: VecDeque<u64>,
    is_shared: bool,
}

impl ReceiveOrder {
    /// A queue that one queue pair takes from, or several.
    pub fn new(is_shared: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            is_shared,
        }
    }

    /// Whether several queue pairs take from it.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// A receive was posted.
    pub fn post(&mut self, id: u64) {
        self.waiting.push_back(id);
    }

    /// How many were posted and are not complete.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the completion of a receive.
    pub fn complete(&mut self, id: u64) -> Result<(), String> {
        let Some(index) = self.waiting.iter().position(|&waiting| waiting == id) else {
            return Err(format!("receive {id} completes and does not wait"));
        };
        // receives of several queue pairs may end in any order
        if index > 0 && !self.is_shared {
            let oldest = self.waiting[0];
            return Err(format!("receive {id} completes before receive {oldest}"));
        }
        self.waiting.remove(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::CompletionOpcode;
    use wire::Qpn;

    use super::*;

    fn order_of(signaled: &[bool]) -> SendOrder {
        let mut order = SendOrder::default();
        for &signaled in signaled {
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, signaled);
            order.post(Operation::Send, 4, flags);
        }
        order
    }

    fn completion(status: Status) -> WorkCompletion {
        let mut completion = WorkCompletion::success(0, CompletionOpcode::Send, 4, Qpn::default());
        completion.status = status;
        completion
    }

    #[test]
    fn unsignaled_ones_are_silent_and_the_others_in_order() {
        let success = completion(Status::Success);
        let mut order = order_of(&[false, true, true]);
        assert!(order.complete(0, &success).is_err(), "not signaled");
        assert_eq!(order.complete(1, &success), Ok(()));
        assert!(order.complete(1, &success).is_err(), "twice");
        assert!(order.complete(3, &success).is_err(), "not posted");
        assert_eq!(order.complete(2, &success), Ok(()));

        let mut order = order_of(&[true, true]);
        assert!(order.complete(1, &success).is_err(), "0 is missing");
    }

    #[test]
    fn after_an_error_each_one_is_flushed() {
        let mut order = order_of(&[false, false, false, true]);
        let failed = completion(Status::RemoteAccess);
        let flushed = completion(Status::Flushed);
        assert_eq!(order.complete(1, &failed), Ok(()), "0 had success");
        assert!(order.complete(3, &flushed).is_err(), "2 is missing");
        assert!(order.complete(2, &failed).is_err(), "a second failure");
        assert_eq!(order.complete(2, &flushed), Ok(()));
        assert_eq!(order.complete(3, &flushed), Ok(()));
        assert_eq!(order.failed(), Some((1, Status::RemoteAccess)));
    }

    #[test]
    fn receives_complete_in_order_unless_shared() {
        let mut order = ReceiveOrder::new(false);
        let mut shared = ReceiveOrder::new(true);
        for id in 0..2 {
            order.post(id);
            shared.post(id);
        }
        assert!(order.complete(1).is_err());
        assert_eq!(shared.complete(1), Ok(()));
        assert!(shared.complete(1).is_err(), "twice");
    }
}
