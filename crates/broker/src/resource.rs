//! What programs have of RDMA, as their processes tell it when somebody asks.
//!
//! Nobody keeps a list of all objects of a host: making one costs no message to the broker. A
//! process is asked for one [`Kind`] at a time, and for a bounded number of objects at a time, so
//! that neither its data path nor the broker has to wait for a long answer.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use wire::mad::PortSpace;

use crate::port::space_code;

/// Objects in one report at most.
pub const REPORTED_MAX: usize = 128;

/// Bytes of the name of a link in a report: more than any link's has.
const NAME_LENGTH_MAX: usize = 64;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Open devices.
    Context,
    /// Protection domains.
    ProtectionDomain,
    /// Memory regions.
    MemoryRegion,
    /// Completion queues.
    CompletionQueue,
    /// Queue pairs.
    QueuePair,
    /// Shared receive queues.
    SharedReceiveQueue,
    /// IDs of connection management that have an address.
    ConnectionId,
    /// No objects: who is asked writes what it has counted into its counter pages before it
    /// answers.
    Counters,
}

/// What a process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// For objects of this kind.
    pub kind: Kind,
    /// From this place on; 0 for all. Where the answer ends, the next question begins.
    pub from: u64,
}

/// What a process answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Objects in the order of their places, [`REPORTED_MAX`] at most.
    pub objects: Vec<Object>,
    /// Where to go on, if that was not all.
    pub next: Option<u64>,
}

impl Report {
    /// Whether it keeps to the bounds.
    pub(crate) fn is_sound(&self) -> bool {
        let is_sound = |object: &Object| {
            let link = object.link.as_ref();
            link.is_none_or(|link| link.len() <= NAME_LENGTH_MAX)
        };
        self.objects.len() <= REPORTED_MAX && self.objects.iter().all(is_sound)
    }
}

/// An object of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its number. Those of queue pairs are unique on the host, others in their process.
    pub number: u32,
    /// The link that it belongs to; `None` is any, as for who listens at all addresses.
    pub link: Option<String>,
    /// What is known of it.
    pub details: Details,
}

/// What is known of an object. Numbers of other objects are those of the same process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Details {
    /// Nothing more.
    Context,
    /// A protection domain.
    ProtectionDomain {
        /// Its context.
        context: u32,
        /// Objects in it.
        users: u32,
    },
    /// A memory region.
    MemoryRegion {
        /// L_Key and R_Key.
        key: u32,
        /// Bytes.
        length: u64,
        /// Its protection domain.
        pd: u32,
    },
    /// A completion queue.
    CompletionQueue {
        /// Its context.
        context: u32,
        /// Completions that it holds.
        capacity: u32,
        /// Queues that complete to it.
        users: u32,
    },
    /// A queue pair.
    QueuePair {
        /// Its type, as verbs number it.
        transport: u8,
        /// Its state, as verbs number it.
        state: u8,
        /// Its port, once it was told.
        port: Option<u8>,
        /// Of a connection.
        peer: Option<QueuePairPeer>,
        /// The PSN that is sent next.
        sq_psn: u32,
        /// Its protection domain.
        pd: u32,
        /// The shared receive queue that it takes from, if it does.
        srq: Option<u32>,
    },
    /// A shared receive queue.
    SharedReceiveQueue {
        /// Its protection domain.
        pd: u32,
    },
    /// An ID of connection management.
    ConnectionId {
        /// How far it is, as the kernel numbers it.
        state: u8,
        /// Its port space.
        #[serde(with = "space_code")]
        space: PortSpace,
        /// Its queue pair, once it is known.
        qpn: Option<u32>,
        /// Its own address.
        source: SocketAddr,
        /// The peer's.
        destination: Option<SocketAddr>,
    },
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairPeer {
    /// Its queue pair.
    pub qpn: u32,
    /// The PSN that is expected of it.
    pub rq_psn: u32,
}

/// A process that can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What the broker knows it by.
    pub key: u64,
    /// A small number that no other process has now: it makes numbers of objects unique.
    pub ordinal: u32,
    /// As the broker's namespace numbers it; 0 if it is not visible there.
    pub pid: i32,
    /// Its program.
    pub program: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{RECORD_LENGTH_MAX, encode};

    fn object() -> Object {
        Object {
            number: u32::MAX,
            link: Some("x".repeat(NAME_LENGTH_MAX)),
            details: Details::ConnectionId {
                state: u8::MAX,
                space: PortSpace::Tcp,
                qpn: Some(u32::MAX),
                source: "[1111:2222:3333:4444:5555:6666:7777:8888%1234567890]:65535"
                    .parse()
                    .expect("a literal"),
                destination: None,
            },
        }
    }

    #[test]
    fn the_longest_report_fits_a_record() {
        let report = Report {
            objects: vec![object(); REPORTED_MAX],
            next: Some(u64::MAX),
        };
        assert!(report.is_sound());
        assert!(encode(&report).len() < RECORD_LENGTH_MAX / 2);
    }

    #[test]
    fn more_than_that_is_not_sound() {
        let mut report = Report {
            objects: vec![object(); REPORTED_MAX + 1],
            next: None,
        };
        assert!(!report.is_sound());
        report.objects.truncate(1);
        report.objects[0].link = Some("x".repeat(NAME_LENGTH_MAX + 1));
        assert!(!report.is_sound());
    }
}
