//! Send work requests in a row, together with what they point to.

use std::ops::Range;

use engine::Sge;
use engine::qp::{Addressee, Operation, Payload, SendFlags, SendRequest};

/// Send work requests in the order in which they are to be posted. Scatter/gather elements and
/// inline data are copied when a request is added. A list that is cleared keeps its memory, so that
/// one that is filled again and again allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct SendList {
    requests: Vec<Listed>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    addressees: Vec<Addressee>,
}

#[derive(Clone, Debug)]
struct Listed {
    id: u64,
    operation: Operation,
    flags: SendFlags,
    payload: Place,
    /// Where its addressee is in the list, of a datagram.
    to: Option<usize>,
}

/// Where a payload is in the list.
#[derive(Clone, Debug)]
enum Place {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl SendList {
    /// Adds a request behind the others.
    pub fn push(&mut self, request: &SendRequest<'_>) {
        let payload = match request.payload {
            Payload::Sges(sges) => Place::Sges(append(&mut self.sges, sges)),
            Payload::Inline(bytes) => Place::Inline(append(&mut self.bytes, bytes)),
        };
        let to = request.to.map(|to| {
            self.addressees.push(*to);
            self.addressees.len() - 1
        });
        self.requests.push(Listed {
            id: request.id,
            operation: request.operation,
            flags: request.flags,
            payload,
            to,
        });
    }

    /// The requests, first to last.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = SendRequest<'_>> + Clone {
        self.requests.iter().map(|listed| SendRequest {
            id: listed.id,
            operation: listed.operation,
            flags: listed.flags,
            payload: match &listed.payload {
                Place::Sges(range) => Payload::Sges(&self.sges[range.clone()]),
                Place::Inline(range) => Payload::Inline(&self.bytes[range.clone()]),
            },
            to: listed.to.map(|index| &self.addressees[index]),
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes all of them away; the memory stays.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.addressees.clear();
    }
}

fn append<T: Copy>(to: &mut Vec<T>, items: &[T]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(items);
    start..to.len()
}

#[cfg(test)]
mod tests {
    use engine::qp::Attributes;
    use wire::{MemoryKey, QKey, Qpn};

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

    #[test]
    fn requests_come_out_as_they_went_in() {
        let sges = [1, 2, 3].map(|length| Sge {
            address: 16,
            length,
            key: MemoryKey(3),
        });
        let bytes: Vec<u8> = (0..100).collect();
        let to = [1, 2].map(|number| Addressee {
            path: Attributes::default().path,
            qpn: Qpn::truncated(number),
            qkey: QKey(7),
        });
        let datagram = |id, to| SendRequest {
            to: Some(to),
            ..send(id, Payload::Inline(&bytes[3..]))
        };
        let requests = [
            datagram(7, &to[0]),
            send(1, Payload::Sges(&sges)),
            send(2, Payload::Inline(&bytes)),
            send(3, Payload::Sges(&[])),
            send(4, Payload::Inline(&[])),
            send(5, Payload::Inline(&bytes[7..9])),
            send(6, Payload::Sges(&sges[1..])),
            datagram(8, &to[1]),
        ];
        let mut list = SendList::default();
        for _ in 0..2 {
            requests.iter().for_each(|request| list.push(request));
            assert_eq!(list.len(), requests.len());
            assert!(list.requests().eq(requests));
            list.clear();
            assert!(list.is_empty());
            assert_eq!(list.requests().len(), 0);
        }
    }
}
