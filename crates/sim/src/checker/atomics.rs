//! Every atomic is executed exactly once, whatever the network repeats. spec: IBA 9.7.5

use std::collections::BTreeSet;

/// A counter that many queue pairs add 1 to.
#[derive(Debug, Default)]
pub struct SharedCounter {
    found: BTreeSet<u64>,
    posted: u64,
}

impl SharedCounter {
    /// Another addition was posted.
    pub fn post(&mut self) {
        self.posted += 1;
    }

    /// An addition completed and had found `original`.
    pub fn complete(&mut self, original: u64) -> Result<(), String> {
        if original >= self.posted {
            return Err(format!(
                "an addition found {original} after {} were posted",
                self.posted
            ));
        }
        if !self.found.insert(original) {
            return Err(format!("two additions found {original}"));
        }
        Ok(())
    }

    /// The counter's last value: each completed addition is in it, and each other one at most once.
    pub fn finish(&self, value: u64) -> Result<(), String> {
        let completed = self.found.len() as u64;
        if !(completed..=self.posted).contains(&value) {
            return Err(format!(
                "the counter is {value} after {completed} of {} additions",
                self.posted
            ));
        }
        match self.found.last() {
            Some(&last) if last >= value => {
                Err(format!("an addition found {last}, the counter is {value}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_that_was_executed_twice_shows() {
        let mut counter = SharedCounter::default();
        for _ in 0..3 {
            counter.post();
        }
        assert_eq!(counter.complete(0), Ok(()));
        assert!(counter.complete(0).is_err());
        assert!(counter.complete(3).is_err());
        assert_eq!(counter.complete(2), Ok(()));
        assert_eq!(counter.finish(3), Ok(()));
        assert!(counter.finish(4).is_err(), "more than were posted");
        assert!(counter.finish(2).is_err(), "one found 2 already");
    }
}
