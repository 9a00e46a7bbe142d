//! Messages on their way to the steering sockets of slots: a queue for each, since a unix datagram
//! socket takes ten of them on many systems, and the rest as soon as its reader has made room.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    io::IoSlice,
    os::fd::{AsFd, BorrowedFd},
};

use io::{
    Errno,
    fdpass::{DatagramSocket, Sent},
};

/// Messages that wait for one slot: ten thousand requests at once and then some. Its process may be
/// stopped.
const WAITING_MAX: usize = 16_384;

/// Messages that wait for all slots together, some 20 MB.
const WAITING_TOTAL_MAX: usize = 65_536;

/// One slot's queue.
#[derive(Debug)]
struct Outbox {
    /// Connected: the only way to learn when there is room.
    socket: DatagramSocket,
    waiting: VecDeque<Vec<u8>>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// It is at the slot.
    Sent,
    /// It waits for room.
    Waits,
    /// It waits for room and is the first to: watch [`Outboxes::socket`] for writing.
    WaitsFirst,
    /// Too many wait already.
    Full,
}

/// The queues of all slots.
#[derive(Debug, Default)]
pub(super) struct Outboxes {
    boxes: BTreeMap<u8, Outbox>,
    waiting_total: usize,
}

impl Outboxes {
    /// Sends a message to a slot whose steering socket is called `name`, after those that wait.
    pub(super) fn post(
        &mut self,
        slot: u8,
        name: &str,
        parts: [&[u8]; 2],
    ) -> Result<Posted, Errno> {
        let outbox = match self.boxes.entry(slot) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Outbox {
                socket: DatagramSocket::connected(name.as_bytes())?,
                waiting: VecDeque::new(),
            }),
        };
        let is_first = outbox.waiting.is_empty();
        if is_first && outbox.socket.send(&parts.map(IoSlice::new))? == Sent::Sent {
            return Ok(Posted::Sent);
        }
        if outbox.waiting.len() >= WAITING_MAX || self.waiting_total >= WAITING_TOTAL_MAX {
            return Ok(Posted::Full);
        }
        outbox.waiting.push_back(parts.concat());
        self.waiting_total += 1;
        Ok(if is_first {
            Posted::WaitsFirst
        } else {
            Posted::Waits
        })
    }

    /// Sends what there is room for; whether none waits any more. On an error none does, since they
    /// are lost.
    pub(super) fn flush(&mut self, slot: u8) -> Result<bool, Errno> {
        let Some(outbox) = self.boxes.get_mut(&slot) else {
            return Ok(true);
        };
        while let Some(message) = outbox.waiting.front() {
            match outbox.socket.send(&[IoSlice::new(message)]) {
                Ok(Sent::Sent) => {
                    outbox.waiting.pop_front();
                    self.waiting_total -= 1;
                }
                Ok(Sent::WouldBlock) => return Ok(false),
                Err(errno) => {
                    self.waiting_total -= outbox.waiting.len();
                    outbox.waiting.clear();
                    return Err(errno);
                }
            }
        }
        Ok(true)
    }

    /// The socket of a slot that messages wait for.
    pub(super) fn socket(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.boxes.get(&slot).map(|outbox| outbox.socket.as_fd())
    }

    /// The holder of a slot is gone, and what waits was for nobody else.
    pub(super) fn end_slot(&mut self, slot: u8) {
        if let Some(outbox) = self.boxes.remove(&slot) {
            self.waiting_total -= outbox.waiting.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(slot: u8) -> String {
        format!("softrdma-test-{}/outbox/{slot}", std::process::id())
    }

    #[test]
    fn messages_wait_in_order_and_not_without_bound() {
        let receiver = DatagramSocket::bind(name(1).as_bytes()).expect("a free name");
        let mut boxes = Outboxes::default();
        let mut count = 0_u32;
        let mut outcomes = Vec::new();
        loop {
            let posted = boxes
                .post(1, &name(1), [b"number ", &count.to_be_bytes()])
                .expect("it is there");
            if outcomes.last() != Some(&posted) {
                outcomes.push(posted);
            }
            if posted == Posted::Full {
                break;
            }
            count += 1;
        }
        let expected = [
            Posted::Sent,
            Posted::WaitsFirst,
            Posted::Waits,
            Posted::Full,
        ];
        assert_eq!(outcomes, expected);

        let mut buffer = [0; 64];
        for number in 0..count {
            let message = loop {
                match receiver.receive(&mut buffer).expect("it is bound") {
                    Some(message) => break message,
                    None => assert_eq!(boxes.flush(1), Ok(number + 1 == count)),
                }
            };
            assert_eq!(buffer[..message.length - 4], *b"number ");
            assert_eq!(buffer[7..message.length], number.to_be_bytes());
            boxes.flush(1).expect("it is there");
        }
        assert_eq!(boxes.waiting_total, 0);
    }

    #[test]
    fn what_waits_ends_with_the_slot() {
        let _receiver = DatagramSocket::bind(name(2).as_bytes()).expect("a free name");
        let mut boxes = Outboxes::default();
        while boxes.post(2, &name(2), [b"a", b"b"]) != Ok(Posted::Waits) {}
        assert!(boxes.socket(2).is_some());
        boxes.end_slot(2);
        assert!(boxes.socket(2).is_none());
        assert_eq!(boxes.waiting_total, 0);
        assert_eq!(boxes.flush(2), Ok(true));
        assert!(boxes.post(3, &name(3), [b"a", b"b"]).is_err(), "nobody");
    }
}
