//! GID and P_Key tables.

use core::ffi::{c_int, c_uint};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use softrdma::{Device, GidEntry, LinkKind};

use super::context;
use super::query::PORT;
use crate::abi::constants::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2};
use crate::abi::verbs::{ibv_context, ibv_gid, ibv_gid_entry};
use crate::errno::Errno;
use crate::guard::{Count, Number, Status, caught, guard};

/// `ibv_query_gid_type` has numbers of its own: those of the kernel's text files.
const TYPE_IB_ROCE_V1: c_uint = 0;
const TYPE_ROCE_V2: c_uint = 1;

/// The entry at `index`; ENODATA for an empty one, EINVAL beyond the table.
fn entry(device: &Device, port: u32, index: u32) -> Result<GidEntry, Errno> {
    if port != u32::from(PORT) {
        return Err(Errno::INVALID);
    }
    device.gid(index)?.ok_or(Errno(libc::ENODATA))
}

fn public(device: &Device, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: u32::from(entry.index),
        port_num: u32::from(PORT),
        gid_type: match device.kind() {
            LinkKind::Rxe => IBV_GID_TYPE_ROCE_V2,
            LinkKind::Siw => IBV_GID_TYPE_IB,
        },
        ndev_ifindex: entry.ifindex,
    }
}

/// Empty entries that the program asked for: none, one (its index is kept), or several, as who
/// lists the table does.
struct Vain(AtomicU32);

static VAIN: Vain = Vain(AtomicU32::new(Vain::NONE));

impl Vain {
    const NONE: u32 = u32::MAX;
    const SEVERAL: u32 = u32::MAX - 1;

    fn note(&self, index: u32) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| match known {
                Self::NONE => Some(index),
                _ if known == index => None,
                _ => Some(Self::SEVERAL),
            });
    }

    /// The index, if there was one.
    fn only(&self) -> Option<u16> {
        u16::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// Why an address names no GID: there is none at the index that the program asked for, or it never
/// asked.
pub fn missing() -> softrdma::Error {
    match VAIN.only() {
        Some(index) => softrdma::Error::EmptyChoice(index),
        None => softrdma::Error::NoGid,
    }
}

/// `ibv_query_gid`: the zero GID for an empty entry.
///
/// # Safety
/// `context` is NULL or open; `gid` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        let index = u32::try_from(index).map_err(|_| Errno::INVALID)?;
        if gid.is_null() {
            return Err(Errno::INVALID);
        }
        let raw = match entry(device, u32::from(port), index) {
            Ok(entry) => entry.gid.0,
            Err(Errno(libc::ENODATA)) => {
                VAIN.note(index);
                [0; 16]
            }
            Err(errno) => return Err(errno),
        };
        // SAFETY: the caller's promise; a GID of C may be unaligned for nothing but its u64 view.
        unsafe { gid.write_unaligned(ibv_gid { raw }) };
        Ok(0)
    })
}

/// `ibv_query_gid_ex`.
///
/// # Safety
/// `context` is NULL or open; `to` is NULL or valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if to.is_null() || flags != 0 {
            return Err(Errno::INVALID);
        }
        let found = public(device, &entry(device, port, index)?);
        // SAFETY: the caller's promise.
        unsafe { write_entry(to.cast(), &found, size) };
        Ok(())
    })
}

/// `ibv_query_gid_table`: all valid entries; EINVAL if there are more than the caller has room for.
///
/// # Safety
/// `context` is NULL or open; `to` is NULL or valid for `max` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    guard::<Count>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        let valid = device.gids()?;
        if to.is_null() || flags != 0 || valid.len() > max {
            return Err(Errno::INVALID);
        }
        for (place, entry) in valid.iter().enumerate() {
            // SAFETY: the caller's promise, and `place` is below `max`.
            unsafe {
                write_entry(
                    to.cast::<u8>().add(place * size),
                    &public(device, entry),
                    size,
                )
            };
        }
        isize::try_from(valid.len()).map_err(|_| Errno::INVALID)
    })
}

/// Writes an entry of the caller's size: what we do not know is zero, what it does not know is cut.
///
/// # Safety
/// `to` is valid for `size` bytes.
unsafe fn write_entry(to: *mut u8, entry: &ibv_gid_entry, size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        ptr::write_bytes(to, 0, size);
        let known = size.min(size_of::<ibv_gid_entry>());
        ptr::copy_nonoverlapping(ptr::from_ref(entry).cast::<u8>(), to, known);
    }
}

/// `ibv_query_gid_type`, under the private node of each release: RoCE v2, and for an empty entry
/// what the kernel's interface answered before there were types. −1 with `errno`.
///
/// # Safety
/// `context` is NULL or open; `kind` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if kind.is_null() {
            return Err(Errno::INVALID);
        }
        let value = match entry(device, u32::from(port), index) {
            Ok(_) if device.kind() == LinkKind::Rxe => TYPE_ROCE_V2,
            Ok(_) => TYPE_IB_ROCE_V1,
            Err(Errno(libc::ENODATA)) => TYPE_IB_ROCE_V1,
            Err(errno) => return Err(errno),
        };
        // SAFETY: the caller's promise.
        unsafe { kind.write(value) };
        Ok(0)
    })
}

/// `ibv_query_pkey`: the key in network byte order; −1 with ENOENT beyond the table.
///
/// # Safety
/// `context` is NULL or open; `pkey` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if port != PORT || pkey.is_null() {
            return Err(Errno::INVALID);
        }
        let found = u32::try_from(index)
            .ok()
            .and_then(|index| device.pkey(index));
        let found = found.ok_or(Errno(libc::ENOENT))?;
        // SAFETY: the caller's promise.
        unsafe { pkey.write(found.0.to_be()) };
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: where a key (in network byte order) is; −1 if it is nowhere.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if port != PORT {
            return Err(Errno::INVALID);
        }
        let length = device.attributes().max_pkeys;
        let at = (0..length).find(|index| {
            device
                .pkey(u32::from(*index))
                .is_some_and(|key| key.0.to_be() == pkey)
        });
        at.map(c_int::from).ok_or(Errno(libc::ENOENT))
    })
}

/// The index of a GID in the table of the context's device.
///
/// # Safety
/// `context` is NULL or open.
pub unsafe fn index_of(context: *mut ibv_context, gid: [u8; 16]) -> Result<u8, Errno> {
    caught(|| {
        // SAFETY: the caller's promise.
        let gids = unsafe { context::device(context)? }.gids()?;
        let entry = gids.iter().find(|entry| entry.gid.0 == gid);
        entry
            .and_then(|entry| u8::try_from(entry.index).ok())
            .ok_or(Errno(libc::ENOENT))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_entry_is_the_programs_choice_if_it_asked_for_no_other() {
        let vain = Vain(AtomicU32::new(Vain::NONE));
        assert_eq!(vain.only(), None);
        vain.note(7);
        vain.note(7);
        assert_eq!(vain.only(), Some(7));
        vain.note(8);
        assert_eq!(vain.only(), None);
        vain.note(7);
        assert_eq!(vain.only(), None);
    }
}
