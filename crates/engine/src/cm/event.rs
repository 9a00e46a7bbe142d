//! What the program is told.

use wire::mad::{
    Bits, CommId, Guid, Padded, RejectReason, ServiceId, SidrStatus, TransportService,
};
use wire::{Mtu, Psn, QKey, Qpn};

use super::options::Enhancements;
use crate::path::Path;

/// Something happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// Which connection.
    pub id: CommId,
    /// What happened.
    pub kind: CmEventKind,
}

/// What happened. After each of the last three no event follows but [`Self::TimeWaitExit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// Somebody asks for a connection; the ID is a new one. Answer with `accept` or `reject`.
    ConnectRequest(Box<IncomingConnect>),
    /// The request was accepted. Move the queue pair to RTS, then `establish`.
    ConnectResponse(Box<ConnectResponse>),
    /// The passive side's connection is established.
    Established {
        /// From the RTU; zeros if that did not come.
        private_data: Box<Padded<224>>,
    },
    /// Somebody asks for a datagram queue pair; the ID is a new one. Answer with `answer_sidr`.
    SidrRequest(Box<IncomingSidr>),
    /// The answer to a service ID resolution request; that is all of it.
    SidrResponse(Box<SidrResponse>),
    /// The peer's refusal, or its end of a connection by refusal.
    Rejected(Box<Rejection>),
    /// No answer, although asked often enough.
    Unreachable,
    /// The connection has come to its end, from either side. Told once.
    Disconnected {
        /// Whether the peer did not answer.
        has_timed_out: bool,
    },
    /// Packets of the connection can no longer be under way: the queue pair number may be used
    /// again.
    TimeWaitExit,
}

/// The peer's queue pair and what the own one needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQueuePair {
    /// Its device.
    pub guid: Guid,
    /// Its number.
    pub qpn: Qpn,
    /// The first PSN that it will receive: the own `sq_psn`.
    pub starting_psn: Psn,
    /// READs and atomics that *this* side may have to hold as responder: what the peer wants in
    /// flight. The two are swapped already.
    pub responder_resources: u8,
    /// READs and atomics that *this* side may have in flight: what the peer holds.
    pub initiator_depth: u8,
    /// Whether it does end-to-end flow control.
    pub flow_control: bool,
    /// The own `rnr_retry`.
    pub rnr_retry_count: Bits<3>,
    /// Whether it has a shared receive queue.
    pub has_srq: bool,
}

/// A request for a connection, as the passive side sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingConnect {
    /// Whom it asks for.
    pub service: ServiceId,
    /// For the own queue pair: local and remote are *this* side's words.
    pub path: Path,
    /// The peer.
    pub remote: RemoteQueuePair,
    /// RC or UC.
    pub transport: TransportService,
    /// Path MTU. Refuse one above the interface's with
    /// [`InvalidMtu`](wire::mad::RejectReason::InvalidMtu).
    pub mtu: Mtu,
    /// The own `retry_cnt`.
    pub retry_count: Bits<3>,
    /// The own timeout: 4.096 µs · 2^n.
    pub ack_timeout: Bits<5>,
    /// What the peer's device offers beyond the standard.
    pub enhancements: Enhancements,
    /// The consumer's, behind the header of the RDMA IP CM service.
    pub private_data: Padded<92>,
}

/// An accepted request, as the active side sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The peer.
    pub remote: RemoteQueuePair,
    /// The own timeout: 4.096 µs · 2^n.
    pub ack_timeout: Bits<5>,
    /// What the peer chose of the own offer.
    pub enhancements: Enhancements,
    /// The consumer's.
    pub private_data: Padded<196>,
}

/// What a REJ says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// What would have been right; depends on the reason.
    pub info: Padded<72>,
    /// The consumer's.
    pub private_data: Padded<148>,
}

/// A service ID resolution request, as the passive side sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingSidr {
    /// Whom it asks for.
    pub service: ServiceId,
    /// Back to the peer.
    pub path: Path,
    /// The consumer's, behind the header of the RDMA IP CM service.
    pub private_data: Padded<216>,
}

/// What became of a service ID resolution request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrResponse {
    /// How it went.
    pub status: SidrStatus,
    /// The queue pair, with [`SidrStatus::Valid`].
    pub qpn: Qpn,
    /// Its key, with [`SidrStatus::Valid`].
    pub qkey: QKey,
    /// The consumer's.
    pub private_data: Padded<136>,
}
