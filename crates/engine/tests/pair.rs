//! Two shards and a wire of two queues: every operation, its bytes, and what faults may not change.

use std::collections::VecDeque;

use softrdma_engine::model::{CompletionQueue, ModelCredit, ModelHost, ModelMemory, ReceiveQueue};
use softrdma_engine::qp::{
    AttributeMask, Attributes, Capabilities, Operation, Payload, RemoteMemory, SendFlags,
    SendRequest, State, Transport,
};
use softrdma_engine::{
    Access, Burst, CompletionOpcode, Config, Instant, Outcome, PathMeta, PdId, QpIndex, QpOptions,
    ReceiveWqe, Sge, Shard, Status, WorkCompletion,
};
use wire::{MemoryKey, Mtu, Packet, Psn, Qpn};

/// Where the region of each side begins.
const BASE: [u64; 2] = [0x10_0000, 0x7700_0000];
const REGION: usize = 4 << 20;

struct Side {
    shard: Shard<ModelHost>,
    memory: ModelMemory,
    key: MemoryKey,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    receives: ReceiveQueue,
    qpn: Qpn,
}

/// What the wire does to packets, drawn from a seed.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// In a thousand.
    loss: u64,
    duplication: u64,
    reordering: u64,
}

struct Pair {
    sides: [Side; 2],
    /// Packets on their way to each side.
    wire: [VecDeque<Vec<u8>>; 2],
    now: Instant,
    faults: Faults,
    /// Whether the story has packets that are dropped in silence.
    has_drops: bool,
    random: u64,
    /// Packets that were put on the wire.
    packets: u64,
}

fn pair_in_rts(mtu: Mtu) -> Pair {
    pair_in_rts_with(mtu, |_| {})
}

fn pair_in_rts_with(mtu: Mtu, change: impl Fn(&mut Attributes)) -> Pair {
    let mut pair = Pair {
        sides: [0, 1].map(Side::new),
        wire: Default::default(),
        now: Instant::from_nanos(1),
        faults: Faults::default(),
        has_drops: false,
        random: 1,
        packets: 0,
    };
    for me in [0, 1] {
        let mut attributes = Attributes {
            access: Access::all(),
            port: 1,
            path_mtu: mtu,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            rq_psn: first_psn(1 - me),
            sq_psn: first_psn(me),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            dest_qpn: pair.sides[1 - me].qpn,
            ..Attributes::default()
        };
        change(&mut attributes);
        pair.sides[me].connect(&attributes);
    }
    pair
}

fn first_psn(side: usize) -> Psn {
    Psn::truncated([0xff_fff0, 0x12_3456][side])
}

impl Side {
    fn new(side: usize) -> Self {
        let memory = ModelMemory::default();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let key = memory.register(PdId(1), BASE[side], vec![0; REGION], access);
        let mut shard = Shard::new(Config::for_slot(1 + side as u8), ModelCredit::default());
        let (send_cq, receive_cq) = (CompletionQueue::new(1024), CompletionQueue::new(1024));
        let receives = ReceiveQueue::new(1024);
        let qpn = shard
            .create_qp(QpOptions {
                transport: Transport::Rc,
                pd: PdId(1),
                capabilities: Capabilities {
                    send_wr_max: 256,
                    receive_wr_max: 256,
                    send_sge_max: 4,
                    receive_sge_max: 4,
                    inline_max: 64,
                },
                port_mtu: wire::Mtu::B4096,
                signal_all: true,
                send_cq: send_cq.clone(),
                receive_cq: receive_cq.clone(),
                receives: receives.clone(),
            })
            .unwrap();
        Self {
            shard,
            memory,
            key,
            send_cq,
            receive_cq,
            receives,
            qpn,
        }
    }

    fn qp(&self) -> QpIndex {
        QpIndex(self.qpn.index())
    }

    fn connect(&mut self, attributes: &Attributes) {
        use AttributeMask as M;
        let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let rtr = M::ADDRESS_VECTOR
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        let rts = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC;
        for (state, mask) in [
            (State::Init, init),
            (State::ReadyToReceive, rtr),
            (State::ReadyToSend, rts),
        ] {
            let attributes = Attributes {
                state,
                ..*attributes
            };
            let (now, qp) = (Instant::from_nanos(0), self.qp());
            self.shard
                .modify_qp(now, qp, &attributes, mask | M::STATE, &self.memory)
                .unwrap();
        }
    }

    fn state(&self) -> State {
        self.shard.query_qp(self.qp()).unwrap().state
    }
}

