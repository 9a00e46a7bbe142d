//! The part of the bench that runs in a sandbox: every row once in each round.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::ends::Ends;
use super::figures::Figures;
use super::machine::Machine;
use super::perftest::{Length, Perftest, Printed};
use super::plan::{Row, Work};
use super::report;
use crate::programs::{Net, World, ip};

/// Messages of a first run that tells how many fill the time.
const MESSAGES_TO_LEARN: u32 = 1000;

/// What was measured of a row.
#[derive(Default)]
pub struct Samples {
    pub rounds: Vec<Figures>,
    /// Why it was not measured again.
    pub failure: Option<String>,
    /// How many messages a latency is measured over, once that is known.
    pub messages: Option<u32>,
}

/// Measures all rows, prints the table and keeps the figures in `file`.
pub fn run(rows: &[Row], rounds: u32, seconds: u32, file: &Path) -> Result<()> {
    let machine = Machine::look();
    let mut networks = Networks::default();
    let mut all: Vec<Samples> = rows.iter().map(|_| Samples::default()).collect();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        for (row, samples) in rows.iter().zip(&mut all) {
            if samples.failure.is_some() {
                continue;
            }
            match measure(row, seconds, &mut networks, &mut samples.messages) {
                Ok(figures) => samples.rounds.push(figures),
                Err(error) => {
                    println!("{} failed: {error:#}", row.name);
                    samples.failure = Some(format!("in round {round}: {error:#}"));
                }
            }
        }
    }
    report::write(rows, &all, seconds, machine, file)?;
    let failed = all.iter().filter(|row| row.failure.is_some()).count();
    ensure!(failed == 0, "{failed} rows failed");
    Ok(())
}

fn measure(
    row: &Row,
    seconds: u32,
    networks: &mut Networks,
    messages: &mut Option<u32>,
) -> Result<Figures> {
    match row.work {
        Work::Limit(limit) => limit.measure(seconds.into()),
        Work::Load(load) => load.measure(Ends::new(networks.at(Net::Lo)?, seconds)?, seconds),
        Work::Perftest(net, perftest) => {
            let ends = Ends::new(networks.at(net)?, seconds)?;
            measure_perftest(&perftest, &ends, seconds, messages)
        }
    }
}

/// Latencies are measured over a number of messages, which a first run finds.
fn measure_perftest(
    perftest: &Perftest,
    ends: &Ends<'_>,
    seconds: u32,
    messages: &mut Option<u32>,
) -> Result<Figures> {
    let length = match *messages {
        _ if !perftest.program.is_latency() => Length::Seconds(seconds),
        Some(messages) => Length::Messages(messages),
        None => {
            let (printed, _) = exchange(perftest, ends, Length::Messages(MESSAGES_TO_LEARN))?;
            let Printed::Latency { average_us, .. } = printed else {
                anyhow::bail!("not a latency");
            };
            let found = perftest.messages_for(seconds, average_us);
            *messages = Some(found);
            Length::Messages(found)
        }
    };
    exchange(perftest, ends, length).map(|(_, figures)| figures)
}

fn exchange(perftest: &Perftest, ends: &Ends<'_>, length: Length) -> Result<(Printed, Figures)> {
    let seen = ends.exchange(1, |host, port, server| {
        perftest.argv(length, host.device, port, server)
    })?;
    let output = seen.outputs.first().context("no client")?;
    let printed = perftest
        .parse(output)
        .with_context(|| format!("the client printed:\n{output}"))?;
    let figures = perftest.figures(printed, seen.cpu_seconds, seen.datagrams_dropped);
    Ok((printed, figures))
}

/// The networks of the sandbox, made when they are needed.
#[derive(Default)]
struct Networks {
    lo: Option<World>,
    /// With the interface MTU that it has now.
    veth: Option<(World, u32)>,
}

impl Networks {
    fn at(&mut self, net: Net) -> Result<&World> {
        match net {
            Net::Lo => made(&mut self.lo, || World::build(net)),
            Net::Veth(mtu) => {
                let (world, now) = match &mut self.veth {
                    Some(veth) => veth,
                    none => none.insert((World::build(net)?, mtu)),
                };
                if *now != mtu {
                    for host in [&world.server, &world.client] {
                        let namespace = host.namespace.context("a host without a namespace")?;
                        ip(&format!(
                            "-n {namespace} link set {} mtu {mtu}",
                            host.interface
                        ))?;
                    }
                    *now = mtu;
                }
                Ok(world)
            }
        }
    }
}

fn made(place: &mut Option<World>, make: impl FnOnce() -> Result<World>) -> Result<&World> {
    match place {
        Some(world) => Ok(world),
        none => Ok(none.insert(make()?)),
    }
}
