//! What the rsockets of a process share: their table, the devices, and a thread that takes what
//! happens to connections while no call is being made.
//!
//! A forked child has none of its parent's rsockets, as in librdmacm: their queue pairs stay with
//! the parent.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use io::fork::PerProcess;
use io::poll::{Events, Interest, Poller, Trigger, Wake};
use softrdma::cm::EventChannel;
use softrdma::{Device, ProtectionDomain};

use crate::Socket;
use crate::datagram::Datagram;
use crate::endpoint::lock;
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::stream::Stream;

/// How often a stream that is silent asks whether its peer is still there, unless its program set
/// another time (`TCP_KEEPIDLE`). A reliable connection has no such question of its own: a program
/// that only reads would wait for ever for a peer that was killed.
pub const PROBE_NS: u64 = 2_000_000_000;

/// Tokens of the poller: events of connections, and the bell; those of datagrams count up from
/// there.
const CONNECTIONS: u64 = 0;
const BELL: u64 = 1;
const FIRST_TOKEN: u64 = 2;

/// Descriptors reported at once.
const READY_MAX: usize = 64;

static CURRENT: PerProcess<Service> = PerProcess::new();

/// See the module.
pub struct Service {
    /// Events of all IDs of connections.
    pub(crate) connections: Arc<EventChannel>,
    pub(crate) settings: Settings,
    poller: Poller,
    bell: Wake,
    is_running: AtomicBool,
    last_token: AtomicU64,
    /// By descriptor.
    sockets: RwLock<Vec<Option<Socket>>>,
    /// By token, which the events of their IDs carry.
    streams: Mutex<HashMap<u64, Weak<Stream>>>,
    datagrams: Mutex<HashMap<u64, Weak<Datagram>>>,
    devices: Mutex<HashMap<String, (Device, ProtectionDomain)>>,
    /// Of waiters that are over, for the next ones.
    bells: Mutex<Vec<Arc<Wake>>>,
}

/// The rsocket with this descriptor.
///
/// # Errors
/// [`Error::NotASocket`]
pub fn socket(descriptor: RawFd) -> Result<Socket> {
    Service::current()?.socket(descriptor)
}

impl Service {
    /// That of this process.
    ///
    /// # Errors
    /// [`Error::System`] when it is the first call and no descriptor is left.
    pub fn current() -> Result<Arc<Self>> {
        CURRENT.get_or_make(|_| true, Self::new)
    }

    fn new() -> Result<Arc<Self>> {
        let connections =
            EventChannel::new().map_err(Error::system("make an eventfd for connections"))?;
        let poller = Poller::new().map_err(Error::system("make an epoll"))?;
        let bell = Wake::new().map_err(Error::system("make an eventfd"))?;
        let add = |fd, token| poller.add(fd, token, Interest::READ, Trigger::Level);
        add(connections.as_fd(), CONNECTIONS).map_err(Error::system("watch connections"))?;
        add(bell.as_fd(), BELL).map_err(Error::system("watch a bell"))?;
        Ok(Arc::new(Self {
            connections: Arc::new(connections),
            settings: Settings::of_host(),
            poller,
            bell,
            is_running: AtomicBool::new(false),
            last_token: AtomicU64::new(FIRST_TOKEN),
            sockets: RwLock::default(),
            streams: Mutex::default(),
            datagrams: Mutex::default(),
            devices: Mutex::default(),
            bells: Mutex::default(),
        }))
    }

    /// The rsocket with this descriptor.
    ///
    /// # Errors
    /// [`Error::NotASocket`]
    pub fn socket(&self, descriptor: RawFd) -> Result<Socket> {
        let at = usize::try_from(descriptor).map_err(|_| Error::NotASocket)?;
        let sockets = self.sockets.read().unwrap_or_else(PoisonError::into_inner);
        sockets.get(at).cloned().flatten().ok_or(Error::NotASocket)
    }

    /// Puts an rsocket into the table, and gives its descriptor.
    pub(crate) fn insert(&self, socket: Socket) -> RawFd {
        let descriptor = socket.descriptor();
        // of an open descriptor, which is not negative
        let at = descriptor as usize;
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        if sockets.len() <= at {
            sockets.resize(at + 1, None);
        }
        sockets[at] = Some(socket);
        descriptor
    }

    /// Takes an rsocket out of the table. What it has to do with its peer is done before.
    ///
    /// # Errors
    /// [`Error::NotASocket`]
    pub fn remove(&self, descriptor: RawFd) -> Result<Socket> {
        let at = usize::try_from(descriptor).map_err(|_| Error::NotASocket)?;
        let mut sockets = self.sockets.write().unwrap_or_else(PoisonError::into_inner);
        let place = sockets.get_mut(at).ok_or(Error::NotASocket)?;
        place.take().ok_or(Error::NotASocket)
    }

