//! Error numbers as the C interface speaks them.

use core::ffi::c_int;

/// An error number of `errno.h`, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// Stores the number in `errno` and returns it: the convention of most verbs.
    pub fn set(self) -> c_int {
        // SAFETY: the location is the calling thread's own and always valid.
        unsafe { *libc::__errno_location() = self.0 };
        self.0
    }
}
