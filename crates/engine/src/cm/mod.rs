//! Connection management: who asks whom for a connection, and how it ends.
//!
//! Read first: IBA 12.9 for the states, 12.6 for the messages, 12.11 for service ID resolution. A
//! [`Cm`] has all connections of a process. One struct is one state and owns what only that state
//! knows; moving on consumes it:
//!
//! | side | states | file |
//! |---|---|---|
//! | active | REQ sent, REP received | `active.rs` |
//! | passive | REQ received, REP sent | `passive.rs` |
//! | both | established, DREQ sent, DREQ received, time wait | `release.rs` |
//! | both | refused | `reject.rs` |
//! | datagrams | SIDR sent, SIDR received, SIDR answered | `sidr.rs` |
//!
//! # The contract
//!
//! Like the rest of the engine this is driven by one caller at a time and knows no clock.
//!
//! - *Verbs* ([`Cm::connect`], [`Cm::accept`], …) take what the program wants, under the ID that
//!   `connect` or the event of a request gave it, until [`Cm::destroy`].
//! - [`Cm::handle_mad`] takes a datagram that came to queue pair 1, [`Cm::handle_timeout`] the
//!   time.
//! - After any of these, call [`Cm::poll_transmit`] and [`Cm::poll_event`] until `None`, then sleep
//!   until [`Cm::next_deadline`] at the latest.
//! - Queue pairs are numbers here. The passive side moves its own to RTS *before* it accepts: data
//!   may come before the RTU does. The active side moves its own when it is told of the response,
//!   and then establishes.
//!
//! After a process is gone its connections are too: nobody remembers time waits for it.

mod active;
mod connection;
mod event;
mod ids;
mod options;
mod passive;
mod receive;
mod reject;
mod release;
mod retry;
mod sidr;
mod table;
#[cfg(test)]
mod tests;
mod verbs;

pub use connection::Outgoing;
pub use event::{
    CmEvent, CmEventKind, ConnectResponse, IncomingConnect, IncomingSidr, Rejection,
    RemoteQueuePair, SidrResponse,
};
pub use options::{
    Accept, Config, ConnectRequest, Enhancements, LocalQueuePair, SidrAnswer, SidrRequest,
};
pub use receive::MadOutcome;
pub use reject::Refusal;
pub use retry::{ack_timeout, duration};
pub use verbs::CmError;

use std::collections::HashMap;

use wire::mad::{CommId, ServiceId};

use crate::time::Instant;

use connection::{Common, Context, Output, State};
use ids::Ids;
use table::Table;

/// All connections of a process; see the [module](self).
#[derive(Debug)]
pub struct Cm {
    config: Config,
    ids: Ids,
    table: Table,
    listeners: HashMap<ServiceId, Listener>,
    /// Of the next listener.
    listener_serial: u64,
    out: Output,
}

/// Somebody who takes requests for a service.
#[derive(Debug)]
struct Listener {
    /// Tells it from an earlier one for the same service.
    serial: u64,
    backlog: usize,
    /// Requests that count against the backlog.
    waiting: usize,
}

/// A request's place in a backlog.
#[derive(Clone, Copy, Debug)]
struct Place {
    service: ServiceId,
    serial: u64,
}

impl Cm {
    /// No connections.
    pub fn new(config: Config) -> Self {
        Self {
            ids: Ids::new(config.slot, config.seed),
            config,
            table: Table::default(),
            listeners: HashMap::new(),
            listener_serial: 0,
            out: Output::default(),
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.transmit.pop_front()
    }

    /// The next thing that the program has to know. Events of one connection come in order.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.out.events.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.table.earliest().map(|(at, _)| at)
    }

    /// Sends again, gives up and forgets what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.table.earliest().filter(|&(at, _)| at <= now) {
            self.step(now, id, |state, cx| (state.expire(cx), ()));
        }
    }

    /// How many connections are remembered, those included that the program has destroyed.
    pub fn connection_count(&self) -> usize {
        self.table.len()
    }

    /// Whether all invariants hold, or what is wrong; for tests and simulation.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.table.check()
    }

    /// Takes a connection's state, puts back the one that `change` makes of it, and settles what
    /// depends on it. `None` if there is no such connection.
    fn step<R>(
        &mut self,
        now: Instant,
        id: CommId,
        change: impl FnOnce(State, &mut Context<'_>) -> (State, R),
    ) -> Option<R> {
        let entry = self.table.get_mut(id)?;
        let state = core::mem::replace(&mut entry.state, State::Idle);
        let mut cx = Context {
            now,
            config: &self.config,
            common: &mut entry.common,
            out: &mut self.out,
        };
        let (state, result) = change(state, &mut cx);
        entry.state = state;
        if !entry.state.awaits_answer() {
            let waits_at = entry.waits_at.take();
            self.leave_backlog(waits_at);
        }
        self.table.settle(id);
        Some(result)
    }

    /// A new connection, begun by `start`.
    fn begin(
        &mut self,
        now: Instant,
        waits_at: Option<Place>,
        common: impl FnOnce(CommId) -> Common,
        start: impl FnOnce(&mut Context<'_>) -> State,
    ) -> CommId {
        let id = self.ids.next(|id| !self.table.contains(id));
        self.table.insert(common(id), waits_at);
        self.step(now, id, |_, cx| (start(cx), ()));
        id
    }

    fn is_full(&self) -> bool {
        self.table.len() >= self.config.connections_max
    }

    /// A request gives its place in a backlog back, if the listener is still the same.
    fn leave_backlog(&mut self, place: Option<Place>) {
        let listener = place.and_then(|Place { service, serial }| {
            let listener = self.listeners.get_mut(&service)?;
            (listener.serial == serial).then_some(listener)
        });
        if let Some(listener) = listener {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}
