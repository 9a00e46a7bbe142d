//! Why there is no broker, or why it did not do what was asked: texts for the person in front of
//! it, numbers for C.

use std::{path::PathBuf, time::Duration};

use crate::{protocol::Refusal, who::describe_uid};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No broker runs, and none was to be started.
    #[error("no softrdma broker is running")]
    NotRunning,
    /// No broker runs, and its program was not found.
    #[error(
        "no softrdma broker is running and its program was not found (looked for {}): start your \
         program with `softrdma run`, or set SOFTRDMA_BIN to the softrdma command",
        list(.looked_for)
    )]
    NoProgram {
        /// The places.
        looked_for: Vec<PathBuf>,
    },
    /// The program could not be started.
    #[error("cannot start the softrdma broker {}: {cause}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What happened.
        cause: std::io::Error,
    },
    /// It was started, and did not answer.
    #[error("the softrdma broker did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// This process has no user id in its namespace.
    #[error(
        "uid {uid} is not mapped in this user namespace, so nobody here can be told from anybody \
         else: make the namespace with a mapping, such as `unshare -r`"
    )]
    Unmapped {
        /// What the kernel shows instead of the id.
        uid: u32,
    },
    /// The broker's socket belongs to another user.
    #[error(
        "the softrdma broker at this address belongs to {}: root may use it with \
         SOFTRDMA_BROKER_UID={uid}; else use a network namespace of your own, such as \
         `unshare -rn`",
        describe_uid(*.uid)
    )]
    Stranger {
        /// The owner.
        uid: u32,
    },
    /// The broker belongs to somebody whom this user namespace does not know.
    #[error(
        "the softrdma broker of this network namespace belongs to a user outside of this user \
         namespace: use a network namespace of your own, such as `unshare -rn`"
    )]
    Outsider,
    /// The broker refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A system call failed.
    #[error("{attempt}: {cause}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        cause: io::Errno,
    },
}

impl ConnectError {
    /// The error number for C.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotRunning | Self::NoProgram { .. } => libc::ENODEV,
            Self::Start { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Timeout(_) => libc::ETIMEDOUT,
            Self::Unmapped { .. } | Self::Stranger { .. } | Self::Outsider => libc::EACCES,
            Self::Refused(refusal) => refusal.errno(),
            Self::System { cause, .. } => cause.raw_os_error(),
        }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The broker refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The broker has ended: everything leased from it is void.
    #[error("the softrdma broker has ended")]
    Lost,
    /// The broker did not answer.
    #[error("the softrdma broker did not answer")]
    Timeout,
    /// The broker said something else than was asked.
    #[error("the softrdma broker sent a malformed answer: {0}")]
    Malformed(String),
    /// A system call failed.
    #[error("talking to the softrdma broker: {0}")]
    System(io::Errno),
}

impl CallError {
    /// The error number for C.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => refusal.errno(),
            Self::Lost => libc::ENODEV,
            Self::Timeout => libc::ETIMEDOUT,
            Self::Malformed(_) => libc::EPROTO,
            Self::System(errno) => errno.raw_os_error(),
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "nothing, no place is known".into();
    }
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
