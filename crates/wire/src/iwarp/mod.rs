//! iWARP: RDMA over a TCP stream.
//!
//! Read first: RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP); RFC 6581 for the enhanced setup,
//! RFC 7306 for atomics and immediate data. Each end first sends one *start frame*; from then on
//! the stream is a sequence of FPDUs. An FPDU is a length, a ULPDU, a pad and a CRC. A ULPDU is one
//! DDP segment: a header that says where its payload goes, in one RDMAP message:
//!
//! | what | section | file |
//! |---|---|---|
//! | MPA request and reply, IRD and ORD | RFC 5044 7.1, RFC 6581 9 | [`mpa`] |
//! | FPDU: length, pad, markers | RFC 5044 4 | [`fpdu`] |
//! | CRC-32C | RFC 5044 4 | [`crc`] |
//! | DDP headers, tagged and untagged | RFC 5041 4 | [`ddp`] |
//! | RDMAP opcodes and what follows each | RFC 5040 4, RFC 7306 5 | [`rdmap`] |
//! | Terminate, in two readings | RFC 5040 4.8 | [`terminate`] |
//!
//! Numbers are big-endian, but for the CRC.

pub mod crc;
pub mod ddp;
mod display;
pub mod fpdu;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

pub use ddp::{
    Control, Header, MessageOffset, Msn, QueueNumber, Segment, Tagged, TaggedOffset, Untagged,
};
pub use fpdu::{Deframer, Fpdu, Framer};
pub use mpa::{Depth, Enhanced, Kind, Revision, StartFrame};
pub use rdmap::{AtomicCode, AtomicRequest, AtomicResponse, Body, Immediate, Opcode, ReadRequest};
pub use terminate::{Reading, Terminate, TerminateCode};
