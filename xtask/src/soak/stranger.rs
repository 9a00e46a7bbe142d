//! Somebody who connects to an iWARP device by plain TCP and does not mean well.
//!
//! Who has a connection may use what it was granted, as any peer: a stranger uses that too, at its
//! edges. All else that he sends is wrong, or comes at the wrong time, or not at all.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use wire::MemoryKey;
use wire::iwarp::{
    Body, Depth, Enhanced, Framer, Header, MessageOffset, Msn, Opcode, QueueNumber, ReadRequest,
    Reading, Revision, StartFrame, Tagged, TaggedOffset, Terminate, TerminateCode, Untagged, mpa,
};

use super::draws::Draws;

/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a socket and at whether all is over.
const PAUSE: Duration = Duration::from_millis(20);

/// What a stranger does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes instead of a request.
    Noise,
    /// A request with some bytes changed.
    BadRequest,
    /// Data right behind the request, before there is a reply.
    TooEarly,
    /// FPDUs of which some bytes were changed: lengths, markers, headers, CRCs.
    Mutated,
    /// Headers of every kind with any numbers.
    Wild,
    /// Right keys, at the edges of what was granted.
    Edges,
    /// Lengths that never come.
    Giant,
    /// Cut off by the end of the stream, or by its reset, at any byte.
    Cut,
    /// Terminate, in both readings.
    Terminates,
    /// One byte after the other.
    Slow,
    /// Nothing, at some point of the conversation.
    Silent,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::Noise,
        Self::BadRequest,
        Self::TooEarly,
        Self::Mutated,
        Self::Wild,
        Self::Edges,
        Self::Giant,
        Self::Cut,
        Self::Terminates,
        Self::Slow,
        Self::Silent,
    ];
    const QUICK: &[Self] = Self::ALL.split_at(9).0;
    const SLOW: &[Self] = Self::ALL.split_at(9).1;
}

/// What became of his visits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Of each kind.
    pub visits: [u64; Kind::ALL.len()],
    /// Replies.
    pub answered: u64,
    /// Connections that ended without one, or had none in time.
    pub unanswered: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.visits.iter_mut().zip(other.visits) {
            *sum += more;
        }
        self.answered += other.answered;
        self.unanswered += other.unanswered;
    }
}

/// Makes one connection after the other.
pub struct Stranger {
    target: SocketAddr,
    draws: Draws,
    kinds: &'static [Kind],
    tally: Tally,
}

/// What a reply grants, and how FPDUs have to be framed.
struct Granted {
    address: u64,
    key: MemoryKey,
    length: u32,
    framer: Framer,
}

impl Stranger {
    pub fn new(target: SocketAddr, seed: u32, is_slow: bool) -> Self {
        Self {
            target,
            draws: Draws::new(seed),
            kinds: if is_slow { Kind::SLOW } else { Kind::QUICK },
            tally: Tally::default(),
        }
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// One connection. Whatever the sockets say is well: the other end may close at any time.
    pub fn visit(&mut self, over: &AtomicBool) {
        let kind = self.kinds[self.draws.draw(self.kinds.len() as u32) as usize];
        let Ok(stream) = TcpStream::connect_timeout(&self.target, PATIENCE) else {
            std::thread::sleep(PAUSE);
            return;
        };
        self.tally.visits[kind as usize] += 1;
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(PAUSE));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        self.act(kind, &stream, over);
        if self.draws.chance(50) {
            // without this the end is an orderly one
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        }
    }

