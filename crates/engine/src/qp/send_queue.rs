//! The ring of send work requests: what a program posted and is not complete yet.
//!
//! A work request keeps scatter/gather elements as they were posted. They are looked up again at
//! each transmission, so nothing here proves anything about memory.

use core::ops::Range;

use smallvec::SmallVec;

use crate::access::Sge;
use crate::completion::CompletionOpcode;
use crate::qp::position::Position;
use crate::qp::{Operation, Payload, PostError, SendFlags, SendRequest};

/// Longest message. spec: IBA 9.7.7 (max_msg_sz of every port here)
pub const MESSAGE_MAX: u64 = 1 << 31;

/// Counts the work requests of a queue pair; tells two at the same place of the ring apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WqeNumber(pub u64);

impl WqeNumber {
    /// The one posted after it.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The one posted so many after it.
    #[must_use]
    pub const fn plus(self, count: usize) -> Self {
        Self(self.0 + count as u64)
    }
}

/// A send work request, from post to completion.
#[derive(Debug)]
pub struct SendWqe {
    /// The program's number.
    pub id: u64,
    /// What.
    pub operation: Operation,
    /// How.
    pub flags: SendFlags,
    /// Bytes of payload or of the result, at most [`MESSAGE_MAX`].
    pub length: u32,
    /// Where they are; empty if inline.
    pub sges: SmallVec<[Sge; 2]>,
    /// The payload itself, of an inline work request.
    pub inline: Vec<u8>,
    /// Position of its first packet; says nothing before it is started.
    pub first: Position,
    /// PSNs that it takes; says nothing before it is started.
    pub packets: u32,
    /// Packets of answer that one request of a READ asks for; says nothing before it is started.
    pub read_packets: u32,
}

impl SendWqe {
    /// Positions of its packets, and of the answers to them.
    pub fn positions(&self) -> Range<Position> {
        self.first..self.end()
    }

    /// One past its last position.
    pub fn end(&self) -> Position {
        self.first.plus(self.packets)
    }

    /// What its completion will say it was.
    pub fn completion_opcode(&self) -> CompletionOpcode {
        completion_opcode(&self.operation)
    }

    /// Bytes before the packet at `position`, which is one of its own.
    pub fn offset_of(&self, position: Position, mtu: u32) -> u32 {
        (position.since(self.first) as u32).saturating_mul(mtu)
    }
}

/// What the completion of an operation says it was.
pub fn completion_opcode(operation: &Operation) -> CompletionOpcode {
    match operation {
        Operation::Send | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
            CompletionOpcode::Send
        }
        Operation::Write(_) | Operation::WriteImmediate(..) => CompletionOpcode::RdmaWrite,
        Operation::Read(_) => CompletionOpcode::RdmaRead,
        Operation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        Operation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        Operation::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
    }
}

/// The ring. Places are made when they are first used and reused from then on.
///
/// Invariant: `head <= end <= head + capacity`, and a place exists for every number in between.
#[derive(Debug)]
pub struct SendQueue {
    places: Vec<SendWqe>,
    capacity: u64,
    sge_max: usize,
    inline_max: usize,
    message_max: u64,
    head: WqeNumber,
    end: WqeNumber,
}

impl SendQueue {
    /// A ring of `capacity` work requests, which may be 0.
    pub fn new(capacity: u32, sge_max: u32, inline_max: u32) -> Self {
        Self {
            places: Vec::new(),
            capacity: capacity.into(),
            sge_max: sge_max as usize,
            inline_max: inline_max as usize,
            message_max: MESSAGE_MAX,
            head: WqeNumber::default(),
            end: WqeNumber::default(),
        }
    }

    /// The same for messages of at most so many bytes.
    #[must_use]
    pub fn with_message_max(self, message_max: u64) -> Self {
        Self {
            message_max,
            ..self
        }
    }

    /// Whether the request could be posted, apart from the room for it: the length of its message.
    pub fn check(&self, request: &SendRequest<'_>) -> Result<u32, PostError> {
        let length = match request.payload {
            Payload::Sges(sges) if sges.len() > self.sge_max => return Err(PostError::TooManySges),
            Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Payload::Inline(bytes) if bytes.len() > self.inline_max => {
                return Err(PostError::InlineTooLong);
            }
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        if length > self.message_max {
            return Err(PostError::MessageTooLong);
        }
        let inline = matches!(request.payload, Payload::Inline(_));
        match request.operation {
            Operation::Send
            | Operation::SendImmediate(_)
            | Operation::SendInvalidate(_)
            | Operation::Write(_)
            | Operation::WriteImmediate(..) => Ok(length as u32),
            _ if inline => Err(PostError::InlineNotAllowed),
            Operation::Read(_) => Ok(length as u32),
            // spec: IBA 9.4.5: the result is 8 bytes, the target is naturally aligned
            Operation::CompareSwap { remote, .. } | Operation::FetchAdd { remote, .. } => {
                if length < 8 || remote.address % 8 != 0 {
                    Err(PostError::BadAtomic)
                } else {
                    Ok(8)
                }
            }
            Operation::LocalInvalidate(_) => Ok(0),
        }
    }

    /// Appends a work request.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let length = self.check(request)?;
        if self.len() >= self.capacity {
            return Err(PostError::QueueFull);
        }
        let place = self.place(self.end);
        if place == self.places.len() {
            self.places.push(SendWqe {
                id: 0,
                operation: Operation::Send,
                flags: SendFlags::empty(),
                length: 0,
                sges: SmallVec::new(),
                inline: Vec::new(),
                first: Position::default(),
                packets: 0,
                read_packets: 1,
            });
        }
        let wqe = &mut self.places[place];
        wqe.id = request.id;
        wqe.operation = request.operation;
        wqe.flags = request.flags;
        wqe.length = length;
        wqe.sges.clear();
        wqe.inline.clear();
        match request.payload {
            Payload::Sges(sges) => wqe.sges.extend_from_slice(sges),
            Payload::Inline(bytes) => wqe.inline.extend_from_slice(bytes),
        }
        self.end = self.end.next();
        Ok(())
    }

