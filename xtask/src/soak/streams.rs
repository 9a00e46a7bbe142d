//! Strangers' TCP connections to a program that listens on an iWARP device, in the middle of a
//! checked transfer of another connection.
//!
//! Whatever a stranger sends ends his own connection at most. The transfer has to go on and its
//! data to be right, nothing that was granted to nobody may change, and no process may end. Half
//! of the time as links are, half of it with CRCs and markers.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::stranger::{Kind, Stranger, Tally};
use super::{ENDING, Plan, rate};
use crate::process::Running;
use crate::programs::{World, succeeded};

/// Strangers at once that do it quickly, and that send byte by byte or nothing.
const QUICK: u32 = 3;
const SLOW: u32 = 3;

const PORT: u16 = 7177;

/// Of the link, in the first and in the second half.
const OPTIONS: [&[&str]; 2] = [&[], &["crc", "on", "markers", "on"]];

pub fn soak(plan: Plan) -> Result<()> {
    let seconds = (plan.seconds / 2).max(1);
    for (number, options) in (0..).zip(OPTIONS) {
        let world = World::iwarp_alone(None, options)?;
        println!("options of the link: {options:?}");
        attack(&world, seconds, plan.seed.wrapping_add(number))?;
        let device = world.server.device;
        world.server.softrdma(&["link", "delete", device])?;
    }
    Ok(())
}

fn attack(world: &World, seconds: u64, seed: u32) -> Result<()> {
    let (time, port) = (seconds.to_string(), PORT.to_string());
    let argv = ["/run/cm_bait", &time, world.server.address, &port];
    let mut program = world.server.start(&argv, &[])?;
    program.wait_for_text("listening")?;
    let over = AtomicBool::new(false);
    let target = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT));
    let (ended, tallies) = std::thread::scope(|scope| {
        let strangers: Vec<_> = (0..QUICK + SLOW)
            .map(|number| {
                let seed = seed.wrapping_mul(16).wrapping_add(number);
                let mut stranger = Stranger::new(target, seed, number >= QUICK);
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        stranger.visit(over);
                    }
                    stranger.tally()
                })
            })
            .collect();
        let ended = program.wait_at_most(Duration::from_secs(seconds) + ENDING);
        over.store(true, Ordering::Relaxed);
        let tallies: Vec<_> = strangers.into_iter().map(|thread| thread.join()).collect();
        (ended, tallies)
    });
    let ended = ended?;
    println!("{}", ended.output.trim_end());
    succeeded("cm_bait under attack", &ended).map_err(|_| anyhow::anyhow!("it failed"))?;
    ensure!(!ended.output.contains("wrong:"), "something was wrong");
    ensure!(rate(&ended.output)? > 0.0, "the transfer stood still");
    let mut whole = Tally::default();
    for tally in tallies {
        whole.add(&tally.map_err(|_| anyhow::anyhow!("a stranger panicked"))?);
    }
    for kind in Kind::ALL {
        println!("{kind:?}: {}", whole.visits[kind as usize]);
    }
    println!("answered: {}, not: {}", whole.answered, whole.unanswered);
    ensure!(whole.answered > 0, "nobody was ever answered");
    Ok(())
}
