//! The extended completion queue: a cursor over completions, read field by field.

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;

use super::convert;
use super::cq::{self, Queue, Request};
use crate::abi::constants::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN,
    IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP,
};
use crate::abi::verbs::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc,
};
use crate::errno::Errno;
use crate::guard::{Pointer, caught_quickly, guard};
use crate::object;

/// What a completion of this device can be asked for.
const FIELDS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// The slot behind `ibv_create_cq_ex`: EOPNOTSUPP for fields that completions do not have
/// (timestamps, VLANs, flow tags) and for flags other than the promise of a single thread.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid, with what its mask announces.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard::<Pointer<ibv_cq_ex>>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; without its bit in the mask a field is not looked at.
        let asked = unsafe { attributes.read() };
        let has_flags = asked.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { asked.flags } else { 0 };
        let unknown = asked.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        if unknown
            || asked.wc_flags & !FIELDS != 0
            || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
        {
            return Err(Errno::UNSUPPORTED);
        }
        let request = Request {
            entries: asked.cqe,
            cookie: asked.cq_context,
            channel: asked.channel,
            vector: asked.comp_vector,
            is_single_threaded: flags != 0,
        };
        // SAFETY: NULL slots.
        let empty: ibv_cq_ex = unsafe { zeroed() };
        let public = ibv_cq_ex {
            start_poll: Some(start_poll),
            next_poll: Some(next_poll),
            end_poll: Some(end_poll),
            read_opcode: Some(read_opcode),
            read_vendor_err: Some(read_vendor_err),
            read_byte_len: Some(read_byte_len),
            read_imm_data: Some(read_imm_data),
            read_qp_num: Some(read_qp_num),
            read_src_qp: Some(read_src_qp),
            read_wc_flags: Some(read_wc_flags),
            read_slid: Some(read_slid),
            read_sl: Some(read_sl),
            read_dlid_path_bits: Some(read_dlid_path_bits),
            ..empty
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { cq::create(context, &request, public)? }.cast())
    })
}

/// Advances the cursor: ENOENT if there is no further completion.
///
/// # Safety
/// `cq` is a queue of [`create_cq_ex`] that this thread polls.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise: while it polls, the cursor is this thread's.
    unsafe {
        let queue: &Queue = object::private(cq.cast::<ibv_cq>())?;
        let mut next = [convert::NO_COMPLETION];
        if queue.queue.poll(&mut next) == 0 {
            return Err(Errno(libc::ENOENT));
        }
        let completion = convert::completion(&next[0]);
        queue.current.get().write(completion);
        (*cq).wr_id = completion.wr_id;
        (*cq).status = completion.status;
    }
    Ok(())
}

/// Takes or gives back the right to poll.
///
/// # Safety
/// `cq` is a queue of [`create_cq_ex`]; it is unlocked by the thread that locked it.
unsafe fn lock(cq: *mut ibv_cq_ex, take: bool) {
    // SAFETY: the caller's promise; the mutex was initialised with the structure.
    unsafe {
        let queue = object::private(cq.cast::<ibv_cq>());
        if queue.is_ok_and(|queue: &Queue| !queue.is_single_threaded) {
            let mutex = &raw mut (*cq).mutex;
            if take {
                libc::pthread_mutex_lock(mutex)
            } else {
                libc::pthread_mutex_unlock(mutex)
            };
        }
    }
}

/// `ibv_start_poll`: without a completion nothing is started.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    let started = caught_quickly(|| {
        // SAFETY: the header passes the queue that it took the slot from, and a valid structure.
        unsafe {
            if cq.is_null() || (!attributes.is_null() && (*attributes).comp_mask != 0) {
                return Err(Errno::INVALID);
            }
            lock(cq, true);
            advance(cq).inspect_err(|_| lock(cq, false))
        }
    });
    // ENOENT is an answer, not an error: errno stays.
    started.map_or_else(|errno| errno.0, |()| 0)
}

/// `ibv_next_poll`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the header passes the queue that it took the slot from; it is being polled.
    caught_quickly(|| unsafe { advance(cq) }).map_or_else(|errno| errno.0, |()| 0)
}

/// `ibv_end_poll`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the header passes the queue that it took the slot from; it is being polled.
    unsafe { lock(cq, false) }
}

/// One field of the completion that the cursor is at; 0 if there is no queue.
///
/// # Safety
/// `cq` is NULL or a queue that this thread polls.
unsafe fn current<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&ibv_wc) -> T) -> T {
    // SAFETY: the caller's promise.
    match unsafe { object::private(cq.cast::<ibv_cq>()) } {
        // SAFETY: the caller's promise: nobody else moves the cursor.
        Ok(queue) => field(unsafe { &*queue.current.get() }),
        Err(_) => T::default(),
    }
}

/// Slots that give one field of the current completion.
macro_rules! readers {
    ($($slot:ident: $field:ident as $type:ty),* $(,)?) => {$(
        unsafe extern "C" fn $slot(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the header passes the queue that it took the slot from; it is being polled.
            unsafe { current(cq, |completion| <$type>::from(completion.$field)) }
        }
    )*};
}

readers! {
    read_opcode: opcode as c_uint,
    read_vendor_err: vendor_err as u32,
    read_byte_len: byte_len as u32,
    read_imm_data: imm_data as u32,
    read_qp_num: qp_num as u32,
    read_src_qp: src_qp as u32,
    read_wc_flags: wc_flags as c_uint,
    read_slid: slid as u32,
    read_sl: sl as u8,
    read_dlid_path_bits: dlid_path_bits as u8,
}
