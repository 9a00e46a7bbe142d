//! Streams: what a program asks of them.
//!
//! How a connection is made is in [`connect`](crate::connect), what goes over it in
//! [`endpoint`](crate::endpoint).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use io::Descriptor;
use softrdma::cm::{CmEvent, Id, PortSpace};
use softrdma::{CompletionChannel, ProgramBytes, ProgramBytesMut};

use crate::Socket;
use crate::endpoint::{End, Endpoint, Readiness, lock};
use crate::error::{Error, Result};
use crate::iomap::Iomap;
use crate::options::Options;
use crate::service::{PROBE_NS, Service, raw};
use crate::settings::Settings;
use crate::wait::Waiters;

/// How long a call that may wait looks for itself first: going to sleep and being woken cost as
/// much, and an answer over the loopback takes less.
const SPIN_NS: u64 = 50_000;

/// Bytes of a packet, before there is a connection: what librdmacm answers then.
const PACKET: u32 = 2048;

/// Addresses of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was asked for, or an address alone.
    Idle,
    /// It takes connections.
    Listening,
    /// Its connection is being made, by either side.
    Opening,
    /// It has, or had, a connection.
    Open,
    /// The connection could not be made.
    Failed,
    /// The program is done with it.
    Closed,
}

/// How a call behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// It does not wait, whatever the rsocket's flags say.
    pub never_waits: bool,
    /// What is read stays to be read again.
    pub peek: bool,
}

/// A stream socket.
pub struct Stream {
    pub(crate) token: u64,
    pub(crate) id: Id,
    /// Its descriptor, by which the program knows it, too, unless it was accepted.
    pub(crate) channel: Arc<CompletionChannel>,
    /// The same one, by a number of when it was accepted.
    accepted_as: OnceLock<Descriptor>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) options: Options,
    pub(crate) endpoint: OnceLock<Endpoint>,
    pub(crate) iomap: Iomap,
    pub(crate) control: Mutex<Control>,
    family: Family,
    is_nonblocking: AtomicBool,
    probed_activity: AtomicU64,
    probe_at_ns: AtomicU64,
}

/// What changes with the connection.
pub(crate) struct Control {
    pub phase: Phase,
    pub settings: Settings,
    /// What went wrong, until somebody asks.
    pub error: Option<i32>,
    /// Of a listener: how many connections may wait for the program, those included that are
    /// being made.
    pub backlog: usize,
    /// Peers that ask for more than that, as they came.
    pub requests: VecDeque<(Id, CmEvent)>,
    /// Connections that nobody has accepted yet. One that ends meanwhile keeps its place, as the
    /// program is to see it: what a peer costs that connects again and again has a bound.
    pub accepted: VecDeque<Arc<Stream>>,
    /// Connections whose peers have not answered yet.
    pub opening: Vec<Arc<Stream>>,
    /// The listener of a connection that is being made.
    pub listener: std::sync::Weak<Stream>,
}

impl Stream {
    /// A stream without an address; its descriptor.
    ///
    /// # Errors
    /// The device cannot be had, or no descriptor is left.
    pub fn open(family: Family) -> Result<RawFd> {
        let service = Service::current()?;
        let id = Id::new(&service.connections, PortSpace::Tcp)?;
        let settings = service.settings;
        let stream = Self::new(&service, id, family, settings)?;
        Ok(service.insert(Socket::Stream(stream)))
    }

    pub(crate) fn new(
        service: &Service,
        id: Id,
        family: Family,
        settings: Settings,
    ) -> Result<Arc<Self>> {
        let channel = CompletionChannel::new().map_err(Error::system("make an eventfd"))?;
        let token = service.token();
        id.set_cookie(token);
        Ok(Arc::new(Self {
            token,
            id,
            channel: Arc::new(channel),
            accepted_as: OnceLock::new(),
            waiters: Arc::default(),
            options: Options::default(),
            endpoint: OnceLock::new(),
            iomap: Iomap::default(),
            control: Mutex::new(Control {
                phase: Phase::Idle,
                settings,
                error: None,
                backlog: 0,
                requests: VecDeque::new(),
                accepted: VecDeque::new(),
                opening: Vec::new(),
                listener: std::sync::Weak::new(),
            }),
            family,
            is_nonblocking: AtomicBool::new(false),
            probed_activity: AtomicU64::new(0),
            probe_at_ns: AtomicU64::new(0),
        }))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        match self.accepted_as.get() {
            Some(descriptor) => raw(descriptor),
            None => raw(&*self.channel),
        }
    }

