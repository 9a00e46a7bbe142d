//! How often to look for packets without sleeping, where that is often in vain: whoever is to
//! answer may share the core, and cannot run meanwhile.

/// After so many spins in vain in a row, two to this power of sleeps lie between two of them.
const VAIN_MAX: u32 = 6;

/// Whether it was worth it to look for packets without sleeping.
#[derive(Debug, Default)]
pub struct Spins {
    /// So many were in vain since the last that was not.
    vain: u32,
    /// So many sleeps until the next may be tried.
    sleeps_left: u32,
}

impl Spins {
    pub fn may_spin(&self) -> bool {
        self.sleeps_left == 0
    }

    /// Another packet came.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// No other packet came.
    pub fn fail(&mut self) {
        self.vain = (self.vain + 1).min(VAIN_MAX);
        self.sleeps_left = (1 << self.vain) - 1;
    }

    /// The thread sleeps after a packet without having tried.
    pub fn sleep(&mut self) {
        self.sleeps_left = self.sleeps_left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many sleeps pass until the thread spins again.
    fn pause(spins: &mut Spins) -> u32 {
        let mut sleeps = 0;
        while !spins.may_spin() {
            spins.sleep();
            sleeps += 1;
        }
        sleeps
    }

    #[test]
    fn spins_in_vain_become_rare_and_one_that_is_not_restores_them() {
        let mut spins = Spins::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            spins.fail();
            pauses.push(pause(&mut spins));
        }
        assert_eq!(pauses, [1, 3, 7, 15, 31, 63, 63, 63]);
        spins.succeed();
        assert!(spins.may_spin());
        spins.fail();
        assert_eq!(pause(&mut spins), 1);
    }
}
