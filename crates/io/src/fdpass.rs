//! Unix sockets on abstract names: messages, descriptors and who sent them (`unix(7)`).
//!
//! An abstract name has no file and belongs to the network namespace, as UDP ports do. Anybody in
//! the namespace can connect to it or take it first, so both sides look at [`Credentials`]. Inside
//! a user namespace every outsider looks like the overflow uid (65534), and a process outside the
//! own pid namespace has pid 0.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::cmsg;
use crate::poll::pidfd;
use crate::raw::{self, Descriptor};

/// Most descriptors that one message may carry. More than that are closed on arrival, and the
/// message is marked truncated.
pub const MAX_DESCRIPTORS: usize = 16;

/// Longest abstract name, without the leading zero byte.
pub const MAX_NAME: usize = 107;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// `SO_PEERPIDFD` (Linux 6.5), not yet in libc.
const SO_PEERPIDFD: i32 = 77;

/// `struct ucred`: pid, uid, gid.
const CREDENTIALS_SIZE: usize = 12;
const CONTROL_SPACE: usize = cmsg::space(4 * MAX_DESCRIPTORS) + cmsg::space(CREDENTIALS_SIZE);

/// Who is on the other side, as the kernel vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process, 0 when it is outside our pid namespace. It may have ended since.
    pub pid: i32,
    /// User, 65534 when it has no number in our user namespace.
    pub uid: u32,
    /// Group, 65534 when it has no number in our user namespace.
    pub gid: u32,
}

impl Credentials {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let [pid, uid, gid] = *words.first_chunk()?;
        Some(Self {
            pid: i32::from_ne_bytes(pid),
            uid: u32::from_ne_bytes(uid),
            gid: u32::from_ne_bytes(gid),
        })
    }
}

/// What became of a message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// The other side has it in its queue, whole.
    Sent,
    /// Its queue is full; nothing was sent.
    WouldBlock,
}

/// What a look into the queue found.
#[derive(Debug)]
pub enum Arrival {
    /// A message.
    Message(Message),
    /// Nothing yet.
    Empty,
    /// The other side has closed, and all it sent was read.
    Closed,
}

/// What came with the bytes of a message.
#[derive(Debug)]
pub struct Message {
    /// Bytes written to the buffer.
    pub length: usize,
    /// Descriptors that came along, closed on exec, in the order of sending.
    pub descriptors: Vec<Descriptor>,
    /// Who sent it; on sockets that ask for it.
    pub credentials: Option<Credentials>,
    /// The buffer was too small, or there were more than [`MAX_DESCRIPTORS`] descriptors (or no
    /// room for them in this process): something is lost.
    pub truncated: bool,
}

/// A listening socket for connections that keep message boundaries (`SOCK_SEQPACKET`).
#[derive(Debug)]
pub struct Listener {
    descriptor: Descriptor,
}

