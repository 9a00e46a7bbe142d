//! What a program does with a peer: asks, accepts, refuses, closes. IDs of datagrams ask and answer
//! in one exchange, see `datagram.rs`.

use engine::Instant;
use engine::cm::{Accept, Cm, CmError, ConnectRequest, Enhancements, LocalQueuePair, Refusal};
use engine::qp::{self, Transport};
use wire::mad::{Bits, CmaHeader, CommId, Guid, Padded, RejectReason, ServiceId, TransportService};
use wire::{Psn, Qpn};

use super::attributes::{self, Step};
use super::id::{Id, impossible};
use super::record::{Agreed, Record, Route, State};
use super::{Inner, datagram};
use crate::attributes::MAX_RD_ATOMIC;
use crate::error::{Error, Result};

/// A message has so many bytes.
pub(super) const TOO_LONG: Error =
    Error::Invalid("there is more private data than the message has room for");

/// What a program says of its queue pair when it asks for a connection, or accepts one. Of datagram
/// queue pairs number and private data are all that the peer learns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The queue pair.
    pub qpn: u32,
    /// Whether it has a shared receive queue.
    pub has_srq: bool,
    /// READs and atomics that it holds; `None` is as many as both sides can.
    pub responder_resources: Option<u8>,
    /// READs and atomics that it has in flight; `None` is as many as both sides can.
    pub initiator_depth: Option<u8>,
    /// Whether it does end-to-end flow control.
    pub flow_control: bool,
    /// Of both sides; 7 at most.
    pub retry_count: u8,
    /// Of the peer; 7 at most.
    pub rnr_retry_count: u8,
    /// For the peer's program.
    pub private_data: Vec<u8>,
}

impl Id {
    /// Asks the peer for a connection. The answer is an event. Over iWARP this waits until TCP has
    /// reached the peer.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data; [`Error::Tcp`].
    pub fn connect(&self, request: &Request) -> Result<()> {
        self.ask(request, true)
    }

    /// The same without waiting: over iWARP too, what TCP says of the peer is an event. With its
    /// error number as the status that is `Rejected` where nobody listens, `Unreachable` where
    /// nobody answers, or else `ConnectError`.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data; [`Error::Tcp`] if TCP
    /// cannot even begin.
    pub fn begin_connect(&self, request: &Request) -> Result<()> {
        self.ask(request, false)
    }

    fn ask(&self, request: &Request, waits: bool) -> Result<()> {
        if self.is_stream() {
            return self.call(request, waits);
        }
        self.process().start_connections()?;
        self.change_at(|inner, number, now| {
            let record = inner.record(number)?;
            let called = Called::by(record)?;
            if record.transport == Transport::Ud {
                let message = datagram::question(&called, request)?;
                record.qpn = Qpn::new(request.qpn);
                return inner.begin(number, now, |cm| cm.resolve(now, &message));
            }
            let message = connect_request(record, &called, request)?;
            record.retry_count = message.retry_count;
            record.qpn = Some(message.local.qpn);
            inner.begin(number, now, |cm| cm.connect(now, &message))
        })
    }

    /// Accepts a request. The queue pair has to be in RTS: see [`Self::prepare_accept`].
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data.
    pub fn accept(&self, request: &Request) -> Result<()> {
        if self.is_stream() {
            return self.answer(request);
        }
        self.change_at(|inner, number, now| {
            let (cm, comm, record) = inner.connection(number)?;
            if record.state != State::Requested {
                return Err(NOBODY_ASKED);
            }
            if record.transport == Transport::Ud {
                let answer = datagram::answer(record, request)?;
                record.qpn = Some(answer.qpn);
                record.state = State::Connected;
                return cm.answer_sidr(now, comm, &answer).map_err(impossible);
            }
            let accept = acceptance(record, request)?;
            record.qpn = Some(accept.local.qpn);
            record.state = State::Accepted;
            cm.accept(now, comm, &accept).map_err(impossible)
        })
    }

