//! What a program is told of its IDs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::QKey;

use super::id::Id;
use super::record::Record;
use crate::address::AddressVector;
use crate::event_queue::Events;

/// Where events of any number of IDs wait for a program. Acknowledged by the number of the ID, of
/// the listener's for a request.
pub type EventChannel = Events<Event>;

/// What happened; the values of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// The destination is known, and the device to it.
    AddressResolved = 0,
    /// There is no way to the destination, or no device on it.
    AddressError = 1,
    /// The path is known.
    RouteResolved = 2,
    /// There is no path.
    RouteError = 3,
    /// Somebody asks for a connection.
    ConnectRequest = 4,
    /// The peer has accepted: move the queue pair, then establish.
    ConnectResponse = 5,
    /// The connection could not be made, for a reason on this side.
    ConnectError = 6,
    /// No answer.
    Unreachable = 7,
    /// The peer refuses.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// It has come to its end.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// It has joined a multicast group.
    MulticastJoin = 12,
    /// It could not, or cannot receive from it.
    MulticastError = 13,
    /// Its queue pair may be used again.
    TimeWaitExit = 15,
    /// What a name stands for is known.
    AddressInfoResolved = 16,
    /// The program's own.
    User = 18,
}

/// An event.
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// 0, the peer's reason of a refusal, or a negative error number.
    pub status: i32,
    /// What the program gave the ID to be known by; 0 if it gave nothing yet.
    pub(super) cookie: Arc<AtomicU64>,
    /// What came with it.
    pub parameters: ConnectionParameters,
    /// Of the program's own events.
    pub argument: u64,
    /// Where to send to, when a datagram queue pair was found or a group was joined.
    pub datagram_peer: Option<DatagramPeer>,
    /// The new ID of a request. Refused when it is dropped.
    pub request: Option<Id>,
}

/// What the peer says of a connection. Resources and depth are *this* side's already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// The consumer's: the whole field, with zeros behind what the peer gave.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side may have to hold.
    pub responder_resources: u8,
    /// READs and atomics that this side may have in flight.
    pub initiator_depth: u8,
    /// Whether the peer does end-to-end flow control.
    pub flow_control: bool,
    /// For the own queue pair.
    pub retry_count: u8,
    /// For the own queue pair.
    pub rnr_retry_count: u8,
    /// Whether the peer has a shared receive queue.
    pub has_srq: bool,
    /// The peer's queue pair.
    pub qpn: u32,
}

/// A datagram queue pair, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramPeer {
    /// For an address handle.
    pub address: AddressVector,
    /// Its number.
    pub qpn: u32,
    /// Its key.
    pub qkey: QKey,
}

impl Event {
    /// An event without parameters.
    pub(super) fn of(record: &Record, kind: EventKind, status: i32) -> Self {
        Self {
            kind,
            status,
            cookie: Arc::clone(&record.cookie),
            parameters: ConnectionParameters::default(),
            argument: 0,
            datagram_peer: None,
            request: None,
        }
    }

    /// What the program knows the ID by; that of the listener for a request.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }
}