impl Pair {
    fn next_random(&mut self) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
    }

    fn happens(&mut self, in_a_thousand: u64) -> bool {
        in_a_thousand > 0 && self.next_random() % 1000 < in_a_thousand
    }

    fn sge(&self, side: usize, offset: u64, length: u32) -> Sge {
        Sge {
            address: BASE[side] + offset,
            length,
            key: self.sides[side].key,
        }
    }

    /// Memory of `side` as the other side names it.
    fn remote(&self, side: usize, offset: u64) -> RemoteMemory {
        RemoteMemory {
            address: BASE[side] + offset,
            key: self.sides[side].key,
        }
    }

    fn post(&mut self, side: usize, id: u64, operation: Operation, offset: u64, length: u32) {
        let sges = [self.sge(side, offset, length)];
        let request = SendRequest {
            id,
            operation,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            to: None,
        };
        let qp = self.sides[side].qp();
        self.sides[side].shard.post_send(qp, &request).unwrap();
    }

    fn post_receive(&mut self, side: usize, id: u64, offset: u64, length: u32) {
        let sges = [self.sge(side, offset, length)].into_iter().collect();
        self.sides[side]
            .receives
            .post(ReceiveWqe { id, sges })
            .unwrap();
    }

    /// Moves packets and time until neither side has anything to do.
    fn run(&mut self) {
        loop {
            let sent = [0, 1].map(|side| self.transmit(side));
            let received = [0, 1].map(|side| self.deliver(side));
            if sent != [false, false] || received != [false, false] {
                continue;
            }
            let deadline = self
                .sides
                .iter()
                .filter_map(|side| side.shard.next_deadline())
                .min();
            let Some(deadline) = deadline else {
                return;
            };
            self.now = self.now.max(deadline);
            for side in &mut self.sides {
                side.shard.handle_timeout(self.now, &side.memory);
                side.shard.assert_invariants();
            }
        }
    }

    fn transmit(&mut self, from: usize) -> bool {
        let mut burst = Burst::with_bound(64);
        let side = &mut self.sides[from];
        side.shard.poll_transmit(self.now, &side.memory, &mut burst);
        side.shard.assert_invariants();
        for packet in burst.packets() {
            let mut bytes = burst.header(packet).to_vec();
            for span in burst.spans(packet) {
                bytes.extend(self.sides[from].memory.gather(span).unwrap());
            }
            bytes.resize(packet.sealed_length(), 0);
            self.put_on_wire(1 - from, bytes);
        }
        !burst.is_empty()
    }

    fn put_on_wire(&mut self, to: usize, bytes: Vec<u8>) {
        self.packets += 1;
        let Faults {
            loss,
            duplication,
            reordering,
        } = self.faults;
        if self.happens(loss) {
            return;
        }
        if self.happens(duplication) {
            self.wire[to].push_back(bytes.clone());
        }
        let queued = self.wire[to].len();
        let place = if queued > 0 && self.happens(reordering) {
            queued - 1 - self.next_random() as usize % queued.min(8)
        } else {
            queued
        };
        self.wire[to].insert(place, bytes);
    }

    fn deliver(&mut self, to: usize) -> bool {
        let mut any = false;
        while let Some(bytes) = self.wire[to].pop_front() {
            any = true;
            let packet = Packet::parse(&bytes).unwrap();
            let path = Attributes::default().path;
            let meta = PathMeta {
                source: path.remote,
                destination: path.local,
                interface: 0,
                traffic_class: 0,
                hop_limit: 64,
            };
            let side = &mut self.sides[to];
            let outcome = side
                .shard
                .handle_datagram(self.now, &packet, &meta, &side.memory);
            side.shard.assert_invariants();
            let is_taken = outcome == Outcome::Delivered || side.state() == State::Error;
            assert!(is_taken || self.has_drops, "{outcome:?}: {packet}");
        }
        any
    }

    fn sends(&self, side: usize) -> Vec<WorkCompletion> {
        self.sides[side].send_cq.drain()
    }

    fn receives(&self, side: usize) -> Vec<WorkCompletion> {
        self.sides[side].receive_cq.drain()
    }

    fn fill(&mut self, side: usize, offset: usize, length: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..length).map(|_| self.next_random() as u8).collect();
        self.sides[side]
            .memory
            .write(self.sides[side].key, offset, &bytes);
        bytes
    }

    fn bytes(&self, side: usize, offset: usize, length: usize) -> Vec<u8> {
        self.sides[side]
            .memory
            .read(self.sides[side].key, offset, length)
    }

    /// Whether both are idle: nothing in flight, in the account or on the wire.
    fn assert_quiet(&self) {
        assert!(self.wire.iter().all(VecDeque::is_empty));
        for side in &self.sides {
            assert_eq!(side.shard.in_flight_bytes(), 0);
        }
    }
}

