//! One of the two hosts: an engine, memory, queues, a receive buffer.

use std::net::{IpAddr, SocketAddr};

use engine::access::{Access, Sge};
use engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use engine::qp::{AttributeMask, Attributes, Capabilities, State, Transport};
use engine::{
    Burst, Config, Instant, PacketOut, Path, PathMeta, QpIndex, QpOptions, ReceiveWqe, Shard,
};
use wire::icrc::PseudoHeader;
use wire::{Psn, Qpn};

use crate::checker::grants::Canvas;
use crate::checker::order::ReceiveOrder;
use crate::model_world::lane::{PD, Place};
use crate::network::ReceiveBuffer;
use crate::rng::Rng;
use crate::workload::{INLINE_MAX, Scenario};

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// One host.
pub struct Host {
    /// Its queue pairs.
    pub shard: Shard<ModelHost>,
    /// Its memory.
    pub memory: ModelMemory,
    /// Its queue pairs' numbers, by connection.
    pub qpns: Vec<Qpn>,
    /// Completions of sends.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub receive_cq: CompletionQueue,
    /// Its receive queues, by connection; a shared one is there once.
    pub receives: Vec<Receives>,
    /// Memory of receives.
    pub slots: Slots,
    /// What arrived and was not looked at.
    pub buffer: ReceiveBuffer,
    /// Whether it is planned to look at the buffer.
    pub is_serving: bool,
    /// The earliest planned call of a timer.
    pub wakes_at: Option<Instant>,
    /// Reused.
    pub burst: Burst,
    address: SocketAddr,
    peer: SocketAddr,
}

/// A receive queue and how many receives are still to be posted to it.
pub struct Receives {
    /// The queue.
    pub queue: ReceiveQueue,
    /// What was posted and completed.
    pub order: ReceiveOrder,
    /// How many are still to be posted.
    pub left: usize,
}

/// Memory of receives: one slot for each.
pub struct Slots {
    place: Place,
    canvas: Canvas,
    length: u32,
    /// Where the message goes in each slot that was posted: parts in order.
    parts: Vec<Vec<(u32, u32)>>,
}

impl Host {
    /// A host that is not connected.
    pub fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        let memory = ModelMemory::default();
        let mut config = Config::for_slot(number as u8 + 1);
        config.window = scenario.window;
        config.timeout_min = scenario.timeout_min;
        let mut shard = Shard::new(config);
        let send_cq = CompletionQueue::new(1 << 12);
        let receive_cq = if rng.chance(500) {
            send_cq.clone()
        } else {
            CompletionQueue::new(1 << 12)
        };
        let mut receives = Vec::new();
        let mut qpns = Vec::new();
        for connection in 0..scenario.connections {
            if connection == 0 || !scenario.shares_receives {
                receives.push(Receives::new(scenario));
            }
            let options = QpOptions {
                transport: Transport::Rc,
                pd: PD,
                capabilities: Capabilities {
                    send_wr_max: scenario.send_depth,
                    receive_wr_max: scenario.receive_depth as u32,
                    send_sge_max: 4,
                    receive_sge_max: 4,
                    inline_max: INLINE_MAX,
                },
                signal_all: false,
                send_cq: send_cq.clone(),
                receive_cq: receive_cq.clone(),
                receives: receives[receives.len() - 1].queue.clone(),
            };
            qpns.push(shard.create_qp(options).expect("the slot is empty"));
        }
        let address = |number: usize| {
            let last = number as u16 + 1;
            let ip: IpAddr = if scenario.is_v6 {
                [0xfd00, 0, 0, 0, 0, 0, 0, last].into()
            } else {
                [10, 0, 0, last as u8].into()
            };
            SocketAddr::new(ip, 0xc000 + last)
        };
        Self {
            shard,
            memory,
            qpns,
            send_cq,
            receive_cq,
            receives,
            slots: Slots {
                place: Place {
                    key: wire::MemoryKey(0),
                    base: 0,
                },
                canvas: Canvas::blank(0),
                length: scenario.receive_length,
                parts: Vec::new(),
            },
            buffer: ReceiveBuffer::with_capacity(scenario.buffer),
            is_serving: false,
            wakes_at: None,
            burst: Burst::with_bound(scenario.burst),
            address: address(number),
            peer: address(1 - number),
        }
    }

    /// The receive queue of a connection.
    pub fn receives_of(&mut self, connection: usize) -> &mut Receives {
        let last = self.receives.len() - 1;
        &mut self.receives[connection.min(last)]
    }

    /// Makes the memory of all receives that will be posted.
    pub fn make_slots(&mut self, rng: &mut Rng) {
        let count: usize = self.receives.iter().map(|receives| receives.left).sum();
        let canvas = Canvas::blank(count * self.slots.length as usize);
        let access = Access::LOCAL_WRITE;
        self.slots.place = Place::register(rng, &self.memory, canvas.bytes(), access);
        self.slots.canvas = canvas;
    }

    /// Posts a receive to the queue of a connection; false if it was full.
    pub fn post_receive(&mut self, rng: &mut Rng, connection: usize) -> bool {
        let wqe = self.slots.next(rng);
        let id = wqe.id;
        let receives = self.receives_of(connection);
        if receives.queue.post(wqe).is_err() {
            self.slots.parts.pop();
            return false;
        }
        receives.left -= 1;
        receives.order.post(id);
        let index = self.index(connection);
        self.shard.flush_receives(index);
        true
    }

    /// The queue pair of a connection.
    pub fn index(&self, connection: usize) -> QpIndex {
        QpIndex(self.qpns[connection].index())
    }

    /// Which connection a queue pair belongs to.
    pub fn connection_of(&self, qpn: Qpn) -> Option<usize> {
        self.qpns.iter().position(|&own| own == qpn)
    }

    /// RESET to RTS.
    pub fn connect(
        &mut self,
        scenario: &Scenario,
        connection: usize,
        dest_qpn: Qpn,
        psns: [Psn; 2],
    ) {
        let index = self.index(connection);
        let [sq_psn, rq_psn] = psns;
        let mut attributes = Attributes {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port: 1,
            path: Path {
                local: self.address.ip(),
                remote: self.peer.ip(),
                ..Attributes::default().path
            },
            path_mtu: scenario.mtu,
            timeout: scenario.timeout,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: scenario.min_rnr_timer,
            max_rd_atomic: scenario.rd_atomic,
            max_dest_rd_atomic: scenario.rd_atomic,
            dest_qpn,
            sq_psn,
            rq_psn,
            ..Attributes::default()
        };
        use AttributeMask as Mask;
        let steps = [
            (
                State::Init,
                Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS,
            ),
            (
                State::ReadyToReceive,
                Mask::ADDRESS_VECTOR
                    | Mask::PATH_MTU
                    | Mask::DEST_QPN
                    | Mask::RQ_PSN
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::MIN_RNR_TIMER,
            ),
            (
                State::ReadyToSend,
                Mask::TIMEOUT
                    | Mask::RETRY_COUNT
                    | Mask::RNR_RETRY
                    | Mask::SQ_PSN
                    | Mask::MAX_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            attributes.state = state;
            let now = Instant::default();
            let modified =
                self.shard
                    .modify_qp(now, index, &attributes, mask | Mask::STATE, &self.memory);
            assert_eq!(modified, Ok(state), "connecting a new queue pair");
        }
    }

    /// Moves a queue pair to the error state.
    pub fn kill(&mut self, now: Instant, connection: usize) -> Result<(), String> {
        let attributes = Attributes {
            state: State::Error,
            ..Attributes::default()
        };
        let index = self.index(connection);
        self.shard
            .modify_qp(now, index, &attributes, AttributeMask::STATE, &self.memory)
            .map(drop)
            .map_err(|error| format!("to the error state: {error:?}"))
    }

    /// The bytes of a packet of the burst with its ICRC; `None` if its memory is gone.
    pub fn seal(&self, packet: &PacketOut) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(packet.sealed_length());
        bytes.extend_from_slice(self.burst.header(packet));
        for span in self.burst.spans(packet) {
            bytes.extend_from_slice(&self.memory.gather(span).ok()?);
        }
        bytes.resize(packet.sealed_length(), 0);
        pseudo_header(self.address, self.peer).seal(&mut bytes, 0);
        Some(bytes)
    }

    /// Whether the ICRC of bytes from the peer is right.
    pub fn verify(&self, bytes: &[u8]) -> bool {
        pseudo_header(self.peer, self.address).verify(bytes, 0)
    }

    /// What the IP header of packets from the peer says.
    pub fn meta(&self) -> PathMeta {
        PathMeta {
            source: self.peer.ip(),
            destination: self.address.ip(),
            interface: 0,
            traffic_class: 0,
        }
    }
}