    fn act(&mut self, kind: Kind, stream: &TcpStream, over: &AtomicBool) {
        if kind == Kind::Noise {
            let noise = self.draws.bytes(2000);
            let _ = send(stream, &noise);
            wait_for_end(stream, over);
            return;
        }
        let mut request = self.request();
        match kind {
            Kind::BadRequest => self.mutate(&mut request),
            Kind::TooEarly => {
                let early = self.draws.bytes(200);
                request.extend(early);
            }
            Kind::Cut if self.draws.chance(30) => {
                let length = self.draws.draw(request.len() as u32) as usize;
                request.truncate(length);
                let _ = send(stream, &request);
                return;
            }
            Kind::Silent if self.draws.chance(30) => {
                let length = self.draws.draw(request.len() as u32) as usize;
                request.truncate(length);
            }
            _ => {}
        }
        let sent = if kind == Kind::Slow {
            drip(stream, &request, over)
        } else {
            send(stream, &request)
        };
        let granted = sent.and_then(|()| reply(stream, over));
        let Some(mut granted) = granted else {
            self.tally.unanswered += 1;
            return;
        };
        self.tally.answered += 1;
        let mut bytes = Vec::new();
        for number in 1..=1 + self.draws.draw(8) {
            let ulpdu = self.ulpdu(kind, &granted, number);
            let start = bytes.len();
            bytes.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
            bytes.extend(ulpdu);
            granted.framer.seal(&mut bytes, start);
        }
        match kind {
            Kind::Mutated => self.mutate(&mut bytes),
            Kind::Giant => {
                bytes.splice(..2, [0xff, 0xff]);
            }
            Kind::Cut => {
                let length = self.draws.draw(bytes.len() as u32) as usize;
                bytes.truncate(length);
                let _ = send(stream, &bytes);
                return;
            }
            Kind::Slow => {
                let _ = drip(stream, &bytes, over);
            }
            Kind::Silent => {
                let length = self.draws.draw(bytes.len() as u32) as usize;
                bytes.truncate(length);
            }
            _ => {}
        }
        if kind != Kind::Slow {
            let _ = send(stream, &bytes);
        }
        if self.draws.chance(30) {
            let _ = stream.shutdown(Shutdown::Write);
        }
        if kind == Kind::Silent {
            // what comes meanwhile is not even read
            let silence = Duration::from_millis(self.draws.draw(8000).into());
            let since = Instant::now();
            while since.elapsed() < silence && !over.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
            }
        } else if self.draws.chance(70) {
            listen_a_while(stream, over);
        }
    }

    fn request(&mut self) -> Vec<u8> {
        let draws = &mut self.draws;
        let is_enhanced = draws.chance(80);
        let private_data = draws.bytes(60);
        let request = StartFrame {
            wants_markers: draws.chance(20),
            wants_crc: draws.chance(50),
            enhanced: is_enhanced.then(|| Enhanced {
                ird: Depth::saturating(draws.draw(200) as u16),
                ord: Depth::saturating(draws.draw(200) as u16),
                peer_to_peer: draws.chance(20),
                rtr_send: draws.chance(30),
                rtr_write: draws.chance(70),
                rtr_read: draws.chance(50),
            }),
            private_data: &private_data,
            ..StartFrame::new(
                mpa::Kind::Request,
                if is_enhanced {
                    Revision::Two
                } else {
                    Revision::One
                },
            )
        };
        let mut bytes = Vec::new();
        // there is room for so little private data
        let _ = request.emit_into(&mut bytes);
        bytes
    }

    /// What is in an FPDU of this kind, as the one of this number.
    fn ulpdu(&mut self, kind: Kind, granted: &Granted, number: u32) -> Vec<u8> {
        let is_any = kind == Kind::Wild;
        if kind == Kind::Terminates {
            return self.terminate(number);
        }
        let draws = &mut self.draws;
        let opcode = if is_any {
            let all: Vec<Opcode> = Opcode::all().collect();
            all[draws.draw(all.len() as u32) as usize]
        } else {
            [Opcode::Write, Opcode::Send, Opcode::ReadRequest][draws.draw(3) as usize]
        };
        let (at, length) = range(draws, granted, kind);
        let key = if is_any && draws.chance(50) {
            MemoryKey(draws.draw(u32::MAX))
        } else {
            granted.key
        };
        let is_last = draws.chance(80);
        let header = if opcode.info().queue.is_none() {
            Header::Tagged(Tagged::new(opcode, is_last, key, TaggedOffset(at)))
        } else {
            let msn = if is_any && draws.chance(50) {
                draws.draw(u32::MAX)
            } else {
                number
            };
            let offset = MessageOffset(if is_any { draws.draw(5000) } else { 0 });
            let mut untagged = Untagged::new(opcode, is_last, Msn(msn), offset);
            if is_any && draws.chance(20) {
                untagged.queue = QueueNumber(draws.draw(6));
            }
            Header::Untagged(untagged)
        };
        let mut ulpdu = Vec::new();
        header.emit_into(&mut ulpdu);
        if opcode == Opcode::ReadRequest {
            let request = ReadRequest {
                sink: MemoryKey(draws.draw(u32::MAX)),
                sink_offset: TaggedOffset(draws.draw(u32::MAX).into()),
                length,
                source: key,
                source_offset: TaggedOffset(at),
            };
            ulpdu.extend_from_slice(&request.to_bytes());
        } else {
            ulpdu.resize(ulpdu.len() + length.min(20_000) as usize, 0x5a);
        }
        if is_any && draws.chance(20) {
            let length = 1 + draws.draw(ulpdu.len() as u32) as usize;
            ulpdu.truncate(length);
        }
        ulpdu
    }

    fn terminate(&mut self, number: u32) -> Vec<u8> {
        let mut ulpdu = Vec::new();
        let header = Untagged::new(Opcode::Terminate, true, Msn(number), MessageOffset(0));
        Header::Untagged(header).emit_into(&mut ulpdu);
        let codes = [
            TerminateCode::UNEXPECTED_OPCODE,
            TerminateCode::RDMAP_VERSION,
            TerminateCode::TAGGED_DDP_VERSION,
        ];
        let code = codes[self.draws.draw(3) as usize];
        let reading = if self.draws.chance(50) {
            Reading::Rfc
        } else {
            Reading::Swapped
        };
        Body::Terminate(Terminate::new(code), reading).emit_into(&mut ulpdu);
        if self.draws.chance(30) {
            let length = 1 + self.draws.draw(ulpdu.len() as u32) as usize;
            ulpdu.truncate(length);
        }
        ulpdu
    }

    fn mutate(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.draws.draw(4) {
            let at = self.draws.draw(bytes.len() as u32) as usize;
            bytes[at] ^= 1 + self.draws.draw(255) as u8;
        }
    }
}

