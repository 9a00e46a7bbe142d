//! `cargo xtask bench`: how fast this machine and softrdma are, in figures that are kept.
//!
//! Without a subcommand everything is measured in one run, in rounds of which each measures every
//! row once, so that a disturbance hits all of them: the limits of plain sockets ([`raw`],
//! [`raw_tcp`]), unmodified perftest over our device ([`perftest`]), streams of rsockets beside
//! those of TCP ([`streams`]), and loads that perftest does not have ([`loads`]). A figure is the
//! median of its rounds; the ratios are what to look at, for they compare figures of one run. With
//! `--guest` both ends run in an emulated machine ([`guest`]), over our device and over the
//! kernel's in turns.

mod ends;
mod figures;
mod guest;
mod iwarp;
mod loads;
mod machine;
mod perftest;
mod plan;
mod raw;
mod raw_tcp;
mod report;
mod rounds;
mod second_process;
mod set_up;
mod streams;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::packages::{self, Purpose};
use crate::process::{GUARD, Running};
use crate::sandbox::{Sandbox, Who};
use crate::{dist, interop, workspace};
use machine::Machine;
use plan::{Extent, Row};
use rounds::Run;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    whole: Whole,
}

#[derive(Subcommand)]
enum Part {
    /// Plain sockets between two processes on loopback: the limits for everything above them
    Raw(raw::Arguments),
    /// The second process of `raw`
    #[command(hide = true)]
    RawPeer(raw::PeerArguments),
    /// The second process of the limits of TCP
    #[command(hide = true)]
    RawTcpPeer(raw_tcp::PeerArguments),
}

/// What the bench as a whole is asked for.
#[derive(clap::Args)]
struct Whole {
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// How often each row is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Only rows whose name contains this, and those they are compared with; `^` and `$` hold it
    /// to start and end
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// A row of each kind, once: whether everything can be measured, not how fast it is
    #[arg(long, conflicts_with_all = ["full", "rounds"])]
    quick: bool,
    /// Every size, path MTU and number of queue pairs with every other
    #[arg(long)]
    full: bool,
    /// Our device and the kernel's in turns, on the same work in an emulated machine
    #[arg(long, conflicts_with_all = ["quick", "full"])]
    guest: bool,
    /// Print the names of the rows and stop
    #[arg(long)]
    list: bool,
    /// A folder that `cargo xtask dist --release` has filled, instead of building one
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Measure here and keep the figures in this file: used inside of a sandbox
    #[arg(long, value_name = "FILE", hide = true)]
    inside: Option<PathBuf>,
}

/// `cargo xtask bench`
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.part {
        Some(Part::Raw(arguments)) => raw::run(arguments),
        Some(Part::RawPeer(arguments)) => raw::run_peer(arguments),
        Some(Part::RawTcpPeer(arguments)) => raw_tcp::run_peer(arguments),
        None => run_whole(&arguments.whole),
    }
}

fn run_whole(arguments: &Whole) -> Result<()> {
    let rows = if arguments.guest {
        guest::rows()
    } else {
        plan::rows(arguments.extent())
    };
    let rows = plan::select(rows, &arguments.filter);
    ensure!(
        !rows.is_empty(),
        "no row has {:?} in its name",
        arguments.filter
    );
    if arguments.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if let Some(file) = &arguments.inside {
        let run = Run {
            rows: &rows,
            rounds: arguments.rounds(),
            seconds: arguments.seconds,
            file,
            machine: Machine::look(),
            watched: !arguments.guest, // a guest that waits for work takes a part of a processor
        };
        return if arguments.guest {
            guest::run(run)
        } else {
            rounds::run(run)
        };
    }
    become_optimised()?;
    let programs = if arguments.guest {
        Purpose::Guest
    } else {
        Purpose::Programs
    };
    let lacking = packages::lacking(&[Purpose::Build, programs]);
    if let Some(reason) = lacking.or_else(Sandbox::missing) {
        anyhow::bail!("{reason}");
    }
    let sandbox = Sandbox {
        dist: optimised_dist(arguments.dist.as_deref())?,
        programs: if arguments.guest {
            crate::guest::build()?;
            Vec::new()
        } else {
            interop::build_programs()?
        },
    };
    let name = if arguments.guest {
        "guest.json"
    } else {
        "bench.json"
    };
    let kept = machine::kept(name)?;
    let mut inner: Vec<String> = std::env::args().skip(1).collect();
    inner.extend(["--inside".into(), kept.display().to_string()]);
    let inner: Vec<&str> = inner.iter().map(String::as_str).collect();
    let guard = arguments.guard(&rows);
    let ended = sandbox.start(Who::Root, &inner)?.wait_showing(guard)?;
    ensure!(
        ended.code == 0,
        "something could not be measured; see above"
    );
    Ok(())
}

impl Whole {
    fn extent(&self) -> Extent {
        match (self.quick, self.full) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Full,
            _ => Extent::Usual,
        }
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Every measurement has a guard of its own; this one is for what goes wrong beyond them.
    fn guard(&self, rows: &[Row]) -> Duration {
        let measurements = self.rounds() * rows.len() as u32;
        (Duration::from_secs(self.seconds.into()) + GUARD) * measurements
    }
}

/// Figures of an unoptimised build would say nothing, so this process becomes an optimised one.
/// Returns if it is one already.
fn become_optimised() -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    let error = Command::new(workspace::cargo())
        .args(["run", "--quiet", "--release", "--manifest-path"])
        .arg(workspace::root().join("xtask/Cargo.toml"))
        .arg("--")
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).context("cargo run --release")
}

fn optimised_dist(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string()),
        None => Ok(dist::build(true, &workspace::target()?.join("bench/dist"))?.folder),
    }
}
