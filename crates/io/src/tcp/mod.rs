//! TCP for many connections in one thread: nothing blocks, one system call sends many pieces.
//!
//! What a protocol above needs to know: a [`Stream`] takes less than it is given when it is full,
//! and says with [`Sending::Full`] that it takes nothing. A peer that is gone shows as an end, as
//! an error, or, after one and a half minutes, as one that no longer answers. A stream that
//! is dropped is closed in order; [`Stream::reset`] tells the peer that what it sent was not read.

mod listen;
mod stream;
#[cfg(test)]
mod tests;

pub use listen::Listener;
pub use stream::{Gather, PARTS_MAX, Part, Receiving, Sending, Stream};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use crate::raw::{Descriptor, move_high};

/// Ours alone, so the flag on the open file does: these are never passed to another process.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A socket of the family of `address`, at a high descriptor number.
fn socket(address: std::net::SocketAddr) -> Result<Descriptor, Errno> {
    let family = match address {
        std::net::SocketAddr::V4(_) => AddressFamily::INET,
        std::net::SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP))?;
    Ok(move_high(socket.into()))
}
