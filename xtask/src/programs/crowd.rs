//! Many at once: pairs, processes, threads, queue pairs.

use anyhow::{Context, Result, ensure};

use super::perftest::PerfTest;
use super::scenes::Scene;
use super::succeeded;
use super::world::World;
use crate::process::Running;

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 5] = [
    ("eight-pairs", eight_pairs),
    ("ring-of-250", ring),
    ("slots-taken", slots_taken),
    ("threads", threads),
    ("60000-queue-pairs", many_queue_pairs),
];

/// Each program of perftest, all at once.
fn eight_pairs(world: &World) -> Result<()> {
    const PORTS: [&str; 8] = [
        "18601", "18602", "18603", "18604", "18605", "18606", "18607", "18608",
    ];
    let start = |(program, port)| {
        let test = PerfTest {
            program,
            options: vec!["-n", "1000", "-p", port],
        };
        let pair = test.start(world)?;
        Ok((test, pair))
    };
    let pairs: Result<Vec<_>> = PerfTest::PROGRAMS
        .into_iter()
        .zip(PORTS)
        .map(start)
        .collect();
    for (test, mut pair) in pairs? {
        test.finish(&mut pair)
            .with_context(|| format!("{test}, with seven others"))?;
    }
    Ok(())
}

/// 250 processes, each of which writes to the next one.
fn ring(world: &World) -> Result<()> {
    let device = world.server.device;
    let ring = ["/run/verbs_ring", "-d", device, "-n", "250"];
    world.server.output(&ring).map(drop)
}

/// The first process beyond the slots is told who has them.
fn slots_taken(world: &World) -> Result<()> {
    let device = world.server.device;
    let ring = [
        "/run/verbs_ring",
        "-d",
        device,
        "-n",
        "255",
        "-r",
        "1",
        "-k",
    ];
    let mut ring = world.server.start(&ring, &[])?;
    ring.wait_for_text("keep their devices")?;
    let one_more = ["ibv_rc_pingpong", "-d", device, "-g", "1"];
    let ended = world.server.start(&one_more, &[])?.wait()?;
    print!("{}", ended.output);
    ensure!(ended.code != 0, "a slot for the 256th process");
    for part in ["all 255 socket slots are taken", "verbs_ring (pid "] {
        ensure!(
            ended.output.contains(part),
            "no {part:?} in:\n{}",
            ended.output
        );
    }
    ring.kill()
}

/// Threads with queue pairs of their own: two of them, more than there are processors, and under
/// faults.
fn threads(world: &World) -> Result<()> {
    const FAULTS: &str = "loss=1%,reorder=2%,seed=7";
    let runs = [
        ("", ["-n", "2", "-r", "300"].as_slice()),
        ("", &["-n", "10", "-r", "100"]),
        (FAULTS, &["-n", "4", "-r", "50", "-l"]),
    ];
    for (faults, options) in runs {
        let program = ["/run/verbs_threads", "-d", world.server.device];
        let variables = [("SOFTRDMA_FAULTS", faults)];
        let ended = world
            .server
            .start(&[&program, options].concat(), &variables)?
            .wait()?;
        print!("{}", ended.output);
        succeeded("verbs_threads", &ended)?;
    }
    Ok(())
}

/// As many as fit into the numbers of one slot, but for some.
fn many_queue_pairs(world: &World) -> Result<()> {
    let device = world.server.device;
    let many = ["/run/verbs_many", "-d", device, "-n", "60000"];
    world.server.output(&many).map(drop)
}
