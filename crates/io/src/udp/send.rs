//! Sending datagrams, many equal ones in one call (`udp(7)` `UDP_SEGMENT`).
//!
//! The sockets are unconnected and do path MTU discovery in the `PROBE` mode: then the kernel sets
//! DF and writes the IPv4 identification 0, or k for segment k of a segmented send. A connected
//! socket, or any other mode, counts from a number that the sender cannot know. `PROBE` rather than
//! `DO`, because a forged ICMP message must not shrink a route. Checksums stay on: `SO_NO_CHECK`
//! together with segmentation is refused.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use crate::address;
use crate::caps;
use crate::cmsg;
use crate::raw::{self, Descriptor, move_high};

/// Bytes of send memory asked for; the kernel doubles it and may grant less.
const SEND_BUFFER: usize = 4 << 20;

/// Segment size, source, class and hop limit.
const CONTROL_SPACE: usize = cmsg::space(2) + cmsg::space(20) + 2 * cmsg::space(4);

/// The IP version of a sending socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4; also for addresses that arrived mapped into IPv6.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// The version of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

/// An unconnected socket with a source port of its own.
#[derive(Debug)]
pub struct SendSocket {
    descriptor: Descriptor,
    local_port: u16,
}

/// Where and how one send goes. The payload comes separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination; of the socket's family.
    pub to: SocketAddr,
    /// Source address; `None` lets the routing table choose.
    pub from: Option<IpAddr>,
    /// Index of the interface to leave by; `None` lets the routing table choose.
    pub interface: Option<u32>,
    /// IPv4 type of service or IPv6 traffic class; 0 is the socket's default.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit; `None` is the system's default (64).
    pub ttl: Option<u8>,
    /// Size of each datagram that the payload is cut into, the last may be shorter; `None` sends it
    /// as one.
    pub segment_size: Option<u16>,
}

impl Transmit {
    /// One datagram with defaults for all else.
    pub fn to(to: SocketAddr) -> Self {
        Self {
            to,
            from: None,
            interface: None,
            tos: 0,
            ttl: None,
            segment_size: None,
        }
    }
}

/// What became of a send. All of these are part of normal life, so none is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SendOutcome {
    /// The kernel took it.
    Sent,
    /// No room in the socket or the device; try again later.
    WouldBlock,
    /// The kernel does not segment on this route (`EIO`, `EINVAL`): send single datagrams.
    GsoRefused,
    /// A datagram is larger than the interface or the protocol allows.
    TooBig,
    /// No way there, or the source address is not (or no longer) ours, for which the kernel says
    /// `EINVAL`.
    Unreachable(Errno),
    /// Anything else: a firewall (`EPERM`), wrong arguments (`EAFNOSUPPORT` for mixed IP versions).
    Failed(Errno),
}

impl SendSocket {
    /// Opens a socket on an ephemeral port, at a high descriptor number.
    ///
    /// # Errors
    /// What the kernel reports: `EAFNOSUPPORT` without that IP version, `EMFILE`, no port left.
    pub fn open(family: Family) -> Result<Self, Errno> {
        let socket = caps::udp_socket(match family {
            Family::Ipv4 => AddressFamily::INET,
            Family::Ipv6 => AddressFamily::INET6,
        })?;
        match family {
            Family::Ipv4 => {
                sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::PROBE)?;
                rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
            }
            Family::Ipv6 => {
                sockopt::set_ipv6_v6only(&socket, true)?;
                sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::PROBE)?;
                rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0))?;
            }
        }
        // With the privilege more than wmem_max is granted; without it as much as that allows.
        sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER))?;
        let name: SocketAddr = rustix::net::getsockname(&socket)?
            .try_into()
            .map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self {
            descriptor: move_high(socket),
            local_port: name.port(),
        })
    }

    /// The source port of all that this socket sends.
    pub fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Sends the concatenation of `payload`; never blocks. At most [`crate::udp::MAX_PAYLOAD`]
    /// bytes, [`crate::udp::MAX_SEGMENTS`] segments and 1024 slices.
    pub fn send(&self, transmit: &Transmit, payload: &[IoSlice<'_>]) -> SendOutcome {
        if transmit
            .from
            .is_some_and(|from| from.is_ipv4() != transmit.to.is_ipv4())
        {
            return SendOutcome::Failed(Errno::AFNOSUPPORT);
        }
        let length = payload.iter().map(|slice| slice.len()).sum::<usize>();
        let segment_size = transmit
            .segment_size
            .filter(|size| usize::from(*size) < length);
        let control = control_of(transmit, segment_size);
        let name = address::encode(transmit.to);
        let sent = raw::send_message(
            &self.descriptor,
            name.as_bytes(),
            payload,
            control.as_bytes(),
            libc::MSG_DONTWAIT,
        );
        match sent {
            // UDP takes all of a datagram or nothing.
            Ok(_) => SendOutcome::Sent,
            Err(errno) => outcome_of(errno, segment_size.is_some(), transmit.from.is_some()),
        }
    }
}

