//! The byte streams in a capture of TCP: whatever came twice, late or in pieces is put together.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use super::Capture;

/// One connection, by who opened it.
#[derive(Debug)]
pub struct Connection {
    /// What the side that connected sent.
    pub request: Vec<u8>,
    /// What the other side sent.
    pub reply: Vec<u8>,
}

/// The connections of a file, in the order of their ports.
pub fn connections(capture: &Capture) -> Vec<Connection> {
    let mut streams: BTreeMap<(SocketAddrV4, SocketAddrV4), Stream> = BTreeMap::new();
    for frame in &capture.frames {
        let segment = Segment::parse(frame);
        let stream = streams.entry((segment.source, segment.destination));
        stream.or_default().add(&segment);
    }
    let opened = streams.iter().filter(|(_, stream)| stream.opens);
    opened
        .map(|(&(from, to), stream)| Connection {
            request: stream.assembled(),
            reply: streams.get(&(to, from)).map_or(vec![], Stream::assembled),
        })
        .collect()
}

/// One direction.
#[derive(Default)]
struct Stream {
    opens: bool,
    first: u32,
    /// Payloads by their distance from the first byte.
    pieces: Vec<(u32, Vec<u8>)>,
}

impl Stream {
    fn add(&mut self, segment: &Segment<'_>) {
        if segment.is_syn {
            self.opens = !segment.is_ack;
            self.first = segment.sequence.wrapping_add(1);
        } else if !segment.payload.is_empty() {
            let at = segment.sequence.wrapping_sub(self.first);
            self.pieces.push((at, segment.payload.to_vec()));
        }
    }

    fn assembled(&self) -> Vec<u8> {
        let mut pieces = self.pieces.clone();
        pieces.sort();
        let mut whole = Vec::new();
        for (at, piece) in &pieces {
            let at = *at as usize;
            assert!(at <= whole.len(), "byte {} is missing", whole.len());
            let known = (whole.len() - at).min(piece.len());
            assert_eq!(whole[at..at + known], piece[..known], "sent as two things");
            whole.extend_from_slice(&piece[known..]);
        }
        whole
    }
}

/// A TCP segment in IPv4 in Ethernet.
struct Segment<'a> {
    source: SocketAddrV4,
    destination: SocketAddrV4,
    sequence: u32,
    is_syn: bool,
    is_ack: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Self {
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        assert_eq!((word(12), frame[14], frame[23]), (0x0800, 0x45, 6));
        let address = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        let end = 14 + usize::from(word(16));
        let data = 34 + 4 * usize::from(frame[46] >> 4);
        Self {
            source: SocketAddrV4::new(address(26).into(), word(34)),
            destination: SocketAddrV4::new(address(30).into(), word(36)),
            sequence: u32::from_be_bytes(address(38)),
            is_syn: frame[47] & 0x02 != 0,
            is_ack: frame[47] & 0x10 != 0,
            payload: &frame[data..end],
        }
    }
}
