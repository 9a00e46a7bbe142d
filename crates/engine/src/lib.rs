//! Queue pair state machines: packets, time and verbs go in; headers with spans of registered
//! memory, completions, events and the next deadline come out.
//!
//! Connections are made and ended by datagrams: [`cm`], with a contract of its own. So has
//! [`iwarp`], where a queue pair is a TCP connection.
//!
//! # The contract
//!
//! A [`Shard`] owns queue pairs and is driven by one caller at a time (`&mut self`; there are no
//! locks, threads or clocks in this crate). What queue pairs share comes in through [`Host`].
//!
//! - *Verbs* (`create_qp`, `modify_qp`, `post_send`, …) take what the program wants.
//! - `handle_datagram` takes a packet that was parsed and whose ICRC was checked;
//!   `handle_timeout` takes the time.
//! - After any of these, call `poll_transmit` until the [`Burst`] comes back empty, seal and send
//!   each burst before asking for the next, then `poll_event` until `None`, then sleep until
//!   `next_deadline` at the latest.
//! - `now` never goes back. Every call of one round may use the same `now`.
//! - Payload is never copied here: going out it is a [`Span`] that lives until the burst is
//!   sealed, within the caller's lock section; coming in it is handed to [`Memory::place`]
//!   between the checks and the acknowledgement.
//!
//! Sections to read first: IBA 9.7 (reliable connections), 10.3 (queue pair states); the
//! project's `docs/architecture.md`.
#![forbid(unsafe_code)]

pub mod access;
pub mod burst;
pub mod cm;
pub mod completion;
pub mod event;
pub mod host;
pub mod iwarp;
pub mod model;
pub mod multicast;
pub mod outcome;
pub mod path;
pub mod qp;
pub mod rc;
pub mod run;
pub mod shard;
pub mod time;
pub mod ud;

pub use access::{
    Access, AccessError, AtomicOperation, Grant, MemoryRange, PdId, Scope, Sge, Span,
};
pub use burst::{Burst, Cost, Origin, PacketOut, QpIndex};
pub use completion::{CompletionOpcode, Overrun, Status, WorkCompletion};
pub use event::AsyncEvent;
pub use host::{CompletionSink, Credit, Host, Memory, ReceiveSource, ReceiveWqe};
pub use multicast::{AttachError, Group, Membership};
pub use outcome::{Counters, DropReason, Outcome};
pub use path::{Path, PathIndex, PathMeta};
pub use shard::{Config, CreateError, Posted, QpOptions, QpView, Shard};
pub use time::Instant;
