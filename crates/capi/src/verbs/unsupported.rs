//! Slots that inline functions call without asking whether they are there, for what this library
//! does not offer.

use core::ffi::c_int;

use crate::abi::verbs::{ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_srq};
use crate::errno::Errno;

/// `ibv_post_srq_recv`: nothing of the list was posted.
///
/// # Safety
/// `bad_wr` is NULL or valid for a write.
pub unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(wr) };
    }
    Errno::UNSUPPORTED.set()
}

/// `ibv_bind_mw`.
///
/// # Safety
/// Its arguments are not looked at.
pub unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    Errno::UNSUPPORTED.set()
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// Its argument is not looked at.
pub unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    Errno::UNSUPPORTED.set()
}
