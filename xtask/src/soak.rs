//! `cargo xtask soak`: what must hold for a long time, against bad luck and bad neighbours.
//!
//! | what | file |
//! |---|---|
//! | `ops`: random verbs between two processes, checked from outside | here |
//! | `hostile`: strangers' datagrams at full rate against a transfer | `soak/hostile.rs` |
//! | `streams`: strangers' TCP connections to a program with an iWARP device | `soak/streams.rs` |
//! | `kill`: `kill -9` of one of many at random moments | `soak/kill.rs` |
//! | `memory`: resident memory after many queue pairs, and in a long transfer | `soak/memory.rs` |
//!
//! Each runs in a [`Sandbox`] of its own, as the cases of `cargo xtask programs` do; the C programs
//! are in `interop/`.

mod datagrams;
mod draws;
mod hostile;
mod kill;
mod memory;
mod stranger;
mod streams;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::process::Running;
use crate::programs::{Net, World, succeeded};
use crate::sandbox::{Sandbox, Who};
use crate::tally::{Tally, Verdict};
use crate::{dist, interop, workspace};

/// What, and for how long.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// All of them if not given
    what: Option<What>,
    /// How long each takes; an hour of `ops`, half an hour of `memory`, ten minutes of the others
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// What CI runs: a minute altogether
    #[arg(long, conflicts_with = "seconds")]
    short: bool,
    /// Decides what happens; a failure prints the one to repeat it with
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// A folder that `cargo xtask dist` has filled, instead of building one
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Run it here: used inside of a sandbox
    #[arg(long, hide = true)]
    inside: bool,
}

/// The kinds of soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Ops,
    Hostile,
    Streams,
    Kill,
    Memory,
}

/// How long, and from which seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seconds: u64,
    seed: u32,
    short: bool,
}

/// How long a run of `ops` is that can be repeated by its seed.
const OPS_SECONDS: u64 = 60;

/// What programs have for their own ends, beyond the time that they were given.
const ENDING: Duration = Duration::from_secs(180);

/// `cargo xtask soak`
pub fn run(arguments: &Arguments) -> Result<()> {
    if let (Some(what), true) = (arguments.what, arguments.inside) {
        let plan = what.plan(arguments);
        return what.soak(plan);
    }
    let tally = run_all(arguments)?;
    println!("soak: {tally}");
    ensure!(tally.failed == 0, "{} of them failed", tally.failed);
    Ok(())
}

/// The short form, as CI runs it.
pub fn run_short() -> Result<Tally> {
    run_all(&Arguments {
        short: true,
        ..Arguments::default()
    })
}

fn run_all(arguments: &Arguments) -> Result<Tally> {
    let folder = match &arguments.dist {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?,
        // long ones ask what fast code does, the short one what its assertions say
        None => dist::build(!arguments.short, &workspace::root().join("target/dist"))?.folder,
    };
    let sandbox = Sandbox {
        dist: folder,
        programs: interop::build_programs()?,
    };
    let mut tally = Tally::default();
    for what in What::ALL {
        if arguments.what.is_some_and(|chosen| chosen != what) {
            continue;
        }
        tally.count(start(&sandbox, what, arguments)?);
    }
    Ok(tally)
}

fn start(sandbox: &Sandbox, what: What, arguments: &Arguments) -> Result<Verdict> {
    let plan = what.plan(arguments);
    let (seconds, seed) = (plan.seconds.to_string(), plan.seed.to_string());
    let name = what.name();
    println!("soak {name} for {seconds} s, seed {seed}");
    let mut inner = vec!["soak", name, "--inside", "--seed", &seed];
    if plan.short {
        inner.push("--short");
    } else {
        inner.extend(["--seconds", &seconds]);
    }
    let begin = Instant::now();
    let mut inside = sandbox.start(Who::Root, &inner)?;
    let outcome = inside.wait_showing(Duration::from_secs(3 * plan.seconds) + ENDING * 3);
    let took = begin.elapsed().as_secs();
    Ok(match outcome {
        Ok(ended) if ended.code == 0 => {
            println!("PASS {name} ({took} s)");
            Verdict::Passed
        }
        Ok(_) => {
            println!("FAIL {name} ({took} s)");
            Verdict::Failed
        }
        Err(error) => {
            println!("FAIL {name} ({took} s)\n{error:#}");
            Verdict::Failed
        }
    })
}

