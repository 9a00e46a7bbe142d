//! The engine alone: its model of memory and queues, millions of short seeds.

use engine::model::{CompletionQueue, ModelCredit, ModelHost, ModelMemory, ReceiveQueue};
use engine::qp::{
    AttributeMask, Attributes, Capabilities, PostError, SendRequest, State, Transport,
};
use engine::{
    AsyncEvent, Burst, Config, Instant, PacketOut, QpIndex, QpOptions, ReceiveWqe, Shard,
    WorkCompletion,
};
use wire::icrc::PseudoHeader;
use wire::{Packet, Qpn};

use crate::ground::PD;
use crate::machine::{Happening, Machine, Tally};
use crate::network::{self, ReceiveBuffer};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::workload::INLINE_MAX;
use crate::world::{self, Summary};

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    let mut rng = Rng::from_seed(seed);
    let scenario = Scenario::random(&mut rng);
    world::run::<Model>(rng, scenario, trace)
}

/// An engine with the host of plain vectors.
struct Model {
    shard: Shard<ModelHost>,
    memory: ModelMemory,
    qpns: Vec<Qpn>,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    /// By connection; a shared one is there once.
    receives: Vec<ReceiveQueue>,
    capabilities: Capabilities,
    buffer: ReceiveBuffer,
    burst: Burst,
    number: usize,
    is_v6: bool,
}

impl Model {
    fn index(&self, connection: usize) -> QpIndex {
        QpIndex(self.qpns[connection].index())
    }

    fn receives_of(&self, connection: usize) -> &ReceiveQueue {
        let last = self.receives.len() - 1;
        &self.receives[connection.min(last)]
    }

    fn create(&mut self, connection: usize) -> Qpn {
        let options = QpOptions {
            transport: Transport::Rc,
            pd: PD,
            capabilities: self.capabilities,
            port_mtu: wire::Mtu::B4096,
            signal_all: false,
            send_cq: self.send_cq.clone(),
            receive_cq: self.receive_cq.clone(),
            receives: self.receives_of(connection).clone(),
        };
        self.shard.create_qp(options).expect("the slot has room")
    }

    /// Takes what arrived.
    fn serve(
        &mut self,
        now: Instant,
        look: &mut dyn FnMut(&ModelMemory) -> Result<(), String>,
    ) -> Result<(), String> {
        let pseudo_header: PseudoHeader = network::pseudo_header(self.is_v6, 1 - self.number);
        let meta = network::meta(self.is_v6, self.number);
        while let Some(bytes) = self.buffer.pop() {
            if !pseudo_header.verify(&bytes, 0) {
                continue;
            }
            // the ICRC is right: what came is what the peer's engine sent
            let packet = Packet::parse(&bytes).map_err(|error| format!("{error}: {bytes:02x?}"))?;
            self.shard
                .handle_datagram(now, &packet, &meta, &self.memory);
            look(&self.memory)?;
        }
        Ok(())
    }

    /// The bytes of a packet of the burst with its ICRC; `None` if its memory is gone.
    fn seal(&self, packet: &PacketOut) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(packet.sealed_length());
        bytes.extend_from_slice(self.burst.header(packet));
        for span in self.burst.spans(packet) {
            bytes.extend_from_slice(&self.memory.gather(span).ok()?);
        }
        bytes.resize(packet.sealed_length(), 0);
        network::pseudo_header(self.is_v6, self.number).seal(&mut bytes, 0);
        Some(bytes)
    }
}

impl Machine for Model {
    type Ground = ModelMemory;

    fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        let mut config = Config::for_slot(number as u8 + 1);
        config.window = scenario.window;
        config.timeout_min = scenario.timeout_min;
        let send_cq = CompletionQueue::new(1 << 12);
        let receive_cq = if rng.chance(500) {
            send_cq.clone()
        } else {
            CompletionQueue::new(1 << 12)
        };
        let receives = if scenario.shares_receives {
            vec![ReceiveQueue::shared(scenario.receive_depth)]
        } else {
            core::iter::repeat_with(|| ReceiveQueue::new(scenario.receive_depth))
                .take(scenario.connections)
                .collect()
        };
        let mut model = Self {
            shard: Shard::new(config, ModelCredit::default()),
            memory: ModelMemory::default(),
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
            buffer: ReceiveBuffer::with_capacity(scenario.buffer),
            burst: Burst::with_bound(scenario.burst),
            number,
            is_v6: scenario.is_v6,
        };
        for connection in 0..scenario.connections {
            let qpn = model.create(connection);
            model.qpns.push(qpn);
        }
        model
    }

    fn ground(&self) -> &ModelMemory {
        &self.memory
    }

    fn qpn(&self, connection: usize) -> Qpn {
        self.qpns[connection]
    }

    fn replace(&mut self, connection: usize) {
        assert!(
            self.shard.destroy_qp(self.index(connection)),
            "it was there"
        );
        self.qpns[connection] = self.create(connection);
    }

    fn modify(
        &mut self,
        now: Instant,
        connection: usize,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<(), String> {
        let index = self.index(connection);
        self.shard
            .modify_qp(now, index, attributes, mask, &self.memory)
            .map(drop)
            .map_err(|error| format!("{error:?}"))
    }

    fn state(&self, connection: usize) -> Option<State> {
        let view = self.shard.query_qp(self.index(connection))?;
        Some(view.state)
    }

    fn post_send(
        &mut self,
        _now: Instant,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<bool, String> {
        match self.shard.post_send(self.index(connection), request) {
            Ok(_) => Ok(true),
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    fn post_receive(&mut self, connection: usize, wqe: ReceiveWqe) -> bool {
        let is_posted = self.receives_of(connection).post(wqe).is_ok();
        self.shard.flush_receives(self.index(connection));
        is_posted
    }

    fn poll(&mut self, _now: Instant) -> Option<WorkCompletion> {
        self.send_cq.poll().or_else(|| self.receive_cq.poll())
    }

    fn is_polled(&self) -> bool {
        self.send_cq.is_empty() && self.receive_cq.is_empty()
    }

    fn arrives(&mut self, bytes: Vec<u8>) -> bool {
        self.buffer.push(bytes)
    }

    fn turn(
        &mut self,
        now: Instant,
        look: &mut dyn FnMut(&ModelMemory) -> Result<(), String>,
        sent: &mut Vec<Vec<u8>>,
    ) -> Result<(), String> {
        self.serve(now, look)?;
        self.shard.handle_timeout(now, &self.memory);
        loop {
            self.burst.clear();
            self.shard.poll_transmit(now, &self.memory, &mut self.burst);
            if self.burst.is_empty() {
                return Ok(());
            }
            let mut failed = Vec::new();
            for packet in self.burst.packets() {
                match self.seal(packet) {
                    Some(bytes) => sent.push(bytes),
                    None => failed.push(packet.origin),
                }
            }
            for origin in failed {
                self.shard.transmit_failed(now, origin, &self.memory);
            }
        }
    }

    fn happened(&mut self) -> Vec<Happening> {
        let mut happened = Vec::new();
        while let Some(event) = self.shard.poll_event() {
            let connection_of =
                |qp| (0..self.qpns.len()).find(|&connection| self.index(connection) == qp);
            let happening = match event {
                AsyncEvent::StateChanged {
                    qp,
                    state: State::Error,
                } => connection_of(qp).map(|connection| Happening::Failed { connection }),
                AsyncEvent::SendQueueDrained(qp) => {
                    connection_of(qp).map(|connection| Happening::Drained { connection })
                }
                _ => None, // a change of state tells the rest
            };
            happened.extend(happening);
        }
        happened
    }

    fn wakes_at(&self, _now: Instant) -> Option<Instant> {
        self.shard.next_deadline()
    }

    fn tally(&self) -> Tally {
        let counters = self.shard.counters();
        Tally {
            retries: counters.completer_retries,
            not_ready: counters.sent_rnr_naks,
            overflowed: self.buffer.dropped(),
        }
    }

    fn assert_invariants(&self) {
        self.shard.assert_invariants();
    }
}