fn statuses(completions: &[WorkCompletion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.id, completion.status))
        .collect()
}

/// Sizes around every edge of segmentation, and far more than a window.
fn sizes(mtu: Mtu) -> Vec<u32> {
    let mtu = mtu.bytes();
    vec![
        0,
        1,
        2,
        3,
        mtu - 1,
        mtu,
        mtu + 1,
        3 * mtu,
        3 * mtu + 5,
        65_536,
        65_537,
        1_000_003,
    ]
}

#[test]
fn sends_of_all_sizes_arrive_whole() {
    for mtu in Mtu::ALL {
        let mut pair = pair_in_rts(mtu);
        for (id, length) in sizes(mtu).into_iter().enumerate() {
            let id = id as u64;
            let bytes = pair.fill(0, 0, length as usize);
            pair.post_receive(1, 100 + id, 0, length);
            pair.post(0, id, Operation::SendImmediate([1, 2, 3, 4]), 0, length);
            pair.run();
            let sent = pair.sends(0);
            assert_eq!(statuses(&sent), [(id, Status::Success)]);
            assert_eq!(sent[0].opcode, CompletionOpcode::Send);
            let received = pair.receives(1);
            assert_eq!(statuses(&received), [(100 + id, Status::Success)]);
            assert_eq!(received[0].length, length);
            assert_eq!(received[0].immediate, Some([1, 2, 3, 4]));
            assert!(pair.bytes(1, 0, length as usize) == bytes, "{length} bytes");
        }
        pair.assert_quiet();
    }
}

