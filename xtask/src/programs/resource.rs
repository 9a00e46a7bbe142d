//! `softrdma resource show` and `statistic show`: what running programs have and have counted, and
//! what stays of dead ones.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scenes::Scene;
use super::softrdma;
use super::world::World;
use crate::process::{GUARD, Local, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 2] = [("resource", resource), ("statistic", statistic)];

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(50);

/// What a summary says of a host whose programs have nothing.
pub const NOTHING: &str = "pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0";

/// A connection is listed on both sides, a stopped process is named, and `kill -9` leaves nothing.
fn resource(world: &World) -> Result<()> {
    let address = world.server.address;
    let mut server = world.server.start(&["rping", "-s", "-a", address], &[])?;
    until(world, &["show", "cm_id"], |text| text.contains("LISTEN"))?;
    let mut client = world.client.start(&["rping", "-c", "-a", address], &[])?;
    let lists = until(world, &["show", "qp", "state", "RTS"], |text| {
        text.lines().count() == 2
    })?;
    each_knows_the_other(&lists, [server.id(), client.id()])?;
    until(world, &["show", world.server.device], |text| {
        text.contains("cq 2 qp 2 cm_id 3 ") && text.contains(" mr 7 ctx 2 ")
    })?;
    let of_client =
        world
            .client
            .softrdma(&["resource", "show", "mr", "pid", &client.id().to_string()])?;
    ensure!(
        of_client.lines().count() == 4 && of_client.contains(" mrlen 64 "),
        "the client's regions:\n{of_client}"
    );

    signal(&client, "STOP")?;
    let text = until(world, &["show", "qp"], |text| {
        text.contains(&format!("pid {} rping did not answer", client.id()))
    })?;
    ensure!(
        text.contains(&format!("pid {} comm rping", server.id())),
        "the other one is listed all the same:\n{text}"
    );
    signal(&client, "CONT")?;

    let command = softrdma().display().to_string();
    let refused = [command.as_str(), "link", "delete", world.server.device];
    let refused = world.server.start_plain(&refused, &[])?.wait()?;
    for pid in [server.id(), client.id()] {
        ensure!(
            refused.code != 0 && refused.output.contains(&format!("rping (pid {pid})")),
            "busy with whom:\n{}",
            refused.output
        );
    }

    server.kill()?;
    client.kill()?;
    until(world, &["show"], |text| text.contains(NOTHING))?;
    Ok(())
}

/// Counters say what was done, to the packet once who did it has ended well, and never go down,
/// also when somebody is killed.
fn statistic(world: &World) -> Result<()> {
    const ROUNDS: u64 = 25;
    let count = ROUNDS.to_string();
    let address = world.server.address;
    let run = |end: &str| {
        let argv = ["rping", end, "-a", address, "-C", count.as_str()];
        world.server.start(&argv, &[])
    };
    let mut server = run("-s")?;
    until(world, &["show", "cm_id"], |text| text.contains("LISTEN"))?;
    for ended in [run("-c")?.wait()?, server.wait()?] {
        super::succeeded("rping", &ended)?;
    }
    let counted = counters(world)?;
    // a round is two SENDs of each end
    for name in ["rdma_sends", "rdma_recvs"] {
        ensure!(counted(name)? == 4 * ROUNDS, "{name} is {}", counted(name)?);
    }

    let mut server = world.server.start(&["rping", "-s", "-a", address], &[])?;
    until(world, &["show", "cm_id"], |text| text.contains("LISTEN"))?;
    let mut client = world.client.start(&["rping", "-c", "-a", address], &[])?;
    let start = Instant::now();
    let before = loop {
        let now = counters(world)?;
        if now("rdma_sends")? > 4 * ROUNDS {
            break now;
        }
        ensure!(start.elapsed() < GUARD, "living programs are not counted");
        std::thread::sleep(PAUSE);
    };
    server.kill()?;
    client.kill()?;
    until(world, &["show"], |text| text.contains(NOTHING))?;
    let after = counters(world)?;
    for name in ["sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs"] {
        ensure!(
            after(name)? >= before(name)?,
            "{name} went from {} to {}",
            before(name)?,
            after(name)?
        );
    }
    Ok(())
}

/// The counters of the link by name.
pub(super) fn counters(world: &World) -> Result<impl Fn(&str) -> Result<u64>> {
    let text = world.server.softrdma(&["statistic", "show"])?;
    Ok(move |name: &str| {
        let is_it = |line: &&str| line.trim_start().starts_with(name);
        let line = text.lines().find(is_it).context("no such counter")?;
        let value = line.split_whitespace().nth(1).context("no value")?;
        Ok(value.parse()?)
    })
}

/// Each line has the other's number, and the process that it belongs to.
fn each_knows_the_other(lines: &str, processes: [u32; 2]) -> Result<()> {
    let field = |line: &str, name: &str| -> Result<u32> {
        let mut words = line.split(' ').skip_while(|word| *word != name);
        let value = words.nth(1).with_context(|| format!("no {name}: {line}"))?;
        Ok(value.parse()?)
    };
    let [one, other] = lines.lines().collect::<Vec<_>>()[..] else {
        anyhow::bail!("not two:\n{lines}");
    };
    ensure!(
        field(one, "lqpn")? == field(other, "rqpn")?
            && field(other, "lqpn")? == field(one, "rqpn")?,
        "not of one connection:\n{lines}"
    );
    let mut pids = [field(one, "pid")?, field(other, "pid")?];
    pids.sort_unstable();
    let mut expected = processes;
    expected.sort_unstable();
    ensure!(pids == expected, "not of {processes:?}:\n{lines}");
    Ok(())
}

/// Looks until what is printed is as it should be.
pub(super) fn until(
    world: &World,
    what: &[&str],
    is_right: impl Fn(&str) -> bool,
) -> Result<String> {
    let start = Instant::now();
    loop {
        let text = world.server.softrdma(&[&["resource"], what].concat())?;
        if is_right(&text) {
            return Ok(text);
        }
        ensure!(start.elapsed() < GUARD, "{what:?} stays:\n{text}");
        std::thread::sleep(PAUSE);
    }
}

/// Sends a signal.
pub fn signal(process: &Local, name: &str) -> Result<()> {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &process.id().to_string()])
        .status()?;
    ensure!(status.success(), "kill -{name}");
    Ok(())
}
