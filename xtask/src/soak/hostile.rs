//! Strangers' datagrams at full rate against a process in the middle of a checked transfer.
//!
//! The transfer has to go on and its data to be right, nothing that was granted to nobody may
//! change, and no process may end. What it costs is printed: how fast the transfer is without the
//! attack and with it.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use wire::icrc::PseudoHeader;

use super::datagrams::{Kind, Maker, Target};
use super::{ENDING, Plan, program, rate};
use crate::process::{Local, Running};
use crate::programs::{World, succeeded};

/// RoCEv2's port. spec: IBA A17.3.1
const PORT: u16 = 4791;

/// How often the targets are looked up again: queue pairs of the bait come and go.
const LOOK: Duration = Duration::from_millis(200);

/// Addresses from which they come: the peer's own, and a stranger's.
const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)];

pub fn soak(world: &World, plan: Plan) -> Result<()> {
    // a third of the time without, for comparison; not longer than says something
    let quiet = (plan.seconds / 3).clamp(1, 20);
    let argv = ["/run/verbs_pairs", "-b", "-t", &quiet.to_string()].map(String::from);
    let alone = rate(&program(world, &argv, quiet)?)?;

    let seconds = plan.seconds.saturating_sub(quiet).max(1);
    let time = seconds.to_string();
    let argv = ["/run/verbs_pairs", "-b", "-t", &time, "-d"];
    let mut pair = world
        .server
        .start(&[&argv[..], &[world.server.device]].concat(), &[])?;
    let sent = attack(&mut pair, plan.seed)?;
    let ended = pair.wait_at_most(Duration::from_secs(seconds) + ENDING)?;
    // what it printed of its targets is of no interest now
    let told = |line: &&str| !line.starts_with("target ");
    let output: Vec<&str> = ended.output.lines().filter(told).collect();
    let output = output.join("\n");
    println!("{output}");
    succeeded("verbs_pairs under attack", &ended).map_err(|_| anyhow::anyhow!("it failed"))?;
    ensure!(!output.contains("wrong:"), "something was wrong");
    let attacked = rate(&output)?;
    ensure!(attacked > 0.0, "the transfer stood still");
    println!(
        "{sent} datagrams, {:.0} a second; the transfer: {alone:.1} MB/s without, {attacked:.1} \
         MB/s with them",
        sent as f64 / seconds as f64
    );
    Ok(())
}

/// Sends until the pair ends, and says how many.
fn attack(pair: &mut Local, seed: u32) -> Result<u64> {
    pair.wait_for_text("target flow")?;
    let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
    let mut sockets = Vec::new();
    for source in SOURCES {
        let socket = UdpSocket::bind((source, 0)).context("a stranger's socket")?;
        let port = socket.local_addr()?.port();
        let pseudo = PseudoHeader::v4(SocketAddrV4::new(source, port), destination);
        sockets.push((socket, pseudo));
    }
    let mut maker = Maker::new(seed)?;
    let mut counts = [0u64; Kind::ALL.len()];
    let (mut sent, mut refused) = (0u64, 0u64);
    let mut targets = Vec::new();
    let mut look = Instant::now();
    while pair.ended()?.is_none() {
        if targets.is_empty() || look.elapsed() > LOOK {
            targets = newest_targets(&pair.output())?;
            look = Instant::now();
        }
        // a bunch between two looks at the process, which cost more
        for _ in 0..500 {
            let kind = maker.choose_kind();
            // most come from where the peer is
            let (socket, pseudo) = &sockets[usize::from(maker.chance(10))];
            let datagram = maker.make(kind, &targets, pseudo);
            match socket.send_to(&datagram, destination) {
                Ok(_) => {
                    sent += 1;
                    counts[kind as usize] += 1;
                }
                Err(_) => refused += 1, // the receiver's buffer is full, or nobody is there yet
            }
        }
    }
    for kind in Kind::ALL {
        println!("{kind:?}: {}", counts[kind as usize]);
    }
    println!("not taken by the socket: {refused}");
    Ok(sent)
}

/// The last line about each queue pair of each process. The output only grows: its end is enough.
fn newest_targets(output: &str) -> Result<Vec<Target>> {
    let lines = output.lines().rev().take(40);
    let targets: Vec<Target> = lines.filter_map(Target::parse).collect();
    let mut newest: Vec<Target> = Vec::new();
    for target in targets {
        if !newest.iter().any(|known| known.qpn == target.qpn) && newest.len() < 4 {
            newest.push(target);
        }
    }
    if newest.is_empty() {
        bail!("no targets");
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::newest_targets;

    #[test]
    fn the_last_line_about_a_queue_pair_counts() {
        let output = "target flow 70000 5 6 7 4096 100\nsomething\n\
                      target bait 70001 1 2 3 8192 200\ntarget flow 70000 50 60 7 4096 100\n";
        let targets = newest_targets(output).unwrap();
        assert_eq!(targets.len(), 2);
        assert_eq!((targets[0].qpn, targets[0].expected), (70_000, 50));
        assert!(!targets[1].is_flow);
        assert!(newest_targets("nothing\n").is_err());
    }
}
