//! UDP and TCP at full use of the kernel, descriptors, netlink; knows nothing of RDMA.
//!
//! | module | what it wraps |
//! |---|---|
//! | [`caps`] | what this kernel can do, asked once |
//! | [`udp`] | one port for many processes ([`udp::Group`]), receiving with GRO, sending with GSO |
//! | [`tcp`] | connections that never block, many pieces in one send |
//! | [`poll`] | epoll with one-shot arming, eventfd, pidfd, timer slack |
//! | [`fdpass`] | unix sockets on abstract names, descriptors and credentials |
//! | [`inherit`] | what programs that are started from here inherit |
//! | [`namespace`] | namespaces for a process and what it starts |
//! | [`netlink`] | interfaces, their addresses, changes of both; neighbours |
//! | [`shared`] | memory that processes share, as atomic words |
//! | [`memory`] | memory that may not be there |
//! | [`fork`] | what a forked child must not inherit |
//! | [`thread`] | threads that a program does not notice |
//! | [`clock`] | monotonic nanoseconds |
//!
//! The one idea: this code runs inside other people's programs. Everything is `CLOEXEC`,
//! non-blocking by `MSG_DONTWAIT` (the `O_NONBLOCK` flag is shared by passed descriptors), and
//! every system call is made directly: programs preload wrappers around libc's socket functions,
//! and these must not see our sockets. For the same reason descriptors are [`Descriptor`]s, which
//! are closed directly too.
//!
//! "Would block" and "the kernel refuses segmentation" are outcomes ([`udp::SendOutcome`],
//! [`tcp::Sending`]), not errors.

mod address;
mod cmsg;
mod raw;
#[cfg(test)]
mod testing;

pub mod caps;
pub mod clock;
pub mod fdpass;
pub mod fork;
pub mod inherit;
pub mod memory;
pub mod namespace;
pub mod netlink;
pub mod poll;
pub mod shared;
pub mod tcp;
pub mod thread;
pub mod udp;

pub use caps::Caps;
pub use raw::{Descriptor, move_high};
pub use rustix::io::Errno;
