//! QP 1 of this host: takes what arrives, passes it on to who is to have it, and answers where
//! there is nobody.
//!
//! Read first: IBA 13.5 and [`route`](super::route). Anybody on the network can send here, so all
//! work has a bound: packets taken in one turn of the loop, messages that wait for a slot, answers
//! in a second.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::{Duration, Instant},
};

use io::{
    poll::{Interest, Trigger},
    udp::{self, Family, Received, SendOutcome, SendSocket, Transmit},
};
use wire::{
    Mad, Packet, Psn,
    icrc::{Believe, PseudoHeader},
    mad::{CommId, ServiceId},
};

use super::{
    Server, Token,
    between_listens::{BetweenListens, Request},
    farewells::Farewells,
    outbox::{Outboxes, Posted},
    ports::is_link_local,
    requesters::{Recipient, Requesters},
    route::{self, Absence, Called, Requester, Way},
    ties::Ties,
};
use crate::{
    gsi::{self, Counters, DropReason},
    protocol::steer_name,
    steer::Origin,
};

/// Datagrams taken in one turn of the loop, each of which the kernel may have merged of up to 64
/// packets: some milliseconds of work, then clients get theirs.
const DATAGRAMS_PER_TURN: usize = 16;

/// Answers in a second. Source addresses can be forged, and this host is not to be the one who
/// floods another.
const ANSWERS_PER_SECOND: u32 = 10_000;

/// Farewells repeated in one turn of the loop: as little work as those packets.
const FAREWELLS_PER_TURN: usize = 256;

/// What the broker keeps for QP 1.
#[derive(Debug)]
pub(super) struct Gsi {
    buffer: Vec<u8>,
    outboxes: Outboxes,
    requesters: Requesters,
    between_listens: BetweenListens,
    ties: Ties,
    farewells: Farewells,
    answers: Answers,
    pub(super) counters: Counters,
}

impl Gsi {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            buffer: vec![0; udp::RECEIVE_BUFFER],
            outboxes: Outboxes::default(),
            requesters: Requesters::default(),
            between_listens: BetweenListens::default(),
            ties: Ties::default(),
            farewells: Farewells::default(),
            answers: Answers::new(now),
            counters: Counters::default(),
        }
    }

    /// When [`Server::settle_gsi`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let requests = self.between_listens.next_deadline();
        requests
            .into_iter()
            .chain(self.farewells.next_deadline())
            .min()
    }

    fn count(&mut self, handled: Result<Handled, DropReason>) {
        match handled {
            Ok(Handled::Passed) => self.counters.passed += 1,
            Ok(Handled::Answered) => self.counters.answered += 1,
            Ok(Handled::Waits | Handled::Heard) => {}
            Err(reason) => *self.counters.dropped.entry(reason).or_default() += 1,
        }
    }
}

/// Where a message went.
enum Handled {
    Passed,
    Answered,
    /// It is counted when it is settled.
    Waits,
    /// It was for the broker itself.
    Heard,
}

