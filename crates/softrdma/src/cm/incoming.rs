//! From the state machines' events to the program's.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use engine::cm::{
    CmEvent, CmEventKind, ConnectResponse, IncomingConnect, IncomingSidr, Refusal, Rejection,
    RemoteQueuePair,
};
use engine::qp::Transport;
use engine::{Instant, Path};
use wire::mad::{Bits, CmaHeader, CommId, PortSpace, RejectReason, ServiceId};
use wire::{Mtu, Psn};

use super::event::{ConnectionParameters, Event, EventKind};
use super::id::Id;
use super::record::{Agreed, Record, Route, State};
use super::resolve::{ROCE, link_of, route};
use super::{Inner, advice, datagram};
use crate::process::{Process, random};

/// What a peer that does not answer is to C.
const TIMED_OUT: i32 = -libc::ETIMEDOUT;

impl Process {
    /// Tells programs what the state machines have for them.
    pub(super) fn deliver(self: &Arc<Self>, inner: &mut Inner, now: Instant) {
        while let Some(CmEvent { id, kind }) = inner.cm.as_mut().and_then(|cm| cm.poll_event()) {
            match kind {
                CmEventKind::ConnectRequest(request) => {
                    if let Err(reason) = self.take_connect(inner, id, &request) {
                        inner.refuse(now, id, reason);
                    }
                }
                CmEventKind::SidrRequest(request) => {
                    if let Err(reason) = self.take_sidr(inner, id, &request) {
                        inner.refuse(now, id, reason);
                    }
                }
                other => inner.tell(id, other),
            }
        }
    }

    /// Makes an ID of a request for a connection and tells its listener.
    fn take_connect(
        self: &Arc<Self>,
        inner: &mut Inner,
        comm: CommId,
        request: &IncomingConnect,
    ) -> Result<(), RejectReason> {
        let data = request.private_data.bytes();
        let caller = Caller::new(inner, request.service, &request.path, data)?;
        if request.mtu > caller.mtu {
            return Err(RejectReason::InvalidMtu);
        }
        let (listener, mut record) = caller.record(inner, comm, Transport::Rc)?;
        record.retry_count = request.retry_count;
        record.peer_enhancements = request.enhancements;
        record.agreed = Some(Agreed {
            remote: request.remote,
            mtu: request.mtu,
            ack_timeout: request.ack_timeout,
            retry_count: request.retry_count,
        });
        let mut parameters = parameters(&request.remote, &data[CmaHeader::LENGTH..]);
        parameters.retry_count = request.retry_count.get() as u8; // 3 bits
        self.offer(inner, listener, record, parameters)
    }

    /// Makes an ID of a request for a datagram queue pair and tells its listener.
    fn take_sidr(
        self: &Arc<Self>,
        inner: &mut Inner,
        comm: CommId,
        request: &IncomingSidr,
    ) -> Result<(), RejectReason> {
        let data = request.private_data.bytes();
        let caller = Caller::new(inner, request.service, &request.path, data)?;
        let (listener, record) = caller.record(inner, comm, Transport::Ud)?;
        let parameters = ConnectionParameters {
            private_data: data[CmaHeader::LENGTH..].to_vec(),
            ..ConnectionParameters::default()
        };
        self.offer(inner, listener, record, parameters)
    }

    /// Queues the event of a request, with its new ID, for the listener.
    fn offer(
        self: &Arc<Self>,
        inner: &mut Inner,
        listener: u64,
        record: Record,
        parameters: ConnectionParameters,
    ) -> Result<(), RejectReason> {
        let number = inner.next_number();
        let owner = inner.records.get(&listener);
        let owner = owner.ok_or(RejectReason::Consumer)?;
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
        if let Some(comm) = record.comm {
            inner.by_comm.insert(comm, number);
        }
        inner.records.insert(number, record);
        Ok(())
    }
}

/// Who asks, for what, and over which link.
struct Caller {
    service: ServiceId,
    space: PortSpace,
    local: SocketAddr,
    remote: SocketAddr,
    route: Route,
    /// Of the link.
    mtu: Mtu,
}

impl Caller {
    fn new(
        inner: &Inner,
        service: ServiceId,
        path: &Path,
        private_data: &[u8],
    ) -> Result<Self, RejectReason> {
        let space = service.port_space().ok_or(RejectReason::Consumer)?;
        let header = CmaHeader::parse(private_data).map_err(|_| RejectReason::Unsupported)?;
        let at = |address: IpAddr, port| match address {
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, path.interface).into(),
            IpAddr::V4(_) => SocketAddr::new(address, port),
        };
        let local = at(path.local, service.port());
        let remote = at(path.remote, header.source_port);
        let (link, gid_index) =
            link_of(inner.links(), local, ROCE).ok_or(RejectReason::PrimaryGid)?;
        Ok(Self {
            service,
            space,
            local,
            remote,
            route: route(link, gid_index, local, remote, path.traffic_class),
            mtu: link.active_mtu,
        })
    }

    /// The listener for this caller, and the record of the ID that it is to have.
    fn record(
        self,
        inner: &Inner,
        comm: CommId,
        transport: Transport,
    ) -> Result<(u64, Record), RejectReason> {
        let (address, link) = (self.local.ip(), &self.route.link);
        let listener = inner.listener(self.service, transport, address, link);
        let (number, owner) = listener.ok_or(RejectReason::Consumer)?;
        let starting_psn = Psn::truncated(random());
        let mut record = Record::new(&owner.channel, self.space, transport, starting_psn);
        record.state = State::Requested;
        (record.local, record.remote) = (Some(self.local), Some(self.remote));
        record.options = owner.options;
        record.route = Some(self.route);
        record.comm = Some(comm);
        Ok((number, record))
    }
}

impl Inner {
    /// The listener that a request to `address` is for.
    fn listener(
        &self,
        service: ServiceId,
        transport: Transport,
        address: IpAddr,
        link: &str,
    ) -> Option<(u64, &Record)> {
        let listeners = self.listeners.get(&service)?;
        let fit = |number: &u64| {
            let record = self.records.get(number)?;
            let fits = record.fits(address, link)?;
            (record.transport == transport).then_some((fits, *number, record))
        };
        let best = listeners.iter().filter_map(fit);
        let (_, number, record) = best.max_by_key(|(fits, ..)| *fits)?;
        Some((number, record))
    }

    /// Refuses a request that no program has seen.
    fn refuse(&mut self, now: Instant, comm: CommId, reason: RejectReason) {
        if let Some(cm) = &mut self.cm {
            tracing::debug!(%reason, "a request is refused");
            // it is as new as its event: the state is the right one, or it is of datagrams, whose
            // refusals have no reasons
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
                record.state = State::Disconnected;
                let status = if has_timed_out { TIMED_OUT } else { 0 };
                Event::of(record, EventKind::Disconnected, status)
            }
            CmEventKind::TimeWaitExit => Event::of(record, EventKind::TimeWaitExit, 0),
            CmEventKind::SidrResponse(response) => datagram::answered(record, &response),
            // requests were dealt with before
            CmEventKind::ConnectRequest(_) | CmEventKind::SidrRequest(_) => return,
        };
        record.tell(number, event);
    }
}

fn responded(record: &mut Record, response: &ConnectResponse) -> Event {
    record.state = State::Responding;
    record.peer_enhancements = response.enhancements;
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
    if let (RejectReason::InvalidServiceId, Some(to)) = (rejection.reason, record.remote) {
        advice::no_listener(to);
    }
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
