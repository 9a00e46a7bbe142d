//! How a run is told to people: its trace, and how to see a failing one again.

use core::fmt::Display;

use engine::Instant;

/// Where the story of a run goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trace {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output, a line for each thing that happens.
    Print,
}

impl Trace {
    /// Something happened.
    pub fn note(self, now: Instant, text: impl FnOnce() -> String) {
        if self == Self::Print {
            println!("{} {}", self.time(now), text());
        }
    }

    /// A packet left (`>`) or was looked at (`<`).
    pub fn packet(
        self,
        now: Instant,
        host: usize,
        direction: &str,
        packet: &dyn Display,
        outcome: impl FnOnce() -> String,
    ) {
        self.note(now, || {
            format!("host {host} {direction} {packet} {}", outcome())
        });
    }

    /// A time as it is printed: milliseconds.
    pub fn time(self, now: Instant) -> String {
        let nanoseconds = now.as_nanos();
        let (whole, rest) = (nanoseconds / 1_000_000, nanoseconds % 1_000_000);
        format!("{whole:5}.{rest:06} ms")
    }
}

/// What to type to see a seed again; `world` is the option that names it, or nothing.
pub fn command(seed: u64, world: &str) -> String {
    let space = if world.is_empty() { "" } else { " " };
    format!("cargo xtask sim{space}{world} --seed {seed} --trace")
}
