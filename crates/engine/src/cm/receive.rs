//! What comes in: which connection a datagram belongs to, and what to do if there is none.
//!
//! Read first: IBA 12.9. Duplicates are ordinary: whatever was answered is answered again, and the
//! program is told nothing twice.

use std::net::IpAddr;

use wire::mad::{
    Answered, ApStatus, Apr, CommId, Drep, Dreq, Lap, Mad, Message, Mra, Rej, RejectReason, Rep,
    Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId, TransportService,
};
use wire::{Gid, Mtu};

use super::connection::{Context, Peer, State, path_back};
use super::options::SidrAnswer;
use super::passive::ReqReceived;
use super::reject::{Refusal, refused_by_peer};
use super::release::drep_to_stranger;
use super::sidr::{self, SidrReceived};
use super::{Cm, Listener, Place};
use crate::path::PathMeta;
use crate::time::Instant;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadOutcome {
    /// It was new, and was dealt with.
    Taken,
    /// It was known; its answer was sent again if there is one.
    Repeated,
    /// It was refused without a connection being made.
    Refused,
    /// It is of no connection.
    Unknown,
    /// The state of the connection does not take it.
    OutOfPlace,
    /// There was no room for the request; the peer will ask again.
    Full,
}

/// A datagram's surroundings.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    now: Instant,
    transaction: TransactionId,
    /// The attribute modifier: options of the peer's enhancements.
    options: u32,
    meta: &'a PathMeta,
}

impl Arrival<'_> {
    fn source(&self) -> IpAddr {
        self.meta.source.to_canonical()
    }
}

impl Cm {
    /// A datagram came to queue pair 1 with the IP header that `meta` tells of.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad, meta: &PathMeta) -> MadOutcome {
        let arrival = Arrival {
            now,
            transaction: mad.transaction,
            options: mad.modifier,
            meta,
        };
        match &mad.message {
            Message::Req(req) => self.handle_req(arrival, req),
            Message::Mra(mra) => self.handle_mra(arrival, mra),
            Message::Rej(rej) => self.handle_rej(arrival, rej),
            Message::Rep(rep) => self.handle_rep(arrival, rep),
            Message::Rtu(rtu) => self.handle_rtu(arrival, rtu),
            Message::Dreq(dreq) => self.handle_dreq(arrival, dreq),
            Message::Drep(drep) => self.handle_drep(arrival, drep),
            Message::SidrReq(req) => self.handle_sidr_req(arrival, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(arrival, rep),
            Message::Lap(lap) => self.handle_lap(arrival, lap),
            // we never send a LAP
            Message::Apr(_) => MadOutcome::OutOfPlace,
        }
    }

    fn handle_req(&mut self, arrival: Arrival<'_>, req: &Req) -> MadOutcome {
        let peer = Peer {
            guid: req.local_guid,
            address: arrival.source(),
        };
        if let Some(id) = self.table.by_remote_id(peer, req.local_id) {
            return self.handle_req_again(arrival, id, req);
        }
        if let Some(id) = self.table.by_remote_queue_pair(peer, req.local_qpn) {
            // the peer has forgotten the connection that this queue pair had
            let refusal = Refusal::new(RejectReason::StaleConnection);
            self.refuse(arrival, req, &refusal);
            self.close_stale(arrival.now, id);
            return MadOutcome::Refused;
        }
        let mtu = match acceptable(arrival.meta, req) {
            Ok(mtu) => mtu,
            Err(refusal) => return self.refuse(arrival, req, &refusal),
        };
        let Some(listener) = self.listeners.get(&req.service) else {
            let refusal = Refusal::new(RejectReason::InvalidServiceId);
            return self.refuse(arrival, req, &refusal);
        };
        if listener.is_full() || self.is_full() {
            return MadOutcome::Full;
        }
        let place = self.enter_backlog(req.service);
        let common = |id| ReqReceived::common(id, arrival.transaction, req, arrival.meta);
        self.begin(arrival.now, place, common, |cx| {
            ReqReceived::start(cx, req, mtu, arrival.options)
        });
        MadOutcome::Taken
    }

