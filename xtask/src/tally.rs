//! How many of something went well.

use anyhow::{Context, Result};

/// How many cases ended which way.
#[derive(Default)]
pub struct Tally {
    /// As they should.
    pub passed: usize,
    /// Otherwise.
    pub failed: usize,
    /// Not run, because this machine lacks something.
    pub skipped: usize,
}

/// How one case ended.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// As it should.
    Passed,
    /// Otherwise.
    Failed,
    /// Not run.
    Skipped,
}

impl Tally {
    /// Reads what `Display` wrote in the last line of an output.
    pub fn parse(output: &str) -> Result<Self> {
        let line = output.lines().last().context("no output")?;
        let mut counts = line
            .split(", ")
            .map(|part| part.split(' ').next().unwrap_or(""));
        let mut next = || counts.next().and_then(|count| count.parse().ok());
        let [passed, failed, skipped] = [next(), next(), next()].map(|c| c.context("no tally"));
        Ok(Self {
            passed: passed?,
            failed: failed?,
            skipped: skipped?,
        })
    }

    /// One that went well.
    pub fn one() -> Self {
        Self {
            passed: 1,
            ..Self::default()
        }
    }

    /// One that cannot be run on this machine; says why.
    pub fn skip(reason: &str) -> Self {
        println!("skipped: {reason}");
        Self {
            skipped: 1,
            ..Self::default()
        }
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Adds one.
    pub fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Skipped => self.skipped += 1,
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn a_tally_can_be_read_again() {
        let tally = Tally {
            passed: 3,
            failed: 2,
            skipped: 1,
        };
        let read = Tally::parse(&format!("something\n{tally}\n")).unwrap();
        assert_eq!((read.passed, read.failed, read.skipped), (3, 2, 1));
        assert!(Tally::parse("no numbers\n").is_err());
    }
}
