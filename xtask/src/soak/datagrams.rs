//! Datagrams that a hostile neighbour might send, made from a seed.
//!
//! They never are what could break a connection by right: whoever can seal a packet for a
//! connection, with its addresses and a PSN that is due, is its peer, as far as RoCE is concerned
//! (see `docs/threat-model.md`). The transfer gets packets with a right ICRC and a far PSN, or with
//! a PSN that is due and a wrong ICRC. The bait gets everything.

use std::fs;

use anyhow::{Context, Result, ensure};
use wire::icrc::{Believe, PseudoHeader};
use wire::ip::Frame;

use super::draws::Draws;
use crate::workspace;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    Noise,
    /// A packet of the kernel's rxe, with some bytes changed.
    Mutated,
    /// All right but for the ICRC.
    WrongIcrc,
    /// Right ICRC, any opcode, key and address, a PSN that is not due.
    FarPsn,
    /// For the bait: all may be right, also at the edges of what it grants.
    Bait,
    /// Cut off.
    Truncated,
    /// As large as UDP allows.
    Giant,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Noise,
        Self::Mutated,
        Self::WrongIcrc,
        Self::FarPsn,
        Self::Bait,
        Self::Truncated,
        Self::Giant,
    ];
}

/// A queue pair to attack, and what it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether the transfer uses it.
    pub is_flow: bool,
    pub qpn: u32,
    /// The PSN of the next request.
    pub expected: u32,
    /// The PSN of its own next request.
    pub next: u32,
    pub rkey: u32,
    pub address: u64,
    pub length: u32,
}

impl Target {
    /// Reads `target flow|bait QPN RQ_PSN SQ_PSN RKEY ADDRESS LENGTH`.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("target ")?.split(' ');
        let is_flow = words.next()? == "flow";
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Self {
            is_flow,
            qpn: number()? as u32,
            expected: number()? as u32,
            next: number()? as u32,
            rkey: number()? as u32,
            address: number()?,
            length: number()? as u32,
        })
    }
}

/// Opcodes of RC: requests, responses, acknowledgements.
const OPCODES_RC: u32 = 0x18;
/// Bytes of the base transport header.
const BTH: usize = 12;
const ICRC: usize = 4;
/// PSNs are numbers of 24 bits.
const PSNS: u32 = 1 << 24;
/// How far a PSN is that is not due, also when the look at the queue pair was a second ago.
const FAR: u32 = 1 << 21;
/// The largest UDP payload over IPv4.
const UDP_MAX: usize = 65_507;

/// Makes them.
pub struct Maker {
    draws: Draws,
    captured: Vec<Vec<u8>>,
}