    fn handle_req_again(&mut self, arrival: Arrival<'_>, id: CommId, req: &Req) -> MadOutcome {
        let mut is_over = false;
        self.step(arrival.now, id, |state, cx| {
            match &state {
                State::ReqReceived(state) => state.mra(cx),
                State::Refused(state) => state.again(cx, req.local_id),
                State::TimeWait(_) => is_over = true,
                // from REP sent on, what is sent on a timer covers it
                _ => {}
            }
            (state, ())
        });
        if is_over {
            let refusal = Refusal::new(RejectReason::StaleConnection);
            return self.refuse(arrival, req, &refusal);
        }
        MadOutcome::Repeated
    }

    fn handle_rep(&mut self, arrival: Arrival<'_>, rep: &Rep) -> MadOutcome {
        let Some(id) = self.find(arrival, rep.remote_id, None) else {
            return MadOutcome::Unknown;
        };
        let state = self.table.get(id).map(|entry| &entry.state);
        if !matches!(state, Some(State::ReqSent(_))) {
            return self.handle_rep_again(arrival, id, rep);
        }
        let peer = Peer {
            guid: rep.local_guid,
            address: arrival.source(),
        };
        if self.table.by_remote_id(peer, rep.local_id).is_some() {
            return MadOutcome::OutOfPlace;
        }
        if let Some(old) = self.table.by_remote_queue_pair(peer, rep.local_qpn) {
            let refusal = Refusal::new(RejectReason::StaleConnection);
            let rej = rej_to_stranger(Answered::Rep, rep.remote_id, rep.local_id, &refusal);
            self.answer(arrival, rej.into());
            self.close_stale(arrival.now, old);
            return MadOutcome::Refused;
        }
        self.change(arrival, id, |state, cx| match state {
            State::ReqSent(state) => (state.rep(cx, rep, arrival.options), MadOutcome::Taken),
            other => (other, MadOutcome::OutOfPlace),
        })
    }

    fn handle_rep_again(&mut self, arrival: Arrival<'_>, id: CommId, rep: &Rep) -> MadOutcome {
        self.change(arrival, id, |state, cx| {
            let is_from_peer = cx.common.remote_id == rep.local_id;
            match &state {
                // one that was refused before the peer told its ID
                State::Refused(refused) => refused.again(cx, rep.local_id),
                State::RepReceived(received) if is_from_peer => received.mra(cx),
                State::Established(established) if is_from_peer => established.rep_again(cx),
                _ => return (state, MadOutcome::OutOfPlace),
            }
            (state, MadOutcome::Repeated)
        })
    }

    fn handle_rtu(&mut self, arrival: Arrival<'_>, rtu: &Rtu) -> MadOutcome {
        let Some(id) = self.find(arrival, rtu.remote_id, Some(rtu.local_id)) else {
            return MadOutcome::Unknown;
        };
        self.change(arrival, id, |state, cx| match state {
            State::RepSent(state) => (state.establish(cx, Some(rtu)), MadOutcome::Taken),
            State::Refused(state) => {
                state.again(cx, rtu.local_id);
                (State::Refused(state), MadOutcome::Repeated)
            }
            other => (other, MadOutcome::Repeated),
        })
    }

    fn handle_mra(&mut self, arrival: Arrival<'_>, mra: &Mra) -> MadOutcome {
        let remote_id = match mra.answers {
            Answered::Req => None,
            _ => Some(mra.local_id),
        };
        let Some(id) = self.find(arrival, mra.remote_id, remote_id) else {
            return MadOutcome::Unknown;
        };
        self.change(arrival, id, |state, cx| match (mra.answers, state) {
            (Answered::Req, State::ReqSent(state)) => (state.mra(cx, mra), MadOutcome::Taken),
            (Answered::Rep, State::RepSent(state)) => (state.mra(cx, mra), MadOutcome::Taken),
            (_, state) => (state, MadOutcome::OutOfPlace),
        })
    }