    /// Whether calls return at once.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// `O_NONBLOCK`
    pub fn set_nonblocking(&self, is: bool) {
        self.is_nonblocking.store(is, Ordering::Relaxed);
    }

    /// Sizes as they are, or will be.
    pub fn settings(&self) -> Settings {
        lock(&self.control).settings
    }

    /// Changes sizes; what has been made stays as it is.
    pub fn set_settings(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut lock(&self.control).settings);
    }

    /// Whether its connection is made or being made.
    pub fn has_begun(&self) -> bool {
        matches!(lock(&self.control).phase, Phase::Opening | Phase::Open)
    }

    /// Whether it has, or had, a connection.
    pub fn is_open(&self) -> bool {
        lock(&self.control).phase == Phase::Open
    }

    /// Whether it takes connections.
    pub fn is_listening(&self) -> bool {
        lock(&self.control).phase == Phase::Listening
    }

    /// Bytes of a packet.
    pub fn packet_length(&self) -> u32 {
        self.endpoint.get().map_or(PACKET, Endpoint::packet_length)
    }

    /// Addresses of its kind.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Gives it an address.
    ///
    /// # Errors
    /// As [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        Ok(self.id.bind(address)?)
    }

    /// The own address; all zeros without one.
    pub fn local(&self) -> SocketAddr {
        self.id.local().unwrap_or_else(|| self.nowhere())
    }

    /// The peer's address; all zeros without one, as in librdmacm.
    pub fn remote(&self) -> SocketAddr {
        self.id.remote().unwrap_or_else(|| self.nowhere())
    }

    fn nowhere(&self) -> SocketAddr {
        let ip: IpAddr = match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        (ip, 0).into()
    }

    /// Sends; how many bytes, which may be fewer than there are.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::NotConnected`], [`Error::Reset`].
    pub fn send(&self, from: ProgramBytes<'_>, mode: Mode) -> Result<usize> {
        let endpoint = self.endpoint()?;
        self.attempt(mode, || {
            self.iomap.send_waiting(endpoint)?;
            endpoint.send(from)
        })
    }

    /// Receives; how many bytes, 0 at the end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::NotConnected`], [`Error::Reset`].
    pub fn receive(&self, mut to: ProgramBytesMut<'_>, mode: Mode) -> Result<usize> {
        let endpoint = self.endpoint()?;
        let length = to.length();
        self.attempt(mode, || endpoint.receive(to.part(0, length), mode.peek))
    }

    /// The data path, once there is one.
    pub(crate) fn endpoint(&self) -> Result<&Endpoint> {
        let phase = lock(&self.control).phase;
        match (phase, self.endpoint.get()) {
            (Phase::Open, Some(endpoint)) => Ok(endpoint),
            (Phase::Opening, _) => Err(Error::WouldBlock),
            _ => Err(Error::NotConnected),
        }
    }

    /// Looks for itself for a while, if the call may wait.
    pub(crate) fn attempt<T>(&self, mode: Mode, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        spin(!mode.never_waits && !self.is_nonblocking(), attempt)
    }

    /// A connection that came; its descriptor, and the peer's address.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none came, [`Error::Invalid`] if it does not listen.
    pub fn accept(self: &Arc<Self>) -> Result<(RawFd, SocketAddr)> {
        let stream = {
            let mut control = lock(&self.control);
            if control.phase != Phase::Listening {
                return Err(Error::Invalid("the rsocket does not listen"));
            }
            let first = control.accepted.front().ok_or(Error::WouldBlock)?;
            first.take_number()?;
            control.accepted.pop_front().ok_or(Error::WouldBlock)?
        };
        stream.id.delivered();
        stream.set_nonblocking(self.is_nonblocking());
        let remote = stream.remote();
        let service = Service::current()?;
        let descriptor = service.insert(Socket::Stream(stream));
        self.take_requests(&service);
        Ok((descriptor, remote))
    }

    /// Gives an accepted stream its number. As with the kernel's sockets it is one of now: its
    /// channel is older, and librspreload, which opens a descriptor of its own before it accepts,
    /// looks for the pair from low numbers on and would take a lower one for something else.
    fn take_number(&self) -> Result<()> {
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&*self.channel, 0)
            .map_err(Error::system("number an accepted rsocket"))?;
        // once: who is accepted leaves the queue
        let _ = self.accepted_as.set(descriptor.into());
        Ok(())
    }

    /// What it is ready for.
    pub fn readiness(&self, read: bool, write: bool) -> Readiness {
        let control = lock(&self.control);
        match control.phase {
            Phase::Listening => Readiness {
                readable: !control.accepted.is_empty(),
                ..Readiness::default()
            },
            Phase::Failed => Readiness {
                readable: true,
                writable: true,
                failed: true,
                hung_up: false,
            },
            Phase::Open => {
                drop(control);
                self.endpoint
                    .get()
                    .map_or_else(Readiness::default, |endpoint| {
                        endpoint.readiness(read, write)
                    })
            }
            // as the kernel says of a socket without a connection
            Phase::Idle => Readiness {
                hung_up: true,
                ..Readiness::default()
            },
            Phase::Opening | Phase::Closed => Readiness::default(),
        }
    }

    /// Has its descriptor become readable with what comes next.
    pub(crate) fn arm(&self) -> Result<()> {
        self.endpoint.get().map_or(Ok(()), Endpoint::arm)
    }

    /// What went wrong, once.
    pub fn take_error(&self) -> Option<i32> {
        lock(&self.control).error.take()
    }

    /// Ends one direction of the connection, or both.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when it cannot be said yet, [`Error::NotConnected`].
    pub fn shut_down(&self, read: bool, write: bool) -> Result<()> {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(Error::WouldBlock) => return Err(Error::NotConnected),
            Err(error) => return Err(error),
        };
        endpoint.shut_down(read, write)
    }

    /// Whether all that was sent, words included, has arrived or never will. If both directions are
    /// over then, the connection is ended.
    pub fn is_drained(&self) -> bool {
        let Ok(endpoint) = self.endpoint() else {
            return true;
        };
        if !endpoint.is_drained() {
            return false;
        }
        if endpoint.is_over() {
            endpoint.end(End::Closed);
            // on one that is over already it does nothing
            let _ = self.id.disconnect();
        }
        true
    }

    /// The program is done with it. What it sent before is lost if it was not drained.
    pub fn close(&self) {
        let (requests, waiting) = {
            let mut control = lock(&self.control);
            control.phase = Phase::Closed;
            let requests = std::mem::take(&mut control.requests);
            let accepted = std::mem::take(&mut control.accepted);
            let opening = std::mem::take(&mut control.opening);
            let waiting = accepted.into_iter().chain(opening);
            (requests, waiting.collect::<Vec<_>>())
        };
        // which refuses them
        drop(requests);
        waiting.iter().for_each(|stream| stream.close());
        if let Ok(service) = Service::current() {
            service.forget_stream(self.token);
        }
        self.id.destroy();
        if let Some(endpoint) = self.endpoint.get() {
            endpoint.end(End::Closed);
        }
        self.waiters.ring();
    }

    /// How long it may be silent before its peer is asked for a sign of life.
    pub fn set_probe_time(&self, time: Duration) {
        let now = io::clock::now_ns();
        let at = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.probe_at_ns.store(at, Ordering::Relaxed);
        if let Ok(service) = Service::current() {
            service.wake();
        }
    }

    /// Asks the peer for a sign of life if it is time for that; when it will be.
    pub(crate) fn probe(&self, now: u64) -> Option<u64> {
        let endpoint = self.endpoint().ok()?;
        let every = self
            .options
            .keep_alive_seconds()
            .map_or(PROBE_NS, |seconds| u64::from(seconds) * 1_000_000_000);
        let due = match self.probe_at_ns.load(Ordering::Relaxed) {
            // the first time it is looked at
            0 => now + every,
            at if at > now => at,
            _ => {
                let mut seen = self.probed_activity.load(Ordering::Relaxed);
                endpoint.probe(&mut seen);
                self.probed_activity.store(seen, Ordering::Relaxed);
                now + every
            }
        };
        self.probe_at_ns.store(due, Ordering::Relaxed);
        Some(due)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // of one that nobody closed: the child of a fork, or a connection that failed
        if lock(&self.control).phase != Phase::Closed {
            self.close();
        }
    }
}

/// Tries again for a while if `may_wait`.
pub(crate) fn spin<T>(may_wait: bool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut since = None;
    loop {
        match attempt() {
            Err(Error::WouldBlock) if may_wait => {
                let now = io::clock::now_ns();
                if now - *since.get_or_insert(now) > SPIN_NS {
                    return Err(Error::WouldBlock);
                }
                std::hint::spin_loop();
            }
            other => return other,
        }
    }
}
