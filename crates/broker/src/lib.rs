//! The daemon that leases socket slots, its protocol and its client.
//!
//! One broker for each network namespace and user. It knows the links (RDMA devices on network
//! interfaces) and owns the group of UDP sockets behind port 4791, of which every program gets one:
//! its *slot*. Packets never pass through it.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | what programs call |
//! | [`credit`] | how full the receive buffers of the host are |
//! | [`error`] | what they get instead |
//! | [`protocol`] | the messages |
//! | [`link`] | links, GID tables |
//! | [`server`] | the broker |
//! | [`spawn`] | finding and starting it |
//! | [`who`] | who may talk to whom |

pub mod client;
pub mod credit;
pub mod error;
pub mod link;
pub mod protocol;
pub mod server;
pub mod spawn;
mod transport;
pub mod who;

pub use client::{Client, ConnectOptions, Lease};
pub use error::{CallError, ConnectError};
pub use link::{GidEntry, LinkInfo, LinkKind, PhysicalState, PortState};
pub use protocol::{Changes, Event, Holder, PROTOCOL_VERSION, Refusal, Status};
pub use server::{Config, Server, ServerError};
