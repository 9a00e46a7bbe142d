//! Datagram sockets.
//!
//! The first datagram to somebody goes over UDP, behind a header that names the queue pair of its
//! sender; the answer names the other one. From then on datagrams go between the queue pairs, of
//! which there is one for each own address that was needed. Datagrams that come over UDP are queued
//! with the others.

mod end;

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use io::{Descriptor, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags as UdpFlags, SocketFlags, SocketType};
use softrdma::cm::{Id, PortSpace};
use softrdma::{Addressee, CompletionChannel, ProgramBytes, ProgramBytesMut};
use wire::Qpn;
use wire::rsocket::UdpHeader;

use self::end::{End, Filled, QKEY};
use crate::Socket;
use crate::endpoint::{Readiness, lock};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::service::{Service, raw};
use crate::settings::Settings;
use crate::stream::{Family, Mode, spin};
use crate::wait::Waiters;

/// Bytes of a datagram with its header, as in librdmacm.
const SLOT: usize = 2048;

/// Peers that are remembered. More of them are heard, and answered over UDP.
const PEERS_MAX: usize = 4096;

/// The most slots that a receive buffer is cut into. A program may have more receives, if it names
/// them as such (`RDMA_RQSIZE`).
const RECEIVES_MAX: u32 = 1024;

/// A datagram socket.
pub struct Datagram {
    token: u64,
    /// Its descriptor, by which the program knows it, too.
    channel: Arc<CompletionChannel>,
    udp: Descriptor,
    waiters: Waiters,
    options: Options,
    family: Family,
    is_nonblocking: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    settings: Settings,
    /// Whether the service reads its UDP socket.
    is_attended: bool,
    /// To whom `send` sends.
    connected: Option<SocketAddr>,
    ends: Vec<End>,
    peers: HashMap<SocketAddr, Peer>,
    received: VecDeque<Received>,
}

/// A datagram that the program has not read.
enum Received {
    /// Over a queue pair, that of `ends[end]`.
    Filled { end: usize, filled: Filled },
    /// Over UDP.
    Copied { source: SocketAddr, bytes: Vec<u8> },
}

impl Received {
    fn source(&self) -> SocketAddr {
        match self {
            Self::Filled { filled, .. } => filled.source,
            Self::Copied { source, .. } => *source,
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Filled { filled, .. } => filled.length,
            Self::Copied { bytes, .. } => bytes.len(),
        }
    }
}

/// Somebody else.
#[derive(Clone, Copy)]
struct Peer {
    /// Which own address is used.
    end: usize,
    path: softrdma::Path,
    /// Its queue pair, once it is known.
    qpn: Option<Qpn>,
}

