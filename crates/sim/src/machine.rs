//! What a simulated world needs of a host: the model of the engine, and the real device.

use engine::qp::{AttributeMask, Attributes, SendRequest, State};
use engine::{Instant, ReceiveWqe, WorkCompletion};
use wire::Qpn;

use crate::ground::Ground;
use crate::rng::Rng;
use crate::scenario::Scenario;

/// One host with its queue pairs, one for each connection.
pub trait Machine: Sized {
    /// Its memory.
    type Ground: Ground + Clone;

    /// Host `number` (0 or 1), with queue pairs in RESET.
    fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self;

    /// Its memory.
    fn ground(&self) -> &Self::Ground;

    /// The number of a queue pair.
    fn qpn(&self, connection: usize) -> Qpn;

    /// Takes a queue pair away and makes another one.
    fn replace(&mut self, connection: usize);

    /// Changes a queue pair. An error says why nothing was changed.
    fn modify(
        &mut self,
        now: Instant,
        connection: usize,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<(), String>;

    /// The state of a queue pair.
    fn state(&self, connection: usize) -> Option<State>;

    /// Posts a send; false if the queue is full.
    fn post_send(
        &mut self,
        now: Instant,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<bool, String>;

    /// Posts a receive; false if the queue is full.
    fn post_receive(&mut self, connection: usize, wqe: ReceiveWqe) -> bool;

    /// Takes the oldest completion.
    fn poll(&mut self, now: Instant) -> Option<WorkCompletion>;

    /// Whether no completion waits.
    fn is_polled(&self) -> bool;

    /// A datagram arrives at the receive buffer; false if that is full.
    fn arrives(&mut self, bytes: Vec<u8>) -> bool;

    /// Deals with everything that arrived, is due, or must leave. Calls `look` as often as the
    /// memory may have changed; `sent` takes the packets that leave.
    fn turn(
        &mut self,
        now: Instant,
        look: &mut dyn FnMut(&Self::Ground) -> Result<(), String>,
        sent: &mut Vec<Vec<u8>>,
    ) -> Result<(), String>;

    /// What happened to queue pairs since the last call.
    fn happened(&mut self) -> Vec<Happening>;

    /// When it wants a turn at the latest.
    fn wakes_at(&self, now: Instant) -> Option<Instant>;

    /// What it counted.
    fn tally(&self) -> Tally;

    /// Panics if the machine contradicts itself.
    fn assert_invariants(&self) {}
}

/// Something that a queue pair tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It went to the error state by itself.
    Failed {
        /// Which.
        connection: usize,
    },
    /// All that was started before SQD is done.
    Drained {
        /// Which.
        connection: usize,
    },
}

/// Counts of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Times that a requester went back.
    pub retries: u64,
    /// RNR NAKs sent.
    pub not_ready: u64,
    /// Datagrams that found the receive buffer full.
    pub overflowed: u64,
}
