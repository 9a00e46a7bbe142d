//! Who waits for connections.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::raw::Descriptor;
use crate::tcp::Stream;
use crate::tcp::socket::{FLAGS, Socket};
use crate::tcp::stream::plain;

/// A port where connections arrive.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Listens at an address; port 0 is any port. `::` takes connections of IPv4 too, unless
    /// `v6_only` says otherwise. Connections that nobody has accepted yet are `backlog` at most, or
    /// what the kernel allows.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` for a low port, `EMFILE`, …
    pub fn listen(address: SocketAddr, v6_only: bool, backlog: u32) -> Result<Self, Errno> {
        let socket = Socket::new(address)?;
        // connections of a former listener that still linger do not matter
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, v6_only)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self { socket })
    }

    /// The TOS or traffic class of its connections to come, as far as it is TCP's to say.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), Errno> {
        self.socket.set_traffic_class(class)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn address(&self) -> Result<SocketAddr, Errno> {
        rustix::net::getsockname(&self.socket)?
            .try_into()
            .map_err(|_| Errno::AFNOSUPPORT)
    }

    /// Takes the next connection, with the peer's address; `None` when there is none.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the connection still waits, so try again later.
    pub fn accept(&self) -> Result<Option<(Stream, SocketAddr)>, Errno> {
        loop {
            let (fd, name) = match rustix::net::acceptfrom_with(&self.socket, FLAGS) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return Ok(None),
                // errors of the network that a new connection has met already: it is no more
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::NOPROTOOPT
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::OPNOTSUPP
                    | Errno::NETUNREACH,
                ) => continue,
                Err(errno) => return Err(errno),
            };
            let name = name.ok_or(Errno::NOTCONN);
            let made = Stream::prepared(Descriptor::from(fd).into())
                .and_then(|stream| Ok((stream, plain(name?.try_into())?)));
            match made {
                Ok(accepted) => return Ok(Some(accepted)),
                // reset before it was looked at
                Err(_) => continue,
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
