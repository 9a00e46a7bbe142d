//! What a seed stands for: the link, the work requests of both programs, and what goes wrong.

use engine::iwarp::{CrcPolicy, Depths, LinkOptions};
use wire::iwarp::Revision;

use super::mischief::{Kind, Mischief};
use crate::rng::Rng;

/// Bytes of the regions that the peer reads and writes.
pub(super) const REGION: u32 = 6000;
/// Bytes between what two work requests use.
pub(super) const GAP: u32 = 4;

/// Everything about a run.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// The options of each host's link.
    pub links: [LinkOptions; 2],
    pub depths: [Depths; 2],
    pub mulpdu: usize,
    /// Bytes of a burst.
    pub burst: usize,
    pub signal_all: bool,
    pub send_depth: u32,
    /// The work requests of each host.
    pub plans: [Vec<Work>; 2],
    /// The last message finds no receive.
    pub is_rude: bool,
    /// The program that is asked says no.
    pub rejects: bool,
    /// Who closes the connection, once both are done.
    pub closer: usize,
    pub mischief: Option<Mischief>,
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub kind: WorkKind,
    pub length: u32,
    /// In the region of what is sent; of a READ in the peer's.
    pub source: u32,
    /// In the peer's target; of a READ or an atomic among our results.
    pub target: u32,
    pub is_signaled: bool,
    pub is_fenced: bool,
    pub is_solicited: bool,
    pub is_inline: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
    Send,
    Write,
    WriteImmediate([u8; 4]),
    Read,
    Add(u64),
}

impl Work {
    /// Whether it takes a receive of the peer.
    pub fn takes_receive(&self) -> bool {
        matches!(self.kind, WorkKind::Send | WorkKind::WriteImmediate(_))
    }

    /// Whether it brings something back.
    pub fn has_result(&self) -> bool {
        matches!(self.kind, WorkKind::Read | WorkKind::Add(_))
    }

    pub fn is_write(&self) -> bool {
        matches!(self.kind, WorkKind::Write | WorkKind::WriteImmediate(_))
    }
}

impl Scenario {
    pub fn random(rng: &mut Rng) -> Self {
        let extensions = rng.chance(400);
        let markers = rng.chance(200);
        let peer_to_peer = rng.chance(300);
        let revision = if rng.chance(150) {
            Revision::One
        } else {
            Revision::Two
        };
        let links = [0, 1].map(|_| LinkOptions {
            crc: rng.pick(&[CrcPolicy::Off, CrcPolicy::On, CrcPolicy::Required]),
            markers,
            revision,
            peer_to_peer: peer_to_peer && revision == Revision::Two,
            extensions,
        });
        // without negotiation both must have the same
        let depth = rng.pick(&[1, 1, 2, 8, 128]);
        let depths = [0, 1].map(|_| {
            let lower = |rng: &mut Rng| rng.range(1, depth) as u16;
            match revision {
                Revision::One => Depths {
                    ird: depth as u16,
                    ord: depth as u16,
                },
                Revision::Two => Depths {
                    ird: lower(rng),
                    ord: lower(rng),
                },
            }
        });
        // without an RTR message the host that is asked may not send before the other one did
        let least = u64::from(!links[0].peer_to_peer);
        let plans = [least, 0].map(|least| random_plan(rng, least, extensions));
        let mischief = rng.chance(600).then(|| {
            let kind = rng.pick(&Kind::ALL);
            let most = if kind == Kind::Forge { 60 } else { 30_000 };
            let most = rng.pick(&[30, most / 10, most]).max(2);
            Mischief {
                from: rng.below(2) as usize,
                at: rng.below(most),
                kind,
            }
        });
        Self {
            links,
            depths,
            mulpdu: rng.pick(&[128, 137, 1442, 8000, 65_535]),
            burst: rng.pick(&[1, 500, 4000, 256 << 10]),
            signal_all: rng.chance(500),
            send_depth: rng.pick(&[1, 2, 8, 64]),
            plans,
            is_rude: rng.chance(80),
            rejects: rng.chance(30),
            closer: rng.below(2) as usize,
            mischief,
        }
    }

    /// What goes wrong with what a host sends.
    pub fn mischief_of(&self, host: usize) -> Option<Mischief> {
        self.mischief.filter(|mischief| mischief.from == host)
    }
}

fn random_plan(rng: &mut Rng, least: u64, extensions: bool) -> Vec<Work> {
    let count = rng.range(least, 24) as usize;
    let mut results = 0;
    let mut works = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = match rng.below(if extensions { 8 } else { 6 }) {
            0 | 1 => WorkKind::Send,
            2 | 3 => WorkKind::Write,
            4 | 5 => WorkKind::Read,
            6 => WorkKind::Add(rng.bits()),
            _ => WorkKind::WriteImmediate([1, 2, 3, rng.below(256) as u8]),
        };
        let most = rng.pick(&[0, 8, 200, 3000]);
        let is_add = matches!(kind, WorkKind::Add(_));
        let length = if is_add { 8 } else { rng.range(0, most) as u32 };
        let room = u64::from(REGION - length);
        let mut work = Work {
            kind,
            length,
            source: rng.range(0, room) as u32,
            target: rng.range(0, room) as u32,
            is_signaled: rng.chance(600),
            is_fenced: rng.chance(100),
            is_solicited: rng.chance(300),
            is_inline: length <= 80 && rng.chance(200),
        };
        if work.has_result() {
            work.target = results;
            work.is_inline = false;
            results += length + GAP;
        }
        works.push(work);
    }
    // a queue can only be known to be empty by a completion of its last
    if let Some(last) = works.last_mut() {
        last.is_signaled = true;
    }
    works
}