    /// A number for the events of a stream or datagram socket.
    pub(crate) fn token(&self) -> u64 {
        self.last_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets the thread tell a stream what happens to its connection.
    pub(crate) fn attend_stream(self: &Arc<Self>, token: u64, stream: &Arc<Stream>) -> Result<()> {
        lock(&self.streams).insert(token, Arc::downgrade(stream));
        self.run()
    }

    /// Lets the thread read a datagram socket's UDP socket.
    pub(crate) fn attend_datagram(
        self: &Arc<Self>,
        token: u64,
        socket: &Arc<Datagram>,
    ) -> Result<()> {
        self.run()?;
        lock(&self.datagrams).insert(token, Arc::downgrade(socket));
        self.poller
            .add(socket.udp(), token, Interest::READ, Trigger::Level)
            .map_err(Error::system("watch a UDP socket"))
    }

    /// Ends that.
    pub(crate) fn forget_stream(&self, token: u64) {
        lock(&self.streams).remove(&token);
    }

    /// Ends that.
    pub(crate) fn forget_datagram(&self, token: u64, udp: impl AsFd) {
        if lock(&self.datagrams).remove(&token).is_some() {
            // it is there
            let _ = self.poller.remove(udp);
        }
    }

    /// The open link of this name, and its protection domain for rsockets.
    pub(crate) fn device(&self, link: &str) -> Result<(Device, ProtectionDomain)> {
        let mut devices = lock(&self.devices);
        if let Some(open) = devices.get(link).filter(|(device, _)| device.is_usable()) {
            return Ok(open.clone());
        }
        let device = Device::open(link)?;
        let domain = device.protection_domain()?;
        devices.insert(link.to_owned(), (device.clone(), domain.clone()));
        Ok((device, domain))
    }

    /// A bell for somebody who waits.
    pub(crate) fn take_bell(&self) -> Result<Arc<Wake>> {
        if let Some(bell) = lock(&self.bells).pop() {
            return Ok(bell);
        }
        let bell = Wake::new().map_err(Error::system("make an eventfd for a waiter"))?;
        Ok(Arc::new(bell))
    }

    /// Keeps it for the next one.
    pub(crate) fn give_back_bell(&self, bell: Arc<Wake>) {
        bell.drain();
        lock(&self.bells).push(bell);
    }

    /// Has the thread look at its deadlines again.
    pub(crate) fn wake(&self) {
        self.bell.wake();
    }

    /// Starts the thread, if it does not run.
    fn run(self: &Arc<Self>) -> Result<()> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let service = Arc::clone(self);
        io::thread::spawn_quiet("rsockets", move || service.serve()).map_err(|errno| {
            self.is_running.store(false, Ordering::Release);
            Error::System {
                attempt: "start the thread of rsockets",
                errno,
            }
        })
    }

    fn serve(self: &Arc<Self>) {
        let mut ready = Events::with_capacity(READY_MAX);
        loop {
            let timeout = self.probe();
            if let Err(errno) = self.poller.wait(&mut ready, timeout) {
                tracing::error!(%errno, "nobody serves rsockets any more");
                return;
            }
            for event in ready.iter() {
                match event.token {
                    CONNECTIONS => self.take_events(),
                    BELL => {
                        self.bell.drain();
                    }
                    token => self.take_datagrams(token),
                }
            }
        }
    }

    fn take_events(self: &Arc<Self>) {
        while let Some(event) = self.connections.try_next() {
            // at once: who ends an ID waits for this
            self.connections.acknowledge(event.cookie, 1);
            let stream = lock(&self.streams).get(&event.kind.cookie()).cloned();
            if let Some(stream) = stream.and_then(|stream| stream.upgrade()) {
                stream.hear(self, event.kind);
            }
        }
    }

    fn take_datagrams(&self, token: u64) {
        let socket = lock(&self.datagrams).get(&token).cloned();
        if let Some(socket) = socket.and_then(|socket| socket.upgrade()) {
            socket.take_udp();
        }
    }

    /// Asks silent peers for a sign of life; how long until somebody is to be asked again.
    fn probe(&self) -> Option<u64> {
        let streams: Vec<_> = lock(&self.streams).values().cloned().collect();
        let now = io::clock::now_ns();
        let streams = streams.iter().filter_map(Weak::upgrade);
        let next = streams.filter_map(|stream| stream.probe(now)).min();
        next.map(|next| next.saturating_sub(now))
    }
}

/// The number of a descriptor.
pub(crate) fn raw(fd: impl AsFd) -> RawFd {
    fd.as_fd().as_raw_fd()
}
