//! Transcripts of the requester: post, expect packets, feed an answer, expect completions.
//!
//! One queue pair of a shard stands against a peer that is played by the test. Packets are read as
//! the lines that a capture tool would print, without the transport and the destination. The first
//! PSN is 0xfffffe: every story of more than two packets goes over the wrap.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};

use wire::{
    Aeth, AtomicAckEth, Bth, HeaderRepr, MemoryKey, Mtu, NakCode, Opcode, Packet, Psn, Qpn, Reth,
    RnrTimer, Syndrome,
};

use crate::model::{CompletionQueue, ModelCredit, ModelHost, ModelMemory, ReceiveQueue};
use crate::qp::{
    AttributeMask, Attributes, Capabilities, Operation, Payload, PostError, RemoteMemory,
    SendFlags, SendRequest, State, Transport,
};
use crate::{
    Access, AsyncEvent, Burst, Config, Instant, Origin, Outcome, PathMeta, PdId, QpIndex,
    QpOptions, ReceiveWqe, Sge, Shard, Status, WorkCompletion,
};

mod credit;
mod errors;
mod lossless;
mod retries;
mod shared;
mod states;

const FIRST_PSN: Psn = Psn::truncated(0xff_fffe);
/// First PSN of the peer.
const RQ_PSN: Psn = Psn::truncated(0x500);
const PEER: Qpn = Qpn::from_parts(9, 7);
const SLOT: u8 = 3;
const BASE: u64 = 0x10_0000;
const REGION: usize = 1 << 20;
const REMOTE: RemoteMemory = RemoteMemory {
    address: 0x8000,
    key: MemoryKey(0x77),
};

/// What a test may change before the queue pair is made.
struct Setup {
    config: Config,
    attributes: Attributes,
    capabilities: Capabilities,
    credit: ModelCredit,
}

/// A queue pair in RTS, its memory, its queues, and the time.
struct Bench {
    shard: Shard<ModelHost>,
    memory: ModelMemory,
    key: MemoryKey,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    receives: ReceiveQueue,
    qp: QpIndex,
    now: Instant,
    /// Payload of the packets of the last `sent`, one after another.
    payload: Vec<u8>,
    origins: Vec<Origin>,
}

/// MTU 256, timeout 14 (67.1 ms), three retries, two RNR retries, two READs in flight.
fn rc_in_rts() -> Bench {
    rc_in_rts_with(|_| {})
}

fn rc_in_rts_with(change: impl FnOnce(&mut Setup)) -> Bench {
    let mut setup = Setup {
        config: Config::for_slot(SLOT),
        attributes: Attributes {
            access: Access::all(),
            port: 1,
            path_mtu: Mtu::B256,
            timeout: 14,
            retry_count: 3,
            rnr_retry: 2,
            rq_psn: RQ_PSN,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
            sq_psn: FIRST_PSN,
            dest_qpn: PEER,
            ..Attributes::default()
        },
        capabilities: Capabilities {
            send_wr_max: 16,
            receive_wr_max: 16,
            send_sge_max: 4,
            receive_sge_max: 4,
            inline_max: 64,
        },
        credit: ModelCredit::default(),
    };
    change(&mut setup);
    let memory = ModelMemory::default();
    let bytes = (0..REGION).map(|index| pattern(index as u64)).collect();
    let key = memory.register(PdId(1), BASE, bytes, Access::LOCAL_WRITE);
    let mut bench = Bench {
        shard: Shard::new(setup.config, setup.credit),
        memory,
        key,
        send_cq: CompletionQueue::new(64),
        receive_cq: CompletionQueue::new(64),
        receives: ReceiveQueue::new(64),
        qp: QpIndex(0),
        now: Instant::from_nanos(1_000_000),
        payload: Vec::new(),
        origins: Vec::new(),
    };
    bench.qp = bench.create(&setup.capabilities);
    bench.connect(bench.qp, &setup.attributes);
    bench
}

/// What the region holds at an offset.
fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8)) as u8
}

fn packets(count: u32) -> Psn {
    FIRST_PSN.plus(count)
}

