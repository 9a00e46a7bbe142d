//! What is known of an ID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use broker::link::LinkKind;
use broker::port::BoundPort;
use engine::Path;
use engine::cm::{Enhancements, RemoteQueuePair};
use engine::qp::Transport;
use wire::mad::{Bits, CommId, Guid, PortSpace};
use wire::{Mtu, Psn, QKey, Qpn};

use super::event::{Event, EventChannel};
use super::id::Options;
use super::streams;

/// How far an ID is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing was asked for.
    Idle,
    /// It has an address.
    Bound,
    /// The kernel looks for whoever takes packets to the destination.
    Resolving,
    /// The destination and the link to it are known.
    AddressResolved,
    /// The path is known.
    RouteResolved,
    /// It takes requests.
    Listening,
    /// The peer was asked.
    Connecting,
    /// The peer has accepted, and waits for this side.
    Responding,
    /// The peer asks.
    Requested,
    /// The request was accepted.
    Accepted,
    /// The connection is established; or it was refused.
    Connected,
    /// The connection has come to its end.
    Disconnected,
}

/// The link of a connection, and the way along it.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The link's name.
    pub link: String,
    /// Its protocol.
    pub kind: LinkKind,
    /// Whether connections of its queue pairs have atomics.
    pub has_atomics: bool,
    /// Place of the own address in its GID table.
    pub gid_index: u16,
    /// The device.
    pub guid: Guid,
    /// The largest path MTU.
    pub mtu: Mtu,
    /// Addresses and fields of the IP header.
    pub path: Path,
}

/// What the own queue pair is to be set to, as agreed with the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub remote: RemoteQueuePair,
    pub mtu: Mtu,
    pub ack_timeout: Bits<5>,
    pub retry_count: Bits<3>,
}

/// See the module.
pub(super) struct Record {
    /// What the program knows the ID by.
    pub cookie: Arc<AtomicU64>,
    pub channel: Arc<EventChannel>,
    pub space: PortSpace,
    /// The kind of its queue pair.
    pub transport: Transport,
    pub state: State,
    pub options: Options,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The port at the broker; a request has its listener's.
    pub port: Option<BoundPort>,
    /// Whether the program named it.
    pub has_named_port: bool,
    pub route: Option<Route>,
    pub comm: Option<CommId>,
    /// The own queue pair, once the program has named it.
    pub qpn: Option<Qpn>,
    /// The first PSN that the own queue pair will receive.
    pub starting_psn: Psn,
    /// Retries of the own queue pair.
    pub retry_count: Bits<3>,
    pub agreed: Option<Agreed>,
    /// What the own device can do beyond the standard, as the program says.
    pub own_enhancements: Enhancements,
    /// The same of the peer's, as far as it matters to the own.
    pub peer_enhancements: Enhancements,
    /// Of datagram queue pairs, once it is known.
    pub qkey: Option<QKey>,
    /// What it has if its link is one of iWARP, or any may be.
    pub stream: streams::Part,
}

impl Record {
    /// Of a new ID.
    pub fn new(
        channel: &Arc<EventChannel>,
        space: PortSpace,
        transport: Transport,
        starting_psn: Psn,
    ) -> Self {
        Self {
            cookie: Arc::default(),
            channel: Arc::clone(channel),
            space,
            transport,
            state: State::Idle,
            options: Options::default(),
            local: None,
            remote: None,
            port: None,
            has_named_port: false,
            route: None,
            comm: None,
            qpn: None,
            starting_psn,
            retry_count: Bits::MAX,
            agreed: None,
            own_enhancements: Enhancements::default(),
            peer_enhancements: Enhancements::default(),
            qkey: None,
            stream: streams::Part::default(),
        }
    }

    /// It has a port, and no address any more.
    pub fn forget_address(&mut self) {
        let any = |local: SocketAddr| match local {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        self.local = self
            .local
            .map(|local| SocketAddr::new(any(local), local.port()));
        self.route = None;
    }

    /// Queues an event of the ID with this number.
    pub fn tell(&self, number: u64, event: Event) {
        self.channel.push(event, number);
    }

    /// How well a listener fits a request to `address`, which arrived over `link`: its own address
    /// before all of a family, and those before all of both. `None` if it is for others.
    pub fn fits(&self, address: IpAddr, link: &str) -> Option<u8> {
        let own = self.local?.ip();
        let is_there = self.route.as_ref().is_none_or(|route| route.link == link);
        if own == address && is_there {
            Some(2)
        } else if own.is_unspecified() && own.is_ipv4() == address.is_ipv4() {
            Some(1)
        } else if own.is_unspecified() && own.is_ipv6() && !self.options.family_only {
            Some(0)
        } else {
            None
        }
    }
}
