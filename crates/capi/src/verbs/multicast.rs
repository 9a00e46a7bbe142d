//! Attaching queue pairs to multicast groups. The LID has no meaning here.

use core::ffi::c_int;

use softrdma::Gid;

use crate::abi::verbs::{ibv_gid, ibv_qp};
use crate::errno::Errno;
use crate::guard::{Status, guard};
use crate::object;

/// # Safety
/// `gid` is NULL or valid.
unsafe fn read(gid: *const ibv_gid) -> Result<Gid, Errno> {
    if gid.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise; any 16 bytes are a GID.
    Ok(Gid(unsafe { (*gid).raw }))
}

/// `ibv_attach_mcast`.
///
/// # Safety
/// `qp` is NULL or a queue pair; `gid` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe { object::private(qp)?.pair.attach(read(gid)?)? };
        Ok(())
    })
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// `qp` is NULL or a queue pair; `gid` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe { object::private(qp)?.pair.detach(read(gid)?)? };
        Ok(())
    })
}
