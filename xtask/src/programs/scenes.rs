//! What happens in a case, beyond one exchange.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::pingpong::{DEFAULT, PingPong};
use super::succeeded;
use super::world::World;
use crate::process::{Local, Running};

/// A named scene on `lo`.
pub type Scene = (&'static str, fn(&World) -> Result<()>);

/// Those that run once, as root on `lo`.
pub const ALL: [Scene; 6] = [
    ("devices", devices),
    ("two-pairs", two_pairs),
    ("killed-process", killed_process),
    ("killed-broker", killed_broker),
    ("broker-dies-under-a-watcher", watched_broker),
    ("slots", slots),
];

/// An exchange that goes on until somebody ends it.
const ENDLESS: PingPong = PingPong {
    count: 1_000_000_000,
    ..DEFAULT
};

/// One exchange between the two ends, both with these variables.
pub fn pingpong(world: &World, pingpong: &PingPong, variables: &[(&str, &str)]) -> Result<()> {
    pingpong.run(
        |argv| world.server.start(argv, variables),
        |argv| world.client.start(argv, variables),
        (world.server.device, world.client.device),
        world.server.address,
    )
}

/// `ibv_devices` lists the device with its GUID.
fn devices(world: &World) -> Result<()> {
    let output = world.server.output(&["ibv_devices"])?;
    let found = output.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words == ["rxe_lo", "020000fffe000000"]
    });
    ensure!(found, "rxe_lo and its GUID are not in:\n{output}");
    Ok(())
}

/// `ibv_devinfo -v` says of identity and port what it says of the kernel's rxe on `lo`.
pub fn devinfo(world: &World) -> Result<()> {
    const SAME_AS_KERNEL: [(&str, &str); 20] = [
        ("hca_id", "rxe_lo"),
        ("transport", "InfiniBand (0)"),
        ("fw_ver", "0.0.0"),
        ("node_guid", "0200:00ff:fe00:0000"),
        ("sys_image_guid", "0200:00ff:fe00:0000"),
        ("vendor_id", "0xffffff"),
        ("vendor_part_id", "0"),
        ("hw_ver", "0x0"),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("sm_lid", "0"),
        ("port_lid", "0"),
        ("port_lmc", "0x00"),
        ("link_layer", "Ethernet"),
        ("max_msg_sz", "0x80000000"),
        ("GID[  0]", "fe80::200:ff:fe00:0, RoCE v2"),
        ("GID[  1]", "::ffff:127.0.0.1, RoCE v2"),
        ("GID[  2]", "::1, RoCE v2"),
    ];
    let output = world
        .server
        .output(&["ibv_devinfo", "-d", "rxe_lo", "-v"])?;
    let fields: Vec<(&str, &str)> = output
        .lines()
        .filter_map(|line| line.trim().split_once(":\t"))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    for (name, expected) in SAME_AS_KERNEL {
        let found = fields.iter().find(|(field, _)| *field == name);
        let (_, value) = found.with_context(|| format!("no {name} in:\n{output}"))?;
        ensure!(*value == expected, "{name} is {value:?}, not {expected:?}");
    }
    Ok(())
}

/// The files that the kernel's devices have are there for a program that looks for them, in a
/// namespace and by changed paths.
pub fn sysfs(world: &World) -> Result<()> {
    const SCRIPT: &str = "ls /sys/class/infiniband && \
        cat /sys/class/infiniband/rxe_lo/node_guid /sys/class/infiniband/rxe_lo/ports/1/state && \
        ls /sys/class/infiniband/rxe_lo/device/net /dev/infiniband && test -c /dev/null && \
        ibv_devices | grep -q rxe_lo && echo sees it";
    const EXPECTED: [&str; 10] = [
        "rxe_lo",
        "0200:00ff:fe00:0000",
        "4: ACTIVE",
        "/dev/infiniband:",
        "rdma_cm",
        "uverbs0",
        "",
        "/sys/class/infiniband/rxe_lo/device/net:",
        "lo",
        "sees it",
    ];
    let command = super::softrdma().display().to_string();
    for how in ["--sysfs", "--sysfs=redirect"] {
        let argv = [&command, "run", how, "--", "sh", "-c", SCRIPT];
        let ended = world
            .server
            .start_plain(&argv, &[("XDG_RUNTIME_DIR", "/run/out")])?
            .wait()?;
        succeeded(how, &ended)?;
        let lines: Vec<&str> = ended.output.lines().collect();
        let found = lines.windows(EXPECTED.len()).any(|some| some == EXPECTED);
        ensure!(found, "{how}:\n{}", ended.output);
    }
    Ok(())
}

