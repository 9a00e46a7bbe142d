//! ICRC, the invariant checksum: seal it, verify it, and learn the IPv4 identification from it.
//!
//! Read first: IBA 7.8.1, A17.3.3. It is Ethernet's CRC-32 over eight bytes of ones, the IP and UDP
//! headers with their changeable fields as ones, the BTH with its fifth byte as ones, and the rest
//! as sent; the four bytes of the result go out low byte first.
//!
//! The idea: a CRC is linear. All packets from one address and port to another share their IP and
//! UDP headers but for two lengths and the IPv4 identification, so [`PseudoHeader`] keeps the state
//! for zeros there and [`PseudoHeader::seed`] adds what the real values contribute, from tables.
//! The fifth byte of the BTH is masked in the same way, so the packet is run over once, where it
//! lies. In the other direction a receiver that cannot see the identification computes with a
//! guess; the difference from the received ICRC, with the effect of the bytes that follow undone,
//! must have only the 16 bits of that field set.

mod crc;
mod field;

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::roce::bth::{Bth, NOT_COVERED};
pub use crate::roce::icrc::crc::choose_faster;

/// Bytes on the wire.
pub const LENGTH: usize = 4;

/// The shortest UDP payload that has an ICRC: a BTH and the ICRC.
pub const PACKET_LENGTH_MIN: usize = Bth::LENGTH + LENGTH;

/// Identifications that a sender like us uses: segment `i` of a segmented send has `i`, and there
/// are at most 128.
pub const OWN_IDENTIFICATIONS: u16 = 128;

/// The part of the checksum that packets from one address and port to another share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PseudoHeader {
    family: Family,
    /// The state after the pseudo header if lengths and identification were 0.
    state: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// The state of the checksum after the IP and UDP headers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u32);

/// Which identifications a receiver believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believe {
    /// All 65,536: a peer that counts. 16 bits of the checksum still protect.
    Any,
    /// Those below [`OWN_IDENTIFICATIONS`]: a peer that sends as we do. 25 bits protect.
    Own,
}

