//! What a program that this one starts may inherit.

use std::os::fd::RawFd;

use rustix::io::Errno;

/// Descriptor numbers tried one by one before Linux 5.11.
const NUMBERS_MAX: RawFd = 1 << 16;

/// Closes all descriptors from `first` on in programs that this process will execute, whoever
/// opened them; nothing changes in this process.
///
/// # Errors
/// Only those of wrong use.
pub fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    // SAFETY: sets a flag of descriptors; neither memory nor the descriptors themselves change.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let first = RawFd::try_from(first).map_err(|_| Errno::INVAL)?;
    for number in first..NUMBERS_MAX {
        // SAFETY: as above; a number that is not open is EBADF and means nothing.
        unsafe { libc::syscall(libc::SYS_fcntl, number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn descriptors_get_the_flag_and_stay_open() {
        let pipe = std::io::pipe().expect("descriptors are left");
        fcntl_setfd(&pipe.0, FdFlags::empty()).expect("it is open");
        let first = u32::try_from(pipe.0.as_raw_fd()).expect("not negative");
        close_on_exec_from(first).expect("it cannot fail");
        assert_eq!(fcntl_getfd(&pipe.0), Ok(FdFlags::CLOEXEC));
    }
}
