//! Datagram sockets.
//!
//! The first datagram to somebody goes over UDP, behind a header that names the queue pair of its
//! sender; the answer names the other one. From then on datagrams go between the queue pairs, of
//! which there is one for each own address that was needed. Datagrams that come over UDP are queued
//! with the others.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use io::{Descriptor, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags as UdpFlags, SocketFlags, SocketType};
use softrdma::cm::{Id, PortSpace};
use softrdma::{
    Access, Addressee, Capabilities, CompletionChannel, CompletionOpcode, CompletionQueue,
    Operation, Payload, ProgramBytes, ProgramBytesMut, QueuePair, QueuePairOptions, Region,
    SendFlags, SendRequest, Status, Transport, WorkCompletion,
};
use wire::rsocket::{DatagramHeader, UdpHeader};
use wire::{QKey, Qpn};

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

/// In front of a received datagram. spec: IBA 11.4.1.2
const GRH: usize = 40;

/// The Q_Key of datagrams of `rdma_cm`.
const QKEY: QKey = QKey(0x0123_4567);

/// Peers that are remembered. More of them are heard, and answered over UDP.
const PEERS_MAX: usize = 4096;

/// Completions taken at once.
const BATCH: usize = 32;

/// A work request that was a receive.
const RECEIVE: u64 = 1 << 63;

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
    received: VecDeque<(SocketAddr, Vec<u8>)>,
}

/// An own address with its queue pair.
struct End {
    local: SocketAddr,
    pair: QueuePair,
    queue: CompletionQueue,
    sends: Region,
    /// Slots of `sends` that are free.
    free: Vec<u32>,
    receives: Region,
    /// Bytes of a datagram with its header.
    length_max: usize,
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
                Some(qpn) => inner.post(peer, qpn, from),
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
        let source = spin(may_wait, || {
            let mut inner = lock(&self.inner);
            self.attend(&mut inner)?;
            if inner.received.is_empty() {
                inner.process()?;
            }
            let (source, bytes) = inner.received.front().ok_or(Error::WouldBlock)?;
            let (source, length) = (*source, bytes.len().min(to.length()));
            to.write(&bytes[..length])?;
            if !mode.peek {
                inner.received.pop_front();
            }
            Ok((length, source))
        })?;
        Ok(source)
    }

    /// What it is ready for.
    pub fn readiness(&self) -> Readiness {
        let mut inner = lock(&self.inner);
        // what fails here fails again when it is used
        let _ = inner.process();
        Readiness {
            readable: !inner.received.is_empty(),
            writable: inner.ends.iter().all(|end| !end.free.is_empty()),
            ..Readiness::default()
        }
    }

    pub(crate) fn arm(&self) -> Result<()> {
        while let Some(event) = self.channel.events.try_next() {
            self.channel.events.acknowledge(event.cookie, 1);
        }
        for end in &lock(&self.inner).ends {
            end.queue.request_notify(false)?;
        }
        Ok(())
    }

    /// Whether all that was sent has left.
    pub fn is_drained(&self) -> bool {
        let mut inner = lock(&self.inner);
        let _ = inner.process();
        let slots = usize::from(inner.settings.send_queue);
        inner.ends.iter().all(|end| end.free.len() >= slots)
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
        id.resolve_address(from, to)?;
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
            qpn: end.pair.qpn(),
            address: end.local.ip(),
        };
        header.emit(&mut bytes);
        let length = data.map_or(0, |data| data.length());
        let most = end.length_max.min(SLOT - bytes.len());
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
            inner.keep(source, bytes[length..].to_vec());
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
    /// As many slots as the buffers hold, and buffers of as many bytes as there are slots.
    fn fit_datagrams(&mut self) {
        let slots = |size: u32| (size as usize / SLOT).clamp(1, u16::MAX.into()) as u16;
        self.send_queue = self.send_queue.min(slots(self.send_buffer));
        self.receive_queue = self.receive_queue.min(slots(self.receive_buffer));
        self.send_buffer = u32::from(self.send_queue) * SLOT as u32;
        self.receive_buffer = u32::from(self.receive_queue) * SLOT as u32;
    }
}

impl Inner {
    /// Takes completions of all queue pairs.
    fn process(&mut self) -> Result<()> {
        let mut arrived = Vec::new();
        for end in &mut self.ends {
            end.process(&mut arrived)?;
        }
        for (source, bytes) in arrived {
            self.keep(source, bytes);
        }
        Ok(())
    }

