//! IDs: made, given addresses, and destroyed.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use libc::sockaddr;
use softrdma::Transport;
use softrdma::cm::{Id, PortSpace};

use super::multicast::Joined;
use super::{address as convert, channel, devices, info};
use crate::abi::constants::{IBV_QPT_RC, IBV_QPT_UD};
use crate::abi::rdma_cma::{ibv_sa_path_rec, rdma_addrinfo, rdma_cm_id, rdma_event_channel};
use crate::abi::verbs::{ibv_gid, ibv_qp_init_attr};
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::log;
use crate::object::{self, Public};
use crate::verbs::query::PORT;

/// What is behind an `rdma_cm_id`.
pub struct IdPart {
    pub(super) id: Id,
    /// The channel that was made for it, as the program gave none: then calls wait for their event.
    own_channel: AtomicPtr<rdma_event_channel>,
    /// Of a listening endpoint: what the queue pairs of its requests are made of.
    pub(super) template: OnceLock<ibv_qp_init_attr>,
    /// What `rdma_resolve_addrinfo` found, until the program takes it.
    pub(super) names: AtomicPtr<rdma_addrinfo>,
    /// The multicast groups that it has joined.
    pub(super) joined: Mutex<Vec<Joined>>,
    /// Calls that take their time.
    pub(super) calls: Calls,
}

/// Calls under way in other threads, which the end of an ID waits for, as the kernel's does.
#[derive(Default)]
pub(super) struct Calls {
    count: Mutex<usize>,
    none: Condvar,
}

/// One of them, until it is dropped.
pub(super) struct Call<'a>(&'a Calls);

impl Calls {
    pub(super) fn begin(&self) -> Call<'_> {
        *self.lock() += 1;
        Call(self)
    }

    fn wait_for_none(&self) {
        let mut count = self.lock();
        while *count > 0 {
            count = self
                .none
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count -= 1;
        // with the lock: who waits frees all of this
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl IdPart {
    /// The channel that its calls wait on; NULL if the program fetches events itself.
    pub(super) fn own_channel(&self) -> *mut rdma_event_channel {
        self.own_channel.load(Ordering::Acquire)
    }
}

impl Public for rdma_cm_id {
    type Whole = Self;
    type Private = IdPart;
}

/// The private part of an ID; EINVAL for NULL.
///
/// # Safety
/// `id` is NULL or an ID.
pub(super) unsafe fn own<'a>(id: *mut rdma_cm_id) -> Result<&'a IdPart, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::private(id) }
}

/// Acknowledges the event that the ID keeps from the last call that waited, if there is one.
///
/// # Safety
/// `id` is an ID, and the program no longer looks at the event.
pub(super) unsafe fn settle(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; the field is the library's to write.
    unsafe {
        if !(*id).event.is_null() {
            channel::softrdma_rdma_ack_cm_event((*id).event);
            (*id).event = ptr::null_mut();
        }
    }
}

/// What an ID has from its beginning.
pub(super) struct Traits {
    pub space: PortSpace,
    pub qp_type: c_uint,
    pub context: *mut c_void,
}

/// The channel of an ID: the program's, or one of its own if that is NULL.
pub(super) struct Channel {
    pub used: *mut rdma_event_channel,
    own: *mut rdma_event_channel,
}

impl Channel {
    pub(super) fn new(given: *mut rdma_event_channel) -> Result<Self, Errno> {
        let own = if given.is_null() {
            channel::create()?
        } else {
            ptr::null_mut()
        };
        let used = if given.is_null() { own } else { given };
        Ok(Self { used, own })
    }

    /// An ID that could not be made needs none.
    ///
    /// # Safety
    /// Nobody uses it.
    pub(super) unsafe fn give_back(self) {
        // SAFETY: the caller's promise; of NULL nothing.
        unsafe { channel::destroy(self.own) };
    }
}