/// Our own program over every kind of request and refusal, with each kind of address.
pub fn twin(world: &World) -> Result<()> {
    for gid in ["0", "1", "2"] {
        both_ends(world, "/run/verbs_twin", &["-g", gid], &[])?;
    }
    Ok(())
}

/// What programs rely on: memory that changes, flags, regions that vanish, silent peers.
pub fn trials(world: &World) -> Result<()> {
    both_ends(world, "/run/verbs_trials", &[], &[])
}

/// Our programs over a network that loses and turns around; a flag is not seen before its data.
pub fn under_faults(world: &World, plan: &str) -> Result<()> {
    let variables = [("SOFTRDMA_FAULTS", plan)];
    both_ends(
        world,
        "/run/verbs_trials",
        &["-t", "data before its flag"],
        &variables,
    )?;
    both_ends(world, "/run/verbs_twin", &["-l"], &variables)
}

/// A program of ours as server and as client.
fn both_ends(
    world: &World,
    program: &str,
    options: &[&str],
    variables: &[(&str, &str)],
) -> Result<()> {
    let end = [&[program, "server", "-d", world.server.device], options].concat();
    let mut server = world.server.start(&end, variables)?;
    server.wait_for_listener(18600)?;
    let end = [&[program, "client", "-d", world.client.device], options].concat();
    let end = [&end[..], &[world.server.address]].concat();
    let client = world
        .client
        .start(&end, variables)?
        .wait()
        .context("the client")?;
    ensure!(
        client.code == 0,
        "client:\n{}server:\n{}",
        client.output,
        server.output()
    );
    let server = server.wait().context("the server")?;
    succeeded("server", &server)?;
    print!("server:\n{}client:\n{}", server.output, client.output);
    Ok(())
}

/// Two exchanges at once on one device.
fn two_pairs(world: &World) -> Result<()> {
    let exchange = PingPong {
        count: 20_000,
        ..DEFAULT
    };
    let mut first = Pair::start(
        world,
        PingPong {
            port: 18_601,
            ..exchange
        },
    )?;
    let mut second = Pair::start(
        world,
        PingPong {
            port: 18_602,
            size: 65_537,
            ..exchange
        },
    )?;
    first.finish()?;
    second.finish()
}

/// `kill -9` of a process disturbs nobody but its own other end.
fn killed_process(world: &World) -> Result<()> {
    for end in ["server", "client"] {
        let mut other = Pair::start(
            world,
            PingPong {
                port: 18_601,
                count: 50_000,
                ..DEFAULT
            },
        )?;
        let mut broken = Pair::start(
            world,
            PingPong {
                port: 18_602,
                ..ENDLESS
            },
        )?;
        let killed = if end == "server" {
            &mut broken.server
        } else {
            &mut broken.client
        };
        killed.kill()?;
        other
            .finish()
            .with_context(|| format!("beside a pair whose {end} was killed"))?;
        // What it left ends with an error if it had sent something, or waits for an answer for
        // ever, as over any RDMA device. Either way it can go, and its slot with it.
        drop(broken);
        pingpong(world, &DEFAULT, &[]).context("afterwards")?;
    }
    Ok(())
}

/// Killing the broker ends its clients with an error, not with a hang; the next program gets a new
/// broker.
fn killed_broker(world: &World) -> Result<()> {
    let mut pair = Pair::start(world, ENDLESS)?;
    kill(broker()?)?;
    for (name, end) in [("client", &mut pair.client), ("server", &mut pair.server)] {
        let ended = end
            .wait()
            .with_context(|| format!("the {name} after its broker"))?;
        ensure!(
            ended.code != 0,
            "the {name} ended well without a broker:\n{}",
            ended.output
        );
        println!("{name}:\n{}", ended.output);
    }
    // the link went with the broker that knew it: `run` makes the usual one
    pingpong(world, &DEFAULT, &[]).context("after the broker's death")
}

