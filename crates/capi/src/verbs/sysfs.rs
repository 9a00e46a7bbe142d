//! `ibv_read_sysfs_file`: the kernel's files about a device, answered from the device itself, as
//! there is no such folder.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use std::io::Read;
use std::path::Path;

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
    let text = softrdma::sysfs::read(link, file.trim_start_matches('/'));
    text.map(Some).ok_or(Errno(libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

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