impl Maker {
    pub fn new(seed: u32) -> Result<Self> {
        let folder = workspace::root().join("crates/wire/testdata/captures");
        let mut captured = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let bytes = fs::read(entry?.path())?;
            captured.extend(payloads(&bytes));
        }
        ensure!(!captured.is_empty(), "no packets in {}", folder.display());
        captured.sort(); // a folder has no order, a seed needs one
        let draws = Draws::new(seed);
        Ok(Self { draws, captured })
    }

    fn draw(&mut self, below: u32) -> u32 {
        self.draws.draw(below)
    }

    /// True in so many of a hundred times.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.draws.chance(percent)
    }

    /// Large ones seldom: a stranger with many bytes to send is another test.
    pub fn choose_kind(&mut self) -> Kind {
        match self.draw(100) {
            0..10 => Kind::Noise,
            10..30 => Kind::Mutated,
            30..50 => Kind::WrongIcrc,
            50..70 => Kind::FarPsn,
            70..90 => Kind::Bait,
            90..99 => Kind::Truncated,
            _ => Kind::Giant,
        }
    }

    /// A datagram of this kind for one of `targets`, which must not be empty.
    pub fn make(&mut self, kind: Kind, targets: &[Target], pseudo: &PseudoHeader) -> Vec<u8> {
        let target = targets[self.draw(targets.len() as u32) as usize];
        match kind {
            Kind::Noise => self.noise(1500),
            Kind::Giant => {
                let mut packet = self.noise(UDP_MAX as u32);
                self.aim(&mut packet, &target);
                packet
            }
            Kind::Mutated => self.mutated(&target, pseudo),
            Kind::WrongIcrc => {
                let psn = (target.expected + PSNS + self.draw(512) - 64) % PSNS;
                let mut packet = self.request(&target, psn);
                pseudo.seal(&mut packet, 0);
                self.break_seal(&mut packet, pseudo);
                packet
            }
            Kind::FarPsn => {
                let psn = self.far_psn(&target);
                let mut packet = self.request(&target, psn);
                pseudo.seal(&mut packet, 0);
                packet
            }
            Kind::Bait => {
                let bait = targets.iter().find(|target| !target.is_flow);
                let bait = *bait.unwrap_or(&target);
                let psn = if bait.is_flow {
                    self.far_psn(&bait)
                } else {
                    (bait.expected + self.draw(32)) % PSNS
                };
                let mut packet = self.request(&bait, psn);
                pseudo.seal(&mut packet, 0);
                packet
            }
            Kind::Truncated => {
                let psn = self.far_psn(&target);
                let mut packet = self.request(&target, psn);
                let length = self.draw(packet.len() as u32) as usize;
                packet.truncate(length);
                if self.chance(50) {
                    pseudo.seal(&mut packet, 0);
                }
                packet
            }
        }
    }

    fn noise(&mut self, most: u32) -> Vec<u8> {
        self.draws.bytes(most)
    }

    /// Far from what is due in both directions.
    fn far_psn(&mut self, target: &Target) -> u32 {
        loop {
            let psn = self.draw(PSNS);
            let distance = |from: u32| {
                let ahead = (psn + PSNS - from) % PSNS;
                ahead.min(PSNS - ahead)
            };
            if distance(target.expected) > FAR && distance(target.next) > FAR {
                return psn;
            }
        }
    }

    /// A request or response with all headers where they belong, and with payload.
    fn request(&mut self, target: &Target, psn: u32) -> Vec<u8> {
        let mut packet = vec![0; BTH];
        packet[0] = if self.chance(95) {
            self.draw(OPCODES_RC) as u8
        } else {
            self.draw(256) as u8
        };
        packet[1] = if self.chance(80) {
            0x40
        } else {
            self.draw(256) as u8
        };
        let key = if self.chance(95) {
            0xffff
        } else {
            self.draw(0x1_0000)
        };
        packet[2..4].copy_from_slice(&(key as u16).to_be_bytes());
        packet[4..8].copy_from_slice(&target.qpn.to_be_bytes());
        packet[8..12].copy_from_slice(&psn.to_be_bytes());
        packet[8] = if self.chance(50) { 0x80 } else { 0 };
        // as if a RETH came; with another opcode it is what it is
        let (address, length) = self.range(target);
        let rkey = if self.chance(70) {
            target.rkey
        } else {
            self.draw(u32::MAX)
        };
        packet.extend(address.to_be_bytes());
        packet.extend(rkey.to_be_bytes());
        packet.extend(length.to_be_bytes());
        let payload = if self.chance(50) {
            length.min(4200)
        } else {
            self.draw(1100)
        };
        packet.extend((0..payload.div_ceil(4) * 4).map(|at| at as u8 ^ 0x3c));
        packet.extend([0; ICRC]);
        packet
    }

    /// Inside of what is granted, across its edges, or anywhere.
    fn range(&mut self, target: &Target) -> (u64, u32) {
        let length = match self.draw(4) {
            0 => self.draw(64),
            1 => self.draw(target.length + 2000),
            2 => u32::MAX - self.draw(5000),
            _ => self.draw(1024),
        };
        let address = match self.draw(4) {
            0 => target.address.wrapping_sub(u64::from(self.draw(200))),
            1 => {
                (target.address + u64::from(target.length)).wrapping_sub(u64::from(self.draw(200)))
            }
            2 => target.address + u64::from(self.draw(target.length)),
            _ => u64::from(self.draw(u32::MAX)) << 16,
        };
        (address, length)
    }

    /// A captured packet for this queue pair.
    fn mutated(&mut self, target: &Target, pseudo: &PseudoHeader) -> Vec<u8> {
        let chosen = self.draw(self.captured.len() as u32) as usize;
        let mut packet = self.captured[chosen].clone();
        for _ in 0..self.draw(5) {
            if !packet.is_empty() {
                let at = self.draw(packet.len() as u32) as usize;
                packet[at] ^= 1 << self.draw(8);
            }
        }
        if self.chance(20) {
            let length = self.draw(packet.len() as u32 + 1) as usize;
            packet.truncate(length);
        }
        self.aim(&mut packet, target);
        if self.chance(70) {
            pseudo.seal(&mut packet, 0);
        }
        packet
    }

    /// Sets destination and a PSN that is not due.
    fn aim(&mut self, packet: &mut [u8], target: &Target) {
        let psn = self.far_psn(target);
        if let Some(header) = packet.get_mut(4..BTH) {
            header[..4].copy_from_slice(&target.qpn.to_be_bytes());
            header[5..].copy_from_slice(&psn.to_be_bytes()[1..]);
        }
    }

    /// Changes the ICRC so that no IPv4 identification explains it: a receiver takes 128 of them.
    fn break_seal(&mut self, packet: &mut [u8], pseudo: &PseudoHeader) {
        loop {
            let at = packet.len() - 1 - self.draw(ICRC as u32) as usize;
            packet[at] ^= 1 << self.draw(8);
            if pseudo.recover(packet, 0, Believe::Any).is_none() {
                return;
            }
        }
    }
}

