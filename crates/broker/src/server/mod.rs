//! The broker itself: one thread, one epoll, state that fits in the head.
//!
//! | file | what |
//! |---|---|
//! | `accounts.rs` | what slots were granted and senders have in flight |
//! | `between_listens.rs` | requests that wait for who may listen again |
//! | `binding.rs` | requests about ports: whose address, who may |
//! | `clients.rs` | connections: greeting, who may, events waiting to be sent |
//! | `farewells.rs` | what peers of ended programs have not answered |
//! | `groups.rs` | multicast groups that slots have joined |
//! | `gsi.rs` | QP 1: what arrives there is passed on or answered |
//! | `inquiries.rs` | who is asked what it has, and who wants to know |
//! | `links.rs` | links and how they follow their interfaces |
//! | `slots.rs` | which slot is whose, when it may be used again |
//! | `sockets.rs` | the sockets behind the slots |
//! | `port.rs` | who has the UDP port, if we have not |
//! | `ports.rs` | which RDMA port is whose, who listens |
//! | `requesters.rs` | who got which request for a connection |
//! | `route.rs` | whom a message of connection management is for |
//! | `tallies.rs` | what was counted for each link |
//! | `outbox.rs` | messages on their way to slots |
//!
//! Nothing here trusts a client with more than its own things: it may end at any moment, send
//! anything, and not read its answers.

mod accounts;
mod between_listens;
mod binding;
mod clients;
mod farewells;
mod groups;
mod gsi;
mod inquiries;
mod links;
mod outbox;
mod port;
mod ports;
mod requesters;
mod requests;
mod route;
mod slots;
mod sockets;
mod tallies;
mod ties;

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use io::{
    Descriptor,
    fdpass::Listener,
    netlink,
    poll::{Events, Interest, Poller, Trigger},
};

use self::{
    accounts::Accounts,
    binding::LocalPorts,
    clients::Client,
    groups::Groups,
    gsi::Gsi,
    inquiries::Inquiries,
    links::Links,
    ports::Ports,
    slots::{Owner, Slots},
    sockets::Sockets,
    tallies::Tallies,
};
use crate::{
    link::PortState,
    protocol::{Event, ROCE_PORT, control_name},
    transport::Room,
    who::{self, IdMap},
};

/// How often the steering program is looked at while slots are leased.
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// How often waiting leases and full connections are tried again.
const RETRY_PERIOD: Duration = Duration::from_millis(50);

/// Epoll events taken at once.
const EVENTS_MAX: usize = 64;

/// How a broker is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Distinguishes brokers of one network namespace; by default the user's id.
    pub instance: Option<String>,
    /// UDP port of the group.
    pub port: u16,
    /// End when for this long nobody was connected, no process held the broker and no link was
    /// there to be kept.
    pub idle: Duration,
    /// Bytes of receive memory to ask for each slot's socket, as `SO_RCVBUF` counts them: the
    /// kernel grants twice as many, or what it allows.
    pub receive_buffer: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance: None,
            port: ROCE_PORT,
            idle: Duration::from_secs(30),
            receive_buffer: io::udp::RECEIVE_MEMORY,
        }
    }
}

/// Why a broker did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// One runs already: nothing is wrong.
    #[error("a softrdma broker is running already")]
    AlreadyRunning,
    /// This process has no user id in its namespace.
    #[error("uid {0} is not mapped in this user namespace: make it with `unshare -r`")]
    Unmapped(u32),
    /// A system call failed.
    #[error("{attempt}: {cause}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        cause: io::Errno,
    },
}

fn failed(attempt: &'static str) -> impl Fn(io::Errno) -> ServerError {
    move |cause| ServerError::System { attempt, cause }
}

