//! What `poll_transmit` gives: three reused vectors, no trait and no allocation once warm. The
//! simulator, the tap and the run builder read the same thing.

use core::ops::Range;

use wire::{HeaderRepr, Psn, Qpn};

use crate::access::Span;
use crate::path::PathIndex;
use crate::run::Run;

/// Index of a queue pair in its shard: the low 16 bits of its QPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpIndex(pub u16);

/// Whose packet it is: where to report that it could not be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The queue pair.
    pub qp: QpIndex,
    /// PSN of the packet.
    pub psn: Psn,
    /// True for READ responses, atomic responses and acknowledgements.
    pub is_response: bool,
}

/// One packet: header bytes, then inline payload (both in `header`), then the bytes of `spans`,
/// then `pad` zero bytes, then the ICRC, which the sealer appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// BTH, extension headers and inline payload: a range of the burst's header bytes.
    pub header: Range<u32>,
    /// A range of the burst's spans.
    pub spans: Range<u32>,
    /// Bytes in the spans.
    pub span_length: u16,
    /// Zero bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Where it goes.
    pub path: PathIndex,
    /// Destination queue pair; its slot steers the packet at a peer like us.
    pub dest: Qpn,
    /// Whose it is.
    pub origin: Origin,
}

impl PacketOut {
    /// UDP payload of the finished packet in bytes, the ICRC included.
    pub fn sealed_length(&self) -> usize {
        (self.header.end - self.header.start) as usize
            + usize::from(self.span_length)
            + usize::from(self.pad)
            + 4
    }
}

/// Packets ready to be sealed, in the order in which they must leave.
#[derive(Debug, Default)]
pub struct Burst {
    headers: Vec<u8>,
    spans: Vec<Span>,
    packets: Vec<PacketOut>,
    packets_max: usize,
    /// The run that the last packet is in.
    run: Option<Run>,
    /// Counts runs over all bursts.
    run_number: u64,
    /// Every packet leaves in a datagram of its own.
    is_alone: bool,
}

/// What a packet takes of the receiver's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Which datagram it is in.
    pub run: u64,
    /// What it adds to the truesize of that, in bytes.
    pub bytes: u64,
}

impl Burst {
    /// A burst that takes at most `packets_max` packets.
    pub fn with_bound(packets_max: usize) -> Self {
        Self {
            packets_max,
            ..Self::default()
        }
    }

    /// Forgets all packets, keeps the memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.spans.clear();
        self.packets.clear();
        self.run = None;
    }

    /// Whether each packet leaves in a datagram of its own: where the kernel does not segment.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// What the next packet will cost, if it is this one.
    pub fn cost(&self, path: PathIndex, dest: Qpn, sealed_length: usize) -> Cost {
        let joined = self.joined(path, dest, sealed_length);
        match (joined, &self.run) {
            // the second packet may even make the datagram smaller; nothing is free of charge
            (Some(run), Some(before)) => Cost {
                run: self.run_number,
                bytes: run.truesize().saturating_sub(before.truesize()).max(1),
            },
            _ => Cost {
                run: self.run_number + 1,
                bytes: Run::of(path, dest, sealed_length).truesize(),
            },
        }
    }

    /// The last run with one more packet, if that joins it.
    fn joined(&self, path: PathIndex, dest: Qpn, sealed_length: usize) -> Option<Run> {
        self.run
            .filter(|_| !self.is_alone)
            .and_then(|run| run.with(path, dest, sealed_length))
    }

    /// Whether `poll_transmit` must stop.
    pub fn is_full(&self) -> bool {
        self.packets.len() >= self.packets_max
    }

    /// How many packets may still be appended.
    pub fn room(&self) -> usize {
        self.packets_max.saturating_sub(self.packets.len())
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The packets.
    pub fn packets(&self) -> &[PacketOut] {
        &self.packets
    }

    /// Header and inline bytes of a packet.
    pub fn header(&self, packet: &PacketOut) -> &[u8] {
        &self.headers[packet.header.start as usize..packet.header.end as usize]
    }

    /// The spans of a packet.
    pub fn spans(&self, packet: &PacketOut) -> &[Span] {
        &self.spans[packet.spans.start as usize..packet.spans.end as usize]
    }

    /// Takes back packets from index `from` on that `leaves_out` picks: their memory is gone.
    pub fn discard(&mut self, from: usize, mut leaves_out: impl FnMut(&PacketOut) -> bool) {
        let mut index = 0;
        self.packets.retain(|packet| {
            let stays = index < from || !leaves_out(packet);
            index += 1;
            stays
        });
    }

    /// Appends a packet. `header.bth.pad` is filled in from the payload's length, which is the
    /// sum of `inline` and `spans` and at most a path MTU.
    pub fn push(
        &mut self,
        path: PathIndex,
        origin: Origin,
        header: &mut HeaderRepr,
        inline: &[u8],
        spans: &[Span],
    ) {
        let start = self.headers.len() as u32;
        let span_length: u32 = spans.iter().map(Span::length).sum();
        let payload = inline.len() as u32 + span_length;
        let pad = (payload.wrapping_neg() & 3) as u8;
        header.bth.pad = pad;
        let dest = header.bth.destination;
        header.emit_into(&mut self.headers);
        self.headers.extend_from_slice(inline);
        let first_span = self.spans.len() as u32;
        self.spans.extend_from_slice(spans);
        let packet = PacketOut {
            header: start..self.headers.len() as u32,
            spans: first_span..self.spans.len() as u32,
            span_length: span_length as u16,
            pad,
            path,
            dest,
            origin,
        };
        let length = packet.sealed_length();
        match self.joined(path, dest, length) {
            Some(run) => self.run = Some(run),
            None => {
                self.run = Some(Run::of(path, dest, length));
                self.run_number += 1;
            }
        }
        self.packets.push(packet);
    }
}
