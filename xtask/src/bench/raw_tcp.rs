//! The limits of TCP below an iWARP device: framing, CRC-32C and the receiver's copy, without any
//! connection management, queue or completion.
//!
//! Two processes, one core each where there are two. This one sends RDMA WRITEs, cut into FPDUs and
//! gathered as a device does it, the other one takes them apart and places them.

mod peer;
mod sender;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use wire::iwarp::{Tagged, fpdu};

use super::figures::Figures;
use super::machine::{Pinned, two_processors};
pub use peer::{Arguments as PeerArguments, run as run_peer};

/// Payload of one TCP segment on `lo`: its interface MTU of 65,536 is more than an IP packet can
/// be, so 65,535 bytes less headers of IP and TCP, with time stamps.
const SEGMENT: usize = 65_535 - 20 - 20 - 12;
/// Payload of a full FPDU, by which messages go on at multiples of 4.
const FPDU_PAYLOAD: usize = (fpdu::mulpdu(SEGMENT, false) - Tagged::LENGTH) & !3;

/// Bytes of the region that payload is taken from, and placed in.
const REGION: usize = 1 << 20;

/// Bytes on the wire of an FPDU with a payload of 2 bytes.
const SMALL_FPDU: usize = fpdu::plain_length(Tagged::LENGTH + 2);

/// One row's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// WRITEs, many in one system call.
    Stream {
        /// Bytes of each; a region is a multiple of it.
        message: usize,
        /// The sender computes CRCs, the receiver checks them.
        has_crc: bool,
    },
    /// As many bytes as an FPDU with 2 bytes of payload has there and back, both ends poll.
    PingPong,
}

impl Plan {
    /// Measures it once, each side on a processor of its own where there are two.
    pub fn measure(self, seconds: f64) -> Result<Figures> {
        let processors = two_processors()?;
        let _pinned = processors
            .map(|[sender, _]| Pinned::to(sender))
            .transpose()?;
        sender::measure(self, seconds, processors.map(|[_, peer]| peer))
    }
}

/// Where each FPDU of the messages that fill a region begins in it, and its payload; `true` if it
/// is the last of its message.
fn cut(message: usize) -> Vec<(usize, usize, bool)> {
    let mut fpdus = Vec::new();
    for start in (0..REGION).step_by(message) {
        for offset in (0..message).step_by(FPDU_PAYLOAD) {
            let length = FPDU_PAYLOAD.min(message - offset);
            fpdus.push((start + offset, length, offset + length == message));
        }
    }
    fpdus
}

/// What the region of the sender contains, and after it that of the receiver.
fn pattern() -> Vec<u8> {
    (0..REGION).map(|index| (index / 7) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_into_full_fpdus() {
        assert_eq!(FPDU_PAYLOAD, 65_460);
        assert_eq!(SMALL_FPDU, 24);
        let fpdus = cut(64 << 10);
        assert_eq!(fpdus.len(), 32);
        assert_eq!(fpdus[1], (65_460, 76, true));
        assert_eq!(fpdus[2], (65_536, 65_460, false));
        assert_eq!(cut(64).len(), 16_384);
        for message in [64, 64 << 10, REGION] {
            let covered: usize = cut(message).iter().map(|(_, length, _)| length).sum();
            assert_eq!(covered, REGION);
        }
    }
}