/// An ID as C has it.
pub(super) fn publish(
    id: Id,
    channel: &Channel,
    traits: &Traits,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: NULL pointers, zero numbers, no addresses.
    let mut public: rdma_cm_id = unsafe { zeroed() };
    public.channel = channel.used;
    public.context = traits.context;
    public.ps = traits.space as c_uint;
    public.qp_type = traits.qp_type;
    let part = IdPart {
        id,
        own_channel: AtomicPtr::new(channel.own),
        template: OnceLock::new(),
        names: AtomicPtr::default(),
        joined: Mutex::default(),
        calls: Calls::default(),
    };
    let made = object::publish(public, part);
    // SAFETY: made on the line above.
    unsafe { own(made)? }.id.set_cookie(made as u64);
    Ok(made)
}

/// The port space with this number; EINVAL for others.
pub(super) fn port_space(number: c_uint) -> Result<PortSpace, Errno> {
    let code = u16::try_from(number).ok();
    code.and_then(PortSpace::from_code).ok_or(Errno::INVALID)
}

/// The type of queue pair that a port space is for, where it is for one.
fn usual_type(space: PortSpace) -> c_uint {
    match space {
        PortSpace::Tcp | PortSpace::Ib => IBV_QPT_RC,
        PortSpace::Udp | PortSpace::IpOverIb => IBV_QPT_UD,
    }
}

/// Makes an ID.
///
/// # Safety
/// `channel` is NULL or a channel.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    traits: &Traits,
) -> Result<*mut rdma_cm_id, Errno> {
    // only the port space of InfiniBand leaves it to the program
    let kind = match traits.space {
        PortSpace::Ib => traits.qp_type,
        other => usual_type(other),
    };
    let transport = match kind {
        IBV_QPT_UD => Transport::Ud,
        _ => Transport::Rc,
    };
    let channel = Channel::new(channel)?;
    // SAFETY: the caller's promise, or it was just made.
    let made = unsafe { channel::events(channel.used) }
        .and_then(|events| Ok(Id::with_transport(&events, traits.space, transport)?))
        .and_then(|id| publish(id, &channel, traits));
    if made.is_err() {
        // SAFETY: there is no ID that could use it.
        unsafe { channel.give_back() };
    }
    made
}

/// `rdma_create_id`.
///
/// # Safety
/// `channel` is NULL or a channel; `to` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    log::start();
    guard::<Number>(|| {
        let space = port_space(space)?;
        if to.is_null() {
            return Err(Errno::INVALID);
        }
        let traits = Traits {
            space,
            qp_type: usual_type(space),
            context,
        };
        // SAFETY: the caller's promise.
        unsafe { to.write(create(channel, &traits)?) };
        Ok(0)
    })
}

/// `rdma_destroy_id`: waits until the events that the program got are acknowledged.
///
/// # Safety
/// `id` is NULL or an ID, and not used any more; its queue pair is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let own_channel = own(id)?.own_channel();
            settle(id);
            own(id)?.id.destroy();
            own(id)?.calls.wait_for_none();
            info::softrdma_rdma_freeaddrinfo(own(id)?.names.load(Ordering::Acquire));
            let path = (*id).route.path_rec;
            object::withdraw(id, || ())?;
            libc::free(path.cast());
            channel::destroy(own_channel);
        }
        Ok(0)
    })
}

/// `rdma_bind_addr`.
///
/// # Safety
/// `id` is NULL or an ID; `address` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            let address = convert::read(address)?.ok_or(Errno::INVALID)?;
            part.id.bind(address)?;
            show(id)?;
        }
        Ok(0)
    })
}

/// What `rdma_resolve_addr` does before it waits, if it does. The time-out, in milliseconds without
/// a sign as the kernel takes it, is for finding the neighbour: a route is there or not.
///
/// # Safety
/// `id` is NULL or an ID; the addresses are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    guard::<Number>(|| {
        let patience = Duration::from_millis(u64::from(timeout_ms as u32));
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            let destination = convert::read(destination)?.ok_or(Errno::INVALID)?;
            part.id
                .resolve_address(convert::read(source)?, destination, Some(patience))?;
        }
        Ok(0)
    })
}

