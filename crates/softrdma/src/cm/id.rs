//! IDs from their beginning to their end: addresses, paths, listening. What a program does with a
//! peer is in [`connection`](super::connection).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use broker::link::LinkInfo;
use broker::port::{BoundPort, PortAddress, PortSpace};
use broker::protocol::Refusal as BrokerRefusal;
use engine::cm::CmError;
use engine::qp::Transport;
use wire::Psn;
use wire::mad::ServiceId;

use super::event::{Event, EventChannel, EventKind};
use super::neighbour::{Way, missing};
use super::record::{Record, State};
use super::resolve::{destination, kinds, scope, source};
use super::{Inner, advice};
use crate::error::{Error, Result};
use crate::process::{Process, random};

/// Requests that wait for a listener that did not say how many, as in the kernel.
pub(super) const BACKLOG_MAX: usize = 1024;

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

/// A program's end of a connection. Dropping it tells the peer.
pub struct Id {
    process: Arc<Process>,
    number: u64,
    has_left: AtomicBool,
}

impl Id {
    /// An ID whose events come through `channel`, for queue pairs of the kind that the port space
    /// is about.
    ///
    /// # Errors
    /// [`Error::Broker`]
    pub fn new(channel: &Arc<EventChannel>, space: PortSpace) -> Result<Self> {
        let transport = match space {
            PortSpace::Tcp | PortSpace::Ib => Transport::Rc,
            PortSpace::Udp | PortSpace::IpOverIb => Transport::Ud,
        };
        Self::with_transport(channel, space, transport)
    }

