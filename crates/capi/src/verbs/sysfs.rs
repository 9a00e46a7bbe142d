//! `ibv_read_sysfs_file`: the kernel's files about a device, answered from the device itself, as
//! there is no such folder.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use std::io::Read;
use std::path::Path;

use softrdma::{LinkInfo, PhysicalState, PortState};

use crate::errno::Errno;
use crate::guard::{Number, guard};

/// Where the kernel has its devices.
const DEVICES: &str = "/sys/class/infiniband/";

/// `ibv_get_sysfs_path`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the length of the text without its line end; −1 with `errno`.
///
/// # Safety
/// `folder` and `file` are NULL or strings; `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guard::<Number>(|| {
        if folder.is_null() || file.is_null() || buffer.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let folder = folder.to_str().map_err(|_| Errno(libc::ENOENT))?;
        let file = file.to_str().map_err(|_| Errno(libc::ENOENT))?;
        let path = format!("{folder}/{file}");
        let mut text = match of_our_device(&path)? {
            Some(text) => text.into_bytes(),
            None => of_the_kernel(&path, size)?,
        };
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        text.truncate(size);
        // SAFETY: the caller's promise; no more than `size` bytes.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
            if text.len() < size {
                buffer.add(text.len()).write(0);
            }
        }
        c_int::try_from(text.len()).map_err(|_| Errno::INVALID)
    })
}

fn of_the_kernel(path: &str, size: usize) -> Result<Vec<u8>, Errno> {
    let system = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let mut text = Vec::new();
    let file = std::fs::File::open(Path::new(path)).map_err(system)?;
    file.take(size as u64)
        .read_to_end(&mut text)
        .map_err(system)?;
    Ok(text)
}

/// The text of a file about a device of ours; `None` if the path is not about one.
fn of_our_device(path: &str) -> Result<Option<String>, Errno> {
    let Some((name, file)) = path
        .strip_prefix(DEVICES)
        .and_then(|rest| rest.split_once('/'))
    else {
        return Ok(None);
    };
    let links = softrdma::devices()?;
    let Some(link) = links.iter().find(|link| link.name == name) else {
        return Ok(None);
    };
    let file = file.trim_start_matches('/');
    let text = match file.strip_prefix("ports/1/") {
        Some(file) => port_file(link, file),
        None => device_file(link, file),
    };
    text.map(Some).ok_or(Errno(libc::ENOENT))
}

fn device_file(link: &LinkInfo, file: &str) -> Option<String> {
    Some(match file {
        "node_type" => "1: CA".into(),
        "node_desc" => link.kind.name().into(),
        "node_guid" | "sys_image_guid" => groups(&link.node_guid()),
        "fw_ver" => "0.0.0".into(),
        "hw_rev" => "0x0".into(),
        "parent" => link.netdev.clone(),
        _ => return None,
    })
}

fn port_file(link: &LinkInfo, file: &str) -> Option<String> {
    let entry = |index: &str| link.gid(index.parse().ok()?);
    if let Some(index) = file.strip_prefix("gids/") {
        let index: u16 = index.parse().ok()?;
        return Some(groups(
            &link.gid(index).map_or([0; 16], |entry| entry.gid.0),
        ));
    }
    if let Some(index) = file.strip_prefix("gid_attrs/types/") {
        return entry(index).map(|_| "RoCE v2".into());
    }
    if let Some(index) = file.strip_prefix("gid_attrs/ndevs/") {
        return entry(index).map(|entry| entry.netdev.clone());
    }
    Some(match file {
        "state" => match link.port_state() {
            PortState::Active => "4: ACTIVE".into(),
            PortState::Down => "1: DOWN".into(),
        },
        "phys_state" => match link.physical_state() {
            PhysicalState::LinkUp => "5: LinkUp".into(),
            PhysicalState::Polling => "2: Polling".into(),
            PhysicalState::Disabled => "3: Disabled".into(),
        },
        "lid" | "sm_lid" => "0x0".into(),
        "lid_mask_count" | "sm_sl" => "0".into(),
        "cap_mask" => "0x00010000".into(),
        "rate" => "2.5 Gb/sec (1X SDR)".into(),
        "link_layer" => "Ethernet".into(),
        "pkeys/0" => "0xffff".into(),
        _ => return None,
    })
}

/// Bytes in groups of two, as the kernel writes GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| {
        pair.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_in_groups_of_four_digits() {
        assert_eq!(
            groups(&[0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2]),
            "5054:00ff:fe77:0002"
        );
    }

    #[test]
    fn a_file_of_the_kernel_is_read_up_to_the_room_there_is() {
        let mut buffer = [1 as c_char; 6];
        let read = |folder: &CStr, file: &CStr, buffer: &mut [c_char]| {
            // SAFETY: strings, and a buffer of its own length.
            unsafe {
                ibv_read_sysfs_file(
                    folder.as_ptr(),
                    file.as_ptr(),
                    buffer.as_mut_ptr(),
                    buffer.len(),
                )
            }
        };
        assert_eq!(read(c"/proc/sys/kernel", c"ostype", &mut buffer), 5);
        assert_eq!(buffer.map(|byte| byte as u8), *b"Linux\0");
        assert_eq!(read(c"/proc/sys/kernel", c"ostype", &mut buffer[..3]), 3);
        assert_eq!(read(c"/proc/sys/kernel", c"no such file", &mut buffer), -1);
    }
}
