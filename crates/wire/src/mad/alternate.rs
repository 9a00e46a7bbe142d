//! LAP and APR: another path for a connection. There are none on RoCE; they are read to be shown
//! and refused.
//!
//! Read first: IBA 12.8.

use crate::field::{Gid, Qpn};
use crate::mad::field::{ApStatus, CommId};
use crate::mad::layout::{Bits, Padded, layout};

layout! {
    /// Load alternate path. spec: IBA 12.8.1
    pub struct Lap: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 12;
        /// How long the receiver may take to answer: 4.096 µs · 2^n.
        remote_response_timeout: Bits<5> = 15, 7;
        /// The sender's LID.
        local_lid: u16 = 20;
        /// The receiver's LID.
        remote_lid: u16 = 22;
        /// The sender's address.
        local_gid: Gid = 24;
        /// The receiver's address.
        remote_gid: Gid = 40;
        /// Flow label of the path.
        flow_label: Bits<20> = 56;
        /// Traffic class of the path.
        traffic_class: u8 = 59;
        /// Hop limit of the path.
        hop_limit: u8 = 60;
        /// Injection rate; 0 is the port's own.
        rate: Bits<6> = 61, 5;
        /// Service level.
        sl: Bits<4> = 62, 7;
        /// Whether there is no router in between.
        is_subnet_local: bool = 62, 3;
        /// For the receiver's queue pair: 4.096 µs · 2^n.
        ack_timeout: Bits<5> = 63, 7;
        /// The consumer's.
        private_data: Padded<168> = 64;
    }
}

layout! {
    /// Alternate path response. spec: IBA 12.8.2
    pub struct Apr: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// Bytes of [`info`](Self::info) that count.
        info_length: u8 = 8;
        /// What became of the path.
        status: ApStatus = 9;
        /// What would have been right; depends on the status.
        info: Padded<72> = 12;
        /// The consumer's.
        private_data: Padded<148> = 84;
    }
}