impl Datagram {
    /// A socket without an address; its descriptor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open(family: Family) -> Result<RawFd> {
        let service = Service::current()?;
        let kind = match family {
            Family::V4 => AddressFamily::INET,
            Family::V6 => AddressFamily::INET6,
        };
        let udp = rustix::net::socket_with(kind, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("make a UDP socket"))?;
        let channel = CompletionChannel::new().map_err(Error::system("make an eventfd"))?;
        let datagram = Arc::new(Self {
            token: service.token(),
            channel: Arc::new(channel),
            udp: udp.into(),
            waiters: Waiters::default(),
            options: Options::default(),
            family,
            is_nonblocking: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                settings: service.settings,
                is_attended: false,
                connected: None,
                ends: Vec::new(),
                peers: HashMap::new(),
                received: VecDeque::new(),
            }),
        });
        Ok(service.insert(Socket::Datagram(datagram)))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        raw(&*self.channel)
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// The UDP socket behind it: its options are the kernel's.
    pub fn udp(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }

    /// Addresses of its kind.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Options that are remembered.
    pub fn options(&self) -> &Options {
        &self.options
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
        lock(&self.inner).settings
    }

    /// Changes sizes; what has been made stays as it is.
    pub fn set_settings(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut lock(&self.inner).settings);
    }

    /// Gives it an address.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind(self: &Arc<Self>, address: SocketAddr) -> Result<()> {
        rustix::net::bind(&self.udp, &address).map_err(Error::system("bind a UDP socket"))?;
        self.attend(&mut lock(&self.inner))
    }

    /// Sets whom [`Self::send`] sends to, and hears nobody else.
    ///
    /// # Errors
    /// What the kernel says; no device leads there.
    pub fn connect(self: &Arc<Self>, to: SocketAddr) -> Result<()> {
        rustix::net::connect(&self.udp, &to).map_err(Error::system("connect a UDP socket"))?;
        let to = plain(to);
        let mut inner = lock(&self.inner);
        self.attend(&mut inner)?;
        self.peer(&mut inner, to)?;
        inner.connected = Some(to);
        Ok(())
    }

    /// The own address.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local(&self) -> Result<SocketAddr> {
        let name = rustix::net::getsockname(&self.udp)
            .and_then(SocketAddr::try_from)
            .map_err(Error::system("ask for a socket's address"))?;
        Ok(name)
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    /// [`Error::NotConnected`]
    pub fn remote(&self) -> Result<SocketAddr> {
        lock(&self.inner).connected.ok_or(Error::NotConnected)
    }

    /// Sends a datagram, to whom it is connected to if `to` is `None`.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::TooLong`], [`Error::NotConnected`].
    pub fn send(
        self: &Arc<Self>,
        from: ProgramBytes<'_>,
        to: Option<SocketAddr>,
        mode: Mode,
    ) -> Result<usize> {
        let may_wait = !mode.never_waits && !self.is_nonblocking();
        spin(may_wait, || {
            let mut inner = lock(&self.inner);
            let to = to.map(plain).or(inner.connected);
            let to = to.ok_or(Error::NotConnected)?;
            self.attend(&mut inner)?;
            let peer = self.peer(&mut inner, to)?;
            match peer.qpn {
                Some(qpn) => self.post(&mut inner, peer, qpn, from),
                None => self.send_udp(&inner.ends[peer.end], to, Some(from)),
            }
        })
    }

    /// Receives a datagram, or as much of it as there is room for; and where it came from.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none.
    pub fn receive(
        self: &Arc<Self>,
        mut to: ProgramBytesMut<'_>,
        mode: Mode,
    ) -> Result<(usize, SocketAddr)> {
        let may_wait = !mode.never_waits && !self.is_nonblocking();
        spin(may_wait, || {
            let mut inner = lock(&self.inner);
            self.attend(&mut inner)?;
            if inner.received.is_empty() {
                self.process(&mut inner)?;
            }
            let received = inner.received.front().ok_or(Error::WouldBlock)?;
            let length = received.length().min(to.length());
            let answer = (length, received.source());
            match received {
                Received::Filled { end, filled } => {
                    inner.ends[*end].read(filled, to.part(0, length))?;
                }
                Received::Copied { bytes, .. } => to.write(&bytes[..length])?,
            }
            if !mode.peek {
                inner.drop_first();
            }
            Ok(answer)
        })
    }

    /// What it is ready for; takes completions if the program cannot do what it wants.
    pub fn readiness(&self, read: bool, write: bool) -> Readiness {
        let mut inner = lock(&self.inner);
        let readiness = inner.readiness();
        if (!read || readiness.readable) && (!write || readiness.writable) && (read || write) {
            return readiness;
        }
        // what fails here fails again when it is used
        let _ = self.process(&mut inner);
        inner.readiness()
    }

    pub(crate) fn arm(&self) -> Result<()> {
        while let Some(event) = self.channel.events.try_next() {
            self.channel.events.acknowledge(event.cookie, 1);
        }
        lock(&self.inner).ends.iter().try_for_each(End::arm)
    }

    /// Whether all that was sent has left.
    pub fn is_drained(&self) -> bool {
        let mut inner = lock(&self.inner);
        let _ = self.process(&mut inner);
        let slots = usize::from(inner.settings.send_queue);
        inner.ends.iter().all(|end| end.room() >= slots)
    }

    /// The program is done with it.
    pub fn close(&self) {
        if let Ok(service) = Service::current() {
            service.forget_datagram(self.token, &self.udp);
        }
        let ends = {
            let mut inner = lock(&self.inner);
            inner.is_attended = false;
            inner.peers.clear();
            // what lies in slots of the queue pairs goes with them
            inner.received.clear();
            std::mem::take(&mut inner.ends)
        };
        drop(ends);
        self.waiters.ring();
    }

    /// Has the service read the UDP socket, from the first use on.
    fn attend(self: &Arc<Self>, inner: &mut Inner) -> Result<()> {
        if inner.is_attended {
            return Ok(());
        }
        inner.settings.fit_datagrams();
        Service::current()?.attend_datagram(self.token, self)?;
        inner.is_attended = true;
        Ok(())
    }

    /// What is known of somebody; found out if nothing is.
    fn peer(&self, inner: &mut Inner, to: SocketAddr) -> Result<Peer> {
        if let Some(peer) = inner.peers.get(&to) {
            return Ok(*peer);
        }
        let service = Service::current()?;
        let bound = self.local()?;
        let from = (!bound.ip().is_unspecified()).then(|| SocketAddr::new(bound.ip(), 0));
        // its events have no cookie, and nobody hears them
        let id = Id::new(&service.connections, PortSpace::Udp)?;
        // a datagram waits for nobody
        id.resolve_address(from, to, None)?;
        let no_way = Error::Device(softrdma::Error::NoRoute(to.ip()));
        let (Some(link), Some(path), Some(local)) = (id.link(), id.path(), id.local()) else {
            return Err(no_way);
        };
        let local = SocketAddr::new(local.ip(), bound.port());
        let known = inner
            .ends
            .iter()
            .position(|end| end.local.ip() == local.ip());
        let end = match known {
            Some(end) => end,
            None => {
                let made = End::new(&service, &link, &self.channel, local, &inner.settings)?;
                inner.ends.push(made);
                // somebody may wait already
                self.waiters.ring();
                inner.ends.len() - 1
            }
        };
        let peer = Peer {
            end,
            path,
            qpn: None,
        };
        if inner.peers.len() < PEERS_MAX {
            inner.peers.insert(to, peer);
        }
        Ok(peer)
    }

    /// Sends over UDP: data, or who answers.
    fn send_udp(&self, end: &End, to: SocketAddr, data: Option<ProgramBytes<'_>>) -> Result<usize> {
        let mut bytes = Vec::with_capacity(SLOT);
        let header = UdpHeader {
            has_data: data.is_some(),
            qpn: end.qpn(),
            address: end.local.ip(),
        };
        header.emit(&mut bytes);
        let length = data.map_or(0, |data| data.length());
        let most = end.length_max(0).min(SLOT - bytes.len());
        if length > most {
            return Err(Error::TooLong(most));
        }
        if let Some(data) = data {
            let start = bytes.len();
            bytes.resize(start + length, 0);
            data.read(&mut bytes[start..])?;
        }
        let flags = UdpFlags::DONTWAIT | UdpFlags::NOSIGNAL;
        match rustix::net::sendto(&self.udp, &bytes, flags, &to) {
            // as good as lost on the way; the kernel tells of a port that nobody has
            Ok(_) | Err(Errno::AGAIN | Errno::CONNREFUSED) => Ok(length),
            Err(errno) => Err(Error::system("send a UDP datagram")(errno)),
        }
    }

    /// Takes completions of all queue pairs, for this thread and for others.
    fn process(&self, inner: &mut Inner) -> Result<()> {
        let Inner { ends, received, .. } = inner;
        for (end, queue_pair) in ends.iter_mut().enumerate() {
            let arrived = |filled| received.push_back(Received::Filled { end, filled });
            if queue_pair.process(arrived)? {
                self.waiters.ring();
            }
        }
        Ok(())
    }

    fn post(
        &self,
        inner: &mut Inner,
        peer: Peer,
        qpn: Qpn,
        from: ProgramBytes<'_>,
    ) -> Result<usize> {
        let to = Addressee {
            path: peer.path,
            qpn,
            qkey: QKEY,
        };
        if !inner.ends[peer.end].has_room() {
            self.process(inner)?;
        }
        inner.ends[peer.end].post(&to, from)
    }

    /// Reads what came over UDP.
    pub(crate) fn take_udp(self: &Arc<Self>) {
        let mut bytes = [0; SLOT];
        loop {
            let flags = RecvFlags::DONTWAIT;
            let (length, source) = match rustix::net::recvfrom(&self.udp, &mut bytes[..], flags) {
                Ok((length, _, Some(source))) => (length, source),
                Ok((_, _, None)) => continue,
                // an error of an earlier send
                Err(Errno::CONNREFUSED | Errno::INTR) => continue,
                Err(_) => return,
            };
            let Ok(source) = SocketAddr::try_from(source) else {
                continue;
            };
            if let Err(error) = self.take_one(&bytes[..length], plain(source)) {
                tracing::debug!(%error, %source, "a datagram for an rsocket is dropped");
            }
        }
    }

    fn take_one(&self, bytes: &[u8], source: SocketAddr) -> Result<()> {
        let (header, length) =
            UdpHeader::parse(bytes).map_err(|_| Error::Invalid("it is not of an rsocket"))?;
        let mut inner = lock(&self.inner);
        if !inner.is_attended {
            return Ok(());
        }
        let peer = self.peer(&mut inner, source)?;
        if let Some(known) = inner.peers.get_mut(&source) {
            known.qpn = (header.qpn.get() > 1).then_some(header.qpn);
        }
        if header.has_data {
            inner.keep(source, &bytes[length..]);
            self.send_udp(&inner.ends[peer.end], source, None)?;
        }
        drop(inner);
        self.waiters.ring();
        Ok(())
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.close();
    }
}

