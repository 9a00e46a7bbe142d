//! Queue pairs.

use core::ffi::{c_int, c_uint};
use core::ptr;
use std::sync::Arc;

use softrdma::{
    AddressVector, AttributeMask, Attributes, EventQueue, QueuePair, QueuePairOptions, Transport,
};

use super::section::Section;
use super::{context, convert, domain, qp_ex};
use crate::abi::constants::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
};
use crate::abi::verbs::{
    ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex,
};
use crate::errno::Errno;
use crate::guard::{Pointer, Status, guard};
use crate::object::{self, Public};

/// What is behind an `ibv_qp`. Every queue pair is allocated as an `ibv_qp_ex`, of which `ibv_qp`
/// is the beginning.
pub struct Pair {
    pub(super) pair: QueuePair,
    /// For acknowledging its events.
    pub(super) events: Arc<EventQueue>,
    signal_all: bool,
    /// The operations announced for the work request builders, if it was made for them.
    pub(super) send_operations: Option<u64>,
    /// Between `ibv_wr_start` and its end.
    pub(super) section: Section,
}

impl Public for ibv_qp {
    type Whole = ibv_qp_ex;
    type Private = Pair;
}

/// Numbers of QP types that only the kernel may use: SMI and GSI.
const OF_THE_KERNEL: [c_uint; 2] = [0, 1];

/// Extensions of `ibv_create_qp_ex` that this library reads.
const EXTENSIONS: u32 =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// Makes a queue pair and writes back the sizes granted.
///
/// # Safety
/// The pointers in `asked` are NULL or objects of this library.
unsafe fn create(
    pd: *mut ibv_pd,
    asked: &ibv_qp_init_attr,
    granted: *mut ibv_qp_cap,
    send_operations: Option<u64>,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the caller's promise.
    let (domain, context) = unsafe { (domain::domain(pd)?, domain::context_of(pd)) };
    if OF_THE_KERNEL.contains(&asked.qp_type) {
        return Err(Errno::INVALID);
    }
    let transport = match asked.qp_type {
        IBV_QPT_RC => Transport::Rc,
        IBV_QPT_UD => Transport::Ud,
        IBV_QPT_UC => {
            return Err(softrdma::Error::NoTransport(
                "queue pairs of type UC are not in this version: take RC (ibv_rc_pingpong, `-c RC` \
                 for perftest; over iWARP rping, `-c RC -R`)",
            )
            .into());
        }
        _ => return Err(Errno::unsupported("a queue pair of this type")),
    };
    let shared_receives = if asked.srq.is_null() {
        None
    } else {
        // SAFETY: the caller's promise; the field is written once.
        unsafe {
            if (*asked.srq).context != context {
                return Err(Errno::INVALID);
            }
            Some(&object::private(asked.srq)?.queue)
        }
    };
    let queue = |cq: *mut ibv_cq| {
        // SAFETY: the caller's promise; the field is written once.
        unsafe {
            let private = object::private(cq)?;
            if (*cq).context != context {
                return Err(Errno::INVALID);
            }
            Ok(&private.queue)
        }
    };
    let pair = domain.queue_pair(QueuePairOptions {
        transport,
        send_cq: queue(asked.send_cq)?,
        receive_cq: queue(asked.recv_cq)?,
        shared_receives,
        capabilities: convert::capabilities(&asked.cap),
        signal_all: asked.sq_sig_all != 0,
    })?;
    let mut public = qp_ex::slots();
    public.qp_base = ibv_qp {
        context,
        qp_context: asked.qp_context,
        pd,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        handle: domain::next_handle(),
        qp_num: pair.qpn().get(),
        state: IBV_QPS_RESET,
        qp_type: asked.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    // SAFETY: the caller's promise.
    let events = unsafe {
        granted.write(convert::cap(pair.capabilities()));
        Arc::clone(context::device(context)?.events())
    };
    let private = Pair {
        pair,
        events,
        signal_all: asked.sq_sig_all != 0,
        send_operations,
        section: Section::default(),
    };
    let qp = object::publish::<ibv_qp>(public, private);
    // SAFETY: made on the line above.
    unsafe { object::private(qp)? }.pair.set_cookie(qp as u64);
    Ok(qp)
}

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is NULL or allocated; `attributes` is NULL or valid, and so are its objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    guard::<Pointer<ibv_qp>>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { create(pd, &attributes.read(), &raw mut (*attributes).cap, None) }
    })
}

