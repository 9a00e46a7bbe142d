//! `rdma_getaddrinfo`: names to addresses, as `getaddrinfo` knows them, and what port space and
//! queue pair go with them.
//!
//! Looking names up can take long and be cancelled: `shim/blocking.c` does it, between the two
//! functions here that say what to look for and what was found.

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;
use core::ptr;
use core::sync::atomic::Ordering;

use libc::{addrinfo, sockaddr, socklen_t};
use softrdma::cm::{EventKind, PortSpace};

use super::address::AF_IB;
use super::id::own;
use crate::abi::constants::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
};
use crate::abi::rdma_cma::{rdma_addrinfo, rdma_cm_id};
use crate::errno::Errno;
use crate::guard::{Number, guard};

/// Flags of `ai_flags`: for a listener, numbers only, and InfiniBand's directory.
const PASSIVE: c_int = 0x1;
const NUMERIC_HOST: c_int = 0x2;
const SUBNET_ADMINISTRATION: c_int = 0x10;

/// What to look for. 0; or an `EAI_` code, for what RoCE does not have.
///
/// # Safety
/// `asked` is NULL or valid; `hints` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_addrinfo_hints(
    asked: *const rdma_addrinfo,
    hints: *mut addrinfo,
) -> c_int {
    // SAFETY: the caller's promise; zeros are no hints.
    unsafe {
        let asked = if asked.is_null() {
            zeroed()
        } else {
            asked.read()
        };
        if asked.ai_family == AF_IB {
            return libc::EAI_FAMILY;
        }
        hints.write(lookup(&asked));
    }
    0
}

/// The answer made of what was found: the first of it. 0, or −1 with `errno`.
///
/// # Safety
/// `asked` is NULL or valid; `found` is NULL, if nothing was looked for, or from `getaddrinfo`;
/// `to` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_addrinfo(
    asked: *const rdma_addrinfo,
    found: *const addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise; zeros are no hints, and an empty answer.
        unsafe {
            let asked: rdma_addrinfo = if asked.is_null() {
                zeroed()
            } else {
                asked.read()
            };
            if asked.ai_flags & SUBNET_ADMINISTRATION != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            let info: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
            if info.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            let filled = if found.is_null() {
                repeat(&asked, info)
            } else {
                translate(&asked, &found.read(), info)
            };
            let filled = filled.and_then(|()| {
                if (*info).ai_src_len != 0 {
                    return Ok(());
                }
                (*info).ai_src_len = asked.ai_src_len;
                copy(
                    asked.ai_src_addr,
                    asked.ai_src_len,
                    &raw mut (*info).ai_src_addr,
                )
            });
            if let Err(errno) = filled {
                softrdma_rdma_freeaddrinfo(info);
                return Err(errno);
            }
            to.write(info);
        }
        Ok(0)
    })
}

/// What `rdma_resolve_addrinfo` does before it looks names up.
///
/// # Safety
/// `id` is NULL or an ID; `asked` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_begin_addrinfo(
    id: *mut rdma_cm_id,
    asked: *const rdma_addrinfo,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if !asked.is_null() && (*asked).ai_flags & SUBNET_ADMINISTRATION != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            if !part.names.load(Ordering::Acquire).is_null() {
                return Err(Errno(libc::EBUSY));
            }
        }
        Ok(0)
    })
}

/// The other half: keeps what was found, and queues the event that says so.
///
/// # Safety
/// `id` is an ID; `info` is from `rdma_getaddrinfo`, and the ID's from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_end_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            let none = ptr::null_mut();
            let kept = part
                .names
                .compare_exchange(none, info, Ordering::AcqRel, Ordering::Acquire);
            if kept.is_err() {
                softrdma_rdma_freeaddrinfo(info);
                return Err(Errno(libc::EBUSY));
            }
            part.id.tell(EventKind::AddressInfoResolved, 0, 0)?;
        }
        Ok(0)
    })
}

