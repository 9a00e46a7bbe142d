//! When a post waits for company, and an acknowledgement for a request to travel with.
//!
//! Every datagram costs the same whatever its size, so a program that posts small work requests one
//! by one is fastest if several of them leave together. One may wait only while something is
//! certain to send it soon: packets are in flight, whose acknowledgements will be looked at; the
//! program polled a moment ago, and its next poll sends; and the background thread looks again
//! within a millisecond, should the program do neither. A program that has nothing in flight waits
//! for no one.
//!
//! An acknowledgement waits in the same way when the packet it is for gave the program a
//! completion: its answer, or its next poll, takes the acknowledgement along.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::qp::{Operation, Payload, SendRequest};

/// Nobody was inside of a poll for so long: the background thread serves. In nanoseconds.
pub const SERVICE_BOUND_NS: u64 = 50_000;

/// A full datagram, less a packet. What is posted beyond leaves without waiting.
const FULL: u32 = 60 << 10;

/// No packet counts for less: 128 of them fill a datagram, whatever their size.
const COST_MIN: u32 = FULL / 128;

/// Headers and ICRC of a packet, nearly.
const HEADERS: u32 = 32;

/// Packets that give an answer soon. More are a stream, whose sender needs to hear of them.
const FEW_PACKETS: usize = 4;

/// What waits in a shard. Everything here may be read without the shard's lock.
#[derive(Debug, Default)]
pub struct Hold {
    /// Whether something is sent and not acknowledged.
    is_in_flight: AtomicBool,
    /// Whether the background thread will look without being woken.
    is_tended: AtomicBool,
    /// What the posts that wait will take of a datagram.
    posted: AtomicU32,
    /// Whether the engine has something to send.
    owes: AtomicBool,
}

impl Hold {
    /// Counts a work request that was posted.
    pub fn add(&self, request: &SendRequest<'_>) {
        self.posted.fetch_add(cost_of(request), Ordering::Relaxed);
    }

    /// Whether what was posted may wait, if the last poll was so long ago. Call it after the post
    /// can be found by the thread.
    pub fn may_wait(&self, since_poll_ns: u64) -> bool {
        since_poll_ns < SERVICE_BOUND_NS
            && self.posted.load(Ordering::Relaxed) < FULL
            && self.is_in_flight.load(Ordering::Relaxed)
            && self.is_tended.load(Ordering::SeqCst)
    }

    /// What was posted was taken by whoever sends it, and all that is owed too.
    pub fn take(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.owes.store(false, Ordering::SeqCst);
    }

    /// Lets the answers to `packets` wait, if that is right; whether they do.
    pub fn defer(&self, packets: usize) -> bool {
        let waits = (1..=FEW_PACKETS).contains(&packets) && self.is_tended.load(Ordering::SeqCst);
        if waits {
            self.owes.store(true, Ordering::SeqCst);
        }
        waits
    }

    /// Whether the engine has something to send that waits.
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::SeqCst)
    }

    /// Says whether something is sent and not acknowledged. For whoever has the lock.
    pub fn set_in_flight(&self, is_in_flight: bool) {
        // the line stays shared while nothing changes
        if self.is_in_flight.load(Ordering::Relaxed) != is_in_flight {
            self.is_in_flight.store(is_in_flight, Ordering::Relaxed);
        }
    }

    /// The background thread says whether it looks by itself. Before it says no more it must look
    /// once: whoever saw the yes relies on it.
    pub fn set_tended(&self, is_tended: bool) {
        self.is_tended.store(is_tended, Ordering::SeqCst);
    }
}

/// What a work request takes of a datagram.
fn cost_of(request: &SendRequest<'_>) -> u32 {
    let payload = match (&request.operation, &request.payload) {
        // what they bring does not leave from here
        (Operation::Read(_) | Operation::CompareSwap { .. } | Operation::FetchAdd { .. }, _) => 0,
        (_, Payload::Inline(bytes)) => bytes.len() as u64,
        (_, Payload::Sges(sges)) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    };
    (payload.min(FULL.into()) as u32 + HEADERS).max(COST_MIN)
}

#[cfg(test)]
mod tests {
    use engine::Sge;
    use engine::qp::{RemoteMemory, SendFlags};
    use wire::MemoryKey;

    use super::*;

    fn request(operation: Operation, sges: &[Sge]) -> SendRequest<'_> {
        SendRequest {
            id: 0,
            operation,
            flags: SendFlags::empty(),
            payload: Payload::Sges(sges),
        }
    }

    fn sge(length: u32) -> Sge {
        Sge {
            address: 0,
            length,
            key: MemoryKey(1),
        }
    }

    /// A hold under which a post may wait.
    fn willing() -> Hold {
        let hold = Hold::default();
        hold.set_in_flight(true);
        hold.set_tended(true);
        hold
    }

    #[test]
    fn a_post_waits_only_if_all_is_certain() {
        assert!(willing().may_wait(0));
        assert!(!willing().may_wait(SERVICE_BOUND_NS));
        let idle = willing();
        idle.set_in_flight(false);
        assert!(!idle.may_wait(0), "nothing is in flight");
        let untended = willing();
        untended.set_tended(false);
        assert!(!untended.may_wait(0), "the thread sleeps");
    }

    #[test]
    fn a_full_datagram_does_not_wait() {
        let hold = willing();
        for _ in 0..127 {
            hold.add(&request(Operation::Send, &[sge(1)]));
        }
        assert!(hold.may_wait(0));
        hold.add(&request(Operation::Send, &[sge(1)]));
        assert!(!hold.may_wait(0), "128 packets");
        hold.take();
        assert!(hold.may_wait(0));
        hold.add(&request(Operation::Send, &[sge(u32::MAX), sge(u32::MAX)]));
        assert!(!hold.may_wait(0), "a long message");
    }

    #[test]
    fn a_request_for_much_is_small() {
        let hold = willing();
        let remote = RemoteMemory {
            address: 0,
            key: MemoryKey(1),
        };
        hold.add(&request(Operation::Read(remote), &[sge(1 << 30)]));
        assert!(hold.may_wait(0));
    }

    #[test]
    fn answers_to_few_packets_wait_until_taken() {
        let hold = willing();
        assert!(!hold.defer(0) && !hold.owes());
        assert!(!hold.defer(FEW_PACKETS + 1) && !hold.owes());
        assert!(hold.defer(1) && hold.owes());
        hold.take();
        assert!(!hold.owes());
        hold.set_tended(false);
        assert!(!hold.defer(1) && !hold.owes(), "nobody would send them");
    }
}
