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

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::qp::{Payload, SendRequest};

use crate::pace::Pace;

/// Nobody was inside of a poll for so long: the background thread serves. In nanoseconds.
pub const SERVICE_BOUND_NS: u64 = 50_000;

/// A program that polled within this time, in nanoseconds, will come back to what it left. Much
/// longer than it takes to post as many as fit a queue one datagram each: a program that was held
/// up once would go on like that.
pub const RETURN_NS: u64 = 1_000_000;

/// A full datagram, less a packet. What is posted beyond leaves without waiting.
const FULL: u32 = 60 << 10;

/// No packet counts for less: with so many the peer may as well begin, however small they are.
const COST_MIN: u32 = FULL / 40;

/// Headers and ICRC of a packet, nearly.
const HEADERS: u32 = 32;

/// What a stream sends at once is so many times a datagram.
const STREAM_SHARE: u32 = 4;

/// So many posts together are a habit.
const COMPANY: u32 = 4;

/// One in so many posts looks at the clock: it costs as much as all the rest of a post.
const POSTS_PER_LOOK: u32 = 8;

/// Packets that give an answer soon. More are a stream, whose sender needs to hear of them.
const FEW_PACKETS: usize = 4;

/// What waits in a shard. Everything here may be read without the shard's lock.
#[derive(Debug, Default)]
pub struct Hold {
    pace: Pace,
    /// Whether something is sent and not acknowledged.
    is_in_flight: AtomicBool,
    /// Whether the background thread will look without being woken.
    is_tended: AtomicBool,
    /// Whether it sleeps although the program polls, and nobody has woken it yet.
    wants_thread: AtomicBool,
    /// What waits, a [`Posted`].
    posted: AtomicU64,
    /// Whether many posts left together the last time.
    had_company: AtomicBool,
    /// Whether the engine has answers to send.
    owes: AtomicBool,
}

/// Posts that wait: how many, and what they take of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Posted {
    count: u32,
    cost: u32,
}

impl Posted {
    fn unpack(packed: u64) -> Self {
        Self {
            count: (packed >> 32) as u32,
            cost: packed as u32,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.count) << 32 | u64::from(self.cost)
    }
}

impl Hold {
    /// On a machine that is so fast.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            ..Self::default()
        }
    }

    /// Counts a work request that was posted, to a stream or to be sent in datagrams.
    pub fn add(&self, request: &SendRequest<'_>, is_stream: bool) {
        let share = if is_stream { STREAM_SHARE } else { 1 };
        let one = Posted {
            count: 1,
            cost: cost_of(request, share),
        };
        // a cost that overflows counts for a post: nothing waits long enough for that
        self.posted.fetch_add(one.pack(), Ordering::Relaxed);
    }

    /// Whether what was posted may wait. Call it after the post can be found by the thread.
    /// `since_poll_ns` tells how long ago the last poll was; not every call needs to know.
    pub fn may_wait(&self, since_poll_ns: impl FnOnce() -> u64) -> bool {
        let posted = Posted::unpack(self.posted.load(Ordering::Relaxed));
        posted.cost < FULL
            && (self.is_in_flight.load(Ordering::Relaxed)
                || self.had_company.load(Ordering::Relaxed))
            && self.is_tended.load(Ordering::SeqCst)
            && (posted.count % POSTS_PER_LOOK != 1
                || since_poll_ns() < self.pace.stretch(RETURN_NS))
    }

    /// What was posted was taken by whoever sends it, and all that is owed too.
    pub fn take(&self) {
        let posted = Posted::unpack(self.posted.swap(0, Ordering::Relaxed));
        if posted.count > 0 {
            let had_company = posted.count >= COMPANY;
            self.had_company.store(had_company, Ordering::Relaxed);
        }
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

    /// Whether the engine has answers to send that wait.
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
        self.wants_thread.store(!is_tended, Ordering::SeqCst);
    }

    /// The program polls, and the last poll was so long ago. True if the thread must be woken, once
    /// for each of its sleeps: it listens to the sockets of a program that polls again, where it
    /// finds nothing, makes every packet pay for a wake-up, and lets nothing wait.
    pub fn recalls_thread(&self, since_poll_ns: u64) -> bool {
        since_poll_ns < self.pace.stretch(SERVICE_BOUND_NS)
            && self.wants_thread.load(Ordering::Relaxed)
            && self.wants_thread.swap(false, Ordering::SeqCst)
    }
}