    /// The same for queue pairs of another kind, which [`PortSpace::Ib`] leaves open.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_transport(
        channel: &Arc<EventChannel>,
        space: PortSpace,
        transport: Transport,
    ) -> Result<Self> {
        let process = Process::current()?;
        process.check()?;
        let record = Record::new(channel, space, transport, Psn::truncated(random()));
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

    pub(super) fn process(&self) -> &Arc<Process> {
        &self.process
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

    /// What kind of queue pair it is for.
    pub fn transport(&self) -> Option<Transport> {
        self.with(|record| Ok(record.transport)).ok()
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

    /// Changes those of its options that are about its address.
    ///
    /// # Errors
    /// [`Error::Invalid`] once it has a destination, or listens.
    pub fn set_address_options(&self, change: impl FnOnce(&mut Options)) -> Result<()> {
        self.with(|record| match record.state {
            State::Idle | State::Bound => {
                change(&mut record.options);
                Ok(())
            }
            _ => Err(Error::Invalid("it is too late for options of the address")),
        })
    }

    /// Queues an event behind those that happened.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn tell(&self, kind: EventKind, status: i32, argument: u64) -> Result<()> {
        self.with(|record| {
            let event = Event {
                argument,
                ..Event::of(record, kind, status)
            };
            record.tell(self.number, event);
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
        let own = if address.ip().is_unspecified() {
            None
        } else {
            let class = options.traffic_class;
            let way = self.process.way(address, address, class, space)?;
            if way.is_none() {
                advice::no_address(&self.process, address, kinds(space));
            }
            Some(way.ok_or(Error::NoRoute(address.ip()))?)
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
            let record = inner.record(number)?;
            let mut local = address;
            local.set_port(bound.port);
            (record.local, record.port, record.route) = (Some(local), Some(bound), own);
            record.has_named_port = address.port() != 0;
            record.state = State::Bound;
            Ok(())
        })
    }

    /// Finds the own address and the link to `to`, and for so long whoever takes packets there on
    /// the link's network; without `patience`, only the link. What comes of it is an event.
    ///
    /// # Errors
    /// [`Error::Invalid`] in another state; [`Error::Port`] if `from` cannot be bound.
    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        patience: Option<Duration>,
    ) -> Result<()> {
        if let Some(from) = from.filter(|from| !from.ip().is_unspecified() || from.port() != 0)
            && self.with(|record| Ok(record.state == State::Idle))?
        {
            self.bind(from)?;
        }
        let (bound, state, space) =
            self.with(|record| Ok((record.local, record.state, record.space)))?;
        if !matches!(state, State::Idle | State::Bound) {
            return Err(Error::Invalid("the ID has a destination already"));
        }
        let to = destination(to);
        let from = bound.filter(|bound| !bound.ip().is_unspecified());
        let local = match source(from, to) {
            Ok(local) => local,
            Err(errno) => {
                tracing::debug!(%to, %errno, "no way to an address");
                advice::no_way(to.ip(), errno);
                return self.tell(EventKind::AddressError, -errno.raw_os_error(), 0);
            }
        };
        let class = self.options().traffic_class;
        let Some(known) = self.process.way(local, to, class, space)? else {
            tracing::debug!(%to, %local, "no link has the source address");
            advice::no_device(&self.process, to, local, kinds(space));
            return self.tell(EventKind::AddressError, -libc::ENODEV, 0);
        };
        let missing = patience.and_then(|patience| Some((patience, missing(local, to)?)));
        if state == State::Idle {
            let mut any_port = local;
            any_port.set_port(0);
            self.bind(any_port)?;
        }
        let way = Way {
            local,
            remote: to,
            route: known,
        };
        let Some((patience, hop)) = missing else {
            return self.with(|record| {
                record.take_way(self.number, way);
                Ok(())
            });
        };
        self.change_at(|inner, number, now| {
            inner.record(number)?.state = State::Resolving;
            let times = [now, now.plus(patience)];
            inner.await_neighbour(number, way, hop, from.is_some(), times);
            Ok(())
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
    /// wait to be fetched; others are forgotten, and come again. Who listens at all addresses does
    /// so over RoCE and iWARP, or over the one that can be had.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Tcp`], [`Error::Invalid`] in another state.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        if self.with(|record| Ok(record.state == State::Idle))? {
            self.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        if self.process.connections.lock().links.is_none() {
            self.process.learn_links()?;
        }
        let backlog = usize::try_from(backlog)
            .ok()
            .filter(|backlog| (1..=BACKLOG_MAX).contains(backlog))
            .unwrap_or(BACKLOG_MAX);
        let (port, [by_messages, by_streams]) = self.change(|inner, number| {
            let record = inner.record(number)?;
            let port = match (record.state, record.port) {
                (State::Bound, Some(port)) => port,
                _ => return Err(Error::Invalid("the ID is not bound")),
            };
            record.state = State::Listening;
            let ways = inner
                .records
                .get(&number)
                .map(|record| inner.ways_to_listen(record));
            Ok((port, ways.unwrap_or_default()))
        })?;
        let messages = by_messages.then(|| self.listen_for_messages(port, backlog));
        let streams = by_streams.then(|| self.listen_for_callers(backlog));
        if let (Some(Ok(())), Some(Err(error))) = (&messages, &streams) {
            advice::no_tcp_port(port.port, error);
        }
        let is_heard = [&messages, &streams]
            .into_iter()
            .flatten()
            .any(Result::is_ok);
        let failed = [messages, streams]
            .into_iter()
            .flatten()
            .find_map(Result::err);
        match failed {
            Some(error) if !is_heard => {
                self.with(|record| {
                    record.state = State::Bound;
                    Ok(())
                })?;
                advice::not_listening(&error);
                Err(error)
            }
            Some(error) => {
                tracing::debug!(%error, "a listener does without one kind of links");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes requests that come to QP 1.
    fn listen_for_messages(&self, port: BoundPort, backlog: usize) -> Result<()> {
        let slot = self.process.start_connections()?;
        self.change(|inner, number| {
            let service = ServiceId::new(inner.record(number)?.space, port.port);
            inner.listen(number, service, backlog)
        })?;
        let listened = self.process.broker.listen(port.id, slot).map_err(refused);
        if listened.is_err() {
            self.change(|inner, number| {
                inner.unlisten(number);
                Ok(())
            })?;
        }
        listened
    }

    /// The program has fetched the request of this ID, which no longer counts as waiting.
    pub fn delivered(&self) {
        let _ = self.change(|inner, number| {
            inner.no_longer_waits(number);
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
            inner.no_longer_waits(number);
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
        if let Some(qpn) = record.qpn.filter(|_| record.is_stream()) {
            // the queue pair stays, without a connection
            self.process.abandon_stream(qpn, number);
        }
        if let Some(incoming) = record.stream.incoming {
            // it may be gone itself
            let _ = incoming.reject(&[]);
        }
        if let Some(port) = record.port {
            // a broker that cannot be told learns it from our end
            let _ = self.process.broker.release_port(port.id);
        }
        Some(record.channel)
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Record) -> Result<R>) -> Result<R> {
        self.process.check()?;
        work(self.process.connections.lock().record(self.number)?)
    }

    pub(super) fn change<R>(&self, work: impl FnOnce(&mut Inner, u64) -> Result<R>) -> Result<R> {
        self.change_at(|inner, number, _| work(inner, number))
    }

    pub(super) fn change_at<R>(
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

/// What the broker says of a port.
fn refused(error: broker::client::CallError) -> Error {
    match error {
        broker::client::CallError::Refused(BrokerRefusal::Port(refusal)) => Error::Port(refusal),
        other => Error::Call(other),
    }
}

/// A verb that came at the wrong time.
pub(super) fn impossible(error: CmError) -> Error {
    match error {
        CmError::Unknown | CmError::State => Error::Invalid("the connection is in another state"),
        CmError::Established => Error::Connected,
        CmError::InUse => Error::Invalid("somebody listens on this service"),
        CmError::Full => Error::NoRoom("connection"),
    }
}

impl Inner {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The links of this host, as far as they were asked for.
    pub(super) fn links(&self) -> &[LinkInfo] {
        self.links.as_deref().unwrap_or_default()
    }

    pub(super) fn record(&mut self, number: u64) -> Result<&mut Record> {
        let gone = Error::Invalid("the ID was destroyed");
        self.records.get_mut(&number).ok_or(gone)
    }

    /// An ID with a connection.
    pub(super) fn connection(
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
