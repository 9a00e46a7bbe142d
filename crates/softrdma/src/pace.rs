//! How fast this machine is.
//!
//! Whether a program was silent long enough to be served by somebody else is a question of time,
//! but of the machine's: under an emulator or with slow builds an ordinary poll takes longer than
//! the bound that is right elsewhere, and the background thread would take the work out of the
//! hands of a program that is at it. So the times meant for an ordinary machine are stretched by as
//! much as a look at a socket takes longer than there.

/// A look at a socket without datagrams takes no longer on an ordinary machine, in nanoseconds.
const ORDINARY_LOOK_NS: u64 = 600;
/// Looks that are measured. The shortest counts: the others met something else.
const LOOKS: usize = 16;
/// No machine is so slow that a silence of a second would be ordinary.
const FACTOR_MAX: u64 = 20;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    factor: u64,
}

impl Pace {
    /// An ordinary machine.
    pub const ORDINARY: Self = Self { factor: 1 };

    /// From how long `look` takes by the clock `now_ns`.
    pub fn measure(mut now_ns: impl FnMut() -> u64, mut look: impl FnMut()) -> Self {
        let mut shortest = u64::MAX;
        for _ in 0..LOOKS {
            let began = now_ns();
            look();
            shortest = shortest.min(now_ns().saturating_sub(began));
        }
        Self {
            factor: (shortest / ORDINARY_LOOK_NS).clamp(1, FACTOR_MAX),
        }
    }

    /// What takes so long on an ordinary machine, here.
    pub const fn stretch(self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_mul(self.factor)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::ORDINARY
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The pace of a machine where looks take these times, in nanoseconds, over and over.
    fn measured(looks: &[u64]) -> Pace {
        let clock = Cell::new(0);
        let mut looks = looks.iter().cycle();
        Pace::measure(
            || clock.get(),
            || clock.set(clock.get() + looks.next().expect("it goes round")),
        )
    }

    #[test]
    fn a_fast_machine_and_one_that_was_interrupted_are_ordinary() {
        assert_eq!(measured(&[90]), Pace::ORDINARY);
        assert_eq!(measured(&[50_000, 700, 1_000_000]), Pace::ORDINARY);
    }

    #[test]
    fn a_slow_machine_is_given_time_within_bounds() {
        assert_eq!(measured(&[4_300]).stretch(50_000), 350_000);
        assert_eq!(measured(&[1 << 40]).stretch(50_000), 1_000_000);
    }
}
