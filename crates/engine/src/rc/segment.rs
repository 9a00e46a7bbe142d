//! How a work request becomes packets: pure functions of the work request and a position.
//!
//! Read first: IBA 9.7.2 (PSNs a message takes), 9.4 (operations), 9.3 (headers). A retry asks for
//! the same positions again and gets the same packets.

use core::ops::Range;

use wire::{AtomicEth, Attached, Bth, HeaderRepr, MemoryKey, Opcode, Place, Psn, Qpn, Reth};

use crate::qp::position::Position;
use crate::qp::send_queue::SendWqe;
use crate::qp::{Operation, RemoteMemory, SendFlags};

/// What kind of exchange an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Payload goes out in packets and is acknowledged: SEND, WRITE.
    Streamed,
    /// A request that only its own answer completes: READ, atomics. At most `max_rd_atomic` are in
    /// flight, and a fence waits for them.
    Answered,
    /// Nothing is sent: LOCAL_INV.
    Local,
}

impl Exchange {
    /// The exchange of an operation.
    pub const fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Send
            | Operation::SendImmediate(_)
            | Operation::SendInvalidate(_)
            | Operation::Write(_)
            | Operation::WriteImmediate(..) => Self::Streamed,
            Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                Self::Answered
            }
            Operation::LocalInvalidate(_) => Self::Local,
        }
    }
}

/// Sizes that a message is cut by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Payload of a full packet.
    pub mtu: u32,
}

impl Cut {
    /// PSNs that an operation of `length` bytes takes. spec: IBA 9.7.2
    pub fn packets(&self, operation: &Operation, length: u32) -> u32 {
        match operation {
            Operation::LocalInvalidate(_) => 0,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => 1,
            _ => length.div_ceil(self.mtu).max(1),
        }
    }

    /// Bytes of payload at a position: in the packet that is sent, or in the answer to it.
    pub fn length_at(&self, wqe: &SendWqe, position: Position) -> u32 {
        let offset = wqe.offset_of(position, self.mtu);
        wqe.length.saturating_sub(offset).min(self.mtu)
    }

    /// Bytes of payload at a range of positions of one work request.
    pub fn bytes_in(&self, wqe: &SendWqe, positions: Range<Position>) -> u64 {
        let packets = positions.end.since(positions.start);
        if packets == 0 {
            return 0;
        }
        let last = Position(positions.end.0 - 1);
        (packets - 1) * u64::from(self.mtu) + u64::from(self.length_at(wqe, last))
    }

    /// Positions of the READ request that asks for `position`. The cuts of a started work request
    /// are the same for every retry: a responder keeps what it needs for one for each request by
    /// itself.
    pub fn read_request(&self, wqe: &SendWqe, position: Position) -> Range<Position> {
        let index = position.since(wqe.first) as u32;
        let start = index - index % wqe.read_packets;
        let end = start.saturating_add(wqe.read_packets).min(wqe.packets);
        wqe.first.plus(start)..wqe.first.plus(end)
    }