/// The slot behind `ibv_create_qp_ex`: what `ibv_create_qp` can do, and work request builders for
/// the operations of this device; EOPNOTSUPP for flags, other operations and other extensions.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid, with what its mask announces.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guard::<Pointer<ibv_qp>>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; without its bit in the mask a field is not looked at.
        let asked = unsafe { attributes.read() };
        let has = |bit| asked.comp_mask & bit != 0;
        if asked.comp_mask & !EXTENSIONS != 0
            || (has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && asked.create_flags != 0)
        {
            return Err(Errno::UNSUPPORTED);
        }
        let send_operations = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(asked.send_ops_flags);
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        qp_ex::check(asked.qp_type, send_operations.unwrap_or(0), device)?;
        // SAFETY: the caller's promise.
        if !has(IBV_QP_INIT_ATTR_PD) || unsafe { domain::context_of(asked.pd) } != context {
            return Err(Errno::INVALID);
        }
        let basic = ibv_qp_init_attr {
            qp_context: asked.qp_context,
            send_cq: asked.send_cq,
            recv_cq: asked.recv_cq,
            srq: asked.srq,
            cap: asked.cap,
            qp_type: asked.qp_type,
            sq_sig_all: asked.sq_sig_all,
        };
        // SAFETY: the caller's promise.
        unsafe {
            create(
                asked.pd,
                &basic,
                &raw mut (*attributes).cap,
                send_operations,
            )
        }
    })
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was not made for work request builders.
///
/// # Safety
/// `qp` is NULL or a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    match unsafe { object::private(qp) } {
        Ok(private) if private.send_operations.is_some() => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is NULL or a queue pair; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise; the context is written once.
        let (pair, device) =
            unsafe { (&object::private(qp)?.pair, context::device((*qp).context)?) };
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; plain data.
        let asked = unsafe { attributes.read() };
        let (attributes, address, mask) = convert::attributes(&asked, mask, device.kind())?;
        pair.modify(&attributes, &address, mask)?;
        if mask.contains(AttributeMask::STATE) {
            // SAFETY: the caller's promise; the field is the library's to write.
            unsafe { (*qp).state = asked.qp_state };
        }
        Ok(())
    })
}

/// Changes the state and attributes of a queue pair of the connection manager, but for the state
/// that its public structure shows.
///
/// # Safety
/// `qp` is NULL or a queue pair.
pub(crate) unsafe fn modify(
    qp: *mut ibv_qp,
    attributes: &Attributes,
    address: &AddressVector,
    mask: AttributeMask,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::private(qp)? }
        .pair
        .modify(attributes, address, mask)?;
    Ok(())
}

/// `ibv_query_qp`: everything, whatever the mask asks for.
///
/// # Safety
/// `qp` is NULL or a queue pair; the others are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let private = unsafe { object::private(qp)? };
        if attributes.is_null() || init.is_null() {
            return Err(Errno::INVALID);
        }
        let (view, address) = private.pair.query()?;
        // SAFETY: the caller's promise; the state is the library's to write, the rest was written
        // once.
        unsafe {
            (*qp).state = view.state as c_uint;
            attributes.write(convert::queried(&view, &address));
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: convert::cap(&view.capabilities),
                qp_type: (*qp).qp_type,
                sq_sig_all: c_int::from(private.signal_all),
            });
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`: EBUSY while it is attached to a group; what was posted vanishes; waits until
/// the events that the program got are acknowledged.
///
/// # Safety
/// `qp` is NULL or a queue pair, and not used any more if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise. Events name the structure until they are retired, and an
        // acknowledgement reads it: so it goes last.
        unsafe {
            let private = object::private(qp)?;
            if private.pair.is_attached() {
                return Err(Errno(libc::EBUSY));
            }
            let events = Arc::clone(&private.events);
            object::withdraw(qp, || events.retire(qp as u64))
        }
    })
}
