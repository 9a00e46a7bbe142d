//! Checking the ICRC of what arrives through a socket, which does not tell the IPv4 identification.
//!
//! The checksum itself tells which identification it was made with. A peer that counts (the
//! kernel's rxe, NICs) may use any of 65,536, which leaves 16 bits of protection. A peer that sends
//! as we do uses 0 for single packets and k for segment k, so it is held to 128 values: 25 bits.

use std::collections::HashMap;
use std::net::SocketAddr;

use engine::PathMeta;
use wire::icrc::{Believe, OWN_IDENTIFICATIONS, PseudoHeader};
use wire::roce::UDP_PORT;

/// Flows remembered; when there are more, all are forgotten and learnt again.
const FLOWS_MAX: usize = 4096;

/// Packets with identification 0 after which a peer is known to send as we do. One that counts
/// comes by 0 once in 65,536 packets, and by others in between.
const ZEROS_OF_OWN_KIND: u8 = 8;

/// Packets in a row that only a counting peer can have made, after which a flow that was held to
/// our identifications is not any more: another stack took over the address.
const STRANGERS_MAX: u8 = 32;

/// What was learnt of the peers that sent to us.
#[derive(Debug, Default)]
pub(super) struct Flows {
    known: HashMap<Key, Flow>,
    /// Packets come in runs: the flow of the last one is not looked up again.
    current: Option<(Key, Flow)>,
}

/// All that the checksum covers of the headers below.
type Key = (SocketAddr, SocketAddr);

#[derive(Clone, Copy, Debug)]
struct Flow {
    header: PseudoHeader,
    kind: Kind,
    /// The identification that comes next if the peer sends as before.
    expected: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only identifications below 128 so far, this many of them 0.
    Unknown { zeros: u8 },
    /// Sends as we do; `strangers` packets in a row did not.
    Own { strangers: u8 },
    /// Counts.
    Counting,
}

impl Flows {
    pub(super) fn verify(&mut self, meta: &PathMeta, source_port: u16, packet: &[u8]) -> bool {
        let source = SocketAddr::new(meta.source, source_port);
        let destination = SocketAddr::new(meta.destination, UDP_PORT);
        self.select((source, destination))
            .is_some_and(|flow| flow.verify(packet))
    }

    /// Makes the flow of `key` the current one; `None` for addresses of two families.
    fn select(&mut self, key: Key) -> Option<&mut Flow> {
        if self.current.is_none_or(|(current, _)| current != key) {
            let flow = match self.known.get(&key) {
                Some(flow) => *flow,
                None => Flow::new(&key)?,
            };
            if let Some((last_key, last)) = self.current.replace((key, flow)) {
                if self.known.len() >= FLOWS_MAX {
                    self.known.clear();
                }
                self.known.insert(last_key, last);
            }
        }
        self.current.as_mut().map(|(_, flow)| flow)
    }
}

impl Flow {
    fn new((source, destination): &Key) -> Option<Self> {
        // The port is ours on all of this host, so who sends from here sends as we do.
        let is_same_host = source.ip() == destination.ip() || source.ip().is_loopback();
        let kind = if is_same_host {
            Kind::Own { strangers: 0 }
        } else {
            Kind::Unknown { zeros: 0 }
        };
        let header = PseudoHeader::new(*source, *destination)?;
        Some(Self {
            header,
            kind,
            expected: 0,
            last: 0,
        })
    }

    fn verify(&mut self, packet: &[u8]) -> bool {
        let believe = match self.kind {
            Kind::Own { .. } => Believe::Own,
            Kind::Unknown { .. } | Kind::Counting => Believe::Any,
        };
        if let Some(identification) = self.header.recover(packet, self.expected, believe) {
            self.accept(identification);
            return true;
        }
        if let Kind::Own { strangers } = &mut self.kind
            && self
                .header
                .recover(packet, self.expected, Believe::Any)
                .is_some()
        {
            *strangers += 1;
            if *strangers >= STRANGERS_MAX {
                self.kind = Kind::Counting;
            }
        }
        false
    }

