//! Event channels, and the events that come through them. Waiting is done in `shim/blocking.c`.

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

use softrdma::State;
use softrdma::cm::{CmEvent, DatagramPeer, EventChannel, EventKind};

use super::id::{
    Channel as ChannelOfId, Traits, own, port_space, publish, settle, show, show_route,
};
use super::{multicast, pair};
use crate::abi::rdma_cma::{
    cm_event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use crate::errno::Errno;
use crate::guard::{Number, Pointer, caught, guard};
use crate::log;
use crate::object::{self, Public};
use crate::verbs;

/// What is behind an `rdma_event_channel`.
pub struct Channel {
    events: Arc<EventChannel>,
    /// One event after the other: a later one may be about the ID that an earlier one makes.
    taking: Mutex<()>,
}

impl Public for rdma_event_channel {
    type Whole = Self;
    type Private = Channel;
}

/// What is behind an `rdma_cm_event`.
pub struct Fetched {
    /// Where, and by which number, it is acknowledged.
    channel: Arc<EventChannel>,
    number: u64,
    /// What the structure points to.
    _private_data: Box<[u8]>,
}

impl Public for rdma_cm_event {
    type Whole = Self;
    type Private = Fetched;
}

/// Makes a channel.
pub(super) fn create() -> Result<*mut rdma_event_channel, Errno> {
    let events = EventChannel::new().map_err(|errno| Errno(errno.raw_os_error()))?;
    let fd = events.as_fd().as_raw_fd();
    let channel = Channel {
        events: Arc::new(events),
        taking: Mutex::new(()),
    };
    Ok(object::publish(rdma_event_channel { fd }, channel))
}

/// Frees a channel; of NULL nothing.
///
/// # Safety
/// `channel` is NULL or a channel, and not used any more.
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise. NULL is refused.
    let _ = unsafe { object::withdraw(channel, || ()) };
}

/// The events of a channel; EINVAL for NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
pub(super) unsafe fn events(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
    // SAFETY: the caller's promise.
    Ok(Arc::clone(&unsafe { object::private(channel)? }.events))
}

/// `rdma_create_event_channel`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rdma_create_event_channel() -> *mut rdma_event_channel {
    log::start();
    guard::<Pointer<rdma_event_channel>>(create)
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// `channel` is NULL or a channel without IDs, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _ = caught(|| {
        // SAFETY: the caller's promise.
        unsafe { destroy(channel) };
        Ok(())
    });
}

/// The descriptor that a channel's events are counted on; −1 with `errno`.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_descriptor(channel: *mut rdma_event_channel) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let part = unsafe { object::private(channel)? };
        Ok(part.events.as_fd().as_raw_fd())
    })
}

/// The channel that a call on this ID is about to wait on; NULL if the program fetches events
/// itself. The event of an earlier call has served its time.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_waits_on(id: *mut rdma_cm_id) -> *mut rdma_event_channel {
    let channel = caught(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let channel = own(id)?.own_channel();
            if !channel.is_null() {
                settle(id);
            }
            Ok(channel)
        }
    });
    channel.unwrap_or(ptr::null_mut())
}

/// Keeps the event that a call on this ID waited for, and says what it means for the call: 0, or −1
/// with `errno`.
///
/// # Safety
/// `id` is an ID with a channel of its own; `event` was fetched from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_keep(id: *mut rdma_cm_id, event: *mut rdma_cm_event) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise; the field is the library's to write.
        unsafe {
            settle(id);
            (*id).event = event;
            verdict(event)
        }
    })
}

/// What an event means for the call that waited for it.
///
/// # Safety
/// `event` was fetched.
pub(super) unsafe fn verdict(event: *const rdma_cm_event) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(0),
        _ if kind == EventKind::Rejected as u32 => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}

/// The event that a unit of that descriptor stands for; false if it was taken back, or is not the
/// program's to see.
///
/// # Safety
/// `channel` is a channel; `to` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_take_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> bool {
    let taken = caught(|| {
        // SAFETY: the caller's promise.
        let part = unsafe { object::private(channel)? };
        let _taking = part.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queued) = part.events.pop() else {
            return Ok(false);
        };
        let (event, number) = (queued.kind, queued.cookie);
        // SAFETY: the cookie is the ID's address, and it is not destroyed before its events are
        // acknowledged.
        match unsafe { convert(event) } {
            Ok((public, private_data)) => {
                let fetched = Fetched {
                    channel: Arc::clone(&part.events),
                    number,
                    _private_data: private_data,
                };
                // SAFETY: the caller's promise.
                unsafe { to.write(object::publish(public, fetched)) };
                Ok(true)
            }
            Err(errno) => {
                tracing::warn!(?errno, "a request for a connection is lost");
                part.events.acknowledge(number, 1);
                Ok(false)
            }
        }
    });
    taken.unwrap_or(false)
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// `event` is NULL or was given by `rdma_get_cm_event`, and not acknowledged before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let Fetched {
                channel, number, ..
            } = object::private(event)?;
            let (channel, number) = (Arc::clone(channel), *number);
            object::withdraw(event, || channel.acknowledge(number, 1))?;
        }
        Ok(0)
    })
}