#[test]
fn writes_and_reads_of_all_sizes_move_the_right_bytes_and_no_others() {
    for mtu in Mtu::ALL {
        let mut pair = pair_in_rts(mtu);
        for (id, length) in sizes(mtu).into_iter().enumerate() {
            let (id, bytes) = (id as u64, length as usize);
            let source = pair.fill(0, 0, bytes);
            pair.fill(1, 0, bytes + 1024);
            let before = pair.bytes(1, 0, bytes + 1024);
            let target = pair.remote(1, 512);
            pair.post(0, id, Operation::Write(target), 0, length);
            pair.run();
            assert_eq!(statuses(&pair.sends(0)), [(id, Status::Success)]);
            let after = pair.bytes(1, 0, bytes + 1024);
            assert!(after[..512] == before[..512], "before the target");
            assert!(after[512..512 + bytes] == source, "{length} bytes");
            assert!(after[512 + bytes..] == before[512 + bytes..], "behind it");

            pair.post(0, id, Operation::Read(target), 2 << 20, length);
            pair.run();
            assert_eq!(statuses(&pair.sends(0)), [(id, Status::Success)]);
            assert!(
                pair.bytes(0, 2 << 20, bytes) == source,
                "{length} bytes back"
            );
        }
        pair.assert_quiet();
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_leaves_its_buffer_alone() {
    let mut pair = pair_in_rts(Mtu::B1024);
    let source = pair.fill(0, 0, 3000);
    let buffer = pair.fill(1, 100_000, 64);
    pair.post_receive(1, 7, 100_000, 64);
    let target = pair.remote(1, 0);
    pair.post(0, 1, Operation::WriteImmediate(target, *b"imm!"), 0, 3000);
    pair.run();
    assert_eq!(statuses(&pair.sends(0)), [(1, Status::Success)]);
    let received = pair.receives(1);
    assert_eq!(
        received[0].opcode,
        CompletionOpcode::ReceiveRdmaWithImmediate
    );
    assert_eq!((received[0].id, received[0].length), (7, 3000));
    assert_eq!(received[0].immediate, Some(*b"imm!"));
    assert_eq!(pair.bytes(1, 0, 3000), source);
    assert_eq!(pair.bytes(1, 100_000, 64), buffer);
}

#[test]
fn atomics_from_both_sides_add_up() {
    let mut pair = pair_in_rts(Mtu::B256);
    for id in 0..50 {
        for side in [0, 1] {
            let remote = pair.remote(1 - side, 64);
            pair.post(
                side,
                id,
                Operation::FetchAdd { remote, add: 3 },
                8 * id + 1024,
                8,
            );
        }
    }
    pair.run();
    for side in [0, 1] {
        assert_eq!(pair.sends(side).len(), 50);
        let Side { memory, key, .. } = &pair.sides[side];
        assert_eq!(memory.read_u64(*key, 64), 150);
        for id in 0..50 {
            let before = memory.read_u64(*key, 8 * id + 1024);
            assert_eq!(before, 3 * id as u64, "each sees the value of its turn");
        }
    }
    let remote = pair.remote(1, 64);
    for (compare, swap, found) in [(7, 8, 150), (150, 9, 150), (9, 10, 9)] {
        let operation = Operation::CompareSwap {
            remote,
            compare,
            swap,
        };
        pair.post(0, 0, operation, 0, 8);
        pair.run();
        let Side { memory, key, .. } = &pair.sides[0];
        assert_eq!(memory.read_u64(*key, 0), found);
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_until_it_is() {
    let mut pair = pair_in_rts_with(Mtu::B256, |attributes| attributes.timeout = 20);
    pair.has_drops = true; // what is in flight behind the refused packet
    let bytes = pair.fill(0, 0, 5000);
    pair.post(0, 1, Operation::Send, 0, 5000);
    pair.post(0, 2, Operation::Send, 0, 10);
    let start = pair.now;
    // eight waits of 0.64 ms without a receive, then one is posted
    for _ in 0..8 {
        while pair.transmit(0) | pair.deliver(1) | pair.transmit(1) | pair.deliver(0) {}
        pair.now = pair.sides[0].shard.next_deadline().unwrap();
        let side = &mut pair.sides[0];
        side.shard.handle_timeout(pair.now, &side.memory);
    }
    assert!(pair.sends(0).is_empty());
    assert_eq!(pair.now.since(start).as_micros(), 8 * 640);
    pair.post_receive(1, 1, 0, 5000);
    pair.post_receive(1, 2, 8192, 10);
    pair.run();
    assert_eq!(
        statuses(&pair.sends(0)),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(pair.bytes(1, 0, 5000), bytes);
    pair.assert_quiet();
}

#[test]
fn a_refused_write_ends_both_sides_and_everything_is_flushed() {
    // roce.md §14, trap 13: the NAK goes out although no receive is posted
    let mut pair = pair_in_rts(Mtu::B256);
    let good = pair.remote(1, 0);
    let bad = RemoteMemory {
        key: MemoryKey(good.key.0 ^ 0x100),
        ..good
    };
    pair.post(0, 1, Operation::Write(good), 0, 700);
    pair.post(0, 2, Operation::Write(bad), 0, 700);
    pair.post(0, 3, Operation::Write(good), 0, 700);
    pair.run();
    assert_eq!(
        statuses(&pair.sends(0)),
        [
            (1, Status::Success),
            (2, Status::RemoteAccess),
            (3, Status::Flushed)
        ]
    );
    assert_eq!(
        [0, 1].map(|side| pair.sides[side].state()),
        [State::Error; 2]
    );
    pair.assert_quiet();
}

#[test]
fn a_read_whose_memory_disappears_halfway_is_refused_with_the_bytes_before_it_there() {
    let mut pair = pair_in_rts(Mtu::B256);
    let target = pair.remote(1, 0);
    pair.post(0, 1, Operation::Read(target), 0, 1_000_000);
    for _ in 0..3 {
        pair.transmit(0);
        pair.deliver(1);
        pair.transmit(1);
        pair.deliver(0);
    }
    pair.sides[1].memory.deregister(pair.sides[1].key);
    pair.run();
    assert_eq!(statuses(&pair.sends(0)), [(1, Status::RemoteAccess)]);
    pair.assert_quiet();
}

/// All operations at once from both sides over a wire with faults: in the end every work request is
/// complete once and in order, and memory holds what it must. Gives the number of retries.
fn exchange_under(faults: Faults, seed: u64) -> u64 {
    let mut pair = pair_in_rts_with([Mtu::B256, Mtu::B1024][seed as usize % 2], |attributes| {
        attributes.retry_count = 7;
        attributes.timeout = 12;
    });
    pair.random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    pair.has_drops = true; // SENDs may find no receive
    pair.faults = faults;
    const ROUNDS: u64 = 40;
    const PIECE: u64 = 8 << 10;
    let mut expected = [vec![0_u8; REGION], vec![0_u8; REGION]];
    // per side: sources, targets of WRITEs, of SENDs, of READs
    let area = |kind: u64, round: u64| kind * ROUNDS * PIECE + round * PIECE;
    let mut adds = [0_u64; 2];
    for side in [0, 1] {
        let sources = pair.fill(side, 0, (ROUNDS * PIECE) as usize);
        expected[side][..sources.len()].copy_from_slice(&sources);
    }
    for round in 0..ROUNDS {
        for side in [0, 1] {
            let length = (pair.next_random() % (PIECE + 1)) as u32;
            let peer = 1 - side;
            let source = area(0, round) as usize;
            let moved = source..source + length as usize;
            match pair.next_random() % 4 {
                0 => {
                    let target = area(1, round);
                    let remote = pair.remote(peer, target);
                    pair.post(
                        side,
                        round,
                        Operation::Write(remote),
                        area(0, round),
                        length,
                    );
                    let bytes = expected[side][moved].to_vec();
                    expected[peer][target as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                1 => {
                    let target = area(2, round);
                    pair.post_receive(peer, round, target, PIECE as u32);
                    pair.post(side, round, Operation::Send, area(0, round), length);
                    let bytes = expected[side][moved].to_vec();
                    expected[peer][target as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                2 => {
                    let target = area(3, round);
                    let remote = pair.remote(peer, area(0, round));
                    pair.post(side, round, Operation::Read(remote), target, length);
                    let bytes = expected[peer][moved].to_vec();
                    expected[side][target as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                _ => {
                    let remote = pair.remote(peer, area(4, 0));
                    let operation = Operation::FetchAdd { remote, add: 1 };
                    // READs of the peer don't look here
                    pair.post(side, round, operation, area(4, 1) + 8 * round, 8);
                    adds[peer] += 1;
                }
            }
        }
        if pair.happens(300) {
            pair.run();
        }
    }
    pair.run();
    for side in [0, 1] {
        let completions = pair.sends(side);
        let all: Vec<_> = (0..ROUNDS).map(|round| (round, Status::Success)).collect();
        assert_eq!(statuses(&completions), all, "seed {seed} side {side}");
        let counter = pair.sides[side]
            .memory
            .read_u64(pair.sides[side].key, area(4, 0) as usize);
        assert_eq!(counter, adds[side], "seed {seed}: every atomic once");
        let checked = area(4, 0) as usize;
        let memory = pair.bytes(side, 0, checked);
        assert!(
            memory == expected[side][..checked],
            "seed {seed} side {side}"
        );
        let received = pair.receives(side);
        assert!(
            received
                .iter()
                .all(|receive| receive.status == Status::Success)
        );
        assert!(
            received.is_sorted_by_key(|receive| receive.id),
            "seed {seed}"
        );
    }
    pair.assert_quiet();
    let retries = |side: usize| pair.sides[side].shard.counters().completer_retries;
    retries(0) + retries(1)
}

/// The simulator tries many more.
const SEEDS: core::ops::Range<u64> = 1..40;

#[test]
fn nothing_is_lost_or_done_twice_without_faults() {
    for seed in 1..20 {
        let retries = exchange_under(Faults::default(), seed);
        assert_eq!(retries, 0, "seed {seed}");
    }
}

#[test]
fn nothing_is_lost_or_done_twice_on_a_wire_that_loses() {
    let faults = Faults {
        loss: 20,
        ..Faults::default()
    };
    let retries: u64 = SEEDS.map(|seed| exchange_under(faults, seed)).sum();
    assert!(retries > SEEDS.end, "the wire was not that bad");
}

#[test]
fn nothing_is_lost_or_done_twice_on_a_wire_that_duplicates_and_reorders() {
    let faults = Faults {
        loss: 5,
        duplication: 30,
        reordering: 30,
    };
    let retries: u64 = SEEDS.map(|seed| exchange_under(faults, seed)).sum();
    assert!(retries > SEEDS.end, "the wire was not that bad");
}

#[test]
fn a_long_message_never_has_more_than_the_window_in_flight() {
    let mut pair = pair_in_rts(Mtu::B1024);
    let target = pair.remote(1, 0);
    pair.post(0, 1, Operation::Write(target), 0, 3 << 20);
    let mut most = 0;
    while pair.transmit(0) {
        while pair.transmit(0) {}
        most = most.max(pair.sides[0].shard.in_flight_bytes());
        pair.deliver(1);
        pair.transmit(1);
        pair.deliver(0);
    }
    assert_eq!(statuses(&pair.sends(0)), [(1, Status::Success)]);
    let window = Config::for_slot(0).window.bytes;
    assert!(most > window / 2 && most < window + 2304, "{most} bytes");
}
