//! The sending half of a reliable connection: what is posted, in flight and acknowledged.
//!
//! Read first: IBA 9.7.3 (requester). The idea: everything that was ever sent has a [`Position`];
//! `acked <= sent <= transmitted`. A retry sets `sent` back to `acked` and the same code sends the
//! same packets again. Which packet leaves next is in [`transmit`](super::transmit), what answers
//! do in [`completer`](super::completer), when to send again in [`retry`](super::retry).

use wire::Psn;

use crate::completion::Status;
use crate::host::Host;
use crate::qp::flush::Cause;
use crate::qp::position::{Numbering, Position};
use crate::qp::send_queue::{SendQueue, WqeNumber};
use crate::qp::sge_cursor::SgeCursor;
use crate::qp::{Attributes, Capabilities, Common};
use crate::rc::ledger::{Charge, Ledger};
use crate::rc::retry::{Retry, Timer};
use crate::rc::segment::{Cut, Exchange};
use crate::rc::window::{Buffer, Destination, DestinationIndex, Destinations, WindowConfig};
use crate::shard::Config;
use crate::time::Instant;

/// What a call on one queue pair works with.
pub struct Turn<'a, H: Host> {
    /// Now.
    pub now: Instant,
    /// The queue pair's common half.
    pub common: &'a mut Common<H>,
    /// What is in flight towards which receive buffer.
    pub accounts: &'a mut Destinations,
    /// The peer's.
    pub to: DestinationIndex,
    /// It waited longest for room: others that wait do not go before it.
    pub is_woken: bool,
    /// What the accounts are bounded by.
    pub credit: &'a H::Credit,
    /// Registered memory.
    pub memory: &'a H::Memory,
}

impl<H: Host> Turn<'_, H> {
    /// The account of the peer's buffer.
    pub(super) fn destination(&mut self) -> &mut Destination {
        self.accounts.get_mut(self.to)
    }

    /// Something leaves.
    pub(super) fn charge(&mut self, charge: Charge) {
        self.destination().charge(charge.out);
        if charge.back > 0 {
            self.accounts
                .get_mut(DestinationIndex::OWN)
                .charge(charge.back);
        }
    }

    /// Something was acknowledged or answered.
    pub(super) fn acknowledge(&mut self, charge: Charge) {
        let now = self.now;
        self.destination().acknowledge(now, charge.out);
        self.accounts
            .get_mut(DestinationIndex::OWN)
            .acknowledge(now, charge.back);
    }

    /// Something is not in flight any more, and nobody knows whether it arrived.
    pub(super) fn give_up(&mut self, charge: Charge) {
        self.accounts.give_up(self.to, charge);
    }

    /// Something was lost: a request, or the answer to one. Answers of this host can only have been
    /// lost in our own buffer.
    fn lose(&mut self, is_answer: bool) {
        if is_answer && matches!(self.destination().buffer(), Buffer::Here(_)) {
            self.accounts.get_mut(DestinationIndex::OWN).lose();
        } else {
            self.destination().lose();
        }
    }
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
/// Invariant: the ledger has the charges of the positions from `acked` to `sent`.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// What the accounts of the shard were charged.
    pub(super) ledger: Ledger,
    /// Charged to the peer's buffer since an acknowledgement was last asked for.
    pub(super) unasked: u64,
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
    pub(super) window: WindowConfig,
    pub(super) at: Positions,
    /// The work request that `at.sent` belongs to, or the one to start next.
    pub(super) next: WqeNumber,
    /// The first work request that is not started: it has no positions yet.
    pub(super) started: WqeNumber,
    /// Where `at.sent` is in the elements of `next`.
    pub(super) source: SgeCursor,
    pub(super) account: Account,
    pub(super) answer: Answer,
    /// A work request that cannot be sent. It ends once all before it are complete, unless an
    /// earlier transmission of it had arrived; then this says nothing any more.
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
            cut: Cut { mtu: 256 },
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
        self.cut = Cut {
            mtu: attributes.path_mtu.bytes(),
        };
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

    /// What the accounts of the shard are charged.
    pub fn charged(&self) -> Charge {
        self.account.ledger.total()
    }

    /// Nothing counts as in flight any more: what the accounts are to be given back.
    pub fn give_up(&mut self) -> Charge {
        self.account.unasked = 0;
        self.account.reads = 0;
        self.account.ledger.clear()
    }

    /// PSN of the packet that is sent next.
    pub fn next_psn(&self) -> Psn {
        self.numbering.psn(self.at.sent)
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
        turn.give_up(self.give_up());
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

    /// Goes back because something was lost. What is sent again is no more than the window that
    /// shrinks for it.
    pub(super) fn go_back_for_loss<H: Host>(&mut self, turn: &mut Turn<'_, H>) {
        let oldest = self.queue.get(self.queue.head());
        let is_answer = oldest.is_some_and(|wqe| {
            self.at.acked < self.at.assigned && Exchange::of(&wqe.operation) == Exchange::Answered
        });
        turn.lose(is_answer);
        self.go_back(turn);
    }

    /// Completes the oldest work request with success.
    pub(super) fn complete_oldest<H: Host>(&mut self, common: &mut Common<H>) -> Result<(), Cause> {
        let Some(wqe) = self.queue.pop() else {
            return Ok(());
        };
        if Exchange::of(&wqe.operation) == Exchange::Answered {
            self.account.unfinished -= 1;
        }
        self.answer = Answer::default();
        // spec: IBA 11.6.3.3: a queue pair whose completion was lost cannot go on
        common.complete_send(wqe).map_err(|_| Cause::Fault)
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
        let mut expected = (acked, 0_u32);
        let mut number = head;
        while number < self.started {
            let wqe = self.queue.get(number).expect("a started work request"); // ok: tests call it
            assert!(wqe.first <= expected.0 && expected.0 <= wqe.end());
            expected.0 = wqe.end();
            expected.1 += u32::from(Exchange::of(&wqe.operation) == Exchange::Answered);
            number = number.next();
        }
        assert_eq!(expected.0, assigned);
        self.account.ledger.assert_covers(acked, sent);
        assert_eq!(expected.1, self.account.unfinished, "unfinished READs");
    }
}
