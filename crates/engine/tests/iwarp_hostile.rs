//! Peers that send anything: random bytes, damaged streams, and segments whose every field is
//! chosen to hurt, at every state of a connection. Whatever comes, nothing panics, no byte changes
//! that the peer may not change, every work request completes at most once, and the end is told
//! once, and counted once if it is an error.

use softrdma_engine::iwarp::{
    Agreement, Depths, Ending, Event, Options, QueuePair, Role, Rtr, StreamBurst,
};
use softrdma_engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use softrdma_engine::qp::{
    Capabilities, Operation, Payload, RemoteMemory, SendFlags, SendRequest, State,
};
use softrdma_engine::{Access, Instant, PdId, ReceiveWqe, Sge};
use wire::iwarp::{
    Framer, Header, MessageOffset, Msn, Opcode, Revision, Tagged, TaggedOffset, TerminateCode,
    Untagged, fpdu,
};
use wire::{MemoryKey, Qpn};

const PD: PdId = PdId(1);
const BASE: u64 = 0x1000;
const LENGTH: u32 = 256;
const SEEDS: u64 = 4000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// The attacked host.
struct Victim {
    qp: QueuePair<ModelHost>,
    memory: ModelMemory,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    /// The peer may write, may read, may do nothing with these.
    writable: MemoryKey,
    readable: MemoryKey,
    private: MemoryKey,
    /// Where receives and READs go.
    inbox: MemoryKey,
    unread: Vec<u8>,
    ends: usize,
    /// The end is one that is counted.
    was_wrong: bool,
    posted: usize,
    receives: usize,
}

impl Victim {
    fn new(random: &mut Random, has_crc: bool, has_markers: bool) -> Self {
        let memory = ModelMemory::default();
        let region = |access| memory.register(PD, BASE, vec![7; LENGTH as usize], access);
        let (writable, readable) = (
            region(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            region(Access::REMOTE_READ),
        );
        let (private, inbox) = (region(Access::LOCAL_WRITE), region(Access::LOCAL_WRITE));
        let (send_cq, receive_cq) = (CompletionQueue::new(100), CompletionQueue::new(100));
        let queue = ReceiveQueue::new(8);
        let receives = random.below(9) as usize;
        for id in 0..receives {
            let sge = sge(inbox, random.below(100), random.below(100) as u32);
            let wqe = ReceiveWqe {
                id: id as u64,
                sges: [sge].into_iter().collect(),
            };
            queue.post(wqe).expect("there is room");
        }
        let mut qp = QueuePair::new(Options {
            qpn: Qpn::truncated(1),
            pd: PD,
            capabilities: Capabilities {
                send_wr_max: 8,
                receive_wr_max: 8,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 0,
            },
            signal_all: true,
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            receives: queue,
            extensions: random.chance(50),
        });
        qp.attributes_mut().access =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let agreement = Agreement {
            role: random.pick(&[Role::Active, Role::Passive]),
            revision: Revision::Two,
            has_crc,
            sends_markers: has_markers,
            receives_markers: has_markers,
            depths: Depths {
                ird: random.below(4) as u16,
                ord: random.below(4) as u16,
            },
            replied: Depths::default(),
            rtr: random.pick(&[None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)]),
            private_data: Vec::new(),
        };
        assert!(qp.start(Instant::default(), &agreement, 128));
        Self {
            qp,
            memory,
            send_cq,
            receive_cq,
            writable,
            readable,
            private,
            inbox,
            unread: Vec::new(),
            ends: 0,
            was_wrong: false,
            posted: 0,
            receives,
        }
    }

    /// The program posts something, or closes the connection.
    fn work(&mut self, random: &mut Random) {
        if random.chance(5) {
            self.qp.disconnect(Instant::default());
        }
        let remote = RemoteMemory {
            address: random.next(),
            key: MemoryKey(random.next() as u32),
        };
        let operation = random.pick(&[
            Operation::Send,
            Operation::Write(remote),
            Operation::Read(remote),
        ]);
        let request = SendRequest {
            id: self.posted as u64,
            operation,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[sge(self.inbox, 0, random.below(200) as u32)]),
            to: None,
        };
        self.posted += usize::from(self.qp.post_send(&request).is_ok());
    }

    fn send(&mut self) {
        let mut burst = StreamBurst::with_bound(1000);
        self.qp
            .poll_transmit(Instant::default(), &self.memory, &mut burst);
        for ulpdu in burst.ulpdus() {
            for span in burst.spans(ulpdu) {
                let is_readable = self.memory.gather(span).is_ok();
                assert!(is_readable, "a span of memory that nobody has");
            }
        }
        self.qp.burst_left(Instant::default());
    }

    fn receive(&mut self, bytes: &[u8], random: &mut Random) {
        let piece = random.pick(&[1, 5, 100, usize::MAX]).min(bytes.len());
        for piece in bytes.chunks(piece.max(1)) {
            self.unread.extend_from_slice(piece);
            let used = self
                .qp
                .handle_stream(Instant::default(), &self.unread, &self.memory);
            self.unread.drain(..used);
            assert!(self.unread.len() < fpdu::FPDU_MAX);
            self.qp.assert_invariants();
        }
    }

    fn look(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            if let Event::Disconnected(ending) = event {
                self.ends += 1;
                self.was_wrong = is_wrong(ending);
            }
        }
        for key in [self.readable, self.private] {
            let now = self.memory.read(key, 0, LENGTH as usize);
            assert!(now.iter().all(|&byte| byte == 7), "not for the peer");
        }
        // receives and READs end here
        let behind = self.memory.read(self.inbox, 200, LENGTH as usize - 200);
        assert!(behind.iter().all(|&byte| byte == 7), "beyond every buffer");
    }
}

