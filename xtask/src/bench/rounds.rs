//! The part of the bench that runs in a sandbox: every row once in each round.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::ends::Ends;
use super::figures::Figures;
use super::machine::Machine;
use super::perftest::Over;
use super::plan::{Row, Work};
use super::report;
use super::streams;
use crate::programs::{Net, World, came_between_listens, ip};

/// What was measured of a row.
#[derive(Default)]
pub struct Samples {
    pub rounds: Vec<Figures>,
    /// Why it was not measured again.
    pub failure: Option<String>,
    /// How many messages a latency is measured over, once that is known.
    pub messages: Option<u32>,
}

/// Measures one row once. What it learns of the number of messages stays for the next round.
pub type Measure<'a> = dyn FnMut(&Row, &mut Option<u32>) -> Result<Figures> + 'a;

/// How often ends that connect by rdma_cm begin: the client may be quicker than the server.
const ATTEMPTS: u32 = 10;

/// One run of the bench.
pub struct Run<'a> {
    pub rows: &'a [Row],
    pub rounds: u32,
    /// Of each measurement.
    pub seconds: u32,
    /// Where the figures are kept.
    pub file: &'a Path,
    pub machine: Machine,
    /// Whether to look for other programs before each round.
    pub watched: bool,
}

/// Measures everything on the networks of this sandbox.
pub fn run(run: Run<'_>) -> Result<()> {
    let mut networks = Networks::default();
    let seconds = run.seconds;
    let mut measure = |row: &Row, messages: &mut Option<u32>| match row.work {
        Work::Limit(limit) => limit.measure(seconds.into()),
        Work::TcpLimit(plan) => plan.measure(seconds.into()),
        Work::Load(load) => load.measure(Ends::new(networks.at(Net::Lo)?, seconds)?, seconds),
        Work::Perftest(net, perftest) => {
            let ends = Ends::new(networks.at(net)?, seconds)?;
            perftest.measure(seconds, messages, &mut |length| {
                ends.exchange(1, |host, port, server| {
                    perftest.argv(length, host.device, port, server)
                })
            })
        }
        Work::Iwarp(perftest) => {
            let ends = Ends::new(networks.iwarp(perftest.over)?, seconds)?;
            perftest.measure(seconds, messages, &mut |length| {
                let mut attempts = 0..ATTEMPTS;
                loop {
                    let outcome = ends.exchange(1, |host, port, server| {
                        perftest.argv(length, host.device, port, server)
                    });
                    attempts.next();
                    match outcome {
                        Err(error)
                            if !attempts.is_empty()
                                && came_between_listens(&format!("{error:#}")) => {}
                        outcome => return outcome,
                    }
                }
            })
        }
        Work::Stream(stream) => {
            let ends = match stream.over {
                streams::Over::Tcp => Ends::new(networks.at(Net::Lo)?, seconds)?,
                streams::Over::Roce => Ends::new(networks.at(Net::Lo)?, seconds)?.without_tcp(),
                streams::Over::Iwarp => {
                    let over = Over::Iwarp { has_crc: false };
                    Ends::new(networks.iwarp(over)?, seconds)?
                }
            };
            stream.measure(seconds, messages, &mut |turns| {
                ends.exchange(1, |_, port, server| stream.argv(turns, port, server))
            })
        }
        Work::SetUp(net) => Ends::new(networks.at(net)?, seconds)?.set_up(),
        Work::Guest(..) => bail!("there is no guest here"),
    };
    run_with(run, &mut measure)
}

/// Measures all rows by `measure`, prints the table and keeps the figures.
pub fn run_with(mut run: Run<'_>, measure: &mut Measure<'_>) -> Result<()> {
    let mut all: Vec<Samples> = run.rows.iter().map(|_| Samples::default()).collect();
    for round in 1..=run.rounds {
        println!("round {round} of {}", run.rounds);
        if run.watched && round > 1 {
            run.machine.look_again();
        }
        for (row, samples) in run.rows.iter().zip(&mut all) {
            if samples.failure.is_some() {
                continue;
            }
            match measure(row, &mut samples.messages) {
                Ok(figures) => samples.rounds.push(figures),
                Err(error) => {
                    println!("{} failed: {error}", row.name);
                    samples.failure = Some(format!("in round {round}: {error:#}"));
                }
            }
        }
    }
    report::write(&run, &all)?;
    let failed = all.iter().filter(|row| row.failure.is_some()).count();
    ensure!(failed == 0, "{failed} rows failed");
    Ok(())
}

/// The networks of the sandbox, made when they are needed.
#[derive(Default)]
struct Networks {
    lo: Option<World>,
    /// With the interface MTU that it has now.
    veth: Option<(World, u32)>,
    /// Hosts of their own with an iWARP device, without CRCs and with.
    iwarp: [Option<World>; 2],
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

impl Networks {
    fn iwarp(&mut self, over: Over) -> Result<&World> {
        let (place, namespace, options): (_, _, &[&str]) = match over {
            Over::Iwarp { has_crc: true } => (&mut self.iwarp[1], "iwarp_crc", &["crc", "on"]),
            _ => (&mut self.iwarp[0], "iwarp", &[]),
        };
        made(place, || World::iwarp_alone(Some(namespace), options))
    }
}

fn made(place: &mut Option<World>, make: impl FnOnce() -> Result<World>) -> Result<&World> {
    match place {
        Some(world) => Ok(world),
        none => Ok(none.insert(make()?)),
    }
}
