//! Reliable connections: a requester and a responder that share one queue pair.
//!
//! Read first: IBA 9.7. Each half is a machine of its own; this file gives packets and timers to
//! the right one, sends responses before requests, and ends both when one of them cannot go on.

mod answers;
pub mod completer;
mod execute;
mod learned;
pub mod ledger;
mod refusal;
pub mod requester;
mod resources;
pub mod responder;
pub mod retry;
pub mod segment;
pub mod transmit;
pub mod window;

pub use requester::{Requester, Turn};
pub use responder::Responder;
pub use retry::Timer;
pub use transmit::Pause;

use wire::Packet;

use crate::access::Span;
use crate::burst::{Burst, Origin};
use crate::event::AsyncEvent;
use crate::host::Host;
use crate::outcome::Outcome;
use crate::qp::flush::{self, Cause};
use crate::qp::{Capabilities, State};
use crate::shard::Config;

/// Both halves of a reliable connection.
#[derive(Debug)]
pub struct Rc {
    /// What we ask of the peer.
    pub requester: Requester,
    /// What the peer asks of us.
    pub responder: Responder,
}

impl Rc {
    /// A queue pair in RESET.
    pub fn new(capabilities: &Capabilities, config: &Config) -> Self {
        Self {
            requester: Requester::new(capabilities, config),
            responder: Responder::new(),
        }
    }

    /// Takes a packet whose addresses and partition were checked and that the state admits.
    pub fn handle_packet<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        packet: &Packet<'_>,
    ) -> Outcome {
        if packet.opcode().is_response() {
            let handled = self.requester.handle_response(turn, packet);
            let outcome = *handled.as_ref().unwrap_or(&Outcome::Delivered);
            self.conclude(turn, handled);
            outcome
        } else {
            let handled = self
                .responder
                .handle_request(turn.common, turn.now, packet, turn.memory);
            if handled.fatal {
                self.fail(turn, Cause::Fault);
            }
            handled.outcome
        }
    }

    /// Appends responses, then at most `quota` requests.
    pub fn poll_transmit<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        quota: u32,
    ) -> Pause {
        let before = out.packets().len();
        let pause = self.fill(turn, spans, out, quota);
        turn.common.counters.sent_packets += (out.packets().len() - before) as u64;
        pause
    }

    /// A timer fired.
    pub fn handle_timer<H: Host>(&mut self, turn: &mut Turn<'_, H>, timer: Timer) {
        let handled = self.requester.handle_timer(turn, timer);
        self.conclude(turn, handled);
    }

    /// A packet of a burst could not be gathered.
    pub fn transmit_failed<H: Host>(&mut self, turn: &mut Turn<'_, H>, origin: Origin) {
        if turn.common.state == State::Error {
            return;
        }
        if origin.is_response {
            self.responder.answer_failed(turn.common, origin.psn);
            self.fail(turn, Cause::Fault);
        } else {
            let failed = self.requester.transmit_failed(turn, origin.psn);
            self.conclude(turn, failed);
        }
    }

    /// Moves the queue pair to the error state and flushes it.
    pub fn fail<H: Host>(&mut self, turn: &mut Turn<'_, H>, cause: Cause) {
        turn.give_up(self.requester.give_up());
        let half_received = self.responder.current_receive();
        flush::enter_error(turn.common, &mut self.requester.queue, half_received, cause);
        self.requester.reset();
    }

    /// Responses go before requests, but for an acknowledgement: it is the shortest packet, and
    /// behind the requests it shares their datagram. In the error state responses still leave: the
    /// last one is the NAK that says why.
    fn fill<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        quota: u32,
    ) -> Pause {
        let acknowledges_last = self.responder.owes_only_acknowledgement();
        if !acknowledges_last && !self.respond(turn, out) {
            return Pause::Busy { unused: quota };
        }
        let mut pause = Pause::Idle;
        if sends_requests(turn.common.state) {
            let polled = self.requester.poll_transmit(turn, spans, out, quota);
            pause = *polled.as_ref().unwrap_or(&Pause::Idle);
            self.conclude(turn, polled);
        }
        if self.respond(turn, out) {
            return pause;
        }
        let unused = match pause {
            Pause::Idle => quota,
            Pause::Busy { unused } | Pause::Full { unused, .. } => unused,
        };
        Pause::Busy { unused }
    }

    /// Appends all responses; false if there is no room for them.
    fn respond<H: Host>(&mut self, turn: &mut Turn<'_, H>, out: &mut Burst) -> bool {
        while self.responder.has_output() {
            if out.is_full() {
                return false;
            }
            let fatal = self
                .responder
                .poll_transmit(turn.common, turn.now, turn.memory, out);
            if fatal {
                self.fail(turn, Cause::Fault);
            }
        }
        true
    }

    /// Ends the connection if the requester could not go on, and tells when SQD is reached.
    fn conclude<H: Host, T>(&mut self, turn: &mut Turn<'_, H>, result: Result<T, Cause>) {
        if let Err(cause) = result {
            if cause == Cause::Fault {
                let event = AsyncEvent::Fatal(turn.common.index());
                turn.common.events.push(event);
            }
            self.fail(turn, cause);
        } else if turn.common.state == State::SendQueueDrained && self.requester.take_drained() {
            let event = AsyncEvent::SendQueueDrained(turn.common.index());
            turn.common.events.push(event);
        }
    }
}

/// Whether requests may leave, and responses to them be taken.
pub const fn sends_requests(state: State) -> bool {
    matches!(state, State::ReadyToSend | State::SendQueueDrained)
}

#[cfg(test)]
mod tests;
