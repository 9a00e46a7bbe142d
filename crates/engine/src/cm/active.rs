//! The side that asks: REQ sent, REP received.
//!
//! Read first: IBA 12.9.

use wire::mad::{Answered, Bits, CommId, Mra, Padded, Rep, Rtu};

use super::connection::{Common, Context, State};
use super::event::{CmEventKind, ConnectResponse, RemoteQueuePair};
use super::options::{ConnectRequest, Enhancements};
use super::reject::{Refusal, Refused};
use super::release::Established;
use super::retry::{Expired, Resend, Schedule, ack_timeout, duration};

/// Waits for a REP or a REJ. An MRA makes it wait longer.
#[derive(Debug)]
pub(super) struct ReqSent {
    pub resend: Resend,
    packet_life: Bits<5>,
}

impl ReqSent {
    /// What a connection knows before it asks.
    pub fn common(local_id: CommId, request: &ConnectRequest) -> Common {
        let wait = 2 * duration(request.packet_life) + duration(request.response_timeout);
        let schedule = Schedule {
            wait,
            retries: request.cm_retries.get() as u8,
        };
        Common {
            local_guid: request.local.guid,
            local_qpn: request.local.qpn,
            ..Common::new(local_id, request.path, schedule)
        }
    }

    /// Asks.
    pub fn start(cx: &mut Context<'_>, request: &ConnectRequest) -> State {
        let mut req = request.message(cx.config);
        req.local_id = cx.common.local_id;
        cx.common.time_wait = duration(req.primary.ack_timeout);
        let mad = cx.send_enhanced(req, request.enhancements.options);
        State::ReqSent(Self {
            resend: Resend::new(cx, mad),
            packet_life: request.packet_life,
        })
    }

    /// The peer accepts; `options` are those of its enhancements.
    pub fn rep(self, cx: &mut Context<'_>, rep: &Rep, options: u32) -> State {
        let ack_timeout = ack_timeout(self.packet_life, rep.target_ack_delay);
        cx.common.remote_id = rep.local_id;
        cx.common.remote_guid = rep.local_guid;
        cx.common.remote_qpn = rep.local_qpn;
        cx.common.time_wait = duration(ack_timeout);
        cx.tell(CmEventKind::ConnectResponse(Box::new(ConnectResponse {
            remote: RemoteQueuePair {
                guid: rep.local_guid,
                qpn: rep.local_qpn,
                starting_psn: rep.starting_psn,
                // what it has in flight is what we hold, and the other way round
                responder_resources: rep.initiator_depth,
                initiator_depth: rep.responder_resources,
                flow_control: rep.flow_control,
                rnr_retry_count: rep.rnr_retry_count,
                has_srq: rep.has_srq,
            },
            ack_timeout,
            enhancements: Enhancements {
                vendor: rep.vendor(),
                options,
            },
            private_data: rep.private_data,
        })));
        State::RepReceived(RepReceived)
    }

    /// The peer takes its time.
    pub fn mra(mut self, cx: &Context<'_>, mra: &Mra) -> State {
        self.resend.extend(cx, duration(mra.service_timeout));
        State::ReqSent(self)
    }

    /// The time is up.
    pub fn expire(self, cx: &mut Context<'_>) -> State {
        match self.resend.expire(cx) {
            Expired::Again(resend) => State::ReqSent(Self { resend, ..self }),
            Expired::GivenUp => {
                cx.tell(CmEventKind::Unreachable);
                Refused::start(cx, cx.given_up())
            }
        }
    }
}

/// Accepted; waits for the program, which moves its queue pair and then says that it is ready.
#[derive(Debug)]
pub(super) struct RepReceived;

impl RepReceived {
    /// The program is slow, so that the peer asks again.
    pub fn mra(&self, cx: &mut Context<'_>) {
        cx.send(Mra {
            local_id: cx.common.local_id,
            remote_id: cx.common.remote_id,
            answers: Answered::Rep,
            service_timeout: cx.config.mra_service_timeout,
            ..Mra::default()
        });
    }

    /// The program is ready.
    pub fn establish(self, cx: &mut Context<'_>, private_data: Padded<224>) -> State {
        let rtu = cx.send(Rtu {
            local_id: cx.common.local_id,
            remote_id: cx.common.remote_id,
            private_data,
        });
        State::Established(Established::active(rtu))
    }

    /// The program does not want it after all.
    pub fn reject(self, cx: &mut Context<'_>, refusal: &Refusal) -> State {
        Refused::start(cx, cx.refusal(Answered::Rep, refusal))
    }
}