impl AsFd for SendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The control messages for one send: none for the common case of an unsegmented datagram with
/// nothing special.
fn control_of(transmit: &Transmit, segment_size: Option<u16>) -> cmsg::Writer<CONTROL_SPACE> {
    let mut control = cmsg::Writer::new();
    let mut push = |level, kind, data: &[u8]| {
        let fits = control.push(level, kind, data);
        debug_assert!(fits, "CONTROL_SPACE counts every message below");
    };
    if let Some(size) = segment_size {
        push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }
    let class = i32::from(transmit.tos).to_ne_bytes();
    let interface = transmit.interface.unwrap_or(0).to_ne_bytes();
    let choose_path = transmit.from.is_some() || transmit.interface.is_some();
    match transmit.to {
        SocketAddr::V4(_) => {
            if choose_path {
                // struct in_pktinfo: interface, source, (ignored on sending)
                let mut info = [0; 12];
                info[..4].copy_from_slice(&interface);
                if let Some(IpAddr::V4(from)) = transmit.from {
                    info[4..8].copy_from_slice(&from.octets());
                }
                push(libc::SOL_IP, libc::IP_PKTINFO, &info);
            }
            if transmit.tos != 0 {
                push(libc::SOL_IP, libc::IP_TOS, &class);
            }
            if let Some(ttl) = transmit.ttl {
                push(libc::SOL_IP, libc::IP_TTL, &i32::from(ttl).to_ne_bytes());
            }
        }
        SocketAddr::V6(_) => {
            if choose_path {
                // struct in6_pktinfo: source, interface
                let mut info = [0; 20];
                if let Some(IpAddr::V6(from)) = transmit.from {
                    info[..16].copy_from_slice(&from.octets());
                }
                info[16..].copy_from_slice(&interface);
                push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
            }
            if transmit.tos != 0 {
                push(libc::SOL_IPV6, libc::IPV6_TCLASS, &class);
            }
            if let Some(ttl) = transmit.ttl {
                push(
                    libc::SOL_IPV6,
                    libc::IPV6_HOPLIMIT,
                    &i32::from(ttl).to_ne_bytes(),
                );
            }
        }
    }
    control
}

fn outcome_of(errno: Errno, segmented: bool, source_given: bool) -> SendOutcome {
    match errno {
        Errno::AGAIN | Errno::NOBUFS => SendOutcome::WouldBlock,
        Errno::IO | Errno::INVAL if segmented => SendOutcome::GsoRefused,
        Errno::INVAL if source_given => SendOutcome::Unreachable(errno),
        Errno::MSGSIZE => SendOutcome::TooBig,
        Errno::NETUNREACH
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::HOSTDOWN
        | Errno::ADDRNOTAVAIL
        | Errno::NODEV
        | Errno::NXIO
        | Errno::CONNREFUSED => SendOutcome::Unreachable(errno),
        other => SendOutcome::Failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_errors() {
        use SendOutcome::{Failed, GsoRefused, TooBig, Unreachable, WouldBlock};
        let plain = |errno| outcome_of(errno, false, false);
        assert_eq!(plain(Errno::AGAIN), WouldBlock);
        assert_eq!(plain(Errno::NOBUFS), WouldBlock);
        assert_eq!(plain(Errno::MSGSIZE), TooBig);
        assert_eq!(plain(Errno::PERM), Failed(Errno::PERM));
        assert_eq!(plain(Errno::NETUNREACH), Unreachable(Errno::NETUNREACH));
        // EINVAL is about segmentation first, then about the source, then a plain mistake.
        assert_eq!(outcome_of(Errno::INVAL, true, true), GsoRefused);
        assert_eq!(
            outcome_of(Errno::INVAL, false, true),
            Unreachable(Errno::INVAL)
        );
        assert_eq!(plain(Errno::INVAL), Failed(Errno::INVAL));
        assert_eq!(outcome_of(Errno::IO, true, false), GsoRefused);
        assert_eq!(plain(Errno::IO), Failed(Errno::IO));
    }

    #[test]
    fn sockets_have_their_own_ports_and_high_descriptors() {
        use std::os::fd::AsRawFd;
        let one = SendSocket::open(Family::Ipv4).expect("IPv4 exists");
        let two = SendSocket::open(Family::Ipv4).expect("IPv4 exists");
        assert_ne!(one.local_port(), two.local_port());
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let least = limit.current.unwrap_or(u64::MAX).min(2048) / 2;
        assert!(one.as_fd().as_raw_fd() as u64 >= least);
    }

    #[test]
    fn a_source_that_is_not_ours_is_an_outcome() {
        for (family, to, from) in [
            (Family::Ipv4, "127.0.0.1:9", "192.0.2.77"),
            (Family::Ipv6, "[::1]:9", "2001:db8::77"),
        ] {
            // Without IPv6 in this machine there is nothing to try for it.
            let Ok(socket) = SendSocket::open(family) else {
                continue;
            };
            let to = to.parse().expect("a literal");
            let from = Some(from.parse().expect("a literal"));
            let transmit = Transmit {
                from,
                ..Transmit::to(to)
            };
            let outcome = socket.send(&transmit, &[IoSlice::new(b"x")]);
            assert!(
                matches!(outcome, SendOutcome::Unreachable(_)),
                "{family:?}: {outcome:?}"
            );
        }
    }

    #[test]
    fn mixed_ip_versions_are_refused() {
        let socket = SendSocket::open(Family::Ipv4).expect("IPv4 exists");
        let to = "127.0.0.1:9".parse().expect("a literal");
        let transmit = Transmit {
            from: Some(Ipv6Addr::LOCALHOST.into()),
            ..Transmit::to(to)
        };
        assert_eq!(
            socket.send(&transmit, &[IoSlice::new(b"x")]),
            SendOutcome::Failed(Errno::AFNOSUPPORT)
        );
    }
}
