//! From packets that are headers and spans to finished bytes: payload is copied once, and the ICRC
//! is computed over the copy.
//!
//! Memory that its program changes at any moment is thus no problem: what the checksum covers is
//! what leaves. The ICRC also covers the IPv4 identification, which the kernel sets to k for
//! segment k of a send and to 0 for a packet that is sent alone. Read first: [`wire::icrc`].
//!
//! The other direction, checking what arrived, is in `verify.rs`.

mod verify;

use std::net::SocketAddr;
use std::ops::Range;

use engine::{Burst, PacketOut, Path, PathMeta};
use io::udp::MAX_PAYLOAD;
use wire::icrc::{self, PseudoHeader};
use wire::roce::UDP_PORT;

use crate::memory::{MemoryTable, ProgramMemory};

/// Seals runs into one buffer, and checks what arrives.
#[derive(Debug, Default)]
pub struct Sealer {
    /// The run that was sealed last.
    run: Vec<u8>,
    flows: verify::Flows,
}

/// Finished packets, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedRun<'a> {
    /// The packets, each from its BTH to its ICRC.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last, which takes the rest.
    pub segment_size: usize,
    /// How many.
    pub count: usize,
}

impl<'a> SealedRun<'a> {
    /// The packets.
    pub fn packets(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.segment_size.max(1))
    }
}

/// The memory of a packet is gone. Nothing of the run may be sent; packets before this one can be
/// sealed again as a run of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealFault {
    /// Its index in the burst.
    pub packet: usize,
}

impl Sealer {
    /// Finishes the packets of `range`, which [`next_run`](crate::run::next_run) chose: they leave
    /// in one send along `path` from `source_port`.
    ///
    /// # Errors
    /// [`SealFault`] names the first packet whose payload could not be copied.
    pub fn seal(
        &mut self,
        burst: &Burst,
        range: Range<usize>,
        memory: &MemoryTable,
        path: &Path,
        source_port: u16,
    ) -> Result<SealedRun<'_>, SealFault> {
        let packets = &burst.packets()[range.clone()];
        let source = SocketAddr::new(path.local, source_port);
        let destination = SocketAddr::new(path.remote, UDP_PORT);
        // A path has addresses of one family; without that there is nothing to finish.
        let header = PseudoHeader::new(source, destination).ok_or(SealFault {
            packet: range.start,
        })?;
        let length = packets.iter().map(PacketOut::sealed_length).sum();
        if self.run.len() < length {
            self.run.resize(length.max(MAX_PAYLOAD), 0);
        }
        let program = ProgramMemory::access();
        let mut rest = &mut self.run[..length];
        for (index, packet) in packets.iter().enumerate() {
            let (bytes, after) = rest.split_at_mut(packet.sealed_length());
            rest = after;
            fill(bytes, burst, packet, memory, program).ok_or(SealFault {
                packet: range.start + index,
            })?;
            // at most 128 packets in a run
            header.seal(bytes, index as u16);
        }
        Ok(SealedRun {
            bytes: &self.run[..length],
            segment_size: packets.first().map_or(0, PacketOut::sealed_length),
            count: packets.len(),
        })
    }

    /// Whether the ICRC of a received packet is right, for an IPv4 identification that its sender
    /// can have used.
    pub fn verify(&mut self, meta: &PathMeta, source_port: u16, packet: &[u8]) -> bool {
        self.flows.verify(meta, source_port, packet)
    }
}

/// Writes header, payload and pad; `None` if the payload could not be copied.
fn fill(
    bytes: &mut [u8],
    burst: &Burst,
    packet: &PacketOut,
    memory: &MemoryTable,
    program: ProgramMemory,
) -> Option<()> {
    let header = burst.header(packet);
    let (place, mut rest) = bytes.split_at_mut(header.len());
    place.copy_from_slice(header);
    for span in burst.spans(packet) {
        let (place, after) = rest.split_at_mut_checked(span.length() as usize)?;
        memory.gather_by(program, span, place).ok()?;
        rest = after;
    }
    debug_assert_eq!(rest.len(), usize::from(packet.pad) + icrc::LENGTH);
    rest.fill(0);
    Some(())
}

#[cfg(test)]
mod tests;
