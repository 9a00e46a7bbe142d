//! One UDP port for many processes: a `SO_REUSEPORT` group (`socket(7)`) whose members are chosen
//! by one byte of the payload.
//!
//! A classic BPF program, run by the kernel for each unicast datagram, returns that byte as the
//! index of the socket. Indices are the order of binding, and closing a member would move the last
//! one into its place: so a group is opened as a whole and never shrinks. It works without
//! privileges.
//!
//! A process that got one of the sockets cannot replace the program (`SO_LOCK_FILTER`) but can
//! detach it, after which the kernel scatters by address and port. [`Group::probe`] finds that out
//! and [`Group::reattach`] repairs it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use super::receive::{ReceiveSocket, Received};
use super::send::{Family, SendOutcome, SendSocket, Transmit};
use crate::caps::{Caps, udp_socket};
use crate::poll::wait_readable;
use crate::raw::{self, Descriptor, Instruction};

/// One byte steers, so a group has no more members.
pub const MAX_SOCKETS: usize = 256;

/// Bytes of receive memory that [`Group::open`] asks for each socket, as `SO_RCVBUF` counts them;
/// the kernel doubles it and may grant less.
pub const RECEIVE_MEMORY: usize = 4 << 20;

/// Each probe comes from a port of its own: without the program all of them reach socket 0 of `n`
/// by chance once in `n^16`.
const PROBES: usize = 16;

/// How long to wait for probes that another CPU may still be carrying through `lo`.
const PROBE_WAIT_NS: u64 = 100_000_000;

/// Datagrams of others that one probe takes at most: whoever sends faster than they are read must
/// not hold its caller.
const OTHERS_MAX: usize = 1024;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody has the port, on whatever address.
    #[error("UDP port {port} is already in use in this network namespace")]
    Taken {
        /// The port.
        port: u16,
    },
    /// The port is privileged, or a security module forbids it.
    #[error("not allowed to bind UDP port {port}")]
    Denied {
        /// The port.
        port: u16,
    },
    /// A group of no or of too many sockets was asked for.
    #[error("a socket group has 1 to {MAX_SOCKETS} members, not {count}")]
    Count {
        /// The members asked for.
        count: usize,
    },
    /// Anything else that the kernel said.
    #[error("cannot {attempt} for UDP port {port}: {cause}")]
    Failed {
        /// What was attempted.
        attempt: &'static str,
        /// The port.
        port: u16,
        /// What the kernel said.
        cause: Errno,
    },
}

/// All sockets of one port, in the order of their indices. Close none of them alone.
#[derive(Debug)]
pub struct Group {
    port: u16,
    steering_byte_offset: u32,
    ipv6: bool,
    /// Index i receives the datagrams whose steering byte is i. Never empty.
    sockets: Vec<Descriptor>,
    granted_receive_buffer: usize,
}

impl Group {
    /// Opens `count` sockets on `[::]:port` (`0.0.0.0:port` without IPv6), steered by the payload
    /// byte at `steering_byte_offset`. A datagram that is too short, or whose byte is no member's
    /// index, goes to socket 0.
    ///
    /// # Errors
    /// [`OpenError::Taken`] also when the owner of the port would have shared it: the group begins
    /// with an exclusive bind, so that its indices are certain.
    pub fn open(port: u16, count: usize, steering_byte_offset: u32) -> Result<Self, OpenError> {
        Self::open_with(port, count, steering_byte_offset, RECEIVE_MEMORY)
    }

