//! Fork: nothing is pinned here, so nothing has to be kept from a child.

use core::ffi::{c_int, c_uint, c_void};

use crate::abi::constants::IBV_FORK_UNNEEDED;

/// `ibv_fork_init`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`, for vendor libraries.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`, for vendor libraries.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
