//! What the program gives: its side of a connection, and whom it asks for.

use wire::mad::{
    Bits, Guid, Padded, Rep, Req, RequestPath, ServiceId, SidrStatus, TransportService,
};
use wire::{Gid, Mtu, PKey, Psn, QKey, Qpn};

use super::retry::ack_timeout;
use crate::path::Path;

/// What all connections of a process have in common.
#[derive(Clone, Debug)]
pub struct Config {
    /// The process's slot: the top byte of its communication IDs, by which answers find it.
    pub slot: u8,
    /// Makes communication IDs; another one for each process.
    pub seed: u64,
    /// How long the device takes to acknowledge a packet: 4.096 µs · 2^n.
    pub ack_delay: Bits<5>,
    /// How much time an MRA asks for when a program is slow to answer: 4.096 µs · 2^n.
    pub mra_service_timeout: Bits<5>,
    /// Connections, those that are only remembered included. More are not begun, and requests are
    /// ignored.
    pub connections_max: usize,
}

impl Config {
    /// Numbers of rxe and of Linux's `rdma_cm`.
    pub const fn new(slot: u8, seed: u64) -> Self {
        Self {
            slot,
            seed,
            ack_delay: Bits::truncated(15),
            mra_service_timeout: Bits::truncated(24),
            connections_max: 1 << 20,
        }
    }
}

/// What one vendor's devices can do beyond the standard: in REQ an offer, in REP what was chosen.
/// Nothing here looks at it. spec: IBA 12.7 (VendorID); the options are in the attribute modifier,
/// as Linux has it
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhancements {
    /// Whose they are; 0 without any.
    pub vendor: Bits<24>,
    /// Which ones.
    pub options: u32,
}

/// This side's queue pair and what it offers. The device moves the queue pair itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalQueuePair {
    /// The device.
    pub guid: Guid,
    /// Its number.
    pub qpn: Qpn,
    /// The first PSN that it will receive: its `rq_psn`. Best a random one.
    pub starting_psn: Psn,
    /// READs and atomics that it holds as responder: its `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// READs and atomics that it has in flight: its `max_rd_atomic`.
    pub initiator_depth: u8,
    /// Whether it does end-to-end flow control.
    pub flow_control: bool,
    /// For the peer's queue pair.
    pub rnr_retry_count: Bits<3>,
    /// Whether it has a shared receive queue.
    pub has_srq: bool,
}

/// A connection to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Between which addresses, and what the IP headers of the connection are to say. Its flow
    /// label is the connection's, over IPv4 too: the UDP source port is made of it.
    pub path: Path,
    /// Whom to ask for.
    pub service: ServiceId,
    /// This side.
    pub local: LocalQueuePair,
    /// RC or UC.
    pub transport: TransportService,
    /// Path MTU.
    pub mtu: Mtu,
    /// Service level.
    pub sl: Bits<4>,
    /// For the peer's queue pair.
    pub retry_count: Bits<3>,
    /// How long a packet lives: 4.096 µs · 2^n. Acknowledgement timeouts are made of it.
    pub packet_life: Bits<5>,
    /// How long either side may take to answer: 4.096 µs · 2^n.
    pub response_timeout: Bits<5>,
    /// How often either side sends a message again.
    pub cm_retries: Bits<4>,
    /// What the device offers beyond the standard.
    pub enhancements: Enhancements,
    /// The consumer's, behind the header of the RDMA IP CM service.
    pub private_data: Padded<92>,
}

impl ConnectRequest {
    /// A request with the times, counts and MTU that Linux's `rdma_cm` takes for RoCE.
    pub fn new(path: Path, service: ServiceId, local: LocalQueuePair) -> Self {
        Self {
            path,
            service,
            local,
            transport: TransportService::Rc,
            mtu: Mtu::B1024,
            sl: Bits::default(),
            retry_count: Bits::MAX,
            packet_life: Bits::truncated(16),
            response_timeout: Bits::truncated(20),
            cm_retries: Bits::MAX,
            enhancements: Enhancements::default(),
            private_data: Padded::default(),
        }
    }

