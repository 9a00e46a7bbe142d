//! `kill -9` at random moments of one of many: the others go on, and nothing of it stays.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Plan, program};
use crate::process::GUARD;
use crate::programs::{World, broker, command_line};

/// Eight pairs, on average two kills a second.
const PROCESSES: &str = "16";
const KILL_MS: &str = "500";

pub fn soak(world: &World, plan: Plan) -> Result<()> {
    let daemon = broker()?;
    // the broker makes a socket for each slot when that is used first, and keeps it
    let everybody = ["/run/verbs_ring", "-n", "255", "-r", "1"].map(String::from);
    program(world, &everybody, 0)?;
    settle(world)?;
    let before = descriptors(daemon)?;
    let argv = ["/run/verbs_pairs", "-n", PROCESSES, "-k", KILL_MS, "-t"].map(String::from);
    let seed = plan.seed.to_string();
    let argv = [&argv[..], &[plan.seconds.to_string(), "-s".into(), seed]].concat();
    print!("{}", program(world, &argv, plan.seconds)?);

    settle(world)?;
    ensure!(broker()? == daemon, "another broker than before");
    let after = no_more_descriptors(daemon, before)?;
    for process in fs::read_dir("/proc")?.flatten() {
        let line = command_line(&process.path());
        let program = line.split('\0').next().unwrap_or_default();
        ensure!(
            !program.ends_with("/verbs_pairs"),
            "{} is still there",
            process.path().display()
        );
    }
    println!("all slots are back; the broker has {after} open descriptors, {before} at first");
    Ok(())
}

/// Waits until nobody has a slot and none cools.
fn settle(world: &World) -> Result<()> {
    let deadline = Instant::now() + GUARD;
    loop {
        let status = world.server.softrdma(&["broker", "status"])?;
        if status.contains("slots leased 0, cooling 0") {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "slots do not come back:\n{status}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a process has at most so many descriptors open: who asked it a moment ago has two,
/// a connection and a handle of the process.
fn no_more_descriptors(process: u32, most: usize) -> Result<usize> {
    let deadline = Instant::now() + GUARD;
    loop {
        let count = descriptors(process)?;
        if count <= most {
            return Ok(count);
        }
        ensure!(
            Instant::now() < deadline,
            "the broker has {count} open descriptors, {most} at first"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn descriptors(process: u32) -> Result<usize> {
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).with_context(|| folder.clone())?;
    Ok(entries.count())
}