    /// The packet to send for `position`.
    pub fn segment(&self, wqe: &SendWqe, position: Position, to: Qpn, psn: Psn) -> Segment {
        match wqe.operation {
            Operation::Read(remote) => {
                let offset = wqe.offset_of(position, self.mtu);
                let request = position..self.read_request(wqe, position).end;
                let mut header = request_header(Opcode::RC_READ_REQUEST, to, psn);
                header.reth = Some(Reth {
                    va: remote.address.wrapping_add(offset.into()),
                    rkey: remote.key,
                    dma_length: self.bytes_in(wqe, request.clone()) as u32,
                });
                Segment {
                    header,
                    payload: 0,
                    end: request.end,
                }
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => atomic(
                Opcode::RC_COMPARE_SWAP,
                remote,
                (swap, compare),
                position,
                to,
                psn,
            ),
            Operation::FetchAdd { remote, add } => {
                atomic(Opcode::RC_FETCH_ADD, remote, (add, 0), position, to, psn)
            }
            _ => self.streamed(wqe, position, to, psn),
        }
    }

    fn streamed(&self, wqe: &SendWqe, position: Position, to: Qpn, psn: Psn) -> Segment {
        let end = position.plus(1);
        let is_last = end == wqe.end();
        let place = match (position == wqe.first, is_last) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let message = Message::of(&wqe.operation);
        let mut header = HeaderRepr::new(Bth::new(message.opcode(place), to, psn));
        header.bth.ack_request = is_last;
        // SE only where a receive completes. spec: IBA 9.2.3
        header.bth.solicited =
            is_last && message.takes_receive && wqe.flags.contains(SendFlags::SOLICITED);
        if let Some(remote) = message.remote
            && matches!(place, Place::First | Place::Only)
        {
            header.reth = Some(Reth {
                va: remote.address,
                rkey: remote.key,
                dma_length: wqe.length,
            });
        }
        if is_last {
            header.immediate = message.immediate;
            header.ieth = message.invalidate;
        }
        Segment {
            header,
            payload: self.length_at(wqe, position),
            end,
        }
    }
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its headers. AckReq is set where an answer is always needed.
    pub header: HeaderRepr,
    /// Bytes of payload.
    pub payload: u32,
    /// One past the last position that this packet takes.
    pub end: Position,
}

/// What is particular in a SEND or WRITE.
struct Message {
    operation: wire::Operation,
    remote: Option<RemoteMemory>,
    immediate: Option<[u8; 4]>,
    invalidate: Option<MemoryKey>,
    takes_receive: bool,
}

impl Message {
    fn of(operation: &Operation) -> Self {
        let mut message = Self {
            operation: wire::Operation::Send,
            remote: None,
            immediate: None,
            invalidate: None,
            takes_receive: true,
        };
        match *operation {
            Operation::SendImmediate(immediate) => message.immediate = Some(immediate),
            Operation::SendInvalidate(key) => message.invalidate = Some(key),
            Operation::Write(remote) => {
                message.operation = wire::Operation::Write;
                message.remote = Some(remote);
                message.takes_receive = false;
            }
            Operation::WriteImmediate(remote, immediate) => {
                message.operation = wire::Operation::Write;
                message.remote = Some(remote);
                message.immediate = Some(immediate);
            }
            _ => {}
        }
        message
    }

