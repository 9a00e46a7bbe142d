//! The side that is asked: REQ received, REP sent.
//!
//! Read first: IBA 12.9.

use wire::Mtu;
use wire::mad::{Answered, Bits, CommId, Mra, Padded, Req, Rtu, TransactionId};

use super::connection::{Common, Context, State, path_back};
use super::event::{CmEventKind, IncomingConnect, RemoteQueuePair};
use super::options::{Accept, Enhancements};
use super::reject::{Refusal, Refused};
use super::release::{DreqReceived, Established};
use super::retry::{Expired, Resend, Schedule, ack_timeout, duration};
use crate::path::{Path, PathMeta};

/// Waits for the program.
#[derive(Debug)]
pub(super) struct ReqReceived;

impl ReqReceived {
    /// What a connection knows when it is asked for.
    pub fn common(
        local_id: CommId,
        transaction: TransactionId,
        req: &Req,
        meta: &PathMeta,
    ) -> Common {
        let schedule = Schedule {
            wait: duration(req.local_response_timeout),
            retries: req.cm_retries_max.get() as u8,
        };
        Common {
            remote_id: req.local_id,
            remote_guid: req.local_guid,
            remote_qpn: req.local_qpn,
            transaction,
            time_wait: duration(req.primary.ack_timeout),
            ..Common::new(local_id, path_back(meta), schedule)
        }
    }

    /// Tells the program; `options` are those of the peer's enhancements.
    pub fn start(cx: &mut Context<'_>, req: &Req, mtu: Mtu, options: u32) -> State {
        let primary = &req.primary;
        // the peer's timeout is made of the packets' life and of our delay
        let packet_life = Bits::saturating(primary.ack_timeout.get().saturating_sub(1));
        cx.tell(CmEventKind::ConnectRequest(Box::new(IncomingConnect {
            service: req.service,
            path: Path {
                local: primary.remote_gid.ip(),
                remote: primary.local_gid.ip(),
                interface: cx.common.path.interface,
                traffic_class: primary.traffic_class,
                hop_limit: primary.hop_limit.max(1),
                flow_label: primary.flow_label.get(),
            },
            remote: RemoteQueuePair {
                guid: req.local_guid,
                qpn: req.local_qpn,
                starting_psn: req.starting_psn,
                // what it has in flight is what we hold, and the other way round
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                flow_control: req.flow_control,
                rnr_retry_count: req.rnr_retry_count,
                has_srq: req.has_srq,
            },
            transport: req.transport,
            mtu,
            retry_count: req.retry_count,
            ack_timeout: ack_timeout(packet_life, cx.config.ack_delay),
            enhancements: Enhancements {
                vendor: req.vendor,
                options,
            },
            private_data: req.private_data,
        })));
        State::ReqReceived(Self)
    }

    /// The program is slow, so that the peer asks again.
    pub fn mra(&self, cx: &mut Context<'_>) {
        cx.send(Mra {
            local_id: cx.common.local_id,
            remote_id: cx.common.remote_id,
            answers: Answered::Req,
            service_timeout: cx.config.mra_service_timeout,
            ..Mra::default()
        });
    }

    /// The program accepts.
    pub fn accept(self, cx: &mut Context<'_>, accept: &Accept) -> State {
        cx.common.local_guid = accept.local.guid;
        cx.common.local_qpn = accept.local.qpn;
        let mut rep = accept.message(cx.config);
        rep.local_id = cx.common.local_id;
        rep.remote_id = cx.common.remote_id;
        let mad = cx.send_enhanced(rep, accept.enhancements.options);
        State::RepSent(RepSent {
            resend: Resend::new(cx, mad),
        })
    }

    /// The program refuses.
    pub fn reject(self, cx: &mut Context<'_>, refusal: &Refusal) -> State {
        Refused::start(cx, cx.refusal(Answered::Req, refusal))
    }
}

/// Waits for an RTU, or for any other sign that the REP has arrived.
#[derive(Debug)]
pub(super) struct RepSent {
    pub resend: Resend,
}

impl RepSent {
    /// The peer is ready. Without an RTU the program has seen data come.
    pub fn establish(self, cx: &mut Context<'_>, rtu: Option<&Rtu>) -> State {
        let private_data = rtu.map_or_else(Padded::default, |rtu| rtu.private_data);
        cx.tell(CmEventKind::Established {
            private_data: Box::new(private_data),
        });
        State::Established(Established::passive())
    }

    /// The peer takes its time.
    pub fn mra(mut self, cx: &Context<'_>, mra: &Mra) -> State {
        self.resend.extend(cx, duration(mra.service_timeout));
        State::RepSent(self)
    }

    /// The peer closes what it holds for established: its RTU was lost.
    pub fn dreq(self, cx: &mut Context<'_>, transaction: TransactionId) -> State {
        DreqReceived::start(cx, transaction)
    }

    /// The program does not want it after all.
    pub fn reject(self, cx: &mut Context<'_>, refusal: &Refusal) -> State {
        Refused::start(cx, cx.refusal(Answered::Other, refusal))
    }

    /// The time is up.
    pub fn expire(self, cx: &mut Context<'_>) -> State {
        match self.resend.expire(cx) {
            Expired::Again(resend) => State::RepSent(Self { resend }),
            Expired::GivenUp => {
                cx.tell(CmEventKind::Unreachable);
                Refused::start(cx, cx.given_up())
            }
        }
    }
}