/// What an epoll event is about: a kind in the upper half, a number in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Listener,
    Netlink,
    Connection(Owner),
    Process(Owner),
    Hold(u64),
    Slot(u8),
    Outbox(u8),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Netlink => (1, 0),
            Self::Connection(owner) => (2, owner),
            Self::Process(owner) => (3, owner),
            Self::Hold(hold) => (4, hold),
            Self::Slot(slot) => (5, u64::from(slot)),
            Self::Outbox(slot) => (6, u64::from(slot)),
        };
        kind << 48 | number
    }

    fn decode(token: u64) -> Option<Self> {
        let (kind, number) = (token >> 48, token & ((1 << 48) - 1));
        Some(match kind {
            0 => Self::Listener,
            1 => Self::Netlink,
            2 => Self::Connection(number),
            3 => Self::Process(number),
            4 => Self::Hold(number),
            5 => Self::Slot(u8::try_from(number).ok()?),
            6 => Self::Outbox(u8::try_from(number).ok()?),
            _ => return None,
        })
    }
}

/// A lease that waits for a slot or for the port.
#[derive(Debug)]
struct Waiting {
    owner: Owner,
    call: u64,
    until: Instant,
}

/// A broker.
#[derive(Debug)]
pub struct Server {
    config: Config,
    instance: String,
    own_uid: u32,
    map: IdMap,
    overflow_uid: u32,
    poller: Poller,
    listener: Listener,
    monitor: netlink::Monitor,
    clients: BTreeMap<Owner, Client>,
    /// For what they ask.
    room: Room,
    /// Processes that keep the broker, whatever becomes of their connections.
    holds: BTreeMap<u64, Descriptor>,
    /// Of clients and holds: never reused, so that a late epoll event means nobody else.
    next_key: u64,
    links: Links,
    slots: Slots,
    sockets: Sockets,
    accounts: Accounts,
    tallies: Tallies,
    ports: Ports,
    local_ports: LocalPorts,
    groups: Groups,
    gsi: Gsi,
    waiting: VecDeque<Waiting>,
    inquiries: Inquiries,
    next_probe: Instant,
    /// Since when nobody needs the broker.
    idle_since: Option<Instant>,
    stopping: bool,
}

impl Server {
    /// Takes the address and opens the port. A port that is taken is no error here: whoever asks
    /// for a slot is told, and the port is tried again then.
    pub fn start(config: Config) -> Result<Self, ServerError> {
        let own_uid = rustix::process::geteuid().as_raw();
        let map = IdMap::of_this_process();
        if map.outside(own_uid).is_none() {
            return Err(ServerError::Unmapped(own_uid));
        }
        let instance = config
            .instance
            .clone()
            .unwrap_or_else(|| crate::client::default_instance(own_uid, &map));
        let listener = match Listener::bind(control_name(&instance).as_bytes()) {
            Err(io::Errno::ADDRINUSE) => return Err(ServerError::AlreadyRunning),
            other => other.map_err(failed("take the address of the broker"))?,
        };
        let poller = Poller::new().map_err(failed("create epoll"))?;
        let monitor = netlink::Monitor::new().map_err(failed("open rtnetlink"))?;
        let now = Instant::now();
        let mut server = Self {
            sockets: Sockets::new(config.port, &instance, config.receive_buffer),
            accounts: Accounts::new(),
            tallies: Tallies::default(),
            ports: Ports::default(),
            local_ports: LocalPorts::default(),
            groups: Groups::default(),
            gsi: Gsi::new(now),
            config,
            instance,
            own_uid,
            map,
            overflow_uid: who::overflow_uid(),
            poller,
            listener,
            monitor,
            clients: BTreeMap::new(),
            room: Room::default(),
            holds: BTreeMap::new(),
            next_key: 1,
            links: Links::default(),
            slots: Slots::new(),
            waiting: VecDeque::new(),
            inquiries: Inquiries::default(),
            next_probe: now + PROBE_PERIOD,
            idle_since: Some(now),
            stopping: false,
        };
        server
            .watch(&server.listener, Token::Listener)
            .map_err(failed("watch the listener"))?;
        server
            .watch(&server.monitor, Token::Netlink)
            .map_err(failed("watch rtnetlink"))?;
        server
            .follow_interfaces()
            .map_err(failed("read the network interfaces"))?;
        server.open_port();
        tracing::info!(
            instance = server.instance,
            port = server.config.port,
            "broker started"
        );
        Ok(server)
    }

