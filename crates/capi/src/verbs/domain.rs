//! Protection domains, thread domains and parent domains.

use core::ffi::c_int;
use core::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use softrdma::ProtectionDomain;

use super::context;
use crate::abi::verbs::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, guard};
use crate::object::{self, Public};

/// What is behind an `ibv_pd`.
pub struct Domain {
    domain: ProtectionDomain,
    /// A parent domain lends another one and adds nothing that this device needs.
    is_parent: bool,
}

impl Public for ibv_pd {
    type Whole = ibv_pd;
    type Private = Domain;
}

impl Public for ibv_td {
    type Whole = ibv_td;
    type Private = ();
}

/// The number that objects show as their handle; the kernel's would count up as well.
pub fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The domain behind a pointer; EINVAL for NULL.
///
/// # Safety
/// `pd` is NULL or allocated.
pub unsafe fn domain<'a>(pd: *mut ibv_pd) -> Result<&'a ProtectionDomain, Errno> {
    // SAFETY: the caller's promise.
    Ok(unsafe { &object::private(pd)?.domain })
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::<Pointer<ibv_pd>>(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { context::device(context)? }.protection_domain()?;
        let public = ibv_pd {
            context,
            handle: next_handle(),
        };
        Ok(object::publish(
            public,
            Domain {
                domain,
                is_parent: false,
            },
        ))
    })
}

/// `ibv_dealloc_pd`: EBUSY while regions, queue pairs or parent domains belong to it.
///
/// # Safety
/// `pd` is NULL or allocated, and not used any more if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let private = object::private(pd)?;
            if !private.is_parent && private.domain.is_in_use() {
                return Err(Errno(libc::EBUSY));
            }
            object::withdraw(pd, || ())
        }
    })
}

/// The slot behind `ibv_alloc_parent_domain`. Thread domains and allocators are hints that a device
/// of software has no use for.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid, and its domain is allocated.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    guard::<Pointer<ibv_pd>>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let domain = unsafe {
            context::device(context)?;
            domain((*attributes).pd)?.clone()
        };
        let public = ibv_pd {
            context,
            handle: next_handle(),
        };
        Ok(object::publish(
            public,
            Domain {
                domain,
                is_parent: true,
            },
        ))
    })
}

/// The slot behind `ibv_alloc_td`.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid.
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    guard::<Pointer<ibv_td>>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            context::device(context)?;
            if attributes.is_null() || (*attributes).comp_mask != 0 {
                return Err(Errno::INVALID);
            }
        }
        Ok(object::publish(ibv_td { context }, ()))
    })
}

/// The slot behind `ibv_dealloc_td`.
///
/// # Safety
/// `td` is NULL or allocated, and not used any more.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Status>(|| unsafe { object::withdraw(td, || ()) })
}

/// The context that a domain belongs to; NULL for NULL.
///
/// # Safety
/// `pd` is NULL or allocated.
pub unsafe fn context_of(pd: *mut ibv_pd) -> *mut ibv_context {
    if pd.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise; the library alone writes that field, once.
    unsafe { (*pd).context }
}