/// What a work request takes of a datagram, of which `share` have the size of what is sent at once.
fn cost_of(request: &SendRequest<'_>, share: u32) -> u32 {
    let payload = match (&request.operation, &request.payload) {
        // what they bring does not leave from here
        (operation, _) if operation.is_answered() => 0,
        (_, Payload::Inline(bytes)) => bytes.len() as u64,
        (_, Payload::Sges(sges)) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    };
    let whole = share * FULL;
    ((payload.min(whole.into()) as u32 + HEADERS) / share).max(COST_MIN)
}

#[cfg(test)]
mod tests {
    use engine::Sge;
    use engine::qp::{Operation, RemoteMemory, SendFlags};
    use wire::MemoryKey;

    use super::*;

    fn request(operation: Operation, sges: &[Sge]) -> SendRequest<'_> {
        SendRequest {
            id: 0,
            operation,
            flags: SendFlags::empty(),
            payload: Payload::Sges(sges),
            to: None,
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

    /// Whether one more post may wait, the last poll being so long ago.
    fn post(hold: &Hold, since_poll_ns: u64) -> bool {
        hold.add(&request(Operation::Send, &[sge(1)]), false);
        hold.may_wait(|| since_poll_ns)
    }

    #[test]
    fn a_post_waits_only_if_all_is_certain() {
        assert!(post(&willing(), 0));
        assert!(!post(&willing(), RETURN_NS));
        let idle = willing();
        idle.set_in_flight(false);
        assert!(!post(&idle, 0), "nothing is in flight");
        let untended = willing();
        untended.set_tended(false);
        assert!(!post(&untended, 0), "the thread sleeps");
    }

    #[test]
    fn the_clock_is_looked_at_for_the_first_and_then_now_and_then() {
        let hold = willing();
        let looks: Vec<u32> = (1..=20).filter(|_| !post(&hold, RETURN_NS)).collect();
        assert_eq!(looks, [1, 9, 17]);
    }

    #[test]
    fn who_posted_many_waits_with_nothing_in_flight() {
        let hold = willing();
        hold.set_in_flight(false);
        for _ in 0..COMPANY {
            post(&hold, 0);
        }
        hold.take();
        assert!(post(&hold, 0));
        hold.take();
        assert!(!post(&hold, 0), "the last time it was one");
    }

    #[test]
    fn a_full_datagram_does_not_wait() {
        let hold = willing();
        for _ in 1..FULL / COST_MIN {
            assert!(post(&hold, 0));
        }
        assert!(!post(&hold, 0), "as many as make a datagram worth its cost");
        hold.take();
        assert!(post(&hold, 0));
        hold.add(
            &request(Operation::Send, &[sge(u32::MAX), sge(u32::MAX)]),
            false,
        );
        assert!(!hold.may_wait(|| 0), "a long message");
    }

    #[test]
    fn a_request_for_much_is_small() {
        let hold = willing();
        let remote = RemoteMemory {
            address: 0,
            key: MemoryKey(1),
        };
        hold.add(&request(Operation::Read(remote), &[sge(1 << 30)]), false);
        assert!(hold.may_wait(|| 0));
    }

    #[test]
    fn a_stream_waits_for_four_times_as_much() {
        let hold = willing();
        let post = || {
            hold.add(&request(Operation::Send, &[sge(64 << 10)]), true);
            hold.may_wait(|| 0)
        };
        assert_eq!([post(), post(), post(), post()], [true, true, true, false]);
    }

    #[test]
    fn the_thread_is_recalled_once_by_a_program_that_polls_again() {
        let hold = willing();
        assert!(!hold.recalls_thread(0), "it looks");
        hold.set_tended(false);
        assert!(!hold.recalls_thread(SERVICE_BOUND_NS), "a single poll");
        assert!(hold.recalls_thread(0));
        assert!(!hold.recalls_thread(0), "once");
        hold.set_tended(true);
        hold.set_tended(false);
        assert!(hold.recalls_thread(0));
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
