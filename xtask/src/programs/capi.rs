//! The C programs of `crates/capi/tests/c`: wrong use of each verb, the calls that wait, the work
//! request builders, datagrams, shared receive queues, multicast groups, connection management,
//! rsockets, children of programs with connections, and what ends while it connects.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::scenes::Scene;
use super::world::World;
use crate::{sandbox, workspace};

/// One for each program.
pub const SCENES: [Scene; 11] = [
    ("wrong-use", wrong_use),
    ("waiting", waiting),
    ("builders", builders),
    ("spoilt-batches", spoilt_batches),
    ("datagrams", datagrams),
    ("shared-receives", shared_receives),
    ("multicast-groups", multicast),
    ("connections", connections),
    ("abused-connections", abused_connections),
    ("rsockets", rsockets),
    ("forks", forks),
];

const PROGRAMS: [&str; 12] = [
    "wrong_use",
    "waiting",
    "builders",
    "spoilt_batches",
    "datagrams",
    "shared_receives",
    "multicast",
    "connections",
    "abused_connections",
    "rsockets",
    "forks",
    "hasty",
];

fn wrong_use(world: &World) -> Result<()> {
    run(world, "wrong_use")
}

fn waiting(world: &World) -> Result<()> {
    run(world, "waiting")
}

fn builders(world: &World) -> Result<()> {
    run(world, "builders")
}

fn spoilt_batches(world: &World) -> Result<()> {
    run(world, "spoilt_batches")
}

fn datagrams(world: &World) -> Result<()> {
    run(world, "datagrams")
}

fn shared_receives(world: &World) -> Result<()> {
    run(world, "shared_receives")
}

fn multicast(world: &World) -> Result<()> {
    run(world, "multicast")
}

fn connections(world: &World) -> Result<()> {
    run(world, "connections")
}

fn abused_connections(world: &World) -> Result<()> {
    run(world, "abused_connections")
}

fn rsockets(world: &World) -> Result<()> {
    run(world, "rsockets")
}

pub fn forks(world: &World) -> Result<()> {
    run(world, "forks")
}

/// Of iWARP alone: elsewhere connecting takes no time.
pub fn hasty(world: &World) -> Result<()> {
    run(world, "hasty")
}

fn run(world: &World, name: &str) -> Result<()> {
    let program = Path::new(sandbox::FOLDER).join(name);
    world.server.output(&[&program.to_string_lossy()]).map(drop)
}

/// Compiles them against the installed headers.
pub fn build() -> Result<Vec<PathBuf>> {
    let sources = workspace::root().join("crates/capi/tests/c");
    let folder = workspace::target()?.join("capi-tests");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let compile = |name: &str| {
        let program = folder.join(name);
        let output = Command::new("cc")
            .args([
                "-O1",
                "-g",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
            ])
            .args(["-D_GNU_SOURCE", "-o"])
            .arg(&program)
            .arg(sources.join(name).with_extension("c"))
            .args(["-lrdmacm", "-libverbs", "-pthread"])
            .output()
            .context("run cc")?;
        ensure!(
            output.status.success(),
            "cannot compile {name} (is libibverbs-dev installed?):\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(program)
    };
    PROGRAMS.into_iter().map(compile).collect()
}
