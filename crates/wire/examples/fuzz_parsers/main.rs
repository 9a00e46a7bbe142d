//! Mutates captured packets and feeds them to every parser; seeded, so a failure can be run again.
//!
//! `cargo run --release -p softrdma-wire --example fuzz_parsers -- --executions 100000000 --seed 1`
//!
//! Held for each input: nothing panics; what is read, written and read again is the same; what is
//! written differs from what was read only in reserved bits; a line of text comes out; a sealed
//! packet verifies and its identification is recovered; a damaged one does not verify. A stream of
//! iWARP ends in an error or goes on, and its FPDUs are read from no byte that is not there. What
//! peers of rsockets say is held to the same.

mod invariants;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use softrdma_wire::ip::Frame;
use softrdma_wire::rsocket::{ConnectionData, DatagramHeader, Message, Target, UdpHeader};
use softrdma_wire::{Mad, MemoryKey, Opcode, Packet, PayloadRule, Qpn, icrc};

use invariants::{check_frame, check_icrc, check_iwarp, check_mad, check_packet, check_rsocket};

/// Text is slow: one packet in so many is printed, one input in so many is a frame, one is a
/// management datagram, one is a stream, and one is of an rsocket.
const EVERY: u64 = 16;
/// Longest input: a packet of 1024 bytes of payload and something.
const LENGTH_MAX: usize = 1200;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}\nusage: fuzz_parsers [--executions N] [--seed S]");
            return ExitCode::from(2);
        }
    };
    let Corpus {
        packets,
        frames,
        mads,
        streams,
        rsockets,
    } = corpus();
    let started = Instant::now();
    let mut random = Random(arguments.seed);
    let mut input = Vec::with_capacity(2 * LENGTH_MAX);
    let mut buffer = Vec::with_capacity(2 * LENGTH_MAX);
    let mut accepted = 0_u64;
    for execution in 0..arguments.executions {
        let outcome = if execution % EVERY == 1 {
            mutate(&mut random, &frames, &mut input);
            if random.below(2) == 0 {
                repair_header_checksum(&mut input);
            }
            check_frame(&input)
        } else if execution % EVERY == 2 {
            mutate(&mut random, &mads, &mut input);
            if random.below(2) == 0 {
                repair_mad(&mut random, &mut input);
            }
            check_mad(&input)
        } else if execution % EVERY == 3 {
            mutate(&mut random, &streams, &mut input);
            check_iwarp(random.next(), &input, &mut buffer)
        } else if execution % EVERY == 4 {
            mutate(&mut random, &rsockets, &mut input);
            check_rsocket(&input, &mut buffer)
        } else {
            mutate(&mut random, &packets, &mut input);
            check_packet(&input, &mut buffer, execution % EVERY == 0)
                .and_then(|was_packet| check_icrc(random.next(), &mut input).map(|()| was_packet))
        };
        match outcome {
            Ok(was_accepted) => accepted += u64::from(was_accepted),
            Err(violation) => {
                eprintln!(
                    "execution {execution}, seed {}: {violation}",
                    arguments.seed
                );
                eprintln!("input: {}", hex(&input));
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let executions = arguments.executions;
    println!(
        "{executions} executions in {seconds:.1} s: {:.2} million/s; {:.0} % were accepted",
        executions as f64 / seconds / 1e6,
        100.0 * accepted as f64 / executions.max(1) as f64,
    );
    ExitCode::SUCCESS
}

struct Arguments {
    executions: u64,
    seed: u64,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            executions: 1_000_000,
            seed: 1,
        };
        while let Some(name) = words.next() {
            let value = words.next().ok_or(format!("{name} needs a number"))?;
            let number = value
                .parse()
                .map_err(|_| format!("{name}: not a number: {value}"))?;
            match name.as_str() {
                "--executions" => arguments.executions = number,
                "--seed" => arguments.seed = number,
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(arguments)
    }
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// What inputs are made of.
struct Corpus {
    packets: Vec<Vec<u8>>,
    frames: Vec<Vec<u8>>,
    mads: Vec<Vec<u8>>,
    streams: Vec<Vec<u8>>,
    rsockets: Vec<Vec<u8>>,
}

/// Every packet of the captures and one of each opcode; every frame; every management datagram;
/// every TCP segment of iWARP; one of all that rsockets say.
fn corpus() -> Corpus {
    let mut frames = captured_frames("captures");
    frames.sort();
    frames.dedup();
    let payload = |bytes: &Vec<u8>| Some(Frame::parse(bytes).ok()?.payload.to_vec());
    let mut packets: Vec<Vec<u8>> = frames.iter().filter_map(payload).collect();
    let mads = packets.iter().filter_map(|bytes| {
        let packet = Packet::parse(bytes).ok()?;
        Mad::in_packet(&packet).map(|_| packet.payload().to_vec())
    });
    let mads = mads.collect();
    packets.extend(Opcode::all().map(|opcode| {
        let extension = usize::from(opcode.info().extension_length);
        let payload = if opcode.payload_rule() == PayloadRule::None {
            0
        } else {
            8
        };
        let mut packet = vec![0; icrc::PACKET_LENGTH_MIN + extension + payload];
        packet[0] = opcode.byte();
        packet
    }));
    let mut streams: Vec<Vec<u8>> = captured_frames("iwarp")
        .iter()
        .filter_map(|frame| tcp_payload(frame))
        .collect();
    streams.sort();
    streams.dedup();
    Corpus {
        packets,
        frames,
        mads,
        streams,
        rsockets: rsockets(),
    }
}

/// Private data, words and headers of both families.
fn rsockets() -> Vec<Vec<u8>> {
    let target = Target {
        address: 0x7f5b_f400_2000,
        key: MemoryKey(0x2373),
        length: 1 << 19,
    };
    let data = |is_big_endian, iomap| ConnectionData {
        is_big_endian,
        credits: 384,
        iomap,
        targets: target,
        buffer: target,
    };
    let mut all: Vec<Vec<u8>> = [
        data(false, None),
        data(true, Some(16)),
        data(false, Some(512)),
    ]
    .map(|data| data.to_bytes().to_vec())
    .into();
    let words = [
        Message::Data(100),
        Message::Credit(384),
        Message::Iomap(7),
        Message::Disconnect,
        Message::KeepAlive,
        Message::Shutdown,
    ];
    all.extend(words.map(|word| word.to_immediate().to_vec()));
    let sources = [
        SocketAddr::from(([10, 0, 0, 1], 7174)),
        SocketAddr::from(([0xfd77, 0, 0, 0, 0, 0, 0, 1], 7174)),
    ];
    for source in sources {
        let mut bytes = Vec::new();
        DatagramHeader { source }.emit(&mut bytes);
        all.push(bytes);
        for has_data in [false, true] {
            let mut bytes = Vec::new();
            let (qpn, address) = (Qpn::truncated(0x12_3456), source.ip());
            UdpHeader {
                has_data,
                qpn,
                address,
            }
            .emit(&mut bytes);
            all.push(bytes);
        }
    }
    all
}

/// What a TCP segment in IPv4 in Ethernet carries, if it is anything.
fn tcp_payload(frame: &[u8]) -> Option<Vec<u8>> {
    let total = u16::from_be_bytes([*frame.get(16)?, *frame.get(17)?]);
    let data = 34 + 4 * usize::from(frame.get(46)? >> 4);
    let payload = frame.get(data..14 + usize::from(total))?;
    (!payload.is_empty()).then(|| payload.to_vec())
}

fn captured_frames(kind: &str) -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let mut frames = Vec::new();
    for entry in
        fs::read_dir(Path::new(folder).join(kind)).expect("the captures are part of the crate")
    {
        let path = entry.expect("a readable folder").path();
        let bytes = fs::read(&path).expect("a readable capture");
        // a header of 24 bytes, then 16 bytes with the length at 8 before each frame
        let mut rest = bytes.get(24..).unwrap_or_default();
        while let Some((record, after)) = rest.split_first_chunk::<16>() {
            let length = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
            let (frame, after) = after.split_at(length as usize);
            frames.push(frame.to_vec());
            rest = after;
        }
    }
    frames
}

/// Makes `input` from one or two packets of the corpus.
fn mutate(random: &mut Random, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    input.clear();
    input.extend_from_slice(&corpus[random.below(corpus.len())]);
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 => {} // as it was
            1 | 2 if !input.is_empty() => {
                let bit = random.below(8 * input.len());
                input[bit / 8] ^= 1 << (bit % 8);
            }
            3 if !input.is_empty() => {
                // the first bytes decide most
                let at = random.below(input.len().min(44));
                input[at] = random.next() as u8;
            }
            4 => input.truncate(random.below(input.len() + 1)),
            5 => {
                let other = &corpus[random.below(corpus.len())];
                let at = random.below(input.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len() + 1)..]);
            }
            6 => {
                let count = random.below(40);
                input.extend((0..count).map(|_| random.next() as u8));
            }
            _ => {
                input.clear();
                let words = random.below(16);
                input.extend((0..words).flat_map(|_| random.next().to_le_bytes()));
            }
        }
    }
    input.truncate(LENGTH_MAX);
}

/// Makes the checksum of what may be an IPv4 header right, so that its other fields are looked at.
fn repair_header_checksum(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(14..34) else {
        return;
    };
    header[10..12].fill(0);
    let words = header
        .chunks_exact(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Makes length and header right, with any message, so that its fields are looked at.
fn repair_mad(random: &mut Random, input: &mut Vec<u8>) {
    input.resize(Mad::LENGTH, 0);
    input[..4].copy_from_slice(&[1, 7, 2, 3]);
    input[16..18].copy_from_slice(&[0, 0x10 + random.below(11) as u8]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
