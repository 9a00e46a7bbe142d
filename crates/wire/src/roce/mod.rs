//! RoCEv2 inside the UDP datagram: one header a file, then the whole packet and its checksum.

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
pub mod feth;
pub mod icrc;
pub mod imm_ieth;
pub mod packet;
pub mod rdeth;
pub mod reth;
pub mod xrceth;

/// The UDP destination port of every RoCEv2 packet, in both directions. spec: IBA A17
pub const UDP_PORT: u16 = 4791;