/// What `rdma_resolve_route` does before it waits.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_resolve_route(id: *mut rdma_cm_id) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe { own(id)? }.id.resolve_route()?;
        Ok(0)
    })
}

/// `rdma_listen`.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            own(id)?.id.listen(backlog)?;
            show(id)?;
        }
        Ok(0)
    })
}

/// `rdma_migrate_id`: its events come through another channel, or through one of its own, so that
/// calls wait from now on. Waits until the events that the program got are acknowledged.
///
/// # Safety
/// `id` is NULL or an ID; `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            let before = part.own_channel();
            if channel.is_null() && !before.is_null() {
                return Err(Errno::INVALID);
            }
            let to = Channel::new(channel)?;
            settle(id);
            if let Err(error) = part.id.migrate(&channel::events(to.used)?) {
                to.give_back();
                return Err(error.into());
            }
            part.own_channel.store(to.own, Ordering::Release);
            (*id).channel = to.used;
            channel::destroy(before);
        }
        Ok(0)
    })
}

/// `rdma_get_src_port`: in network byte order; 0 if there is none.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    convert::port(unsafe { &(*id).route.addr.src_storage })
}

/// `rdma_get_dst_port`: in network byte order; 0 if there is none.
///
/// # Safety
/// `id` is NULL or an ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    if id.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    convert::port(unsafe { &(*id).route.addr.dst_storage })
}

/// Writes what is known of the ID into the structure that programs and inline functions read.
///
/// # Safety
/// `id` is an ID.
pub(super) unsafe fn show(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the fields are the library's to write.
    unsafe {
        let part = own(id)?;
        let gid = |address: SocketAddr| ibv_gid {
            raw: softrdma::Gid::from_ip(address.ip()).0,
        };
        let address = &raw mut (*id).route.addr;
        let (local, remote) = (part.id.local(), part.id.remote());
        if let Some(local) = local {
            (*address).src_storage = convert::storage(local);
        }
        if let Some(remote) = remote {
            (*address).dst_storage = convert::storage(remote);
        }
        if let Some(link) = part.id.link()
            && (*id).verbs.is_null()
        {
            let (verbs, pd) = devices::open(&link)?;
            ((*id).verbs, (*id).pd, (*id).port_num) = (verbs, pd, PORT);
        }
        if (*id).verbs.is_null() {
            return Ok(());
        }
        (*address).addr.pkey = u16::MAX.to_be();
        if let Some(local) = local {
            (*address).addr.sgid = gid(local);
        }
        if let Some(remote) = remote {
            (*address).addr.dgid = gid(remote);
        }
    }
    Ok(())
}

/// Writes the path record, once the route is known.
///
/// # Safety
/// `id` is an ID.
pub(super) unsafe fn show_route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the record is freed with the ID.
    unsafe {
        show(id)?;
        let part = own(id)?;
        // streams have no path record
        let Some(path) = part.id.path().filter(|_| !part.id.is_stream()) else {
            return Ok(());
        };
        if (*id).route.path_rec.is_null() {
            let record: *mut ibv_sa_path_rec = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast();
            if record.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            (*id).route.path_rec = record;
        }
        let record = (*id).route.path_rec;
        (*record).sgid = (*id).route.addr.addr.sgid;
        (*record).dgid = (*id).route.addr.addr.dgid;
        (*record).pkey = (*id).route.addr.addr.pkey;
        (*record).flow_label = path.flow_label.to_be();
        (*record).hop_limit = path.hop_limit;
        (*record).traffic_class = path.traffic_class;
        (*record).reversible = 1;
        (*record).numb_path = 1;
        (*id).route.num_paths = 1;
    }
    Ok(())
}
