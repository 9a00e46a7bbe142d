//! `cargo xtask programs`: unmodified programs of Debian over our device.
//!
//! Each case of the table ([`cases`]) runs in a [`Sandbox`](crate::sandbox) of its own, where xtask
//! is started again with `--inside`: there it makes the network and the links, runs the programs
//! under `softrdma run` and judges what they print.

mod capi;
mod cases;
mod connections;
mod crowd;
mod exchanges;
mod iwarp;
pub mod multicast;
mod perftest;
mod ping;
mod pingpong;
mod resource;
mod rsockets;
mod scenes;
mod sudden_ends;
mod terminates;
mod tutorial;
mod world;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Ended, Running};
use crate::sandbox::Sandbox;
use crate::tally::{Tally, Verdict};
use crate::{dist, interop, workspace};

use cases::Case;

pub use connections::{DEFAULT as RPING, RPing};
pub use exchanges::came_between_listens;
pub use perftest::PerfTest;
pub use pingpong::{DATAGRAMS, DEFAULT, PingPong, SHARED};
pub use resource::{NOTHING, signal};
pub use rsockets::{DEFAULT as STREAM, Stream};
pub use scenes::{broker, command_line};
pub use world::{Host, Net, World, ip};

/// Cases at once: both ends of an exchange poll, so more would only wait for each other.
const JOBS: usize = 2;

/// Which cases, and how.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only cases whose name contains this; `^` and `$` hold it to start and end
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Also every program of perftest with every option, on every network: an hour
    #[arg(long)]
    full: bool,
    /// Print the names and stop
    #[arg(long)]
    list: bool,
    /// How many cases run at once
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
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

/// `cargo xtask programs`
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(name) = &arguments.inside {
        let cases = cases::all(true);
        let case = cases
            .iter()
            .find(|case| case.name == *name)
            .context("no such case")?;
        return (case.run)(&World::build_over(case.links, case.net, case.who)?);
    }
    let tally = run_all(arguments)?;
    println!("programs: {tally}");
    ensure!(tally.failed == 0, "{} cases failed", tally.failed);
    Ok(())
}

/// Runs the cases that `arguments` ask for and prints a line for each.
pub fn run_all(arguments: &Arguments) -> Result<Tally> {
    let cases: Vec<Case> = cases::all(arguments.full)
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
        programs: [interop::build_programs()?, capi::build()?].concat(),
    };

    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.unwrap_or(JOBS).max(1) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_case(&sandbox, case, arguments.verbose);
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.count(outcome.verdict());
                    if let Outcome::Failed(output) = &outcome {
                        tally.remember(&case.name, output);
                    }
                }
            });
        }
    });
    Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// How a case went.
enum Outcome {
    Passed,
    Skipped,
    /// With this output.
    Failed(String),
}

impl Outcome {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Passed => Verdict::Passed,
            Self::Skipped => Verdict::Skipped,
            Self::Failed(_) => Verdict::Failed,
        }
    }
}

/// Runs one case in a sandbox and prints how it went: in one piece, because others run beside it.
fn run_case(sandbox: &Sandbox, case: &Case, verbose: bool) -> Outcome {
    let name = &case.name;
    if let Some(missing) = case.missing() {
        println!("SKIP {name}: {missing}");
        return Outcome::Skipped;
    }
    let start = Instant::now();
    let ended = sandbox
        .start(case.starts_as(), &["programs", "--inside", name])
        .and_then(|mut inside| inside.wait_at_most(case.guard));
    let seconds = start.elapsed().as_secs_f32();
    let (is_good, output) = match ended {
        Ok(ended) => (ended.code == 0, ended.output),
        Err(error) => (false, format!("{error:#}\n")),
    };
    if is_good {
        let output = if verbose { output.as_str() } else { "" };
        print!("PASS {name} ({seconds:.1} s)\n{output}");
        return Outcome::Passed;
    }
    let again = format!("cargo xtask programs --full --verbose --filter '^{name}$'");
    println!("FAIL {name} ({seconds:.1} s)\n{output}again: {again}");
    Outcome::Failed(output)
}

/// Whether a filter of the command line chooses this name: `^` at its start and `$` at its end hold
/// it to that place.
pub fn matches(name: &str, filter: &str) -> bool {
    let (start, text) = filter
        .strip_prefix('^')
        .map_or((false, filter), |rest| (true, rest));
    let (end, text) = text
        .strip_suffix('$')
        .map_or((false, text), |rest| (true, rest));
    match (start, end) {
        (true, true) => name == text,
        (true, false) => name.starts_with(text),
        (false, true) => name.ends_with(text),
        (false, false) => name.contains(text),
    }
}

/// Fails unless a program ended well.
pub fn succeeded(what: &str, ended: &Ended) -> Result<()> {
    if ended.code != 0 {
        bail!("{what} ended with code {}:\n{}", ended.code, ended.output);
    }
    Ok(())
}

/// The `softrdma` command inside of a sandbox.
pub fn softrdma() -> PathBuf {
    Path::new(crate::sandbox::FOLDER).join("dist/bin/softrdma")
}

#[cfg(test)]
mod tests {
    use super::{cases, matches};

    #[test]
    fn names_are_unique_and_replayable() {
        let all = cases::all(true).into_iter();
        let mut names: Vec<String> = all.map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two cases of one name");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-/=,%_".contains(c);
        assert!(
            names.iter().all(|name| name.chars().all(plain)),
            "a name that a shell would change"
        );
    }

    #[test]
    fn a_filter_matches_anywhere_or_where_it_says() {
        assert!(matches("lo/root/gid=1", "gid"));
        assert!(matches("lo/root/gid=1", "^lo"));
        assert!(!matches("lo/root/gid=1", "^gid"));
        assert!(matches("lo/root/gid=1", "^lo/root/gid=1$"));
        assert!(!matches("lo/root/gid=10", "gid=1$"));
    }
}
