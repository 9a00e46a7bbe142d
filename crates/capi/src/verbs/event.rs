//! Events: what the waiting calls of `shim/blocking.c` need, and acknowledging.

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};

use softrdma::EventKind;

use super::context;
use crate::abi::verbs::{
    async_event_element, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_qp, ibv_srq,
};
use crate::errno::Errno;
use crate::guard::{Number, caught, guard};
use crate::object;

/// The descriptor that a channel's events are counted on; −1 with `errno`.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_completion_descriptor(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Number>(|| Ok(unsafe { object::private(channel)? }.as_fd().as_raw_fd()))
}

/// The event that a unit of that descriptor stands for; false if it was taken back.
///
/// # Safety
/// `channel` is a channel; the others are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_take_completion_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> bool {
    let taken = caught(|| {
        // SAFETY: the caller's promise.
        let Some(event) = unsafe { object::private(channel)? }.events.pop() else {
            return Ok(false);
        };
        let about = event.cookie as *mut ibv_cq;
        // SAFETY: the cookie is the queue's address, and a queue is not destroyed before its events
        // are acknowledged; the rest is the caller's promise.
        unsafe {
            if !cq.is_null() {
                cq.write(about);
            }
            if !cq_context.is_null() {
                cq_context.write((*about).cq_context);
            }
        }
        Ok(true)
    });
    taken.unwrap_or(false)
}

/// The descriptor that a context's asynchronous events are counted on; −1 with `errno`.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_async_descriptor(context: *mut ibv_context) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        Ok(device.events().as_fd().as_raw_fd())
    })
}

/// The event that a unit of that descriptor stands for; false if it was taken back.
///
/// # Safety
/// `context` is open; `to` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_take_async_event(
    context: *mut ibv_context,
    to: *mut ibv_async_event,
) -> bool {
    let taken = caught(|| {
        // SAFETY: the caller's promise.
        let Some(event) = unsafe { context::device(context)? }.events().pop() else {
            return Ok(false);
        };
        let element = match About::of(event.kind) {
            About::Queue => async_event_element {
                cq: event.cookie as *mut ibv_cq,
            },
            About::Pair => async_event_element {
                qp: event.cookie as *mut ibv_qp,
            },
            About::SharedReceives => async_event_element {
                srq: event.cookie as *mut ibv_srq,
            },
            About::Port => async_event_element {
                port_num: event.cookie as c_int,
            },
        };
        // SAFETY: the caller's promise.
        unsafe {
            to.write(ibv_async_event {
                element,
                event_type: event.kind as c_uint,
            })
        };
        Ok(true)
    });
    taken.unwrap_or(false)
}

/// What an event is about, and so which member of the union it has.
enum About {
    Queue,
    Pair,
    SharedReceives,
    /// A port, or the whole device with port 0.
    Port,
}

impl About {
    fn of(kind: EventKind) -> Self {
        match kind {
            EventKind::CompletionQueueError => Self::Queue,
            EventKind::QueuePairFatal
            | EventKind::QueuePairRequestError
            | EventKind::QueuePairAccessError
            | EventKind::CommunicationEstablished
            | EventKind::SendQueueDrained
            | EventKind::LastWqeReached => Self::Pair,
            EventKind::SharedReceiveLimit => Self::SharedReceives,
            EventKind::DeviceFatal
            | EventKind::PortActive
            | EventKind::PortError
            | EventKind::LidChange
            | EventKind::GidChange => Self::Port,
        }
    }
}

/// `ibv_ack_async_event`. Events of ports and devices hold nothing up.
///
/// # Safety
/// `event` is NULL or was given by `ibv_get_async_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    if event.is_null() {
        return;
    }
    // A function without an answer.
    let _ = caught(|| {
        // SAFETY: the caller's promise; the type says which member is there, and the object is not
        // destroyed before this.
        unsafe {
            let event = event.read();
            match event.event_type {
                PAIR_FIRST..=PAIR_LAST | LAST_WQE_REACHED => {
                    let qp = event.element.qp;
                    object::private(qp)?.events.acknowledge(qp as u64, 1);
                }
                QUEUE_ERROR => {
                    let cq = event.element.cq;
                    object::private(cq)?.events.acknowledge(cq as u64, 1);
                }
                LIMIT_REACHED => {
                    let srq = event.element.srq;
                    object::private(srq)?.events.acknowledge(srq as u64, 1);
                }
                _ => {}
            }
        }
        Ok::<(), Errno>(())
    });
}

const QUEUE_ERROR: c_uint = crate::abi::constants::IBV_EVENT_CQ_ERR;
const PAIR_FIRST: c_uint = crate::abi::constants::IBV_EVENT_QP_FATAL;
const PAIR_LAST: c_uint = crate::abi::constants::IBV_EVENT_PATH_MIG_ERR;
const LIMIT_REACHED: c_uint = crate::abi::constants::IBV_EVENT_SRQ_LIMIT_REACHED;
const LAST_WQE_REACHED: c_uint = crate::abi::constants::IBV_EVENT_QP_LAST_WQE_REACHED;
