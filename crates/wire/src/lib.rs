//! Headers, opcode tables and checksums of RoCEv2: bytes, no state.
#![forbid(unsafe_code)]

pub mod field;

pub use field::{Gid, MemoryKey, Msn, Mtu, PKey, Psn, QKey, Qpn};
