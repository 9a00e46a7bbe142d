//! iWARP: a queue pair on a TCP connection.
//!
//! Read first: RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP), RFC 6581 (the setup). One
//! connection is one queue pair, with nothing that others share but what [`Host`](crate::Host) has.
//! TCP does what a reliable connection of RoCE does itself: there are no acknowledgements, retries
//! or windows, and every error is the end of the connection.
//!
//! | part | file |
//! |---|---|
//! | request and reply, who asks and who accepts | `start.rs`, `options.rs` |
//! | verbs, phases of a connection, its end | `queue_pair.rs`, `event.rs` |
//! | what leaves next | `stream_out.rs`, `burst.rs`, `reminder.rs` |
//! | work requests of ours | `requester.rs` |
//! | what arrives | `stream_in.rs` |
//! | requests of the peer, READs under way | `responder.rs`, `answers.rs` |
//! | what is wrong with what arrives | `terminate.rs` |
//! | what is counted | `counters.rs` |
//!
//! # The contract
//!
//! Like the rest of the engine this knows no socket and no clock, and is driven by one caller at a
//! time. Before the first FPDU:
//!
//! - Who connects makes [`AwaitingReply`] and sends the bytes that this wrote; who listens makes
//!   [`AwaitingRequest`], which becomes [`Asked`] and waits for the program. Bytes of the stream go
//!   in until there is an [`Agreement`]; any [`StartError`] is the end of the connection.
//! - [`QueuePair::start`] comes before the reply is sent: data may come right behind it.
//!
//! From then on:
//!
//! - *Verbs* (`post_send`, `disconnect`, …) take what the program wants. `handle_stream` takes
//!   bytes as they come and says how many it used up; `handle_end` and `handle_lost` are the end of
//!   them.
//! - After any of these, call `poll_transmit` until the [`StreamBurst`] comes back empty. Frame
//!   each ULPDU ([`wire::iwarp::Framer`]) and bring all of it out of the program's memory, then
//!   `burst_left`: this completes work requests. Then `poll_event` until `None`, and sleep until
//!   `next_deadline` at the latest.
//! - With CRCs or markers the payload must be copied before it is framed: memory that changes
//!   meanwhile would be a wrong CRC, and that is the end of the connection.

mod answers;
mod burst;
mod counters;
mod event;
mod options;
mod queue_pair;
mod reminder;
mod requester;
mod responder;
mod start;
mod stream_in;
mod stream_out;
mod terminate;
#[cfg(test)]
mod tests;

pub use burst::{Source, StreamBurst, UlpduOut};
pub use counters::Counters;
pub use event::{Ending, Event};
pub use options::{Agreement, CrcPolicy, DEPTH_MAX, Depths, LinkOptions, Role, Rtr};
pub use queue_pair::{Options, QueuePair};
pub use start::{Asked, AwaitingReply, AwaitingRequest, Progress, StartError};
