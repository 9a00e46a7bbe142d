//! What a program asks for: addresses, connections, and their ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::port::{PortAddress, PortSpace};
use broker::protocol::Refusal as BrokerRefusal;
use engine::cm::{Accept, CmError, ConnectRequest, LocalQueuePair, Refusal};
use engine::qp;
use wire::mad::{Bits, CmaHeader, Guid, Padded, RejectReason, ServiceId, TransportService};
use wire::{Psn, Qpn};

use super::Inner;
use super::attributes::{self, Step};
use super::event::{Event, EventChannel, EventKind};
use super::record::{Agreed, Record, State};
use super::resolve::{destination, link_of, route, scope, source};
use crate::attributes::MAX_RD_ATOMIC;
use crate::error::{Error, Result};
use crate::process::{Process, random};

/// Requests that wait for a listener that did not say how many, as in the kernel.
const BACKLOG_MAX: usize = 1024;

/// What can be set of an ID before it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TOS or traffic class of its packets.
    pub traffic_class: u8,
    /// Others who wish it too may bind the same address.
    pub reuse_address: bool,
    /// All addresses of IPv6 are not those of IPv4 too.
    pub family_only: bool,
    /// Its acknowledgement timeout, 4.096 µs · 2^n; 0 is what the path suggests.
    pub ack_timeout: u8,
}

/// What a program says of its queue pair when it asks for a connection, or accepts one.
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

/// A program's end of a connection. Dropping it tells the peer.
pub struct Id {
    process: Arc<Process>,
    number: u64,
    has_left: AtomicBool,
}

impl Id {
    /// An ID whose events come through `channel`.
    ///
    /// # Errors
    /// [`Error::Broker`]
    pub fn new(channel: &Arc<EventChannel>, space: PortSpace) -> Result<Self> {
        let process = Process::current()?;
        process.check()?;
        let record = Record::new(channel, space, Psn::truncated(random()));
        let number = process.in_connections(|inner, _| {
            let number = inner.next_number();
            inner.records.insert(number, record);
            number
        });
        Ok(Self::of(&process, number))
    }

    /// The ID with this number.
    pub(super) fn of(process: &Arc<Process>, number: u64) -> Self {
        Self {
            process: Arc::clone(process),
            number,
            has_left: AtomicBool::new(false),
        }
    }

    /// What events of this ID carry to name it.
    pub fn set_cookie(&self, cookie: u64) {
        let _ = self.with(|record| {
            record.cookie.store(cookie, Ordering::Release);
            Ok(())
        });
    }

    /// What its events are acknowledged by.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Where its events come.
    ///
    /// # Errors
    /// As all verbs: [`Error::Forked`], [`Error::DeviceFatal`].
    pub fn channel(&self) -> Result<Arc<EventChannel>> {
        self.with(|record| Ok(Arc::clone(&record.channel)))
    }

    /// The own address and port, if they are known.
    pub fn local(&self) -> Option<SocketAddr> {
        self.with(|record| Ok(record.local)).ok().flatten()
    }

