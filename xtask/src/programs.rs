//! `cargo xtask programs`: unmodified programs of Debian over our device.
//!
//! Each case of the table ([`cases`]) runs in a [`Sandbox`](crate::sandbox) of its own, where xtask
//! is started again with `--inside`: there it makes the network and the links, runs the programs
//! under `softrdma run` and judges what they print.

mod cases;
mod pingpong;
mod scenes;
mod world;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Ended, Running};
use crate::sandbox::Sandbox;
use crate::{dist, interop, workspace};

use cases::Case;
use world::World;

pub use pingpong::{DEFAULT, PingPong};
pub use world::{Host, ip};

/// Which cases, and how.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only cases whose name contains this; `^` at its start means the beginning of the name
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the names and stop
    #[arg(long)]
    list: bool,
    /// How many cases run at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Print what the programs print, also when all is well
    #[arg(long)]
    verbose: bool,
    /// A folder that `cargo xtask dist` has filled, instead of building one
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Run this one case here: used inside of a sandbox
    #[arg(long, value_name = "CASE", hide = true)]
    inside: Option<String>,
}

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

/// `cargo xtask programs`
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(name) = &arguments.inside {
        let cases = cases::all();
        let case = cases
            .iter()
            .find(|case| case.name == *name)
            .context("no such case")?;
        return (case.run)(&World::build(case.net)?);
    }
    let tally = run_all(arguments)?;
    println!("programs: {tally}");
    ensure!(tally.failed == 0, "{} cases failed", tally.failed);
    Ok(())
}

/// Runs the cases that `arguments` ask for and prints a line for each.
pub fn run_all(arguments: &Arguments) -> Result<Tally> {
    let cases: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| matches(&case.name, &arguments.filter))
        .collect();
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(Tally::default());
    }
    ensure!(
        !cases.is_empty(),
        "no case has {:?} in its name",
        arguments.filter
    );
    let folder = match &arguments.dist {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?,
        None => dist::build(false, &workspace::root().join("target/dist"))?.folder,
    };
    let sandbox = Sandbox {
        dist: folder,
        programs: vec![interop::build_twin()?],
    };

    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = run_case(&sandbox, case, arguments.verbose);
                    tally
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .count(verdict);
                }
            });
        }
    });
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
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

/// Runs one case in a sandbox and prints how it went: in one piece, because others run beside it.
fn run_case(sandbox: &Sandbox, case: &Case, verbose: bool) -> Verdict {
    if let Some(missing) = case.who.missing() {
        println!("SKIP {}: {missing}", case.name);
        return Verdict::Skipped;
    }
    let start = Instant::now();
    let outcome = sandbox
        .start(case.who, &["programs", "--inside", &case.name])
        .and_then(|mut inside| inside.wait_at_most(case.guard));
    let seconds = start.elapsed().as_secs_f32();
    let replay = format!("cargo xtask programs --verbose --filter ^{}", case.name);
    match outcome {
        Ok(ended) if ended.code == 0 => {
            let output = if verbose { ended.output.as_str() } else { "" };
            print!("PASS {} ({seconds:.1} s)\n{output}", case.name);
            Verdict::Passed
        }
        Ok(ended) => {
            println!(
                "FAIL {} ({seconds:.1} s)\n{}again: {replay}",
                case.name, ended.output
            );
            Verdict::Failed
        }
        Err(error) => {
            println!(
                "FAIL {} ({seconds:.1} s)\n{error:#}\nagain: {replay}",
                case.name
            );
            Verdict::Failed
        }
    }
}

/// Whether a filter of the command line chooses this name.
pub fn matches(name: &str, filter: &str) -> bool {
    match filter.strip_prefix('^') {
        Some(start) => name.starts_with(start),
        None => name.contains(filter),
    }
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

/// Fails unless a program ended well.
pub fn succeeded(what: &str, ended: &Ended) -> Result<()> {
    if ended.code != 0 {
        bail!("{what} ended with code {}:\n{}", ended.code, ended.output);
    }
    Ok(())
}

fn softrdma() -> PathBuf {
    Path::new(crate::sandbox::FOLDER).join("dist/bin/softrdma")
}

#[cfg(test)]
mod tests {
    use super::{Tally, cases, matches};

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

    #[test]
    fn names_are_unique_and_replayable() {
        let mut names: Vec<String> = cases::all().into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two cases of one name");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-/=,%".contains(c);
        assert!(
            names.iter().all(|name| name.chars().all(plain)),
            "a name that a shell would change"
        );
    }

    #[test]
    fn a_filter_matches_anywhere_or_at_the_start() {
        assert!(matches("lo/root/gid=1", "gid"));
        assert!(matches("lo/root/gid=1", "^lo"));
        assert!(!matches("lo/root/gid=1", "^gid"));
    }
}