    fn handle_rej(&mut self, arrival: Arrival<'_>, rej: &Rej) -> MadOutcome {
        let before_reply = Some(CommId(0));
        let found = match (rej.guid(), rej.answers) {
            // a peer that has given up may not have learnt our ID, or not have told us its own
            (Some(guid), _) => {
                let address = arrival.source();
                let peer = Peer { guid, address };
                let by_guid = self.table.by_remote_id(peer, rej.local_id);
                by_guid.or_else(|| self.find(arrival, rej.remote_id, before_reply))
            }
            (None, Answered::Req) => self.find(arrival, rej.remote_id, before_reply),
            (None, _) => self.find(arrival, rej.remote_id, Some(rej.local_id)),
        };
        let Some(id) = found else {
            return MadOutcome::Unknown;
        };
        self.change(arrival, id, |state, cx| refused_by_peer(state, cx, rej))
    }

    fn handle_dreq(&mut self, arrival: Arrival<'_>, dreq: &Dreq) -> MadOutcome {
        let Some(id) = self.find(arrival, dreq.remote_id, Some(dreq.local_id)) else {
            // or the peer would go on asking for more than a minute
            self.answer(arrival, drep_to_stranger(dreq).into());
            return MadOutcome::Unknown;
        };
        let transaction = arrival.transaction;
        self.change(arrival, id, |state, cx| {
            if dreq.remote_qpn != cx.common.local_qpn {
                return (state, MadOutcome::OutOfPlace);
            }
            match state {
                State::RepSent(state) => (state.dreq(cx, transaction), MadOutcome::Taken),
                State::Established(state) => (state.dreq(cx, transaction), MadOutcome::Taken),
                State::DreqSent(state) => (state.dreq(cx, transaction), MadOutcome::Taken),
                State::TimeWait(state) => {
                    state.dreq(cx, transaction);
                    (State::TimeWait(state), MadOutcome::Repeated)
                }
                // refused what the peer holds for established, or over for longer than the time
                // wait: in any case the peer has to finish
                state @ (State::Refused(_) | State::Idle) => {
                    cx.send_in(transaction, drep_to_stranger(dreq));
                    (state, MadOutcome::Repeated)
                }
                // the answer is the program's to give
                State::DreqReceived(state) => (State::DreqReceived(state), MadOutcome::Repeated),
                other => (other, MadOutcome::OutOfPlace),
            }
        })
    }

    fn handle_drep(&mut self, arrival: Arrival<'_>, drep: &Drep) -> MadOutcome {
        let Some(id) = self.find(arrival, drep.remote_id, Some(drep.local_id)) else {
            return MadOutcome::Unknown;
        };
        self.change(arrival, id, |state, cx| match state {
            State::DreqSent(state) => (state.drep(cx), MadOutcome::Taken),
            other => (other, MadOutcome::OutOfPlace),
        })
    }

    fn handle_sidr_req(&mut self, arrival: Arrival<'_>, req: &SidrReq) -> MadOutcome {
        if let Some(id) = self.table.by_sidr_request(arrival.source(), req.request_id) {
            return self.change(arrival, id, |state, cx| {
                if let State::SidrAnswered(answered) = &state {
                    answered.again(cx);
                }
                (state, MadOutcome::Repeated)
            });
        }
        let Some(listener) = self.listeners.get(&req.service) else {
            let refusal = SidrAnswer::refusal(SidrStatus::Unsupported);
            let rep = sidr::reply(req.request_id, req.service, &refusal);
            self.answer(arrival, rep.into());
            return MadOutcome::Refused;
        };
        if listener.is_full() || self.is_full() {
            return MadOutcome::Full;
        }
        let place = self.enter_backlog(req.service);
        let common = |id| SidrReceived::common(id, arrival.transaction, req, arrival.meta);
        self.begin(arrival.now, place, common, |cx| {
            SidrReceived::start(cx, req)
        });
        MadOutcome::Taken
    }

