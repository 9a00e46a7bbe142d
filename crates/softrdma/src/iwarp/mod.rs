//! Queue pairs of iWARP: each is a TCP connection of its own.
//!
//! Read first: [`engine::iwarp`], whose contract is driven here, and
//! `docs/decisions/0030-iwarp-streams.md`. A stream lives in the shard of its queue pair and is
//! served by whoever has that lock, as packets are: by a program that polls, or by the background
//! thread of the lane. Nobody else is on the way of its data.
//!
//! | module | what |
//! |---|---|
//! | `settings` | how connections of a link are, whom to ask |
//! | `report` | what happens to connections, for who manages them |
//! | `listening` | listeners, and callers that have not asked yet |
//! | `verbs` | what programs and connection management do |
//! | `streams`, `turns` | all streams of a shard, and whose turn it is |
//! | `pair` | one queue pair with its connection |
//! | `outgoing` | from ULPDUs to what the kernel takes at once |
//! | `read_buffer` | what all streams of a shard are read into |
//! | `parting` | connections that end without their queue pairs |

mod listening;
mod outgoing;
mod pair;
mod parting;
mod read_buffer;
mod report;
mod settings;
mod streams;
#[cfg(test)]
mod tests;
mod turns;
mod verbs;

pub use engine::iwarp::{Counters, CrcPolicy, DEPTH_MAX, Depths, Ending, LinkOptions, StartError};
pub use listening::{Incoming, StreamListener};
pub use pair::Teller;
pub use report::{Report, ReportKind, Reports};
pub use settings::{Call, Segment, Settings, errno};
pub use streams::{Accepting, Asking};

pub(crate) use listening::{ListenAt, Reception};
#[cfg(test)]
pub(crate) use settings::tests::link as link_for_test;
pub(crate) use settings::{Terms, link_at};
pub(crate) use streams::Streams;
