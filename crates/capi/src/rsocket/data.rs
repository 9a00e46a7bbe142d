//! Sending and receiving.

use core::ffi::{c_int, c_void};

use libc::{PROT_NONE, PROT_WRITE, off_t, size_t, sockaddr, socklen_t, ssize_t};
use rsocket::{Error, Socket};
use softrdma::{Access, ProgramBytes, ProgramBytesMut};

use super::{mode, or_wait, read_address, write_address};
use crate::errno::Errno;
use crate::guard::{Number, Size, guard};

/// The step of all calls that receive.
///
/// # Safety
/// What is mapped at `to` may be written; the address as in `softrdma_rs_accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_receive(
    socket: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    source: *mut sockaddr,
    source_length: *mut socklen_t,
) -> ssize_t {
    guard::<Size>(|| {
        let socket = rsocket::socket(socket)?;
        let (mode, may_wait) = mode(&socket, flags);
        // SAFETY: the caller's promise.
        let bytes = unsafe { ProgramBytesMut::at(to as u64, length) };
        let received = match &socket {
            Socket::Stream(stream) => stream
                .receive(bytes, mode)
                .map(|count| (count, stream.remote())),
            Socket::Datagram(datagram) => datagram.receive(bytes, mode),
        };
        let received = received.map(|(count, from)| {
            if !source.is_null() {
                // SAFETY: the caller's promise.
                unsafe { write_address(from, source, source_length) };
            }
            count
        });
        or_wait(received, may_wait)
    })
}

/// The step of all calls that send.
///
/// # Safety
/// `to` is NULL or valid for `to_length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_send(
    socket: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    guard::<Size>(|| {
        let socket = rsocket::socket(socket)?;
        let (mode, may_wait) = mode(&socket, flags);
        // SAFETY: the caller's promise.
        let to = unsafe { read_address(to, to_length)? };
        let bytes = ProgramBytes::at(from as u64, length);
        let sent = match &socket {
            Socket::Stream(_) if to.is_some() => Err(Error::Connected),
            Socket::Stream(stream) => stream.send(bytes, mode),
            Socket::Datagram(datagram) => datagram.send(bytes, to, mode),
        };
        or_wait(sent, may_wait)
    })
}

/// The step of `riowrite`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_write_mapped(
    socket: c_int,
    from: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    guard::<Size>(|| {
        let socket = rsocket::socket(socket)?;
        let (mode, may_wait) = mode(&socket, flags);
        let bytes = ProgramBytes::at(from as u64, length);
        let written = socket.stream()?.write_mapped(bytes, offset as u64, mode);
        or_wait(written, may_wait)
    })
}

/// `riomap`: the offset, or −1 with `errno`.
///
/// # Safety
/// With `PROT_WRITE` the peer may write what is mapped at `memory` until it is unmapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_riomap(
    socket: c_int,
    memory: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = guard::<Size>(|| {
        let socket = rsocket::socket(socket)?;
        let stream = socket.stream()?;
        if protection & !(PROT_WRITE | PROT_NONE) != 0 {
            return Err(Errno::INVALID);
        }
        let is_for_peer = protection & PROT_WRITE != 0;
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_WRITE, is_for_peer);
        let address = memory as u64;
        let domain = stream.domain().map_err(|_| Errno::INVALID)?;
        // SAFETY: the caller's promise.
        let region = unsafe { domain.register_raw(address, length as u64, address, access) }?;
        let offset = if offset == -1 { address } else { offset as u64 };
        stream.map(region, offset, is_for_peer)?;
        Ok(offset as isize)
    });
    mapped as off_t
}

/// `riounmap`
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_riounmap(socket: c_int, memory: *mut c_void, length: size_t) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        socket.stream()?.unmap(memory as u64, length as u64)?;
        Ok(0)
    })
}
