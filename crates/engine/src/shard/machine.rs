//! What of a queue pair depends on its transport.
//!
//! A shard drives every transport by the same calls. Where one has nothing to do, that is said
//! here: a datagram queue pair waits for no answer, so it has no timers and nothing in flight.

use wire::{Packet, Psn};

use crate::burst::Origin;
use crate::host::Host;
use crate::outcome::Outcome;
use crate::path::PathMeta;
use crate::qp::flush::Cause;
use crate::qp::send_queue::SendQueue;
use crate::qp::{PostError, SendRequest, Transport};
use crate::rc::ledger::Charge;
use crate::rc::{Rc, Responder, Timer, Turn};
use crate::shard::{Config, CreateError, QpOptions};
use crate::time::Instant;
use crate::ud::Ud;

/// The state machine of a queue pair.
#[expect(
    clippy::large_enum_variant,
    reason = "a queue pair has an allocation of its own, and connections are what must be fast"
)]
pub(super) enum Machine {
    /// Reliable connection.
    Rc(Rc),
    /// Unreliable datagrams.
    Ud(Ud),
}

impl Machine {
    /// A queue pair in RESET.
    pub(super) fn new<H: Host>(
        options: &QpOptions<H>,
        config: &Config,
    ) -> Result<Self, CreateError> {
        match options.transport {
            Transport::Rc => Ok(Self::Rc(Rc::new(&options.capabilities, config))),
            Transport::Ud => Ok(Self::Ud(Ud::new(&options.capabilities, options.port_mtu))),
            Transport::Uc => Err(CreateError::Unsupported),
        }
    }

    pub(super) fn transport(&self) -> Transport {
        match self {
            Self::Rc(_) => Transport::Rc,
            Self::Ud(_) => Transport::Ud,
        }
    }

    /// The class of opcodes that it takes.
    pub(super) fn wire_transport(&self) -> wire::Transport {
        match self {
            Self::Rc(_) => wire::Transport::Rc,
            Self::Ud(_) => wire::Transport::Ud,
        }
    }

    /// What was posted and is not complete.
    pub(super) fn queue(&self) -> &SendQueue {
        match self {
            Self::Rc(rc) => &rc.requester.queue,
            Self::Ud(ud) => ud.queue(),
        }
    }

    /// Appends a work request.
    pub(super) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match self {
            Self::Rc(rc) => rc.requester.queue.push(request),
            Self::Ud(ud) => ud.post(request),
        }
    }

    /// Whether a work request could be posted, apart from the room for it.
    pub(super) fn check(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match self {
            Self::Rc(rc) => rc.requester.queue.check(request).map(drop),
            Self::Ud(ud) => ud.check(request).map(drop),
        }
    }

    pub(super) fn next_psn(&self) -> Psn {
        match self {
            Self::Rc(rc) => rc.requester.next_psn(),
            Self::Ud(ud) => ud.next_psn(),
        }
    }

    /// The PSN that the next request of the peer must have.
    pub(super) fn expected_psn(&self) -> Option<Psn> {
        match self {
            Self::Rc(rc) => Some(rc.responder.expected()),
            Self::Ud(_) => None,
        }
    }

    /// Whether nothing that was started is incomplete.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.requester.is_drained(),
            Self::Ud(ud) => ud.is_drained(),
        }
    }

    /// What the accounts are charged for it.
    pub(super) fn charged(&self) -> Charge {
        match self {
            Self::Rc(rc) => rc.requester.charged(),
            Self::Ud(_) => Charge::default(),
        }
    }

    pub(super) fn deadline(&self, timer: Timer) -> Option<Instant> {
        match self {
            Self::Rc(rc) => rc.requester.deadline(timer),
            Self::Ud(_) => None,
        }
    }

    pub(super) fn handle_timer<H: Host>(&mut self, turn: &mut Turn<'_, H>, timer: Timer) {
        if let Self::Rc(rc) = self {
            rc.handle_timer(turn, timer);
        }
    }

    /// Takes a packet that is for it and that its state admits.
    pub(super) fn handle_packet<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        packet: &Packet<'_>,
        meta: &PathMeta,
    ) -> Outcome {
        match self {
            Self::Rc(rc) => rc.handle_packet(turn, packet),
            Self::Ud(ud) => ud.handle_packet(turn.common, packet, meta, turn.memory),
        }
    }

    /// A packet of the burst could not be gathered.
    pub(super) fn transmit_failed<H: Host>(&mut self, turn: &mut Turn<'_, H>, origin: Origin) {
        match self {
            Self::Rc(rc) => rc.transmit_failed(turn, origin),
            Self::Ud(ud) => ud.transmit_failed(turn.common, origin.psn),
        }
    }

    /// Moves it to the error state and flushes it.
    pub(super) fn fail<H: Host>(&mut self, turn: &mut Turn<'_, H>, cause: Cause) {
        match self {
            Self::Rc(rc) => rc.fail(turn, cause),
            Self::Ud(ud) => ud.fail(turn.common, cause),
        }
    }

    /// As it was made.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Rc(rc) => {
                rc.requester.reset();
                rc.responder = Responder::new();
            }
            Self::Ud(ud) => ud.reset(),
        }
    }

    /// Gives back what the accounts are charged, and lets no timer run.
    pub(super) fn stop(&mut self) -> Charge {
        match self {
            Self::Rc(rc) => {
                let charge = rc.requester.give_up();
                rc.requester.stop();
                charge
            }
            Self::Ud(_) => Charge::default(),
        }
    }

    pub(super) fn assert_invariants(&self) {
        match self {
            Self::Rc(rc) => rc.requester.assert_invariants(),
            Self::Ud(ud) => ud.assert_invariants(),
        }
    }
}
