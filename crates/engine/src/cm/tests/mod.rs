//! Transcripts: what goes in, what comes out, and when.

mod duplicates;
mod limits;
mod refusals;
mod release;
mod set_up;
mod sidr;
mod timers;

use core::time::Duration;

use wire::mad::{Bits, CommId, Guid, Mad, Message, Padded, PortSpace, ServiceId};
use wire::{Psn, Qpn};

use super::*;
use crate::path::{Path, PathMeta};

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);
const ACTIVE: usize = 0;
const PASSIVE: usize = 1;

/// Two processes on two hosts; the active one asks the passive one.
struct Pair {
    cms: [Cm; 2],
    now: Instant,
}

/// A pair with a listener and a request under way, not delivered.
struct Asked {
    pair: Pair,
    /// The active side's ID.
    active: CommId,
    req: Mad,
}

impl Pair {
    fn new() -> Self {
        let cm = |side: usize| Cm::new(Config::new(0x10 + side as u8, side as u64));
        Self {
            cms: [cm(ACTIVE), cm(PASSIVE)],
            now: Instant::from_nanos(1_000_000_000),
        }
    }

    fn listening() -> Self {
        let mut pair = Self::new();
        pair.cms[PASSIVE].listen(SERVICE, 10).unwrap();
        pair
    }

    /// Lets time pass; what is due happens on both sides, at its own time.
    fn sleep(&mut self, time: Duration) {
        let end = self.now.plus(time);
        loop {
            let due = self.cms.iter().filter_map(Cm::next_deadline).min();
            match due.filter(|&due| due <= end) {
                Some(due) => self.now = due,
                None => break,
            }
            for cm in &mut self.cms {
                cm.handle_timeout(self.now);
            }
        }
        self.now = end;
        self.check();
    }

    /// The datagrams that a side sends now.
    fn sent(&mut self, side: usize) -> Vec<Mad> {
        self.check();
        core::iter::from_fn(|| self.cms[side].poll_transmit())
            .map(|out| {
                assert_eq!(out.path.local, address(side));
                assert_eq!(out.path.remote, address(1 - side));
                Mad::parse(&out.mad[..]).unwrap()
            })
            .collect()
    }

    /// The one datagram that a side sends now.
    fn sent_one(&mut self, side: usize) -> Mad {
        let sent = self.sent(side);
        assert_eq!(sent.len(), 1, "{}", names(&sent));
        sent[0]
    }

    /// A datagram comes to a side.
    fn deliver(&mut self, side: usize, mad: &Mad) -> MadOutcome {
        let outcome = self.cms[side].handle_mad(self.now, mad, &meta(side));
        self.check();
        outcome
    }

    /// What a side's program is told now.
    fn told(&mut self, side: usize) -> Vec<CmEvent> {
        core::iter::from_fn(|| self.cms[side].poll_event()).collect()
    }

    /// The one thing that a side's program is told now.
    fn told_one(&mut self, side: usize) -> CmEvent {
        let told = self.told(side);
        assert_eq!(told.len(), 1, "{told:?}");
        told[0].clone()
    }

    /// Nothing is sent, and nobody told anything.
    fn assert_quiet(&mut self) {
        for side in [ACTIVE, PASSIVE] {
            assert_eq!(names(&self.sent(side)), "", "of side {side}");
            assert_eq!(self.told(side), [], "of side {side}");
        }
    }

    fn check(&self) {
        for cm in &self.cms {
            cm.check_invariants().unwrap();
        }
    }

    /// All of one side's connections are gone.
    fn assert_forgotten(&self, side: usize) {
        assert_eq!(self.cms[side].connection_count(), 0);
        assert_eq!(self.cms[side].next_deadline(), None);
    }
}

impl Asked {
    fn new() -> Self {
        Self::with(Pair::listening())
    }