/// `rdma_query_addrinfo`: hands out what `rdma_resolve_addrinfo` found, once.
///
/// # Safety
/// `id` is NULL or an ID; `to` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if to.is_null() {
                return Err(Errno::INVALID);
            }
            let info = part.names.swap(ptr::null_mut(), Ordering::AcqRel);
            if info.is_null() {
                return Err(Errno(libc::ENOENT));
            }
            to.write(info);
        }
        Ok(0)
    })
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// `info` is NULL or from `rdma_getaddrinfo`, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_freeaddrinfo(mut info: *mut rdma_addrinfo) {
    while !info.is_null() {
        // SAFETY: the caller's promise: all parts are allocations of their own, or NULL.
        unsafe {
            let next = (*info).ai_next;
            libc::free((*info).ai_src_addr.cast());
            libc::free((*info).ai_dst_addr.cast());
            libc::free((*info).ai_src_canonname.cast());
            libc::free((*info).ai_dst_canonname.cast());
            libc::free((*info).ai_route);
            libc::free((*info).ai_connect);
            libc::free(info.cast());
            info = next;
        }
    }
}

/// The same question to the C library. A queue pair is like a kind of socket, a port space like a
/// protocol.
fn lookup(asked: &rdma_addrinfo) -> addrinfo {
    // SAFETY: zeros are no hints.
    let mut hints: addrinfo = unsafe { zeroed() };
    for (flag, meaning) in [
        (PASSIVE, libc::AI_PASSIVE),
        (NUMERIC_HOST, libc::AI_NUMERICHOST),
    ] {
        if asked.ai_flags & flag != 0 {
            hints.ai_flags |= meaning;
        }
    }
    hints.ai_family = asked.ai_family;
    hints.ai_socktype = match asked.ai_qp_type as c_uint {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    let space = u16::try_from(asked.ai_port_space).ok();
    hints.ai_protocol = match space.and_then(PortSpace::from_code) {
        Some(PortSpace::Tcp) => libc::IPPROTO_TCP,
        Some(PortSpace::Udp | PortSpace::IpOverIb) => libc::IPPROTO_UDP,
        Some(PortSpace::Ib) | None => 0,
    };
    hints
}

/// An answer that says what was found; what the program leaves open follows from it.
///
/// # Safety
/// `found` is an entry of `getaddrinfo`; `info` is an empty answer.
unsafe fn translate(
    asked: &rdma_addrinfo,
    found: &addrinfo,
    info: *mut rdma_addrinfo,
) -> Result<(), Errno> {
    let is_datagram = found.ai_socktype == libc::SOCK_DGRAM;
    let (space, kind) = if is_datagram {
        (PortSpace::Udp, IBV_QPT_UD)
    } else {
        (PortSpace::Tcp, IBV_QPT_RC)
    };
    let or = |given: c_int, otherwise: c_int| if given == 0 { otherwise } else { given };
    // SAFETY: the caller's promise.
    unsafe {
        (*info).ai_flags = asked.ai_flags & PASSIVE;
        (*info).ai_family = found.ai_family;
        (*info).ai_qp_type = or(asked.ai_qp_type, kind as c_int);
        (*info).ai_port_space = or(asked.ai_port_space, space as c_int);
        let length = found.ai_addrlen;
        if asked.ai_flags & PASSIVE != 0 {
            (*info).ai_src_len = length;
            copy(found.ai_addr, length, &raw mut (*info).ai_src_addr)
        } else {
            (*info).ai_dst_len = length;
            copy(found.ai_addr, length, &raw mut (*info).ai_dst_addr)
        }
    }
}

/// An answer that says what was asked: there are no names to look up.
///
/// # Safety
/// The address in `asked` is valid; `info` is an empty answer.
unsafe fn repeat(asked: &rdma_addrinfo, info: *mut rdma_addrinfo) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        (*info).ai_flags = asked.ai_flags;
        (*info).ai_family = asked.ai_family;
        (*info).ai_qp_type = asked.ai_qp_type;
        (*info).ai_port_space = asked.ai_port_space;
        (*info).ai_dst_len = asked.ai_dst_len;
        copy(
            asked.ai_dst_addr,
            asked.ai_dst_len,
            &raw mut (*info).ai_dst_addr,
        )
    }
}

/// Copies an address, if there is one, into memory of its own.
///
/// # Safety
/// `from` is NULL or valid for `length` bytes; `to` is valid for a write.
unsafe fn copy(
    from: *const sockaddr,
    length: socklen_t,
    to: *mut *mut sockaddr,
) -> Result<(), Errno> {
    let length = length as usize;
    if from.is_null() || length == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise; an allocation of that size.
    unsafe {
        let memory: *mut u8 = libc::malloc(length).cast();
        if memory.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        ptr::copy_nonoverlapping(from.cast(), memory, length);
        to.write(memory.cast());
    }
    Ok(())
}