    fn handle_sidr_rep(&mut self, arrival: Arrival<'_>, rep: &SidrRep) -> MadOutcome {
        let Some(id) = self.find(arrival, rep.request_id, None) else {
            return MadOutcome::Unknown;
        };
        self.change(arrival, id, |state, cx| match state {
            State::SidrSent(state) => (state.rep(cx, rep), MadOutcome::Taken),
            other => (other, MadOutcome::OutOfPlace),
        })
    }

    /// There is no other path to migrate to.
    fn handle_lap(&mut self, arrival: Arrival<'_>, lap: &Lap) -> MadOutcome {
        if self
            .find(arrival, lap.remote_id, Some(lap.local_id))
            .is_none()
        {
            return MadOutcome::Unknown;
        }
        let apr = Apr {
            local_id: lap.remote_id,
            remote_id: lap.local_id,
            status: ApStatus::Unsupported,
            ..Apr::default()
        };
        self.answer(arrival, apr.into());
        MadOutcome::Refused
    }

    /// The connection with our ID `local`, if it is to where the datagram came from and the peer's
    /// ID for it is `remote`, where that is looked at.
    fn find(&self, arrival: Arrival<'_>, local: CommId, remote: Option<CommId>) -> Option<CommId> {
        let common = &self.table.get(local)?.common;
        let is_it = common.path.remote == arrival.source()
            && remote.is_none_or(|remote| common.remote_id == remote);
        is_it.then_some(local)
    }

    fn change(
        &mut self,
        arrival: Arrival<'_>,
        id: CommId,
        change: impl FnOnce(State, &mut Context<'_>) -> (State, MadOutcome),
    ) -> MadOutcome {
        let outcome = self.step(arrival.now, id, change);
        outcome.unwrap_or(MadOutcome::Unknown)
    }

    /// Answers a request without making a connection.
    fn refuse(&mut self, arrival: Arrival<'_>, req: &Req, refusal: &Refusal) -> MadOutcome {
        let rej = rej_to_stranger(Answered::Req, CommId(0), req.local_id, refusal);
        self.answer(arrival, rej.into());
        MadOutcome::Refused
    }

    fn answer(&mut self, arrival: Arrival<'_>, message: Message) {
        let mad = Mad {
            transaction: arrival.transaction,
            modifier: 0,
            message,
        };
        self.out.send(path_back(arrival.meta), mad);
    }

    /// The peer's queue pair belongs to another connection now.
    fn close_stale(&mut self, now: Instant, id: CommId) {
        self.step(now, id, |state, cx| match state {
            State::Established(state) => (state.disconnect(cx, Default::default()), ()),
            other => (other, ()),
        });
    }

    fn enter_backlog(&mut self, service: ServiceId) -> Option<Place> {
        let listener = self.listeners.get_mut(&service)?;
        listener.waiting += 1;
        let serial = listener.serial;
        Some(Place { service, serial })
    }
}

impl Listener {
    fn is_full(&self) -> bool {
        self.waiting >= self.backlog
    }
}

/// The path MTU of a request that can be shown to the program, or why it cannot.
fn acceptable(meta: &PathMeta, req: &Req) -> Result<Mtu, Box<Refusal>> {
    let own = Gid::from_ip(meta.destination.to_canonical());
    if req.primary.remote_gid != own {
        return Err(Box::new(Refusal::wrong_gid(own)));
    }
    match req.transport {
        TransportService::Rc | TransportService::Uc => {}
        TransportService::Rd | TransportService::Extended => {
            return Err(Box::new(Refusal::new(RejectReason::InvalidTransport)));
        }
    }
    let invalid_mtu = || Box::new(Refusal::new(RejectReason::InvalidMtu));
    req.mtu().ok_or_else(invalid_mtu)
}

fn rej_to_stranger(
    answers: Answered,
    local_id: CommId,
    remote_id: CommId,
    refusal: &Refusal,
) -> Rej {
    Rej {
        local_id,
        remote_id,
        answers,
        info_length: refusal.info_length,
        reason: refusal.reason,
        info: refusal.info,
        private_data: refusal.private_data,
    }
}
