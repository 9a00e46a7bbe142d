//! Receiving datagrams, merged by the kernel where it can (`udp(7)` `UDP_GRO`, `ip(7)`, `ipv6(7)`).

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::address;
use crate::caps::{self, SocketMemory};
use crate::cmsg::{self, Message};
use crate::raw::{self, Descriptor};

/// Smallest buffer that no merged datagram overflows.
pub const RECEIVE_BUFFER: usize = 1 << 16;

/// All that may come along: merge size, drop count, and address, class and hop limit of either
/// family (a dual-stack socket may report an IPv4 packet in both forms).
const CONTROL_SPACE: usize =
    4 * cmsg::space(4) + 2 * cmsg::space(4) + cmsg::space(12) + cmsg::space(20);

/// A socket that datagrams are read from: a member of a [`super::Group`], or any bound UDP socket
/// that was given the same options.
#[derive(Debug)]
pub struct ReceiveSocket {
    descriptor: Descriptor,
}

/// One datagram, or several of equal size that the kernel merged (the last may be shorter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer.
    pub length: usize,
    /// Size of each datagram in it but the last, which takes the rest; `length` when it is one.
    pub segment_size: usize,
    /// The sender; IPv4 also where the socket is dual-stack.
    pub source: SocketAddr,
    /// The address it was sent to, from the IP header; unspecified where the kernel did not tell.
    pub destination: IpAddr,
    /// Index of the interface it came in on; 0 where the kernel did not tell.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class: DSCP in bits 7–2, ECN in bits 1–0.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 where the kernel did not tell.
    pub ttl: u8,
    /// Datagrams this socket had dropped when this one was queued; `None` means none so far, or
    /// that the kernel does not count.
    pub kernel_drops: Option<u32>,
    /// The buffer was too small and the rest of the bytes is lost.
    pub truncated: bool,
}

impl ReceiveSocket {
    /// Takes a socket that already has its options: they belong to the open file and travel with
    /// it.
    pub fn from_fd(descriptor: impl Into<Descriptor>) -> Self {
        Self {
            descriptor: descriptor.into(),
        }
    }

    /// Asks the kernel to report all of [`Received`] on a socket of the given family. What it does
    /// not know is left out; only address and class reporting must succeed.
    pub(super) fn prepare(socket: &Descriptor, ipv6: bool) -> Result<(), Errno> {
        let int = |level, name| raw::set_int(socket, level, name, 1);
        let merging = int(libc::SOL_UDP, libc::UDP_GRO);
        debug_assert!(merging.is_ok() || !caps::Caps::of_this_kernel().merging);
        // A kernel without it counts drops in SO_MEMINFO or not at all.
        let _ = int(libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
        // On a dual-stack socket the IPv4 options govern IPv4 packets; IPV6_RECVPKTINFO reports
        // their addresses too, in mapped form, which saves a control message per datagram.
        int(libc::SOL_IP, libc::IP_RECVTOS)?;
        int(libc::SOL_IP, libc::IP_RECVTTL)?;
        if ipv6 {
            int(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)?;
            int(libc::SOL_IPV6, libc::IPV6_RECVTCLASS)?;
            int(libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT)
        } else {
            int(libc::SOL_IP, libc::IP_PKTINFO)
        }
    }

    /// Takes what is queued, one (possibly merged) datagram; `None` when the queue is empty. Never
    /// blocks. Give at least [`RECEIVE_BUFFER`] bytes.
    ///
    /// # Errors
    /// What `recvmsg` reports, or `EPROTO` for a sender that is no IP address.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Errno> {
        let mut name = [0; address::MAX_LENGTH];
        let mut control = cmsg::Buffer([0; CONTROL_SPACE]);
        let message = match raw::receive_message(
            &self.descriptor,
            &mut name,
            &mut [IoSliceMut::new(buffer)],
            &mut control.0,
            libc::MSG_DONTWAIT,
        ) {
            Ok(message) => message,
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let source = address::decode(&name[..message.name_length]).ok_or(Errno::PROTO)?;
        let mut received = Received {
            length: message.length,
            segment_size: message.length,
            source,
            destination: unspecified_like(source),
            interface: 0,
            tos: 0,
            ttl: 0,
            kernel_drops: None,
            truncated: message.flags & libc::MSG_TRUNC != 0,
        };
        for message in cmsg::iterate(&control.0[..message.control_length]) {
            received.note(&message);
        }
        Ok(Some(received))
    }

    /// Datagrams the kernel dropped because this socket was full, since it was made; wraps. 0 where
    /// the kernel does not tell.
    pub fn drops(&self) -> u32 {
        self.memory().map_or(0, |memory| memory.drops)
    }

    /// Bytes of receive memory in use, in the kernel's count; 0 where the kernel does not tell.
    pub fn occupancy(&self) -> u32 {
        self.memory().map_or(0, |memory| memory.occupied)
    }

    /// Occupancy, limit and drops in one question.
    ///
    /// # Errors
    /// `ENOPROTOOPT` on kernels before 4.12.
    pub fn memory(&self) -> Result<SocketMemory, Errno> {
        caps::socket_memory(&self.descriptor)
    }
}

impl AsFd for ReceiveSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Received {
    /// Takes over what one control message says; unknown or short ones say nothing.
    fn note(&mut self, message: &Message<'_>) {
        let int = message.int();
        // Class and hop limit are single bytes in the IP header, carried in an `int`.
        let byte = int.map(|value| value as u8);
        match (message.level, message.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Some(size) = int.and_then(|size| usize::try_from(size).ok()) {
                    // The last datagram takes the rest, so a size beyond the length is one
                    // datagram.
                    if size > 0 && size < self.length {
                        self.segment_size = size;
                    }
                }
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                // struct in_pktinfo: interface index, local address, address in the header
                if let Some(bytes) = message.data.first_chunk::<12>() {
                    let [a, b, c, d, _, _, _, _, address @ ..] = *bytes;
                    self.interface = u32::from_ne_bytes([a, b, c, d]);
                    self.destination = Ipv4Addr::from(address).into();
                }
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                // struct in6_pktinfo: address in the header, interface index
                if let Some((octets, rest)) = message.data.split_first_chunk::<16>()
                    && let Some(index) = rest.first_chunk()
                {
                    self.destination = address::unmapped(Ipv6Addr::from(*octets));
                    self.interface = u32::from_ne_bytes(*index);
                }
            }
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                self.tos = byte.unwrap_or(self.tos);
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = byte.unwrap_or(self.ttl);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.kernel_drops = int.map(|n| n as u32),
            _ => {}
        }
    }

    /// The datagrams inside `buffer`, which is what [`ReceiveSocket::receive`] filled.
    pub fn segments<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        // An empty datagram is one segment of no bytes; `chunks` would yield nothing.
        let empty = (self.length == 0).then_some(&buffer[..0]);
        buffer[..self.length]
            .chunks(self.segment_size.max(1))
            .chain(empty)
    }
}

fn unspecified_like(address: SocketAddr) -> IpAddr {
    match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