impl What {
    const ALL: [Self; 5] = [
        Self::Ops,
        Self::Hostile,
        Self::Streams,
        Self::Kill,
        Self::Memory,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops",
            Self::Hostile => "hostile",
            Self::Streams => "streams",
            Self::Kill => "kill",
            Self::Memory => "memory",
        }
    }

    fn plan(self, arguments: &Arguments) -> Plan {
        let (long, short) = match self {
            Self::Ops => (3600, 20),
            Self::Hostile => (600, 15),
            Self::Streams => (600, 10),
            Self::Kill => (600, 15),
            Self::Memory => (1800, 5),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let by_time = now.map_or(1, |now| now.as_secs() as u32 % 1_000_000);
        Plan {
            seconds: arguments
                .seconds
                .unwrap_or(if arguments.short { short } else { long }),
            seed: arguments.seed.unwrap_or(by_time),
            short: arguments.short,
        }
    }

    fn soak(self, plan: Plan) -> Result<()> {
        let world = || World::build(Net::Lo);
        match self {
            Self::Ops => ops(&world()?, plan),
            Self::Hostile => hostile::soak(&world()?, plan),
            Self::Streams => streams::soak(plan), // on a device of its own
            Self::Kill => kill::soak(&world()?, plan),
            Self::Memory => memory::soak(&world()?, plan),
        }
    }
}

/// Random verbs, a new seed each minute.
fn ops(world: &World, plan: Plan) -> Result<()> {
    let mut left = plan.seconds;
    let mut seed = plan.seed;
    while left > 0 {
        let seconds = left.min(OPS_SECONDS);
        let argv = ["/run/verbs_fuzz", "-t", &seconds.to_string()].map(String::from);
        let argv = [&argv[..], &["-s".into(), seed.to_string()]].concat();
        let output = program(world, &argv, seconds).with_context(|| {
            format!("again: cargo xtask soak ops --seconds {seconds} --seed {seed}")
        })?;
        print!("{output}");
        left -= seconds;
        seed = seed.wrapping_add(1);
    }
    Ok(())
}

/// Runs a program of ours on the device for this time and gives what it printed, if all was well.
fn program(world: &World, argv: &[String], seconds: u64) -> Result<String> {
    let mut argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    argv.extend(["-d", world.server.device]);
    let mut running = world.server.start(&argv, &[])?;
    let ended = running.wait_at_most(Duration::from_secs(seconds) + ENDING)?;
    succeeded(argv[0], &ended)?;
    if let Some(line) = ended.output.lines().find(|line| line.contains("wrong:")) {
        bail!("{line}");
    }
    Ok(ended.output)
}

/// The number before a word of a program's output.
fn number_before(line: &str, word: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|found| *found == word)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

/// How much the pairs have checked in a second, as their last line says.
fn rate(output: &str) -> Result<f64> {
    let mut lines = output.lines().rev();
    lines
        .find_map(|line| number_before(line, "MB/s"))
        .context("no MB/s")
}

#[cfg(test)]
mod tests {
    use super::{number_before, rate};

    #[test]
    fn numbers_are_found() {
        let line = "worker 1: resident 3724 KiB, 12 KiB more than at first";
        assert_eq!(number_before(line, "KiB,"), Some(3724.0));
        assert_eq!(number_before(line, "KiB"), Some(12.0));
        assert_eq!(number_before(line, "worker"), None);
        assert!(rate("nothing\n").is_err());
        assert_eq!(rate("verbs_pairs: 20.5 MB/s checked\n").unwrap(), 20.5);
    }
}
