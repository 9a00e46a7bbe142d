//! The extended queue pair: work requests that are written down by one call each and posted
//! together. What the calls do is in [`batch`](super::batch) and [`section`](super::section).

use core::ffi::{c_int, c_uint, c_void};
use core::mem::zeroed;
use core::slice;

use softrdma::{Device, LinkKind, MemoryKey, Operation, RemoteMemory, Transport};

use super::address;
use super::batch::Batch;
use super::convert::{self, Sges};
use super::qp::Pair;
use crate::abi::constants::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QPT_UD,
};
use crate::abi::verbs::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge,
};
use crate::errno::Errno;
use crate::guard::{Status, caught_quickly, guard};
use crate::object;

/// Whether a queue pair of a type can be made for these operations; EOPNOTSUPP for others.
pub fn check(qp_type: c_uint, asked: u64, device: &Device) -> Result<(), Errno> {
    let known = match qp_type {
        IBV_QPT_UD => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
        _ => OF_CONNECTIONS,
    };
    if asked & !known != 0 {
        return Err(Errno::unsupported("an operation in send_ops_flags"));
    }
    let lacks_extensions = device.kind() == LinkKind::Siw && !device.attributes().has_atomics;
    if lacks_extensions && asked & OF_EXTENSIONS != 0 {
        return Err(softrdma::Error::NoExtensions(device.link().name).into());
    }
    Ok(())
}

/// What iWARP has with RFC 7306 only.
const OF_EXTENSIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

const OF_CONNECTIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// The structure of a queue pair with all its slots, which the header calls without asking whether
/// they are there.
pub fn slots() -> ibv_qp_ex {
    // SAFETY: zero numbers, and slots that are filled here.
    let empty: ibv_qp_ex = unsafe { zeroed() };
    ibv_qp_ex {
        wr_atomic_cmp_swp: Some(atomic_cmp_swp),
        wr_atomic_fetch_add: Some(atomic_fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_inv),
        wr_rdma_read: Some(rdma_read),
        wr_rdma_write: Some(rdma_write),
        wr_rdma_write_imm: Some(rdma_write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: Some(send_inv),
        wr_send_tso: Some(send_tso),
        wr_set_ud_addr: Some(set_ud_addr),
        wr_set_xrc_srqn: Some(set_xrc_srqn),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: Some(atomic_write),
        wr_flush: Some(flush),
        ..empty
    }
}

/// What is behind an extended queue pair.
///
/// # Safety
/// `qp` is NULL or a queue pair.
unsafe fn private<'a>(qp: *mut ibv_qp_ex) -> Result<&'a Pair, Errno> {
    // SAFETY: the caller's promise: every `ibv_qp` is allocated as an `ibv_qp_ex`.
    unsafe { object::private(qp.cast::<ibv_qp>()) }
}

/// `ibv_wr_start`: waits until no other thread is between here and the end.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the header passes the queue pair that it took the slot from; so does every caller of
    // a slot in this file.
    if let Ok(private) = unsafe { private(qp) } {
        match private.pair.check_not_forked() {
            Ok(()) => private.section.enter(),
            // nobody may ever leave a section that the parent was in
            Err(error) => private.section.spoil(error.into()),
        }
    }
}

/// `ibv_wr_complete`: posts all, or none and says why.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    guard::<Status>(|| {
        // SAFETY: see `start`.
        let Pair { pair, section, .. } = unsafe { private(qp)? };
        pair.check_not_forked()?;
        // SAFETY: programs complete what they started.
        let count = unsafe {
            section.leave(|batch| {
                let list = batch.finish()?;
                if !list.is_empty() {
                    pair.queue_sends(list)?;
                }
                Ok(list.len())
            })?
        };
        if count > 0 {
            pair.flush_sends();
        }
        Ok(())
    })
}

/// `ibv_wr_abort`: forgets what was written down.
unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: see `start`.
    if let Ok(private) = unsafe { private(qp) }
        && private.pair.check_not_forked().is_ok()
    {
        // what spoilt it does not matter any more
        // SAFETY: programs abort what they started.
        let _ = unsafe { private.section.leave(|_| Ok(())) };
    }
}

/// One step of the section; it answers nothing, its error is that of `ibv_wr_complete`.
///
/// # Safety
/// `qp` is NULL or a queue pair; the thread has started, or nobody has.
unsafe fn step(qp: *mut ibv_qp_ex, step: impl FnOnce(&Pair, &mut Batch) -> Result<(), Errno>) {
    // SAFETY: the caller's promise.
    if let Ok(private) = unsafe { private(qp) } {
        // SAFETY: the caller's promise.
        unsafe {
            private
                .section
                .step(|batch| caught_quickly(|| step(private, batch)))
        };
    }
}

