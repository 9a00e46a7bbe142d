//! IDs on links of iWARP: their connections are those of TCP, which the kernel makes.
//!
//! Read first: RFC 5044 7.1, RFC 6581, and [`crate::iwarp`], which does all of it but for what is
//! said here: which IDs there are, and what a program is told. The kernel's rdma_cm over siw is the
//! model. `connect` waits until TCP has reached the peer, or fails itself, unless it is
//! `begin_connect`; who asks is told "established" without being asked once more; there is no time
//! to wait in when all is over.
//!
//! A listener at all addresses has one socket for all links of iWARP, beside the messages of RoCE:
//! it listens if either can be had.

use std::net::SocketAddr;
use std::sync::Arc;

use broker::link::{LinkInfo, LinkKind};
use engine::iwarp::{DEPTH_MAX, Depths};
use wire::mad::PortSpace;
use wire::{Psn, Qpn};

use super::connection::{NOBODY_ASKED, Request};
use super::event::{ConnectionParameters, Event, EventKind};
use super::id::Id;
use super::record::{Record, State};
use super::resolve::route;
use super::{Connections, Inner, advice};
use crate::error::{Error, Result};
use crate::iwarp::{
    Call, Incoming, ListenAt, Report, ReportKind, Settings, StreamListener, Terms, errno, link_at,
};
use crate::process::Process;

/// What an ID has of streams.
#[derive(Default)]
pub(super) struct Part {
    /// Of who listens.
    pub listener: Option<StreamListener>,
    /// Requests that its program has not fetched, and how many may wait.
    waiting: usize,
    backlog: usize,
    /// Of a request: the peer that waits for the answer.
    pub incoming: Option<Incoming>,
    /// Of a request that was not fetched: whom it waits for.
    asks: Option<u64>,
}

impl Record {
    /// Whether its link is one of iWARP.
    pub(super) fn is_stream(&self) -> bool {
        self.route
            .as_ref()
            .is_some_and(|route| route.kind == LinkKind::Siw)
    }
}

impl Id {
    /// Whether its link is one of iWARP: then connecting and accepting move the queue pair.
    pub fn is_stream(&self) -> bool {
        self.with(|record| Ok(record.is_stream())).unwrap_or(false)
    }

    /// Reaches the peer by TCP, which takes its time, and asks it. What comes of it is an event,
    /// TCP's part of it too unless the call `waits` for that.
    pub(super) fn call(&self, request: &Request, waits: bool) -> Result<()> {
        let qpn = qpn(request)?;
        let (local, remote, traffic_class) = self.with(|record| {
            let (State::RouteResolved, Some(local), Some(remote)) =
                (record.state, record.local, record.remote)
            else {
                return Err(Error::Invalid("the route is not resolved"));
            };
            (record.state, record.qpn) = (State::Connecting, Some(qpn));
            // a port that nobody named is TCP's to choose: the broker knows nothing of TCP's
            let port = if record.has_named_port {
                local.port()
            } else {
                0
            };
            let traffic_class = record.options.traffic_class;
            Ok((with_port(local, port), remote, traffic_class))
        })?;
        let most = Depths {
            ird: DEPTH_MAX,
            ord: DEPTH_MAX,
        };
        let call = Call {
            local: Some(local),
            remote,
            private_data: &request.private_data,
            depths: depths(request, most),
            traffic_class,
            waits,
        };
        let called = self.process().connect_stream(qpn, &call, self.number());
        let is_called = called.is_ok();
        let settled = self.with(|record| match called {
            Ok(local) => {
                record.local = Some(local);
                Ok(())
            }
            Err(error) => {
                record.state = State::RouteResolved;
                let error = unreached(error, remote);
                if let Error::Tcp { errno, .. } = error {
                    advice::no_connection(remote, errno);
                }
                Err(error)
            }
        });
        if is_called && settled.is_err() {
            // it was destroyed while TCP was on its way
            self.process().abandon_stream(qpn, self.number());
        }
        settled
    }

