//! The sending process, which is also the one that measures.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use io::clock::now_ns;
use wire::MemoryKey;
use wire::iwarp::crc::Crc;
use wire::iwarp::{Framer, Opcode, Tagged, TaggedOffset, fpdu};

use super::peer::{Ready, Seen};
use super::{Plan, SMALL_FPDU, cut, pattern};
use crate::bench::figures::{Figures, quantile};
use crate::bench::second_process::SecondProcess;

/// Bytes of one system call, at least, if there are so many pieces in one.
const GATHERED: usize = 256 << 10;
/// Pieces of one system call: the kernel's limit, `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;
/// Shorter payload is copied behind its header: that costs less than a piece of its own.
const COPIED_BELOW: usize = 1024;

/// A peer that takes or sends nothing for so long hangs.
const HUNG: Duration = Duration::from_secs(30);

/// Round trips that are not counted: caches and clocks settle.
const WARM_UP: usize = 1000;

/// Runs one row once, with a peer process of its own.
pub fn measure(plan: Plan, seconds: f64, peer_processor: Option<usize>) -> Result<Figures> {
    let arguments = ["raw-tcp-peer".into(), serde_json::to_string(&plan)?];
    let mut peer = SecondProcess::start(&arguments, peer_processor)?;
    let ready: Ready = peer.line()?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, ready.port)).context("the peer")?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HUNG))?;
    let duration_ns = (seconds * 1e9) as u64;
    let figures = match plan {
        Plan::Stream { message, has_crc } => {
            let start = now_ns();
            Writes::new(message, has_crc).send_until(&stream, start + duration_ns)?;
            stream.shutdown(Shutdown::Write)?;
            let seen: Seen = peer.line()?;
            let elapsed_ns = (now_ns() - start) as f64;
            ensure!(seen.is_whole, "the bytes did not arrive as they were sent");
            Figures::Messages {
                gbit_per_s: seen.bytes as f64 * 8.0 / elapsed_ns,
                mega_messages_per_s: seen.messages as f64 * 1e3 / elapsed_ns,
                cpu_seconds_per_gbyte: None,
                datagrams_dropped: None,
            }
        }
        Plan::PingPong => ping_pong(stream, duration_ns)?,
    };
    peer.wait()?;
    Ok(figures)
}

/// RDMA WRITEs that fill the receiver's region again and again.
struct Writes {
    fpdus: Vec<(usize, usize, bool)>,
    region: Vec<u8>,
    has_crc: bool,
    /// Headers, trailers and small payload of one system call.
    own: Vec<u8>,
    pieces: Vec<Piece>,
}

/// Where bytes are that go out next.
#[derive(Clone, Debug)]
enum Piece {
    Own(Range<usize>),
    Region(Range<usize>),
}

impl Writes {
    fn new(message: usize, has_crc: bool) -> Self {
        Self {
            fpdus: cut(message),
            region: pattern(),
            has_crc,
            own: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Ends when the whole region has been written for the last time.
    fn send_until(&mut self, stream: &TcpStream, deadline_ns: u64) -> Result<()> {
        let mut next = 0;
        while next != 0 || now_ns() < deadline_ns {
            self.own.clear();
            self.pieces.clear();
            let mut gathered = 0;
            while gathered < GATHERED && self.pieces.len() + 3 <= PIECES_MAX {
                gathered += self.frame(next);
                next = (next + 1) % self.fpdus.len();
                if next == 0 {
                    break;
                }
            }
            self.send(stream)?;
        }
        Ok(())
    }

    /// Adds an FPDU; gives its bytes.
    fn frame(&mut self, index: usize) -> usize {
        let (at, length, is_last) = self.fpdus[index];
        let payload = at..at + length;
        let ulpdu = Tagged::LENGTH + length;
        let start = self.own.len();
        let offset = TaggedOffset(at as u64);
        let header = Tagged::new(Opcode::Write, is_last, MemoryKey(0x100), offset);
        self.own.extend_from_slice(&(ulpdu as u16).to_be_bytes());
        self.own.extend_from_slice(&header.to_bytes());
        if length < COPIED_BELOW {
            self.own.extend_from_slice(&self.region[payload]);
            // no markers here, so where the stream is does not matter
            Framer::new(self.has_crc, false).seal(&mut self.own, start);
            self.push_own(start);
        } else {
            let crc = Crc::of(&self.own[start..]);
            self.push_own(start);
            self.pieces.push(Piece::Region(payload.clone()));
            let trailer = self.own.len();
            self.own.resize(trailer + fpdu::pad(ulpdu), 0);
            let crc = if self.has_crc {
                crc.with(&self.region[payload])
                    .with(&self.own[trailer..])
                    .to_bytes()
            } else {
                [0; Crc::LENGTH]
            };
            self.own.extend_from_slice(&crc);
            self.push_own(trailer);
        }
        fpdu::plain_length(ulpdu)
    }

    /// What was added to the own bytes from `start` on, in one piece with what is before it.
    fn push_own(&mut self, start: usize) {
        let end = self.own.len();
        match self.pieces.last_mut() {
            Some(Piece::Own(range)) if range.end == start => range.end = end,
            _ => self.pieces.push(Piece::Own(start..end)),
        }
    }

    fn send(&self, mut stream: &TcpStream) -> Result<()> {
        let slice = |piece: &Piece| match piece {
            Piece::Own(range) => IoSlice::new(&self.own[range.clone()]),
            Piece::Region(range) => IoSlice::new(&self.region[range.clone()]),
        };
        let mut slices: Vec<IoSlice<'_>> = self.pieces.iter().map(slice).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match stream.write_vectored(rest) {
                Ok(0) => anyhow::bail!("the peer takes nothing more"),
                Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("sending"),
            }
        }
        Ok(())
    }
}

fn ping_pong(mut stream: TcpStream, duration_ns: u64) -> Result<Figures> {
    stream.set_nonblocking(true)?;
    let mut message = [0xa5; SMALL_FPDU];
    let mut round_trips_ns = Vec::new();
    let deadline = now_ns() + duration_ns;
    for count in 0.. {
        let start = now_ns();
        // A short measurement of a slow machine still gets some round trips after the first ones.
        if start >= deadline && count > WARM_UP + 100 {
            break;
        }
        // never more than this in flight, for which there is room
        stream.write_all(&message).context("sending")?;
        ensure!(poll_exactly(&mut stream, &mut message)?, "the peer is gone");
        if count >= WARM_UP {
            round_trips_ns.push(now_ns() - start);
        }
    }
    stream.shutdown(Shutdown::Write)?;
    round_trips_ns.sort_unstable();
    // Half of it, in µs.
    let at = |part| Some(quantile(&round_trips_ns, part)? as f64 / 2000.0);
    let (p50_us, p99_us) = at(0.5).zip(at(0.99)).context("no round trip")?;
    Ok(Figures::Latency { p50_us, p99_us })
}

/// Fills `bytes` from a non-blocking stream without sleeping; `false` if it has ended before.
pub fn poll_exactly(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<bool> {
    let mut filled = 0;
    let mut silent_since = None;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => {
                ensure!(filled == 0, "the stream ended in the middle");
                return Ok(false);
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let now = now_ns();
                let since = *silent_since.get_or_insert(now);
                ensure!(
                    u128::from(now - since) < HUNG.as_nanos(),
                    "the peer is silent"
                );
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
    Ok(true)
}
