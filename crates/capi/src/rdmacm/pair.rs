//! The queue pair of an ID: made by the program's wish, moved by what the peer says.

use core::ffi::{c_int, c_uint};
use core::ptr;

use softrdma::State;
use softrdma::cm::Enhancements;

use super::id::{IdPart, own};
use crate::abi::constants::{IBV_QP_INIT_ATTR_PD, IBV_QPT_UD};
use crate::abi::rdma_cma::rdma_cm_id;
use crate::abi::verbs::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
};
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::verbs::{convert, cq, qp};

/// `rdma_create_qp`: what the program does not give, the ID does: the device's protection domain,
/// and completion queues with channels of their own.
///
/// # Safety
/// `id` is NULL or an ID; `pd` is NULL or allocated; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if attributes.is_null() {
                return Err(Errno::INVALID);
            }
            let pd = usable_domain(id, pd)?;
            let (send, receive) = (
                &raw mut (*attributes).send_cq,
                &raw mut (*attributes).recv_cq,
            );
            complete_queues(id, send, receive, &(*attributes).cap)?;
            if (*attributes).srq.is_null() {
                (*attributes).srq = (*id).srq;
            }
            adopt(id, pd, qp::ibv_create_qp(pd, attributes))?;
        }
        Ok(0)
    })
}

/// `rdma_create_qp_ex`.
///
/// # Safety
/// As for [`softrdma_rdma_create_qp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_init_attr_ex,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if attributes.is_null() {
                return Err(Errno::INVALID);
            }
            let has_domain = (*attributes).comp_mask & IBV_QP_INIT_ATTR_PD != 0;
            let given = if has_domain {
                (*attributes).pd
            } else {
                ptr::null_mut()
            };
            let pd = usable_domain(id, given)?;
            (*attributes).comp_mask |= IBV_QP_INIT_ATTR_PD;
            (*attributes).pd = pd;
            let (send, receive) = (
                &raw mut (*attributes).send_cq,
                &raw mut (*attributes).recv_cq,
            );
            complete_queues(id, send, receive, &(*attributes).cap)?;
            if (*attributes).srq.is_null() {
                (*attributes).srq = (*id).srq;
            }
            adopt(id, pd, qp::create_qp_ex((*id).verbs, attributes))?;
        }
        Ok(0)
    })
}

/// `rdma_destroy_qp`: with the completion queues that were made for it.
///
/// # Safety
/// `id` is NULL or an ID, whose queue pair is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_destroy_qp(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: the caller's promise. What is NULL is refused without harm.
    unsafe {
        qp::ibv_destroy_qp((*id).qp);
        (*id).qp = ptr::null_mut();
        destroy_queues(id);
    }
}

/// `rdma_init_qp_attr`: what to modify a queue pair with that the program made itself. Its
/// `qp_state` says for which step.
///
/// # Safety
/// `id` is NULL or an ID; `attributes` and `mask` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if attributes.is_null() || mask.is_null() {
                return Err(Errno::INVALID);
            }
            let state = convert::state((*attributes).qp_state)?;
            let (step, address, bits) = own(id)?.id.step(state)?;
            let (filled, bits) = convert::step(&step, &address, bits);
            attributes.write(filled);
            mask.write(bits);
        }
        Ok(0)
    })
}

/// The domain for a queue pair of the ID.
///
/// # Safety
/// As for [`softrdma_rdma_create_qp`].
unsafe fn usable_domain(id: *mut rdma_cm_id, pd: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        own(id)?;
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(Errno::INVALID);
        }
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || (*pd).context != (*id).verbs {
            return Err(Errno::INVALID);
        }
        Ok(pd)
    }
}

/// Makes the completion queues that the program does not give.
///
/// # Safety
/// `id` is an ID with a device; the places are valid.
unsafe fn complete_queues(
    id: *mut rdma_cm_id,
    send: *mut *mut ibv_cq,
    receive: *mut *mut ibv_cq,
    sizes: &ibv_qp_cap,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*receive).is_null() {
            let (channel, queue) = queue_of(id, sizes.max_recv_wr)?;
            ((*id).recv_cq_channel, (*id).recv_cq) = (channel, queue);
            *receive = queue;
        }
        if (*send).is_null() {
            match queue_of(id, sizes.max_send_wr) {
                Ok((channel, queue)) => {
                    ((*id).send_cq_channel, (*id).send_cq) = (channel, queue);
                    *send = queue;
                }
                Err(errno) => {
                    destroy_queues(id);
                    return Err(errno);
                }
            }
        }
    }
    Ok(())
}

/// A completion queue with a channel of its own.
///
/// # Safety
/// `id` is an ID with a device.
unsafe fn queue_of(
    id: *mut rdma_cm_id,
    size: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let size = c_int::try_from(size.max(1)).map_err(|_| Errno::INVALID)?;
    // SAFETY: the caller's promise.
    unsafe {
        let channel = cq::ibv_create_comp_channel((*id).verbs);
        if channel.is_null() {
            return Err(Errno::last());
        }
        let queue = cq::ibv_create_cq((*id).verbs, size, id.cast(), channel, 0);
        if queue.is_null() {
            let errno = Errno::last();
            cq::ibv_destroy_comp_channel(channel);
            return Err(errno);
        }
        Ok((channel, queue))
    }
}

/// Destroys the completion queues that were made for the ID.
///
/// # Safety
/// `id` is an ID, and nobody uses them.
pub(super) unsafe fn destroy_queues(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise. What is NULL is refused without harm.
    unsafe {
        for (queue, channel) in [
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ] {
            if !(*queue).is_null() {
                cq::ibv_destroy_cq(*queue);
                cq::ibv_destroy_comp_channel(*channel);
            }
            *queue = ptr::null_mut();
            *channel = ptr::null_mut();
        }
    }
}

/// Gives the ID its queue pair: in INIT, where receives can be posted, or ready for use if it waits
/// for no peer.
///
/// # Safety
/// `id` is an ID; `pair` is NULL with `errno`, or a new queue pair.
unsafe fn adopt(id: *mut rdma_cm_id, pd: *mut ibv_pd, pair: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if pair.is_null() {
            let errno = Errno::last();
            destroy_queues(id);
            return Err(errno);
        }
        (*id).qp = pair;
        (*id).pd = pd;
        // of queue pairs here there are none, whatever the program said before
        own(id)?.id.set_enhancements(Enhancements::default())?;
        let moved = if (*id).qp_type == IBV_QPT_UD {
            connect(id)
        } else {
            advance(id, State::Init)
        };
        if moved.is_err() {
            softrdma_rdma_destroy_qp(id);
        }
        moved
    }
}

/// Moves the queue pair of an ID, if it has one, one step.
///
/// # Safety
/// `id` is an ID.
pub(super) unsafe fn advance(id: *mut rdma_cm_id, state: State) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let IdPart { id: own, .. } = own(id)?;
        let pair = (*id).qp;
        if pair.is_null() {
            return Ok(());
        }
        let (attributes, address, mask) = own.step(state)?;
        qp::modify(pair, &attributes, &address, mask)?;
        (*pair).state = state as c_uint;
        Ok(())
    }
}

/// Moves the queue pair to RTS: access rights as they are now known or the key, the peer, then
/// sending.
///
/// # Safety
/// `id` is an ID.
pub(super) unsafe fn connect(id: *mut rdma_cm_id) -> Result<(), Errno> {
    for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
        // SAFETY: the caller's promise.
        unsafe { advance(id, state)? };
    }
    Ok(())
}
