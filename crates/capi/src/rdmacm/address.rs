//! Socket addresses between C and Rust.

use core::mem::zeroed;
use core::ptr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::Errno;

/// `AF_IB` of the kernel: addresses that are GIDs with a service ID.
pub const AF_IB: i32 = 27;

/// The address behind a pointer. ENODEV for `AF_IB`: as in the kernel, only InfiniBand has devices
/// with such addresses. EINVAL for other families.
///
/// # Safety
/// `from` is NULL or valid for an address of its family.
pub unsafe fn read(from: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise: the family says how much there is.
    match i32::from(unsafe { (*from).sa_family }) {
        AF_INET => {
            // SAFETY: as above.
            let v4 = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
            let address = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(Some((address, u16::from_be(v4.sin_port)).into()))
        }
        AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
            let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(Some(
                SocketAddrV6::new(address, port, 0, v6.sin6_scope_id).into(),
            ))
        }
        AF_IB => Err(Errno(libc::ENODEV)),
        _ => Err(Errno::INVALID),
    }
}

/// The address as C has it.
pub fn storage(from: SocketAddr) -> sockaddr_storage {
    // SAFETY: plain numbers.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let to = &raw mut storage;
    match from {
        SocketAddr::V4(v4) => {
            // SAFETY: plain numbers.
            let mut raw: sockaddr_in = unsafe { zeroed() };
            raw.sin_family = AF_INET as u16;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            // SAFETY: a storage holds every kind of address, and is aligned for it.
            unsafe { to.cast::<sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(v6) => {
            // SAFETY: plain numbers.
            let mut raw: sockaddr_in6 = unsafe { zeroed() };
            raw.sin6_family = AF_INET6 as u16;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_scope_id = v6.scope_id();
            // SAFETY: as above.
            unsafe { ptr::write(to.cast(), raw) };
        }
    }
    storage
}

/// The port in an address of C, in network byte order; 0 of other families.
pub fn port(of: &sockaddr_storage) -> u16 {
    // SAFETY: a storage holds an address of its family, or zeros.
    let address = unsafe { read((&raw const *of).cast()) };
    address
        .ok()
        .flatten()
        .map_or(0, |address| address.port().to_be())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way() {
        for text in ["10.0.0.1:7471", "[fe80::1%7]:7471", "[::1]:1"] {
            let address: SocketAddr = text.parse().expect("a literal of this test");
            let storage = storage(address);
            // SAFETY: made on the line above.
            let back = unsafe { read((&raw const storage).cast()) };
            assert_eq!(back, Ok(Some(address)));
            assert_eq!(u16::from_be(port(&storage)), address.port());
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: plain numbers.
        let mut storage: sockaddr_storage = unsafe { zeroed() };
        for (family, errno) in [(libc::AF_UNIX, libc::EINVAL), (AF_IB, libc::ENODEV)] {
            storage.ss_family = family as u16;
            // SAFETY: a storage is larger than any address.
            let address = unsafe { read((&raw const storage).cast()) };
            assert_eq!(address, Err(Errno(errno)));
        }
    }
}
