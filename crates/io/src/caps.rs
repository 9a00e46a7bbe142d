//! What the kernel can do, asked once. Whatever is missing makes things slower, never wrong.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::raw::{self, Descriptor};

/// Most segments that one send may carry (`UDP_MAX_SEGMENTS`; 129 are `EINVAL`).
pub const MAX_SEGMENTS: usize = 128;

/// Most bytes of UDP payload in one IPv4 datagram, and so in one segmented send.
pub const MAX_PAYLOAD: usize = 65_507;

/// `SO_MEMINFO`: which word is what (`linux/sock_diag.h`).
const MEMINFO_OCCUPIED: usize = 0;
const MEMINFO_GRANTED: usize = 1;
const MEMINFO_DROPS: usize = 8;
const MEMINFO_WORDS: usize = 9;

/// What this kernel and this network namespace offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// One send can be cut into equal datagrams (`UDP_SEGMENT`, Linux 4.18).
    pub segmentation: bool,
    /// Received datagrams can come merged (`UDP_GRO`, Linux 5.0).
    pub merging: bool,
    /// Most segments a send may carry: 1 without segmentation.
    pub max_segments: usize,
    /// IPv6 sockets can be bound here.
    pub ipv6: bool,
    /// A socket tells its occupancy and its drops (`SO_MEMINFO`, Linux 4.12).
    pub memory_info: bool,
}

impl Caps {
    /// The answers, asked at the first call. A process that enters another network namespace keeps
    /// those of its first one; only `ipv6` could differ, and opening a socket tells.
    pub fn of_this_kernel() -> &'static Self {
        static CAPS: OnceLock<Caps> = OnceLock::new();
        CAPS.get_or_init(Self::ask)
    }

    fn ask() -> Self {
        let nothing = Self {
            segmentation: false,
            merging: false,
            max_segments: 1,
            ipv6: ipv6_can_be_bound(),
            memory_info: false,
        };
        let family = if nothing.ipv6 {
            AddressFamily::INET6
        } else {
            AddressFamily::INET
        };
        let Ok(socket) = udp_socket(family) else {
            return nothing;
        };
        let segmentation = raw::set_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1024).is_ok();
        Self {
            segmentation,
            merging: raw::set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok(),
            max_segments: if segmentation { MAX_SEGMENTS } else { 1 },
            ipv6: nothing.ipv6,
            memory_info: socket_memory(&socket).is_ok(),
        }
    }
}

/// What a socket says about its receive memory, in the kernel's *truesize*: a datagram of 20 bytes
/// counts 832, one of 4112 bytes 8448.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMemory {
    /// Bytes that queued datagrams occupy now.
    pub occupied: u32,
    /// Bytes they may occupy.
    pub granted: u32,
    /// Datagrams dropped since the socket was made; wraps.
    pub drops: u32,
}

/// Asks `SO_MEMINFO`.
pub(crate) fn socket_memory(socket: &Descriptor) -> Result<SocketMemory, Errno> {
    let mut bytes = [0; MEMINFO_WORDS * 4];
    let length = raw::read_bytes(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut bytes)?;
    if length < bytes.len() {
        // Linux before 4.12 had no drop counter here.
        return Err(Errno::NOPROTOOPT);
    }
    let (words, _) = bytes.as_chunks::<4>();
    let word = |index: usize| u32::from_ne_bytes(words[index]);
    Ok(SocketMemory {
        occupied: word(MEMINFO_OCCUPIED),
        granted: word(MEMINFO_GRANTED),
        drops: word(MEMINFO_DROPS),
    })
}

/// A UDP socket, closed on exec, in blocking mode (`O_NONBLOCK` is shared by passed descriptors).
pub(crate) fn udp_socket(family: AddressFamily) -> Result<Descriptor, Errno> {
    rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map(Descriptor::from)
}

fn ipv6_can_be_bound() -> bool {
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
    udp_socket(AddressFamily::INET6).is_ok_and(|socket| rustix::net::bind(&socket, &any).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_agree_with_each_other() {
        let caps = Caps::of_this_kernel();
        assert_eq!(caps.max_segments > 1, caps.segmentation);
        assert_eq!(*caps, Caps::ask(), "asked again, the same answers");
    }

    #[test]
    fn a_fresh_socket_is_empty() {
        if !Caps::of_this_kernel().memory_info {
            println!("skipped: this kernel has no SO_MEMINFO");
            return;
        }
        let socket = udp_socket(AddressFamily::INET).expect("IPv4 exists");
        let memory = socket_memory(&socket).expect("asked by Caps before");
        assert_eq!((memory.occupied, memory.drops), (0, 0));
        assert!(memory.granted > 0);
    }
}
