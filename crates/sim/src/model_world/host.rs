//! One of the two hosts: an engine, memory, queues, a receive buffer.

use std::net::{IpAddr, SocketAddr};

use engine::access::{Access, Sge};
use engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use engine::qp::{AttributeMask, Attributes, Capabilities, ModifyError, State, Transport};
use engine::{
    Burst, Config, Instant, PacketOut, Path, PathMeta, QpIndex, QpOptions, ReceiveSource,
    ReceiveWqe, Shard,
};
use wire::icrc::PseudoHeader;
use wire::{Psn, Qpn};

use crate::checker::grants::Canvas;
use crate::checker::order::ReceiveOrder;
use crate::model_world::lane::{PD, Place};
use crate::network::ReceiveBuffer;
use crate::rng::Rng;
use crate::workload::{GUARD, INLINE_MAX, Scenario};

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
    /// Receives that wait may have lost their memory.
    pub receives_are_unmapped: bool,
    /// What arrived and was not looked at.
    pub buffer: ReceiveBuffer,
    /// Whether it is planned to look at the buffer.
    pub is_serving: bool,
    /// The earliest planned call of a timer.
    pub wakes_at: Option<Instant>,
    /// Reused.
    pub burst: Burst,
    capabilities: Capabilities,
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
    depth: usize,
}

/// Memory of receives: one region for each.
pub struct Slots {
    slots: Vec<Slot>,
    length: u32,
}

struct Slot {
    place: Place,
    canvas: Canvas,
    /// Where the message goes: parts in order.
    parts: [(u32, u32); 2],
    is_complete: bool,
}

impl Host {
    /// A host that is not connected.
    pub fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        let memory = ModelMemory::default();
        let mut config = Config::for_slot(number as u8 + 1);
        config.window = scenario.window;
        config.timeout_min = scenario.timeout_min;
        let shard = Shard::new(config);
        let send_cq = CompletionQueue::new(1 << 12);
        let receive_cq = if rng.chance(500) {
            send_cq.clone()
        } else {
            CompletionQueue::new(1 << 12)
        };
        let mut receives = Vec::new();
        for connection in 0..scenario.connections {
            if connection == 0 || !scenario.shares_receives {
                receives.push(Receives::new(scenario));
            }
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
        let mut host = Self {
            shard,
            memory,
            qpns: Vec::new(),
            send_cq,
            receive_cq,
            receives,
            capabilities: Capabilities {
                send_wr_max: scenario.send_depth,
                receive_wr_max: scenario.receive_depth as u32,
                send_sge_max: 4,
                receive_sge_max: 4,
                inline_max: INLINE_MAX,
            },
            slots: Slots {
                slots: Vec::new(),
                length: scenario.receive_length,
            },
            receives_are_unmapped: false,
            buffer: ReceiveBuffer::with_capacity(scenario.buffer),
            is_serving: false,
            wakes_at: None,
            burst: Burst::with_bound(scenario.burst),
            address: address(number),
            peer: address(1 - number),
        };
        for connection in 0..scenario.connections {
            let qpn = host.create(connection);
            host.qpns.push(qpn);
        }
        host
    }

    fn create(&mut self, connection: usize) -> Qpn {
        let options = QpOptions {
            transport: Transport::Rc,
            pd: PD,
            capabilities: self.capabilities,
            signal_all: false,
            send_cq: self.send_cq.clone(),
            receive_cq: self.receive_cq.clone(),
            receives: self.receives_of(connection).queue.clone(),
        };
        self.shard.create_qp(options).expect("the slot has room")
    }

    /// Makes the queue pair of a connection anew, as another one or by RESET.
    pub fn renew(&mut self, now: Instant, connection: usize, as_another: bool) {
        let index = self.index(connection);
        if as_another {
            assert!(self.shard.destroy_qp(index), "it was there");
            self.qpns[connection] = self.create(connection);
        } else {
            let moved = self.modify(now, connection, State::Reset, AttributeMask::empty());
            assert_eq!(moved, Ok(State::Reset), "every state can be reset");
        }
    }

    /// The receive queue of a connection.
    pub fn receives_of(&mut self, connection: usize) -> &mut Receives {
        let last = self.receives.len() - 1;
        &mut self.receives[connection.min(last)]
    }