    /// The same with another wish for receive memory than [`RECEIVE_MEMORY`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        port: u16,
        count: usize,
        steering_byte_offset: u32,
        receive_memory: usize,
    ) -> Result<Self, OpenError> {
        Self::open_as(
            Caps::of_this_kernel().ipv6,
            port,
            count,
            steering_byte_offset,
            receive_memory,
        )
    }

    pub(super) fn open_as(
        ipv6: bool,
        port: u16,
        count: usize,
        steering_byte_offset: u32,
        receive_memory: usize,
    ) -> Result<Self, OpenError> {
        if !(1..=MAX_SOCKETS).contains(&count) {
            return Err(OpenError::Count { count });
        }
        let mut sockets = Vec::with_capacity(count);
        sockets.push(first_member(port, ipv6)?);
        if count > 1 {
            sockets.push(next_member(port, ipv6)?);
            // The group exists from the second member on; from here no datagram goes astray.
            attach(&sockets[0], port, count, steering_byte_offset)?;
        }
        while sockets.len() < count {
            sockets.push(next_member(port, ipv6)?);
        }
        let mut granted_receive_buffer = usize::MAX;
        for socket in &sockets {
            prepare(socket, ipv6, receive_memory).map_err(failed("set socket options", port))?;
            let granted = sockopt::socket_recv_buffer_size(socket)
                .map_err(failed("read the receive buffer size", port))?;
            granted_receive_buffer = granted_receive_buffer.min(granted);
        }
        Ok(Self {
            port,
            steering_byte_offset,
            ipv6,
            sockets,
            granted_receive_buffer,
        })
    }

    /// Number of members.
    #[allow(clippy::len_without_is_empty, reason = "a group is never empty")]
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// The member with this index, to be passed to another process.
    pub fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.sockets.get(index).map(AsFd::as_fd)
    }

    /// A second descriptor of a member, to receive on in this process.
    ///
    /// # Errors
    /// `EBADF` when there is no such member, `EMFILE`.
    pub fn receiver(&self, index: usize) -> Result<ReceiveSocket, Errno> {
        let socket = self.sockets.get(index).ok_or(Errno::BADF)?;
        socket.duplicate().map(ReceiveSocket::from_fd)
    }

    /// Lets a member receive what is sent to a multicast group and arrives at an interface. The
    /// steering program has no part in that: each member that joined gets its copy.
    ///
    /// # Errors
    /// `ENOBUFS` or `ENOMEM` when the member has joined as many as the kernel allows, `EADDRINUSE`
    /// when it has joined this one, `ENODEV` without such an interface, `EBADF` without such a
    /// member.
    pub fn join(&self, index: usize, group: IpAddr, interface: u32) -> Result<(), Errno> {
        let socket = self.socket(index).ok_or(Errno::BADF)?;
        match group {
            IpAddr::V4(group) => sockopt::set_ip_add_membership_with_ifindex(
                socket,
                &group,
                &Ipv4Addr::UNSPECIFIED,
                interface,
            ),
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(socket, &group, interface),
        }
    }

    /// Ends what [`Self::join`] began.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when it has not joined, `ENODEV` when the interface is gone.
    pub fn leave(&self, index: usize, group: IpAddr, interface: u32) -> Result<(), Errno> {
        let socket = self.socket(index).ok_or(Errno::BADF)?;
        match group {
            IpAddr::V4(group) => sockopt::set_ip_drop_membership_with_ifindex(
                socket,
                &group,
                &Ipv4Addr::UNSPECIFIED,
                interface,
            ),
            IpAddr::V6(group) => sockopt::set_ipv6_drop_membership(socket, &group, interface),
        }
    }

    /// Bytes of receive memory each member has, in the kernel's count (see
    /// [`crate::caps::SocketMemory`]); the least of all members.
    pub fn granted_receive_buffer(&self) -> usize {
        self.granted_receive_buffer
    }

    /// Whether members take IPv6 as well as IPv4.
    pub fn is_dual_stack(&self) -> bool {
        self.ipv6
    }

    /// Finds out whether the program is still in place, by sending datagrams to socket 0 over `lo`
    /// and looking whether all arrive there. What else arrives meanwhile is given to `other`.
    ///
    /// Without the program some probes reach other members, whose owners see a few short datagrams.
    ///
    /// # Errors
    /// When nothing could be proved, for instance because `lo` is down (`ENETUNREACH`) or others
    /// send so much (`EAGAIN`).
    pub fn probe(
        &mut self,
        buffer: &mut [u8],
        mut other: impl FnMut(&Received, &[u8]),
    ) -> Result<bool, Errno> {
        let payload = self.probe_payload();
        self.send_probes(&payload)?;
        let mut socket = self.receiver(0)?;
        let (mut arrived, mut others) = (0, 0);
        while arrived < PROBES {
            match socket.receive(buffer)? {
                Some(received) if buffer[..received.length] == payload => arrived += 1,
                Some(received) => {
                    other(&received, &buffer[..received.length]);
                    others += 1;
                    if others == OTHERS_MAX {
                        return Err(Errno::AGAIN);
                    }
                }
                None if !wait_readable(&socket, Some(PROBE_WAIT_NS))? => break,
                None => {}
            }
        }
        Ok(arrived == PROBES)
    }

    /// Puts the program back in place. It goes in through a fresh member, since those that others
    /// hold are locked; the fresh one is the last, so closing it moves no other.
    ///
    /// # Errors
    /// [`OpenError::Taken`] when another user is asked to do this than the one who opened the
    /// group.
    pub fn reattach(&mut self) -> Result<(), OpenError> {
        let fresh = next_member(self.port, self.ipv6)?;
        attach(
            &fresh,
            self.port,
            self.sockets.len(),
            self.steering_byte_offset,
        )
    }

    /// Up to and including the steering byte zeros, then something nobody else sends.
    fn probe_payload(&self) -> Vec<u8> {
        let mut payload = vec![0; self.steering_byte_offset as usize + 1];
        payload.extend_from_slice(&RandomState::new().build_hasher().finish().to_ne_bytes());
        payload
    }

    fn send_probes(&self, payload: &[u8]) -> Result<(), Errno> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let sockets = (0..PROBES)
            .map(|_| SendSocket::open(Family::Ipv4))
            .collect::<Result<Vec<_>, Errno>>()?;
        for socket in &sockets {
            match socket.send(&Transmit::to(to), &[IoSlice::new(payload)]) {
                SendOutcome::Sent => {}
                SendOutcome::WouldBlock => return Err(Errno::AGAIN),
                SendOutcome::TooBig | SendOutcome::GsoRefused => return Err(Errno::MSGSIZE),
                SendOutcome::Unreachable(errno) | SendOutcome::Failed(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Proves that nobody has the port, on any address of either IP version, by holding it alone for a
/// moment.
///
/// # Errors
/// [`OpenError::Taken`] when somebody has it.
pub fn prove_empty(port: u16) -> Result<(), OpenError> {
    let ipv6 = Caps::of_this_kernel().ipv6;
    bind(&new_socket(port, ipv6)?, port, ipv6)
}

/// The first member takes the port exclusively and shares it only then: nobody can have been there
/// before it, so it gets index 0.
fn first_member(port: u16, ipv6: bool) -> Result<Descriptor, OpenError> {
    let socket = new_socket(port, ipv6)?;
    bind(&socket, port, ipv6)?;
    sockopt::set_socket_reuseport(&socket, true).map_err(failed("share the socket", port))?;
    Ok(socket)
}

fn next_member(port: u16, ipv6: bool) -> Result<Descriptor, OpenError> {
    let socket = new_socket(port, ipv6)?;
    sockopt::set_socket_reuseport(&socket, true).map_err(failed("share the socket", port))?;
    bind(&socket, port, ipv6)?;
    Ok(socket)
}

/// A socket with what must be set before binding: both IP versions, and of multicast only what it
/// joins itself (the default would give every member every group that any of them has joined).
fn new_socket(port: u16, ipv6: bool) -> Result<Descriptor, OpenError> {
    let open = || {
        let socket = udp_socket(if ipv6 {
            AddressFamily::INET6
        } else {
            AddressFamily::INET
        })?;
        raw::set_int(&socket, libc::SOL_IP, libc::IP_MULTICAST_ALL, 0)?;
        if ipv6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
            // The kernel's rxe, like most NICs, sends IPv6 without a UDP checksum: there is an
            // ICRC.
            raw::set_int(&socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
            match raw::set_int(&socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_ALL, 0) {
                // Linux before 4.20: members see copies of groups that are not theirs.
                Ok(()) | Err(Errno::NOPROTOOPT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(socket)
    };
    open().map_err(failed("open a socket", port))
}

fn bind(socket: &Descriptor, port: u16, ipv6: bool) -> Result<(), OpenError> {
    let bound = if ipv6 {
        rustix::net::bind(
            socket,
            &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
        )
    } else {
        rustix::net::bind(socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))
    };
    bound.map_err(|errno| match errno {
        Errno::ADDRINUSE => OpenError::Taken { port },
        Errno::ACCESS | Errno::PERM => OpenError::Denied { port },
        cause => OpenError::Failed {
            attempt: "bind a socket",
            port,
            cause,
        },
    })
}

/// What is set on a bound member: receive memory, what each datagram brings along, and the lock.
fn prepare(socket: &Descriptor, ipv6: bool, receive_memory: usize) -> Result<(), Errno> {
    // With the privilege more than rmem_max is granted; without it as much as that allows.
    sockopt::set_socket_recv_buffer_size_force(socket, receive_memory)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, receive_memory))?;
    ReceiveSocket::prepare(socket, ipv6)?;
    raw::set_int(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
}

fn attach(member: &Descriptor, port: u16, count: usize, offset: u32) -> Result<(), OpenError> {
    raw::attach_reuseport_program(member, &program(count, offset))
        .map_err(failed("attach the steering program", port))
}

/// `A = payload[offset]; return A < count ? A : 0`. Offset 0 is the first byte of the UDP payload,
/// and a load behind the end returns 0.
fn program(count: usize, offset: u32) -> [Instruction; 4] {
    let instruction = |code: u32, jump_false, k| Instruction {
        code: code as u16, // the codes of classic BPF are 8 bits
        jump_true: 0,
        jump_false,
        k,
    };
    [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, offset),
        // The kernel would scatter an index beyond the group by a hash of addresses and ports.
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, count as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_A, 0, 0),
    ]
}

fn failed(attempt: &'static str, port: u16) -> impl Fn(Errno) -> OpenError {
    move |cause| OpenError::Failed {
        attempt,
        port,
        cause,
    }
}
