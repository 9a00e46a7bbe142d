//! The sending half of a reliable connection: which packet leaves next, and where it stands.
//!
//! Read first: IBA 9.7.3 (requester), 10.8.3.3 (order and fences). The idea: everything that was
//! ever sent has a [`Position`]; `acked <= sent <= transmitted`. A retry sets `sent` back to
//! `acked` and the same code sends the same packets again. Answers are taken by
//! [`completer`](super::completer), losses by [`retry`](super::retry).

use wire::Psn;

use crate::access::{Access, MemoryRange, Sge, Span};
use crate::burst::{Burst, Origin};
use crate::completion::{Status, WorkCompletion};
use crate::host::{CompletionSink, Host, Memory};
use crate::qp::flush::Cause;
use crate::qp::send_queue::{Numbering, Position, SendQueue, SendWqe, SgeCursor, WqeNumber};
use crate::qp::{Attributes, Capabilities, Common, Operation, SendFlags, State};
use crate::rc::retry::{Retry, Timer};
use crate::rc::segment::{Cut, Exchange};
use crate::rc::window::{Destination, POSITIONS_MAX, WindowConfig};
use crate::shard::Config;
use crate::time::Instant;

/// What a call on one queue pair works with.
pub struct Turn<'a, H: Host> {
    /// Now.
    pub now: Instant,
    /// The queue pair's common half.
    pub common: &'a mut Common<H>,
    /// What is in flight towards its peer.
    pub destination: &'a mut Destination,
    /// Registered memory.
    pub memory: &'a H::Memory,
}

/// Why a requester stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing to send, or something must arrive first.
    Idle,
    /// The burst is full or the turn is over; there is more.
    Busy,
    /// The destination's window is full; there is more.
    Window,
}

/// What was answered, sent and sent ever.
///
/// Invariant: `acked <= sent <= transmitted <= assigned`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Positions {
    /// Everything before it is acknowledged or answered.
    pub(super) acked: Position,
    /// What is sent next; goes back to `acked` in a retry.
    pub(super) sent: Position,
    /// Everything before it was sent at least once.
    pub(super) transmitted: Position,
    /// One past the last position of a started work request.
    pub(super) assigned: Position,
}

/// What this queue pair has in flight.
///
/// Invariant: `charged` is the charge of the positions from `acked` to `sent`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Bytes charged to the destination.
    pub(super) charged: u64,
    /// Charged since an acknowledgement was last asked for.
    unasked: u64,
    /// READ and atomic requests sent and not answered; bounded by `max_rd_atomic`.
    pub(super) reads: u32,
    /// READs and atomics started and not complete; a fence waits for them.
    pub(super) unfinished: u32,
}

/// Where the answer to the oldest READ stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    /// Where the next byte goes.
    pub(super) sink: SgeCursor,
    /// Where a READ was asked for again from its middle: the answer may start as a new message.
    pub(super) resumed: Option<Position>,
}

/// The sending half.
#[derive(Debug)]
pub struct Requester {
    pub(crate) queue: SendQueue,
    pub(super) numbering: Numbering,
    pub(super) cut: Cut,
    window: WindowConfig,
    pub(super) at: Positions,
    /// The work request that `at.sent` belongs to, or the one to start next.
    pub(super) next: WqeNumber,
    /// The first work request that is not started: it has no positions yet.
    pub(super) started: WqeNumber,
    /// Where `at.sent` is in the elements of `next`.
    source: SgeCursor,
    pub(super) account: Account,
    pub(super) answer: Answer,
    /// A work request that cannot be sent. It ends once all before it are complete.
    pub(super) failed: Option<(WqeNumber, Status)>,
    pub(super) retry: Retry,
    /// Whether to tell when all that was started before SQD is complete.
    notify_drained: bool,
}

impl Requester {
    /// A requester that has no connection yet.
    pub fn new(capabilities: &Capabilities, config: &Config) -> Self {
        Self {
            queue: SendQueue::new(
                capabilities.send_wr_max,
                capabilities.send_sge_max,
                capabilities.inline_max,
            ),
            numbering: Numbering::default(),
            cut: Cut::new(256, config.window.read_chunk),
            window: config.window,
            at: Positions::default(),
            next: WqeNumber::default(),
            started: WqeNumber::default(),
            source: SgeCursor::default(),
            account: Account::default(),
            answer: Answer::default(),
            failed: None,
            retry: Retry::new(config.timeout_min),
            notify_drained: false,
        }
    }

    /// The connection can send from now on. spec: IBA 10.3.1 (RTR to RTS)
    pub fn start(&mut self, attributes: &Attributes) {
        self.numbering = Numbering::starting_at(attributes.sq_psn);
        self.cut = Cut::new(attributes.path_mtu.bytes(), self.window.read_chunk);
        self.at = Positions::default();
        self.retry.start(attributes);
    }