    /// Whether the program has seen all completions there are, and all receives of a connection that
    /// ended are complete.
    pub fn is_told(&mut self, connection: usize) -> bool {
        let receives = self.receives_of(connection);
        let is_flushed = receives.queue.is_shared() || receives.order.waiting() == 0;
        is_flushed && self.send_cq.is_empty() && self.receive_cq.is_empty()
    }

    /// Posts a receive to the queue of a connection; false if it was full.
    pub fn post_receive(&mut self, rng: &mut Rng, connection: usize) -> bool {
        if !self.receives_of(connection).has_room() {
            return false;
        }
        let wqe = self.slots.next(rng, &self.memory);
        let id = wqe.id;
        let receives = self.receives_of(connection);
        if receives.queue.post(wqe).is_err() {
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
            rnr_retry: scenario.rnr_retry,
            min_rnr_timer: scenario.min_rnr_timer,
            max_rd_atomic: scenario.rd_atomic,
            max_dest_rd_atomic: scenario.dest_rd_atomic,
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

    /// Moves a queue pair to another state.
    pub fn modify(
        &mut self,
        now: Instant,
        connection: usize,
        state: State,
        mask: AttributeMask,
    ) -> Result<State, ModifyError> {
        let attributes = Attributes {
            state,
            sqd_async_notify: true,
            ..Attributes::default()
        };
        let (index, mask) = (self.index(connection), mask | AttributeMask::STATE);
        self.shard
            .modify_qp(now, index, &attributes, mask, &self.memory)
    }

    /// The state of the queue pair of a connection.
    pub fn state(&self, connection: usize) -> Option<State> {
        let view = self.shard.query_qp(self.index(connection))?;
        Some(view.state)
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
            depth: scenario.receive_depth,
        }
    }

    fn has_room(&self) -> bool {
        self.queue.len() < self.depth
    }
}

impl Slots {
    /// The next slot as a receive: its parts in a random order.
    fn next(&mut self, rng: &mut Rng, memory: &ModelMemory) -> ReceiveWqe {
        let cut = rng.below(u64::from(self.length) + 1) as u32;
        let mut parts = [(0, cut), (cut, self.length - cut)];
        if rng.chance(500) {
            parts.reverse();
        }
        let canvas = Canvas::blank(self.length as usize + GUARD as usize);
        let place = Place::register(rng, memory, canvas.bytes(), Access::LOCAL_WRITE);
        let id = self.slots.len() as u64;
        let sges = parts
            .iter()
            .map(|&(at, length)| Sge {
                address: place.base + u64::from(at),
                length,
                key: place.key,
            })
            .collect();
        self.slots.push(Slot {
            place,
            canvas,
            parts,
            is_complete: false,
        });
        ReceiveWqe { id, sges }
    }

    /// The first `length` bytes of the message in a slot, which are right from now on.
    pub fn take(&mut self, memory: &ModelMemory, id: u64, length: usize) -> Vec<u8> {
        let slot = &mut self.slots[id as usize];
        slot.is_complete = true;
        let mut message = Vec::with_capacity(length);
        for &(at, part) in &slot.parts {
            let part = (part as usize).min(length - message.len());
            let bytes = memory.read(slot.place.key, at as usize, part);
            slot.canvas.paint(at as usize, &bytes);
            message.extend_from_slice(&bytes);
        }
        message
    }

    /// A receive failed: its slot may hold a part of a message.
    pub fn loosen(&mut self, id: u64) {
        let slot = &mut self.slots[id as usize];
        slot.is_complete = true;
        slot.canvas.loosen(0..self.length as usize);
    }

    /// Takes the memory of all slots away that wait.
    pub fn unmap(&mut self, memory: &ModelMemory) {
        for slot in self.slots.iter().filter(|slot| !slot.is_complete) {
            memory.unmap_from(slot.place.key, 0);
        }
    }

    /// Checks that nothing else is in the slots.
    pub fn finish(&self, memory: &ModelMemory) -> Result<(), String> {
        for (id, slot) in self.slots.iter().enumerate() {
            let found = memory.read(slot.place.key, 0, slot.canvas.length());
            slot.canvas
                .check(&found)
                .map_err(|text| format!("receive {id}: {text}"))?;
        }
        Ok(())
    }
}

fn pseudo_header(source: SocketAddr, destination: SocketAddr) -> PseudoHeader {
    let destination = SocketAddr::new(destination.ip(), ROCE_PORT);
    PseudoHeader::new(source, destination).expect("both of one family")
}