    /// Where it is in the ring, which has a power of two of places.
    fn place(&self, number: WqeNumber) -> usize {
        (number.0 & (self.capacity.next_power_of_two() - 1)) as usize
    }

    /// How many work requests are not complete.
    pub fn len(&self) -> u64 {
        self.end.0 - self.head.0
    }

    /// Whether all are complete.
    pub fn is_empty(&self) -> bool {
        self.head == self.end
    }

    /// Number of the oldest, or of the next one posted if there is none.
    pub fn head(&self) -> WqeNumber {
        self.head
    }

    /// Number of the next one posted.
    pub fn end(&self) -> WqeNumber {
        self.end
    }

    /// A work request that is not complete.
    pub fn get(&self, number: WqeNumber) -> Option<&SendWqe> {
        if number < self.head || number >= self.end {
            return None;
        }
        self.places.get(self.place(number))
    }

    /// The same, to start it.
    pub fn get_mut(&mut self, number: WqeNumber) -> Option<&mut SendWqe> {
        if number < self.head || number >= self.end {
            return None;
        }
        let place = self.place(number);
        self.places.get_mut(place)
    }

    /// Takes the oldest off the ring; the place is free once the reference is gone.
    pub fn pop(&mut self) -> Option<&SendWqe> {
        if self.is_empty() {
            return None;
        }
        let place = self.place(self.head);
        self.head = self.head.next();
        self.places.get(place)
    }

    /// Forgets all of them, without completions. spec: IBA 10.3.1 (to RESET)
    pub fn clear(&mut self) {
        self.head = self.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::RemoteMemory;
    use wire::MemoryKey;

    fn sge(address: u64, length: u32) -> Sge {
        Sge {
            address,
            length,
            key: MemoryKey(1),
        }
    }

    fn send(id: u64, payload: Payload<'_>) -> SendRequest<'_> {
        SendRequest {
            id,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            payload,
            to: None,
        }
    }

    #[test]
    fn the_ring_is_full_then_reuses_places_in_order() {
        let mut queue = SendQueue::new(2, 1, 16);
        for round in 0..5 {
            queue
                .push(&send(round * 2, Payload::Inline(b"ab")))
                .unwrap();
            queue
                .push(&send(round * 2 + 1, Payload::Sges(&[])))
                .unwrap();
            assert_eq!(
                queue.push(&send(9, Payload::Sges(&[]))),
                Err(PostError::QueueFull)
            );
            assert_eq!(queue.pop().map(|wqe| wqe.id), Some(round * 2));
            assert_eq!(queue.pop().map(|wqe| wqe.id), Some(round * 2 + 1));
            assert!(queue.pop().is_none());
        }
    }

    #[test]
    fn a_queue_of_no_work_requests_is_always_full() {
        // roce.md §14, trap 27
        let mut queue = SendQueue::new(0, 1, 0);
        let error = queue.push(&send(1, Payload::Sges(&[]))).unwrap_err();
        assert_eq!(error, PostError::QueueFull);
        assert!(queue.get(WqeNumber(0)).is_none());
    }

    #[test]
    fn what_cannot_be_posted() {
        let queue = SendQueue::new(4, 2, 4);
        let three = [sge(0, 1); 3];
        let half = [sge(0, 1 << 30), sge(0, 1 << 30)];
        let more = [sge(0, 1 << 31), sge(0, 1)];
        let check = |operation, payload| {
            queue.check(&SendRequest {
                id: 0,
                operation,
                flags: SendFlags::empty(),
                payload,
                to: None,
            })
        };
        let aligned = RemoteMemory {
            address: 8,
            key: MemoryKey(1),
        };
        let odd = RemoteMemory {
            address: 12,
            key: MemoryKey(1),
        };
        let add = |remote| Operation::FetchAdd { remote, add: 1 };
        use Operation::{Read, Send};
        let eight = [sge(0, 8)];
        let seven = [sge(0, 7)];
        for (operation, payload, expected) in [
            (Send, Payload::Sges(&three), Err(PostError::TooManySges)),
            (Send, Payload::Sges(&half), Ok(1 << 31)),
            (Send, Payload::Sges(&more), Err(PostError::MessageTooLong)),
            (
                Send,
                Payload::Inline(b"12345"),
                Err(PostError::InlineTooLong),
            ),
            (Send, Payload::Inline(b"1234"), Ok(4)),
            (
                Read(aligned),
                Payload::Inline(b""),
                Err(PostError::InlineNotAllowed),
            ),
            (add(aligned), Payload::Sges(&eight), Ok(8)),
            (
                add(aligned),
                Payload::Sges(&seven),
                Err(PostError::BadAtomic),
            ),
            (add(odd), Payload::Sges(&eight), Err(PostError::BadAtomic)),
        ] {
            assert_eq!(
                check(operation, payload),
                expected,
                "{operation:?} {payload:?}"
            );
        }
    }
}
