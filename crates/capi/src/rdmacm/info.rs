//! `rdma_getaddrinfo`: names to addresses, as `getaddrinfo` knows them, and what port space and
//! queue pair go with them.

use core::ffi::{c_char, c_int, c_uint};
use core::mem::zeroed;
use core::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use softrdma::cm::PortSpace;

use crate::abi::constants::{IBV_QPT_RC, IBV_QPT_UD};
use crate::abi::rdma_cma::rdma_addrinfo;
use crate::errno::Errno;

/// Flags of `ai_flags`: for a listener, numbers only, and whether a family is given.
const PASSIVE: c_int = 0x1;
const NUMERIC_HOST: c_int = 0x2;
const FAMILY: c_int = 0x8;

/// `rdma_getaddrinfo`: one address. 0, an `EAI_` code, or −1 with `errno`.
///
/// # Safety
/// The texts and `hints` are NULL or valid; `result` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if result.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
            Errno::INVALID.set();
            return -1;
        }
        let asked: rdma_addrinfo = if hints.is_null() {
            zeroed()
        } else {
            hints.read()
        };
        let info = make(&asked);
        if info.is_null() {
            return -1;
        }
        let answer = if node.is_null() && service.is_null() {
            0
        } else {
            look_up(node, service, &asked, info)
        };
        if answer == 0 && copy_source(&asked, info) {
            result.write(info);
            return 0;
        }
        softrdma_rdma_freeaddrinfo(info);
        if answer == 0 { -1 } else { answer }
    }
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

/// An answer without addresses: what the program leaves open follows from what it gives.
fn make(asked: &rdma_addrinfo) -> *mut rdma_addrinfo {
    // SAFETY: plain allocation; zeros are an empty answer.
    let info: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
    if info.is_null() {
        return info;
    }
    let is_datagram = match asked.ai_port_space {
        0 => asked.ai_qp_type as c_uint == IBV_QPT_UD,
        space => space == PortSpace::Udp as c_int || space == PortSpace::IpOverIb as c_int,
    };
    let (space, kind) = if is_datagram {
        (PortSpace::Udp, IBV_QPT_UD)
    } else {
        (PortSpace::Tcp, IBV_QPT_RC)
    };
    let or = |given: c_int, otherwise: c_int| if given == 0 { otherwise } else { given };
    // SAFETY: just allocated.
    unsafe {
        (*info).ai_flags = asked.ai_flags;
        (*info).ai_family = asked.ai_family;
        (*info).ai_qp_type = or(asked.ai_qp_type, kind as c_int);
        (*info).ai_port_space = or(asked.ai_port_space, space as c_int);
    }
    info
}

/// Asks the C library, for the source of a listener and the destination of anybody else.
///
/// # Safety
/// The texts are NULL or valid; `info` is an answer.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    asked: &rdma_addrinfo,
    info: *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: zeros are no hints.
    let mut hints: addrinfo = unsafe { zeroed() };
    let has = |flag| asked.ai_flags & flag != 0;
    for (flag, meaning) in [
        (PASSIVE, libc::AI_PASSIVE),
        (NUMERIC_HOST, libc::AI_NUMERICHOST),
    ] {
        if has(flag) {
            hints.ai_flags |= meaning;
        }
    }
    if has(FAMILY) {
        hints.ai_family = asked.ai_family;
    }
    // one answer for an address, not one for each kind of socket
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut found = ptr::null_mut();
    // SAFETY: the caller's promise; what is found is freed on all ways.
    unsafe {
        let answer = libc::getaddrinfo(node, service, &raw const hints, &raw mut found);
        if answer != 0 {
            return answer;
        }
        (*info).ai_family = (*found).ai_family;
        let address = copy((*found).ai_addr, (*found).ai_addrlen);
        if has(PASSIVE) {
            ((*info).ai_src_addr, (*info).ai_src_len) = (address, (*found).ai_addrlen);
        } else {
            ((*info).ai_dst_addr, (*info).ai_dst_len) = (address, (*found).ai_addrlen);
        }
        libc::freeaddrinfo(found);
        if address.is_null() {
            return libc::EAI_MEMORY;
        }
    }
    0
}

/// Takes over the source that a program gives; false with `errno` without memory.
///
/// # Safety
/// The addresses of `asked` are valid; `info` is an answer.
unsafe fn copy_source(asked: &rdma_addrinfo, info: *mut rdma_addrinfo) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if asked.ai_src_addr.is_null() || !(*info).ai_src_addr.is_null() {
            return true;
        }
        let address = copy(asked.ai_src_addr, asked.ai_src_len);
        ((*info).ai_src_addr, (*info).ai_src_len) = (address, asked.ai_src_len);
        if (*info).ai_family == 0 && !address.is_null() {
            (*info).ai_family = c_int::from((*address).sa_family);
        }
        !address.is_null()
    }
}

/// A copy of an address in memory of its own; NULL with `errno` without any.
///
/// # Safety
/// `from` is valid for `length` bytes.
unsafe fn copy(from: *const sockaddr, length: socklen_t) -> *mut sockaddr {
    let length = length as usize;
    // SAFETY: the caller's promise; an allocation of that size.
    unsafe {
        let to: *mut u8 = libc::malloc(length.max(1)).cast();
        if !to.is_null() {
            ptr::copy_nonoverlapping(from.cast(), to, length);
        }
        to.cast()
    }
}