/// Memory to ask for: mostly of what was granted, where `Edges` are meant around its ends.
fn range(draws: &mut Draws, granted: &Granted, kind: Kind) -> (u64, u32) {
    let length = match kind {
        Kind::Giant => draws.draw(u32::MAX),
        _ => draws.draw(3000),
    };
    let at = match kind {
        Kind::Edges => {
            let edge = if draws.chance(50) { 0 } else { granted.length };
            let around = i64::from(draws.draw(6000)) - 3000;
            granted
                .address
                .wrapping_add(edge.into())
                .wrapping_add_signed(around)
        }
        Kind::Wild if draws.chance(50) => {
            u64::from(draws.draw(u32::MAX)) << 32 | u64::from(draws.draw(u32::MAX))
        }
        _ => granted.address + u64::from(draws.draw(granted.length)),
    };
    (at, length)
}

/// All of it, or nothing if the other end does not take it.
fn send(mut stream: &TcpStream, bytes: &[u8]) -> Option<()> {
    stream.write_all(bytes).ok()
}

/// Byte by byte; not longer than the whole thing takes.
fn drip(stream: &TcpStream, bytes: &[u8], over: &AtomicBool) -> Option<()> {
    for byte in bytes {
        if over.load(Ordering::Relaxed) {
            return None;
        }
        send(stream, &[*byte])?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(())
}

/// Waits for a reply, and reads what is in its private data.
fn reply(stream: &TcpStream, over: &AtomicBool) -> Option<Granted> {
    let mut bytes = Vec::new();
    let since = Instant::now();
    while since.elapsed() < PATIENCE && !over.load(Ordering::Relaxed) {
        if !read(stream, &mut bytes)? {
            continue;
        }
        let Some((reply, _)) = StartFrame::parse(mpa::Kind::Reply, &bytes).ok()? else {
            continue;
        };
        if reply.is_rejected {
            return None;
        }
        let (address, rest) = reply.private_data.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_first_chunk::<4>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        return Some(Granted {
            address: u64::from_ne_bytes(*address),
            key: MemoryKey(u32::from_ne_bytes(*key)),
            length: u32::from_ne_bytes(*length).max(1),
            framer: Framer::new(reply.wants_crc, reply.wants_markers),
        });
    }
    None
}

/// Takes what is there; false if there is nothing, none at the end.
fn read(mut stream: &TcpStream, bytes: &mut Vec<u8>) -> Option<bool> {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => None,
        Ok(length) => {
            bytes.extend_from_slice(&buffer[..length]);
            Some(true)
        }
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
            Some(false)
        }
        Err(_) => None,
    }
}

fn wait_for_end(stream: &TcpStream, over: &AtomicBool) {
    let since = Instant::now();
    let mut bytes = Vec::new();
    while since.elapsed() < PATIENCE && !over.load(Ordering::Relaxed) {
        if read(stream, &mut bytes).is_none() {
            return;
        }
        bytes.clear();
    }
}

/// Takes some of the answers, if any come.
fn listen_a_while(stream: &TcpStream, over: &AtomicBool) {
    let mut bytes = Vec::new();
    for _ in 0..3 {
        if over.load(Ordering::Relaxed) || read(stream, &mut bytes).is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Granted {
        Granted {
            address: 0x10_0000,
            key: MemoryKey(0x1234),
            length: 4096,
            framer: Framer::new(true, false),
        }
    }

    #[test]
    fn a_seed_makes_the_same_again() {
        let target = SocketAddr::from(([127, 0, 0, 1], 1));
        let made = |seed| {
            let mut stranger = Stranger::new(target, seed, false);
            let mut all = stranger.request();
            for kind in Kind::ALL {
                all.extend(stranger.ulpdu(kind, &granted(), 1));
            }
            all
        };
        assert_eq!(made(7), made(7));
        assert_ne!(made(7), made(8));
    }

    #[test]
    fn requests_are_right_until_they_are_changed() {
        let mut stranger = Stranger::new(SocketAddr::from(([127, 0, 0, 1], 1)), 1, false);
        for _ in 0..200 {
            let request = stranger.request();
            let (_, length) = StartFrame::parse(mpa::Kind::Request, &request)
                .unwrap()
                .unwrap();
            assert_eq!(length, request.len());
        }
    }

    #[test]
    fn edges_are_crossed_and_ulpdus_fit_their_length_field() {
        let mut stranger = Stranger::new(SocketAddr::from(([127, 0, 0, 1], 1)), 3, false);
        let granted = granted();
        let (mut inside, mut outside) = (0, 0);
        for number in 0..1000 {
            let (at, length) = range(&mut stranger.draws, &granted, Kind::Edges);
            let fits = at >= granted.address
                && at + u64::from(length) <= granted.address + u64::from(granted.length);
            *if fits { &mut inside } else { &mut outside } += 1;
            for kind in Kind::ALL {
                let ulpdu = stranger.ulpdu(kind, &granted, number);
                assert!((1..=65_535).contains(&ulpdu.len()));
            }
        }
        assert!(inside > 100 && outside > 100, "{inside}, {outside}");
    }
}
