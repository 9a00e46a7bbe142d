//! IDs: made, given addresses, and destroyed.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::zeroed;
use core::ptr;
use std::net::SocketAddr;

use libc::sockaddr;
use softrdma::cm::{Id, PortSpace};

use super::{address as convert, channel, devices};
use crate::abi::constants::IBV_QPT_RC;
use crate::abi::rdma_cma::{ibv_sa_path_rec, rdma_cm_id, rdma_event_channel};
use crate::abi::verbs::ibv_gid;
use crate::errno::Errno;
use crate::guard::{Number, guard};
use crate::log;
use crate::object::{self, Public};
use crate::verbs::query::PORT;

/// What is behind an `rdma_cm_id`.
pub struct IdPart {
    pub(super) id: Id,
    /// The channel that was made for it, as the program gave none: then calls wait for their event.
    pub(super) own_channel: *mut rdma_event_channel,
}

impl Public for rdma_cm_id {
    type Whole = Self;
    type Private = IdPart;
}

/// Options of `rdma_set_option`, level `RDMA_OPTION_ID`.
const OPTION_TOS: c_int = 0;
const OPTION_REUSEADDR: c_int = 1;
const OPTION_AFONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;
const LEVEL_ID: c_int = 0;
/// The most that an acknowledgement timeout can be: 5 bits.
const ACK_TIMEOUT_MAX: u8 = 31;

/// The private part of an ID; EINVAL for NULL.
///
/// # Safety
/// `id` is NULL or an ID.
pub(super) unsafe fn own<'a>(id: *mut rdma_cm_id) -> Result<&'a IdPart, Errno> {
    // SAFETY: the caller's promise.
    unsafe { object::private(id) }
}

/// An ID as C has it.
///
/// # Safety
/// `channel` is a channel.
pub(super) unsafe fn publish(
    id: Id,
    channel: *mut rdma_event_channel,
    own_channel: *mut rdma_event_channel,
    space: PortSpace,
    context: *mut c_void,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: NULL pointers, zero numbers, no addresses.
    let mut public: rdma_cm_id = unsafe { zeroed() };
    public.channel = channel;
    public.context = context;
    public.ps = space as c_uint;
    public.qp_type = IBV_QPT_RC;
    let made = object::publish(public, IdPart { id, own_channel });
    // SAFETY: made on the line above.
    unsafe { own(made)? }.id.set_cookie(made as u64);
    Ok(made)
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
        let space = u16::try_from(space)
            .ok()
            .and_then(PortSpace::from_code)
            .ok_or(Errno(libc::EPROTONOSUPPORT))?;
        if !matches!(space, PortSpace::Tcp | PortSpace::Ib) {
            return Err(Errno::unsupported("a port space of datagrams"));
        }
        if to.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; a channel made here is freed with the ID, or here.
        unsafe {
            let own_channel = if channel.is_null() {
                channel::create()?
            } else {
                ptr::null_mut()
            };
            let channel = if channel.is_null() {
                own_channel
            } else {
                channel
            };
            let made = channel::events(channel)
                .and_then(|events| Ok(Id::new(&events, space)?))
                .and_then(|id| publish(id, channel, own_channel, space, context));
            match made {
                Ok(id) => to.write(id),
                Err(errno) => {
                    channel::destroy(own_channel);
                    return Err(errno);
                }
            }
        }
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
            let own_channel = own(id)?.own_channel;
            if !(*id).event.is_null() {
                channel::softrdma_rdma_ack_cm_event((*id).event);
                (*id).event = ptr::null_mut();
            }
            own(id)?.id.destroy();
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

/// What `rdma_resolve_addr` does before it waits, if it does. The time-out has no meaning: a route
/// is there or not, and neighbours are the kernel's to find.
///
/// # Safety
/// `id` is NULL or an ID; the addresses are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_cm_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let part = own(id)?;
            let destination = convert::read(destination)?.ok_or(Errno::INVALID)?;
            part.id
                .resolve_address(convert::read(source)?, destination)?;
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

/// `rdma_migrate_id`: its events come through another channel, or one of its own.
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
            if channel.is_null() || !part.own_channel.is_null() {
                return Err(Errno::unsupported(
                    "an ID that changes between waiting and events",
                ));
            }
            part.id.migrate(&channel::events(channel)?)?;
            (*id).channel = channel;
        }
        Ok(0)
    })
}

/// `rdma_set_option`.
///
/// # Safety
/// `id` is NULL or an ID; `value` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let part = unsafe { own(id)? };
        if level != LEVEL_ID || !(OPTION_TOS..=OPTION_ACK_TIMEOUT).contains(&option) {
            return Err(Errno(libc::ENOSYS));
        }
        let is_flag = matches!(option, OPTION_REUSEADDR | OPTION_AFONLY);
        let size = if is_flag { size_of::<c_int>() } else { 1 };
        if value.is_null() || length != size {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise: there are so many bytes.
        let (byte, flag) = unsafe {
            if is_flag {
                (0, value.cast::<c_int>().read_unaligned() != 0)
            } else {
                (value.cast::<u8>().read(), false)
            }
        };
        if option == OPTION_ACK_TIMEOUT && byte > ACK_TIMEOUT_MAX {
            return Err(Errno::INVALID);
        }
        part.id.set_options(|options| match option {
            OPTION_TOS => options.traffic_class = byte,
            OPTION_REUSEADDR => options.reuse_address = flag,
            OPTION_AFONLY => options.family_only = flag,
            _ => options.ack_timeout = byte,
        })?;
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
        let Some(path) = own(id)?.id.path() else {
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
