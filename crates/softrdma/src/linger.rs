//! When a poll that has completions to give stays for the peer's answer.
//!
//! A send on a stream is complete when it has left. A program that then waits in memory for what
//! the peer writes polls once, successfully, and never again until it saw that: nobody looks at its
//! sockets but the background thread, which has to be woken for each message, and to take the core
//! of the program that waits. Where this is what happens, the poll that takes the last completion
//! looks at the sockets for as long as such an answer takes, and brings it itself.
//!
//! That this is what happens is seen from outside: somebody else brought packets, and the program
//! came back at once. One that stays away after the poll stayed for it had something else to do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Instant;

use crate::pace::Pace;
use crate::spins::Spins;

/// A program that comes back within this time, in nanoseconds, had waited for what was brought.
const PROMPT_NS: u64 = 20_000;

/// So often a poll that stays looks at the sockets: for somewhat longer than a round trip. Not a
/// time, as a look takes longer on a slower machine.
pub const LOOKS: usize = 64;

/// See the module. Everything here may be used without the shard's lock.
#[derive(Debug, Default)]
pub struct Linger {
    pace: Pace,
    /// Whether polls stay.
    pays: AtomicBool,
    /// When packets were brought for the program, by whoever it was; 0 once that was considered.
    brought_ns: AtomicU64,
    spins: Mutex<Spins>,
}

impl Linger {
    /// On a machine that is so fast.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            ..Self::default()
        }
    }

    /// Packets were brought by somebody who is no poll of the program's.
    pub fn bring(&self, now: Instant) {
        self.brought_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The program polls and takes the last completion, of a send: whether to stay.
    pub fn may_stay(&self, now: Instant) -> bool {
        let brought_ns = self.brought_ns.load(Ordering::Relaxed);
        if brought_ns == 0 {
            return false;
        }
        self.brought_ns.store(0, Ordering::Relaxed);
        let absence_ns = now.as_nanos().saturating_sub(brought_ns);
        let is_prompt = absence_ns < self.pace.stretch(PROMPT_NS);
        match (self.pays.load(Ordering::Relaxed), is_prompt) {
            (true, true) => {
                self.lock().succeed();
                true
            }
            (true, false) => {
                self.fail();
                false
            }
            (false, true) => {
                let mut spins = self.lock();
                let may_stay = spins.may_spin();
                if !may_stay {
                    spins.sleep();
                }
                self.pays.store(may_stay, Ordering::Relaxed);
                may_stay
            }
            (false, false) => false,
        }
    }

    /// A poll stayed, and nothing came.
    pub fn fail(&self) {
        self.pays.store(false, Ordering::Relaxed);
        self.lock().fail();
    }

    fn lock(&self) -> MutexGuard<'_, Spins> {
        self.spins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a poll stays that comes so long after packets were brought, in nanoseconds.
    fn stays(linger: &Linger, absence_ns: u64) -> bool {
        linger.bring(Instant::from_nanos(1));
        linger.may_stay(Instant::from_nanos(1 + absence_ns))
    }

    #[test]
    fn only_what_was_brought_for_a_program_that_waited_is_a_reason() {
        let linger = Linger::default();
        assert!(
            !linger.may_stay(Instant::from_nanos(5)),
            "nothing was brought"
        );
        assert!(!stays(&linger, PROMPT_NS), "it did something else");
        assert!(stays(&linger, PROMPT_NS - 1));
        assert!(
            !linger.may_stay(Instant::from_nanos(5)),
            "not twice for the same"
        );
    }

    #[test]
    fn a_slow_machine_has_more_time() {
        let looks = [4_300];
        let mut now = 0;
        let mut clock = looks.iter().cycle().map(|look| {
            now += look;
            now
        });
        let pace = Pace::measure(|| clock.next().expect("it goes round"), || {});
        assert!(stays(&Linger::new(pace), PROMPT_NS));
    }

    #[test]
    fn staying_in_vain_and_a_program_that_stays_away_make_it_rare() {
        let linger = Linger::default();
        let pause = |end: &dyn Fn(&Linger)| {
            end(&linger);
            let mut pause = 0;
            while !stays(&linger, 0) {
                pause += 1;
            }
            pause
        };
        assert_eq!(pause(&|linger| linger.fail()), 1);
        assert_eq!(pause(&|linger| linger.fail()), 3);
        assert_eq!(pause(&|linger| assert!(!stays(linger, PROMPT_NS))), 7);
        // once it paid all is as before
        assert_eq!(pause(&|_| ()), 0);
        assert_eq!(pause(&|linger| linger.fail()), 1);
    }
}