impl Receives {
    fn new(scenario: &Scenario) -> Self {
        let queue = if scenario.shares_receives {
            ReceiveQueue::shared(scenario.receive_depth)
        } else {
            ReceiveQueue::new(scenario.receive_depth)
        };
        Self {
            queue,
            order: ReceiveOrder::new(scenario.shares_receives),
            left: 0,
        }
    }
}

impl Slots {
    /// The next slot as a receive: its parts in a random order.
    fn next(&mut self, rng: &mut Rng) -> ReceiveWqe {
        let id = self.parts.len() as u64;
        let start = id as u32 * self.length;
        let cut = rng.below(u64::from(self.length) + 1) as u32;
        let mut parts = vec![(start, cut), (start + cut, self.length - cut)];
        if rng.chance(500) {
            parts.reverse();
        }
        let sges = parts
            .iter()
            .map(|&(at, length)| Sge {
                address: self.place.base + u64::from(at),
                length,
                key: self.place.key,
            })
            .collect();
        self.parts.push(parts);
        ReceiveWqe { id, sges }
    }

    /// The first `length` bytes of the message in a slot, which are right from now on.
    pub fn take(&mut self, memory: &ModelMemory, id: u64, length: usize) -> Vec<u8> {
        let mut message = Vec::with_capacity(length);
        for &(at, part) in &self.parts[id as usize] {
            let part = (part as usize).min(length - message.len());
            let bytes = memory.read(self.place.key, at as usize, part);
            self.canvas.paint(at as usize, &bytes);
            message.extend_from_slice(&bytes);
        }
        message
    }

    /// A receive failed: its slot may hold a part of a message.
    pub fn loosen(&mut self, id: u64) {
        let start = id as usize * self.length as usize;
        self.canvas.loosen(start..start + self.length as usize);
    }

    /// Checks that nothing else is in the slots.
    pub fn finish(&self, memory: &ModelMemory) -> Result<(), String> {
        let found = memory.read(self.place.key, 0, self.canvas.length());
        self.canvas
            .check(&found)
            .map_err(|text| format!("receives: {text}"))
    }
}

fn pseudo_header(source: SocketAddr, destination: SocketAddr) -> PseudoHeader {
    let destination = SocketAddr::new(destination.ip(), ROCE_PORT);
    PseudoHeader::new(source, destination).expect("both of one family")
}