/// A program that waits for events learns that its device is gone.
fn watched_broker(world: &World) -> Result<()> {
    let mut watcher = world
        .server
        .start(&["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe_lo"], &[])?;
    watcher.wait_for_text("async event FD")?;
    kill(broker()?)?;
    watcher.wait_for_text("IBV_EVENT_DEVICE_FATAL")
}

/// A slot is not used again within a second of the death of who had it.
fn slots(world: &World) -> Result<()> {
    // When each slot's last owner was alive for certain; its death came later.
    let mut last_seen: Vec<(u8, Instant)> = Vec::new();
    let exchange = PingPong {
        count: 1,
        size: 1,
        ..DEFAULT
    };
    for turn in 0..40 {
        let mut pair = Pair::start(world, exchange)?;
        let connected = Instant::now();
        let slots = [slot(&pair.client.output())?, slot(&pair.server.output())?];
        ensure!(slots[0] != slots[1], "two processes in slot {}", slots[0]);
        ensure!(!slots.contains(&0), "a process in the broker's slot");
        for slot in slots {
            let before = last_seen.iter().find(|(used, _)| *used == slot);
            if let Some((_, before)) = before {
                let at_most = connected.duration_since(*before);
                ensure!(
                    at_most >= Duration::from_secs(1),
                    "turn {turn}: slot {slot} again after at most {at_most:?}"
                );
            }
        }
        pair.finish()?;
        last_seen.retain(|(used, _)| !slots.contains(used));
        last_seen.extend(slots.map(|slot| (slot, connected)));
    }
    println!(
        "slots: {:?}",
        last_seen.iter().map(|(slot, _)| slot).collect::<Vec<_>>()
    );
    Ok(())
}

/// Two ends that are connected and at work.
struct Pair {
    exchange: PingPong,
    server: Local,
    client: Local,
}

impl Pair {
    fn start(world: &World, exchange: PingPong) -> Result<Self> {
        let argv = exchange.argv(world.server.device, None);
        let mut server = world.server.start(&by_line(&argv), &[])?;
        server.wait_for_listener(exchange.port)?;
        let argv = exchange.argv(world.client.device, Some(world.server.address));
        let mut client = world.client.start(&by_line(&argv), &[])?;
        // each prints the other's address when it has it
        server.wait_for_text("remote address")?;
        client.wait_for_text("remote address")?;
        Ok(Self {
            exchange,
            server,
            client,
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.exchange.judge("client", &self.client.wait()?)?;
        self.exchange.judge("server", &self.server.wait()?)
    }
}

/// A program that prints each line at once; into a file it would keep them until its end.
fn by_line(argv: &[String]) -> Vec<&str> {
    ["stdbuf", "-oL"]
        .into_iter()
        .chain(argv.iter().map(String::as_str))
        .collect()
}

/// The slot of the process that printed this: the upper byte of its QPN.
fn slot(output: &str) -> Result<u8> {
    let line = output
        .lines()
        .find(|line| line.contains("local address"))
        .context("no address")?;
    let number = line
        .split("QPN 0x")
        .nth(1)
        .and_then(|rest| rest.get(..6))
        .context("no QPN")?;
    Ok((u32::from_str_radix(number, 16)? >> 16) as u8)
}

/// The process id of the one broker in this sandbox.
pub fn broker() -> Result<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let line = command_line(&entry.path());
        let mut words = line.split('\0');
        let program = words.next().unwrap_or_default();
        if program.ends_with("/softrdma") && words.next() == Some("broker") {
            found.push(id);
        }
    }
    match found[..] {
        [id] => Ok(id),
        _ => bail!("{} brokers: {found:?}", found.len()),
    }
}

/// The words of a process's command line, each with a zero after it; nothing of one that has gone.
/// `process` is its folder in `/proc`.
pub fn command_line(process: &Path) -> String {
    fs::read_to_string(process.join("cmdline")).unwrap_or_default()
}

fn kill(process: u32) -> Result<()> {
    let status = std::process::Command::new("kill")
        .args(["-9", &process.to_string()])
        .status()?;
    ensure!(status.success(), "kill -9 {process}");
    println!("killed the broker, process {process}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_slot_is_the_upper_byte() {
        let line = "  local address:  LID 0x0000, QPN 0x2a0001, PSN 0x803608, GID ::1\n";
        assert_eq!(super::slot(line).unwrap(), 0x2a);
    }
}
