//! Asking for connections, accepting, refusing and ending them.

use core::ffi::{c_int, c_uint, c_void};
use core::slice;

use softrdma::State;
use softrdma::attributes::MAX_RD_ATOMIC;
use softrdma::cm::{Bits, Enhancements, PortSpace, RejectReason, Request};

use super::id::{own, settle};
use super::pair;
use crate::abi::constants::{IBV_EVENT_COMM_EST, IBV_QPT_UD};
use crate::abi::rdma_cma::{rdma_cm_id, rdma_conn_param};
use crate::abi::verbs::ibv_ece;
use crate::errno::Errno;
use crate::guard::{Number, guard};

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as can be.
const MOST: u8 = 0xff;
/// What the shim calls an event that will not come.
const NOTHING_TO_COME: c_int = 1;
/// Retries of a program that says nothing.
const RETRIES: u8 = 7;

/// What the program says of its connection.
///
/// # Safety
/// `id` is an ID; `parameters` is NULL or valid, and so is its private data.
unsafe fn request(id: *mut rdma_cm_id, parameters: *const rdma_conn_param) -> Request {
    // SAFETY: the caller's promise.
    unsafe {
        let mut request = Request {
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ..Request::default()
        };
        if !parameters.is_null() {
            let from = parameters.read();
            let fewer = |count: u8| (count != MOST).then_some(count);
            request = Request {
                qpn: from.qp_num,
                has_srq: from.srq != 0,
                responder_resources: fewer(from.responder_resources),
                initiator_depth: fewer(from.initiator_depth),
                flow_control: from.flow_control != 0,
                retry_count: from.retry_count,
                rnr_retry_count: from.rnr_retry_count,
                private_data: bytes(from.private_data, from.private_data_len),
            };
        }
        let qp = (*id).qp;
        if !qp.is_null() {
            request.qpn = (*qp).qp_num;
            request.has_srq = !(*qp).srq.is_null();
        }
        request
    }
}

/// EINVAL for what no connection can be: without a queue pair, or with more READs in flight than
/// the device has.
///
/// # Safety
/// As for [`request`].
unsafe fn check(id: *mut rdma_cm_id, parameters: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).ps != PortSpace::Tcp as c_uint {
            return Ok(());
        }
        if parameters.is_null() {
            return if (*id).qp.is_null() {
                Err(Errno::INVALID)
            } else {
                Ok(())
            };
        }
        let from = parameters.read();
        let is_too_much = |count: u8| count != MOST && u32::from(count) > MAX_RD_ATOMIC;
        if is_too_much(from.responder_resources) || is_too_much(from.initiator_depth) {
            return Err(Errno::INVALID);
        }
        Ok(())
    }
}

/// # Safety
/// `data` is NULL or valid for `length` bytes.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise; copied at once.
    unsafe { slice::from_raw_parts(data.cast(), usize::from(length)) }.to_vec()
}

/// What `rdma_connect` does before it waits, if it does. Where it fails as TCP does not reach the
/// peer, receives that were posted come back, as they do after a refusal: programs wait for them.
///
/// # Safety
/// `id` is NULL or an ID; `parameters` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_connect(
    id: *mut rdma_cm_id,
    parameters: *const rdma_conn_param,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            // it may be destroyed meanwhile by another thread
            let _call = part.calls.begin();
            check(id, parameters)?;
            if let Err(error) = part.id.connect(&request(id, parameters)) {
                if matches!(error, softrdma::Error::Tcp { .. }) {
                    let _ = pair::advance(id, State::Error);
                }
                return Err(error.into());
            }
        }
        Ok(0)
    })
}

/// What `rdma_accept` does before it waits: the queue pair is ready before the peer is told.
/// Nothing will come of the acceptance of a datagram, then 1.
///
/// # Safety
/// `id` is NULL or an ID; `parameters` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_accept(
    id: *mut rdma_cm_id,
    parameters: *const rdma_conn_param,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            check(id, parameters)?;
            let request = request(id, parameters);
            if (*id).qp_type == IBV_QPT_UD {
                part.id.accept(&request)?;
                if !part.own_channel().is_null() {
                    settle(id);
                }
                return Ok(NOTHING_TO_COME);
            }
            part.id.prepare_accept(&request)?;
            pair::connect(id)?;
            if let Err(error) = part.id.accept(&request) {
                let _ = pair::advance(id, State::Error);
                return Err(error.into());
            }
        }
        Ok(0)
    })
}

/// `rdma_establish`: for programs that move their queue pair themselves.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_establish(id: *mut rdma_cm_id) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if !(*id).qp.is_null() {
                return Err(Errno::INVALID);
            }
            part.id.establish()?;
        }
        Ok(0)
    })
}

/// `rdma_reject`.
///
/// # Safety
/// `id` is NULL or an ID; `data` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reject(id, RejectReason::Consumer, data, length) }
}

/// `rdma_reject_ece`: what the peer's device offers beyond the standard is not what this side
/// needs.
///
/// # Safety
/// As for [`softrdma_rdma_reject`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { reject(id, RejectReason::VendorOption, data, length) }
}

/// # Safety
/// As for [`softrdma_rdma_reject`].
unsafe fn reject(
    id: *mut rdma_cm_id,
    reason: RejectReason,
    data: *const c_void,
    length: u8,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            part.id.reject_because(reason, &bytes(data, length))?;
        }
        Ok(0)
    })
}

/// `rdma_set_local_ece`: what the program's queue pair can do beyond the standard; for queue pairs
/// that are not the ID's, whose own can do nothing.
///
/// # Safety
/// `id` is NULL or an ID; `ece` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *const ibv_ece,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if ece.is_null() || !(*id).qp.is_null() {
                return Err(Errno::INVALID);
            }
            let asked = ece.read();
            if asked.vendor_id == 0 || asked.comp_mask != 0 {
                return Err(Errno::INVALID);
            }
            part.id.set_enhancements(Enhancements {
                vendor: Bits::truncated(asked.vendor_id),
                options: asked.options,
            })?;
        }
        Ok(0)
    })
}

/// `rdma_get_remote_ece`: what the peer's can do, or chose.
///
/// # Safety
/// `id` is NULL or an ID; `to` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    to: *mut ibv_ece,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if to.is_null() || !(*id).qp.is_null() {
                return Err(Errno::INVALID);
            }
            let told = part.id.peer_enhancements()?;
            to.write(ibv_ece {
                vendor_id: told.vendor.get(),
                options: told.options,
                comp_mask: 0,
            });
        }
        Ok(0)
    })
}

/// `rdma_notify`: only that the peer's data came before its word did.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    guard::<Number>(|| {
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { own(id)? }.id.notify_established()?;
        Ok(0)
    })
}

/// What `rdma_disconnect` does before it waits: what was posted is flushed, then the peer is told.
/// Over iWARP, as over the kernel's, it is sent.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_disconnect(id: *mut rdma_cm_id) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            if !part.id.is_stream() {
                pair::advance(id, State::Error)?;
            }
            part.id.disconnect()?;
        }
        Ok(0)
    })
}
