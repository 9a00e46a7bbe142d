//! Why a call on an rsocket failed.

use io::Errno;

/// Result of a call on an rsocket.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. The text says what was attempted; [`Error::errno`] is what C gets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not now; later.
    #[error("it would block")]
    WouldBlock,
    /// The connection is being made.
    #[error("the connection is being made")]
    InProgress,
    /// No rsocket has this descriptor.
    #[error("the descriptor is no rsocket")]
    NotASocket,
    /// There is no connection.
    #[error("the rsocket is not connected")]
    NotConnected,
    /// There is a connection already.
    #[error("the rsocket is connected")]
    Connected,
    /// The peer is gone, or broke the protocol.
    #[error("the connection is broken: {0}")]
    Reset(&'static str),
    /// The connection could not be made; the error number.
    #[error("the connection failed (error {0})")]
    Failed(i32),
    /// An argument is wrong, or the state.
    #[error("{0}")]
    Invalid(&'static str),
    /// Not in this version.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// More than a datagram holds.
    #[error("a datagram holds {0} bytes at most")]
    TooLong(usize),
    /// The device refused something.
    #[error(transparent)]
    Device(#[from] softrdma::Error),
    /// The kernel refused something.
    #[error("{attempt}: {errno}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

impl Error {
    /// The errno value that C programs expect.
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock => libc::EAGAIN,
            Self::InProgress => libc::EINPROGRESS,
            Self::NotASocket => libc::EBADF,
            Self::NotConnected => libc::ENOTCONN,
            Self::Connected => libc::EISCONN,
            Self::Reset(_) => libc::ECONNRESET,
            Self::Failed(errno) => *errno,
            Self::Invalid(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::TooLong(_) => libc::EMSGSIZE,
            Self::Device(error) => error.errno(),
            Self::System { errno, .. } => errno.raw_os_error(),
        }
    }

    /// Says what was attempted when the kernel refused.
    pub(crate) fn system(attempt: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { attempt, errno }
    }
}