    /// Forgets everything, without completions. What was in flight must have been released.
    pub fn reset(&mut self) {
        self.queue.clear();
        self.stop();
        self.at = Positions::default();
        self.next = self.queue.head();
        self.started = self.next;
        self.source = SgeCursor::default();
        self.answer = Answer::default();
        self.failed = None;
    }

    /// Nothing is in flight any more and no timer runs: the connection is over.
    pub fn stop(&mut self) {
        self.account = Account::default();
        self.retry.stop();
        self.notify_drained = false;
    }

    /// The send queue is to be drained. spec: IBA 10.3.1 (SQD)
    pub fn drain(&mut self, notify: bool) {
        self.notify_drained = notify;
    }

    /// Whether nothing that was started is incomplete.
    pub fn is_drained(&self) -> bool {
        self.queue.head() == self.started
    }

    /// Whether to tell now that the queue is drained; true once.
    pub fn take_drained(&mut self) -> bool {
        let tell = self.notify_drained && self.is_drained();
        if tell {
            self.notify_drained = false;
        }
        tell
    }

    /// When a timer fires.
    pub fn deadline(&self, timer: Timer) -> Option<Instant> {
        self.retry.deadline(timer)
    }

    /// Bytes charged to the destination.
    pub fn charged(&self) -> u64 {
        self.account.charged
    }

    /// PSN of the packet that is sent next.
    pub fn next_psn(&self) -> Psn {
        self.numbering.psn(self.at.sent)
    }