impl Settings {
    /// As many slots to send from as the buffer holds, as in librdmacm; to receive into, at least
    /// as many as a stream has messages. Buffers of as many bytes as there are slots.
    fn fit_datagrams(&mut self) {
        let slots = |size: u32| size / SLOT as u32;
        let sends = slots(self.send_buffer).clamp(1, self.send_queue.into());
        let receives = slots(self.receive_buffer).min(RECEIVES_MAX);
        self.send_queue = sends as u16;
        self.receive_queue = self.receive_queue.max(receives as u16);
        self.send_buffer = u32::from(self.send_queue) * SLOT as u32;
        self.receive_buffer = u32::from(self.receive_queue) * SLOT as u32;
    }
}

impl Inner {
    fn readiness(&self) -> Readiness {
        Readiness {
            readable: !self.received.is_empty(),
            writable: self.ends.iter().all(End::has_room),
            ..Readiness::default()
        }
    }

    /// Queues a datagram that came over UDP, if there is room.
    fn keep(&mut self, source: SocketAddr, bytes: &[u8]) {
        if self.received.len() < usize::from(self.settings.receive_queue) {
            let bytes = bytes.to_vec();
            self.received.push_back(Received::Copied { source, bytes });
        }
    }

    /// The program has read the first datagram.
    fn drop_first(&mut self) {
        if let Some(Received::Filled { end, filled }) = self.received.pop_front()
            && let Err(error) = self.ends[end].release(filled)
        {
            // of a device that is gone: the datagram itself has been read
            tracing::debug!(%error, "a slot for datagrams is lost");
        }
    }
}

/// The address without what differs from datagram to datagram.
fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        v4 => v4,
    }
}
