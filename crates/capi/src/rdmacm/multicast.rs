//! Multicast groups of IDs: joined, with the queue pair attached when the program learns of it.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use libc::sockaddr;
use softrdma::Gid;

use super::address as convert;
use super::id::{IdPart, own};
use crate::abi::constants::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
};
use crate::abi::rdma_cma::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::abi::verbs::ibv_gid;
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::verbs::multicast;

/// A group that an ID has joined.
pub struct Joined {
    group: IpAddr,
    /// The program's, for the event.
    context: u64,
    /// It sends and does not receive: its queue pair is not attached.
    sends_only: bool,
    /// Its queue pair is.
    is_attached: bool,
}

impl Joined {
    fn gid_is(&self, gid: Gid) -> bool {
        Gid::from_ip(self.group) == gid
    }

    fn gid(&self) -> ibv_gid {
        ibv_gid {
            raw: Gid::from_ip(self.group).0,
        }
    }
}

fn joined(part: &IdPart) -> MutexGuard<'_, Vec<Joined>> {
    part.joined.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `rdma_join_multicast` does before it waits, if it does.
///
/// # Safety
/// `id` is NULL or an ID; `address` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Number>(|| unsafe { join(id, address, false, context) }.map(|()| 0))
}

/// The same of `rdma_join_multicast_ex`.
///
/// # Safety
/// `id` is NULL or an ID; `attributes` is NULL or valid, and so is its address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_join_multicast_ex(
    id: *mut rdma_cm_id,
    attributes: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    guard::<Number>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; plain data.
        let asked = unsafe { attributes.read() };
        if asked.comp_mask & !NEEDED != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let sends_only = match asked.join_flags {
            _ if asked.comp_mask != NEEDED => return Err(Errno::INVALID),
            RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return Err(Errno::UNSUPPORTED),
        };
        // SAFETY: the caller's promise.
        unsafe { join(id, asked.addr, sends_only, context) }.map(|()| 0)
    })
}

/// # Safety
/// `id` is NULL or an ID; `address` is NULL or valid.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    sends_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (part, address) = unsafe { (own(id)?, convert::read(address)?) };
    let group = address.ok_or(Errno::INVALID)?.ip().to_canonical();
    if part.id.is_stream() {
        // what rdma_cm says of a device without groups
        return Err(Errno(libc::ENOSYS));
    }
    // before there is an event to find it
    joined(part).push(Joined {
        group,
        context: context as u64,
        sends_only,
        is_attached: false,
    });
    let told = part.id.join(group);
    if told.is_err() {
        joined(part).pop();
    }
    Ok(told?)
}

/// What comes with an event of a group: the program's context.
pub(super) fn context_of(part: &IdPart, group: Gid) -> *const c_void {
    let joined = joined(part);
    let of_group = joined.iter().find(|entry| entry.gid_is(group));
    of_group.map_or(core::ptr::null(), |entry| entry.context as *const c_void)
}

/// The program learns that it has joined: its queue pair, if it has one here, is attached.
///
/// # Safety
/// `id` is an ID.
pub(super) unsafe fn complete(id: *mut rdma_cm_id, group: Gid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (part, qp) = unsafe { (own(id)?, (*id).qp) };
    let mut joined = joined(part);
    let of_group = joined.iter_mut().find(|entry| entry.gid_is(group));
    if let Some(entry) = of_group.filter(|entry| !entry.sends_only && !qp.is_null()) {
        // SAFETY: the queue pair of the ID.
        match unsafe { multicast::ibv_attach_mcast(qp, &entry.gid(), 0) } {
            0 => entry.is_attached = true,
            errno => return Err(Errno(errno)),
        }
    }
    Ok(())
}

/// `rdma_leave_multicast`: EADDRNOTAVAIL if it has not joined.
///
/// # Safety
/// `id` is NULL or an ID; `address` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let (part, address) = unsafe { (own(id)?, convert::read(address)?) };
        let group = address.ok_or(Errno::INVALID)?.ip().to_canonical();
        let mut joined = joined(part);
        let at = joined.iter().position(|entry| entry.group == group);
        let entry = joined.swap_remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        let is_last = joined.iter().all(|entry| entry.group != group);
        drop(joined);
        if is_last {
            part.id.forget_join(group)?;
        }
        // SAFETY: the queue pair of the ID, or NULL, if it was destroyed since.
        let qp = unsafe { (*id).qp };
        if entry.is_attached && is_last && !qp.is_null() {
            // SAFETY: as above.
            let detached = unsafe { multicast::ibv_detach_mcast(qp, &entry.gid(), 0) };
            if detached != 0 {
                return Err(Errno(detached));
            }
        }
        Ok(0)
    })
}