    /// Accepts the peer that waits.
    pub(super) fn answer(&self, request: &Request) -> Result<()> {
        let qpn = qpn(request)?;
        let incoming = self.with(|record| {
            let mut incoming = record.stream.incoming.take().ok_or(NOBODY_ASKED)?;
            incoming.set_traffic_class(record.options.traffic_class)?;
            (record.state, record.qpn) = (State::Accepted, Some(qpn));
            Ok(incoming)
        })?;
        let depths = depths(request, incoming.offered);
        let data = &request.private_data;
        let accepted = self
            .process()
            .accept_stream(qpn, incoming, depths, data, self.number());
        let has_failed = accepted.is_err();
        let settled = self.with(|record| {
            if has_failed {
                record.state = State::Connected;
            }
            Ok(())
        });
        if settled.is_err() {
            // it was destroyed meanwhile
            self.process().abandon_stream(qpn, self.number());
        }
        settled.and(accepted)
    }

    /// Refuses the peer that waits.
    pub(super) fn turn_away(&self, private_data: &[u8]) -> Result<()> {
        let incoming = self.with(|record| {
            let incoming = record.stream.incoming.take().ok_or(NOBODY_ASKED)?;
            record.state = State::Connected;
            Ok(incoming)
        })?;
        incoming.reject(private_data)
    }

    /// Closes the connection: what was posted before is sent. On one that is over, nothing.
    pub(super) fn hang_up(&self) -> Result<()> {
        let none = Error::Invalid("the ID has no connection");
        let qpn = self.with(|record| record.qpn.ok_or(none))?;
        self.process().disconnect_stream(qpn);
        Ok(())
    }

    /// Takes callers at its address; at all, as far as links of iWARP have them.
    pub(super) fn listen_for_callers(&self, backlog: usize) -> Result<()> {
        self.change(|inner, number| inner.listen_for_callers(self.process(), number, backlog))
    }
}

impl Inner {
    fn listen_for_callers(&mut self, process: &Process, number: u64, backlog: usize) -> Result<()> {
        // callers may come before this returns
        self.record(number)?.stream.backlog = backlog;
        let record = self.records.get(&number);
        let record = record.ok_or(Error::Invalid("the ID was destroyed"))?;
        let local = record.local.ok_or(Error::Invalid("the ID is not bound"))?;
        let link = record.route.as_ref().map(|route| route.link.as_str());
        let first = self.streams_of(link).ok_or(Error::NoRoute(local.ip()))?;
        let terms = match link {
            Some(_) => Terms::Same(Settings::of(first)),
            None => Terms::OfLink,
        };
        let at = ListenAt {
            address: local,
            v6_only: record.options.family_only,
            backlog: u32::try_from(backlog).unwrap_or(u32::MAX),
            traffic_class: record.options.traffic_class,
        };
        let listener = process
            .listen_for_streams(&at, terms, number)
            .map_err(|error| unreached(error, local))?;
        self.record(number)?.stream.listener = Some(listener);
        Ok(())
    }

    /// The link of iWARP with this name, or the first of all.
    fn streams_of(&self, name: Option<&str>) -> Option<&LinkInfo> {
        self.links()
            .iter()
            .filter(|link| link.kind == LinkKind::Siw)
            .find(|link| name.is_none_or(|name| link.name == name))
    }

    /// What listening at this link, or at all, comes to: messages of RoCE, streams of iWARP.
    /// Without any link it is the former, for the links to come.
    pub(super) fn ways_to_listen(&self, record: &Record) -> [bool; 2] {
        if let Some(route) = &record.route {
            return [route.kind == LinkKind::Rxe, route.kind == LinkKind::Siw];
        }
        let has = |kind| self.links().iter().any(|link| link.kind == kind);
        let has_streams = has(LinkKind::Siw) && record.space == PortSpace::Tcp;
        [has(LinkKind::Rxe) || !has_streams, has_streams]
    }

    /// Tells why the peer of the ID may have refused.
    fn explain_refusal(&self, number: u64, private_data: &[u8]) {
        let Some(record) = self.records.get(&number) else {
            return;
        };
        let (Some(to), Some(route)) = (record.remote, &record.route) else {
            return;
        };
        if let Some(link) = self.links().iter().find(|link| link.name == route.link) {
            advice::refused(to, link, private_data);
        }
    }

