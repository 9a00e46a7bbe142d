//! What travels to a slot's steering socket: a packet with the addresses that it arrived with.
//!
//! Processes pass on packets of other slots, the broker passes on what came to QP 1 for them.
//! Whoever passes a packet on has verified its ICRC; the receiver believes its own user and root.

use std::net::{IpAddr, Ipv6Addr};

/// Bytes before the packet: source, destination, interface, traffic class, hop limit.
const ORIGIN_LENGTH: usize = 16 + 16 + 4 + 1 + 1;

/// The longest message: 4096 bytes of payload and the longest chain of headers.
pub const MESSAGE_LENGTH_MAX: usize = ORIGIN_LENGTH + 4096 + 128;

/// What the IP header of a packet said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Who sent it.
    pub source: IpAddr,
    /// To which address of this host.
    pub destination: IpAddr,
    /// On which interface it came; 0 is unknown.
    pub interface: u32,
    /// TOS or traffic class, the ECN bits included.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Origin {
    /// The bytes that go before the packet.
    pub fn to_bytes(&self) -> [u8; ORIGIN_LENGTH] {
        let mut bytes = [0; ORIGIN_LENGTH];
        bytes[..16].copy_from_slice(&octets(self.source));
        bytes[16..32].copy_from_slice(&octets(self.destination));
        bytes[32..36].copy_from_slice(&self.interface.to_be_bytes());
        bytes[36] = self.traffic_class;
        bytes[37] = self.hop_limit;
        bytes
    }

    /// The parts of a message; `None` for what is none.
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, packet) = message.split_first_chunk::<ORIGIN_LENGTH>()?;
        let [source, destination] = [&head[..16], &head[16..32]].map(|octets| {
            let mut address = [0; 16];
            address.copy_from_slice(octets);
            Ipv6Addr::from(address).to_canonical()
        });
        let origin = Self {
            source,
            destination,
            interface: u32::from_be_bytes([head[32], head[33], head[34], head[35]]),
            traffic_class: head[36],
            hop_limit: head[37],
        };
        Some((origin, packet))
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "::1")] {
            let origin = Origin {
                source: source.parse().expect("a literal"),
                destination: destination.parse().expect("a literal"),
                interface: 7,
                traffic_class: 0x62,
                hop_limit: 63,
            };
            let mut message = origin.to_bytes().to_vec();
            message.extend_from_slice(b"packet");
            assert_eq!(
                Origin::split(&message),
                Some((origin, b"packet".as_slice()))
            );
            assert_eq!(Origin::split(&message[..ORIGIN_LENGTH - 1]), None);
        }
    }
}
