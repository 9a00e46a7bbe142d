//! Which packet of the requester leaves next, and whether it may.
//!
//! Read first: IBA 9.7.3 (requester), 10.8.3.3 (order and fences). The order of the checks in
//! [`poll_transmit`](Requester::poll_transmit) is the whole policy.

use core::ops::Range;

use crate::access::{Access, MemoryRange, Sge, Span};
use crate::burst::{Burst, Origin};
use crate::completion::Status;
use crate::host::{Host, Memory};
use crate::qp::flush::Cause;
use crate::qp::position::Position;
use crate::qp::send_queue::SendWqe;
use crate::qp::sge_cursor::SgeCursor;
use crate::qp::{Common, Operation, SendFlags, State};
use crate::rc::ledger::Charge;
use crate::rc::requester::{Requester, Turn};
use crate::rc::segment::{Exchange, Segment};
use crate::rc::window::{Buffer, Destination, DestinationIndex, POSITIONS_MAX};
use crate::run::{self, DATAGRAM_OVERHEAD};

/// Headers and ICRC of the longest answer.
const ANSWER_ENVELOPE: u32 = 28;
/// Headers and ICRC of the longest request.
const REQUEST_ENVELOPE: u32 = 64;

/// Why a requester stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing to send, or something must arrive first.
    Idle,
    /// The burst is full or the turn is over; there is more.
    Busy {
        /// Packets that the turn had left.
        unused: u32,
    },
    /// An account is full; there is more.
    Full {
        /// This one.
        account: DestinationIndex,
        /// Packets that the turn had left.
        unused: u32,
    },
}

