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
    /// What went wrong, in a few lines each, as far as it is known: said again at the end.
    pub failures: Vec<String>,
}

/// Lines of an output that say why it failed: an error comes last.
const REASON_LINES: usize = 3;

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
    /// Reads what `Display` wrote in the last such line of an output.
    pub fn parse(output: &str) -> Result<Self> {
        let read = output.lines().rev().find_map(Self::parse_line);
        read.context("no tally in the output")
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut parts = line.split(", ");
        let mut next = |word| {
            let count = parts.next()?.strip_suffix(word)?;
            count.trim_end().parse().ok()
        };
        Some(Self {
            passed: next("passed")?,
            failed: next("failed")?,
            skipped: next("skipped")?,
            failures: Vec::new(),
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
        self.failures.extend(other.failures.iter().cloned());
    }

    /// Remembers why `name` failed: the last lines of what was printed about it.
    pub fn remember(&mut self, name: &str, output: &str) {
        let lines: Vec<&str> = output.trim_end().lines().collect();
        let reason = &lines[lines.len().saturating_sub(REASON_LINES)..];
        self.failures
            .push(format!("{name}:\n    {}", reason.join("\n    ")));
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
            failures: Vec::new(),
        };
        let read = Tally::parse(&format!("something\n{tally}\na warning\n")).unwrap();
        assert_eq!((read.passed, read.failed, read.skipped), (3, 2, 1));
        assert!(Tally::parse("no numbers\n").is_err());
    }

    #[test]
    fn a_reason_is_the_end_of_an_output() {
        let mut tally = Tally::default();
        tally.remember("case", "a\nb\nc\nd\n");
        tally.remember("silent", "");
        assert_eq!(
            tally.failures,
            ["case:\n    b\n    c\n    d", "silent:\n    "]
        );
    }
}