/// UDP payloads of the frames of a capture file. Format: a header of 24 bytes, then each frame with
/// 16 bytes before it, the third word of which is its length.
fn payloads(file: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = file.get(24..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let Some((frame, after)) = after.split_at_checked(length) else {
            break;
        };
        if let Ok(frame) = Frame::parse(frame) {
            found.push(frame.payload.to_vec());
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::{FAR, ICRC, Kind, Maker, PSNS, Target};
    use wire::icrc::{Believe, PseudoHeader};

    const FLOW: Target = Target {
        is_flow: true,
        qpn: 0x02_1234,
        expected: 100,
        next: 0xff_ff00,
        rkey: 0x5511,
        address: 0x7000_0000,
        length: 240_000,
    };

    fn pseudo() -> PseudoHeader {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        PseudoHeader::v4(at(50_000), at(4791))
    }

    #[test]
    fn the_transfer_gets_nothing_that_is_right_in_everything() {
        let mut maker = Maker::new(1).unwrap();
        for _ in 0..3000 {
            for kind in Kind::ALL {
                let packet = maker.make(kind, &[FLOW], &pseudo());
                if packet.len() < 12 + ICRC {
                    continue;
                }
                let psn = u32::from_be_bytes([0, packet[9], packet[10], packet[11]]);
                let near = |due: u32| {
                    let ahead = (psn + PSNS - due) % PSNS;
                    ahead.min(PSNS - ahead) <= FAR
                };
                let is_sealed = pseudo().recover(&packet, 0, Believe::Own).is_some();
                assert!(
                    !(is_sealed && (near(FLOW.expected) || near(FLOW.next))),
                    "{kind:?}"
                );
            }
        }
    }

    #[test]
    fn a_seed_makes_the_same_again() {
        let make = || Maker::new(7).map(|mut maker| maker.make(Kind::Mutated, &[FLOW], &pseudo()));
        assert_eq!(make().unwrap(), make().unwrap());
    }

    #[test]
    fn targets_are_read() {
        let line = "target flow 70196 100 16776960 21777 1879048192 240000";
        let target = Target {
            qpn: 70_196,
            ..FLOW
        };
        assert_eq!(Target::parse(line), Some(target));
        assert_eq!(Target::parse("worker 1: done"), None);
    }
}
