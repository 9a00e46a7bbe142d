//! The limits of plain sockets: steering, merging, checksum and copy, without any protocol.
//!
//! Two processes, one core each where there are two. This one sends datagrams that look like
//! packets (BTH, payload, ICRC), the other one takes them and acknowledges. Rows are measured in
//! turns, so that a disturbance hits all of them, and each figure is a median. Trust the ratios.

mod peer;
mod plan;
mod report;
mod sender;

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::workspace;
pub use peer::{Arguments as PeerArguments, run as run_peer};
use plan::{Exchange, Plan};
use sender::Sample;

#[derive(clap::Args)]
pub struct Arguments {
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// How often each row is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Measure even this unoptimised build
    #[arg(long, hide = true)]
    as_built: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (0.01..=60.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("0.01 to 60".into())
    }
}

/// One line of the table.
struct Row {
    name: &'static str,
    plan: Plan,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    if cfg!(debug_assertions) && !arguments.as_built {
        return run_optimised(arguments);
    }
    let load_average = report::load_average();
    let processors = two_processors()?;
    if let Some([sender, _]) = processors {
        stay_on(sender)?;
    }
    let peer_processor = processors.map(|[_, peer]| peer);
    let rows = rows();
    let mut samples: Vec<Vec<Sample>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (row, samples) in rows.iter().zip(&mut samples) {
            let sample = sender::measure(&row.plan, arguments.seconds, peer_processor)
                .with_context(|| format!("row \"{}\"", row.name))?;
            samples.push(sample);
        }
    }
    report::write(&rows, &samples, arguments.seconds, load_average)
}

/// Figures of an unoptimised build would say nothing, so this process becomes an optimised one.
fn run_optimised(arguments: &Arguments) -> Result<()> {
    let error = Command::new(workspace::cargo())
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "xtask",
            "--",
            "bench",
            "raw",
        ])
        .args(["--seconds", &arguments.seconds.to_string()])
        .args(["--rounds", &arguments.rounds.to_string()])
        .current_dir(workspace::root())
        .exec();
    Err(error).context("cargo run --release")
}

/// Everything measured, in groups: the first row of a group is what its others are compared with.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut group = |payload: usize, segments: usize, more: &[(&'static str, Change)]| {
        let plain = Plan::throughput(payload, segments);
        rows.push(Row {
            name: "GSO + GRO",
            plan: plain.clone(),
        });
        for (name, change) in more {
            let mut plan = plain.clone();
            change(&mut plan);
            rows.push(Row { name, plan });
        }
    };
    group(
        4096,
        plan::segments_that_fit(4096),
        &[
            ("+ ICRC at both ends", checksummed),
            ("+ ICRC and copy at both ends", checksummed_and_copied),
            ("group of 256 sockets", in_a_group_of_256),
            ("no GSO, no GRO", unsegmented),
        ],
    );
    group(
        1024,
        plan::segments_that_fit(1024),
        &[
            ("+ ICRC at both ends", checksummed),
            ("+ ICRC and copy at both ends", checksummed_and_copied),
            ("no GSO, no GRO", unsegmented),
        ],
    );
    group(
        64,
        io::udp::MAX_SEGMENTS,
        &[
            ("+ ICRC and copy at both ends", checksummed_and_copied),
            ("no GSO, no GRO", unsegmented),
        ],
    );
    for (name, exchange, sockets) in [
        ("both sides poll", Exchange::PingPong { blocking: false }, 1),
        (
            "both sides poll, group of 256",
            Exchange::PingPong { blocking: false },
            256,
        ),
        (
            "both sides block in epoll",
            Exchange::PingPong { blocking: true },
            1,
        ),
    ] {
        let plan = Plan {
            exchange,
            sockets,
            ..Plan::throughput(64, 1)
        };
        rows.push(Row { name, plan });
    }
    rows
}

type Change = fn(&mut Plan);

fn checksummed(plan: &mut Plan) {
    plan.checksum = true;
}

fn checksummed_and_copied(plan: &mut Plan) {
    plan.checksum = true;
    plan.copy = true;
}

fn in_a_group_of_256(plan: &mut Plan) {
    plan.sockets = io::udp::MAX_SOCKETS;
}

fn unsegmented(plan: &mut Plan) {
    plan.segments = 1;
}

/// A processor for each side, the sender's first, where this process may use two.
fn two_processors() -> Result<Option<[usize; 2]>> {
    let allowed = sched_getaffinity(None)?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Ok(usable
        .next()
        .zip(usable.next())
        .map(|(first, second)| [first, second]))
}

fn stay_on(processor: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).context("pinning to a processor")
}

/// A group on a port that was free.
fn open_group(sockets: usize) -> Result<(io::udp::Group, u16)> {
    // Below the usual range of ephemeral ports; begins anywhere, so that two benches can coexist.
    let start = io::clock::now_ns() % 10_000;
    for attempt in 0..1000 {
        let port = 20_000 + ((start + attempt * 7) % 10_000) as u16;
        match io::udp::Group::open(port, sockets, plan::STEERING_BYTE) {
            Ok(group) => return Ok((group, port)),
            Err(io::udp::OpenError::Taken { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("no free UDP port from 20000 to 29999")
}