    /// The message, but for the communication ID.
    pub(super) fn message(&self, config: &Config) -> Req {
        let Self { path, local, .. } = self;
        // spec: IBA 12.7.11: LIDs mean nothing on RoCE; this is what Linux sends
        let is_subnet_local = path.hop_limit <= 1;
        let lid = if is_subnet_local { 0 } else { 0xffff };
        Req {
            service: self.service,
            vendor: self.enhancements.vendor,
            local_guid: local.guid,
            local_qpn: local.qpn,
            responder_resources: local.responder_resources,
            initiator_depth: local.initiator_depth,
            remote_response_timeout: self.response_timeout,
            transport: self.transport,
            flow_control: local.flow_control,
            starting_psn: local.starting_psn,
            local_response_timeout: self.response_timeout,
            retry_count: self.retry_count,
            pkey: PKey::DEFAULT,
            mtu_code: Bits::truncated(self.mtu as u32),
            rnr_retry_count: local.rnr_retry_count,
            cm_retries_max: self.cm_retries,
            has_srq: local.has_srq,
            primary: RequestPath {
                local_lid: lid,
                remote_lid: lid,
                local_gid: Gid::from_ip(path.local),
                remote_gid: Gid::from_ip(path.remote),
                flow_label: Bits::truncated(path.flow_label),
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                sl: self.sl,
                is_subnet_local,
                ack_timeout: ack_timeout(self.packet_life, config.ack_delay),
                ..RequestPath::default()
            },
            private_data: self.private_data,
            ..Req::default()
        }
    }
}

/// The answer to a request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// This side. The depth and resources are what both sides will have.
    pub local: LocalQueuePair,
    /// What was chosen of the peer's offer.
    pub enhancements: Enhancements,
    /// The consumer's.
    pub private_data: Padded<196>,
}

impl Accept {
    /// The message, but for the communication IDs.
    pub(super) fn message(&self, config: &Config) -> Rep {
        let local = &self.local;
        let vendor = self.enhancements.vendor.get();
        let [_, vendor_high, vendor_middle, vendor_low] = vendor.to_be_bytes();
        Rep {
            local_qpn: local.qpn,
            starting_psn: local.starting_psn,
            responder_resources: local.responder_resources,
            initiator_depth: local.initiator_depth,
            target_ack_delay: config.ack_delay,
            flow_control: local.flow_control,
            rnr_retry_count: local.rnr_retry_count,
            has_srq: local.has_srq,
            local_guid: local.guid,
            vendor_high,
            vendor_middle,
            vendor_low,
            private_data: self.private_data,
            ..Rep::default()
        }
    }
}

/// A service ID to resolve into a datagram queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// Between which addresses.
    pub path: Path,
    /// Whom to ask for.
    pub service: ServiceId,
    /// How long the peer may take to answer: 4.096 µs · 2^n.
    pub response_timeout: Bits<5>,
    /// How often to ask again.
    pub retries: Bits<4>,
    /// The consumer's, behind the header of the RDMA IP CM service.
    pub private_data: Padded<216>,
}

impl SidrRequest {
    /// A request with the times and counts that Linux's `rdma_cm` takes.
    pub fn new(path: Path, service: ServiceId) -> Self {
        Self {
            path,
            service,
            response_timeout: Bits::truncated(20),
            retries: Bits::MAX,
            private_data: Padded::default(),
        }
    }
}

/// The answer to a service ID resolution request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAnswer {
    /// How it went.
    pub status: SidrStatus,
    /// The queue pair, with [`SidrStatus::Valid`].
    pub qpn: Qpn,
    /// Its key, with [`SidrStatus::Valid`].
    pub qkey: QKey,
    /// The consumer's.
    pub private_data: Padded<136>,
}

impl SidrAnswer {
    /// An answer that is a refusal.
    pub fn refusal(status: SidrStatus) -> Self {
        Self {
            status,
            qpn: Qpn::default(),
            qkey: QKey::default(),
            private_data: Padded::default(),
        }
    }
}
