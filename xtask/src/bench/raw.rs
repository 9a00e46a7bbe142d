//! The limits of plain sockets: steering, merging, checksum and copy, without any protocol.
//!
//! Two processes, one core each where there are two. This one sends datagrams that look like
//! packets (BTH, payload, ICRC), the other one takes them and acknowledges. Rows are measured in
//! turns, so that a disturbance hits all of them, and each figure is a median. Trust the ratios.

mod peer;
mod plan;
mod report;
mod sender;

use anyhow::{Context, Result, bail};

use super::become_optimised;
use super::figures::Figures;
use super::machine::{Machine, Pinned, two_processors};
pub use peer::{Arguments as PeerArguments, run as run_peer};
use plan::Plan;

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
    if !arguments.as_built {
        become_optimised()?;
    }
    let machine = Machine::look();
    let rows = rows();
    let mut samples: Vec<Vec<Figures>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (row, samples) in rows.iter().zip(&mut samples) {
            let sample = measure(&row.plan, arguments.seconds)
                .with_context(|| format!("row \"{}\"", row.name))?;
            samples.push(sample);
        }
    }
    report::write(&rows, &samples, arguments.seconds, machine)
}

/// One of the rows that everything above sockets is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Full sends of packets with this payload, with ICRC and copy at both ends.
    Stream { payload: usize },
    /// Half a round trip.
    PingPong { blocking: bool },
}

impl Limit {
    /// Measures it once.
    pub fn measure(self, seconds: f64) -> Result<Figures> {
        measure(&self.plan(), seconds)
    }

    fn plan(self) -> Plan {
        match self {
            Self::Stream { payload } => {
                let mut plan = Plan::throughput(payload, plan::segments_that_fit(payload));
                checksummed_and_copied(&mut plan);
                plan
            }
            Self::PingPong { blocking } => Plan::ping_pong(blocking),
        }
    }
}

/// Measures a row once, each side on a processor of its own where there are two.
fn measure(plan: &Plan, seconds: f64) -> Result<Figures> {
    let processors = two_processors()?;
    let _pinned = processors
        .map(|[sender, _]| Pinned::to(sender))
        .transpose()?;
    sender::measure(plan, seconds, processors.map(|[_, peer]| peer))
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
        plan::segments_that_fit(64),
        &[
            ("+ ICRC and copy at both ends", checksummed_and_copied),
            ("no GSO, no GRO", unsegmented),
        ],
    );
    for (name, blocking, sockets) in [
        ("both sides poll", false, 1),
        ("both sides poll, group of 256", false, 256),
        ("both sides block in epoll", true, 1),
    ] {
        let plan = Plan {
            sockets,
            ..Plan::ping_pong(blocking)
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
