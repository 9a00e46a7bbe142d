//! DREQ and DREP: how a connection ends.
//!
//! Read first: IBA 12.6.10 and 12.6.11.

use crate::field::Qpn;
use crate::mad::field::CommId;
use crate::mad::layout::{Padded, layout};

layout! {
    /// Request for release of communication. spec: IBA 12.6.10
    pub struct Dreq: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 8;
        /// The consumer's.
        private_data: Padded<220> = 12;
    }
}

layout! {
    /// Reply to a request for release. spec: IBA 12.6.11
    pub struct Drep: 232 bytes {
        /// The connection's name at the sender.
        local_id: CommId = 0;
        /// The connection's name at the receiver.
        remote_id: CommId = 4;
        /// The consumer's.
        private_data: Padded<224> = 8;
    }
}
