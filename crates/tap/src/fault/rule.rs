//! The values of a plan: probabilities, spans of time, directions. All exact, so that a plan
//! printed and read again is the same plan.

use core::fmt;

/// A probability in parts of 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

impl Probability {
    /// Parts that make a certainty.
    pub const CERTAIN: u32 = 1_000_000_000;
    /// Never.
    pub const NEVER: Self = Self(0);

    /// A probability in parts of 10^9; `None` above 1.
    pub const fn from_parts(parts: u32) -> Option<Self> {
        if parts <= Self::CERTAIN {
            Some(Self(parts))
        } else {
            None
        }
    }

    /// Parts of 10^9.
    pub const fn parts(self) -> u32 {
        self.0
    }
}

/// As a percentage.
impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PERCENT: u32 = Probability::CERTAIN / 100;
        let (whole, rest) = (self.0 / PERCENT, self.0 % PERCENT);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{rest:07}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

/// A time that is drawn evenly from a range, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    shortest_ns: u64,
    longest_ns: u64,
}

impl Span {
    /// The longest time a plan may hold a packet: a minute.
    pub const LIMIT_NS: u64 = 60_000_000_000;

    /// A range; `None` if its ends are the wrong way round or beyond [`LIMIT_NS`](Self::LIMIT_NS).
    pub const fn new(shortest_ns: u64, longest_ns: u64) -> Option<Self> {
        if shortest_ns <= longest_ns && longest_ns <= Self::LIMIT_NS {
            Some(Self {
                shortest_ns,
                longest_ns,
            })
        } else {
            None
        }
    }

    /// A range whose ends are known to be right.
    pub(super) const fn of(shortest_ns: u64, longest_ns: u64) -> Self {
        match Self::new(shortest_ns, longest_ns) {
            Some(span) => span,
            None => panic!("a constant range is wrong"), // at compile time
        }
    }

    /// The time at `draw`, an evenly distributed number.
    pub(super) fn at(self, draw: u64) -> u64 {
        let choices = u128::from(self.longest_ns - self.shortest_ns) + 1;
        self.shortest_ns + ((u128::from(draw) * choices) >> 64) as u64
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_time(f, self.shortest_ns)?;
        if self.longest_ns != self.shortest_ns {
            f.write_str("..")?;
            write_time(f, self.longest_ns)?;
        }
        Ok(())
    }
}

/// Units of time and their nanoseconds, largest first.
pub(super) const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

fn write_time(f: &mut fmt::Formatter<'_>, time_ns: u64) -> fmt::Result {
    let fits =
        |&&(_, unit_ns): &&(&str, u64)| time_ns.is_multiple_of(unit_ns) && time_ns >= unit_ns;
    let (name, unit_ns) = UNITS.iter().find(fits).unwrap_or(&("ns", 1)); // 0 is 0ns
    write!(f, "{}{name}", time_ns / unit_ns)
}

/// Which packets meet faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that leave.
    #[default]
    Tx,
    /// Those that arrive.
    Rx,
    /// Either.
    Both,
}

impl Direction {
    /// All of them, with the words that name them.
    pub(super) const WORDS: [(&'static str, Self); 3] =
        [("tx", Self::Tx), ("rx", Self::Rx), ("both", Self::Both)];

    /// Whether packets of `direction` are among those of `self`.
    pub fn includes(self, direction: Self) -> bool {
        self == direction || self == Self::Both
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::Both => "both",
        })
    }
}
