//! REQ, MRA, REJ, REP and RTU: how a connection comes to be, or does not.
//!
//! Read first: IBA 12.6.5 to 12.6.9, and 12.9 for who sends what when. Offsets count from the end
//! of the MAD header.

use crate::field::{Gid, Mtu, PKey, Psn, QKey, Qpn};
use crate::mad::field::{Answered, CommId, Guid, RejectReason, ServiceId, TransportService};
use crate::mad::layout::{Bits, Padded, layout};

layout! {
    /// Request for communication, active to passive side. spec: IBA 12.6.5
    pub struct Req: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// Vendor of enhancements; 0 without.
        vendor: Bits<24> = 5;
        /// Who is asked for.
        service: ServiceId = 8;
        /// The sender's channel adapter.
        local_guid: Guid = 16;
        /// For reliable datagrams; 0.
        local_qkey: QKey = 28;
        /// The sender's queue pair.
        local_qpn: Qpn = 32;
        /// READs and atomics that the sender can hold as responder.
        responder_resources: u8 = 35;
        /// For reliable datagrams; 0.
        local_eecn: Bits<24> = 36;
        /// READs and atomics that the sender wants in flight.
        initiator_depth: u8 = 39;
        /// For reliable datagrams; 0.
        remote_eecn: Bits<24> = 40;
        /// How long the receiver may take to answer: 4.096 µs · 2^n.
        remote_response_timeout: Bits<5> = 43, 7;
        /// What kind of connection.
        transport: TransportService = 43, 2;
        /// Whether the sender does end-to-end flow control.
        flow_control: bool = 43, 0;
        /// The first PSN that the sender of this message wants to *receive*.
        starting_psn: Psn = 44;
        /// How long the sender takes to answer: 4.096 µs · 2^n.
        local_response_timeout: Bits<5> = 47, 7;
        /// For the receiver's queue pair.
        retry_count: Bits<3> = 47, 2;
        /// Partition.
        pkey: PKey = 48;
        /// Path MTU, 1 to 5; see [`Req::mtu`].
        mtu_code: Bits<4> = 50, 7;
        /// For reliable datagrams; false.
        rdc_exists: bool = 50, 3;
        /// For the receiver's queue pair.
        rnr_retry_count: Bits<3> = 50, 2;
        /// How often either side sends a message again.
        cm_retries_max: Bits<4> = 51, 7;
        /// Whether the sender's queue pair has a shared receive queue.
        has_srq: bool = 51, 3;
        /// With [`TransportService::Extended`]: 1 is XRC.
        extended_transport: Bits<3> = 51, 2;
        /// The path of the connection.
        primary: RequestPath = 52;
        /// Another one, for migration; empty on RoCE.
        alternate: RequestPath = 96;
        /// The consumer's, behind the header of the RDMA IP CM service.
        private_data: Padded<92> = 140;
    }
}

impl Req {
    /// The path MTU, if the code is one.
    pub fn mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.mtu_code.get() as u8)
    }
}

layout! {
    /// A path in a [`Req`]; local and remote are the sender's words.
    pub struct RequestPath: 44 bytes {
        /// On RoCE 0xffff, or 0 within a subnet.
        local_lid: u16 = 0;
        /// The same for the other end.
        remote_lid: u16 = 2;
        /// The sender's address.
        local_gid: Gid = 4;
        /// The receiver's address.
        remote_gid: Gid = 20;
        /// Flow label of the packets to be.
        flow_label: Bits<20> = 36;
        /// Injection rate; 0 is the port's own.
        rate: Bits<6> = 39, 5;
        /// Traffic class, or TOS.
        traffic_class: u8 = 40;
        /// Hop limit, or TTL.
        hop_limit: u8 = 41;
        /// Service level.
        sl: Bits<4> = 42, 7;
        /// Whether there is no router in between.
        is_subnet_local: bool = 42, 3;
        /// For the receiver's queue pair: 4.096 µs · 2^n.
        ack_timeout: Bits<5> = 43, 7;
    }
}

impl RequestPath {
    /// Whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.local_lid == 0 && self.local_gid.is_zero()
    }
}

layout! {
    /// Message receipt acknowledgement: the answer will take longer. spec: IBA 12.6.6
    pub struct Mra: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// Which message is being worked on.
        answers: Answered = 8, 7;
        /// How much longer: 4.096 µs · 2^n.
        service_timeout: Bits<5> = 9, 7;
        /// The consumer's.
        private_data: Padded<222> = 10;
    }
}

layout! {
    /// Reject. spec: IBA 12.6.7
    pub struct Rej: 232 bytes {
        /// The connection's name at the sender; 0 if it has none yet.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// Which message is rejected.
        answers: Answered = 8, 7;
        /// Bytes of [`info`](Self::info) that count.
        info_length: Bits<7> = 9, 7;
        /// Why.
        reason: RejectReason = 10;
        /// What would have been right; depends on the reason.
        info: Padded<72> = 12;
        /// The consumer's.
        private_data: Padded<148> = 84;
    }
}

impl Rej {
    /// The GUID in the additional information of [`RejectReason::Timeout`]: whose communication ID
    /// `local_id` is, for a receiver that knows its own ID from nothing else.
    pub fn guid(&self) -> Option<Guid> {
        let guid = self.info.bytes().first_chunk()?;
        let is_told = self.reason == RejectReason::Timeout && self.info_length.get() >= 8;
        is_told.then(|| Guid(u64::from_be_bytes(*guid)))
    }
}

layout! {
    /// Reply to a request, passive to active side. spec: IBA 12.6.8
    pub struct Rep: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// For reliable datagrams; 0.
        local_qkey: QKey = 8;
        /// The sender's queue pair.
        local_qpn: Qpn = 12;
        /// Vendor of enhancements, bits 23 to 16; see [`Rep::vendor`].
        vendor_high: u8 = 15;
        /// For reliable datagrams; 0.
        local_eecn: Bits<24> = 16;
        /// Bits 15 to 8.
        vendor_middle: u8 = 19;
        /// The first PSN that the sender of this message wants to *receive*.
        starting_psn: Psn = 20;
        /// Bits 7 to 0.
        vendor_low: u8 = 23;
        /// READs and atomics that the sender will hold as responder.
        responder_resources: u8 = 24;
        /// READs and atomics that the sender will have in flight.
        initiator_depth: u8 = 25;
        /// How long the sender takes to acknowledge a packet: 4.096 µs · 2^n.
        target_ack_delay: Bits<5> = 26, 7;
        /// What became of the alternate path; 0 is accepted or none.
        failover: Bits<2> = 26, 2;
        /// Whether the sender does end-to-end flow control.
        flow_control: bool = 26, 0;
        /// For the receiver's queue pair.
        rnr_retry_count: Bits<3> = 27, 7;
        /// Whether the sender's queue pair has a shared receive queue.
        has_srq: bool = 27, 4;
        /// The sender's channel adapter.
        local_guid: Guid = 28;
        /// The consumer's.
        private_data: Padded<196> = 36;
    }
}

impl Rep {
    /// Vendor of enhancements; 0 without.
    pub fn vendor(&self) -> Bits<24> {
        let bytes = [0, self.vendor_high, self.vendor_middle, self.vendor_low];
        Bits::truncated(u32::from_be_bytes(bytes))
    }
}

layout! {
    /// Ready to use, active to passive side. spec: IBA 12.6.9
    pub struct Rtu: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// The consumer's.
        private_data: Padded<224> = 8;
    }
}
