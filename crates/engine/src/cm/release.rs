//! Established, and how it ends: DREQ sent, DREQ received, time wait.
//!
//! Read first: IBA 12.9.

use wire::mad::{CommId, Drep, Dreq, Padded, TransactionId};

use super::connection::{Context, MadBytes, State, own_transaction};
use super::event::CmEventKind;
use super::retry::{Expired, Resend};
use crate::time::Instant;

/// Both sides may send.
#[derive(Debug)]
pub(super) struct Established {
    /// The active side's last message, for a peer that did not get it.
    rtu: Option<MadBytes>,
}

impl Established {
    /// The active side, which has sent an RTU.
    pub fn active(rtu: MadBytes) -> Self {
        Self { rtu: Some(rtu) }
    }

    /// The passive side.
    pub fn passive() -> Self {
        Self { rtu: None }
    }

    /// The peer's REP again: it has not got the RTU.
    pub fn rep_again(&self, cx: &mut Context<'_>) {
        if let Some(rtu) = &self.rtu {
            cx.send_again(rtu);
        }
    }

    /// The program closes.
    pub fn disconnect(self, cx: &mut Context<'_>, private_data: Padded<220>) -> State {
        let dreq = Dreq {
            local_id: cx.common.local_id,
            remote_id: cx.common.remote_id,
            remote_qpn: cx.common.remote_qpn,
            private_data,
        };
        let mad = cx.send_in(own_transaction(cx.common.local_id), dreq);
        State::DreqSent(DreqSent {
            resend: Resend::new(cx, mad),
        })
    }

    /// The peer closes.
    pub fn dreq(self, cx: &mut Context<'_>, transaction: TransactionId) -> State {
        DreqReceived::start(cx, transaction)
    }
}

/// Waits for a DREP.
#[derive(Debug)]
pub(super) struct DreqSent {
    pub resend: Resend,
}

impl DreqSent {
    /// The peer's answer.
    pub fn drep(self, cx: &mut Context<'_>) -> State {
        cx.tell(CmEventKind::Disconnected {
            has_timed_out: false,
        });
        TimeWait::start(cx)
    }

    /// Both sides close. The program has said so already: the answer need not wait for it.
    pub fn dreq(self, cx: &mut Context<'_>, transaction: TransactionId) -> State {
        cx.tell(CmEventKind::Disconnected {
            has_timed_out: false,
        });
        send_drep(cx, transaction, Padded::default());
        TimeWait::start(cx)
    }

    /// The time is up.
    pub fn expire(self, cx: &mut Context<'_>) -> State {
        match self.resend.expire(cx) {
            Expired::Again(resend) => State::DreqSent(Self { resend }),
            Expired::GivenUp => {
                cx.tell(CmEventKind::Disconnected {
                    has_timed_out: true,
                });
                TimeWait::start(cx)
            }
        }
    }
}

/// The peer has closed; waits for the program to close as well.
#[derive(Debug)]
pub(super) struct DreqReceived {
    transaction: TransactionId,
}

impl DreqReceived {
    /// Tells the program.
    pub fn start(cx: &mut Context<'_>, transaction: TransactionId) -> State {
        cx.tell(CmEventKind::Disconnected {
            has_timed_out: false,
        });
        State::DreqReceived(Self { transaction })
    }

    /// The program closes.
    pub fn answer(self, cx: &mut Context<'_>, private_data: Padded<224>) -> State {
        send_drep(cx, self.transaction, private_data);
        TimeWait::start(cx)
    }
}

/// Closed, but packets of it may be under way: its names are not free yet.
#[derive(Debug)]
pub(super) struct TimeWait {
    pub until: Instant,
}

impl TimeWait {
    /// From now on.
    pub fn start(cx: &Context<'_>) -> State {
        State::TimeWait(Self {
            until: cx.now.plus(cx.common.time_wait),
        })
    }

    /// The peer's DREQ again, or after its REJ: it has not got the answer.
    pub fn dreq(&self, cx: &mut Context<'_>, transaction: TransactionId) {
        send_drep(cx, transaction, Padded::default());
    }
}

/// The answer to a DREQ for a connection that nobody knows: it lets the peer finish.
pub(super) fn drep_to_stranger(dreq: &Dreq) -> Drep {
    Drep {
        local_id: dreq.remote_id,
        remote_id: dreq.local_id,
        private_data: Padded::default(),
    }
}

fn send_drep(cx: &mut Context<'_>, transaction: TransactionId, private_data: Padded<224>) {
    let local_id: CommId = cx.common.local_id;
    let remote_id = cx.common.remote_id;
    cx.send_in(
        transaction,
        Drep {
            local_id,
            remote_id,
            private_data,
        },
    );
}