impl Listener {
    /// Takes the name.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody has it, `EINVAL` when it is longer than [`MAX_NAME`].
    pub fn bind(name: &[u8]) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name)?;
        // accept has no MSG_DONTWAIT; this descriptor is never passed on, so the flag is ours
        // alone.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor = Descriptor::from(rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            flags,
            None,
        )?);
        rustix::net::bind(&descriptor, &address)?;
        rustix::net::listen(&descriptor, BACKLOG)?;
        Ok(Self { descriptor })
    }

    /// The next connection; `None` when nobody waits. Never blocks.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn accept(&self) -> Result<Option<Connection>, Errno> {
        loop {
            match rustix::net::accept_with(&self.descriptor, SocketFlags::CLOEXEC) {
                Ok(fd) => {
                    return Ok(Some(Connection {
                        descriptor: fd.into(),
                    }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                // The one who connected has gone; perhaps another waits.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// One side of a connection that keeps message boundaries.
#[derive(Debug)]
pub struct Connection {
    descriptor: Descriptor,
}

impl Connection {
    /// Connects to a name. Blocks only while the listener's backlog is full.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody listens there, `EPROTOTYPE` when it is another kind of socket.
    pub fn connect(name: &[u8]) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name)?;
        let descriptor = unix_socket(SocketType::SEQPACKET)?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&descriptor, &address))?;
        Ok(Self { descriptor })
    }

    /// Two connected sides.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((
            Self {
                descriptor: one.into(),
            },
            Self {
                descriptor: other.into(),
            },
        ))
    }

    /// Takes a descriptor that is known to be such a socket.
    pub fn from_fd(descriptor: impl Into<Descriptor>) -> Self {
        Self {
            descriptor: descriptor.into(),
        }
    }

    /// Sends one message with descriptors. Never blocks.
    ///
    /// # Errors
    /// `EPIPE` or `ECONNRESET` when the other side is gone, `EINVAL` for an empty message (which
    /// would look like a close) or more than [`MAX_DESCRIPTORS`], `EMSGSIZE`.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Sent, Errno> {
        if bytes.is_empty() {
            return Err(Errno::INVAL);
        }
        let mut control = cmsg::Writer::<{ cmsg::space(4 * MAX_DESCRIPTORS) }>::new();
        if !descriptors.is_empty() {
            let mut numbers = [0; 4 * MAX_DESCRIPTORS];
            let numbers = numbers
                .get_mut(..4 * descriptors.len())
                .ok_or(Errno::INVAL)?;
            for (slot, fd) in numbers.as_chunks_mut::<4>().0.iter_mut().zip(descriptors) {
                *slot = fd.as_raw_fd().to_ne_bytes();
            }
            let fits = control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, numbers);
            debug_assert!(fits, "the writer has room for MAX_DESCRIPTORS");
        }
        send(
            &self.descriptor,
            &[],
            &[IoSlice::new(bytes)],
            control.as_bytes(),
        )
    }

    /// Takes the next message, if there is one. Never blocks.
    ///
    /// # Errors
    /// `ECONNRESET` when the other side closed without reading all it was sent.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Arrival, Errno> {
        Ok(match receive(&self.descriptor, buffer)? {
            None => Arrival::Empty,
            Some(message) if message.length == 0 && message.descriptors.is_empty() => {
                Arrival::Closed
            }
            Some(message) => Arrival::Message(message),
        })
    }

    /// Who connected, or whom we connected to: fixed at that moment.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn peer(&self) -> Result<Credentials, Errno> {
        let mut bytes = [0; CREDENTIALS_SIZE];
        let length = raw::read_bytes(
            &self.descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &mut bytes,
        )?;
        Credentials::parse(&bytes[..length]).ok_or(Errno::PROTO)
    }

    /// A descriptor that becomes readable when the peer's process ends. The connection itself says
    /// less: a forked child keeps it open.
    ///
    /// # Errors
    /// `ESRCH` when it has ended, `EINVAL` before Linux 6.5 when it is outside our pid namespace.
    pub fn peer_pidfd(&self) -> Result<Descriptor, Errno> {
        let mut bytes = [0; 4];
        match raw::read_bytes(&self.descriptor, libc::SOL_SOCKET, SO_PEERPIDFD, &mut bytes) {
            // SAFETY: the kernel has just made this descriptor (closed on exec) for this call.
            Ok(4) => Ok(unsafe { Descriptor::from_received(i32::from_ne_bytes(bytes)) }),
            Ok(_) => Err(Errno::PROTO),
            // Before Linux 6.5 by number, which may have been given to another process since.
            Err(Errno::NOPROTOOPT) => pidfd(self.peer()?.pid),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A datagram socket on an abstract name. Each message tells who sent it.
#[derive(Debug)]
pub struct DatagramSocket {
    descriptor: Descriptor,
}

impl DatagramSocket {
    /// Takes over a socket that was bound elsewhere, such as a leased one.
    pub fn from_fd(descriptor: impl Into<Descriptor>) -> Self {
        Self {
            descriptor: descriptor.into(),
        }
    }

    /// Takes the name.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody has it, `EINVAL` when it is longer than [`MAX_NAME`].
    pub fn bind(name: &[u8]) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name)?;
        let socket = Self::unnamed()?;
        rustix::net::sockopt::set_socket_passcred(&socket.descriptor, true)?;
        rustix::net::bind(&socket.descriptor, &address)?;
        Ok(socket)
    }

    /// A socket to send with only.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn unnamed() -> Result<Self, Errno> {
        Ok(Self {
            descriptor: unix_socket(SocketType::DGRAM)?,
        })
    }

    /// A socket to send with to one name only. It polls as writable when that one's queue has room
    /// again, which an unconnected one cannot tell.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody has the name, `EINVAL` for a name longer than [`MAX_NAME`].
    pub fn connected(name: &[u8]) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new_abstract_name(name)?;
        let socket = Self::unnamed()?;
        rustix::net::connect(&socket.descriptor, &address)?;
        Ok(socket)
    }

    /// Sends one message, gathered, to whom this socket is connected. Never blocks.
    ///
    /// # Errors
    /// `ECONNREFUSED` when that socket is closed, `ENOTCONN`, `EMSGSIZE`.
    pub fn send(&self, payload: &[IoSlice<'_>]) -> Result<Sent, Errno> {
        send(&self.descriptor, &[], payload, &[])
    }

    /// Sends one message, gathered, to a name. Never blocks.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody has the name, `EMSGSIZE`, `EINVAL` for a name longer than
    /// [`MAX_NAME`].
    pub fn send_to(&self, name: &[u8], payload: &[IoSlice<'_>]) -> Result<Sent, Errno> {
        if name.len() > MAX_NAME {
            return Err(Errno::INVAL);
        }
        // struct sockaddr_un: family, a zero byte for "abstract", the name
        let mut address = [0; 3 + MAX_NAME];
        address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        address[3..3 + name.len()].copy_from_slice(name);
        send(&self.descriptor, &address[..3 + name.len()], payload, &[])
    }

    /// Takes the next message, if there is one, with its sender's credentials. Never blocks.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<Message>, Errno> {
        receive(&self.descriptor, buffer)
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn unix_socket(kind: SocketType) -> Result<Descriptor, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map(Descriptor::from)
}

fn send(
    socket: &Descriptor,
    name: &[u8],
    payload: &[IoSlice<'_>],
    control: &[u8],
) -> Result<Sent, Errno> {
    match raw::send_message(socket, name, payload, control, libc::MSG_DONTWAIT) {
        // Both kinds of socket send a message whole or not at all.
        Ok(_) => Ok(Sent::Sent),
        Err(Errno::AGAIN) => Ok(Sent::WouldBlock),
        Err(errno) => Err(errno),
    }
}

/// The next message of either kind of socket; `None` when the queue is empty.
fn receive(socket: &Descriptor, buffer: &mut [u8]) -> Result<Option<Message>, Errno> {
    let mut control = cmsg::Buffer([0; CONTROL_SPACE]);
    let received = match raw::receive_message(
        socket,
        &mut [],
        &mut [IoSliceMut::new(buffer)],
        &mut control.0,
        libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
    ) {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut message = Message {
        length: received.length,
        descriptors: Vec::new(),
        credentials: None,
        truncated: received.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
    };
    for control in cmsg::iterate(&control.0[..received.control_length]) {
        match (control.level, control.kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let (numbers, _) = control.data.as_chunks::<4>();
                message.descriptors.extend(numbers.iter().map(|number| {
                    // SAFETY: the kernel has just installed this number for us, and this loop is
                    // the only reader of this control message.
                    unsafe { Descriptor::from_received(i32::from_ne_bytes(*number)) }
                }));
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                message.credentials = Credentials::parse(control.data);
            }
            _ => {}
        }
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests;
