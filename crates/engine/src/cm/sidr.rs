//! Service ID resolution: one question, one answer, no connection.
//!
//! Read first: IBA 12.11.

use wire::PKey;
use wire::mad::{CommId, ServiceId, SidrRep, SidrReq, TransactionId};

use super::connection::{Common, Context, MadBytes, State, path_back};
use super::event::{CmEventKind, IncomingSidr, SidrResponse};
use super::options::{SidrAnswer, SidrRequest};
use super::retry::{Expired, Kept, Resend, Schedule, duration};
use crate::path::PathMeta;

/// How often peers ask again, for want of a field that says so: 4.096 µs · 2^20.
const PEERS_WAIT: core::time::Duration = core::time::Duration::from_millis(4096);

/// Waits for the answer.
#[derive(Debug)]
pub(super) struct SidrSent {
    pub resend: Resend,
}

impl SidrSent {
    /// What is known before asking.
    pub fn common(local_id: CommId, request: &SidrRequest) -> Common {
        let schedule = Schedule {
            wait: duration(request.response_timeout),
            retries: request.retries.get() as u8,
        };
        Common::new(local_id, request.path, schedule)
    }

    /// Asks.
    pub fn start(cx: &mut Context<'_>, request: &SidrRequest) -> State {
        let mad = cx.send(SidrReq {
            request_id: cx.common.local_id,
            pkey: PKey::DEFAULT,
            service: request.service,
            private_data: request.private_data,
        });
        State::SidrSent(Self {
            resend: Resend::new(cx, mad),
        })
    }

    /// The answer.
    pub fn rep(self, cx: &mut Context<'_>, rep: &SidrRep) -> State {
        cx.tell(CmEventKind::SidrResponse(Box::new(SidrResponse {
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data,
        })));
        State::Idle
    }

    /// The time is up.
    pub fn expire(self, cx: &mut Context<'_>) -> State {
        match self.resend.expire(cx) {
            Expired::Again(resend) => State::SidrSent(Self { resend }),
            Expired::GivenUp => {
                cx.tell(CmEventKind::Unreachable);
                State::Idle
            }
        }
    }
}

/// Waits for the program.
#[derive(Debug)]
pub(super) struct SidrReceived {
    service: ServiceId,
}

impl SidrReceived {
    /// What is known when somebody asks. The peer's request ID takes the place of its communication
    /// ID; it tells no GUID.
    pub fn common(
        local_id: CommId,
        transaction: TransactionId,
        req: &SidrReq,
        meta: &PathMeta,
    ) -> Common {
        let schedule = Schedule {
            wait: PEERS_WAIT,
            retries: 0,
        };
        Common {
            remote_id: req.request_id,
            transaction,
            ..Common::new(local_id, path_back(meta), schedule)
        }
    }

    /// Tells the program.
    pub fn start(cx: &mut Context<'_>, req: &SidrReq) -> State {
        cx.tell(CmEventKind::SidrRequest(Box::new(IncomingSidr {
            service: req.service,
            path: cx.common.path,
            private_data: req.private_data,
        })));
        State::SidrReceived(Self {
            service: req.service,
        })
    }

    /// The program answers.
    pub fn answer(self, cx: &mut Context<'_>, answer: &SidrAnswer) -> State {
        let rep = reply(cx.common.remote_id, self.service, answer);
        let mad = cx.send(rep);
        State::SidrAnswered(SidrAnswered {
            mad,
            kept: Kept::new(cx),
        })
    }
}

/// Answered; remembered for a while, in case the answer was lost.
#[derive(Debug)]
pub(super) struct SidrAnswered {
    mad: MadBytes,
    pub kept: Kept,
}

impl SidrAnswered {
    /// The time is up.
    pub fn expire(self, cx: &Context<'_>) -> State {
        match self.kept.expire(cx) {
            Some(kept) => State::SidrAnswered(Self { kept, ..self }),
            None => State::Idle,
        }
    }

    /// The program leaves.
    pub fn leave(self) -> State {
        match self.kept.leave() {
            Some(kept) => State::SidrAnswered(Self { kept, ..self }),
            None => State::Idle,
        }
    }

    /// The question again.
    pub fn again(&self, cx: &mut Context<'_>) {
        cx.send_again(&self.mad);
    }
}

/// The message of an answer.
pub(super) fn reply(request_id: CommId, service: ServiceId, answer: &SidrAnswer) -> SidrRep {
    SidrRep {
        request_id,
        status: answer.status,
        qpn: answer.qpn,
        service,
        qkey: answer.qkey,
        private_data: answer.private_data,
        ..SidrRep::default()
    }
}