    /// Queues a datagram for the program, if there is room.
    fn keep(&mut self, source: SocketAddr, bytes: Vec<u8>) {
        if self.received.len() < usize::from(self.settings.receive_queue) {
            self.received.push_back((source, bytes));
        }
    }

    fn post(&mut self, peer: Peer, qpn: Qpn, from: ProgramBytes<'_>) -> Result<usize> {
        let to = Addressee {
            path: peer.path,
            qpn,
            qkey: QKEY,
        };
        if self.ends[peer.end].free.is_empty() {
            self.process()?;
        }
        self.ends[peer.end].post(&to, from)
    }
}

impl End {
    fn new(
        service: &Service,
        link: &str,
        channel: &Arc<CompletionChannel>,
        local: SocketAddr,
        settings: &Settings,
    ) -> Result<Self> {
        let (device, domain) = service.device(link)?;
        let (sends, receives) = (
            u32::from(settings.send_queue),
            u32::from(settings.receive_queue),
        );
        let queue = device.completion_queue_on(sends + receives, Some(channel), 0)?;
        let pair = domain.queue_pair(QueuePairOptions {
            transport: Transport::Ud,
            send_cq: &queue,
            receive_cq: &queue,
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: sends,
                receive_wr_max: receives,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 0,
            },
            signal_all: true,
        })?;
        pair.open(QKEY)?;
        let memory = |count: u32, size: usize| {
            domain.register(vec![0; count as usize * size], Access::LOCAL_WRITE)
        };
        let end = Self {
            local,
            sends: memory(sends, SLOT)?,
            free: (0..sends).rev().collect(),
            receives: memory(receives, GRH + SLOT)?,
            length_max: SLOT.min(device.active_mtu().bytes() as usize),
            pair,
            queue,
        };
        for slot in 0..receives {
            end.post_receive(slot)?;
        }
        // the first completion wakes who polls
        end.queue.request_notify(false)?;
        Ok(end)
    }

    fn post_receive(&self, slot: u32) -> Result<()> {
        let start = slot as usize * (GRH + SLOT);
        let sge = self.receives.slice(start..start + GRH + SLOT)?;
        Ok(self.pair.post_receive(RECEIVE | u64::from(slot), &[sge])?)
    }

    fn post(&mut self, to: &Addressee, from: ProgramBytes<'_>) -> Result<usize> {
        let mut header = Vec::with_capacity(32);
        DatagramHeader { source: self.local }.emit(&mut header);
        let most = self.length_max - header.len();
        if from.length() > most {
            return Err(Error::TooLong(most));
        }
        let slot = *self.free.last().ok_or(Error::WouldBlock)?;
        let start = slot as usize * SLOT;
        let data = start + header.len();
        self.sends.copy_in(start, &header)?;
        self.sends.fill(data, from)?;
        let sge = self.sends.slice(start..data + from.length())?;
        self.pair.post_send(&SendRequest {
            id: slot.into(),
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[sge]),
            to: Some(to),
        })?;
        self.free.pop();
        Ok(from.length())
    }

    fn process(&mut self, arrived: &mut Vec<(SocketAddr, Vec<u8>)>) -> Result<()> {
        let empty = WorkCompletion::success(0, CompletionOpcode::Send, 0, self.pair.qpn());
        let mut taken = [empty; BATCH];
        loop {
            let count = self.queue.poll(&mut taken);
            for completion in &taken[..count] {
                if completion.id & RECEIVE == 0 {
                    self.free.push(completion.id as u32);
                    continue;
                }
                let slot = completion.id as u32;
                if completion.status == Status::Success {
                    let length = (completion.length as usize).saturating_sub(GRH).min(SLOT);
                    let mut bytes = vec![0; length];
                    let start = slot as usize * (GRH + SLOT) + GRH;
                    self.receives.copy_out(start, &mut bytes)?;
                    // others than rsockets can reach the queue pair as well
                    if let Ok((header, length)) = DatagramHeader::parse(&bytes) {
                        arrived.push((plain(header.source), bytes.split_off(length)));
                    }
                }
                self.post_receive(slot)?;
            }
            if count < BATCH {
                return Ok(());
            }
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
