//! Completion channels and completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use softrdma::{CompletionChannel, CompletionQueue, EventQueue};

use super::{context, convert, domain};
use crate::abi::verbs::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, caught, caught_quickly, guard};
use crate::object::{self, Public};

impl Public for ibv_comp_channel {
    type Whole = ibv_comp_channel;
    type Private = Arc<CompletionChannel>;
}

/// What is behind an `ibv_cq`. Every queue is allocated as an `ibv_cq_ex`, of which `ibv_cq` is the
/// beginning.
pub struct Queue {
    pub(super) queue: CompletionQueue,
    /// For acknowledging its events.
    channel: Option<Arc<CompletionChannel>>,
    /// For acknowledging that it was overrun.
    pub(super) events: Arc<EventQueue>,
    /// The completion that an extended poll is at, as C has it; between `start_poll` and `end_poll`
    /// it belongs to the thread that polls, which holds the public structure's mutex.
    pub(super) current: UnsafeCell<ibv_wc>,
    /// Whether the program promised to poll from one thread only.
    pub(super) is_single_threaded: bool,
}

impl Public for ibv_cq {
    type Whole = ibv_cq_ex;
    type Private = Queue;
}

/// Completions fetched at once; programs seldom ask for more.
const BATCH: usize = 16;

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guard::<Pointer<ibv_comp_channel>>(|| {
        // SAFETY: the caller's promise.
        let channel = unsafe { context::device(context)? }.completion_channel()?;
        let fd = channel.as_fd().as_raw_fd();
        Ok(object::publish(
            ibv_comp_channel {
                context,
                fd,
                refcnt: 0,
            },
            channel,
        ))
    })
}

/// `ibv_destroy_comp_channel`: EBUSY while completion queues use it.
///
/// # Safety
/// `channel` is NULL or a channel, and not used any more if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if object::private(channel)?.attached() > 0 {
                return Err(Errno(libc::EBUSY));
            }
            object::withdraw(channel, || ())
        }
    })
}

/// What a completion queue is made of.
pub(super) struct Request {
    pub(super) entries: u32,
    pub(super) cookie: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) vector: u32,
    pub(super) is_single_threaded: bool,
}

/// Makes a completion queue; the extended part of its structure is as `public` has it.
///
/// # Safety
/// `context` is NULL or open, the channel is NULL or a channel.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    request: &Request,
    mut public: ibv_cq_ex,
) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: the caller's promise.
    let (device, channel) = unsafe {
        let device = context::device(context)?;
        let channel = if request.channel.is_null() {
            None
        } else {
            Some(Arc::clone(object::private(request.channel)?))
        };
        (device, channel)
    };
    let queue = device.completion_queue_on(request.entries, channel.as_ref(), request.vector)?;
    public.context = context;
    public.channel = request.channel;
    public.cq_context = request.cookie;
    public.handle = domain::next_handle();
    public.cqe = c_int::try_from(queue.capacity()).unwrap_or(c_int::MAX);
    public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    public.cond = libc::PTHREAD_COND_INITIALIZER;
    let private = Queue {
        queue,
        channel,
        events: Arc::clone(device.events()),
        current: UnsafeCell::new(convert::completion(&convert::NO_COMPLETION)),
        is_single_threaded: request.is_single_threaded,
    };
    let cq = object::publish::<ibv_cq>(public, private);
    // SAFETY: made on the line above.
    unsafe { object::private(cq)? }.queue.set_cookie(cq as u64);
    Ok(cq)
}

/// `ibv_create_cq`.
///
/// # Safety
/// `context` is NULL or open, `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cookie: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    guard::<Pointer<ibv_cq>>(|| {
        let request = Request {
            entries: u32::try_from(entries).map_err(|_| Errno::INVALID)?,
            cookie,
            channel,
            vector: u32::try_from(vector).map_err(|_| Errno::INVALID)?,
            is_single_threaded: false,
        };
        // SAFETY: NULL slots, which a program of `ibv_create_cq` does not look at; and the caller's
        // promise.
        unsafe { create(context, &request, zeroed()) }
    })
}

/// `ibv_resize_cq`.
///
/// # Safety
/// `cq` is NULL or a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { &object::private(cq)?.queue };
        let entries = u32::try_from(entries).map_err(|_| Errno::INVALID)?;
        let capacity = queue.resize(entries)?;
        // SAFETY: the caller's promise; the field is the library's to write.
        unsafe { (*cq).cqe = c_int::try_from(capacity).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `ibv_destroy_cq`: EBUSY while queue pairs use it; waits until the events that the program got
/// are acknowledged.
///
/// # Safety
/// `cq` is NULL or a completion queue, and not used any more if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            object::private(cq)?.queue.close()?;
            object::withdraw(cq, || ())
        }
    })
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is NULL or a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // A function without an answer: a NULL queue or one without a channel has no events.
    let _ = caught(|| {
        // SAFETY: the caller's promise.
        if let Some(channel) = unsafe { &object::private(cq)?.channel } {
            channel.events.acknowledge(cq as u64, count);
        }
        Ok(())
    });
}

/// The slot behind `ibv_poll_cq`: how many completions, or a negated error number.
///
/// # Safety
/// `cq` is NULL or a completion queue; `to` is valid for `count` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    let polled = caught_quickly(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { &object::private(cq)?.queue };
        let wanted = usize::try_from(count).map_err(|_| Errno::INVALID)?;
        if to.is_null() && wanted > 0 {
            return Err(Errno::INVALID);
        }
        // who measures latency asks for one
        // SAFETY: the caller's promise.
        let filled = unsafe {
            if wanted == 1 {
                fill::<1>(queue, wanted, to)
            } else {
                fill::<BATCH>(queue, wanted, to)
            }
        };
        Ok(filled as c_int)
    });
    polled.unwrap_or_else(|errno| -errno.set())
}

/// Takes up to `wanted` completions, `N` at once; how many there were.
///
/// # Safety
/// `to` is valid for `wanted` completions.
unsafe fn fill<const N: usize>(queue: &CompletionQueue, wanted: usize, to: *mut ibv_wc) -> usize {
    let mut batch = [convert::NO_COMPLETION; N];
    let mut filled = 0;
    while filled < wanted {
        let room = (wanted - filled).min(N);
        let got = queue.poll(&mut batch[..room]);
        for completion in &batch[..got] {
            // SAFETY: `filled` is below `wanted`.
            unsafe { to.add(filled).write(convert::completion(completion)) };
            filled += 1;
        }
        if got < room {
            break;
        }
    }
    filled
}

/// The slot behind `ibv_req_notify_cq`.
///
/// # Safety
/// `cq` is NULL or a completion queue.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe { &object::private(cq)?.queue }.request_notify(solicited_only != 0)?;
        Ok(())
    })
}