    fn opcode(&self, place: Place) -> Opcode {
        let attached = match place {
            Place::First | Place::Middle => Attached::Nothing,
            Place::Last | Place::Only if self.immediate.is_some() => Attached::Immediate,
            Place::Last | Place::Only if self.invalidate.is_some() => Attached::Invalidate,
            Place::Last | Place::Only => Attached::Nothing,
        };
        // every place of SEND and WRITE is in the table, and only SENDs invalidate
        Opcode::find(wire::Transport::Rc, self.operation, place, attached)
            .unwrap_or(Opcode::RC_SEND_ONLY)
    }
}

fn request_header(opcode: Opcode, to: Qpn, psn: Psn) -> HeaderRepr {
    let mut header = HeaderRepr::new(Bth::new(opcode, to, psn));
    header.bth.ack_request = true;
    header
}

fn atomic(
    opcode: Opcode,
    remote: RemoteMemory,
    (swap_or_add, compare): (u64, u64),
    position: Position,
    to: Qpn,
    psn: Psn,
) -> Segment {
    let mut header = request_header(opcode, to, psn);
    header.atomic_eth = Some(AtomicEth {
        va: remote.address,
        rkey: remote.key,
        swap_or_add,
        compare,
    });
    Segment {
        header,
        payload: 0,
        end: position.plus(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteMemory = RemoteMemory {
        address: 0x1000,
        key: MemoryKey(0x77),
    };
    const CUT: Cut = Cut { mtu: 256 };

    fn wqe(operation: Operation, length: u32) -> SendWqe {
        SendWqe {
            id: 0,
            operation,
            flags: SendFlags::SOLICITED,
            length,
            sges: [].into_iter().collect(),
            inline: Vec::new(),
            first: Position(100),
            packets: CUT.packets(&operation, length),
            read_packets: 4,
        }
    }

    /// Opcode name, payload, SE and A of every packet.
    fn packets(operation: Operation, length: u32) -> Vec<(&'static str, u32, bool, bool)> {
        let wqe = wqe(operation, length);
        let mut position = wqe.first;
        let mut packets = Vec::new();
        while position < wqe.end() {
            let segment = CUT.segment(&wqe, position, Qpn::GSI, Psn::default());
            assert!(segment.header.is_complete());
            let bth = segment.header.bth;
            packets.push((
                bth.opcode.info().name,
                segment.payload,
                bth.solicited,
                bth.ack_request,
            ));
            position = segment.end;
        }
        packets
    }

    #[test]
    fn every_operation_is_cut_as_the_standard_says() {
        let key = MemoryKey(5);
        assert_eq!(packets(Operation::Send, 0), [("SEND_ONLY", 0, true, true)]);
        assert_eq!(
            packets(Operation::Send, 256),
            [("SEND_ONLY", 256, true, true)]
        );
        assert_eq!(
            packets(Operation::SendImmediate([0; 4]), 513),
            [
                ("SEND_FIRST", 256, false, false),
                ("SEND_MIDDLE", 256, false, false),
                ("SEND_LAST_WITH_IMMEDIATE", 1, true, true),
            ]
        );
        assert_eq!(
            packets(Operation::SendInvalidate(key), 257)[1],
            ("SEND_LAST_WITH_INVALIDATE", 1, true, true)
        );
        assert_eq!(
            packets(Operation::Write(REMOTE), 512),
            [
                ("WRITE_FIRST", 256, false, false),
                ("WRITE_LAST", 256, false, true),
            ]
        );
        assert_eq!(
            packets(Operation::WriteImmediate(REMOTE, [0; 4]), 0),
            [("WRITE_ONLY_WITH_IMMEDIATE", 0, true, true)]
        );
        let add = Operation::FetchAdd {
            remote: REMOTE,
            add: 1,
        };
        assert_eq!(packets(add, 8), [("FETCH_ADD", 0, false, true)]);
        assert!(packets(Operation::LocalInvalidate(key), 0).is_empty());
    }

    #[test]
    fn write_carries_its_address_once_and_never_twice_the_offset() {
        // roce.md §14, trap 11
        let wqe = wqe(Operation::Write(REMOTE), 700);
        let at = |position| CUT.segment(&wqe, position, Qpn::GSI, Psn::default());
        let reth = at(wqe.first).header.reth.unwrap();
        assert_eq!((reth.va, reth.dma_length), (0x1000, 700));
        let retried = at(wqe.first.plus(1)).header;
        assert_eq!(retried.reth, None);
        assert_eq!(retried.bth.opcode, Opcode::RC_WRITE_MIDDLE);
    }

    #[test]
    fn long_reads_are_asked_for_in_pieces_whose_ends_do_not_move() {
        let wqe = wqe(Operation::Read(REMOTE), 10 * 256 + 1);
        let ask = |index| {
            let segment = CUT.segment(&wqe, wqe.first.plus(index), Qpn::GSI, Psn::default());
            let reth = segment.header.reth.unwrap();
            (
                reth.va - REMOTE.address,
                reth.dma_length,
                segment.end.since(wqe.first),
            )
        };
        assert_eq!(ask(0), (0, 1024, 4));
        assert_eq!(ask(4), (1024, 1024, 8));
        assert_eq!(ask(6), (1536, 512, 8));
        assert_eq!(ask(8), (2048, 513, 11));
        assert_eq!(ask(10), (2560, 1, 11));
        assert_eq!(packets(Operation::Read(REMOTE), 0).len(), 1);
    }

    #[test]
    fn the_longest_message_takes_2_to_the_23_packets() {
        // roce.md §14, trap 8
        let wqe = wqe(Operation::Write(REMOTE), 1 << 31);
        assert_eq!(wqe.packets, 1 << 23);
        let last = Position(wqe.end().0 - 1);
        assert_eq!(CUT.length_at(&wqe, last), 256);
        assert_eq!(CUT.bytes_in(&wqe, wqe.positions()), 1 << 31);
    }
}
