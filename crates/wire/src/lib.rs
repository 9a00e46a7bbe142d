//! Headers, opcode tables and checksums of RoCEv2 and iWARP: bytes, no state.
//!
//! A RoCEv2 packet is a UDP datagram to port 4791 whose payload is `BTH | extension headers |
//! payload | pad 0-3 | ICRC`. [`Packet::parse`] checks such bytes once and gives views;
//! [`HeaderRepr`] writes the headers; [`icrc`] seals and verifies.
//!
//! | header | section of the standard | file |
//! |---|---|---|
//! | opcodes and what follows each | IBA 9.2.1 table 35 | [`opcode`] |
//! | BTH, base transport | IBA 9.2 | [`roce::bth`] |
//! | RDETH, reliable datagram | IBA 9.3 | [`roce::rdeth`] |
//! | DETH, datagram | IBA 9.3 | [`roce::deth`] |
//! | RETH, remote memory | IBA 9.3 | [`roce::reth`] |
//! | AtomicETH | IBA 9.3 | [`roce::atomic_eth`] |
//! | AETH, acknowledgement | IBA 9.3 | [`roce::aeth`] |
//! | AtomicAckETH | IBA 9.3 | [`roce::atomic_ack_eth`] |
//! | ImmDt, IETH | IBA 9.3 | [`roce::imm_ieth`] |
//! | XRCETH | IBA A14 | [`roce::xrceth`] |
//! | CNP | IBA A17.9 | [`roce::cnp`] |
//! | FETH, flush | IBA A19 | [`roce::feth`] |
//! | ICRC | IBA 7.8.1, A17.3.3 | [`roce::icrc`] |
//! | connection management | IBA 12.6, 12.8, 12.11, 13.4 | [`mad`] |
//! | RDMA IP CM service | IBA A11 | [`mad::CmaHeader`] |
//! | iWARP: MPA, DDP, RDMAP | RFC 5044, 5041, 5040 | [`iwarp`] |
//! | private data, words and headers of rsockets | rdma-core, `docs/rsocket` | [`rsocket`] |
//! | Ethernet, IPv4, IPv6, UDP around it (captures, tests) | IBA A17.3 | [`ip`] |
//!
//! Nothing here panics on any input. Numbers are checked once and are then types ([`field`]).
#![forbid(unsafe_code)]

mod bytes;
mod display;
pub mod error;
pub mod field;
pub mod ip;
pub mod iwarp;
pub mod mad;
pub mod opcode;
pub mod roce;
pub mod rsocket;

pub use error::ParseError;
pub use field::{Gid, MemoryKey, Msn, Mtu, PKey, Psn, QKey, Qpn};
pub use mad::Mad;
pub use opcode::{Attached, Header, Headers, Opcode, Operation, PayloadRule, Place, Transport};
pub use roce::aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use roce::atomic_ack_eth::AtomicAckEth;
pub use roce::atomic_eth::AtomicEth;
pub use roce::bth::Bth;
pub use roce::deth::Deth;
pub use roce::feth::Feth;
pub use roce::icrc;
pub use roce::packet::{HeaderRepr, Packet};
pub use roce::rdeth::Rdeth;
pub use roce::reth::Reth;
pub use roce::xrceth::Xrceth;