    fn with(mut pair: Pair) -> Self {
        let active = pair.cms[ACTIVE].connect(pair.now, &request()).unwrap();
        let req = pair.sent_one(ACTIVE);
        Self { pair, active, req }
    }

    /// The request arrives; the passive side's ID.
    fn received(mut self) -> (Pair, CommId, CommId, Mad) {
        let Self { active, req, .. } = self;
        assert_eq!(self.pair.deliver(PASSIVE, &req), MadOutcome::Taken);
        let passive = self.pair.told_one(PASSIVE).id;
        (self.pair, active, passive, req)
    }
}

/// A connection and the datagrams of its making.
struct Connected {
    pair: Pair,
    active: CommId,
    passive: CommId,
    req: Mad,
    rep: Mad,
    rtu: Mad,
}

/// REP sent, not delivered.
fn accepted() -> (Pair, CommId, CommId, Mad, Mad) {
    let (mut pair, active, passive, req) = Asked::new().received();
    pair.cms[PASSIVE]
        .accept(pair.now, passive, &accept())
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    (pair, active, passive, req, rep)
}

/// REP received, the program not ready.
fn replied() -> (Pair, CommId, CommId, Mad, Mad) {
    let (mut pair, active, passive, req, rep) = accepted();
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Taken);
    assert_eq!(pair.told_one(ACTIVE).id, active);
    (pair, active, passive, req, rep)
}

/// RTU sent, not delivered.
fn half_connected() -> Connected {
    let (mut pair, active, passive, req, rep) = replied();
    let ready = pair.cms[ACTIVE].establish(pair.now, active, Padded::default());
    assert_eq!(ready, Ok(()));
    let rtu = pair.sent_one(ACTIVE);
    Connected {
        pair,
        active,
        passive,
        req,
        rep,
        rtu,
    }
}

fn connected() -> Connected {
    let mut connected = half_connected();
    let Connected { pair, rtu, .. } = &mut connected;
    assert_eq!(pair.deliver(PASSIVE, rtu), MadOutcome::Taken);
    let told = pair.told_one(PASSIVE).kind;
    assert!(matches!(told, CmEventKind::Established { .. }), "{told:?}");
    connected
}

fn address(side: usize) -> std::net::IpAddr {
    [10, 0, 0, 1 + side as u8].into()
}

/// The IP header of what comes to a side.
fn meta(side: usize) -> PathMeta {
    PathMeta {
        source: address(1 - side),
        destination: address(side),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
    }
}

fn local(side: usize) -> LocalQueuePair {
    LocalQueuePair {
        guid: Guid(0xa0 + side as u64),
        qpn: Qpn::truncated(0x11 + side as u32),
        starting_psn: Psn::truncated(0x1000 * (1 + side as u32)),
        responder_resources: 3 + side as u8,
        initiator_depth: 7 + side as u8,
        flow_control: true,
        rnr_retry_count: Bits::MAX,
        has_srq: false,
    }
}

fn path() -> Path {
    Path {
        local: address(ACTIVE),
        remote: address(PASSIVE),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0x12345,
    }
}

fn request() -> ConnectRequest {
    ConnectRequest {
        private_data: Padded::new(b"hello").unwrap(),
        ..ConnectRequest::new(path(), SERVICE, local(ACTIVE))
    }
}

fn accept() -> Accept {
    Accept {
        enhancements: Enhancements::default(),
        local: local(PASSIVE),
        private_data: Padded::new(b"welcome").unwrap(),
    }
}

fn names(mads: &[Mad]) -> String {
    let names: Vec<_> = mads.iter().map(|mad| mad.message.name()).collect();
    names.join(" ")
}

fn rej_of(mad: &Mad) -> wire::mad::Rej {
    match mad.message {
        Message::Rej(rej) => rej,
        _ => panic!("{mad}"),
    }
}

fn disconnected(has_timed_out: bool) -> CmEventKind {
    CmEventKind::Disconnected { has_timed_out }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
