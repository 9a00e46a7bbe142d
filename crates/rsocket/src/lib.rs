//! Rsockets: the interface of sockets over verbs, wire-compatible with librdmacm's.
//!
//! Read first: `docs/rsocket` of rdma-core for the protocol, [`wire::rsocket`] for its words. A
//! stream is a reliable connection: the sender writes into the peer's receive buffer, and a word
//! of immediate data says how much. A datagram socket is a UDP socket, by which queue pairs find
//! each other, and unreliable-datagram queue pairs, between which datagrams go from then on.
//!
//! | module | what |
//! |---|---|
//! | [`service`] | the table of a process, its devices, its thread |
//! | [`stream`] | what a program asks of a stream |
//! | [`connect`] | how it gets its connection |
//! | [`endpoint`] | its data path |
//! | [`credit`] | windows of both directions, without a device |
//! | [`iomap`] | memory that the peer writes directly |
//! | [`datagram`] | datagram sockets |
//! | [`options`], [`settings`] | options; sizes and their defaults |
//! | [`wait`] | what a thread sleeps on |
//!
//! No call here waits: [`Error::WouldBlock`] says that there is something to wait for, and
//! [`Waiter`] on what. Whoever calls decides, as C's calls are to be cancelled while they wait.
#![forbid(unsafe_code)]

pub mod connect;
pub mod credit;
pub mod datagram;
pub mod endpoint;
mod error;
pub mod iomap;
pub mod options;
pub mod service;
pub mod settings;
pub mod stream;
pub mod wait;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use datagram::Datagram;
pub use endpoint::Readiness;
pub use error::{Error, Result};
pub use options::Flag;
pub use service::{Service, socket};
pub use settings::Settings;
pub use stream::{Family, Mode, Stream};
pub use wait::{Purpose, Waiter};

/// An rsocket of either kind. Clones are the same rsocket.
#[derive(Clone)]
pub enum Socket {
    /// `SOCK_STREAM`
    Stream(Arc<Stream>),
    /// `SOCK_DGRAM`
    Datagram(Arc<Datagram>),
}

impl Socket {
    /// The descriptor that the program knows it by.
    pub fn descriptor(&self) -> RawFd {
        match self {
            Self::Stream(stream) => stream.descriptor(),
            Self::Datagram(datagram) => datagram.descriptor(),
        }
    }

    /// The stream, or what a call that only streams have answers.
    ///
    /// # Errors
    /// [`Error::Unsupported`]
    pub fn stream(&self) -> Result<&Arc<Stream>> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) => Err(Error::Unsupported("this call on datagrams")),
        }
    }

    /// Whether calls return at once.
    pub fn is_nonblocking(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_nonblocking(),
            Self::Datagram(datagram) => datagram.is_nonblocking(),
        }
    }

    /// `O_NONBLOCK`
    pub fn set_nonblocking(&self, is: bool) {
        match self {
            Self::Stream(stream) => stream.set_nonblocking(is),
            Self::Datagram(datagram) => datagram.set_nonblocking(is),
        }
    }

    /// Gives it an address.
    ///
    /// # Errors
    /// Those of the device, or of the UDP socket.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.bind(address),
            Self::Datagram(datagram) => datagram.bind(address),
        }
    }

    /// The own address.
    ///
    /// # Errors
    /// Those of the UDP socket.
    pub fn local(&self) -> Result<SocketAddr> {
        match self {
            Self::Stream(stream) => Ok(stream.local()),
            Self::Datagram(datagram) => datagram.local(),
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// [`Error::NotConnected`], of datagrams.
    pub fn remote(&self) -> Result<SocketAddr> {
        match self {
            Self::Stream(stream) => Ok(stream.remote()),
            Self::Datagram(datagram) => datagram.remote(),
        }
    }

    /// What it is ready for now.
    pub fn readiness(&self, read: bool, write: bool) -> Readiness {
        match self {
            Self::Stream(stream) => stream.readiness(read, write),
            Self::Datagram(datagram) => datagram.readiness(read, write),
        }
    }

    /// Whether its connection is being made.
    pub fn is_connecting(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_connecting(),
            Self::Datagram(_) => false,
        }
    }

    /// Whether all that was sent has left, or never will.
    pub fn is_drained(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_drained(),
            Self::Datagram(datagram) => datagram.is_drained(),
        }
    }

    /// The program is done with it.
    pub fn close(&self) {
        match self {
            Self::Stream(stream) => stream.close(),
            Self::Datagram(datagram) => datagram.close(),
        }
    }

    fn arm(&self) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.arm(),
            Self::Datagram(datagram) => datagram.arm(),
        }
    }

    fn waiters(&self) -> &wait::Waiters {
        match self {
            Self::Stream(stream) => &stream.waiters,
            Self::Datagram(datagram) => datagram.waiters(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(one), Self::Stream(two)) => Arc::ptr_eq(one, two),
            (Self::Datagram(one), Self::Datagram(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}
