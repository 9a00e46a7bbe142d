//! In a network that has healed everything finishes.

use core::time::Duration;

use engine::Instant;

/// Virtual time that a run may take after the network healed: more than the longest timeout with
/// all its retries.
const GRACE: Duration = Duration::from_secs(60);

/// Events that a run may take in all.
const EVENTS_MAX: u64 = 3_000_000;

/// Watches that a run comes to its end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// The deadline of a run whose network heals at `healed`.
    pub fn after(healed: Instant) -> Self {
        Self {
            at: healed.plus(GRACE),
        }
    }

    /// Fails when the run has not finished and should have.
    pub fn check(&self, now: Instant, events: u64) -> Result<(), String> {
        if now > self.at {
            return Err(format!("not finished {GRACE:?} after the network healed"));
        }
        if events > EVENTS_MAX {
            return Err(format!("not finished after {EVENTS_MAX} events"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_in_time_or_fails() {
        let deadline = Deadline::after(Instant::from_nanos(5));
        assert_eq!(deadline.check(Instant::from_nanos(5), 0), Ok(()));
        assert!(
            deadline
                .check(Instant::from_nanos(5), EVENTS_MAX + 1)
                .is_err()
        );
        let late = Instant::from_nanos(6).plus(GRACE);
        assert!(deadline.check(late, 0).is_err());
    }
}