/// An event as C has it, with what that points to; and what is to be done when a program learns of
/// it.
///
/// # Safety
/// The ID of the event exists.
unsafe fn convert(mut event: CmEvent) -> Result<(rdma_cm_event, Box<[u8]>), Errno> {
    let about = event.cookie() as *mut rdma_cm_id;
    let (mut id, mut listener) = (about, ptr::null_mut());
    let mut kind = event.kind;
    let mut status = event.status;
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            EventKind::ConnectRequest => {
                let request = event.request.take().ok_or(Errno::INVALID)?;
                (id, listener) = (requested(about, request)?, about);
            }
            EventKind::AddressResolved => show(about)?,
            EventKind::RouteResolved => show_route(about)?,
            EventKind::ConnectResponse if !(*about).qp.is_null() => {
                match establish(about) {
                    Ok(()) => kind = EventKind::Established,
                    Err(Errno(errno)) => {
                        (kind, status) = (EventKind::ConnectError, -errno);
                        // the peer waits; on what is over already there is nothing to refuse
                        let _ = own(about)?.id.reject(&[]);
                        let _ = pair::advance(about, State::Error);
                    }
                }
            }
            EventKind::MulticastJoin => {
                let group = event.datagram_peer.map(|peer| peer.address.dest);
                if let Some(Err(Errno(errno))) =
                    group.map(|group| multicast::complete(about, group))
                {
                    (kind, status) = (EventKind::MulticastError, -errno);
                }
            }
            EventKind::Rejected => {
                // a queue pair in RESET stays there
                let _ = pair::advance(about, State::Error);
            }
            _ => {}
        }
    }
    let private_data = std::mem::take(&mut event.parameters.private_data).into_boxed_slice();
    let mut public = rdma_cm_event {
        id,
        listen_id: listener,
        event: kind as u32,
        status,
        param: parameters(&event, &private_data),
    };
    if event.kind == EventKind::MulticastJoin
        && let Some(peer) = event.datagram_peer
    {
        // SAFETY: the caller's promise.
        let part = unsafe { own(about)? };
        public.param.ud.private_data = multicast::context_of(part, peer.address.dest);
    }
    Ok((public, private_data))
}

/// Makes the ID of a request: a copy of its listener, with the peer's address and the device.
///
/// # Safety
/// `listener` is an ID.
unsafe fn requested(
    listener: *mut rdma_cm_id,
    request: softrdma::cm::Id,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        request.delivered();
        let traits = Traits {
            space: port_space((*listener).ps)?,
            qp_type: (*listener).qp_type,
            context: (*listener).context,
        };
        let waits = !own(listener)?.own_channel().is_null();
        let given = if waits {
            // each of them waits for its own
            ptr::null_mut()
        } else {
            (*listener).channel
        };
        let channel = ChannelOfId::new(given)?;
        let moved = if waits {
            request.migrate(&events(channel.used)?).map_err(Errno::from)
        } else {
            Ok(())
        };
        let id = match moved.and_then(|()| publish(request, &channel, &traits)) {
            Ok(id) => id,
            Err(errno) => {
                channel.give_back();
                return Err(errno);
            }
        };
        if let Err(errno) = show_route(id) {
            super::id::softrdma_rdma_destroy_id(id);
            return Err(errno);
        }
        Ok(id)
    }
}

/// The peer has accepted: this side's queue pair is moved, then the peer is told.
///
/// # Safety
/// `id` is an ID with a queue pair.
unsafe fn establish(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        pair::connect(id)?;
        own(id)?.id.establish()?;
    }
    Ok(())
}

/// Of a datagram queue pair there is another member of the union, which begins in the same way.
fn parameters(event: &CmEvent, private_data: &[u8]) -> cm_event_param {
    // SAFETY: plain numbers and NULL; the union is as large as its larger member.
    let mut param: cm_event_param = unsafe { zeroed() };
    let data: *const c_void = if private_data.is_empty() {
        ptr::null()
    } else {
        private_data.as_ptr().cast()
    };
    if event.kind == EventKind::User {
        param.arg = event.argument;
        return param;
    }
    // RoCE's longest field has 224 bytes; of iWARP's the program sees as much as C can tell
    let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    if let Some(DatagramPeer { address, qpn, qkey }) = event.datagram_peer {
        param.ud = rdma_ud_param {
            private_data: data,
            private_data_len: length,
            ah_attr: verbs::convert::ah_attr(&address),
            qp_num: qpn,
            qkey: qkey.0,
        };
        return param;
    }
    let from = &event.parameters;
    param.conn = rdma_conn_param {
        private_data: data,
        private_data_len: length,
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        flow_control: u8::from(from.flow_control),
        retry_count: from.retry_count,
        rnr_retry_count: from.rnr_retry_count,
        srq: u8::from(from.has_srq),
        qp_num: from.qpn,
    };
    param
}