impl PseudoHeader {
    /// For packets from `source` to `destination`; `None` if one is IPv4 and the other IPv6.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                Some(Self::v4(source, destination))
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
                Some(Self::v6(source, destination))
            }
            _ => None,
        }
    }

    /// For IPv4 packets without options, with "don't fragment" set.
    pub fn v4(source: SocketAddrV4, destination: SocketAddrV4) -> Self {
        let mut bytes = [0; field::V4_LENGTH];
        bytes[..8].fill(0xff); // in place of the local routing header
        bytes[8..20].copy_from_slice(&[
            0x45, 0xff, 0, 0, // version, type of service (changeable), total length
            0, 0, 0x40, 0, // identification, "don't fragment"
            0xff, 17, 0xff, 0xff, // time to live (changeable), UDP, checksum (changeable)
        ]);
        bytes[20..24].copy_from_slice(&source.ip().octets());
        bytes[24..28].copy_from_slice(&destination.ip().octets());
        bytes[28..30].copy_from_slice(&source.port().to_be_bytes());
        bytes[30..32].copy_from_slice(&destination.port().to_be_bytes());
        bytes[34..36].fill(0xff); // UDP checksum (changeable); before it the length
        Self {
            family: Family::V4,
            state: crc::update(!0, &bytes),
        }
    }

    /// For IPv6 packets without extension headers.
    pub fn v6(source: SocketAddrV6, destination: SocketAddrV6) -> Self {
        let mut bytes = [0; field::V6_LENGTH];
        bytes[..8].fill(0xff); // in place of the local routing header
        bytes[8..16].copy_from_slice(&[
            0x6f, 0xff, 0xff, 0xff, // version, traffic class and flow label (changeable)
            0, 0, 17, 0xff, // payload length, UDP, hop limit (changeable)
        ]);
        bytes[16..32].copy_from_slice(&source.ip().octets());
        bytes[32..48].copy_from_slice(&destination.ip().octets());
        bytes[48..50].copy_from_slice(&source.port().to_be_bytes());
        bytes[50..52].copy_from_slice(&destination.port().to_be_bytes());
        bytes[54..56].fill(0xff); // UDP checksum (changeable); before it the length
        Self {
            family: Family::V6,
            state: crc::update(!0, &bytes),
        }
    }

    /// The state for a packet of `udp_payload_length` bytes, BTH to ICRC, and an IPv4
    /// identification (IPv6 has none: ignored). A few table reads.
    #[inline]
    pub fn seed(&self, udp_payload_length: usize, identification: u16) -> Seed {
        // Longer than a datagram can be wraps, as the fields themselves would.
        let udp_length = (udp_payload_length as u16).wrapping_add(8);
        let difference = match self.family {
            Family::V4 => {
                field::V4_TOTAL_LENGTH.effect(udp_length.wrapping_add(20))
                    ^ field::V4_UDP_LENGTH.effect(udp_length)
                    ^ field::V4_IDENTIFICATION.effect(identification)
            }
            Family::V6 => field::V6_BOTH_LENGTHS.effect(udp_length),
        };
        Seed(self.state ^ difference)
    }

    /// Writes the ICRC into the last four bytes of `packet`, BTH to ICRC. Does nothing to fewer
    /// than [`PACKET_LENGTH_MIN`] bytes, which are no packet.
    pub fn seal(&self, packet: &mut [u8], identification: u16) {
        let seed = self.seed(packet.len(), identification);
        if packet.len() >= PACKET_LENGTH_MIN
            && let Some((covered, icrc)) = packet.split_last_chunk_mut::<LENGTH>()
        {
            *icrc = seed.finish(covered).to_le_bytes();
        }
    }

    /// Whether the ICRC of `packet`, BTH to ICRC, is right for this identification.
    pub fn verify(&self, packet: &[u8], identification: u16) -> bool {
        self.difference(packet, identification) == Some(0)
    }

    /// The identification that makes the ICRC of `packet` right, trying `expected` first; `None` if
    /// there is none that `believe` admits. IPv6 has none: the answer is then `expected` if the
    /// ICRC is right.
    #[inline]
    pub fn recover(&self, packet: &[u8], expected: u16, believe: Believe) -> Option<u16> {
        let difference = self.difference(packet, expected)?;
        let identification = if difference == 0 {
            expected
        } else if self.family == Family::V4 {
            let following = packet.len() - LENGTH + field::V4_AFTER_IDENTIFICATION;
            expected ^ field::sixteen_bits_before(difference, following)?
        } else {
            return None;
        };
        let believed = match (believe, self.family) {
            (Believe::Any, _) | (_, Family::V6) => true,
            (Believe::Own, Family::V4) => identification < OWN_IDENTIFICATIONS,
        };
        believed.then_some(identification)
    }

    /// Computed ICRC XOR received ICRC; `None` if `packet` is too short for one.
    #[inline]
    fn difference(&self, packet: &[u8], identification: u16) -> Option<u32> {
        if packet.len() < PACKET_LENGTH_MIN {
            return None;
        }
        let (covered, icrc) = packet.split_last_chunk()?;
        let computed = self.seed(packet.len(), identification).finish(covered);
        Some(computed ^ u32::from_le_bytes(*icrc))
    }
}

impl Seed {
    /// The ICRC of a packet from its BTH to its pad; on the wire with the low byte first.
    #[inline]
    pub fn finish(self, covered: &[u8]) -> u32 {
        // without a fifth byte it is no packet, but a checksum like any other
        let mask = covered
            .get(NOT_COVERED)
            .map_or(0, |&byte| field::mask_of_bth(byte));
        !crc::update(self.0 ^ mask, covered)
    }
}

#[cfg(test)]
mod tests;
