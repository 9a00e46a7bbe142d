//! A connection: connecting, sending many pieces at once, receiving, and the ways to end.

use std::mem::{align_of, size_of};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use crate::raw;
use crate::tcp::socket::Socket;

/// Most parts of one send; the kernel's limit on an array of pieces.
pub const PARTS_MAX: usize = 1024;

/// Silence after which the peer is asked whether it is still there.
const IDLE: Duration = Duration::from_secs(30);
/// Time between two such questions.
const INTERVAL: Duration = Duration::from_secs(10);
/// Questions without an answer before the connection is given up: a minute and a half in all.
const PROBES: u32 = 6;

/// A TCP connection, or one that is being made. Without delay (`TCP_NODELAY`), kept alive, closed
/// on exec.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
}

/// A piece of what is sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A range of the caller's own bytes.
    Own(Range<usize>),
    /// Memory that only the kernel looks at, so any address may be given: what cannot be read is
    /// [`Sending::Fault`].
    Elsewhere {
        /// The first byte, in this process.
        address: usize,
        /// Bytes.
        length: usize,
    },
}

impl Part {
    /// Bytes.
    pub fn length(&self) -> usize {
        match self {
            Self::Own(range) => range.len(),
            Self::Elsewhere { length, .. } => *length,
        }
    }
}

/// What became of a send. All of these are part of normal life, so none is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sending {
    /// The kernel took so many bytes, perhaps fewer than there were.
    Sent(usize),
    /// It took nothing: the socket is full.
    Full,
    /// It took nothing: the first byte cannot be read.
    Fault,
    /// The connection is over.
    Lost(Errno),
}

/// What came of a look for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// So many bytes, at least one.
    Received(usize),
    /// None now.
    Nothing,
    /// None any more: the peer has shut down its half.
    End,
    /// The connection is over.
    Lost(Errno),
}

/// An array of pieces as the kernel wants it, kept for its memory.
#[derive(Debug, Default)]
pub struct Gather(Vec<[usize; 2]>);

// an `iovec` is an address and a length
const _: () = assert!(
    size_of::<libc::iovec>() == size_of::<[usize; 2]>()
        && align_of::<libc::iovec>() == align_of::<[usize; 2]>()
);

impl Stream {
    /// Begins to connect, from `local` if one is given; port 0 there is any port. All packets have
    /// the TOS or traffic class. [`Self::wait_connected`] follows, or [`Self::is_connected`]
    /// whenever the socket is writable or closed.
    ///
    /// # Errors
    /// What the kernel says at once: `EADDRINUSE`, `EADDRNOTAVAIL`, `ENETUNREACH`, `EMFILE`, …
    pub fn connect(
        local: Option<SocketAddr>,
        remote: SocketAddr,
        traffic_class: u8,
    ) -> Result<Self, Errno> {
        let socket = Socket::new(remote)?;
        if traffic_class != 0 {
            socket.set_traffic_class(traffic_class)?;
        }
        if let Some(local) = local {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            if local.port() == 0 {
                // the port is chosen when the peer is known: the same one serves many peers; a
                // kernel that does not know this has fewer connections
                let option = libc::IP_BIND_ADDRESS_NO_PORT;
                let _ = raw::set_int(&socket, libc::SOL_IP, option, 1);
            }
            rustix::net::bind(&socket, &local)?;
        }
        match rustix::net::connect(&socket, &remote) {
            // a signal does not take it back
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Self::prepared(socket),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until the connection is there, for so long at most.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, … and `ETIMEDOUT` when the time is up.
    pub fn wait_connected(&self, timeout: Duration) -> Result<(), Errno> {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            let rest = deadline.saturating_duration_since(std::time::Instant::now());
            if self.is_connected_within(rest)? {
                return Ok(());
            }
            if rest.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
        }
    }

    /// Whether the connection is there, or still being made. Never blocks.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, … once: there will be none.
    pub fn is_connected(&self) -> Result<bool, Errno> {
        self.is_connected_within(Duration::ZERO)
    }

    fn is_connected_within(&self, timeout: Duration) -> Result<bool, Errno> {
        let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => sockopt::socket_error(&self.socket)?.map(|()| true),
            Err(errno) => Err(errno),
        }
    }