impl Server {
    /// Takes what arrived at the broker's own slot, a bounded part of it.
    pub(super) fn receive_gsi(&mut self) {
        let mut buffer = std::mem::take(&mut self.gsi.buffer);
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.sockets.receive_own(&mut buffer) {
                Ok(Some(received)) => self.take_gsi(&received, &buffer),
                Ok(None) => break,
                Err(errno) => {
                    tracing::warn!(%errno, "cannot read the broker's own slot");
                    break;
                }
            }
        }
        self.gsi.buffer = buffer;
    }

    /// Takes the packets of one datagram.
    pub(super) fn take_gsi(&mut self, received: &Received, buffer: &[u8]) {
        if let Some(drops) = received.kernel_drops {
            self.gsi.counters.overflowed = drops.into();
        }
        for bytes in received.segments(buffer) {
            let handled = self.handle_gsi(received, bytes);
            self.gsi.count(handled);
        }
    }

    fn handle_gsi(&mut self, received: &Received, bytes: &[u8]) -> Result<Handled, DropReason> {
        let packet = Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
        if !icrc_is_right(received, self.config.port, bytes) {
            return Err(DropReason::BadIcrc);
        }
        let mad = gsi::mad_of(&packet)?;
        if !self.links.have(received.destination) {
            return Err(DropReason::WrongAddress);
        }
        if self.gsi.farewells.hear(&mad.message) {
            return Ok(Handled::Heard);
        }
        self.route(received, bytes, &mad)
    }

    /// Does with a message what has to be done, once it is known to be right.
    fn route(
        &mut self,
        received: &Received,
        bytes: &[u8],
        mad: &Mad,
    ) -> Result<Handled, DropReason> {
        match Way::of(&mad.message) {
            Way::Connect(called, requester) => {
                match self.recipient(&called, requester, received.interface) {
                    Ok(slot) => self.pass_on(slot, received, bytes, mad),
                    Err(absence) => self.miss(received, bytes, mad, &called, absence),
                }
            }
            Way::Resolve(called) => match self.ports.listener(&called, received.interface) {
                Ok(slot) => self.pass_on(slot, received, bytes, mad),
                Err(absence) => self.miss(received, bytes, mad, &called, absence),
            },
            Way::Peer(id) => match self.holder_of(id) {
                Some(slot) => self.pass_on(slot, received, bytes, mad),
                None => {
                    let answer = route::disown(mad).ok_or(DropReason::UnknownId)?;
                    self.answer_gsi(received, &answer)
                }
            },
            Way::Disconnect(id) => match self.holder_of(id) {
                Some(slot) => self.pass_on(slot, received, bytes, mad),
                None => {
                    let answer = route::release(mad).ok_or(DropReason::UnknownId)?;
                    self.answer_gsi(received, &answer)
                }
            },
            Way::Abandon(requester) => {
                let source = received.source.ip();
                if self.gsi.between_listens.forget(source, mad.transaction) {
                    return Ok(Handled::Heard);
                }
                let slot = self
                    .former_recipient(requester)
                    .ok_or(DropReason::UnknownId)?;
                self.pass_on(slot, received, bytes, mad)
            }
        }
    }

    /// A request has found nobody: it waits, if somebody was there a moment ago, or is refused.
    fn miss(
        &mut self,
        received: &Received,
        bytes: &[u8],
        mad: &Mad,
        called: &Called,
        absence: Absence,
    ) -> Result<Handled, DropReason> {
        let request = Request {
            service: called.service,
            received: *received,
            bytes: bytes.to_vec(),
            mad: *mad,
        };
        let now = Instant::now();
        if absence == Absence::NoListener && self.gsi.between_listens.wait(request, now).is_ok() {
            return Ok(Handled::Waits);
        }
        self.refuse(received, mad, absence)
    }

    /// A program listens: requests may have waited for that.
    pub(super) fn open_listener(&mut self, service: ServiceId) {
        for request in self.gsi.between_listens.opened(service) {
            let handled = self.route(&request.received, &request.bytes, &request.mad);
            self.gsi.count(handled);
        }
    }

    /// A program listens no more, and may listen again at once.
    pub(super) fn close_listener(&mut self, service: ServiceId) {
        self.gsi.between_listens.closed(service, Instant::now());
    }

    /// Refuses who has waited in vain, and says again what peers have not answered.
    pub(super) fn settle_gsi(&mut self, now: Instant) {
        while let Some(request) = self.gsi.between_listens.next_due(now) {
            let handled = self.refuse(&request.received, &request.mad, Absence::NoListener);
            self.gsi.count(handled);
        }
        for _ in 0..FAREWELLS_PER_TURN {
            let Some((origin, mad)) = self.gsi.farewells.next_due(now) else {
                break;
            };
            self.bid_farewell(&origin, &mad, now);
        }
    }

    /// Who is to have a request: who got it before, or who listens.
    fn recipient(
        &mut self,
        called: &Called,
        requester: Requester,
        interface: u32,
    ) -> Result<u8, Absence> {
        if let Some(slot) = self.former_recipient(requester) {
            return Ok(slot);
        }
        let slot = self.ports.listener(called, interface)?;
        if let Some(owner) = self.slots.owner(slot) {
            let recipient = Recipient { slot, owner };
            self.gsi.requesters.remember(requester, recipient);
        }
        Ok(slot)
    }

    fn former_recipient(&self, requester: Requester) -> Option<u8> {
        let Recipient { slot, owner } = self.gsi.requesters.recipient(requester)?;
        (self.slots.owner(slot) == Some(owner)).then_some(slot)
    }

    /// The slot that made an ID, if somebody has it.
    fn holder_of(&self, id: CommId) -> Option<u8> {
        self.slots.owner(id.slot()).map(|_| id.slot())
    }

    /// Sends a packet, which is right and has `mad`, to the steering socket of a slot.
    fn pass_on(
        &mut self,
        slot: u8,
        received: &Received,
        bytes: &[u8],
        mad: &Mad,
    ) -> Result<Handled, DropReason> {
        let origin = origin(received);
        self.gsi.ties.note(slot, mad, &origin);
        let name = steer_name(self.sockets.steer_prefix(), slot);
        let parts = [&origin.to_bytes()[..], bytes];
        match self.gsi.outboxes.post(slot, &name, parts) {
            Ok(Posted::Sent | Posted::Waits) => Ok(Handled::Passed),
            Ok(Posted::WaitsFirst) => {
                self.watch_outbox(slot);
                Ok(Handled::Passed)
            }
            Ok(Posted::Full) => Err(DropReason::QueueFull),
            Err(errno) => {
                tracing::debug!(%errno, slot, "cannot reach a slot");
                Err(DropReason::QueueFull)
            }
        }
    }

    fn watch_outbox(&self, slot: u8) {
        let Some(socket) = self.gsi.outboxes.socket(slot) else {
            return;
        };
        let token = Token::Outbox(slot).encode();
        if let Err(errno) = self
            .poller
            .add(socket, token, Interest::WRITE, Trigger::Level)
        {
            tracing::warn!(%errno, slot, "cannot watch a slot's queue");
        }
    }

    /// A slot has room for what waits.
    pub(super) fn flush_outbox(&mut self, slot: u8) {
        let done = self.gsi.outboxes.flush(slot).unwrap_or_else(|errno| {
            tracing::debug!(%errno, slot, "cannot reach a slot");
            true
        });
        if done && let Some(socket) = self.gsi.outboxes.socket(slot) {
            self.unwatch(socket);
        }
    }

    /// The holder of a slot is gone: its peers are told, for they may have nothing under way that
    /// would find out.
    pub(super) fn take_leave(&mut self, slot: u8) {
        let now = Instant::now();
        for (origin, mad) in self.gsi.ties.end_slot(slot) {
            self.bid_farewell(&origin, &mad, now);
            self.gsi.farewells.said(origin, mad, now);
        }
    }

    fn bid_farewell(&mut self, origin: &Origin, mad: &Mad, now: Instant) {
        match self.gsi.answers.send(origin, self.config.port, mad, now) {
            Ok(()) => self.gsi.counters.answered += 1,
            Err(reason) => tracing::debug!(?reason, "a peer is not told of an end"),
        }
    }

    /// A slot is given back: what waits for its holder is nobody's.
    pub(super) fn end_outbox(&mut self, slot: u8) {
        if let Some(socket) = self.gsi.outboxes.socket(slot) {
            self.unwatch(socket);
        }
        self.gsi.outboxes.end_slot(slot);
    }

    fn refuse(
        &mut self,
        received: &Received,
        request: &Mad,
        absence: Absence,
    ) -> Result<Handled, DropReason> {
        let answer = route::refusal(request, absence).ok_or(DropReason::NoConnectionManagement)?;
        self.answer_gsi(received, &answer)
    }

    fn answer_gsi(&mut self, received: &Received, answer: &Mad) -> Result<Handled, DropReason> {
        self.gsi
            .answers
            .send(&origin(received), self.config.port, answer, Instant::now())
            .map(|()| Handled::Answered)
    }
}

