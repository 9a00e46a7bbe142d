//! Posting work requests.

use core::ffi::c_int;

use softrdma::{Payload, QueuePair, SendRequest, Sge, Transport};

use super::address;
use super::convert::{self, Sges};
use crate::abi::constants::IBV_SEND_INLINE;
use crate::abi::verbs::{ibv_qp, ibv_recv_wr, ibv_send_wr};
use crate::errno::Errno;
use crate::guard::{Status, guard_quickly};
use crate::object;

/// Bytes of inline data that any queue pair of this device can have.
const INLINE_MAX: usize = softrdma::attributes::MAX_INLINE as usize;

/// Tells the program which work request was refused.
///
/// # Safety
/// `bad_wr` is NULL or valid for a write.
unsafe fn blame<T>(bad_wr: *mut *mut T, wr: *mut T) {
    if !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(wr) };
    }
}

/// The slot behind `ibv_post_send`: posts the list up to the first that is refused.
///
/// # Safety
/// `qp` is NULL or a queue pair, `wr` is NULL or a list of valid work requests, `bad_wr` is NULL or
/// valid for a write.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    guard_quickly::<Status>(|| {
        // SAFETY: the caller's promise.
        let pair = match unsafe { object::private(qp) } {
            Ok(private) => &private.pair,
            Err(errno) => {
                // SAFETY: the caller's promise.
                unsafe { blame(bad_wr, wr) };
                return Err(errno);
            }
        };
        let mut sges = Sges::new();
        let mut next = wr;
        let mut outcome = Ok(());
        while !next.is_null() {
            // SAFETY: the caller's promise.
            let request = unsafe { &*next };
            // SAFETY: the caller's promise.
            outcome = unsafe { queue_send(pair, request, &mut sges) };
            if outcome.is_err() {
                // SAFETY: the caller's promise.
                unsafe { blame(bad_wr, next) };
                break;
            }
            next = request.next;
        }
        // also what was accepted before an error goes out
        if next != wr {
            pair.flush_sends();
        }
        outcome
    })
}

/// # Safety
/// The request's list of elements is valid, and so is its address handle if the queue pair takes
/// datagrams.
unsafe fn queue_send(pair: &QueuePair, wr: &ibv_send_wr, sges: &mut Sges) -> Result<(), Errno> {
    let operation = convert::operation(wr)?;
    // SAFETY: the caller's promise.
    unsafe { convert::sges(wr.sg_list, wr.num_sge, sges)? };
    let mut inline;
    let payload = if wr.send_flags & IBV_SEND_INLINE != 0 && convert::carries_inline(&operation) {
        inline = [0; INLINE_MAX];
        Payload::Inline(gather(pair, sges, &mut inline)?)
    } else {
        Payload::Sges(sges)
    };
    let flags = convert::send_flags(wr.send_flags);
    let to = match pair.transport() {
        Transport::Ud => {
            // SAFETY: the caller's promise; of a datagram this is the union's member.
            Some(unsafe {
                let ud = wr.wr.ud;
                address::addressee(ud.ah, ud.remote_qpn, ud.remote_qkey)?
            })
        }
        Transport::Rc | Transport::Uc => None,
    };
    pair.queue_send(&SendRequest {
        id: wr.wr_id,
        operation,
        flags,
        payload,
        to: to.as_ref(),
    })?;
    Ok(())
}

/// Copies inline data out of the program's memory, so that it can be reused when the call returns.
fn gather<'a>(
    pair: &QueuePair,
    sges: &[Sge],
    into: &'a mut [u8; INLINE_MAX],
) -> Result<&'a [u8], Errno> {
    let mut end = 0;
    for sge in sges {
        let start = end;
        end += sge.length as usize;
        let place = into.get_mut(start..end).ok_or(Errno::INVALID)?;
        pair.copy_inline(sge.address, place)?;
    }
    Ok(&into[..end])
}

/// The slot behind `ibv_post_recv`: posts the list up to the first that is refused.
///
/// # Safety
/// As for [`post_send`].
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        receives(wr, bad_wr, |id, sges| {
            object::private(qp)?.pair.post_receive(id, sges)?;
            Ok(())
        })
    }
}

/// Gives the receives of a list to `post`, up to the first that is refused.
///
/// # Safety
/// `wr` is NULL or a list of valid work requests, `bad_wr` is NULL or valid for a write.
pub(super) unsafe fn receives(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), Errno>,
) -> c_int {
    guard_quickly::<Status>(|| {
        let mut sges = Sges::new();
        let mut next = wr;
        // SAFETY: the caller's promise, for every pointer followed here.
        unsafe {
            while !next.is_null() {
                let wr = &*next;
                let posted = convert::sges(wr.sg_list, wr.num_sge, &mut sges)
                    .and_then(|()| post(wr.wr_id, &sges));
                if let Err(errno) = posted {
                    blame(bad_wr, next);
                    return Err(errno);
                }
                next = wr.next;
            }
        }
        Ok(())
    })
}
