//! The steps of rsockets, under names of our own (`softrdma_rs_<name>`): none of them waits. What
//! librdmacm jumps to is in `shim/rsocket.c`, which tries a step, and sleeps while the answer is
//! `WAIT`; what never waits is here as a whole (`softrdma_r<name>`).

mod connection;
mod data;
mod options;
mod poll;

use core::ffi::c_int;

use libc::{MSG_DONTWAIT, MSG_PEEK, sockaddr, socklen_t};
use rsocket::{Error, Mode, Socket};

use crate::errno::Errno;
use crate::rdmacm::address;

/// The answer of a step that has to be tried again later.
const WAIT: isize = -2;

/// A result of a step; [`WAIT`] instead of "not now" if the call may wait.
fn or_wait(result: Result<usize, Error>, may_wait: bool) -> Result<isize, Errno> {
    match result {
        // a program cannot ask for more than it has memory
        Ok(count) => Ok(count as isize),
        Err(Error::WouldBlock | Error::InProgress) if may_wait => Ok(WAIT),
        Err(error) => Err(error.into()),
    }
}

/// The same for a step whose result is a small number.
fn or_wait_int(result: Result<c_int, Error>, may_wait: bool) -> Result<c_int, Errno> {
    match result {
        Err(Error::WouldBlock | Error::InProgress) if may_wait => Ok(WAIT as c_int),
        other => Ok(other?),
    }
}

/// What the flags of a call say, and whether it may wait.
fn mode(socket: &Socket, flags: c_int) -> (Mode, bool) {
    let mode = Mode {
        never_waits: flags & MSG_DONTWAIT != 0,
        peek: flags & MSG_PEEK != 0,
    };
    (mode, !mode.never_waits && !socket.is_nonblocking())
}

/// Writes an address as the socket calls do: as much as there is room for, and how long it is.
///
/// # Safety
/// `length` is NULL or valid; `to` is NULL or valid for as many bytes as it says.
unsafe fn write_address(from: std::net::SocketAddr, to: *mut sockaddr, length: *mut socklen_t) {
    if length.is_null() {
        return;
    }
    let storage = address::storage(from);
    let size = if from.is_ipv4() {
        size_of::<libc::sockaddr_in>()
    } else {
        size_of::<libc::sockaddr_in6>()
    };
    // SAFETY: the caller's promise; a storage is larger than any address.
    unsafe {
        if !to.is_null() {
            let room = size.min(length.read() as usize);
            core::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), room);
        }
        length.write(size as socklen_t);
    }
}

/// An address that a program gives with its length; `None` for NULL.
///
/// # Safety
/// `from` is NULL or valid for `length` bytes.
unsafe fn read_address(
    from: *const sockaddr,
    length: socklen_t,
) -> Result<Option<std::net::SocketAddr>, Errno> {
    if from.is_null() {
        return Ok(None);
    }
    let least = |family| match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        // refused by its family
        _ => size_of::<libc::sa_family_t>(),
    };
    let length = length as usize;
    // SAFETY: the caller's promise, and enough bytes of the family before more are read.
    unsafe {
        if length < size_of::<libc::sa_family_t>() || length < least(i32::from((*from).sa_family)) {
            return Err(Errno::INVALID);
        }
        address::read(from)
    }
}
