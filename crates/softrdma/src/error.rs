//! What a verb answers when it cannot be accepted. One that was accepted can only fail as a
//! completion.

use engine::qp::{ModifyError, PostError};

use crate::completion_queue::CompletionQueueError;

/// Result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb was refused; nothing was changed. The text says what was attempted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No link has this name.
    #[error(
        "no RDMA device is called '{0}': `softrdma link show` lists them, \
         `softrdma link add {0} type rxe netdev DEV` makes it"
    )]
    NoDevice(String),
    /// The broker cannot be reached or refused.
    #[error(transparent)]
    Broker(#[from] broker::client::ConnectError),
    /// The broker refused a call, or does not answer.
    #[error(transparent)]
    Call(broker::client::CallError),
    /// An RDMA port cannot be had.
    #[error(transparent)]
    Port(broker::port::PortRefusal),
    /// There is no such way to a peer, or no device on it.
    #[error("no device leads to {0}")]
    NoRoute(std::net::IpAddr),
    /// A datagram queue pair of IPoIB has its group's key, and there is no such group.
    #[error("RoCE has no group of IPoIB to take a Q_Key from")]
    NoMulticastGroup,
    /// The fault plan in the environment is wrong.
    #[error("SOFTRDMA_FAULTS: {0}")]
    Faults(tap::PlanError),
    /// Memory cannot be registered.
    #[error("cannot register memory: {0}")]
    Register(crate::memory::RegisterError),
    /// A completion queue refuses.
    #[error(transparent)]
    CompletionQueue(CompletionQueueError),
    /// An argument is outside what the standard or the device allows.
    #[error("{0}")]
    Invalid(&'static str),
    /// The transition or its attributes are wrong.
    #[error("modify refused: {0:?}")]
    Modify(ModifyError),
    /// The index names no valid GID.
    #[error("GID index {0} is empty: `softrdma devinfo -v` lists the table")]
    EmptyGid(u16),
    /// The path MTU does not fit the interface.
    #[error(
        "a path MTU of {asked} bytes does not fit the link, whose active MTU is {active}: \
         ask for less (`-m {active}`), or give the interface a larger MTU"
    )]
    PathMtu {
        /// What was asked for.
        asked: u32,
        /// What there is.
        active: u32,
    },
    /// The address vector has no GRH, and RoCE has no other addresses.
    #[error(
        "RoCE connects by GIDs, and the program names none: give it a GID index \
         (`-g 1` for the ping-pongs, `-x 1` for perftest; `softrdma devinfo -v` lists them)"
    )]
    NoGid,
    /// The same, after the program asked for the GID at an index that has none.
    #[error(
        "GID index {0}, which the program chose, is empty: `softrdma devinfo -v` lists the table"
    )]
    EmptyChoice(u16),
    /// The GID is the synthetic one and no socket can send from it to another host.
    #[error(
        "GID {gid} is made of the interface's MAC and no address of it: \
         use a GID index with an address (`softrdma devinfo -v`)"
    )]
    SyntheticGid {
        /// The GID.
        gid: wire::Gid,
    },
    /// A work request was refused.
    #[error("work request refused: {0:?}")]
    Post(PostError),
    /// A receive queue has no free place.
    #[error("the receive queue is full")]
    ReceiveQueueFull,
    /// The connection is established already.
    #[error("the connection is established already")]
    Connected,
    /// Something still uses the object.
    #[error("{0} is still in use")]
    Busy(&'static str),
    /// The program's memory is not mapped, or not with the rights needed.
    #[error("the range is not mapped with the rights that were asked for")]
    BadAddress,
    /// A table is full.
    #[error("no room for another {0}")]
    NoRoom(&'static str),
    /// The object was made before this process forked; make a new one.
    #[error("the object belongs to the parent of this process")]
    Forked,
    /// The broker died, and with it the device.
    #[error("the broker died: close the device and open it again")]
    DeviceFatal,
    /// The link was deleted, by command or with its network interface.
    #[error("the device is gone, as its network interface or it was deleted")]
    LinkGone,
    /// A queue pair of iWARP is to be in use, and has no connection.
    #[error(
        "a queue pair of iWARP is connected by rdma_cm, and this program connects its own: use its \
         option for that (`-R` for perftest), a program that does so (rping, ucmatose), or a \
         device of type rxe"
    )]
    NotConnected,
    /// The device has no queue pairs of this transport.
    #[error("{0}")]
    NoTransport(&'static str),
    /// A device of iWARP is asked for what only RFC 7306 gives it.
    #[error(
        "{0} has no atomics and no immediate data, which iWARP has by RFC 7306 alone: \
         `softrdma link add … type siw … rfc7306 on`, at both ends"
    )]
    NoExtensions(String),
    /// Not in this version.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// TCP cannot reach a peer, or have an address; or the peer has gone before it was answered.
    #[error("TCP at {address}: {errno}")]
    Tcp {
        /// Whose.
        address: std::net::SocketAddr,
        /// What the kernel said.
        errno: io::Errno,
    },
    /// The kernel refused something.
    #[error("{attempt}: {errno}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        errno: io::Errno,
    },
}

impl Error {
    /// Whether the cause is the set-up around the program and not its code: then the person in
    /// front of it should read the text, as an errno says too little.
    pub fn is_about_setup(&self) -> bool {
        matches!(
            self,
            Self::NoDevice(_)
                | Self::Broker(_)
                | Self::Call(_)
                | Self::Faults(_)
                | Self::NoGid
                | Self::EmptyChoice(_)
                | Self::PathMtu { .. }
                | Self::EmptyGid(_)
                | Self::SyntheticGid { .. }
                | Self::NotConnected
                | Self::NoTransport(_)
                | Self::NoExtensions(_)
                | Self::System { .. }
        )
    }

    /// The errno value that C programs expect.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDevice(_) => libc::ENODEV,
            Self::Broker(error) => error.errno(),
            Self::Call(error) => error.errno(),
            Self::Port(refusal) => refusal.errno(),
            Self::NoRoute(_) | Self::NoMulticastGroup => libc::ENODEV,
            Self::Register(error) => error.errno(),
            Self::CompletionQueue(CompletionQueueError::Busy) => libc::EBUSY,
            Self::Invalid(_)
            | Self::NoGid
            | Self::EmptyChoice(_)
            | Self::PathMtu { .. }
            | Self::NotConnected
            | Self::Modify(_)
            | Self::Faults(_)
            | Self::CompletionQueue(CompletionQueueError::InvalidSize) => libc::EINVAL,
            Self::EmptyGid(_) => libc::ENODATA,
            Self::SyntheticGid { .. } => libc::EADDRNOTAVAIL,
            Self::Post(PostError::QueueFull) | Self::ReceiveQueueFull | Self::NoRoom(_) => {
                libc::ENOMEM
            }
            Self::Post(_) => libc::EINVAL,
            Self::Connected => libc::EISCONN,
            Self::Busy(_) => libc::EBUSY,
            Self::BadAddress => libc::EFAULT,
            Self::Forked | Self::DeviceFatal | Self::LinkGone => libc::EIO,
            Self::Unsupported(_) | Self::NoTransport(_) | Self::NoExtensions(_) => libc::EOPNOTSUPP,
            Self::Tcp { errno, .. } | Self::System { errno, .. } => errno.raw_os_error(),
        }
    }
}
