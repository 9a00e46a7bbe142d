//! Refusing, and being refused.
//!
//! Read first: IBA 12.6.7 for the reasons. A REJ is never sent on a timer, only again when the peer
//! repeats what it answered. So the refusal is remembered for a while: without that the repeated
//! REQ would be a new one to the program.

use wire::Gid;
use wire::mad::{Bits, CommId, Padded, Rej, RejectReason};

use super::connection::{Context, State};
use super::event::{CmEventKind, Rejection};
use super::receive::MadOutcome;
use super::release::TimeWait;
use super::retry::Kept;

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: RejectReason,
    /// Bytes of `info` that count.
    pub info_length: Bits<7>,
    /// What would have been right; depends on the reason.
    pub info: Padded<72>,
    /// The consumer's.
    pub private_data: Padded<148>,
}

impl Refusal {
    /// A refusal without additional information and private data.
    pub fn new(reason: RejectReason) -> Self {
        Self {
            reason,
            info_length: Bits::default(),
            info: Padded::default(),
            private_data: Padded::default(),
        }
    }

    /// The refusal of a request that names an address which is not the one it came to.
    pub(super) fn wrong_gid(right: Gid) -> Self {
        Self {
            info_length: Bits::truncated(right.0.len() as u32),
            info: Padded::new(&right.0).unwrap_or_default(), // 16 bytes do fit
            ..Self::new(RejectReason::PrimaryGid)
        }
    }
}

/// Refused, or given up.
#[derive(Debug)]
pub(super) struct Refused {
    rej: Box<Rej>,
    pub kept: Kept,
}

impl Refused {
    /// Sends the REJ.
    pub fn start(cx: &mut Context<'_>, rej: Rej) -> State {
        cx.send(rej);
        State::Refused(Self {
            rej: Box::new(rej),
            kept: Kept::new(cx),
        })
    }

    /// The time is up.
    pub fn expire(self, cx: &Context<'_>) -> State {
        match self.kept.expire(cx) {
            Some(kept) => State::Refused(Self { kept, ..self }),
            None => State::Idle,
        }
    }

    /// The program leaves.
    pub fn leave(self) -> State {
        match self.kept.leave() {
            Some(kept) => State::Refused(Self { kept, ..self }),
            None => State::Idle,
        }
    }

    /// Sends it again: the peer, whose communication ID this is, has not got it.
    pub fn again(&self, cx: &mut Context<'_>, remote_id: CommId) {
        cx.send(Rej {
            remote_id,
            ..*self.rej
        });
    }
}

/// The peer refuses, or ends by a refusal what was established.
pub(super) fn refused_by_peer(
    state: State,
    cx: &mut Context<'_>,
    rej: &Rej,
) -> (State, MadOutcome) {
    let has_packets = match &state {
        State::ReqSent(_) | State::ReqReceived(_) | State::RepSent(_) => {
            rej.reason == RejectReason::StaleConnection
        }
        State::RepReceived(_) | State::Established(_) | State::DreqSent(_) => true,
        _ => return (state, MadOutcome::OutOfPlace),
    };
    cx.tell(CmEventKind::Rejected(Box::new(Rejection {
        reason: rej.reason,
        info: rej.info,
        private_data: rej.private_data,
    })));
    let next = if has_packets {
        TimeWait::start(cx)
    } else {
        State::Idle
    };
    (next, MadOutcome::Taken)
}
