//! `kill -9` in the middle of a connection, and of making one: the other end learns of it, ends,
//! and nothing is left.
//!
//! Nothing is under way that would tell the survivor by time-outs alone: the broker says it.

use anyhow::{Context, Result, ensure};

use super::resource::{NOTHING, signal, until};
use super::scenes::Scene;
use super::world::World;
use crate::process::{Local, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 3] = [
    ("killed-in-transfer", in_transfer),
    ("killed-when-asked", when_asked),
    ("killed-when-asking", when_asking),
];

/// A server that listens.
fn listening(world: &World, argv: &[&str]) -> Result<Local> {
    let server = world.server.start(argv, &[])?;
    until(world, &["show", "cm_id"], |text| text.contains("LISTEN"))?;
    Ok(server)
}

fn nothing_is_left(world: &World) -> Result<()> {
    until(world, &["show"], |text| text.contains(NOTHING)).map(drop)
}

/// Either end of rping while it transfers: the other one is told that the connection has ended.
fn in_transfer(world: &World) -> Result<()> {
    let address = world.server.address;
    for killed in ["server", "client"] {
        let mut server = listening(world, &["rping", "-s", "-a", address])?;
        let mut client = world
            .client
            .start(&["rping", "-c", "-v", "-a", address], &[])?;
        client.wait_for_text("ping data")?;
        let (victim, survivor, told) = if killed == "server" {
            (&mut server, &mut client, "client DISCONNECT EVENT")
        } else {
            (&mut client, &mut server, "server DISCONNECT EVENT")
        };
        victim.kill()?;
        let ended = survivor
            .wait()
            .with_context(|| format!("the {killed} was killed"))?;
        ensure!(
            ended.output.contains(told),
            "no {told:?} in the last of it:\n{}",
            last_lines(&ended.output)
        );
        nothing_is_left(world)?;
    }
    Ok(())
}

/// A server that has not answered yet: the client is refused.
fn when_asked(world: &World) -> Result<()> {
    let mut server = listening(world, &["ucmatose"])?;
    signal(&server, "STOP")?;
    let mut client = asking(world)?;
    server.kill()?;
    let ended = client.wait().context("the server was killed")?;
    ensure!(
        ended.output.contains("RDMA_CM_EVENT_REJECTED, error: 28"),
        "not refused:\n{}",
        ended.output
    );
    nothing_is_left(world)
}

/// A client that has not got its answer yet: the server, which accepts, is refused.
fn when_asking(world: &World) -> Result<()> {
    let mut server = listening(world, &["ucmatose"])?;
    signal(&server, "STOP")?;
    asking(world)?.kill()?;
    // until the broker knows, too
    until(world, &["show", "cm_id"], |text| {
        !text.contains("state CONNECT")
    })?;
    signal(&server, "CONT")?;
    let ended = server.wait().context("the client was killed")?;
    ensure!(
        ended.output.contains("RDMA_CM_EVENT_REJECTED, error: 6"),
        "not refused:\n{}",
        ended.output
    );
    nothing_is_left(world)
}

/// A client that waits for an answer.
fn asking(world: &World) -> Result<Local> {
    let client = world
        .client
        .start(&["ucmatose", "-s", world.server.address], &[])?;
    until(world, &["show", "cm_id"], |text| {
        text.contains("state CONNECT")
    })?;
    Ok(client)
}

fn last_lines(output: &str) -> &str {
    const LENGTH: usize = 1000;
    let start = output.len().saturating_sub(LENGTH);
    output.get(start..).unwrap_or(output)
}