fn ms(hundredths: u64) -> Duration {
    Duration::from_micros(hundredths * 10)
}

impl Bench {
    fn create(&mut self, capabilities: &Capabilities) -> QpIndex {
        let options = QpOptions {
            transport: Transport::Rc,
            pd: PdId(1),
            capabilities: *capabilities,
            port_mtu: Mtu::B4096,
            signal_all: false,
            send_cq: self.send_cq.clone(),
            receive_cq: self.receive_cq.clone(),
            receives: self.receives.clone(),
        };
        QpIndex(self.shard.create_qp(options).unwrap().index())
    }

    /// RESET to RTS.
    fn connect(&mut self, qp: QpIndex, attributes: &Attributes) {
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
            self.shard
                .modify_qp(self.now, qp, &attributes, mask | M::STATE, &self.memory)
                .unwrap();
        }
    }

    fn modify(&mut self, state: State) {
        let attributes = Attributes {
            state,
            sqd_async_notify: true,
            ..Attributes::default()
        };
        let mut mask = AttributeMask::STATE;
        if state == State::SendQueueDrained {
            mask |= AttributeMask::SQD_ASYNC_NOTIFY;
        }
        self.shard
            .modify_qp(self.now, self.qp, &attributes, mask, &self.memory)
            .unwrap();
    }

    fn state(&self) -> State {
        self.shard.query_qp(self.qp).unwrap().state
    }

    fn counters(&self) -> crate::Counters {
        self.shard.query_qp(self.qp).unwrap().counters
    }

    fn post_receive(&mut self, id: u64, length: u32) {
        let sges = [self.sge(length)].into_iter().collect();
        self.receives.post(ReceiveWqe { id, sges }).unwrap();
    }

    /// A SEND of the peer that fits one packet; its `index`-th request.
    fn receive_send(&mut self, opcode: Opcode, index: u32, payload: &[u8]) -> Outcome {
        let mut header = self.response(opcode, RQ_PSN.plus(index));
        header.bth.ack_request = opcode.ends_message();
        self.feed(header, payload)
    }

    /// A READ of nothing by the peer; its `index`-th request.
    fn receive_read(&mut self, index: u32) -> Outcome {
        let mut header = self.response(Opcode::RC_READ_REQUEST, RQ_PSN.plus(index));
        header.reth = Some(Reth {
            va: BASE,
            rkey: self.key,
            dma_length: 0,
        });
        self.feed(header, &[])
    }

    /// One element at the start of the region.
    fn sge(&self, length: u32) -> Sge {
        Sge {
            address: BASE,
            length,
            key: self.key,
        }
    }

    /// Posts a signalled work request over the first bytes of the region.
    fn post(&mut self, id: u64, operation: Operation, length: u32) {
        self.post_flags(id, operation, length, SendFlags::SIGNALED);
    }

    fn post_flags(&mut self, id: u64, operation: Operation, length: u32, flags: SendFlags) {
        let sges = [self.sge(length)];
        self.post_payload(id, operation, flags, Payload::Sges(&sges))
            .unwrap();
    }

    fn post_payload(
        &mut self,
        id: u64,
        operation: Operation,
        flags: SendFlags,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let request = SendRequest {
            id,
            operation,
            flags,
            payload,
            to: None,
        };
        self.shard.post_send(self.qp, &request).map(drop)
    }

    /// Everything that leaves now, a line for each packet.
    fn sent(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        self.payload.clear();
        self.origins.clear();
        let mut burst = Burst::with_bound(8);
        loop {
            burst.clear();
            self.shard.poll_transmit(self.now, &self.memory, &mut burst);
            self.shard.assert_invariants();
            if burst.is_empty() {
                return lines;
            }
            for packet in burst.packets() {
                let mut bytes = burst.header(packet).to_vec();
                for span in burst.spans(packet) {
                    bytes.extend(self.memory.gather(span).unwrap());
                }
                bytes.resize(packet.sealed_length(), 0);
                let parsed = Packet::parse(&bytes).unwrap();
                self.payload.extend(parsed.payload());
                self.origins.push(packet.origin);
                let line = parsed.to_string();
                let (name, rest) = line.split_once(" qp=").unwrap();
                let (to, rest) = rest.split_once(' ').unwrap();
                assert_eq!(to, PEER.to_string());
                lines.push(format!("{} {rest}", name.trim_start_matches("RC ")));
            }
        }
    }

    /// What leaves now is this and nothing else.
    #[track_caller]
    fn expect(&mut self, lines: &[&str]) {
        assert_eq!(self.sent(), lines);
    }

    /// The packets that leave now, by opcode and how far their PSN is from the first.
    fn outline(&mut self) -> Vec<String> {
        let lines = self.sent();
        lines
            .iter()
            .map(|line| {
                let (name, rest) = line.split_once(" psn=0x").unwrap();
                let psn = u32::from_str_radix(&rest[..6], 16).unwrap();
                let index = Psn::truncated(psn).distance_from(FIRST_PSN);
                format!("{name} {index}")
            })
            .collect()
    }

    /// Feeds a packet that comes from the peer.
    fn feed(&mut self, header: HeaderRepr, payload: &[u8]) -> Outcome {
        self.feed_from(Attributes::default().path.remote, header, payload)
    }

    fn feed_from(&mut self, source: IpAddr, mut header: HeaderRepr, payload: &[u8]) -> Outcome {
        header.bth.pad = Bth::pad_of(payload.len());
        let mut bytes = Vec::new();
        header.emit_packet(payload, &mut bytes);
        let packet = Packet::parse(&bytes).unwrap();
        let meta = PathMeta {
            source,
            destination: Attributes::default().path.local,
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let outcome = self
            .shard
            .handle_datagram(self.now, &packet, &meta, &self.memory);
        self.shard.assert_invariants();
        outcome
    }

    /// A packet for the queue pair, without its extension headers.
    fn response(&self, opcode: Opcode, psn: Psn) -> HeaderRepr {
        HeaderRepr::new(Bth::new(opcode, Qpn::from_parts(SLOT, self.qp.0), psn))
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) -> Outcome {
        let mut header = self.response(Opcode::RC_ACKNOWLEDGE, psn);
        header.aeth = Some(Aeth {
            syndrome,
            msn: wire::Msn::truncated(0),
        });
        self.feed(header, &[])
    }

    fn ack(&mut self, psn: Psn) -> Outcome {
        self.acknowledge(psn, Syndrome::ACK)
    }

    fn nak(&mut self, psn: Psn, code: NakCode) -> Outcome {
        self.acknowledge(psn, Syndrome::Nak(code))
    }

    /// Code 12 is 0.64 ms.
    fn rnr_nak(&mut self, psn: Psn, code: u8) -> Outcome {
        let timer = RnrTimer::from_code(code).unwrap();
        self.acknowledge(psn, Syndrome::RnrNak { timer })
    }

    fn read_response(&mut self, opcode: Opcode, psn: Psn, payload: &[u8]) -> Outcome {
        let mut header = self.response(opcode, psn);
        if opcode != Opcode::RC_READ_RESPONSE_MIDDLE {
            header.aeth = Some(Aeth {
                syndrome: Syndrome::ACK,
                msn: wire::Msn::truncated(0),
            });
        }
        self.feed(header, payload)
    }

    fn atomic_response(&mut self, psn: Psn, original: u64) -> Outcome {
        let mut header = self.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn);
        header.aeth = Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: wire::Msn::truncated(0),
        });
        header.atomic_ack = Some(AtomicAckEth { original });
        self.feed(header, &[])
    }

    /// Lets time pass and timers fire.
    fn pass(&mut self, duration: Duration) {
        self.now = self.now.plus(duration);
        self.shard.handle_timeout(self.now, &self.memory);
        self.shard.assert_invariants();
    }

    /// Send completions since the last call.
    fn completions(&mut self) -> Vec<(u64, Status)> {
        short(&self.send_cq.drain())
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| self.shard.poll_event()).collect()
    }
}

fn short(completions: &[WorkCompletion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.id, completion.status))
        .collect()
}
