//! SIDR_REQ and SIDR_REP: a service ID becomes a datagram queue pair and its key.
//!
//! Read first: IBA 12.11.

use crate::field::{PKey, QKey, Qpn};
use crate::mad::field::{CommId, ServiceId, SidrStatus};
use crate::mad::layout::{Bits, Padded, layout};

layout! {
    /// Service ID resolution request. spec: IBA 12.11.1
    pub struct SidrReq: 232 bytes {
        /// The request's name at the sender.
        request_id: CommId = 0;
        /// Partition.
        pkey: PKey = 4;
        /// Who is asked for.
        service: ServiceId = 8;
        /// The consumer's, behind the header of the RDMA IP CM service.
        private_data: Padded<216> = 16;
    }
}

layout! {
    /// Service ID resolution response. spec: IBA 12.11.2
    pub struct SidrRep: 232 bytes {
        /// The request's name at the receiver.
        request_id: CommId = 0;
        /// How it went.
        status: SidrStatus = 4;
        /// Bytes of [`info`](Self::info) that count.
        info_length: u8 = 5;
        /// Vendor of enhancements, bits 23 to 8; see [`SidrRep::vendor`].
        vendor_high: u16 = 6;
        /// The queue pair, with [`SidrStatus::Valid`].
        qpn: Qpn = 8;
        /// Bits 7 to 0.
        vendor_low: u8 = 11;
        /// Who was asked for.
        service: ServiceId = 12;
        /// The queue pair's key, with [`SidrStatus::Valid`].
        qkey: QKey = 20;
        /// Where else to ask, with [`SidrStatus::Redirect`].
        info: Padded<72> = 24;
        /// The consumer's.
        private_data: Padded<136> = 96;
    }
}

impl SidrRep {
    /// Vendor of enhancements; 0 without.
    pub fn vendor(&self) -> Bits<24> {
        Bits::truncated(u32::from(self.vendor_high) << 8 | u32::from(self.vendor_low))
    }
}