    /// A connection with the options that all have.
    pub(super) fn prepared(socket: Socket) -> Result<Self, Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, IDLE)?;
        sockopt::set_tcp_keepintvl(&socket, INTERVAL)?;
        sockopt::set_tcp_keepcnt(&socket, PROBES)?;
        Ok(Self { socket })
    }

    /// The TOS or traffic class of what is sent from now on.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), Errno> {
        self.socket.set_traffic_class(class)
    }

    /// The own end.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn local(&self) -> Result<SocketAddr, Errno> {
        plain(rustix::net::getsockname(&self.socket)?.try_into())
    }

    /// The peer's end.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn remote(&self) -> Result<SocketAddr, Errno> {
        match rustix::net::getpeername(&self.socket)? {
            Some(name) => plain(name.try_into()),
            None => Err(Errno::NOTCONN),
        }
    }

    /// Payload of a TCP segment on this connection now.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn segment_size(&self) -> Result<usize, Errno> {
        let mut value = [0; 4];
        raw::read_bytes(&self.socket, libc::SOL_TCP, libc::TCP_MAXSEG, &mut value)?;
        usize::try_from(i32::from_ne_bytes(value)).map_err(|_| Errno::PROTO)
    }

    /// Sends the parts in their order, of which ranges are of `own`; at most [`PARTS_MAX`] of them.
    /// Never blocks, and never raises SIGPIPE.
    pub fn send(&self, own: &[u8], parts: &[Part], gather: &mut Gather) -> Sending {
        gather.0.clear();
        for part in parts.iter().take(PARTS_MAX) {
            let piece = match part {
                Part::Own(range) => match own.get(range.clone()) {
                    Some(bytes) => [bytes.as_ptr().addr(), bytes.len()],
                    None => return Sending::Fault,
                },
                Part::Elsewhere { address, length } => [*address, *length],
            };
            gather.0.push(piece);
        }
        match self.send_gathered(gather) {
            Ok(count) => Sending::Sent(count),
            Err(Errno::AGAIN) => Sending::Full,
            Err(Errno::FAULT) => Sending::Fault,
            Err(errno) => Sending::Lost(errno),
        }
    }

    fn send_gathered(&self, gather: &Gather) -> Result<usize, Errno> {
        let message = libc::msghdr {
            msg_name: std::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: gather.0.as_ptr().cast_mut().cast(),
            msg_iovlen: gather.0.len() as _,
            msg_control: std::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        // SAFETY: the pieces have the layout of `iovec`. The kernel only reads through them, and
        // says EFAULT where there is nothing to read; ranges of the caller's are borrowed for the
        // call.
        unsafe { raw::send_raw(&self.socket, &message, libc::MSG_DONTWAIT) }
    }

    /// Takes bytes that are here. Never blocks.
    pub fn receive(&self, into: &mut [u8]) -> Receiving {
        if into.is_empty() {
            return Receiving::Nothing;
        }
        loop {
            return match rustix::io::read(&self.socket, &mut *into) {
                Ok(0) => Receiving::End,
                Ok(count) => Receiving::Received(count),
                Err(Errno::AGAIN) => Receiving::Nothing,
                Err(Errno::INTR) => continue,
                Err(errno) => Receiving::Lost(errno),
            };
        }
    }

    /// Says that nothing more will be sent. The peer reads all that was, then the end.
    pub fn finish(&self) {
        // the one failure possible is a connection that is over
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Ends the connection at once: the peer learns that it is lost, and what was sent may be.
    pub fn reset(self) {
        // without it the end is an orderly one; on an own socket it cannot fail
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

/// An address of IP, where one of IPv4 never hides in one of IPv6.
pub(super) fn plain<E>(address: Result<SocketAddr, E>) -> Result<SocketAddr, Errno> {
    let address = address.map_err(|_| Errno::AFNOSUPPORT)?;
    Ok(match address.ip().to_canonical() {
        canonical if canonical == address.ip() => address,
        canonical => SocketAddr::new(canonical, address.port()),
    })
}
