//! A connection that ends without its queue pair: what waits is sent, then the sending half is shut
//! down, and what still comes is read and dropped. A socket that is closed with something unread
//! would reset the connection, and take from the peer what it has not read.
//!
//! After a refusal the peer ends first: Linux's siw takes an end that comes right behind one for
//! the end of a connection that never was, and forgets what the refusal said.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use engine::Instant;
use io::poll::Interest;
use io::tcp::{Gather, Part, Receiving, Sending, Stream};

/// How long that may take.
const PARTING_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads of one visit.
const READS_PER_VISIT: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Parting {
    stream: Stream,
    unsent: Vec<u8>,
    sent: usize,
    /// The sending half is shut down.
    has_finished: bool,
    /// The peer is to end first.
    is_patient: bool,
    /// The peer has ended.
    has_ended: bool,
    deadline: Instant,
}

impl Parting {
    pub fn new(now: Instant, stream: Stream, unsent: Vec<u8>) -> Self {
        Self {
            stream,
            unsent,
            sent: 0,
            has_finished: false,
            is_patient: false,
            has_ended: false,
            deadline: now.plus(PARTING_TIMEOUT),
        }
    }

    /// The same where `refusal` is the answer to a request: the peer ends first.
    pub fn refused(now: Instant, stream: Stream, refusal: Vec<u8>) -> Self {
        Self {
            is_patient: true,
            ..Self::new(now, stream, refusal)
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What it waits for.
    pub fn interest(&self) -> Interest {
        Interest {
            readable: !self.has_ended,
            writable: !self.has_sent(),
        }
    }

    /// Goes on; whether it is over.
    pub fn visit(&mut self, now: Instant) -> bool {
        now >= self.deadline || self.send() || self.drain()
    }

    /// Whether it is over because nothing can be sent.
    fn send(&mut self) -> bool {
        while !self.has_sent() {
            let rest = [Part::Own(self.sent..self.unsent.len())];
            let sent = self
                .stream
                .send(&self.unsent, &rest, &mut Gather::default());
            match sent {
                Sending::Sent(count) => self.sent += count,
                Sending::Full => return false,
                Sending::Fault | Sending::Lost(_) => return true,
            }
        }
        if !self.has_finished && !self.is_patient {
            self.has_finished = true;
            self.stream.finish();
        }
        false
    }

    fn has_sent(&self) -> bool {
        self.sent >= self.unsent.len()
    }

    /// Whether the peer has ended too, and nothing waits to be sent.
    fn drain(&mut self) -> bool {
        let mut scratch = [0; 16 << 10];
        for _ in 0..READS_PER_VISIT {
            if self.has_ended {
                break;
            }
            match self.stream.receive(&mut scratch) {
                Receiving::Received(_) => {}
                Receiving::Nothing => break,
                Receiving::End => self.has_ended = true,
                Receiving::Lost(_) => return true,
            }
        }
        self.has_ended && self.has_sent()
    }
}
