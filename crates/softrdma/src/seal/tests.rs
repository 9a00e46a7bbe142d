use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use engine::{Access, Memory, MemoryRange, Origin, PathIndex, PdId, QpIndex, Scope, Span};
use wire::{Bth, HeaderRepr, MemoryKey, Opcode, Packet, Psn, Qpn};

use super::*;
use crate::run::next_run;

const PORT: u16 = 49_200;
const QPN: Qpn = Qpn::truncated(0x05_0011);

fn path(local: &str, remote: &str) -> Path {
    let address = |text: &str| text.parse::<IpAddr>().expect("a literal");
    Path {
        local: address(local),
        remote: address(remote),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

fn v4() -> Path {
    path("192.0.2.1", "192.0.2.2")
}

/// Registered memory of a test; the words are atomics, so that anybody may change them.
struct Source {
    table: MemoryTable,
    key: MemoryKey,
    words: Vec<AtomicU64>,
}

impl Source {
    fn new(words: usize) -> Self {
        let words: Vec<AtomicU64> = (0..words as u64)
            .map(|n| AtomicU64::new(n * 0x0101))
            .collect();
        let table = MemoryTable::new();
        let address = words.as_ptr() as u64;
        let length = 8 * words.len() as u64;
        let access = Access::LOCAL_WRITE;
        // SAFETY: memory of this struct, which also has the table.
        let registered = unsafe { table.register(PdId(1), address, length, address, access) };
        Self {
            table,
            key: registered.expect("it is mapped").key,
            words,
        }
    }

    fn span(&self, offset: u64, length: u32) -> Span {
        let scope = Scope {
            pd: PdId(1),
            qpn: QPN,
        };
        let address = self.words.as_ptr() as u64 + offset;
        let range = MemoryRange {
            address,
            length: u64::from(length),
        };
        let grant = self
            .table
            .check(self.key, scope, range, Access::empty())
            .expect("inside");
        grant.span(0, length).expect("all of it")
    }

    fn bytes(&self) -> Vec<u8> {
        self.words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }
}

fn push(burst: &mut Burst, psn: u32, inline: &[u8], spans: &[Span]) {
    let mut header = HeaderRepr::new(Bth::new(Opcode::RC_SEND_ONLY, QPN, Psn::truncated(psn)));
    let origin = Origin {
        qp: QpIndex(0x11),
        psn: Psn::truncated(psn),
        is_response: false,
    };
    burst.push(PathIndex(0), origin, &mut header, inline, spans);
}

fn pseudo_header(path: &Path) -> PseudoHeader {
    let source = SocketAddr::new(path.local, PORT);
    PseudoHeader::new(source, SocketAddr::new(path.remote, UDP_PORT)).expect("one family")
}

#[test]
fn a_run_is_finished_packets_with_rising_identifications() {
    let source = Source::new(1024);
    for path in [v4(), path("2001:db8::1", "2001:db8::2")] {
        let mut burst = Burst::with_bound(64);
        for psn in 0..5 {
            push(
                &mut burst,
                psn,
                &[],
                &[source.span(u64::from(psn) * 1001, 1001)],
            );
        }
        push(&mut burst, 5, b"short", &[]);
        assert_eq!(next_run(burst.packets()), 6);
        let mut sealer = Sealer::default();
        let run = sealer
            .seal(&burst, 0..6, &source.table, &path, PORT)
            .expect("mapped");
        assert_eq!((run.count, run.segment_size), (6, 12 + 1001 + 3 + 4));
        let header = pseudo_header(&path);
        for (index, bytes) in run.packets().enumerate() {
            assert!(header.verify(bytes, index as u16), "packet {index}");
            let packet = Packet::parse(bytes).expect("a packet");
            assert_eq!(packet.bth().psn, Psn::truncated(index as u32));
            let expected = source.bytes();
            let expected: &[u8] = if index < 5 {
                &expected[index * 1001..][..1001]
            } else {
                b"short"
            };
            assert_eq!(packet.payload(), expected);
            let pad = &bytes[12 + expected.len()..bytes.len() - 4];
            assert!(pad.iter().all(|byte| *byte == 0), "pad is zeros");
        }
    }
}

#[test]
fn a_packet_alone_has_identification_0() {
    let source = Source::new(16);
    let mut burst = Burst::with_bound(8);
    for psn in 0..3 {
        push(&mut burst, psn, &[], &[source.span(0, 32)]);
    }
    let mut sealer = Sealer::default();
    for index in 0..3 {
        let run = sealer.seal(&burst, index..index + 1, &source.table, &v4(), PORT);
        assert!(pseudo_header(&v4()).verify(run.expect("mapped").bytes, 0));
    }
}

#[test]
fn inline_bytes_and_several_spans_in_order() {
    let source = Source::new(16);
    let mut burst = Burst::with_bound(8);
    push(
        &mut burst,
        1,
        b"in",
        &[source.span(9, 3), source.span(0, 0), source.span(40, 10)],
    );
    let mut sealer = Sealer::default();
    let run = sealer
        .seal(&burst, 0..1, &source.table, &v4(), PORT)
        .expect("mapped");
    let packet = Packet::parse(run.bytes).expect("a packet");
    let bytes = source.bytes();
    assert_eq!(
        packet.payload(),
        [b"in", &bytes[9..12], &bytes[40..50]].concat()
    );
}

#[test]
fn the_buffer_is_reused_and_leaves_nothing_behind() {
    let source = Source::new(1024);
    let mut burst = Burst::with_bound(8);
    push(&mut burst, 0, &[], &[source.span(800, 4000)]);
    push(&mut burst, 1, b"x", &[]);
    let mut sealer = Sealer::default();
    sealer
        .seal(&burst, 0..1, &source.table, &v4(), PORT)
        .expect("mapped");
    let run = sealer
        .seal(&burst, 1..2, &source.table, &v4(), PORT)
        .expect("mapped");
    assert_eq!(run.bytes.len(), 20);
    assert_eq!(run.bytes[12..16], [b'x', 0, 0, 0]);
    assert!(pseudo_header(&v4()).verify(run.bytes, 0));
}

#[test]
fn a_packet_whose_memory_is_gone_is_named() {
    let good = Source::new(16);
    let gone = Source::new(16);
    let mut burst = Burst::with_bound(8);
    for psn in 0..4 {
        push(&mut burst, psn, &[], &[good.span(0, 32)]);
    }
    // the spans of another table mean nothing in this one once its entry has another generation
    good.table.deregister(good.key).expect("registered");
    let mut sealer = Sealer::default();
    let fault = sealer.seal(&burst, 1..4, &good.table, &v4(), PORT);
    assert_eq!(fault, Err(SealFault { packet: 1 }));

    let mut burst = Burst::with_bound(8);
    push(&mut burst, 0, b"inline needs no memory", &[]);
    push(&mut burst, 1, b"inline needs no memory", &[]);
    push(&mut burst, 2, &[], &[gone.span(0, 22)]);
    gone.table.deregister(gone.key).expect("registered");
    let fault = sealer.seal(&burst, 0..3, &gone.table, &v4(), PORT);
    assert_eq!(fault, Err(SealFault { packet: 2 }));
    let before = sealer
        .seal(&burst, 0..2, &gone.table, &v4(), PORT)
        .expect("what is left");
    assert!(
        before
            .packets()
            .zip(0..)
            .all(|(bytes, k)| pseudo_header(&v4()).verify(bytes, k))
    );
}

#[test]
fn addresses_of_two_families_are_refused() {
    let source = Source::new(16);
    let mut burst = Burst::with_bound(8);
    push(&mut burst, 0, b"x", &[]);
    let mixed = path("192.0.2.1", "2001:db8::2");
    let fault = Sealer::default()
        .seal(&burst, 0..1, &source.table, &mixed, PORT)
        .map(drop);
    assert_eq!(fault, Err(SealFault { packet: 0 }));
}

#[test]
fn memory_that_changes_all_the_time_is_sealed_right() {
    let source = Source::new(512);
    let mut burst = Burst::with_bound(64);
    for psn in 0..15 {
        push(&mut burst, psn, &[], &[source.span(0, 4096)]);
    }
    let done = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for word in &source.words {
                    word.fetch_add(0x0001_0203_0405_0607, Ordering::Relaxed);
                }
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let header = pseudo_header(&v4());
        let mut sealer = Sealer::default();
        let mut rounds = 0;
        while rounds < 300 || changes.load(Ordering::Relaxed) < 300 {
            let run = sealer
                .seal(&burst, 0..15, &source.table, &v4(), PORT)
                .expect("mapped");
            for (index, bytes) in run.packets().enumerate() {
                assert!(header.verify(bytes, index as u16));
            }
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_was_sealed_verifies_and_what_was_damaged_does_not() {
    let source = Source::new(512);
    let mut burst = Burst::with_bound(64);
    for psn in 0..15 {
        push(&mut burst, psn, &[], &[source.span(0, 4096)]);
    }
    let mut sealer = Sealer::default();
    let mut receiver = Sealer::default();
    let path = v4();
    let meta = PathMeta {
        source: path.local,
        destination: path.remote,
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    for round in 0..20 {
        let run = sealer
            .seal(&burst, 0..15, &source.table, &path, PORT)
            .expect("mapped");
        let mut bytes = run.bytes.to_vec();
        for packet in bytes.chunks_mut(run.segment_size) {
            assert!(receiver.verify(&meta, PORT, packet), "round {round}");
            packet[round * 200 + 13] ^= 1 << (round % 8);
            assert!(!receiver.verify(&meta, PORT, packet), "round {round}");
        }
    }
}
