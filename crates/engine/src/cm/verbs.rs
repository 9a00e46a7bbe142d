//! What the program asks for.

use wire::mad::{CommId, Padded, RejectReason, ServiceId, SidrStatus};

use super::active::ReqSent;
use super::connection::{Context, Ownership, State};
use super::options::{Accept, ConnectRequest, SidrAnswer, SidrRequest};
use super::reject::{Refusal, Refused};
use super::sidr::SidrSent;
use super::{Cm, Listener};
use crate::time::Instant;

/// Why a verb did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// There is no connection with this ID.
    Unknown,
    /// Not in this state of the connection.
    State,
    /// The connection is established already.
    Established,
    /// Somebody listens on this service already.
    InUse,
    /// There are as many connections as there may be.
    Full,
}

impl core::fmt::Display for CmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no connection has this ID",
            Self::State => "the connection is in another state",
            Self::Established => "the connection is established",
            Self::InUse => "somebody listens on this service",
            Self::Full => "there are too many connections",
        })
    }
}

impl std::error::Error for CmError {}

impl Cm {
    /// Takes requests for a service, of both kinds. At most `backlog` of them wait for an answer;
    /// a request that finds the backlog full is forgotten, and comes again.
    pub fn listen(&mut self, service: ServiceId, backlog: usize) -> Result<(), CmError> {
        if self.listeners.contains_key(&service) {
            return Err(CmError::InUse);
        }
        self.listener_serial += 1;
        let listener = Listener {
            serial: self.listener_serial,
            backlog,
            waiting: 0,
        };
        self.listeners.insert(service, listener);
        Ok(())
    }

    /// Takes no more requests for a service. Those that were told of stay: destroy them.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.listeners.remove(&service);
    }

    /// The program has fetched the event of a request, which no longer counts against the backlog.
    /// Optional: an answer does the same.
    pub fn delivered(&mut self, id: CommId) {
        let waits_at = self
            .table
            .get_mut(id)
            .and_then(|entry| entry.waits_at.take());
        self.leave_backlog(waits_at);
    }

    /// Asks for a connection. The answer is an event of the ID.
    pub fn connect(&mut self, now: Instant, request: &ConnectRequest) -> Result<CommId, CmError> {
        if self.is_full() {
            return Err(CmError::Full);
        }
        let common = |id| ReqSent::common(id, request);
        Ok(self.begin(now, None, common, |cx| ReqSent::start(cx, request)))
    }

    /// Active side: the queue pair is ready. Sends the RTU; the connection is established.
    pub fn establish(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: Padded<224>,
    ) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::RepReceived(state) => Ok(state.establish(cx, private_data)),
            other => Err(other),
        })
    }

    /// Passive side: accepts a request. The queue pair has to be in RTS.
    pub fn accept(&mut self, now: Instant, id: CommId, accept: &Accept) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::ReqReceived(state) => Ok(state.accept(cx, accept)),
            other => Err(other),
        })
    }

    /// Passive side: data came before the RTU did, and the connection is established by that.
    pub fn notify_established(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        let known = self.table.get(id).map(|entry| &entry.state);
        if matches!(known, Some(State::Established(_))) {
            return Err(CmError::Established);
        }
        self.verb(now, id, |state, cx| match state {
            State::RepSent(state) => Ok(state.establish(cx, None)),
            other => Err(other),
        })
    }

    /// Refuses a request, or a response to one.
    pub fn reject(&mut self, now: Instant, id: CommId, refusal: &Refusal) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::ReqReceived(state) => Ok(state.reject(cx, refusal)),
            State::RepReceived(state) => Ok(state.reject(cx, refusal)),
            State::RepSent(state) => Ok(state.reject(cx, refusal)),
            other => Err(other),
        })
    }

    /// Asks the peer to wait longer for an answer of the program. This happens by itself when the
    /// peer asks again.
    pub fn mra(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::ReqReceived(state) => {
                state.mra(cx);
                Ok(State::ReqReceived(state))
            }
            State::RepReceived(state) => {
                state.mra(cx);
                Ok(State::RepReceived(state))
            }
            other => Err(other),
        })
    }

    /// Closes a connection, or agrees to the peer's closing it.
    pub fn disconnect(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::Established(state) => Ok(state.disconnect(cx, Padded::default())),
            State::DreqReceived(state) => Ok(state.answer(cx, Padded::default())),
            other => Err(other),
        })
    }

    /// Asks for a datagram queue pair. The answer is an event of the ID.
    pub fn resolve(&mut self, now: Instant, request: &SidrRequest) -> Result<CommId, CmError> {
        if self.is_full() {
            return Err(CmError::Full);
        }
        let common = |id| SidrSent::common(id, request);
        Ok(self.begin(now, None, common, |cx| SidrSent::start(cx, request)))
    }

    /// Answers who asked for a datagram queue pair.
    pub fn answer_sidr(
        &mut self,
        now: Instant,
        id: CommId,
        answer: &SidrAnswer,
    ) -> Result<(), CmError> {
        self.verb(now, id, |state, cx| match state {
            State::SidrReceived(state) => Ok(state.answer(cx, answer)),
            other => Err(other),
        })
    }

    /// Leaves a request without an answer, as if it had not come, and the ID with it: there is no
    /// room for it now. The peer asks again.
    pub fn forget(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        let is_forgotten = self.verb(now, id, |state, cx| match state {
            State::ReqReceived(_) | State::SidrReceived(_) => {
                cx.common.ownership = Ownership::Nobody;
                Ok(State::Idle)
            }
            other => Err(other),
        });
        if is_forgotten.is_ok() {
            self.out.events.retain(|event| event.id != id);
        }
        is_forgotten
    }

    /// The program leaves the connection and its ID, in whatever state it is. The peer is told;
    /// no further event comes, those that were not fetched are gone.
    pub fn destroy(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        let is_known = self.step(now, id, |state, cx| {
            cx.common.ownership = Ownership::Nobody;
            (leave(state, cx), ())
        });
        self.out.events.retain(|event| event.id != id);
        is_known.ok_or(CmError::Unknown)
    }

    /// A step that a state takes or refuses to take.
    fn verb(
        &mut self,
        now: Instant,
        id: CommId,
        change: impl FnOnce(State, &mut Context<'_>) -> Result<State, State>,
    ) -> Result<(), CmError> {
        let result = self.step(now, id, |state, cx| {
            if cx.common.ownership == Ownership::Nobody {
                return (state, Err(CmError::Unknown));
            }
            match change(state, cx) {
                Ok(state) => (state, Ok(())),
                Err(state) => (state, Err(CmError::State)),
            }
        });
        result.unwrap_or(Err(CmError::Unknown))
    }
}

/// What the peer is told when the program leaves.
fn leave(state: State, cx: &mut Context<'_>) -> State {
    let refusal = Refusal::new(RejectReason::Consumer);
    match state {
        State::ReqSent(_) => Refused::start(cx, cx.given_up()),
        State::ReqReceived(state) => state.reject(cx, &refusal),
        State::RepReceived(state) => state.reject(cx, &refusal),
        State::RepSent(state) => state.reject(cx, &refusal),
        State::Established(state) => state.disconnect(cx, Padded::default()),
        State::DreqReceived(state) => state.answer(cx, Padded::default()),
        State::SidrReceived(state) => state.answer(cx, &SidrAnswer::refusal(SidrStatus::Rejected)),
        State::SidrSent(_) => State::Idle,
        State::Refused(state) => state.leave(),
        State::SidrAnswered(state) => state.leave(),
        state @ (State::Idle | State::DreqSent(_) | State::TimeWait(_)) => state,
    }
}
