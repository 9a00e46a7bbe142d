//! What is measured, in a form that travels to the other process, and the form of the datagrams.

use serde::{Deserialize, Serialize};

/// The byte that steers: the top of the destination QPN in the BTH.
pub const STEERING_BYTE: u32 = 5;

/// BTH in front of the payload, ICRC behind it.
pub const HEADER: usize = 12;
pub const TRAILER: usize = 4;

/// Bytes of the region that payload is copied from, and to: one message of the reference figures.
pub const REGION: usize = 1 << 20;

/// An acknowledgement, as a RoCE one: BTH, AETH, ICRC. Bytes 8 to 15 carry the payload bytes taken.
pub const ACK: usize = 20;
pub const ACK_TAKEN: std::ops::Range<usize> = 8..16;

/// A datagram of this length asks for an acknowledgement now, one of the other ends the peer.
pub const FLUSH: usize = 8;
pub const STOP: usize = 7;

/// More in flight gives no more speed on loopback.
const WINDOW_MAX: usize = 512 << 10;
const ACK_EVERY_MAX: usize = 128 << 10;

/// One row's traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub exchange: Exchange,
    /// Payload bytes in a packet.
    pub payload: usize,
    /// Packets in a send; 1 is without segmentation, and so without merging.
    pub segments: usize,
    /// The sender seals, the receiver verifies.
    pub checksum: bool,
    /// Payload is copied from and to a region.
    pub copy: bool,
    /// Members of the receiver's group; the last of them is used.
    pub sockets: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// As many packets as fit the window.
    Stream,
    /// One packet there, one back.
    PingPong { blocking: bool },
}

impl Plan {
    pub fn throughput(payload: usize, segments: usize) -> Self {
        let exchange = Exchange::Stream;
        Self {
            exchange,
            payload,
            segments,
            checksum: false,
            copy: false,
            sockets: 1,
        }
    }

    /// One small packet there and one back.
    pub fn ping_pong(blocking: bool) -> Self {
        Self {
            exchange: Exchange::PingPong { blocking },
            ..Self::throughput(64, 1)
        }
    }

    /// Bytes of a packet, BTH to ICRC.
    pub fn packet(&self) -> usize {
        HEADER + self.payload + TRAILER
    }

    /// Payload bytes in one send.
    pub fn payload_of_a_send(&self) -> usize {
        self.payload * self.segments
    }

    /// The steering byte, and index, of the last member of the group.
    pub fn slot(&self) -> u8 {
        // A group has 1 to 256 members.
        (self.sockets - 1) as u8
    }

    /// Payload bytes in flight at most: what the kernel's accounting of a receive buffer of
    /// `granted` bytes lets 60 % of it hold, and not more than is of use.
    pub fn window(&self, granted: usize) -> usize {
        let bytes = self.packet() * self.segments;
        // A merged datagram counts its length and a little; a single one up to twice as much.
        let counted = 832 + if self.segments > 1 { bytes } else { 2 * bytes };
        let sends = (granted * 6 / 10 / counted).min(WINDOW_MAX / bytes).max(1);
        sends * self.payload_of_a_send()
    }

    /// Payload bytes after which the receiver acknowledges.
    pub fn ack_every(&self, granted: usize) -> usize {
        (self.window(granted) / 4).min(ACK_EVERY_MAX)
    }
}

/// Packets with this payload that fit one send.
pub fn segments_that_fit(payload: usize) -> usize {
    (io::udp::MAX_PAYLOAD / (HEADER + payload + TRAILER)).min(io::udp::MAX_SEGMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_full_and_the_window_holds_one_at_least() {
        assert_eq!(segments_that_fit(4096), 15);
        assert_eq!(segments_that_fit(1024), 62);
        assert_eq!(segments_that_fit(64), 128);
        for (payload, segments) in [(4096, 15), (4096, 1), (1024, 62), (64, 128), (64, 1)] {
            let plan = Plan::throughput(payload, segments);
            for granted in [0, 4608, 212_992, 425_984, 8 << 20] {
                let window = plan.window(granted);
                assert!(window >= plan.payload_of_a_send());
                assert!(window <= WINDOW_MAX.max(plan.payload_of_a_send()));
                assert!(plan.ack_every(granted) <= window);
            }
        }
        // Six full datagrams fit the usual buffer; 60 % of it are three.
        let plan = Plan::throughput(4096, 15);
        assert_eq!(plan.window(425_984) / plan.payload_of_a_send(), 4);
    }
}
