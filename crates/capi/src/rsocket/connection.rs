//! Making, connecting and closing.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use rsocket::{Datagram, Error, Family, Service, Stream};

use super::{or_wait_int, read_address, write_address};
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::log;

/// `rsocket`
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    log::start();
    guard::<Number>(|| {
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Err(Errno::unsupported("a family of addresses")),
        };
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let descriptor = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Stream::open(family)?,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Datagram::open(family)?,
            _ => return Err(Errno::unsupported("a type of sockets")),
        };
        rsocket::socket(descriptor)?.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        Ok(descriptor)
    })
}

/// `rbind`
///
/// # Safety
/// `to` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rbind(
    socket: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        // SAFETY: the caller's promise.
        let address = unsafe { read_address(to, length)? }.ok_or(Errno::INVALID)?;
        socket.bind(address)?;
        Ok(0)
    })
}

/// `rlisten`
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rlisten(socket: c_int, backlog: c_int) -> c_int {
    guard::<Number>(|| {
        rsocket::socket(socket)?.stream()?.listen(backlog)?;
        Ok(0)
    })
}

/// The step of `raccept`.
///
/// # Safety
/// `length` is NULL or valid; `peer` is NULL or valid for as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_accept(
    socket: c_int,
    peer: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        let accepted = socket.stream()?.accept();
        let accepted = accepted.map(|(descriptor, remote)| {
            // SAFETY: the caller's promise.
            unsafe { write_address(remote, peer, length) };
            descriptor
        });
        or_wait_int(accepted, !socket.is_nonblocking())
    })
}

/// The first step of `rconnect`.
///
/// # Safety
/// `to` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_connect(
    socket: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        // SAFETY: the caller's promise.
        let address = unsafe { read_address(to, length)? }.ok_or(Errno::INVALID)?;
        let begun = match &socket {
            rsocket::Socket::Stream(stream) => stream.connect(address),
            rsocket::Socket::Datagram(datagram) => datagram.connect(address),
        };
        or_wait_int(begun.map(|()| 0), !socket.is_nonblocking())
    })
}

/// The other steps of `rconnect`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_connected(socket: c_int) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        or_wait_int(socket.stream()?.connected().map(|()| 0), true)
    })
}

/// The step of `rshutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_shutdown(socket: c_int, how: c_int) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::INVALID),
        };
        let shut = match &socket {
            rsocket::Socket::Stream(stream) => stream.shut_down(read, write),
            rsocket::Socket::Datagram(_) => Ok(()),
        };
        or_wait_int(shut.map(|()| 0), true)
    })
}

/// The last step of `rshutdown` and `rclose`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_drain(socket: c_int) -> c_int {
    guard::<Number>(|| {
        let is_drained = rsocket::socket(socket)?.is_drained();
        let drained = if is_drained {
            Ok(0)
        } else {
            Err(Error::WouldBlock)
        };
        or_wait_int(drained, true)
    })
}

/// What `rclose` does when there is nothing more to wait for.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_close(socket: c_int) -> c_int {
    guard::<Number>(|| {
        Service::current()?.remove(socket)?.close();
        Ok(0)
    })
}

/// `rgetsockname`
///
/// # Safety
/// As [`softrdma_rs_accept`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rgetsockname(
    socket: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let address = rsocket::socket(socket)?.local()?;
        // SAFETY: the caller's promise.
        unsafe { write_address(address, to, length) };
        Ok(0)
    })
}

/// `rgetpeername`
///
/// # Safety
/// As [`softrdma_rs_accept`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rgetpeername(
    socket: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let address = rsocket::socket(socket)?.remote()?;
        // SAFETY: the caller's promise.
        unsafe { write_address(address, to, length) };
        Ok(0)
    })
}
