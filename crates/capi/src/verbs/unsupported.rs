//! Slots that inline functions call without asking whether they are there, for what this library
//! does not offer.

use core::ffi::c_int;

use crate::abi::verbs::{ibv_mw, ibv_mw_bind, ibv_qp};
use crate::errno::Errno;

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
