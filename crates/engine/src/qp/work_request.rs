//! What a program posts. spec: IBA 10.8.2, 11.4.1

use wire::{MemoryKey, QKey, Qpn};

use crate::access::Sge;
use crate::path::Path;

bitflags::bitflags! {
    /// Flags of a send work request; the values of `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Start only after all READs and atomics before it are complete.
        const FENCE = 1;
        /// Complete with a completion also on success.
        const SIGNALED = 1 << 1;
        /// Set the SE bit, which wakes a peer that waits for solicited completions.
        const SOLICITED = 1 << 2;
        /// The payload was copied when the request was posted.
        const INLINE = 1 << 3;
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    /// First byte, in the peer's address space.
    pub address: u64,
    /// R_Key that the peer gave.
    pub key: MemoryKey,
}

/// What is to be done, with what only this operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Into a receive of the peer.
    Send,
    /// The same with 4 bytes of immediate data in wire order.
    SendImmediate([u8; 4]),
    /// The same; the peer's key becomes unusable before its completion.
    SendInvalidate(MemoryKey),
    /// Into the peer's memory.
    Write(RemoteMemory),
    /// The same, and it takes a receive of the peer for the immediate data.
    WriteImmediate(RemoteMemory, [u8; 4]),
    /// From the peer's memory.
    Read(RemoteMemory),
    /// Compare 8 bytes of the peer's memory, swap if equal; the old value comes back.
    CompareSwap {
        /// Where.
        remote: RemoteMemory,
        /// What the value must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Add to 8 bytes of the peer's memory; the old value comes back.
    FetchAdd {
        /// Where.
        remote: RemoteMemory,
        /// What is added.
        add: u64,
    },
    /// Make a key of our own unusable.
    LocalInvalidate(MemoryKey),
}

impl Operation {
    /// Whether it is a SEND of some kind.
    pub const fn is_send(&self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_)
        )
    }

    /// Whether the peer answers it with data: a READ or an atomic.
    pub const fn is_answered(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }
}

/// Where the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// In the program's memory, gathered at each transmission.
    Sges(&'a [Sge]),
    /// Here; copied into the work request.
    Inline(&'a [u8]),
}

/// Where an unreliable datagram goes. spec: IBA 11.4.1.1 (address handle, QPN, Q_Key)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressee {
    /// The way.
    pub path: Path,
    /// The queue pair at its end, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// The key to get in. One with the high bit stands for the sender's own Q_Key.
    pub qkey: QKey,
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The program's number.
    pub id: u64,
    /// What.
    pub operation: Operation,
    /// How.
    pub flags: SendFlags,
    /// With what; for READ and atomics where the result goes.
    pub payload: Payload<'a>,
    /// To whom, of a datagram; a connection does not look at it.
    pub to: Option<&'a Addressee>,
}

/// Why a work request was not accepted; nothing of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue has as many work requests as it was made for.
    QueueFull,
    /// The state does not allow posting.
    WrongState,
    /// More scatter/gather elements than the queue was made for.
    TooManySges,
    /// More inline data than the queue was made for.
    InlineTooLong,
    /// The message is longer than 2^31 bytes, or a datagram longer than a packet of the port.
    MessageTooLong,
    /// A datagram that says not to whom.
    NoAddressee,
    /// The transport does not have the operation.
    NotOfTransport,
    /// An atomic with less than 8 bytes for its result, or at an address that is no multiple of 8.
    BadAtomic,
    /// Inline data with an operation that brings data back.
    InlineNotAllowed,
    /// No such queue pair.
    NoQueuePair,
}