    /// The program has fetched a request, or it is gone before that.
    pub(super) fn no_longer_waits(&mut self, number: u64) {
        let asks = self.records.get_mut(&number);
        let listener = asks.and_then(|record| record.stream.asks.take());
        if let Some(owner) = listener.and_then(|number| self.records.get_mut(&number)) {
            owner.stream.waiting -= 1;
        }
    }
}

impl Process {
    /// Takes what happened to streams.
    pub(super) fn take_stream_reports(self: &Arc<Self>, reports: Vec<Report>) {
        self.in_connections(|inner, _| {
            for Report { token, kind } in reports {
                if let ReportKind::Requested(incoming) = kind {
                    if let Err(why) = self.take_caller(inner, token, incoming) {
                        // nobody answers it: its connection was reset
                        tracing::debug!(why, "a caller is refused");
                    }
                    continue;
                }
                if let ReportKind::Rejected { private_data } = &kind {
                    inner.explain_refusal(token, private_data);
                }
                if let Some(record) = inner.records.get_mut(&token)
                    // or else its link is gone, and its program knows
                    && record.state != State::Disconnected
                {
                    let event = happened(record, kind);
                    record.tell(token, event);
                }
            }
        });
    }

    /// Makes an ID of a caller and tells the listener.
    fn take_caller(
        self: &Arc<Self>,
        inner: &mut Inner,
        listener: u64,
        mut incoming: Incoming,
    ) -> std::result::Result<(), &'static str> {
        let number = inner.next_number();
        let owner = inner.records.get(&listener).ok_or("the listener is gone")?;
        if owner.stream.waiting >= owner.stream.backlog {
            return Err("too many wait already");
        }
        let (local, remote) = (incoming.local, incoming.remote);
        let link = link_at(inner.links(), local).ok_or("no link has the address")?;
        if owner
            .route
            .as_ref()
            .is_some_and(|own| own.link != link.name)
        {
            return Err("the listener is at another link");
        }
        let mut record = Record::new(
            &owner.channel,
            owner.space,
            owner.transport,
            Psn::default(), // of streams nobody asks for it
        );
        record.state = State::Requested;
        (record.local, record.remote) = (Some(local), Some(remote));
        record.options = owner.options;
        record.route = Some(route(link, 0, local, remote, owner.options.traffic_class));
        let private_data = std::mem::take(&mut incoming.private_data);
        let event = Event {
            parameters: parameters(private_data, incoming.offered),
            request: Some(Id::of(self, number)),
            ..Event::of(owner, EventKind::ConnectRequest, 0)
        };
        if let Err(event) = owner.channel.offer(event, listener) {
            // within the lock, which the end of an ID would take
            event.request.as_ref().map(Id::disown);
            return Err("the program does not fetch its events");
        }
        record.stream.incoming = Some(incoming);
        record.stream.asks = Some(listener);
        if let Ok(owner) = inner.record(listener) {
            owner.stream.waiting += 1;
        }
        inner.records.insert(number, record);
        Ok(())
    }
}

impl Connections {
    /// Whoever listens at all addresses listens at a link that has come, too.
    pub(crate) fn listen_at(&self, process: &Process, link: &LinkInfo) {
        if link.kind != LinkKind::Siw {
            return;
        }
        let mut inner = self.lock();
        let lacks = |record: &Record| {
            record.state == State::Listening
                && record.route.is_none()
                && record.space == PortSpace::Tcp
                && record.stream.listener.is_none()
        };
        let records = inner.records.iter();
        let lacking: Vec<u64> = records
            .filter(|(_, record)| lacks(record))
            .map(|(number, _)| *number)
            .collect();
        for number in lacking {
            if let Err(error) = inner.listen_for_callers(process, number, super::id::BACKLOG_MAX) {
                let local = inner.records.get(&number).and_then(|record| record.local);
                advice::no_tcp_port(local.map_or(0, |local| local.port()), &error);
            }
        }
    }
}