    /// Settles what the queue pair of a request will hold and have in flight, before it is moved to
    /// RTS with [`Self::step`]: what the program says, or else as much as both sides can.
    ///
    /// # Errors
    /// [`Error::Invalid`] if nobody asked.
    pub fn prepare_accept(&self, request: &Request) -> Result<()> {
        self.with(|record| {
            if record.is_stream() {
                // accepting settles it
                let asks = record.stream.incoming.as_ref();
                return asks.map(|_| ()).ok_or(NOBODY_ASKED);
            }
            let (State::Requested, Some(Agreed { remote, .. })) =
                (record.state, &mut record.agreed)
            else {
                return Err(NOBODY_ASKED);
            };
            let most = MAX_RD_ATOMIC as u8; // 128
            let asked = |asked: Option<u8>, peer: u8| asked.unwrap_or(peer.min(most));
            remote.responder_resources =
                asked(request.responder_resources, remote.responder_resources);
            remote.initiator_depth = asked(request.initiator_depth, remote.initiator_depth);
            Ok(())
        })
    }

    /// Tells the peer, who accepted, that the queue pair is ready.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state.
    pub fn establish(&self) -> Result<()> {
        self.change_at(|inner, number, now| {
            let (cm, comm, record) = inner.connection(number)?;
            if record.state != State::Responding {
                return Err(Error::Invalid("the peer has not accepted"));
            }
            record.state = State::Connected;
            cm.establish(now, comm, Padded::default())
                .map_err(impossible)
        })
    }

    /// The peer's first packet came before its word did.
    ///
    /// # Errors
    /// [`Error::Connected`] if it did not, [`Error::Invalid`] in another state.
    pub fn notify_established(&self) -> Result<()> {
        if self.is_stream() {
            // there is no such race
            return Ok(());
        }
        self.change_at(|inner, number, now| {
            let (cm, comm, _) = inner.connection(number)?;
            cm.notify_established(now, comm).map_err(impossible)
        })
    }

    /// Refuses a request, or a peer that accepted.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_because(RejectReason::Consumer, private_data)
    }

    /// Refuses for another reason than that the program does not want it. Datagram queue pairs and
    /// iWARP have no reasons.
    ///
    /// # Errors
    /// As [`Self::reject`].
    pub fn reject_because(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        if self.is_stream() {
            return self.turn_away(private_data);
        }
        self.change_at(|inner, number, now| {
            let (cm, comm, record) = inner.connection(number)?;
            if record.transport == Transport::Ud {
                let answer = datagram::refusal(private_data)?;
                cm.answer_sidr(now, comm, &answer).map_err(impossible)?;
            } else {
                let refusal = Refusal {
                    private_data: Padded::new(private_data).ok_or(TOO_LONG)?,
                    ..Refusal::new(reason)
                };
                cm.reject(now, comm, &refusal).map_err(impossible)?;
            }
            record.state = State::Connected;
            Ok(())
        })
    }

    /// Closes the connection, or agrees to the peer's closing it. On one that is over, nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never was one.
    pub fn disconnect(&self) -> Result<()> {
        if self.is_stream() {
            return self.hang_up();
        }
        self.change_at(|inner, number, now| {
            let (cm, comm, _) = inner.connection(number)?;
            match cm.disconnect(now, comm) {
                Ok(()) | Err(CmError::State) => Ok(()),
                Err(error) => Err(impossible(error)),
            }
        })
    }

    /// Says what the own device can do beyond the standard: an offer in a request, a choice in an
    /// acceptance.
    ///
    /// # Errors
    /// As all verbs.
    pub fn set_enhancements(&self, own: Enhancements) -> Result<()> {
        self.with(|record| {
            record.own_enhancements = own;
            Ok(())
        })
    }

    /// What the peer's offers, or chose; nothing before it was heard.
    ///
    /// # Errors
    /// As all verbs.
    pub fn peer_enhancements(&self) -> Result<Enhancements> {
        self.with(|record| Ok(record.peer_enhancements))
    }

    /// What the queue pair is to be set to on its way to `state`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is not known yet.
    pub fn step(&self, state: qp::State) -> Result<Step> {
        self.with(|record| attributes::step(record, state))
    }
}