fn origin(received: &Received) -> Origin {
    Origin {
        source: received.source.ip(),
        destination: received.destination,
        interface: received.interface,
        traffic_class: received.tos,
        hop_limit: received.ttl,
    }
}

/// Whether the ICRC of a packet is right, for an IPv4 identification that its sender can have used:
/// who sends from this host uses those below 128.
fn icrc_is_right(received: &Received, port: u16, bytes: &[u8]) -> bool {
    let source = received.source;
    let is_same_host = source.ip() == received.destination || source.ip().is_loopback();
    let believe = if is_same_host {
        Believe::Own
    } else {
        Believe::Any
    };
    PseudoHeader::new(source, SocketAddr::new(received.destination, port))
        .is_some_and(|header| header.recover(bytes, 0, believe).is_some())
}

/// What the broker says itself.
#[derive(Debug)]
struct Answers {
    /// IPv4 and IPv6, made when first wanted.
    sockets: [Option<SendSocket>; 2],
    psn: Psn,
    second: Instant,
    sent_in_second: u32,
}

impl Answers {
    fn new(now: Instant) -> Self {
        Self {
            sockets: [None, None],
            psn: Psn::truncated(0),
            second: now,
            sent_in_second: 0,
        }
    }

    /// Sends `mad` to where a packet came from: addresses swapped, the traffic class of an IPv6
    /// packet again, QP 1 and the RoCE port. spec: IBA 13.5.4
    fn send(
        &mut self,
        origin: &Origin,
        port: u16,
        mad: &Mad,
        now: Instant,
    ) -> Result<(), DropReason> {
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.sent_in_second) = (now, 0);
        }
        if self.sent_in_second == ANSWERS_PER_SECOND {
            return Err(DropReason::TooManyAnswers);
        }
        self.sent_in_second += 1;

        let from = origin.destination;
        let remote = origin.source;
        // a link-local address is nothing without its interface
        let interface = is_link_local(remote).then_some(origin.interface);
        let to = match remote {
            IpAddr::V4(v4) => SocketAddr::from((v4, port)),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, interface.unwrap_or(0)).into(),
        };
        let transmit = Transmit {
            from: Some(from),
            interface,
            tos: if from.is_ipv6() {
                origin.traffic_class & !3
            } else {
                0
            },
            ..Transmit::to(to)
        };
        let psn = self.psn;
        let socket = self.socket(from).map_err(|errno| {
            tracing::warn!(%errno, "no socket for answers");
            DropReason::NotSent
        })?;
        let source = SocketAddr::new(from, socket.local_port());
        let header = PseudoHeader::new(source, to).ok_or(DropReason::NotSent)?;
        let packet = gsi::emit(&mad.to_bytes(), psn, &header);
        match socket.send(&transmit, &[IoSlice::new(&packet)]) {
            SendOutcome::Sent => {
                self.psn = psn.plus(1);
                Ok(())
            }
            outcome => {
                tracing::debug!(?outcome, %to, "an answer was not sent");
                Err(DropReason::NotSent)
            }
        }
    }

    fn socket(&mut self, from: IpAddr) -> Result<&SendSocket, io::Errno> {
        let entry = &mut self.sockets[usize::from(from.is_ipv6())];
        if entry.is_none() {
            *entry = Some(SendSocket::open(Family::of(from))?);
        }
        entry.as_ref().ok_or(io::Errno::BADF)
    }
}