/// What a program is told, and how far its ID is then.
fn happened(record: &mut Record, kind: ReportKind) -> Event {
    let has_asked = record.state == State::Connecting;
    record.state = State::Connected;
    match kind {
        ReportKind::Established {
            replied,
            private_data,
            ..
        } => Event {
            parameters: parameters(private_data, as_told(replied)),
            ..Event::of(record, EventKind::Established, 0)
        },
        ReportKind::Rejected { private_data } => Event {
            parameters: parameters(private_data, Depths::default()),
            ..Event::of(record, EventKind::Rejected, -libc::ECONNRESET)
        },
        ReportKind::Unreached(errno) => {
            if let Some(to) = record.remote {
                advice::no_connection(to, errno);
            }
            failed(record, errno.raw_os_error())
        }
        ReportKind::Failed(error) if has_asked => {
            if let Some(to) = record.remote {
                advice::no_iwarp(to, &error);
            }
            failed(record, errno(&error))
        }
        // who accepted had a connection already; the first case was dealt with before
        ReportKind::Failed(_) | ReportKind::Disconnected(_) | ReportKind::Requested(_) => {
            Event::of(record, EventKind::Disconnected, 0)
        }
    }
}

/// What a program is told of READs and atomics once there is a connection: by siw the other way
/// round than with the request, and what the reply says even where less is in use.
fn as_told(replied: Depths) -> Depths {
    Depths {
        ird: replied.ord,
        ord: replied.ird,
    }
}

/// The event of a connection that did not come about, as rdma_cm tells them apart.
fn failed(record: &Record, errno: i32) -> Event {
    Event::of(record, failure(errno), -errno)
}

const fn failure(errno: i32) -> EventKind {
    match errno {
        libc::ECONNRESET | libc::ECONNREFUSED => EventKind::Rejected,
        libc::ETIMEDOUT => EventKind::Unreachable,
        _ => EventKind::ConnectError,
    }
}

fn parameters(private_data: Vec<u8>, depths: Depths) -> ConnectionParameters {
    let bounded = |depth: u16| depth.min(DEPTH_MAX) as u8; // 128
    ConnectionParameters {
        private_data,
        responder_resources: bounded(depths.ird),
        initiator_depth: bounded(depths.ord),
        ..ConnectionParameters::default()
    }
}

/// What the program says, or else as much as there can be.
fn depths(request: &Request, most: Depths) -> Depths {
    let asked = |asked: Option<u8>, most: u16| asked.map_or(most.min(DEPTH_MAX), u16::from);
    Depths {
        ird: asked(request.responder_resources, most.ird),
        ord: asked(request.initiator_depth, most.ord),
    }
}

fn qpn(request: &Request) -> Result<Qpn> {
    Qpn::new(request.qpn).ok_or(Error::Invalid("a QPN has 24 bits"))
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// What TCP says of an address is for the program, and no fault of the set-up.
fn unreached(error: Error, address: SocketAddr) -> Error {
    match error {
        Error::System { errno, .. } => Error::Tcp { address, errno },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use engine::iwarp::StartError;

    use super::*;

    #[test]
    fn what_failed_is_the_event_that_the_kernel_has_for_it() {
        for (error, expected) in [
            (StartError::TimedOut, EventKind::Unreachable),
            (StartError::Ended, EventKind::Rejected),
            (StartError::TooEarly, EventKind::ConnectError),
        ] {
            assert_eq!(failure(errno(&error)), expected, "{error:?}");
        }
    }

    #[test]
    fn depths_of_a_connection_are_told_as_siw_tells_them() {
        // who asked with 5 and 2 was accepted with 3 and 4, between two ends of the kernel's
        let resources_and_depth = |replied| {
            let told = parameters(Vec::new(), as_told(replied));
            (told.responder_resources, told.initiator_depth)
        };
        assert_eq!(
            resources_and_depth(Depths { ird: 4, ord: 3 }),
            (3, 4),
            "who asked"
        );
        assert_eq!(
            resources_and_depth(Depths { ird: 3, ord: 4 }),
            (4, 3),
            "who accepted"
        );
    }

    #[test]
    fn who_says_nothing_gets_what_both_can() {
        let offered = Depths { ird: 300, ord: 3 };
        let silent = depths(&Request::default(), offered);
        assert_eq!((silent.ird, silent.ord), (128, 3));
        let said = Request {
            responder_resources: Some(1),
            initiator_depth: Some(2),
            ..Request::default()
        };
        let said = depths(&said, offered);
        assert_eq!((said.ird, said.ord), (1, 2));
    }
}
