//! Error numbers as the C interface speaks them.

use core::ffi::c_int;

use crate::log;

/// An error number of `errno.h`, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// An argument is wrong.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// This library does not offer it.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    /// The same, with a line in the log that says what: programs try things out, so standard error
    /// is not the place.
    pub fn unsupported(what: &str) -> Self {
        tracing::info!("{what} is not supported in this version");
        Self::UNSUPPORTED
    }

    /// What a function of C that failed left in `errno`.
    pub fn last() -> Self {
        // SAFETY: the location is the calling thread's own and always valid.
        match unsafe { *libc::__errno_location() } {
            0 => Self(libc::EIO),
            errno => Self(errno),
        }
    }

    /// Stores the number in `errno` and returns it.
    pub fn set(self) -> c_int {
        // SAFETY: the location is the calling thread's own and always valid.
        unsafe { *libc::__errno_location() = self.0 };
        self.0
    }
}

impl From<softrdma::Error> for Errno {
    /// [`softrdma::Error::errno`] is the one table. C has no place for the text: it goes to the
    /// log, and to standard error where the set-up is to blame and not the program.
    fn from(error: softrdma::Error) -> Self {
        let errno = error.errno();
        if error.is_about_setup() {
            log::tell(&error);
        }
        tracing::debug!(errno, "{error}");
        Self(errno)
    }
}

impl From<rsocket::Error> for Errno {
    /// The same, of rsockets.
    fn from(error: rsocket::Error) -> Self {
        match error {
            rsocket::Error::Device(error) => error.into(),
            other => Self(other.errno()),
        }
    }
}