/// Begins a work request, which takes its number and flags from the structure.
///
/// # Safety
/// As for [`step`].
unsafe fn build(qp: *mut ibv_qp_ex, announced_by: u64, operation: Operation) {
    // SAFETY: the caller's promise; number and flags are the program's to write between calls.
    unsafe {
        step(qp, |private, batch| {
            if private.send_operations.unwrap_or(0) & announced_by == 0 {
                return Err(Errno::INVALID);
            }
            let (id, flags) = ((*qp).wr_id, convert::send_flags((*qp).wr_flags));
            let is_datagram = private.pair.transport() == Transport::Ud;
            batch.begin(id, operation, flags, private.pair.capabilities())?;
            if is_datagram {
                batch.expect_addressee();
            }
            Ok(())
        });
    }
}

/// Slots that begin a work request: their arguments, what announces them, what they are.
macro_rules! builders {
    ($($slot:ident($($argument:ident: $type:ty),*): $announced_by:ident, $operation:expr;)*) => {$(
        unsafe extern "C" fn $slot(qp: *mut ibv_qp_ex, $($argument: $type),*) {
            // SAFETY: see `start`.
            unsafe { build(qp, $announced_by, $operation) }
        }
    )*};
}

builders! {
    send(): IBV_QP_EX_WITH_SEND, Operation::Send;
    send_imm(immediate: u32): IBV_QP_EX_WITH_SEND_WITH_IMM,
        Operation::SendImmediate(immediate.to_ne_bytes());
    send_inv(key: u32): IBV_QP_EX_WITH_SEND_WITH_INV, Operation::SendInvalidate(MemoryKey(key));
    rdma_write(key: u32, address: u64): IBV_QP_EX_WITH_RDMA_WRITE,
        Operation::Write(remote(key, address));
    rdma_write_imm(key: u32, address: u64, immediate: u32): IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Operation::WriteImmediate(remote(key, address), immediate.to_ne_bytes());
    rdma_read(key: u32, address: u64): IBV_QP_EX_WITH_RDMA_READ,
        Operation::Read(remote(key, address));
    atomic_cmp_swp(key: u32, address: u64, compare: u64, swap: u64):
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        Operation::CompareSwap { remote: remote(key, address), compare, swap };
    atomic_fetch_add(key: u32, address: u64, add: u64): IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        Operation::FetchAdd { remote: remote(key, address), add };
    local_inv(key: u32): IBV_QP_EX_WITH_LOCAL_INV, Operation::LocalInvalidate(MemoryKey(key));
}

fn remote(key: u32, address: u64) -> RemoteMemory {
    RemoteMemory {
        address,
        key: MemoryKey(key),
    }
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = convert::sge(&ibv_sge { addr, length, lkey });
    // SAFETY: see `start`.
    unsafe {
        step(qp, |private, batch| {
            batch.set_sges(&[sge], private.pair.capabilities())
        });
    }
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: see `start`; the list is valid for `count` elements.
    unsafe {
        step(qp, |private, batch| {
            let mut sges = Sges::new();
            let count = c_int::try_from(count).map_err(|_| Errno::INVALID)?;
            convert::sges(list, count, &mut sges)?;
            batch.set_sges(&sges, private.pair.capabilities())
        });
    }
}

/// `ibv_wr_set_inline_data`: the data is copied here.
unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: see `start`.
    unsafe { inline(qp, &[ibv_data_buf { addr, length }]) }
}

/// `ibv_wr_set_inline_data_list`: the data is copied here.
unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: see `start`; the list is valid for `count` elements.
    unsafe {
        if count == 0 {
            inline(qp, &[]);
        } else if list.is_null() {
            step(qp, |_, _| Err(Errno::INVALID));
        } else {
            inline(qp, slice::from_raw_parts(list, count));
        }
    }
}

/// # Safety
/// As for [`step`].
unsafe fn inline(qp: *mut ibv_qp_ex, list: &[ibv_data_buf]) {
    let places = list.iter().map(|place| (place.addr as u64, place.length));
    // SAFETY: the caller's promise.
    unsafe {
        step(qp, |private, batch| {
            batch.set_inline(places, private.pair.capabilities(), |address, into| {
                Ok(private.pair.copy_inline(address, into)?)
            })
        });
    }
}

/// `ibv_wr_set_ud_addr`: to whom the datagram goes.
unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: see `start`; the address handle is valid.
    unsafe {
        step(qp, |_, batch| {
            batch.set_addressee(address::addressee(ah, qpn, qkey)?)
        });
    }
}

/// Slots of what this device does not have: the whole batch fails with this.
macro_rules! refusals {
    ($($slot:ident($($type:ty),*): $errno:expr;)*) => {$(
        unsafe extern "C" fn $slot(qp: *mut ibv_qp_ex, $(_: $type),*) {
            // SAFETY: see `start`.
            unsafe { step(qp, |_, _| Err($errno)) }
        }
    )*};
}

refusals! {
    bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info): Errno::UNSUPPORTED;
    send_tso(*mut c_void, u16, u16): Errno::UNSUPPORTED;
    atomic_write(u32, u64, *const c_void): Errno::UNSUPPORTED;
    flush(u32, u64, usize, u8, u8): Errno::UNSUPPORTED;
    // of another type of queue pairs
    set_xrc_srqn(u32): Errno::INVALID;
}
