//! The list of devices, and what can be asked of one that is not open.

use core::ffi::{c_char, c_int};
use core::mem::zeroed;
use core::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use softrdma::{LinkInfo, LinkKind};

use crate::abi::constants::{IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP};
use crate::abi::verbs::ibv_device;
use crate::errno::Errno;
use crate::guard::{Pointer, guard};
use crate::log;
use crate::object::{self, Public};

/// What is behind an `ibv_device`.
pub struct Listed {
    /// Vendor libraries look at the 8 bytes behind the public structure to see whether a device is
    /// theirs: there is nothing of anybody's.
    _nobodys: [u64; 32],
    link: LinkInfo,
    /// The list it is in, and each context opened from it.
    holders: AtomicUsize,
}

impl Public for ibv_device {
    type Whole = ibv_device;
    type Private = Listed;
}

/// The link of a list's entry.
///
/// # Safety
/// `device` is NULL or an entry that somebody holds.
pub unsafe fn listed_link<'a>(device: *mut ibv_device) -> Result<&'a LinkInfo, Errno> {
    // SAFETY: the caller's promise.
    Ok(unsafe { &object::private(device)?.link })
}

/// One more holds the entry.
///
/// # Safety
/// `device` is NULL or an entry that somebody holds.
pub unsafe fn hold(device: *mut ibv_device) {
    // SAFETY: the caller's promise.
    if let Ok(listed) = unsafe { object::private(device) } {
        listed.holders.fetch_add(1, Ordering::Relaxed);
    }
}

/// One less holds it; the last one frees it.
///
/// # Safety
/// `device` is NULL or an entry that the caller holds, and does not use any more.
pub unsafe fn release(device: *mut ibv_device) {
    // SAFETY: the caller's promise; who brings the count to 0 is alone.
    unsafe {
        let last = object::private(device)
            .is_ok_and(|listed| listed.holders.fetch_sub(1, Ordering::AcqRel) == 1);
        if last {
            // not NULL, or there would be no count
            let _ = object::withdraw(device, || ());
        }
    }
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    log::start();
    guard::<Pointer<*mut ibv_device>>(|| {
        let links = softrdma::devices();
        let found = links.as_ref().map_or(0, Vec::len);
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { count.write(c_int::try_from(found).unwrap_or(c_int::MAX)) };
        }
        let links = links?;
        // SAFETY: one zeroed pointer more than there are devices: the list ends with NULL.
        let list: *mut *mut ibv_device =
            unsafe { libc::calloc(found + 1, size_of::<*mut ibv_device>()) }.cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (place, link) in links.into_iter().enumerate() {
            // SAFETY: within the allocation.
            unsafe { list.add(place).write(entry(link)) };
        }
        Ok(list)
    })
}

fn entry(link: LinkInfo) -> *mut ibv_device {
    // SAFETY: NULL slots, zero numbers, empty strings.
    let mut public: ibv_device = unsafe { zeroed() };
    (public.node_type, public.transport_type) = match link.kind {
        LinkKind::Rxe => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        LinkKind::Siw => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
    };
    write_text(&mut public.name, &link.name);
    // The kernel numbers its character devices; the number of the link serves as well.
    let uverbs = format!("uverbs{}", link.index);
    write_text(&mut public.dev_name, &uverbs);
    write_text(
        &mut public.dev_path,
        &format!("/sys/class/infiniband_verbs/{uverbs}"),
    );
    write_text(
        &mut public.ibdev_path,
        &format!("/sys/class/infiniband/{}", link.name),
    );
    object::publish(
        public,
        Listed {
            _nobodys: [0; 32],
            link,
            holders: AtomicUsize::new(1),
        },
    )
}

/// Fills a C string; what does not fit is cut, and a NUL always ends it.
pub fn write_text<const N: usize>(into: &mut [c_char; N], text: &str) {
    for (to, byte) in into[..N - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

/// `ibv_free_device_list`. Entries that contexts were opened from stay.
///
/// # Safety
/// `list` is NULL or from `ibv_get_device_list`, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the list ends with NULL, and each entry is held by it.
    unsafe {
        let mut place = list;
        while !(*place).is_null() {
            release(*place);
            place = place.add(1);
        }
        libc::free(list.cast());
    }
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` is NULL or an entry that somebody holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: the caller's promise; only the address is taken.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`: in network byte order; 0 for NULL.
///
/// # Safety
/// `device` is NULL or an entry that somebody holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { listed_link(device) }.map_or(0, |link| u64::from_ne_bytes(link.node_guid()))
}

/// `ibv_get_device_index`: the number that `rdma link` shows; −1 for NULL.
///
/// # Safety
/// `device` is NULL or an entry that somebody holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller's promise.
    let link = unsafe { listed_link(device) };
    link.ok()
        .and_then(|link| c_int::try_from(link.index).ok())
        .unwrap_or(-1)
}
