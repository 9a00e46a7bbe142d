//! Sends that are posted together: one lock, one run where sizes allow.

use engine::Sge;
use engine::qp::{Addressee, Operation, Payload, RemoteMemory, SendFlags, SendRequest};

use crate::error::Error;
use crate::queue_pair::QueuePair;

/// Sends that are posted together.
pub struct Batch<'a> {
    qp: &'a QueuePair,
    requests: Vec<BatchedRequest>,
}

struct BatchedRequest {
    id: u64,
    operation: Operation,
    flags: SendFlags,
    sge: Sge,
    to: Option<Addressee>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(qp: &'a QueuePair) -> Self {
        Self {
            qp,
            requests: Vec::new(),
        }
    }

    /// Adds a WRITE of `from` to `to`.
    pub fn write(&mut self, from: Sge, to: RemoteMemory) -> Posting<'_> {
        self.add(Operation::Write(to), from)
    }

    /// Adds a READ of `from` into `to`.
    pub fn read(&mut self, to: Sge, from: RemoteMemory) -> Posting<'_> {
        self.add(Operation::Read(from), to)
    }

    /// Adds a SEND.
    pub fn send(&mut self, from: Sge) -> Posting<'_> {
        self.add(Operation::Send, from)
    }

    /// Adds a COMPARE and SWAP; the old value comes to `result`.
    pub fn compare_swap(
        &mut self,
        result: Sge,
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Posting<'_> {
        self.add(
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            },
            result,
        )
    }

    /// Adds a FETCH and ADD; the old value comes to `result`.
    pub fn fetch_add(&mut self, result: Sge, remote: RemoteMemory, add: u64) -> Posting<'_> {
        self.add(Operation::FetchAdd { remote, add }, result)
    }

    fn add(&mut self, operation: Operation, sge: Sge) -> Posting<'_> {
        let request = BatchedRequest {
            id: 0,
            operation,
            flags: SendFlags::empty(),
            sge,
            to: None,
        };
        self.requests.push(request);
        // ok: pushed on the line above
        Posting(self.requests.last_mut().expect("just pushed"))
    }

    /// Posts all of them in order.
    ///
    /// # Errors
    /// The first that was refused, and how many before it were accepted.
    pub fn post(self) -> std::result::Result<(), BatchError> {
        let mut outcome = Ok(());
        for (accepted, request) in self.requests.iter().enumerate() {
            let queued = self.qp.queue_send(&SendRequest {
                id: request.id,
                operation: request.operation,
                flags: request.flags,
                payload: Payload::Sges(std::slice::from_ref(&request.sge)),
                to: request.to.as_ref(),
            });
            if let Err(cause) = queued {
                outcome = Err(BatchError { accepted, cause });
                break;
            }
        }
        self.qp.flush_sends();
        outcome
    }
}

/// Some of a batch was refused.
#[derive(Debug, thiserror::Error)]
#[error("{accepted} work requests were accepted, then: {cause}")]
pub struct BatchError {
    /// How many were accepted before.
    pub accepted: usize,
    /// Why the next was not.
    #[source]
    pub cause: Error,
}

/// A work request being written down.
pub struct Posting<'a>(&'a mut BatchedRequest);

impl Posting<'_> {
    /// The program's number.
    pub fn id(self, id: u64) -> Self {
        self.0.id = id;
        self
    }

    /// Completes with a completion.
    pub fn signaled(self) -> Self {
        self.0.flags |= SendFlags::SIGNALED;
        self
    }

    /// Waits for READs and atomics before it.
    pub fn fenced(self) -> Self {
        self.0.flags |= SendFlags::FENCE;
        self
    }

    /// Goes to this queue pair; every datagram needs it.
    pub fn to(self, to: Addressee) -> Self {
        self.0.to = Some(to);
        self
    }

    /// Carries immediate data; a SEND or WRITE then says so, anything else is left as it is.
    pub fn immediate(self, value: u32) -> Self {
        let bytes = value.to_be_bytes();
        self.0.operation = match self.0.operation {
            Operation::Send => Operation::SendImmediate(bytes),
            Operation::Write(remote) => Operation::WriteImmediate(remote, bytes),
            other => other,
        };
        self
    }
}
