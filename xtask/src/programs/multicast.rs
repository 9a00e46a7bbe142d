//! Multicast groups: `mckey` of Debian's `rdmacm-utils`, one sender and several receivers, and
//! perftest's, whose server attaches its queue pair by `ibv_attach_mcast` alone.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::perftest::PerfTest;
use super::scenes::Scene;
use super::succeeded;
use super::world::{Host, World};
use crate::process::{Ended, GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 3] = [
    ("mckey,ipv4", ipv4),
    ("mckey,ipv6", ipv6),
    ("ib_send_bw,multicast,ipv4", perftest_ipv4),
];

/// Those that need two hosts: the kernel has no way to groups of IPv6 on `lo`, and what is passed
/// on there instead has a bound, which perftest does not know.
pub const BETWEEN_HOSTS: [Scene; 1] = [("ib_send_bw,multicast,ipv6", perftest_ipv6)];

/// Receivers on each host.
const RECEIVERS: usize = 2;

const PAUSE: Duration = Duration::from_millis(50);

/// Over IPv4.
pub fn ipv4(world: &World) -> Result<()> {
    let address = |host: &Host| host.address.to_owned();
    run(world, "239.77.1.1", address)
}

/// Over IPv6.
pub fn ipv6(world: &World) -> Result<()> {
    let address = |host: &Host| match host.address {
        "10.77.0.1" => "fd77::1".into(),
        "10.77.0.2" => "fd77::2".into(),
        _ => "::1".to_owned(),
    };
    run(world, "ff1e::77", address)
}

/// perftest, with a group of IPv4.
fn perftest_ipv4(world: &World) -> Result<()> {
    perftest(world, "1", "0:0:0:0:0:0:0:0:0:0:255:255:239:77:2:1")
}

/// perftest, with a group of IPv6. Without `-M` it takes ff01:0:2:c985::, whose scope is the
/// interface: the kernel drops what comes for it over a network.
fn perftest_ipv6(world: &World) -> Result<()> {
    perftest(world, "2", "255:30:0:0:0:0:0:0:0:0:0:0:0:77:2:1")
}

/// One server in the group and one client, which sends as many as a receive buffer holds in any
/// case.
fn perftest(world: &World, gid_index: &'static str, group: &'static str) -> Result<()> {
    let test = PerfTest {
        program: "ib_send_bw",
        options: vec!["-c", "UD", "-g", "-n", "50", "-x", gid_index, "-M", group],
    };
    test.run(world)
}

/// Receivers on both hosts, the sender on one of them. The program says nothing before it ends;
/// that it has joined is to be seen in the kernel.
fn run(world: &World, group: &str, address: impl Fn(&Host) -> String) -> Result<()> {
    let is_one_host = world.server.namespace == world.client.namespace;
    let hosts = if is_one_host {
        vec![&world.server]
    } else {
        vec![&world.server, &world.client]
    };
    let mut receivers = Vec::new();
    for host in hosts {
        let argv = receiver(&address(host), group);
        for _ in 0..RECEIVERS {
            receivers.push(host.start(&as_strs(&argv), &[])?);
        }
        await_members(host, group.parse()?, RECEIVERS)?;
    }
    let argv = sender(&address(&world.client), group);
    let sender = world.client.start(&as_strs(&argv), &[])?.wait()?;
    judge("sender", &sender)?;
    for mut receiver in receivers {
        let ended = receiver
            .wait()
            .with_context(|| format!("receiver; the sender printed:\n{}", sender.output))?;
        judge("receiver", &ended)?;
    }
    Ok(())
}

/// The command line of a receiver on the interface with this address.
pub fn receiver(address: &str, group: &str) -> Vec<String> {
    ["mckey", "-b", address, "-m", group]
        .map(str::to_owned)
        .into()
}

/// That of a sender, which waits for three seconds before it sends.
pub fn sender(address: &str, group: &str) -> Vec<String> {
    [receiver(address, group), vec!["-s".into()]].concat()
}

/// Waits until so many sockets of a host are in the group.
pub fn await_members(host: &Host, group: IpAddr, count: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let table = match group {
            IpAddr::V4(_) => "/proc/net/igmp",
            IpAddr::V6(_) => "/proc/net/igmp6",
        };
        let table = host.start_plain(&["cat", table], &[])?.wait()?.output;
        if members(&table, group) >= count {
            return Ok(());
        }
        ensure!(
            start.elapsed() < GUARD,
            "nobody joins {group}; the kernel has:\n{table}"
        );
        std::thread::sleep(PAUSE);
    }
}

/// How many sockets are in the group, by the kernel's table: for IPv4 the address is the first word
/// of a line, as a number of this machine, and for IPv6 the third; the count follows.
fn members(table: &str, group: IpAddr) -> usize {
    let (place, name) = match group {
        IpAddr::V4(v4) => (0, format!("{:08X}", u32::from_ne_bytes(v4.octets()))),
        IpAddr::V6(v6) => (2, format!("{:032x}", u128::from(v6))),
    };
    let count = |line: &str| {
        let mut words = line.split_whitespace().skip(place);
        let is_it = words.next() == Some(name.as_str());
        let count = words.next().and_then(|count| count.parse::<usize>().ok());
        count.filter(|_| is_it)
    };
    table.lines().filter_map(count).sum()
}

/// Whether every message came.
pub fn judge(end: &str, ended: &Ended) -> Result<()> {
    succeeded(end, ended)?;
    for line in ["data transfers complete", "return status 0"] {
        ensure!(
            ended.output.contains(line),
            "{end}: no {line:?} in:\n{}",
            ended.output
        );
    }
    print!("{end}:\n{}", ended.output);
    Ok(())
}

fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::members;

    #[test]
    #[cfg(target_endian = "little")]
    fn members_are_those_of_the_kernels_tables() {
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     2      V3\n\
                    \t\t\t\t01014DEF     2 0:00000000\t\t0\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let group = "239.77.1.1".parse().expect("a literal");
        assert_eq!(members(igmp, group), 2);
        let igmp6 = "2    eth0            ff1e0000000000000000000000000077     3 00000004 0\n\
                     2    eth0            ff020000000000000000000000000001     1 0000000C 0\n";
        assert_eq!(members(igmp6, "ff1e::77".parse().expect("a literal")), 3);
        assert_eq!(members(igmp6, "ff1e::78".parse().expect("a literal")), 0);
    }
}
