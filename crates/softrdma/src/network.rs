//! The seam between the device and what carries its datagrams: real sockets here, the simulated
//! network in the simulator. Read first: design of runs in `docs/architecture.md`.

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use engine::{Path, PathMeta};
pub use io::Errno;
pub use io::udp::SendOutcome;
use io::udp::{Family, ReceiveSocket, SendSocket, Transmit};
use wire::Qpn;

/// UDP port of RoCEv2 at every receiver. spec: IBA A17.3.1
pub const ROCE_PORT: u16 = 4791;

/// Transmit sockets for peers that are not on this host: their datagrams may be merged on the way
/// by what they have in common, so a few source ports are enough.
const FOREIGN_SOCKETS: u8 = 16;

/// Where datagrams of the device leave and arrive.
pub trait Network {
    /// The source port that packets to `dest` along `path` will carry; the ICRC covers it.
    ///
    /// # Errors
    /// The kernel gave no socket.
    fn source_port(&mut self, path: &Path, dest: Qpn) -> Result<u16, Errno>;

    /// Sends one run. Never blocks.
    fn transmit(&mut self, run: &OutgoingRun<'_>) -> SendOutcome;

    /// Takes one received datagram, perhaps merged of several packets; `false` when there is none.
    ///
    /// # Errors
    /// The socket failed for good.
    fn receive(&mut self, into: &mut RxBuffer) -> Result<bool, Errno>;

    /// Datagrams that were dropped because the receive buffer was full.
    fn dropped(&self) -> u64;
}

/// Sealed packets of one GSO send, all for one destination slot.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRun<'a> {
    /// The packets one after the other.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last, which takes the rest; the whole when it is one.
    pub segment_size: usize,
    /// Where to.
    pub path: &'a Path,
    /// Destination of the first packet.
    pub dest: Qpn,
}

/// A received datagram.
#[derive(Debug)]
pub struct RxBuffer {
    /// Memory of at least 64 KiB; the first `length` bytes are valid.
    pub bytes: Box<[u8]>,
    /// Bytes received.
    pub length: usize,
    /// Bytes of each packet but the last.
    pub segment_size: usize,
    /// What the IP header said.
    pub meta: PathMeta,
    /// Source port; the ICRC covers it.
    pub source_port: u16,
}

impl Default for RxBuffer {
    fn default() -> Self {
        let unspecified = IpAddr::from([0, 0, 0, 0]);
        Self {
            bytes: vec![0; io::udp::RECEIVE_BUFFER].into_boxed_slice(),
            length: 0,
            segment_size: 1,
            meta: PathMeta {
                source: unspecified,
                destination: unspecified,
                interface: 0,
                traffic_class: 0,
                hop_limit: 64,
            },
            source_port: 0,
        }
    }
}

impl RxBuffer {
    /// The packets of the datagram.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes[..self.length].chunks(self.segment_size.max(1))
    }
}

/// Real sockets: the leased member of the steered group, and transmit sockets made when needed.
#[derive(Debug)]
pub struct UdpNetwork {
    receive: Option<ReceiveSocket>,
    transmit: HashMap<TransmitKey, SendSocket>,
    /// Whether a destination is on this host is asked once per address.
    local: HashMap<IpAddr, bool>,
    dropped: u64,
    dropped_seen: u32,
}

/// Packets of two processes never share a 4-tuple: GRO merges by it and the kernel steers by the
/// first packet alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TransmitKey {
    family: Family,
    is_local: bool,
    slot: u8,
}

impl UdpNetwork {
    /// On a leased receive socket.
    pub fn new(receive: ReceiveSocket) -> Self {
        Self {
            receive: Some(receive),
            transmit: HashMap::new(),
            local: HashMap::new(),
            dropped: 0,
            dropped_seen: 0,
        }
    }

    /// The descriptor that becomes readable when datagrams arrive; `None` once closed.
    pub fn receive_fd(&self) -> Option<BorrowedFd<'_>> {
        self.receive.as_ref().map(AsFd::as_fd)
    }

    /// Closes the leased socket: the broker died, and a new one must find the port empty.
    pub fn close(&mut self) {
        self.receive = None;
    }

    /// Forgets which addresses are local: an interface changed.
    pub fn forget_routes(&mut self) {
        self.local.clear();
    }

    fn key(&mut self, path: &Path, dest: Qpn) -> TransmitKey {
        let is_local = *self
            .local
            .entry(path.remote)
            .or_insert_with(|| is_own_address(path));
        let slot = if is_local {
            dest.slot()
        } else {
            dest.slot() % FOREIGN_SOCKETS
        };
        TransmitKey {
            family: Family::of(path.remote),
            is_local,
            slot,
        }
    }

    fn socket(&mut self, path: &Path, dest: Qpn) -> Result<&SendSocket, Errno> {
        use std::collections::hash_map::Entry;
        let key = self.key(path, dest);
        match self.transmit.entry(key) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(SendSocket::open(key.family)?)),
        }
    }
}

impl Network for UdpNetwork {
    fn source_port(&mut self, path: &Path, dest: Qpn) -> Result<u16, Errno> {
        Ok(self.socket(path, dest)?.local_port())
    }

    fn transmit(&mut self, run: &OutgoingRun<'_>) -> SendOutcome {
        if self.receive.is_none() {
            return SendOutcome::Unreachable(Errno::NETDOWN);
        }
        let socket = match self.socket(run.path, run.dest) {
            Ok(socket) => socket,
            Err(errno) => return SendOutcome::Failed(errno),
        };
        let transmit = Transmit {
            to: destination(run.path),
            from: Some(run.path.local),
            interface: (run.path.interface != 0).then_some(run.path.interface),
            tos: run.path.traffic_class,
            ttl: ttl(run.path),
            segment_size: (run.bytes.len() > run.segment_size)
                .then(|| u16::try_from(run.segment_size).unwrap_or(u16::MAX)),
        };
        socket.send(&transmit, &[IoSlice::new(run.bytes)])
    }

    fn receive(&mut self, into: &mut RxBuffer) -> Result<bool, Errno> {
        let Some(socket) = &mut self.receive else {
            return Ok(false);
        };
        let Some(received) = socket.receive(&mut into.bytes)? else {
            return Ok(false);
        };
        into.length = received.length;
        into.segment_size = received.segment_size;
        into.source_port = received.source.port();
        into.meta = PathMeta {
            source: received.source.ip(),
            destination: received.destination,
            interface: received.interface,
            traffic_class: received.tos,
            hop_limit: received.ttl,
        };
        if let Some(drops) = received.kernel_drops {
            self.dropped += u64::from(drops.wrapping_sub(self.dropped_seen));
            self.dropped_seen = drops;
        }
        Ok(true)
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// 64 is what routes give, and is left to the system; but of groups its default is 1.
fn ttl(path: &Path) -> Option<u8> {
    (path.hop_limit != 64 || path.remote.is_multicast()).then_some(path.hop_limit)
}

fn destination(path: &Path) -> SocketAddr {
    match path.remote {
        IpAddr::V4(v4) => SocketAddr::from((v4, ROCE_PORT)),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, ROCE_PORT, 0, path.interface).into(),
    }
}

/// Whether the peer's address is one of this host: then its slots are those of our broker.
pub(crate) fn is_own_address(path: &Path) -> bool {
    if path.remote == path.local || path.remote.is_loopback() {
        return true;
    }
    io::netlink::interfaces().is_ok_and(|interfaces| {
        interfaces
            .iter()
            .flat_map(|interface| &interface.addresses)
            .any(|own| own.address == path.remote)
    })
}
