//! TCP for many connections in one thread: nothing blocks, one system call sends many pieces.
//!
//! What a protocol above needs to know: a [`Stream`] takes less than it is given when it is full,
//! and says with [`Sending::Full`] that it takes nothing. A peer that is gone shows as an end, as
//! an error, or as one that no longer answers: after one and a half minutes if nothing is on its
//! way to it, else when TCP has retransmitted often enough (`tcp_retries2`, about 15 minutes: a
//! shorter limit would also end those that live and do not read). A stream that is dropped is
//! closed in order; [`Stream::reset`] tells the peer that what it sent was not read.
//!
//! A child of `fork` has none of them: a connection ends with the process that made it, whoever
//! else lives on.

mod listen;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use listen::Listener;
pub use stream::{Gather, PARTS_MAX, Part, Receiving, Sending, Stream};
