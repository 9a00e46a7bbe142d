//! The plan, and how it decides.

use core::fmt;

use super::rule::{Direction, Probability, Span};
use crate::Verdict;

/// What may happen to packets. Made by parsing its text ([`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// The packet is lost.
    pub loss: Probability,
    /// It goes on twice.
    pub duplicate: Probability,
    /// One bit of it is inverted.
    pub corrupt: Probability,
    /// It is held, so that later ones overtake it.
    pub reorder: Probability,
    /// How long `reorder` holds a packet.
    pub hold: Span,
    /// How long every packet that meets no other fault waits; their order is kept.
    pub delay: Option<Span>,
    /// Which packets.
    pub direction: Direction,
    /// The same seed decides the same.
    pub seed: u64,
}

impl FaultPlan {
    /// How long `reorder` holds a packet if the plan does not say.
    pub const HOLD: Span = Span::of(100_000, 1_000_000);
    /// The seed if the plan does not give one.
    pub const SEED: u64 = 1;

    /// A plan without faults.
    pub const NONE: Self = Self {
        loss: Probability::NEVER,
        duplicate: Probability::NEVER,
        corrupt: Probability::NEVER,
        reorder: Probability::NEVER,
        hold: Self::HOLD,
        delay: None,
        direction: Direction::Tx,
        seed: Self::SEED,
    };

    /// The four faults of which a packet meets at most one, with the words that name them.
    fn exclusive(&self) -> [(&'static str, Probability); 4] {
        [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ]
    }

    /// Whether the four faults of which a packet meets at most one are together at most certain.
    pub(super) fn is_possible(&self) -> bool {
        let parts = self
            .exclusive()
            .map(|(_, probability)| u64::from(probability.parts()));
        parts.iter().sum::<u64>() <= u64::from(Probability::CERTAIN)
    }

    /// Whether any packet can meet a fault.
    pub(super) fn has_fault(&self) -> bool {
        let mut faults = self.exclusive().into_iter();
        self.delay.is_some() || faults.any(|(_, probability)| probability != Probability::NEVER)
    }
}

/// The text that parses to this plan.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, probability) in self.exclusive() {
            if probability != Probability::NEVER {
                write!(f, "{name}={probability},")?;
            }
        }
        if self.hold != Self::HOLD {
            write!(f, "hold={},", self.hold)?;
        }
        if let Some(delay) = self.delay {
            write!(f, "delay={delay},")?;
        }
        if self.direction != Direction::default() {
            write!(f, "direction={},", self.direction)?;
        }
        write!(f, "seed={}", self.seed)
    }
}

/// A plan at work on the packets of one direction, or of one link of the simulator.
///
/// What happens to a packet depends on the seed and on how many packets came before; times are only
/// added to the clock. So a run can be repeated as long as the same packets come in the same order.
#[derive(Clone, Debug)]
pub struct Injector {
    plan: FaultPlan,
    random: Random,
    /// When the last packet that waits for `delay` goes on; none goes on before it.
    delayed_until_ns: u64,
}

impl Injector {
    /// `plan` at work; `stream` tells apart what shares a plan (directions, links).
    pub fn new(plan: &FaultPlan, stream: u64) -> Self {
        Self {
            plan: *plan,
            random: Random::new(plan.seed, stream),
            delayed_until_ns: 0,
        }
    }

    /// The injector for packets that leave (`Tx`) or arrive (`Rx`), if the plan wants one.
    pub(crate) fn for_direction(plan: &FaultPlan, direction: Direction) -> Option<Self> {
        let includes = plan.direction.includes(direction);
        includes.then(|| Self::new(plan, direction as u64))
    }

    /// What becomes of the next packet, of `length` bytes from BTH to ICRC.
    pub fn decide(&mut self, now_ns: u64, length: usize) -> Verdict {
        // always two draws, so that one packet's fault does not move those of the next
        let (draw, detail) = (self.random.next(), self.random.next());
        let mut left = ((u128::from(draw) * u128::from(Probability::CERTAIN)) >> 64) as u32;
        let mut falls_to = |probability: Probability| match left.checked_sub(probability.parts()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        };
        if falls_to(self.plan.loss) {
            return Verdict::Drop;
        }
        if falls_to(self.plan.reorder) {
            return Verdict::Delay {
                until_ns: now_ns.max(self.delayed_until_ns) + self.plan.hold.at(detail),
            };
        }
        if falls_to(self.plan.duplicate) {
            return Verdict::Duplicate;
        }
        if falls_to(self.plan.corrupt) {
            return corrupt(detail, length);
        }
        match self.plan.delay {
            None => Verdict::Pass,
            Some(delay) => {
                let until_ns = (now_ns + delay.at(detail)).max(self.delayed_until_ns);
                self.delayed_until_ns = until_ns;
                Verdict::Delay { until_ns }
            }
        }
    }
}

/// One bit of the packet that the ICRC covers: any but those of the BTH's fifth byte, so that the
/// receiver can detect it. spec: IBA A17.3.3
fn corrupt(draw: u64, length: usize) -> Verdict {
    const NOT_COVERED: usize = 4;
    if length <= NOT_COVERED {
        return Verdict::Pass; // no packet, and nothing the receiver would look at
    }
    let bit = ((u128::from(draw) * (8 * (length as u128 - 1))) >> 64) as usize;
    let bit = if bit < 8 * NOT_COVERED { bit } else { bit + 8 };
    Verdict::Corrupt { bit }
}

/// SplitMix64: small, good enough, and the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed);
        mixed.0 = mixed.next() ^ stream;
        mixed
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
