//! `softrdma ping`: with itself, and with the unmodified `rping` at either end.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::scenes::Scene;
use super::world::World;
use super::{softrdma, succeeded};
use crate::process::{Ended, GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 1] = [("ping", ping)];

/// Messages of an exchange, and bytes of each.
const OPTIONS: [&str; 6] = ["-v", "-V", "-C", "20", "-S", "1000"];
const COUNT: usize = 20;

/// Which program is at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ours,
    RPing,
}

/// Every pair but two of rping's, over IPv4 and IPv6; and nobody there.
fn ping(world: &World) -> Result<()> {
    exchange(world, [Program::Ours, Program::Ours], "127.0.0.1")?;
    exchange(world, [Program::RPing, Program::Ours], "127.0.0.1")?;
    exchange(world, [Program::Ours, Program::RPing], "::1")?;
    let alone = start(world, Program::Ours, "-c", "127.0.0.1")?.wait()?;
    ensure!(
        alone.code != 0 && alone.output.contains("nobody listens there"),
        "without a server:\n{}",
        alone.output
    );
    Ok(())
}

fn exchange(world: &World, [server, client]: [Program; 2], address: &str) -> Result<()> {
    let mut serving = start(world, server, "-s", address)?;
    let start_of_wait = Instant::now();
    while !world
        .server
        .softrdma(&["resource", "show", "cm_id", "state", "LISTEN"])?
        .contains(&format!("pid {} ", serving.id()))
    {
        ensure!(
            start_of_wait.elapsed() < GUARD,
            "it does not listen:\n{}",
            serving.output()
        );
    }
    let asked = start(world, client, "-c", address)?.wait();
    let asked = asked.with_context(|| format!("the server printed:\n{}", serving.output()))?;
    judge(client, &asked, "ping data: rdma-ping-")?;
    judge(server, &serving.wait()?, "server ping data: rdma-ping-")
}

fn start(world: &World, program: Program, end: &str, at: &str) -> Result<crate::process::Local> {
    let command = softrdma().display().to_string();
    let argv = match program {
        Program::Ours => vec![command.as_str(), "ping", end, "-a", at],
        Program::RPing => vec![command.as_str(), "run", "--", "rping", end, "-a", at],
    };
    world
        .server
        .start_plain(&[&argv[..], &OPTIONS].concat(), &[])
}

fn judge(program: Program, ended: &Ended, line: &str) -> Result<()> {
    succeeded(&format!("{program:?}"), ended)?;
    let lines = ended.output.matches(line).count();
    ensure!(
        lines == COUNT,
        "{program:?}: {lines} texts of {COUNT}:\n{}",
        ended.output
    );
    Ok(())
}
