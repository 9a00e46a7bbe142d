//! Numbers of packets that do not wrap.
//!
//! Read first: IBA 9.7.2 (packet sequence numbers). A PSN means something only near another one; a
//! [`Position`] is compared with `<`, so the requester knows nothing of the wrap.

use wire::Psn;

/// A packet's place in everything that a queue pair ever sends: a PSN that does not wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Position {
    /// The position `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0 + count as u64)
    }

    /// How many packets `self` is after `earlier`; 0 if it is not.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Which PSN a position has: they differ by the first PSN and by the wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbering {
    first: Psn,
}

impl Numbering {
    /// Position 0 has PSN `first`.
    pub const fn starting_at(first: Psn) -> Self {
        Self { first }
    }

    /// The PSN of a position.
    pub const fn psn(&self, position: Position) -> Psn {
        self.first.plus(position.0 as u32)
    }

    /// The position of `psn` that is nearest to `near`; `None` before the first.
    pub fn position(&self, psn: Psn, near: Position) -> Option<Position> {
        let distance = psn.distance_from(self.psn(near));
        near.0.checked_add_signed(distance.into()).map(Position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_psns_agree_over_the_wrap() {
        let numbering = Numbering::starting_at(Psn::truncated(0xff_fffe));
        assert_eq!(numbering.psn(Position(2)), Psn::truncated(0));
        let near = Position(5);
        assert_eq!(
            numbering.position(Psn::truncated(0xff_ffff), near),
            Some(Position(1))
        );
        assert_eq!(
            numbering.position(Psn::truncated(9), near),
            Some(Position(11))
        );
        assert_eq!(numbering.position(Psn::truncated(0xff_fffd), near), None);
        let far = Position(1 << 40);
        assert_eq!(
            numbering.position(numbering.psn(far).plus(7), far),
            Some(Position((1 << 40) + 7))
        );
    }
}