/// Whether an end is neither what somebody wanted nor an error of our own.
fn is_wrong(ending: Ending) -> bool {
    match ending {
        Ending::Closed | Ending::PeerClosed | Ending::Local => false,
        Ending::Refused(code) => {
            code != TerminateCode::LOCAL_CATASTROPHIC && code != TerminateCode::DDP_CATASTROPHIC
        }
        Ending::PeerTerminated(_) | Ending::Lost | Ending::TimedOut => true,
    }
}

fn sge(key: MemoryKey, offset: u64, length: u32) -> Sge {
    Sge {
        address: BASE + offset,
        length,
        key,
    }
}

/// A segment that is nearly right.
fn ulpdu(random: &mut Random, victim: &Victim, msns: &mut [u32; 4]) -> Vec<u8> {
    let opcodes: Vec<Opcode> = Opcode::all().collect();
    let opcode = match random.pick(&opcodes) {
        // it ends everything, and is seldom interesting
        Opcode::Terminate if random.chance(90) => Opcode::Send,
        opcode => opcode,
    };
    let is_last = random.chance(80);
    let keys = [
        victim.writable,
        victim.readable,
        victim.private,
        victim.inbox,
        MemoryKey(1),
    ];
    let key = random.pick(&keys);
    let address = match random.below(10) {
        0 => random.next(),
        1 => u64::MAX - random.below(64),
        _ => BASE + random.below(LENGTH.into()),
    };
    let header = match opcode.info().queue {
        None => Header::Tagged(Tagged::new(opcode, is_last, key, TaggedOffset(address))),
        Some(queue) => {
            let msn = &mut msns[queue.0 as usize];
            *msn += 1;
            let msn = Msn(if random.chance(95) {
                *msn
            } else {
                random.next() as u32
            });
            let offset = if random.chance(90) {
                0
            } else {
                random.next() as u32
            };
            Header::Untagged(Untagged {
                invalidate: key,
                ..Untagged::new(opcode, is_last, msn, MessageOffset(offset))
            })
        }
    };
    let mut bytes = Vec::new();
    header.emit_into(&mut bytes);
    let usual = opcode.info().header.unwrap_or(random.below(100) as usize) as u64;
    let length = if random.chance(95) {
        usual
    } else {
        random.below(300)
    };
    let body = bytes.len();
    let payload = random.bytes(length);
    bytes.extend_from_slice(&payload);
    if opcode == Opcode::ReadRequest && length == 28 {
        // sink, sink offset, length, source, source offset
        bytes[body + 12..body + 16].copy_from_slice(&(random.below(300) as u32).to_be_bytes());
        bytes[body + 16..body + 20].copy_from_slice(&key.0.to_be_bytes());
        bytes[body + 20..].copy_from_slice(&address.to_be_bytes());
    }
    if random.chance(5) {
        let bit = random.below(8 * bytes.len() as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

#[test]
fn whatever_a_peer_sends_hurts_nobody_but_its_own_connection() {
    let mut ended = 0;
    let mut messages = 0;
    for seed in 0..SEEDS {
        let random = &mut Random(seed);
        let (has_crc, has_markers) = (random.chance(70), random.chance(20));
        let mut victim = Victim::new(random, has_crc, has_markers);
        let mut framer = Framer::new(has_crc, has_markers);
        let mut msns = [0; 4];
        for _ in 0..random.below(30) {
            if random.chance(40) {
                victim.work(random);
            }
            if random.chance(70) {
                victim.send();
            }
            let mut stream = Vec::new();
            if random.chance(98) {
                let ulpdu = ulpdu(random, &victim, &mut msns);
                stream.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
                stream.extend_from_slice(&ulpdu);
                framer.seal(&mut stream, 0);
            } else {
                let length = random.below(200);
                stream = random.bytes(length);
            }
            victim.receive(&stream, random);
            victim.look();
        }
        match random.below(3) {
            0 => victim.qp.handle_end(),
            1 => victim.qp.handle_lost(),
            _ => victim.qp.abort(),
        }
        victim.send();
        victim.look();
        assert_eq!(victim.qp.state(), State::Error, "seed {seed}");
        assert_eq!(victim.ends, 1, "seed {seed}");
        let counters = victim.qp.counters().iwarp;
        assert!(counters.sent_terminates <= 1, "seed {seed}");
        let all: u64 = counters.iter().map(|(_, count)| count).sum();
        let reasons = all - counters.sent_terminates;
        assert_eq!(reasons, u64::from(victim.was_wrong), "seed {seed}");
        let (sent, received) = (victim.send_cq.drain(), victim.receive_cq.drain());
        assert_eq!(sent.len(), victim.posted, "seed {seed}");
        assert_eq!(received.len(), victim.receives, "seed {seed}");
        let mut ids: Vec<u64> = received.iter().map(|one| one.id).collect();
        ids.dedup();
        assert_eq!(ids.len(), victim.receives, "seed {seed}");
        ended += victim.ends;
        let is_success = |status| status == softrdma_engine::Status::Success;
        messages += received.iter().filter(|one| is_success(one.status)).count();
    }
    assert_eq!(ended as u64, SEEDS);
    assert!(messages > 200, "the segments are too wrong: {messages}");
}
