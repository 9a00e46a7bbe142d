//! Event names, and the program's own events.

use core::ffi::{c_char, c_int, c_uint};

use softrdma::cm::EventKind;

use super::id::own;
use crate::abi::rdma_cma::rdma_cm_id;
use crate::errno::Errno;
use crate::guard::{Number, guard};

/// `rdma_event_str`: the enumerator's own name.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rdma_event_str(event: c_uint) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        16 => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        17 => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}

/// `rdma_write_cm_event`: an event of the program's own, behind those that wait.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_uint,
    status: c_int,
    argument: u64,
) -> c_int {
    guard::<Number>(|| {
        if event != EventKind::User as c_uint {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let part = unsafe { own(id)? };
        part.id.tell(EventKind::User, status, argument)?;
        Ok(0)
    })
}
