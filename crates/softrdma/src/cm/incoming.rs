//! From the state machines' events to the program's.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use engine::Instant;
use engine::cm::RemoteQueuePair;
use engine::cm::{CmEvent, CmEventKind, ConnectResponse, IncomingConnect, Refusal, Rejection};
use wire::Psn;
use wire::mad::{Bits, CmaHeader, CommId, RejectReason};

use super::Inner;
use super::event::{ConnectionParameters, Event, EventKind};
use super::id::Id;
use super::record::{Agreed, Record, State};
use super::resolve::{link_of, route};
use crate::process::{Process, random};

/// What a peer that does not answer is to C.
const TIMED_OUT: i32 = -libc::ETIMEDOUT;

impl Process {
    /// Tells programs what the state machines have for them.
    pub(super) fn deliver(self: &Arc<Self>, inner: &mut Inner, now: Instant) {
        while let Some(CmEvent { id, kind }) = inner.cm.as_mut().and_then(|cm| cm.poll_event()) {
            match kind {
                CmEventKind::ConnectRequest(request) => {
                    if let Err(reason) = self.take_request(inner, id, &request) {
                        inner.refuse(now, id, reason);
                    }
                }
                other => inner.tell(id, other),
            }
        }
    }

    /// Makes an ID of a request and tells its listener.
    fn take_request(
        self: &Arc<Self>,
        inner: &mut Inner,
        comm: CommId,
        request: &IncomingConnect,
    ) -> Result<(), RejectReason> {
        let space = request.service.port_space().ok_or(RejectReason::Consumer)?;
        let header = CmaHeader::parse(request.private_data.bytes())
            .map_err(|_| RejectReason::Unsupported)?;
        let path = &request.path;
        let at = |address: IpAddr, port| match address {
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, path.interface).into(),
            IpAddr::V4(_) => SocketAddr::new(address, port),
        };
        let local = at(path.local, request.service.port());
        let remote = at(path.remote, header.source_port);
        let (link, gid_index) = link_of(&inner.links, local).ok_or(RejectReason::PrimaryGid)?;
        if request.mtu > link.active_mtu {
            return Err(RejectReason::InvalidMtu);
        }
        let route = route(link, gid_index, local, remote, path.traffic_class);
        let listener = inner.listener(request, local.ip(), &route.link);
        let listener = listener.ok_or(RejectReason::Consumer)?;
        let number = inner.next_number();
        let Some(owner) = inner.records.get(&listener) else {
            return Err(RejectReason::Consumer);
        };
        let mut record = Record::new(&owner.channel, space, Psn::truncated(random()));
        record.state = State::Requested;
        (record.local, record.remote) = (Some(local), Some(remote));
        record.options = owner.options;
        record.route = Some(route);
        record.comm = Some(comm);
        record.retry_count = request.retry_count;
        record.agreed = Some(Agreed {
            remote: request.remote,
            mtu: request.mtu,
            ack_timeout: request.ack_timeout,
            retry_count: request.retry_count,
        });
        let data = &request.private_data.bytes()[CmaHeader::LENGTH..];
        let mut parameters = parameters(&request.remote, data);
        parameters.retry_count = request.retry_count.get() as u8; // 3 bits
        let event = Event {
            parameters,
            request: Some(Id::of(self, number)),
            ..Event::of(owner, EventKind::ConnectRequest, 0)
        };
        if let Err(event) = owner.channel.offer(event, listener) {
            // within the lock, which the end of an ID would take
            event.request.as_ref().map(Id::disown);
            return Err(RejectReason::NoResources);
        }
        inner.by_comm.insert(comm, number);
        inner.records.insert(number, record);
        Ok(())
    }
}

impl Inner {
    /// The listener that a request to `address` is for.
    fn listener(&self, request: &IncomingConnect, address: IpAddr, link: &str) -> Option<u64> {
        let listeners = self.listeners.get(&request.service)?;
        let fit = |number: &u64| self.records.get(number)?.fits(address, link);
        let best = listeners.iter().filter(|number| fit(number).is_some());
        best.max_by_key(|number| fit(number)).copied()
    }

    /// Refuses a request that no program has seen.
    fn refuse(&mut self, now: Instant, comm: CommId, reason: RejectReason) {
        if let Some(cm) = &mut self.cm {
            tracing::debug!(%reason, "a request for a connection is refused");
            // it is as new as its event: the state is the right one
            let _ = cm.reject(now, comm, &Refusal::new(reason));
            let _ = cm.destroy(now, comm);
        }
    }

    /// What happened to a connection that has an ID.
    fn tell(&mut self, comm: CommId, kind: CmEventKind) {
        let Some(&number) = self.by_comm.get(&comm) else {
            return;
        };
        let Some(record) = self.records.get_mut(&number) else {
            return;
        };
        let event = match kind {
            CmEventKind::ConnectResponse(response) => responded(record, &response),
            CmEventKind::Established { .. } => {
                record.state = State::Connected;
                Event::of(record, EventKind::Established, 0)
            }
            CmEventKind::Rejected(rejection) => rejected(record, &rejection),
            CmEventKind::Unreachable => {
                record.state = State::Connected;
                Event::of(record, EventKind::Unreachable, TIMED_OUT)
            }
            CmEventKind::Disconnected { has_timed_out } => {
                let status = if has_timed_out { TIMED_OUT } else { 0 };
                Event::of(record, EventKind::Disconnected, status)
            }
            CmEventKind::TimeWaitExit => Event::of(record, EventKind::TimeWaitExit, 0),
            // requests were dealt with before, and datagrams are nobody's yet
            CmEventKind::ConnectRequest(_)
            | CmEventKind::SidrRequest(_)
            | CmEventKind::SidrResponse(_) => return,
        };
        record.tell(number, event);
    }
}

fn responded(record: &mut Record, response: &ConnectResponse) -> Event {
    record.state = State::Responding;
    record.agreed = record.route.as_ref().map(|route| Agreed {
        remote: response.remote,
        mtu: route.mtu,
        ack_timeout: response.ack_timeout,
        retry_count: record.retry_count,
    });
    let mut parameters = parameters(&response.remote, response.private_data.bytes());
    parameters.retry_count = record.retry_count.get() as u8; // 3 bits
    Event {
        parameters,
        ..Event::of(record, EventKind::ConnectResponse, 0)
    }
}

fn rejected(record: &mut Record, rejection: &Rejection) -> Event {
    record.state = State::Connected;
    let mut event = Event::of(
        record,
        EventKind::Rejected,
        i32::from(rejection.reason.code()),
    );
    event.parameters.private_data = rejection.private_data.bytes().to_vec();
    event
}

fn parameters(remote: &RemoteQueuePair, private_data: &[u8]) -> ConnectionParameters {
    let bits = |bits: Bits<3>| bits.get() as u8; // 3 bits
    ConnectionParameters {
        private_data: private_data.to_vec(),
        responder_resources: remote.responder_resources,
        initiator_depth: remote.initiator_depth,
        flow_control: remote.flow_control,
        retry_count: 0,
        rnr_retry_count: bits(remote.rnr_retry_count),
        has_srq: remote.has_srq,
        qpn: remote.qpn.get(),
    }
}
