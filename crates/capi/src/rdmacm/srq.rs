//! The shared receive queue of an ID, which its queue pair takes its receives from.

use core::ffi::c_int;
use core::ptr;

use super::id::own;
use crate::abi::constants::{IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC};
use crate::abi::rdma_cma::rdma_cm_id;
use crate::abi::verbs::{ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::verbs::srq;

/// `rdma_create_srq`: in the ID's protection domain if the program gives none.
///
/// # Safety
/// `id` is NULL or an ID; `pd` is NULL or allocated; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Number>(|| unsafe { create(id, pd, attributes) }.map(|()| 0))
}

/// `rdma_create_srq_ex`, which has to name the type of the queue.
///
/// # Safety
/// `id` is NULL or an ID; `attributes` is NULL or valid, with what its mask announces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_srq_init_attr_ex,
) -> c_int {
    guard::<Number>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; the extended structure begins as the other one does.
        unsafe {
            let mask = (*attributes).comp_mask;
            if mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
                return Err(Errno::INVALID);
            }
            if (*attributes).srq_type != IBV_SRQT_BASIC
                || mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0
            {
                return Err(Errno::unsupported("a shared receive queue of this type"));
            }
            let has_domain = mask & IBV_SRQ_INIT_ATTR_PD != 0;
            let pd = if has_domain {
                (*attributes).pd
            } else {
                ptr::null_mut()
            };
            create(id, pd, attributes.cast())?;
            (*attributes).pd = (*(*id).srq).pd;
            (*attributes).comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        Ok(0)
    })
}

/// # Safety
/// As for [`softrdma_rdma_create_srq`].
unsafe fn create(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the fields are the library's to write.
    unsafe {
        own(id)?;
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || (*pd).context != (*id).verbs || !(*id).srq.is_null() {
            return Err(Errno::INVALID);
        }
        let made = srq::ibv_create_srq(pd, attributes);
        if made.is_null() {
            return Err(Errno::last());
        }
        (*id).srq = made;
        (*id).pd = pd;
    }
    Ok(())
}

/// `rdma_destroy_srq`.
///
/// # Safety
/// `id` is NULL or an ID, whose shared receive queue no queue pair uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_destroy_srq(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: the caller's promise. NULL is refused without harm.
    unsafe {
        srq::ibv_destroy_srq((*id).srq);
        (*id).srq = ptr::null_mut();
    }
}