    /// Appends packets to `out`, until there is nothing to send now, or `quota` packets are done.
    pub fn poll_transmit<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        quota: &mut u32,
    ) -> Result<Pause, Cause> {
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
            if self.in_flight() > 0 && self.in_flight() >= POSITIONS_MAX {
                return Ok(Pause::Idle);
            }
            if out.is_full() || *quota == 0 {
                return Ok(Pause::Busy);
            }
            // at least one packet of each queue pair may be in flight, or one whose peer is gone
            // would stop the others until it gives up
            if !turn.destination.has_room() && self.account.charged > 0 {
                return Ok(Pause::Window);
            }
            let sent = self
                .begin(turn)
                .and_then(|()| self.send_packet(turn, spans, out, *quota == 1));
            match sent {
                Ok(()) => *quota -= 1,
                Err(status) => self.failed = Some((self.next, status)),
            }
        }
    }

    /// A packet of ours could not be gathered: the work request fails once those before it are
    /// complete.
    pub fn transmit_failed<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        psn: Psn,
    ) -> Result<(), Cause> {
        let Some(position) = self.numbering.position(psn, self.at.acked) else {
            return Ok(());
        };
        let mut number = self.queue.head();
        while number < self.started
            && let Some(wqe) = self.queue.get(number)
        {
            if wqe.positions().contains(&position) {
                if number == self.queue.head() {
                    return Err(Cause::Send(Status::LocalProtection));
                }
                self.failed = Some((number, Status::LocalProtection));
                // what was sent of it and behind it is not to be sent again
                self.go_back(turn);
                return Ok(());
            }
            number = number.next();
        }
        Ok(())
    }

    /// Makes `acked` the next position to send.
    pub(super) fn go_back<H: Host>(&mut self, turn: &mut Turn<'_, H>) {
        turn.destination.release(self.account.charged);
        self.account.charged = 0;
        self.account.unasked = 0;
        self.account.reads = 0;
        self.at.sent = self.at.acked;
        self.locate();
        turn.common.counters.completer_retries += 1;
    }

    /// Finds the place of `sent`, which is `acked`, in the oldest work request.
    pub(super) fn locate(&mut self) {
        self.next = self.queue.head();
        self.source = match self.queue.get(self.next) {
            Some(wqe) if self.next < self.started => {
                SgeCursor::at(&wqe.sges, wqe.offset_of(self.at.sent, self.cut.mtu))
            }
            _ => SgeCursor::default(),
        };
    }

    /// Positions sent and not acknowledged.
    pub(super) fn in_flight(&self) -> u64 {
        self.at.sent.since(self.at.acked)
    }

    /// What a range of positions of one work request is charged.
    pub(super) fn charge_of(&self, wqe: &SendWqe, from: Position, to: Position) -> u64 {
        let packets = to.since(from);
        self.cut.bytes_in(wqe, from..to) + packets * u64::from(self.window.packet_overhead)
    }

    /// Completes the oldest work request with success.
    pub(super) fn complete_oldest<H: Host>(&mut self, common: &mut Common<H>) -> Result<(), Cause> {
        let number = self.queue.head();
        let Some(wqe) = self.queue.pop() else {
            return Ok(());
        };
        if Exchange::of(&wqe.operation) == Exchange::Answered {
            self.account.unfinished -= 1;
        }
        if matches!(self.failed, Some((failed, _)) if failed == number) {
            self.failed = None; // an earlier transmission of it had arrived
        }
        self.answer = Answer::default();
        if is_send(&wqe.operation) {
            common.counters.rdma_sends += 1;
        }
        if !(common.signal_all || wqe.flags.contains(SendFlags::SIGNALED)) {
            return Ok(());
        }
        let opcode = wqe.completion_opcode();
        let completion = WorkCompletion::success(wqe.id, opcode, wqe.length, common.qpn);
        // spec: IBA 11.6.3.3: a queue pair whose completion was lost cannot go on
        common
            .send_cq
            .push(completion, false)
            .map_err(|_| Cause::Fault)
    }

    fn may_start<H: Host>(&self, common: &Common<H>, wqe: &SendWqe, exchange: Exchange) -> bool {
        common.state == State::ReadyToSend
            // spec: IBA 10.8.3.3: a fence waits for READs and atomics
            && !(wqe.flags.contains(SendFlags::FENCE) && self.account.unfinished > 0)
            // spec: IBA 10.6.5.1: an invalidation waits for all before it
            && (exchange != Exchange::Local || self.queue.head() == self.next)
    }

    /// Gives positions to the work request that is sent for the first time. What cannot be sent
    /// as a whole is not begun, so that the peer is not left with half of a message.
    fn begin<H: Host>(&mut self, turn: &Turn<'_, H>) -> Result<(), Status> {
        if self.next < self.started {
            return Ok(());
        }
        let Some(wqe) = self.queue.get_mut(self.next) else {
            return Ok(());
        };
        let answered = Exchange::of(&wqe.operation) == Exchange::Answered;
        if answered && turn.common.attributes.max_rd_atomic == 0 {
            return Err(Status::LocalQpOperation); // it could never start
        }
        let packets = self.cut.packets(&wqe.operation, wqe.length);
        if answered || packets > 1 {
            let need = if answered {
                Access::LOCAL_WRITE
            } else {
                Access::empty()
            };
            SgeCursor::default().advance(&wqe.sges, wqe.length, |piece| {
                check(turn, piece, need).map(drop)
            })?;
        }
        wqe.first = self.at.assigned;
        wqe.packets = packets;
        self.at.assigned = wqe.end();
        self.started = self.started.next();
        self.account.unfinished += u32::from(answered);
        Ok(())
    }

    /// Sends the packet at `sent`. Nothing is changed if its bytes cannot be reached. The last packet
    /// of a turn asks for an acknowledgement: who knows when the next turn is.
    fn send_packet<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        is_end_of_turn: bool,
    ) -> Result<(), Status> {
        let Some(wqe) = self.queue.get(self.next) else {
            return Ok(());
        };
        let position = self.at.sent;
        let psn = self.numbering.psn(position);
        let to = turn.common.attributes.dest_qpn;
        let mut segment = self.cut.segment(wqe, position, to, psn);

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

        let charge = self.charge_of(wqe, position, segment.end);
        turn.destination.charge(charge);
        self.account.charged += charge;
        self.account.unasked += charge;
        if is_end_of_turn || self.must_ask(turn.destination) {
            segment.header.bth.ack_request = true;
        }
        if segment.header.bth.ack_request {
            self.account.unasked = 0;
        }
        let origin = Origin {
            qp: turn.common.index(),
            psn,
            is_response: false,
        };
        out.push(turn.common.path, origin, segment.header, inline, spans);
        turn.common.counters.sent_packets += 1;

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
    /// flight without asking, or nothing more can leave before one arrives. spec: IBA 9.7.3.1
    fn must_ask(&self, destination: &Destination) -> bool {
        self.account.unasked >= destination.limit() / 2
            || !destination.has_room()
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

    /// Panics if the requester contradicts itself; for tests.
    pub fn assert_invariants(&self) {
        let Positions {
            acked,
            sent,
            transmitted,
            assigned,
        } = self.at;
        assert!(acked <= sent && sent <= transmitted && transmitted <= assigned);
        let (head, end) = (self.queue.head(), self.queue.end());
        assert!(head <= self.next && self.next <= self.started && self.started <= end);
        let mut expected = (acked, 0_u64, 0_u32);
        let mut number = head;
        while number < self.started {
            let wqe = self.queue.get(number).expect("a started work request");
            assert!(wqe.first <= expected.0 && expected.0 <= wqe.end());
            let upto = wqe.end().min(sent);
            if upto > expected.0 {
                expected.1 += self.charge_of(wqe, expected.0, upto);
            }
            expected.0 = wqe.end();
            expected.2 += u32::from(Exchange::of(&wqe.operation) == Exchange::Answered);
            number = number.next();
        }
        assert_eq!(expected.0, assigned);
        assert_eq!(
            expected.1, self.account.charged,
            "charge of what is in flight"
        );
        assert_eq!(expected.2, self.account.unfinished, "unfinished READs");
    }
}

/// Proves one piece of a scatter/gather list.
pub(super) fn check<H: Host>(turn: &Turn<'_, H>, piece: Sge, need: Access) -> Result<Span, Status> {
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

fn is_send(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Send | Operation::SendImmediate(_) | Operation::SendInvalidate(_)
    )
}