    /// The peer's address and port, if they are known.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.with(|record| Ok(record.remote)).ok().flatten()
    }

    /// The name of the link that it has been given, if it was.
    pub fn link(&self) -> Option<String> {
        self.with(|record| Ok(record.route.as_ref().map(|route| route.link.clone())))
            .ok()
            .flatten()
    }

    /// The path to the peer, if it is known.
    pub fn path(&self) -> Option<engine::Path> {
        self.with(|record| Ok(record.route.as_ref().map(|route| route.path)))
            .ok()
            .flatten()
    }

    /// Its options.
    pub fn options(&self) -> Options {
        self.with(|record| Ok(record.options)).unwrap_or_default()
    }

    /// Changes its options: what was done before stays as it is.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> Result<()> {
        self.with(|record| {
            change(&mut record.options);
            if let Some(route) = &mut record.route {
                route.path.traffic_class = record.options.traffic_class;
            }
            Ok(())
        })
    }

    /// Gives the ID an address, and a port; port 0 is any that is free.
    ///
    /// # Errors
    /// [`Error::Port`]; [`Error::NoRoute`] if no link has the address.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let (space, options) = self.with(|record| match record.state {
            State::Idle => Ok((record.space, record.options)),
            _ => Err(Error::Invalid("the ID has an address already")),
        })?;
        let links = self.process.broker.links().map_err(Error::Call)?;
        let own = if address.ip().is_unspecified() {
            None
        } else {
            let (link, index) = link_of(&links, address).ok_or(Error::NoRoute(address.ip()))?;
            Some(route(link, index, address, address, options.traffic_class))
        };
        let at = PortAddress {
            ip: address.ip(),
            scope: scope(address),
            family_only: options.family_only || address.is_ipv4(),
        };
        let bound = self
            .process
            .broker
            .bind_port(space, address.port(), at, options.reuse_address)
            .map_err(refused)?;
        self.change(|inner, number| {
            inner.links = links;
            let record = inner.record(number)?;
            let mut local = address;
            local.set_port(bound.port);
            (record.local, record.port, record.route) = (Some(local), Some(bound), own);
            record.state = State::Bound;
            Ok(())
        })
    }

    /// Finds the own address and the link to `to`. What comes of it is an event.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state; [`Error::Port`] if `from` cannot be bound.
    pub fn resolve_address(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<()> {
        if let Some(from) = from.filter(|from| !from.ip().is_unspecified() || from.port() != 0)
            && self.with(|record| Ok(record.state == State::Idle))?
        {
            self.bind(from)?;
        }
        let (bound, state) = self.with(|record| Ok((record.local, record.state)))?;
        if !matches!(state, State::Idle | State::Bound) {
            return Err(Error::Invalid("the ID has a destination already"));
        }
        let to = destination(to);
        let from = bound.filter(|bound| !bound.ip().is_unspecified());
        let local = match source(from, to) {
            Ok(local) => local,
            Err(errno) => {
                tracing::debug!(%to, %errno, "no way to an address");
                return self.fail(EventKind::AddressError, -errno.raw_os_error());
            }
        };
        let links = self.process.broker.links().map_err(Error::Call)?;
        if link_of(&links, local).is_none() {
            tracing::debug!(%to, %local, "no link has the source address");
            return self.fail(EventKind::AddressError, -libc::ENODEV);
        }
        if state == State::Idle {
            let mut any_port = local;
            any_port.set_port(0);
            self.bind(any_port)?;
        }
        self.change(|inner, number| {
            let result = inner.record(number).and_then(|record| {
                let mut local = local;
                local.set_port(record.local.map_or(0, |bound| bound.port()));
                let (link, index) = link_of(&links, local).ok_or(Error::NoRoute(local.ip()))?;
                let class = record.options.traffic_class;
                record.route = Some(route(link, index, local, to, class));
                (record.local, record.remote) = (Some(local), Some(to));
                record.state = State::AddressResolved;
                record.tell(number, Event::of(record, EventKind::AddressResolved, 0));
                Ok(())
            });
            inner.links = links;
            result
        })
    }

    /// Finds the path, which on RoCE is known with the address. An event says so.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state.
    pub fn resolve_route(&self) -> Result<()> {
        self.change(|inner, number| {
            let record = inner.record(number)?;
            if record.state != State::AddressResolved {
                return Err(Error::Invalid("the address is not resolved"));
            }
            record.state = State::RouteResolved;
            record.tell(number, Event::of(record, EventKind::RouteResolved, 0));
            Ok(())
        })
    }

    /// Takes requests for connections: each is an event with an ID of its own. At most `backlog`
    /// wait to be fetched; others are forgotten, and come again.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Invalid`] in another state.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        if self.with(|record| Ok(record.state == State::Idle))? {
            self.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        let slot = self.process.start_connections()?;
        let links = self.process.broker.links().map_err(Error::Call)?;
        let backlog = usize::try_from(backlog)
            .ok()
            .filter(|backlog| (1..=BACKLOG_MAX).contains(backlog))
            .unwrap_or(BACKLOG_MAX);
        let port = self.change(|inner, number| {
            inner.links = links;
            let record = inner.record(number)?;
            let port = match (record.state, record.port) {
                (State::Bound, Some(port)) => port,
                _ => return Err(Error::Invalid("the ID is not bound")),
            };
            let service = ServiceId::new(record.space, port.port);
            record.state = State::Listening;
            inner.listen(number, service, backlog)?;
            Ok(port)
        })?;
        let listened = self.process.broker.listen(port.id, slot).map_err(refused);
        if listened.is_err() {
            self.change(|inner, number| {
                inner.unlisten(number);
                inner.record(number)?.state = State::Bound;
                Ok(())
            })?;
        }
        listened
    }

    /// Asks the peer for a connection. The answer is an event.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data.
    pub fn connect(&self, request: &Request) -> Result<()> {
        self.process.start_connections()?;
        self.change_at(|inner, number, now| {
            let record = inner.record(number)?;
            let (State::RouteResolved, Some(route), Some(local), Some(remote)) = (
                record.state,
                record.route.clone(),
                record.local,
                record.remote,
            ) else {
                return Err(Error::Invalid("the route is not resolved"));
            };
            let all = |asked: Option<u8>| asked.unwrap_or(MAX_RD_ATOMIC as u8); // 128
            let own = local_queue_pair(
                request,
                route.guid,
                record.starting_psn,
                all(request.responder_resources),
                all(request.initiator_depth),
            )?;
            let header = CmaHeader {
                source_port: local.port(),
                source: local.ip(),
                destination: remote.ip(),
            };
            let data = [&header.to_bytes()[..], &request.private_data].concat();
            let service = ServiceId::new(record.space, remote.port());
            let mut message = ConnectRequest::new(route.path, service, own);
            message.transport = TransportService::Rc;
            message.mtu = route.mtu;
            message.retry_count = Bits::saturating(request.retry_count.into());
            message.private_data = Padded::new(&data).ok_or(TOO_LONG)?;
            if let Some(life) = record.options.ack_timeout.checked_sub(1) {
                message.packet_life = Bits::saturating(life.into());
            }
            record.retry_count = message.retry_count;
            record.qpn = Some(own.qpn);
            record.state = State::Connecting;
            let cm = inner.cm.as_mut().ok_or(Error::DeviceFatal)?;
            let comm = cm.connect(now, &message).map_err(impossible)?;
            inner.by_comm.insert(comm, number);
            inner.record(number)?.comm = Some(comm);
            Ok(())
        })
    }

    /// Accepts a request. The queue pair has to be in RTS: see [`Self::prepare_accept`].
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state, or for too much private data.
    pub fn accept(&self, request: &Request) -> Result<()> {
        self.change_at(|inner, number, now| {
            let record = inner.record(number)?;
            let (State::Requested, Some(agreed), Some(route), Some(comm)) =
                (record.state, record.agreed, &record.route, record.comm)
            else {
                return Err(Error::Invalid("nobody asked, or was answered"));
            };
            let own = local_queue_pair(
                request,
                route.guid,
                record.starting_psn,
                agreed.remote.responder_resources,
                agreed.remote.initiator_depth,
            )?;
            let accept = Accept {
                local: own,
                private_data: Padded::new(&request.private_data).ok_or(TOO_LONG)?,
            };
            record.qpn = Some(own.qpn);
            record.state = State::Accepted;
            let cm = inner.cm.as_mut().ok_or(Error::DeviceFatal)?;
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
            let (State::Requested, Some(Agreed { remote, .. })) =
                (record.state, &mut record.agreed)
            else {
                return Err(Error::Invalid("nobody asked, or was answered"));
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
    /// [`Error::Invalid`] in another state.
    pub fn notify_established(&self) -> Result<()> {
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
        let refusal = Refusal {
            private_data: Padded::new(private_data).ok_or(TOO_LONG)?,
            ..Refusal::new(RejectReason::Consumer)
        };
        self.change_at(|inner, number, now| {
            let (cm, comm, record) = inner.connection(number)?;
            cm.reject(now, comm, &refusal).map_err(impossible)?;
            record.state = State::Connected;
            Ok(())
        })
    }

    /// Closes the connection, or agrees to the peer's closing it. On one that is over, nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never was one.
    pub fn disconnect(&self) -> Result<()> {
        self.change_at(|inner, number, now| {
            let (cm, comm, _) = inner.connection(number)?;
            match cm.disconnect(now, comm) {
                Ok(()) | Err(CmError::State) => Ok(()),
                Err(error) => Err(impossible(error)),
            }
        })
    }

    /// What the queue pair is to be set to on its way to `state`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is not known yet.
    pub fn step(&self, state: qp::State) -> Result<Step> {
        self.with(|record| attributes::step(record, state))
    }

    /// The program has fetched the request of this ID, which no longer counts as waiting.
    pub fn delivered(&self) {
        let _ = self.change(|inner, number| {
            let (cm, comm, _) = inner.connection(number)?;
            cm.delivered(comm);
            Ok(())
        });
    }

    /// Lets its events come through another channel, those included that wait, and waits until
    /// those that were fetched are acknowledged.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<()> {
        let before = self.with(|record| {
            for event in record.channel.withdraw(self.number) {
                channel.push(event, self.number);
            }
            Ok(std::mem::replace(&mut record.channel, Arc::clone(channel)))
        })?;
        before.wait_acknowledged(self.number);
        Ok(())
    }

    /// Ends the ID: tells the peer, takes back events that wait, and waits until those that were
    /// fetched are acknowledged.
    pub fn destroy(&self) {
        if let Some(channel) = self.leave() {
            // requests that nobody fetched are refused here, without a lock
            channel.retire(self.number);
        }
    }

    /// Ends nothing when it is dropped: there is nothing behind it.
    pub(super) fn disown(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Ends the ID without looking after its events. The channel that it had, the first time.
    fn leave(&self) -> Option<Arc<EventChannel>> {
        if self.has_left.swap(true, Ordering::AcqRel)
            || matches!(self.process.check(), Err(Error::Forked))
        {
            return None;
        }
        let number = self.number;
        let record = self.process.in_connections(|inner, now| {
            inner.unlisten(number);
            let record = inner.records.remove(&number)?;
            if let Some(comm) = record.comm {
                inner.by_comm.remove(&comm);
                if let Some(cm) = &mut inner.cm {
                    // it may be over and forgotten
                    let _ = cm.destroy(now, comm);
                }
            }
            Some(record)
        })?;
        if let Some(port) = record.port {
            // a broker that cannot be told learns it from our end
            let _ = self.process.broker.release_port(port.id);
        }
        Some(record.channel)
    }

    /// Queues an event that something failed; the ID stays as it was.
    fn fail(&self, kind: EventKind, status: i32) -> Result<()> {
        self.with(|record| {
            record.tell(self.number, Event::of(record, kind, status));
            Ok(())
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Record) -> Result<R>) -> Result<R> {
        self.process.check()?;
        work(self.process.connections.lock().record(self.number)?)
    }

    fn change<R>(&self, work: impl FnOnce(&mut Inner, u64) -> Result<R>) -> Result<R> {
        self.change_at(|inner, number, _| work(inner, number))
    }

    fn change_at<R>(
        &self,
        work: impl FnOnce(&mut Inner, u64, engine::Instant) -> Result<R>,
    ) -> Result<R> {
        self.process.check()?;
        self.process
            .in_connections(|inner, now| work(inner, self.number, now))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.leave();
    }
}

const TOO_LONG: Error = Error::Invalid("there is more private data than the message has room for");

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

/// What the broker says of a port.
fn refused(error: broker::client::CallError) -> Error {
    match error {
        broker::client::CallError::Refused(BrokerRefusal::Port(refusal)) => Error::Port(refusal),
        other => Error::Call(other),
    }
}

fn impossible(error: CmError) -> Error {
    match error {
        CmError::Unknown | CmError::State => Error::Invalid("the connection is in another state"),
        CmError::InUse => Error::Invalid("somebody listens on this service"),
        CmError::Full => Error::NoRoom("connection"),
    }
}

impl Inner {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn record(&mut self, number: u64) -> Result<&mut Record> {
        let gone = Error::Invalid("the ID was destroyed");
        self.records.get_mut(&number).ok_or(gone)
    }

    /// An ID with a connection.
    fn connection(
        &mut self,
        number: u64,
    ) -> Result<(&mut engine::cm::Cm, wire::mad::CommId, &mut Record)> {
        let none = || Error::Invalid("the ID has no connection");
        let record = self.records.get_mut(&number).ok_or_else(none)?;
        let comm = record.comm.ok_or_else(none)?;
        let cm = self.cm.as_mut().ok_or_else(none)?;
        Ok((cm, comm, record))
    }

    fn listen(&mut self, number: u64, service: ServiceId, backlog: usize) -> Result<()> {
        let cm = self.cm.as_mut().ok_or(Error::DeviceFatal)?;
        let listeners = self.listeners.entry(service).or_default();
        if listeners.is_empty() {
            cm.listen(service, backlog).map_err(impossible)?;
        }
        listeners.push(number);
        Ok(())
    }

    /// Takes no more requests for this ID, if it did.
    fn unlisten(&mut self, number: u64) {
        let cm = &mut self.cm;
        self.listeners.retain(|service, listeners| {
            listeners.retain(|listener| *listener != number);
            if listeners.is_empty()
                && let Some(cm) = cm
            {
                cm.unlisten(*service);
            }
            !listeners.is_empty()
        });
    }
}
