//! What connections and listeners have in common: the descriptor.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::fork::ClosedInChild;
use crate::raw::{self, Descriptor, move_high};

/// Ours alone, so the flag on the open file does: these are never passed to another process.
pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A socket at a high descriptor number, which forked children do not have.
#[derive(Debug)]
pub(super) struct Socket {
    /// Dropped before the descriptor is.
    _inherited: ClosedInChild,
    descriptor: Descriptor,
}

impl Socket {
    /// A new one, of the family of `address`.
    pub fn new(address: SocketAddr) -> Result<Self, Errno> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let tcp = Some(ipproto::TCP);
        let socket = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, tcp)?;
        Ok(Descriptor::from(socket).into())
    }

    /// The TOS or traffic class of what is sent; TCP keeps the last two bits for itself.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), Errno> {
        let class = class.into();
        if sockopt::socket_domain(self)? == AddressFamily::INET6 {
            raw::set_int(self, libc::SOL_IPV6, libc::IPV6_TCLASS, class)?;
        }
        // one of IPv6 may carry IPv4
        raw::set_int(self, libc::SOL_IP, libc::IP_TOS, class)
    }
}

impl From<Descriptor> for Socket {
    fn from(descriptor: Descriptor) -> Self {
        let descriptor = move_high(descriptor);
        Self {
            _inherited: ClosedInChild::new(descriptor.as_fd()),
            descriptor,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}