    fn accept(&mut self, identification: u16) {
        match &mut self.kind {
            Kind::Unknown { .. } if identification >= OWN_IDENTIFICATIONS => {
                self.kind = Kind::Counting;
            }
            Kind::Unknown { zeros } if identification == 0 => {
                *zeros += 1;
                if *zeros >= ZEROS_OF_OWN_KIND {
                    self.kind = Kind::Own { strangers: 0 };
                }
            }
            Kind::Own { strangers } => *strangers = 0,
            Kind::Unknown { .. } | Kind::Counting => {}
        }
        // Single packets are all 0; segments and counters go up by one.
        let is_single = identification == 0 && self.last == 0;
        self.expected = if is_single {
            0
        } else {
            identification.wrapping_add(1)
        };
        self.last = identification;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A received packet with the ICRC of a sender that used `identification`.
    fn packet(flow: &Flow, identification: u16) -> Vec<u8> {
        let mut bytes = vec![0x5a; 60];
        flow.header.seal(&mut bytes, identification);
        bytes
    }

    fn flow(source: &str, destination: &str) -> Flow {
        let address = |text: &str| text.parse().expect("a literal");
        Flow::new(&(address(source), address(destination))).expect("one family")
    }

    fn foreign() -> Flow {
        flow("192.0.2.1:49152", "192.0.2.2:4791")
    }

    #[test]
    fn a_counting_peer_is_always_believed() {
        let mut flow = foreign();
        for count in 0..70_000_u32 {
            let bytes = packet(&flow, (65_500 + count) as u16);
            assert!(flow.verify(&bytes), "packet {count}");
        }
    }

    #[test]
    fn a_counting_peer_that_starts_at_zero_is_believed_beyond_127() {
        let mut flow = foreign();
        for identification in 0..500 {
            let bytes = packet(&flow, identification);
            assert!(flow.verify(&bytes), "identification {identification}");
        }
    }

    #[test]
    fn a_peer_like_us_is_held_to_our_identifications() {
        let mut flow = foreign();
        for _ in 0..ZEROS_OF_OWN_KIND {
            for identification in 0..3 {
                let bytes = packet(&flow, identification);
                assert!(flow.verify(&bytes));
            }
        }
        let stranger = packet(&flow, 128);
        assert!(!flow.verify(&stranger));
        let own = packet(&flow, 127);
        assert!(flow.verify(&own));
    }

    #[test]
    fn another_stack_may_take_over_the_address() {
        let mut flow = flow("127.0.0.1:40000", "127.0.0.1:4791");
        let mut refused = 0;
        for identification in 1000..1100 {
            let bytes = packet(&flow, identification);
            refused += u32::from(!flow.verify(&bytes));
        }
        assert_eq!(refused, u32::from(STRANGERS_MAX));
    }

    #[test]
    fn the_next_identification_is_expected() {
        let mut flow = foreign();
        let runs = [0, 1, 2, 3, 0, 1, 2, 0, 0, 0];
        let expected = [0, 0, 2, 3, 4, 1, 2, 3, 1, 0];
        for (identification, expected) in runs.into_iter().zip(expected) {
            assert_eq!(flow.expected, expected);
            let bytes = packet(&flow, identification);
            assert!(flow.verify(&bytes));
        }
    }

    #[test]
    fn flows_are_kept_apart_and_bounded() {
        let mut flows = Flows::default();
        let local = "192.0.2.2".parse().expect("a literal");
        let meta = PathMeta {
            source: "192.0.2.1".parse().expect("a literal"),
            destination: local,
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        for round in 0..2 {
            for port in 1..=(FLOWS_MAX as u16 + 10) {
                let flow = flow(&format!("192.0.2.1:{port}"), "192.0.2.2:4791");
                let bytes = packet(&flow, port + round);
                assert!(flows.verify(&meta, port, &bytes));
                assert!(
                    !flows.verify(&meta, port + 1, &bytes),
                    "the port is covered"
                );
            }
        }
        assert!(flows.known.len() <= FLOWS_MAX);
    }

    #[test]
    fn ipv6_is_exact() {
        let mut flow = flow("[2001:db8::1]:49152", "[2001:db8::2]:4791");
        let mut bytes = packet(&flow, 0);
        assert!(flow.verify(&bytes));
        bytes[20] ^= 1;
        assert!(!flow.verify(&bytes));
    }

    #[test]
    fn addresses_of_two_families_and_short_packets_are_refused() {
        let mut flows = Flows::default();
        let mut meta = PathMeta {
            source: "192.0.2.1".parse().expect("a literal"),
            destination: "2001:db8::2".parse().expect("a literal"),
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        assert!(!flows.verify(&meta, 1, &[0; 60]));
        meta.destination = "192.0.2.2".parse().expect("a literal");
        assert!(!flows.verify(&meta, 1, &[0; 15]));
    }
}
