//! The daemon that leases socket slots, its protocol and its client.
//!
//! One broker for each network namespace and user. It knows the links (RDMA devices on network
//! interfaces) and owns the group of UDP sockets behind port 4791, of which every program gets one:
//! its *slot*. Data never passes through it; what comes to QP 1, which all programs share, does.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | what programs call |
//! | [`counters`] | what programs have counted, also those that are gone |
//! | [`credit`] | how full the receive buffers of the host are |
//! | [`error`] | what they get instead |
//! | [`protocol`] | the messages |
//! | [`link`] | links, GID tables |
//! | [`iwarp`] | options of links of type `siw` |
//! | [`port`] | RDMA ports, which programs bind and listen on |
//! | [`resource`] | what programs have, as they tell it when asked |
//! | [`gsi`] | the packets of QP 1 |
//! | [`steer`] | how packets are passed on to a slot |
//! | [`server`] | the broker |
//! | [`spawn`] | finding and starting it |
//! | [`who`] | who may talk to whom |

pub mod client;
pub mod counters;
pub mod credit;
pub mod error;
pub mod gsi;
pub mod iwarp;
pub mod link;
pub mod port;
pub mod protocol;
pub mod resource;
pub mod server;
pub mod spawn;
pub mod steer;
mod transport;
pub mod who;

pub use client::{Client, ConnectOptions, Lease};
pub use error::{CallError, ConnectError};
pub use iwarp::IwarpOptions;
pub use link::{GidEntry, LinkInfo, LinkKind, PhysicalState, PortState};
pub use port::{BoundPort, PortAddress, PortRefusal, PortSpace};
pub use protocol::{Changes, Event, Holder, News, PROTOCOL_VERSION, Refusal, Status};
pub use server::{Config, Server, ServerError};