impl Requester {
    /// Appends packets to `out`, until there is nothing to send now, or `quota` packets are done.
    pub fn poll_transmit<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        mut quota: u32,
    ) -> Result<Pause, Cause> {
        turn.accounts.refresh(turn.to, turn.credit);
        loop {
            if self.retry.is_waiting() {
                return Ok(Pause::Idle);
            }
            if let Some((number, status)) = self.failed
                && number == self.next
            {
                return if number == self.queue.head() {
                    Err(Cause::Send(status))
                } else {
                    Ok(Pause::Idle)
                };
            }
            let Some(wqe) = self.queue.get(self.next) else {
                return Ok(Pause::Idle);
            };
            let exchange = Exchange::of(&wqe.operation);
            if self.next == self.started {
                if !self.may_start(turn.common, wqe, exchange) {
                    return Ok(Pause::Idle);
                }
                if exchange == Exchange::Local {
                    self.execute_local(turn)?;
                    continue;
                }
            }
            let reads_max = u32::from(turn.common.attributes.max_rd_atomic);
            if exchange == Exchange::Answered && reads_max > 0 && self.account.reads >= reads_max {
                return Ok(Pause::Idle);
            }
            if self.in_flight() >= POSITIONS_MAX {
                return Ok(Pause::Idle);
            }
            if out.is_full() || quota == 0 {
                return Ok(Pause::Busy { unused: quota });
            }
            if exchange == Exchange::Answered {
                turn.accounts.refresh(DestinationIndex::OWN, turn.credit);
            }
            self.number(turn);
            let Some(mut packet) = self.next_packet(turn, out) else {
                return Ok(Pause::Idle);
            };
            if let Some(account) = full_account(turn, packet.charge) {
                let unused = quota;
                return Ok(Pause::Full { account, unused });
            }
            let is_end_of_turn = quota == 1 || out.room() == 1;
            let sent = self
                .begin(turn)
                .and_then(|()| self.send_packet(turn, &mut packet, spans, out, is_end_of_turn));
            match sent {
                Ok(()) => quota -= 1,
                Err(status) => self.failed = Some((self.next, status)),
            }
        }
    }

    fn may_start<H: Host>(&self, common: &Common<H>, wqe: &SendWqe, exchange: Exchange) -> bool {
        common.state == State::ReadyToSend
            // spec: IBA 10.8.3.3: a fence waits for READs and atomics
            && !(wqe.flags.contains(SendFlags::FENCE) && self.account.unfinished > 0)
            // spec: IBA 10.6.5.1: an invalidation waits for all before it
            && (exchange != Exchange::Local || self.queue.head() == self.next)
    }

    /// Says which positions the work request will have that is sent for the first time, and in
    /// which pieces a READ will be asked for.
    fn number<H: Host>(&mut self, turn: &mut Turn<'_, H>) {
        if self.next < self.started {
            return;
        }
        let is_read = |wqe: &SendWqe| matches!(wqe.operation, Operation::Read(_));
        let read_packets = match self.queue.get(self.next) {
            Some(wqe) if is_read(wqe) => self.read_packets(turn),
            _ => 1,
        };
        if let Some(wqe) = self.queue.get_mut(self.next) {
            wqe.first = self.at.assigned;
            wqe.packets = self.cut.packets(&wqe.operation, wqe.length);
            wqe.read_packets = read_packets;
        }
    }

    /// Starts the work request that is sent for the first time. What cannot be sent as a whole is
    /// not begun, so that the peer is not left with half of a message.
    fn begin<H: Host>(&mut self, turn: &Turn<'_, H>) -> Result<(), Status> {
        if self.next < self.started {
            return Ok(());
        }
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let answered = Exchange::of(&wqe.operation) == Exchange::Answered;
        if answered && turn.common.attributes.max_rd_atomic == 0 {
            return Err(Status::LocalQpOperation); // it could never start
        }
        if answered || wqe.packets > 1 {
            let need = if answered {
                Access::LOCAL_WRITE
            } else {
                Access::empty()
            };
            SgeCursor::default().advance(&wqe.sges, wqe.length, |piece| {
                check(turn, piece, need).map(drop)
            })?;
        }
        self.at.assigned = wqe.end();
        self.started = self.started.next();
        self.account.unfinished += u32::from(answered);
        Ok(())
    }

    /// Packets that one READ request asks for: half of a window at most, so that there is always
    /// one to ask while another is answered.
    fn read_packets<H: Host>(&self, turn: &Turn<'_, H>) -> u32 {
        let own = turn.accounts.get(DestinationIndex::OWN).limit();
        let destination = turn.accounts.get(turn.to);
        let limit = match destination.buffer() {
            Buffer::Here(_) => own,
            Buffer::There(..) => own.min(destination.limit()),
        };
        let packet = self.cut.mtu + ANSWER_ENVELOPE + DATAGRAM_OVERHEAD;
        let fitting = limit / 2 / u64::from(packet);
        let most = u64::from(self.window.read_chunk / self.cut.mtu);
        fitting.min(most).max(1) as u32
    }

    /// What the answer to the request for `positions` takes of our buffer. Full packets are
    /// answered in runs by a peer like us, which costs less than this, and one by one by others.
    fn answer_truesize(&self, wqe: &SendWqe, positions: Range<Position>) -> u64 {
        let packets = positions.end.since(positions.start);
        let bytes = self.cut.bytes_in(wqe, positions);
        if packets > 1 {
            bytes + packets * u64::from(ANSWER_ENVELOPE + DATAGRAM_OVERHEAD)
        } else {
            run::alone(bytes as u32 + ANSWER_ENVELOPE) // a packet
        }
    }

    /// The packet at `sent`, and what it will be charged.
    fn next_packet<H: Host>(&self, turn: &Turn<'_, H>, out: &Burst) -> Option<NextPacket> {
        let wqe = self.queue.get(self.next)?;
        let position = self.at.sent;
        let (to, path) = (turn.common.attributes.dest_qpn, turn.common.path);
        let psn = self.numbering.psn(position);
        let segment = self.cut.segment(wqe, position, to, psn);
        let cost = out.cost(path, to, sealed_length(&segment));
        let mut charge = Charge {
            out: cost.bytes,
            back: 0,
        };
        if Exchange::of(&wqe.operation) == Exchange::Answered {
            charge.back = self.answer_truesize(wqe, position..segment.end);
            if let Buffer::There(..) = turn.accounts.get(turn.to).buffer() {
                // on the way from there answers meet what requests meet on the way to it
                charge.out += charge.back;
            }
        }
        Some(NextPacket {
            segment,
            run: cost.run,
            charge,
        })
    }

    /// Sends the packet at `sent`. Nothing is changed if its bytes cannot be reached. The last
    /// packet of a turn asks for an acknowledgement: who knows when the next turn is.
    fn send_packet<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        packet: &mut NextPacket,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        is_end_of_turn: bool,
    ) -> Result<(), Status> {
        let NextPacket {
            segment,
            run,
            charge,
        } = packet;
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let position = self.at.sent;
        spans.clear();
        let mut source = self.source;
        let mut inline: &[u8] = &[];
        if wqe.inline.is_empty() {
            source.advance(&wqe.sges, segment.payload, |piece| {
                spans.push(check(turn, piece, Access::empty())?);
                Ok(())
            })?;
        } else {
            let start = wqe.offset_of(position, self.cut.mtu) as usize;
            let end = start + segment.payload as usize;
            inline = wqe.inline.get(start..end).unwrap_or_default(); // always inside
        }

        turn.charge(*charge);
        self.account.ledger.charge(segment.end, *run, *charge);
        self.account.unasked += charge.out;
        if is_end_of_turn || self.must_ask(turn.destination()) {
            segment.header.bth.ack_request = true;
        }
        if segment.header.bth.ack_request {
            self.account.unasked = 0;
        }
        let origin = Origin {
            qp: turn.common.index(),
            psn: self.numbering.psn(position),
            is_response: false,
        };
        out.push(turn.common.path, origin, &mut segment.header, inline, spans);

        if Exchange::of(&wqe.operation) == Exchange::Answered {
            self.account.reads += 1;
            if self.cut.read_request(wqe, position).start != position {
                self.answer.resumed = Some(position);
            }
        }
        self.source = source;
        if segment.end == wqe.end() {
            self.next = self.next.next();
            self.source = SgeCursor::default();
        }
        self.at.sent = segment.end;
        self.at.transmitted = self.at.transmitted.max(segment.end);
        self.retry.sent(turn.now, &turn.common.attributes);
        Ok(())
    }

    /// Whether an acknowledgement is needed before the end of the message: half a window is in
    /// flight without asking, or the next packet may have to wait for one. spec: IBA 9.7.3.1
    fn must_ask(&self, destination: &Destination) -> bool {
        self.account.unasked >= destination.limit() / 2
            || !destination.has_room_for(run::alone(self.cut.mtu + REQUEST_ENVELOPE))
            || self.in_flight() + 1 >= POSITIONS_MAX
    }

    /// Does the operation at the head of the queue that sends nothing.
    fn execute_local<H: Host>(&mut self, turn: &mut Turn<'_, H>) -> Result<(), Cause> {
        if let Some(wqe) = self.queue.get(self.next)
            && let Operation::LocalInvalidate(key) = wqe.operation
            && turn.memory.invalidate(key, turn.common.scope()).is_err()
        {
            // the status of every memory management operation. spec: IBA 11.6.2
            return Err(Cause::Send(Status::MemoryWindowBind));
        }
        self.next = self.next.next();
        self.started = self.next;
        self.complete_oldest(turn.common)
    }
}

