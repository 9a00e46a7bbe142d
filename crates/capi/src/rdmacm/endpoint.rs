//! Endpoints: IDs that are made in one call, of what `rdma_getaddrinfo` says, and whose calls wait.
//!
//! The waiting itself is in `shim/blocking.c`; here is what comes before and after it.

use core::ffi::{c_int, c_uint};
use core::ptr;

use softrdma::cm::EventKind;

use super::channel::verdict;
use super::id::{self, Traits, own, port_space};
use super::{pair, srq};
use crate::abi::rdma_cma::{rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::abi::verbs::{ibv_pd, ibv_qp_init_attr};
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::log;

/// `ai_flags`: of a listener.
const PASSIVE: c_int = 0x1;
/// How long the destination's host is looked for, as in `librdmacm`.
const PATIENCE_MS: c_int = 2000;

/// The first part of `rdma_create_ep`: an ID. Gives 1 if it is complete, as one that is to listen
/// is once it is bound, else 0.
///
/// # Safety
/// `to` is NULL or valid for a write; `info` is NULL or from `rdma_getaddrinfo`; `pd` is NULL or
/// allocated; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_begin_endpoint(
    to: *mut *mut rdma_cm_id,
    info: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: *const ibv_qp_init_attr,
) -> c_int {
    log::start();
    guard::<Number>(|| {
        if to.is_null() || info.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let info = info.read();
            let traits = Traits {
                space: port_space(info.ai_port_space as c_uint)?,
                qp_type: info.ai_qp_type as c_uint,
                context: ptr::null_mut(),
            };
            let made = id::create(ptr::null_mut(), &traits)?;
            if info.ai_flags & PASSIVE == 0 {
                to.write(made);
                return Ok(0);
            }
            if id::softrdma_rdma_bind_addr(made, info.ai_src_addr) != 0 {
                let errno = Errno::last();
                id::softrdma_rdma_destroy_id(made);
                return Err(errno);
            }
            if !pd.is_null() {
                (*made).pd = pd;
            }
            if !attributes.is_null() {
                let mut template = attributes.read();
                template.qp_type = traits.qp_type;
                // an ID that was just made has none
                let _ = own(made)?.template.set(template);
            }
            to.write(made);
        }
        Ok(1)
    })
}

/// The second part: begins to resolve the addresses. Then the route is resolved.
///
/// # Safety
/// `id` is an ID; `info` is from `rdma_getaddrinfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_resolve_endpoint(
    id: *mut rdma_cm_id,
    info: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (source, destination) = ((*info).ai_src_addr, (*info).ai_dst_addr);
        id::softrdma_cm_resolve_addr(id, source, destination, PATIENCE_MS)
    }
}

/// The last part: a queue pair, if the program wants one.
///
/// # Safety
/// As for [`softrdma_cm_begin_endpoint`]; `id` is an ID whose route is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_equip_endpoint(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> c_int {
    if attributes.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe {
        (*attributes).qp_type = (*id).qp_type;
        pair::softrdma_rdma_create_qp(id, pd, attributes)
    }
}

/// `rdma_destroy_ep`: the ID with its queue pair and shared receive queue.
///
/// # Safety
/// `id` is NULL or an ID, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise. What is NULL is refused without harm.
    unsafe {
        pair::softrdma_rdma_destroy_qp(id);
        srq::softrdma_rdma_destroy_srq(id);
        id::softrdma_rdma_destroy_id(id);
    }
}

/// The second part of `rdma_get_request`: takes the request out of the event that was waited for,
/// and gives it a queue pair if the listener is to do so. An event that is none stays with the
/// listener.
///
/// # Safety
/// `listener` is an ID with a channel of its own; `event` was fetched from it; `to` is valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_take_request(
    listener: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
    to: *mut *mut rdma_cm_id,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise; the fields are the library's to write.
        unsafe {
            let taken = request_of(listener, event);
            match taken {
                Ok(id) => {
                    (*id).event = event;
                    to.write(id);
                    Ok(0)
                }
                Err(errno) => {
                    (*listener).event = event;
                    Err(errno)
                }
            }
        }
    })
}

/// # Safety
/// As for [`softrdma_cm_take_request`].
unsafe fn request_of(
    listener: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        verdict(event)?;
        if (*event).event != EventKind::ConnectRequest as c_uint {
            return Err(Errno::INVALID);
        }
        let id = (*event).id;
        if let Some(template) = own(listener)?.template.get() {
            let mut attributes = *template;
            if pair::softrdma_rdma_create_qp(id, (*listener).pd, &raw mut attributes) != 0 {
                let errno = Errno::last();
                // nobody else knows it: the peer is refused
                (*event).id = ptr::null_mut();
                id::softrdma_rdma_destroy_id(id);
                return Err(errno);
            }
        }
        Ok(id)
    }
}
