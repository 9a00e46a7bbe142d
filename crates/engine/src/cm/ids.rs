//! Communication IDs: unique, beginning with the slot, without a pattern that others could guess.

use wire::mad::CommId;

const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// Counts through all 24-bit numbers in an order that a seed chooses.
#[derive(Debug)]
pub(super) struct Ids {
    slot: u8,
    count: u32,
    keys: [u32; 4],
}

impl Ids {
    /// IDs of a slot.
    pub fn new(slot: u8, seed: u64) -> Self {
        let mut state = seed;
        let keys = [(); 4].map(|()| {
            state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            state as u32
        });
        Self {
            slot,
            count: 0,
            keys,
        }
    }

    /// The next ID for which `is_free`. There has to be one: a table is bounded far below 2^24.
    pub fn next(&mut self, is_free: impl Fn(CommId) -> bool) -> CommId {
        loop {
            self.count = self.count.wrapping_add(1);
            let id = CommId::from_parts(self.slot, self.scramble(self.count & MASK));
            // 0 stands for no ID
            if id != CommId(0) && is_free(id) {
                return id;
            }
        }
    }

    /// A permutation of the 24-bit numbers: rounds of a network in which one half changes the
    /// other, so that no two numbers become one.
    fn scramble(&self, number: u32) -> u32 {
        const HALF: u32 = BITS / 2;
        const HALF_MASK: u32 = (1 << HALF) - 1;
        let (mut left, mut right) = (number >> HALF, number & HALF_MASK);
        for key in self.keys {
            let round = mix(u64::from(key) << 32 | u64::from(right)) as u32;
            (left, right) = (right, left ^ round & HALF_MASK);
        }
        left << HALF | right
    }
}

/// The finisher of splitmix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_but_zero_come_once_before_any_comes_again() {
        let mut ids = Ids::new(0, 1);
        let first = ids.next(|_| true);
        let mut seen = vec![false; 1 << BITS];
        seen[first.0 as usize] = true;
        for _ in 2..1 << BITS {
            let id = ids.next(|_| true);
            let place = &mut seen[id.0 as usize];
            assert!(!*place, "{id} came twice");
            *place = true;
        }
        assert!(!seen[0], "0 stands for no ID");
        assert_eq!(ids.next(|_| true), first);
    }

    #[test]
    fn ids_have_the_slot_an_order_of_their_seed_and_are_free() {
        let first = |seed| Ids::new(0x2a, seed).next(|_| true);
        assert_eq!(first(1).slot(), 0x2a);
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert_ne!(Ids::new(0x2a, 1).next(|id| id != first(1)), first(1));
    }
}
