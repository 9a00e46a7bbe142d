//! UDP: one receive port shared by many processes, receiving merged, sending segmented.
//!
//! Receiving and sending are separate sockets. A receiving socket is a member of a [`Group`] and is
//! never connected (after a later disconnect *all* traffic of the port goes to it). A sending
//! socket is unconnected with path MTU discovery set, which fixes the IPv4 identification: 0, and k
//! for segment k of a segmented send.

mod receive;
mod send;
mod steering;
#[cfg(test)]
mod tests;

pub use receive::{RECEIVE_BUFFER, ReceiveSocket, Received};
pub use send::{Family, SendOutcome, SendSocket, Transmit};
pub use steering::{Group, MAX_SOCKETS, OpenError, RECEIVE_MEMORY, prove_empty};

pub use crate::caps::{MAX_PAYLOAD, MAX_SEGMENTS, SocketMemory};
