//! Open devices: the context with its tables of operations.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, zeroed};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use softrdma::{Device, EventKind, EventQueue};

use super::{cq, cq_ex, device, domain, post, qp, query, srq, unsupported};
use crate::abi::verbs::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, guard};
use crate::log;
use crate::object::{self, Public};

/// What is behind an `ibv_context`.
pub struct Context {
    device: Device,
    /// The entry of the device list, kept for as long as programs can follow `context->device`.
    listed: *mut ibv_device,
    /// `cmd_fd` has to be a descriptor of its own that can be duplicated; there is no kernel driver
    /// behind it.
    _command: File,
}

impl Public for verbs_context {
    type Whole = verbs_context;
    type Private = Context;
}

/// Applications know the last member of the structure; it grows at its front.
const AT: usize = offset_of!(verbs_context, context);

/// The device of a context; EINVAL for NULL.
///
/// # Safety
/// `context` is NULL or an open context of this library.
pub unsafe fn device<'a>(context: *mut ibv_context) -> Result<&'a Device, Errno> {
    // SAFETY: the caller's promise.
    Ok(unsafe { &object::private(whole(context)?)?.device })
}

/// # Safety
/// `context` is NULL or an open context of this library.
unsafe fn whole(context: *mut ibv_context) -> Result<*mut verbs_context, Errno> {
    if context.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: every context of this library is that member of an allocation of ours.
    Ok(unsafe { context.byte_sub(AT) }.cast())
}

/// Event queues of the contexts that are open, to tell all of them that the device is lost.
static OPEN: Mutex<Vec<Weak<EventQueue>>> = Mutex::new(Vec::new());

/// Every open context gets `IBV_EVENT_DEVICE_FATAL`.
pub fn report_fatal() {
    for events in OPEN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Some(events) = events.upgrade() {
            events.push(EventKind::DeviceFatal, 0);
        }
    }
}

/// `ibv_open_device`.
///
/// # Safety
/// `listed` is NULL or an entry of a device list that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(listed: *mut ibv_device) -> *mut ibv_context {
    log::start();
    guard::<Pointer<ibv_context>>(|| {
        // SAFETY: the caller's promise.
        let link = unsafe { device::listed_link(listed)? };
        let opened = Device::open(&link.name)?;
        let system = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
        let command = File::open("/dev/null").map_err(system)?;

        // SAFETY: NULL slots and pointers, zero numbers, and an initialised mutex.
        let mut public: verbs_context = unsafe { zeroed() };
        fill(&mut public);
        public.context = ibv_context {
            device: listed,
            ops: operations(),
            cmd_fd: command.as_raw_fd(),
            async_fd: opened.events().as_fd().as_raw_fd(),
            num_comp_vectors: c_int::try_from(opened.completion_vectors()).unwrap_or(1),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: usize::MAX as *mut c_void,
        };
        {
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|events| events.strong_count() > 0);
            open.push(Arc::downgrade(opened.events()));
        }
        // SAFETY: as above; the context holds the entry until it is closed.
        unsafe { device::hold(listed) };
        let context = Context {
            device: opened,
            listed,
            _command: command,
        };
        let whole = object::publish::<verbs_context>(public, context);
        // SAFETY: inside the allocation just made.
        Ok(unsafe { whole.byte_add(AT) }.cast())
    })
}

/// `ibv_close_device`. Objects that were not destroyed stay valid memory until they are.
///
/// # Safety
/// `context` is NULL or an open context, not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let whole = whole(context)?;
            let listed = object::private(whole)?.listed;
            object::withdraw(whole, || device::release(listed))
        }
    })
}

/// The slots that inline functions of the header call without asking.
fn operations() -> ibv_context_ops {
    // SAFETY: all slots NULL.
    let empty: ibv_context_ops = unsafe { zeroed() };
    ibv_context_ops {
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        post_srq_recv: Some(srq::post_srq_recv),
        bind_mw: Some(unsupported::bind_mw),
        dealloc_mw: Some(unsupported::dealloc_mw),
        // asked for NULL by ibv_alloc_mw(), which answers EOPNOTSUPP itself
        alloc_mw: None,
        ..empty
    }
}

/// The slots that are asked for NULL: those that stay so are EOPNOTSUPP in the inline function, or
/// fall back to an exported one.
fn fill(public: &mut verbs_context) {
    public.sz = size_of::<verbs_context>();
    public.query_device_ex = Some(query::query_device_ex);
    public.query_port = Some(query::query_port);
    public.create_cq_ex = Some(cq_ex::create_cq_ex);
    public.create_qp_ex = Some(qp::create_qp_ex);
    public.alloc_td = Some(domain::alloc_td);
    public.dealloc_td = Some(domain::dealloc_td);
    public.alloc_parent_domain = Some(domain::alloc_parent_domain);
}
