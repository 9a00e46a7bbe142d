//! Memory regions.

use core::ffi::{c_int, c_uint, c_void};

use softrdma::{Access, MemoryRegion};

use super::domain;
use crate::abi::constants::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_FLAGS_SUPPORTED,
};
use crate::abi::verbs::{ibv_mr, ibv_pd};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, guard};
use crate::object::{self, Public};

impl Public for ibv_mr {
    type Whole = ibv_mr;
    type Private = MemoryRegion;
}

/// The rights of a C mask. Those that a device may ignore are ignored; EINVAL for unknown ones.
pub fn access(mask: c_uint) -> Result<Access, Errno> {
    let needed = mask & !(IBV_ACCESS_OPTIONAL_RANGE as c_uint);
    Access::from_bits(needed).ok_or(Errno::INVALID)
}

/// # Safety
/// `pd` is NULL or allocated; the memory is the program's to register.
unsafe fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    mask: c_uint,
) -> *mut ibv_mr {
    guard::<Pointer<ibv_mr>>(|| {
        let access = access(mask)?;
        // SAFETY: the caller's promise; that the device reads and writes the memory is what the
        // program asks for.
        let region = unsafe {
            domain::domain(pd)?.register_raw(address as u64, length as u64, iova, access)?
        };
        let public = ibv_mr {
            // SAFETY: the caller's promise, and not NULL.
            context: unsafe { domain::context_of(pd) },
            pd,
            addr: address,
            length,
            handle: domain::next_handle(),
            lkey: region.key().0,
            rkey: region.key().0,
        };
        Ok(object::publish(public, region))
    })
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` is NULL or allocated; the memory is the program's to register.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, address as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`: what the header's `ibv_reg_mr` calls with rights that it cannot check.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, iova, access) }
}

/// `ibv_dereg_mr`. When it returns nobody touches the memory any more.
///
/// # Safety
/// `mr` is NULL or registered, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Status>(|| unsafe { object::withdraw(mr, || ()) })
}

/// `ibv_rereg_mr`: not offered. The region stays as it was, which `IBV_REREG_MR_ERR_CMD` says.
///
/// # Safety
/// The pointers are only compared with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    _access: c_int,
) -> c_int {
    let translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let invalid = mr.is_null()
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (translation && (address.is_null() || length == 0))
        || (flags & IBV_REREG_MR_CHANGE_PD != 0 && pd.is_null());
    if invalid {
        Errno::INVALID.set();
        return IBV_REREG_MR_ERR_INPUT;
    }
    Errno::UNSUPPORTED.set();
    IBV_REREG_MR_ERR_CMD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_rights_are_ignored_and_unknown_ones_refused() {
        assert_eq!(access(0), Ok(Access::empty()));
        assert_eq!(access(1 | 1 << 20 | 1 << 29), Ok(Access::LOCAL_WRITE));
        for unknown in [12, 18, 30, 31] {
            assert_eq!(access(1 << unknown), Err(Errno::INVALID), "bit {unknown}");
        }
    }
}
