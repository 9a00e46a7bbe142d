//! What a seed stands for: hosts, connections, network, and what goes wrong.

use core::time::Duration;

use engine::Instant;
use engine::rc::window::WindowConfig;
use tap::FaultPlan;
use tap::fault::{Probability, Span};
use wire::{Mtu, Psn};

use crate::rng::Rng;

/// Everything about a run but the plans.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Path MTU of all connections.
    pub mtu: Mtu,
    /// Over IPv6.
    pub is_v6: bool,
    /// Queue pairs on each host.
    pub connections: usize,
    /// One shared receive queue a host.
    pub shares_receives: bool,
    /// Bounds in flight.
    pub window: WindowConfig,
    /// Floor of timeouts.
    pub timeout_min: Duration,
    /// Timeout code.
    pub timeout: u8,
    /// Code for how long a peer waits whose receive is missing.
    pub min_rnr_timer: u8,
    /// Tries after RNR NAKs; 7 is without end.
    pub rnr_retry: u8,
    /// READs and atomics in flight at the requester.
    pub rd_atomic: u8,
    /// READs and atomics that the responder remembers.
    pub dest_rd_atomic: u8,
    /// Depth of send queues.
    pub send_depth: u32,
    /// Depth of receive queues.
    pub receive_depth: usize,
    /// Packets of a burst.
    pub burst: usize,
    /// From sending to arriving.
    pub delay: Duration,
    /// Up to this much more.
    pub jitter: Duration,
    /// What goes wrong until the network heals.
    pub faults: Option<FaultPlan>,
    /// How much later copies of packets arrive at most.
    pub lag: Duration,
    /// Bytes of a receive buffer in truesize.
    pub buffer: usize,
    /// How long a host lets its receive buffer wait at most.
    pub service: Duration,
    /// How long a program does something else at most.
    pub pace: Duration,
    /// When the network heals.
    pub heals_at: Instant,
    /// So much goes wrong that a connection may use up its retries.
    pub is_harsh: bool,
    /// Bytes of a receive.
    pub receive_length: u32,
    /// First PSNs of both hosts.
    pub first_psns: [Psn; 2],
    /// Programs drain send queues now and then.
    pub drains: bool,
    /// How often a connection that ended is made anew.
    pub revivals: u64,
    /// Keys are invalidated.
    pub invalidates: bool,
    /// What happens to memory, when, and to which lane.
    pub calamity: Option<(Instant, usize, Calamity)>,
}

/// Something that a program does to its memory while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calamity {
    /// The target's registration ends.
    TargetDeregistered,
    /// The target's mapping is gone from the middle on.
    TargetUnmapped,
    /// The registration of what is sent ends.
    SourceDeregistered,
    /// The mapping of what is sent is gone from the middle on.
    SourceUnmapped,
    /// The registration of where results go ends.
    SinkDeregistered,
    /// The mapping of the receives that wait is gone.
    ReceivesUnmapped,
}

impl Scenario {
    /// What a seed's generator makes up.
    pub fn random(rng: &mut Rng) -> Self {
        let mtu = rng.pick(&Mtu::ALL);
        let is_harsh = rng.chance(200);
        let is_lossless = !is_harsh && rng.chance(100);
        let delay = Duration::from_nanos(rng.range(500, 200_000));
        let worst = if is_harsh { 160 } else { 25 };
        let lag_ms = rng.pick(&[1, 10, 100]);
        let lag = rng.duration(Duration::from_millis(lag_ms));
        let faults = (!is_lossless).then(|| FaultPlan {
            loss: per_mille(rng.below(worst)),
            duplicate: per_mille(rng.below(worst * 2)),
            reorder: per_mille(rng.below(worst * 2)),
            corrupt: per_mille(rng.below(worst)),
            hold: Span::new(0, lag.as_nanos() as u64).unwrap_or(FaultPlan::HOLD),
            seed: rng.bits(),
            ..FaultPlan::NONE
        });
        let service = rng.pick(&[1, 20, 300]);
        let window = WindowConfig {
            bytes: rng.pick(&[1, 8 << 10, 64 << 10, 128 << 10]),
            first: rng.pick(&[1, 64 << 10]),
            read_chunk: mtu.bytes() * rng.pick(&[1, 2, 16]),
        };
        let rd_atomic = rng.pick(&[1, 1, 2, 4, 16]);
        let connections = rng.pick(&[1, 1, 2, 3]);
        let calamity = rng.chance(80).then(|| {
            let kind = rng.pick(&[
                Calamity::TargetDeregistered,
                Calamity::TargetUnmapped,
                Calamity::SourceDeregistered,
                Calamity::SourceUnmapped,
                Calamity::SinkDeregistered,
                Calamity::ReceivesUnmapped,
            ]);
            let at = Instant::from_nanos(rng.below(10_000_000));
            (at, rng.below(2 * connections as u64) as usize, kind)
        });
        let near_wrap = |rng: &mut Rng| {
            let before = if rng.chance(700) { 200 } else { 1 << 24 };
            Psn::default().minus(rng.below(before) as u32)
        };
        Self {
            mtu,
            is_v6: rng.chance(300),
            connections,
            shares_receives: rng.chance(300),
            window,
            timeout_min: Duration::from_micros(rng.pick(&[1000, 4000, 20_000])),
            timeout: rng.range(1, 16) as u8,
            min_rnr_timer: rng.range(1, 20) as u8,
            rnr_retry: if rng.chance(900) {
                7
            } else {
                rng.below(7) as u8
            },
            rd_atomic,
            dest_rd_atomic: rd_atomic + rng.below(3) as u8,
            send_depth: rng.pick(&[1, 2, 8, 64]),
            receive_depth: rng.pick(&[1, 2, 8, 64]),
            burst: rng.pick(&[1, 2, 7, 64]),
            delay,
            jitter: rng.duration(delay),
            faults,
            lag,
            buffer: rng.pick(&[416 << 10, 1 << 20, 8 << 20]),
            service: rng.duration(Duration::from_micros(service)),
            pace: Duration::from_micros(rng.range(1, 500)),
            heals_at: Instant::from_nanos(rng.range(1, 60) * 1_000_000),
            is_harsh,
            receive_length: mtu.bytes() * rng.range(1, 4) as u32 + rng.below(5) as u32,
            first_psns: [near_wrap(rng), near_wrap(rng)],
            drains: rng.chance(200),
            revivals: rng.below(3),
            invalidates: true,
            calamity,
        }
    }
}

fn per_mille(count: u64) -> Probability {
    let parts = count as u32 * (Probability::CERTAIN / 1000);
    Probability::from_parts(parts).unwrap_or(Probability::NEVER) // `count` is below 1000
}
