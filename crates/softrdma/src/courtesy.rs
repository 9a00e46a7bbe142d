//! How a poller that finds nothing lets others run.
//!
//! It yields: who waits for the core runs at once, and is often who has the answer. But a yield
//! gives the whole turn away, and where others compute the core comes back only when each of them
//! has had a turn of some milliseconds. Who sleeps keeps its claim to the core. So where a yield
//! has taken long, pollers take naps instead for a while.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{Timespec, nanosleep, sched_yield};

/// A yield that takes longer, in nanoseconds, has let somebody compute. Two pollers that share a
/// core are back much sooner.
const LONG_NS: u64 = 1_000_000;
/// A nap, in nanoseconds.
const NAP_NS: i64 = 50_000;
/// After a yield that took long, pollers take naps for this time, in nanoseconds.
const CROWDED_NS: u64 = 1_000_000_000;

/// Of the pollers of a process.
#[derive(Debug, Default)]
pub struct Courtesy {
    /// Pollers take naps until then, in nanoseconds of the clock.
    crowded_until_ns: AtomicU64,
}

impl Courtesy {
    /// Lets others run.
    pub fn step_aside(&self) {
        self.step_aside_by(io::clock::now_ns, sched_yield, nap);
    }

    fn step_aside_by(&self, now_ns: impl Fn() -> u64, give_way: impl FnOnce(), nap: impl FnOnce()) {
        let began = now_ns();
        if began < self.crowded_until_ns.load(Ordering::Relaxed) {
            nap();
            return;
        }
        give_way();
        let ended = now_ns();
        if ended.saturating_sub(began) > LONG_NS {
            self.crowded_until_ns
                .store(ended + CROWDED_NS, Ordering::Relaxed);
        }
    }
}

/// By the system call itself: the C library's function is a place where a thread may be cancelled,
/// which a poll is not.
fn nap() {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: NAP_NS,
    };
    // a signal may end it early
    let _ = nanosleep(&time);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn where_a_yield_takes_long_there_are_naps_for_a_while() {
        let (clock, naps) = (Cell::new(1), Cell::new(0));
        let courtesy = Courtesy::default();
        let step_aside = |yield_ns| {
            courtesy.step_aside_by(
                || clock.get(),
                || clock.set(clock.get() + yield_ns),
                || naps.set(naps.get() + 1),
            );
        };
        for _ in 0..3 {
            step_aside(LONG_NS);
        }
        assert_eq!(naps.get(), 0, "as among pollers");
        step_aside(LONG_NS + 1);
        step_aside(0);
        step_aside(0);
        assert_eq!(naps.get(), 2);
        clock.set(clock.get() + CROWDED_NS);
        step_aside(0);
        assert_eq!(naps.get(), 2, "it is tried again");
    }
}
