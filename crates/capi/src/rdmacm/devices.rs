//! The devices that IDs are given: opened once, and shared by all IDs of the process.

use core::ffi::{CStr, c_int};
use core::ptr;
use std::sync::{Mutex, PoisonError};

use crate::abi::verbs::{ibv_context, ibv_pd};
use crate::errno::Errno;
use crate::guard::{Pointer, guard};
use crate::log;
use crate::verbs::{context, device, domain};

/// A device, and the protection domain of IDs whose program names none.
struct Opened {
    /// A child of `fork` opens its own.
    pid: u32,
    name: String,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

// SAFETY: both are objects that may be used from any thread.
unsafe impl Send for Opened {}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The device called `name`, with its protection domain.
pub fn open(name: &str) -> Result<(*mut ibv_context, *mut ibv_pd), Errno> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    // one that lost its broker stays for those who have it
    let known = opened.iter().find(|device| {
        // SAFETY: never closed.
        let is_alive =
            || unsafe { context::device(device.context) }.is_ok_and(|device| device.is_usable());
        device.pid == pid && device.name == name && is_alive()
    });
    if let Some(device) = known {
        return Ok((device.context, device.pd));
    }
    let context = find(name)?;
    // SAFETY: it was opened on the line above.
    let pd = unsafe { domain::ibv_alloc_pd(context) };
    if pd.is_null() {
        // SAFETY: as above, and nobody has it.
        unsafe { context::ibv_close_device(context) };
        return Err(Errno(libc::ENOMEM));
    }
    opened.push(Opened {
        pid,
        name: name.to_owned(),
        context,
        pd,
    });
    Ok((context, pd))
}

/// Opens the device of a list that has this name.
fn find(name: &str) -> Result<*mut ibv_context, Errno> {
    let mut count = 0;
    // SAFETY: the list is read up to its end and freed once; its entries are valid until then.
    unsafe {
        let list = device::ibv_get_device_list(&raw mut count);
        if list.is_null() {
            return Err(Errno(libc::ENODEV));
        }
        let entries = (0..usize::try_from(count).unwrap_or(0)).map(|place| *list.add(place));
        let mut context = ptr::null_mut();
        for entry in entries {
            if CStr::from_ptr(device::ibv_get_device_name(entry)).to_bytes() == name.as_bytes() {
                context = context::ibv_open_device(entry);
            }
        }
        device::ibv_free_device_list(list);
        if context.is_null() {
            return Err(Errno(libc::ENODEV));
        }
        Ok(context)
    }
}

/// `rdma_get_devices`: NULL-terminated; freed by `rdma_free_devices`, the devices stay open.
///
/// # Safety
/// `count` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    log::start();
    guard::<Pointer<*mut ibv_context>>(|| {
        let links = softrdma::devices()?;
        let contexts = links
            .iter()
            .map(|link| open(&link.name).map(|(context, _)| context))
            .collect::<Result<Vec<_>, _>>()?;
        if contexts.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        // SAFETY: one zeroed pointer more than there are devices.
        let list: *mut *mut ibv_context =
            unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) }.cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: within the allocation; the caller's promise.
        unsafe {
            ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len());
            if !count.is_null() {
                count.write(c_int::try_from(contexts.len()).unwrap_or(c_int::MAX));
            }
        }
        Ok(list)
    })
}

/// `rdma_free_devices`.
///
/// # Safety
/// `list` is NULL or from `rdma_get_devices`, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}
