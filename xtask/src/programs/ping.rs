//! `softrdma ping`: with itself, and with the unmodified `rping` at either end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scenes::Scene;
use super::world::World;
use super::{softrdma, succeeded};
use crate::process::{Ended, GUARD, Local, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 1] = [("ping", ping)];

/// Messages of an exchange, and bytes of each.
const OPTIONS: [&str; 6] = ["-v", "-V", "-C", "20", "-S", "1000"];
const COUNT: usize = 20;

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(50);

/// Which program is at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ours,
    RPing,
}

/// Every pair but two of rping's, over IPv4 and IPv6; a server of many; and nobody there.
fn ping(world: &World) -> Result<()> {
    exchange(world, [Program::Ours, Program::Ours], "127.0.0.1")?;
    exchange(world, [Program::RPing, Program::Ours], "127.0.0.1")?;
    exchange(world, [Program::Ours, Program::RPing], "::1")?;
    crowd(world)?;
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
    await_listener(world, &serving)?;
    let asked = start(world, client, "-c", address)?.wait();
    let asked = asked.with_context(|| format!("the server printed:\n{}", serving.output()))?;
    judge(client, &asked, "ping data: rdma-ping-")?;
    judge(server, &serving.wait()?, "server ping data: rdma-ping-")
}

/// A persistent server has clients at the same time; one that is killed is no matter to the others.
fn crowd(world: &World) -> Result<()> {
    let address = "127.0.0.1";
    let mut serving = start_with(world, Program::Ours, &["-s", "-P", "-S", "1000"])?;
    await_listener(world, &serving)?;
    let endless = ["-c", "-a", address, "-v"];
    let mut victim = start_with(world, Program::Ours, &endless)?;
    let start_of_wait = Instant::now();
    while !victim.output().contains("ping data") {
        ensure!(start_of_wait.elapsed() < GUARD, "it is not served");
        std::thread::sleep(PAUSE);
    }
    let bound = [&["-c", "-a", address, "-I", address], &OPTIONS[..]].concat();
    let mut clients = [
        (Program::Ours, start_with(world, Program::Ours, &bound)?),
        (Program::RPing, start_with(world, Program::RPing, &bound)?),
    ];
    victim.kill()?;
    for (program, client) in &mut clients {
        let ended = client.wait();
        let ended = ended.with_context(|| format!("the server printed:\n{}", serving.output()))?;
        judge(*program, &ended, "ping data: rdma-ping-")?;
    }
    serving.kill()
}

fn await_listener(world: &World, serving: &Local) -> Result<()> {
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
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn start(world: &World, program: Program, end: &str, at: &str) -> Result<Local> {
    start_with(world, program, &[&[end, "-a", at], &OPTIONS[..]].concat())
}

fn start_with(world: &World, program: Program, options: &[&str]) -> Result<Local> {
    let command = softrdma().display().to_string();
    let command = command.as_str();
    let argv = match program {
        Program::Ours => vec![command, "ping"],
        Program::RPing => vec![command, "run", "--", "rping"],
    };
    world
        .server
        .start_plain(&[&argv[..], options].concat(), &[])
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