    /// Serves until it is asked to end or nobody needs it.
    pub fn run(&mut self) -> Result<(), ServerError> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        while !self.stopping {
            let timeout = self.timeout_ns(Instant::now());
            self.poller
                .wait(&mut events, timeout)
                .map_err(failed("wait for events"))?;
            for ready in events.iter() {
                match Token::decode(ready.token) {
                    Some(token) => self.handle(token),
                    None => tracing::error!("an event of nobody"),
                }
            }
            self.tick(Instant::now());
        }
        tracing::info!("broker ends");
        Ok(())
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Listener => self.accept(),
            Token::Netlink => {
                // the news is only a reason to look: a listing cannot be overrun
                while let Ok(Some(_)) = self.monitor.next_event() {}
                if let Err(errno) = self.follow_interfaces() {
                    tracing::warn!(%errno, "cannot read the network interfaces");
                }
            }
            Token::Connection(owner) => self.serve(owner),
            Token::Process(owner) => self.end_client(owner, "its process ended"),
            Token::Hold(hold) => self.end_hold(hold),
            Token::Slot(0) => self.receive_gsi(),
            Token::Slot(slot) => self.drain_slot(slot),
            Token::Outbox(slot) => self.flush_outbox(slot),
        }
    }

    /// What time brings: waiting leases, unsent events, quiet slots, questions without an answer,
    /// the probe, the end.
    fn tick(&mut self, now: Instant) {
        self.settle_slots(now);
        self.serve_waiting(now);
        self.settle_inquiries(now);
        self.settle_gsi(now);
        self.flush_events();
        if now >= self.next_probe {
            self.next_probe = now + PROBE_PERIOD;
            if self.slots.leased().next().is_some() {
                self.check_steering();
            }
        }
        let needed = !self.clients.is_empty() || !self.holds.is_empty() || self.links.keep();
        self.idle_since = if needed {
            None
        } else {
            self.idle_since.or(Some(now))
        };
        if self
            .idle_since
            .is_some_and(|since| now >= since + self.config.idle)
        {
            tracing::info!("nobody needs this broker");
            self.stopping = true;
        }
    }

    /// How long nothing is due.
    fn timeout_ns(&self, now: Instant) -> Option<u64> {
        let retry = !self.waiting.is_empty() || self.clients.values().any(Client::has_unsent);
        let leased = self.slots.leased().next().is_some();
        let deadlines = [
            retry.then(|| now + RETRY_PERIOD),
            leased.then_some(self.next_probe),
            self.slots.next_deadline(),
            self.inquiries.next_deadline(),
            self.gsi.next_deadline(),
            self.idle_since.map(|since| since + self.config.idle),
        ];
        let wait = deadlines
            .into_iter()
            .flatten()
            .min()?
            .saturating_duration_since(now);
        Some(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The probe reads the broker's own slot, where others send too.
    fn check_steering(&mut self) {
        let mut others = Vec::new();
        self.sockets
            .check_steering(|received, bytes| others.push((*received, bytes.to_vec())));
        for (received, bytes) in others {
            self.take_gsi(&received, &bytes);
        }
    }

    fn watch(&self, what: impl AsFd, token: Token) -> Result<(), io::Errno> {
        self.poller
            .add(what, token.encode(), Interest::READ, Trigger::Level)
    }

    fn new_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    fn follow_interfaces(&mut self) -> Result<(), io::Errno> {
        let snapshot = links::Snapshot::read()?;
        for event in self.links.refresh(snapshot) {
            self.publish(&event);
        }
        Ok(())
    }

    fn publish(&mut self, event: &Event) {
        tracing::debug!(?event, "publish");
        match event {
            Event::Changed { link, changes } => {
                if changes.port_state && link.port_state() == PortState::Down {
                    self.tallies.count_down(link);
                }
            }
            Event::Removed { .. } => self.tallies.retain(self.links.all()),
            Event::Added(_) => {}
        }
        for client in self.clients.values_mut() {
            if let Event::Removed { name } = event {
                client.forget_uses(name);
            }
            client.queue(event);
        }
        self.flush_events();
    }
}
