//! Shared receive queues.

use core::ffi::c_int;
use std::sync::Arc;

use softrdma::{EventQueue, SharedReceiveQueue};

use super::{context, domain, post};
use crate::abi::constants::{IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR};
use crate::abi::verbs::{ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, guard};
use crate::object::{self, Public};

/// What is behind an `ibv_srq`.
pub struct SharedReceives {
    pub(super) queue: SharedReceiveQueue,
    /// For acknowledging its events.
    pub(super) events: Arc<EventQueue>,
}

impl Public for ibv_srq {
    type Whole = Self;
    type Private = SharedReceives;
}

/// `ibv_create_srq`, which `ibv_create_srq_ex` calls for the basic type, the only one there is. The
/// sizes granted are written back; a limit is not taken, as its manual page says.
///
/// # Safety
/// `pd` is NULL or allocated; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    guard::<Pointer<ibv_srq>>(|| {
        // SAFETY: the caller's promise.
        let (domain, context) = unsafe { (domain::domain(pd)?, domain::context_of(pd)) };
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let asked = unsafe { attributes.read() };
        let queue = domain.shared_receive_queue(asked.attr.max_wr, asked.attr.max_sge)?;
        let public = ibv_srq {
            context,
            srq_context: asked.srq_context,
            pd,
            handle: domain::next_handle(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        // SAFETY: the caller's promise.
        let events = unsafe {
            (*attributes).attr.max_wr = queue.attributes().wr_max;
            (*attributes).attr.max_sge = queue.attributes().sge_max;
            Arc::clone(context::device(context)?.events())
        };
        let srq = object::publish::<ibv_srq>(public, SharedReceives { queue, events });
        // SAFETY: made on the line above.
        unsafe { object::private(srq)? }
            .queue
            .set_cookie(srq as u64);
        Ok(srq)
    })
}

/// `ibv_modify_srq`: the size, the limit that raises an event, or both.
///
/// # Safety
/// `srq` is NULL or a shared receive queue; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { &object::private(srq)?.queue };
        if attributes.is_null() || mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let asked = unsafe { attributes.read() };
        let has = |bit, value| (mask & bit != 0).then_some(value);
        queue.modify(
            has(IBV_SRQ_MAX_WR, asked.max_wr),
            has(IBV_SRQ_LIMIT, asked.srq_limit),
        )?;
        Ok(())
    })
}

/// `ibv_query_srq`.
///
/// # Safety
/// `srq` is NULL or a shared receive queue; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { &object::private(srq)?.queue };
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        let now = queue.attributes();
        // SAFETY: the caller's promise.
        unsafe {
            attributes.write(ibv_srq_attr {
                max_wr: now.wr_max,
                max_sge: now.sge_max,
                srq_limit: now.limit,
            });
        }
        Ok(())
    })
}

/// `ibv_destroy_srq`: EBUSY while queue pairs use it; what was posted vanishes; waits until the
/// events that the program got are acknowledged.
///
/// # Safety
/// `srq` is NULL or a shared receive queue, and not used any more if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            object::private(srq)?.queue.close()?;
            object::withdraw(srq, || ())
        }
    })
}

/// The slot behind `ibv_post_srq_recv`: posts the list up to the first that is refused.
///
/// # Safety
/// `srq` is NULL or a shared receive queue, `wr` is NULL or a list of valid work requests, `bad_wr`
/// is NULL or valid for a write.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        post::receives(wr, bad_wr, |id, sges| {
            object::private(srq)?.queue.post(id, sges)?;
            Ok(())
        })
    }
}