pub(super) const NOBODY_ASKED: Error = Error::Invalid("nobody asked, or was answered");

impl Inner {
    /// Begins a connection of an ID that the state machines do not know yet.
    fn begin(
        &mut self,
        number: u64,
        now: Instant,
        start: impl FnOnce(&mut Cm) -> std::result::Result<CommId, CmError>,
    ) -> Result<()> {
        let cm = self.cm.as_mut().ok_or(Error::DeviceFatal)?;
        let comm = start(cm).map_err(impossible)?;
        self.by_comm.insert(comm, number);
        let record = self.record(number)?;
        (record.comm, record.state) = (Some(comm), State::Connecting);
        self.remember_asking(number, now);
        Ok(())
    }
}

/// Whom a request goes to, and what its private data begins with.
pub(super) struct Called {
    pub route: Route,
    pub service: ServiceId,
    header: CmaHeader,
}

impl Called {
    /// Of an ID whose route is resolved.
    pub fn by(record: &Record) -> Result<Self> {
        match (record.state, &record.route, record.local, record.remote) {
            (State::RouteResolved, Some(route), Some(local), Some(remote)) => Ok(Self {
                route: route.clone(),
                service: ServiceId::new(record.space, remote.port()),
                header: CmaHeader {
                    source_port: local.port(),
                    source: local.ip(),
                    destination: remote.ip(),
                },
            }),
            _ => Err(Error::Invalid("the route is not resolved")),
        }
    }

    /// The header of the RDMA IP CM service and the program's own data. spec: IBA A11
    pub fn private_data<const N: usize>(&self, own: &[u8]) -> Result<Padded<N>> {
        Padded::new(&[&self.header.to_bytes()[..], own].concat()).ok_or(TOO_LONG)
    }
}

/// The message that asks for a connection.
fn connect_request(record: &Record, called: &Called, request: &Request) -> Result<ConnectRequest> {
    let route = &called.route;
    let all = |asked: Option<u8>| asked.unwrap_or(MAX_RD_ATOMIC as u8); // 128
    let own = local_queue_pair(
        request,
        route.guid,
        record.starting_psn,
        all(request.responder_resources),
        all(request.initiator_depth),
    )?;
    let mut message = ConnectRequest::new(route.path, called.service, own);
    message.transport = TransportService::Rc;
    message.mtu = route.mtu;
    message.retry_count = Bits::saturating(request.retry_count.into());
    message.enhancements = record.own_enhancements;
    message.private_data = called.private_data(&request.private_data)?;
    if let Some(life) = record.options.ack_timeout.checked_sub(1) {
        message.packet_life = Bits::saturating(life.into());
    }
    Ok(message)
}

/// The message that accepts one.
fn acceptance(record: &Record, request: &Request) -> Result<Accept> {
    let (Some(agreed), Some(route)) = (record.agreed, &record.route) else {
        return Err(NOBODY_ASKED);
    };
    Ok(Accept {
        local: local_queue_pair(
            request,
            route.guid,
            record.starting_psn,
            agreed.remote.responder_resources,
            agreed.remote.initiator_depth,
        )?,
        enhancements: record.own_enhancements,
        private_data: Padded::new(&request.private_data).ok_or(TOO_LONG)?,
    })
}

/// What the program says of its queue pair, as messages have it.
fn local_queue_pair(
    request: &Request,
    guid: Guid,
    starting_psn: Psn,
    responder_resources: u8,
    initiator_depth: u8,
) -> Result<LocalQueuePair> {
    Ok(LocalQueuePair {
        guid,
        qpn: Qpn::new(request.qpn).ok_or(Error::Invalid("a QPN has 24 bits"))?,
        starting_psn,
        responder_resources,
        initiator_depth,
        flow_control: request.flow_control,
        rnr_retry_count: Bits::saturating(request.rnr_retry_count.into()),
        has_srq: request.has_srq,
    })
}