/// A packet that may be the next.
struct NextPacket {
    segment: Segment,
    /// Which datagram it will be in.
    run: u64,
    charge: Charge,
}

/// The account that has no room for a packet, or none before others that wait.
fn full_account<H: Host>(turn: &mut Turn<'_, H>, charge: Charge) -> Option<DestinationIndex> {
    let may_pass = turn.is_woken;
    let mut is_full =
        |index, bytes| bytes > 0 && !turn.accounts.get_mut(index).admit(bytes, may_pass);
    if is_full(DestinationIndex::OWN, charge.back) {
        return Some(DestinationIndex::OWN);
    }
    is_full(turn.to, charge.out).then_some(turn.to)
}

/// UDP payload of a packet in bytes.
fn sealed_length(segment: &Segment) -> usize {
    let payload = segment.payload as usize;
    segment.header.emitted_length() + payload.next_multiple_of(4) + wire::icrc::LENGTH
}

/// Proves one piece of a scatter/gather list.
fn check<H: Host>(turn: &Turn<'_, H>, piece: Sge, need: Access) -> Result<Span, Status> {
    let range = MemoryRange {
        address: piece.address,
        length: piece.length.into(),
    };
    turn.memory
        .check(piece.key, turn.common.scope(), range, need)
        .ok()
        .and_then(|grant| grant.span(0, piece.length))
        .ok_or(Status::LocalProtection)
}
