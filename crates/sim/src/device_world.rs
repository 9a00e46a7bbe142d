//! The real device: rings, key table, runs, sealing and verification of `softrdma`, over a
//! simulated network in place of sockets and virtual time in place of the clock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::access::Access;
use engine::qp::{AttributeMask, Attributes, Capabilities, PostError, SendRequest, State};
use engine::{Instant, Path, ReceiveWqe, WorkCompletion};
use softrdma::core::{Clock, Core, QueuePairSpec};
use softrdma::credit::SlotCredit;
use softrdma::front::Front;
use softrdma::memory::{MemoryTable, OwnedRegion};
use softrdma::network::{Errno, Network, OutgoingRun, RxBuffer, SendOutcome};
use softrdma::shard::Server;
use softrdma::shared_receive_queue::SharedReceiveQueue;
use softrdma::{Error, EventKind, EventQueue};
use tap::Tap;
use wire::{MemoryKey, Qpn};

use crate::ground::{Ground, PD};
use crate::machine::{Happening, Machine, Tally};
use crate::network::{self, ReceiveBuffer};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::scenario::{Calamity, Scenario};
use crate::workload::INLINE_MAX;
use crate::world::{self, Summary};

/// Packets that the simulated kernel merges into one datagram at most.
const MERGED_MAX: usize = 16;

/// Completions that a queue holds: more than there are work requests.
const COMPLETIONS: u32 = 1 << 12;

/// Elements of a receive at most.
const RECEIVE_SGES: u32 = 4;

/// When the background thread looks after what waits for company.
const GLANCE_NS: u64 = 500_000;

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    let mut rng = Rng::from_seed(seed);
    let mut scenario = Scenario::random(&mut rng);
    // an IPv4 packet may have any of 65,536 identifications, which leaves 16 bits of its checksum:
    // too few for this many corrupted packets
    scenario.is_v6 = true;
    // not there yet: keys that can be invalidated; and no safe way to unmap
    scenario.invalidates = false;
    let is_deregistration = |calamity| {
        matches!(
            calamity,
            Calamity::TargetDeregistered
                | Calamity::SourceDeregistered
                | Calamity::SinkDeregistered
        )
    };
    scenario.calamity = scenario
        .calamity
        .filter(|&(_, _, calamity)| is_deregistration(calamity));
    world::run::<Device>(rng, scenario, trace)
}

/// The device of one host.
struct Device {
    core: Core<Wire>,
    ground: DeviceGround,
    /// Nanoseconds of the device's clock.
    time: Arc<AtomicU64>,
    wire: Rc<RefCell<Ends>>,
    fronts: Vec<Arc<Front>>,
    /// Queue pairs whose failure was told.
    has_failed: Vec<bool>,
    send_cq: Arc<softrdma::completion_queue::CompletionQueue>,
    receive_cq: Arc<softrdma::completion_queue::CompletionQueue>,
    shared_receives: Option<Arc<SharedReceiveQueue>>,
    events: Arc<EventQueue>,
    capabilities: Capabilities,
}

/// The device's side of the network.
struct Wire {
    ends: Rc<RefCell<Ends>>,
    number: usize,
}

/// What waits on both ends of it.
struct Ends {
    arrived: ReceiveBuffer,
    sent: Vec<Vec<u8>>,
}

impl Network for Wire {
    fn source_port(&mut self, _path: &Path, _dest: Qpn) -> Result<u16, Errno> {
        Ok(network::address(true, self.number).port())
    }

    fn transmit(&mut self, run: &OutgoingRun<'_>) -> SendOutcome {
        let packets = run.bytes.chunks(run.segment_size.max(1));
        let mut ends = self.ends.borrow_mut();
        ends.sent.extend(packets.map(<[u8]>::to_vec));
        SendOutcome::Sent
    }

    /// Merges packets of one size, as the kernel does; a shorter one may end the datagram.
    fn receive(&mut self, into: &mut RxBuffer) -> Result<bool, Errno> {
        let arrived = &mut self.ends.borrow_mut().arrived;
        let Some(first) = arrived.pop() else {
            return Ok(false);
        };
        into.segment_size = first.len().max(1);
        into.length = first.len();
        into.bytes[..first.len()].copy_from_slice(&first);
        for _ in 1..MERGED_MAX {
            let fits = |&length: &usize| {
                0 < length
                    && length <= into.segment_size
                    && into.length + length <= usize::from(u16::MAX)
            };
            if arrived.next_length().filter(fits).is_none() {
                break;
            }
            let Some(next) = arrived.pop() else { break };
            into.bytes[into.length..into.length + next.len()].copy_from_slice(&next);
            into.length += next.len();
            if next.len() < into.segment_size {
                break;
            }
        }
        into.meta = network::meta(true, self.number);
        into.source_port = network::address(true, 1 - self.number).port();
        Ok(true)
    }

    fn dropped(&self) -> u64 {
        self.ends.borrow().arrived.dropped()
    }
}

/// Registered memory of the device.
#[derive(Clone)]
struct DeviceGround {
    table: Arc<MemoryTable>,
    regions: Rc<RefCell<HashMap<MemoryKey, OwnedRegion>>>,
}

impl Ground for DeviceGround {
    fn register(&self, base: u64, bytes: Vec<u8>, access: Access) -> MemoryKey {
        let region = OwnedRegion::register(&self.table, PD, bytes, base, access)
            .expect("owned memory can be registered");
        let key = region.key();
        self.regions.borrow_mut().insert(key, region);
        key
    }

    fn register_fast(&self, _access: Access) -> MemoryKey {
        unreachable!("scenarios of the device invalidate nothing")
    }

    fn read(&self, key: MemoryKey, offset: usize, length: usize) -> Vec<u8> {
        self.regions.borrow()[&key].read(offset, length)
    }

    fn deregister(&self, key: MemoryKey) {
        self.table.deregister(key).expect("it was registered");
    }

    fn unmap_from(&self, _key: MemoryKey, _offset: usize) {
        unreachable!("scenarios of the device unmap nothing")
    }

    fn is_invalid(&self, _key: MemoryKey) -> bool {
        unreachable!("scenarios of the device invalidate nothing")
    }
}

impl Device {
    fn set_time(&self, now: Instant) {
        self.time.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn create(&self, connection: usize) -> Arc<Front> {
        let spec = QueuePairSpec {
            transport: engine::qp::Transport::Rc,
            carrier: softrdma::front::Carrier::Packets,
            pd: PD,
            link: 0,
            send_cq: Arc::clone(&self.send_cq),
            receive_cq: Arc::clone(&self.receive_cq),
            shared_receives: self.shared_receives.clone(),
            capabilities: self.capabilities,
            port_mtu: wire::Mtu::B4096,
            signal_all: false,
            events: Arc::clone(&self.events),
        };
        let front = self
            .core
            .create_queue_pair(spec)
            .expect("the slot has room");
        front.set_cookie(connection as u64);
        front
    }
}

impl Machine for Device {
    type Ground = DeviceGround;

    fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        let table = Arc::new(MemoryTable::new());
        let time = Arc::new(AtomicU64::new(0));
        let ends = Rc::new(RefCell::new(Ends {
            arrived: ReceiveBuffer::with_capacity(scenario.buffer),
            sent: Vec::new(),
        }));
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let new_cq = || {
            let events = Arc::clone(&events);
            let queue = softrdma::completion_queue::CompletionQueue::new(COMPLETIONS, None, events);
            Arc::new(queue.expect("a size within bounds"))
        };
        let send_cq = new_cq();
        let receive_cq = if rng.chance(500) {
            Arc::clone(&send_cq)
        } else {
            new_cq()
        };
        let new_shared = || {
            let depth = scenario.receive_depth as u32; // a few
            let queue = SharedReceiveQueue::new(depth, RECEIVE_SGES, Arc::clone(&events));
            Arc::new(queue.expect("sizes within bounds"))
        };
        let wire = Wire {
            ends: Rc::clone(&ends),
            number,
        };
        let core = Core::new(
            engine::Config::for_slot(number as u8 + 1),
            Arc::clone(&table),
            SlotCredit::elsewhere(),
            wire,
            Tap::new(None),
            None,
            Clock::Simulated(Arc::clone(&time)),
        );
        // half of them as if the background thread were looking: then posts and answers wait
        let is_tended = rng.chance(500);
        core.shard.hold.set_tended(is_tended);
        let mut device = Self {
            core,
            ground: DeviceGround {
                table,
                regions: Rc::default(),
            },
            time,
            wire: ends,
            fronts: Vec::new(),
            has_failed: vec![false; scenario.connections],
            send_cq,
            receive_cq,
            shared_receives: scenario.shares_receives.then(new_shared),
            events,
            capabilities: Capabilities {
                send_wr_max: scenario.send_depth,
                receive_wr_max: scenario.receive_depth as u32,
                send_sge_max: 4,
                receive_sge_max: RECEIVE_SGES,
                inline_max: INLINE_MAX,
            },
        };
        for connection in 0..scenario.connections {
            let front = device.create(connection);
            device.fronts.push(front);
        }
        device
    }

    fn ground(&self) -> &DeviceGround {
        &self.ground
    }

    fn qpn(&self, connection: usize) -> Qpn {
        self.fronts[connection].qpn()
    }

    fn replace(&mut self, connection: usize) {
        self.core.destroy_queue_pair(&self.fronts[connection]);
        self.fronts[connection] = self.create(connection);
        self.has_failed[connection] = false;
    }

    fn modify(
        &mut self,
        now: Instant,
        connection: usize,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<(), String> {
        self.set_time(now);
        if attributes.state == State::Reset {
            self.has_failed[connection] = false;
        }
        self.core
            .modify(&self.fronts[connection], attributes, mask)
            .map_err(|error| format!("{error:?}"))
    }

    fn state(&self, connection: usize) -> Option<State> {
        Some(self.fronts[connection].state())
    }

    fn post_send(
        &mut self,
        now: Instant,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<bool, String> {
        self.set_time(now);
        match self.core.post_send(&self.fronts[connection], request) {
            Ok(()) => Ok(true),
            Err(Error::Post(PostError::QueueFull)) => Ok(false),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    fn post_receive(&mut self, connection: usize, wqe: ReceiveWqe) -> bool {
        match &self.shared_receives {
            Some(queue) => queue.post(wqe).is_ok(),
            None => self
                .core
                .post_receive(&self.fronts[connection], wqe)
                .is_ok(),
        }
    }

    fn poll(&mut self, now: Instant) -> Option<WorkCompletion> {
        self.set_time(now);
        let nothing = WorkCompletion::success(0, engine::CompletionOpcode::Send, 0, Qpn::default());
        let mut completion = [nothing];
        for queue in [&self.send_cq, &self.receive_cq] {
            // nobody to wake, and nobody else to run
            if self.core.poll(queue, &mut completion, || {}, || {}) == 1 {
                return Some(completion[0]);
            }
        }
        None
    }

    fn is_polled(&self) -> bool {
        self.send_cq.waiting() + self.receive_cq.waiting() == 0
    }

    fn arrives(&mut self, bytes: Vec<u8>) -> bool {
        self.wire.borrow_mut().arrived.push(bytes)
    }

    fn turn(
        &mut self,
        now: Instant,
        look: &mut dyn FnMut(&DeviceGround) -> Result<(), String>,
        sent: &mut Vec<Vec<u8>>,
    ) -> Result<(), String> {
        self.set_time(now);
        loop {
            self.core.serve(Server::Anybody);
            look(&self.ground)?;
            let mut ends = self.wire.borrow_mut();
            sent.append(&mut ends.sent);
            if ends.arrived.next_length().is_none() {
                return Ok(());
            }
        }
    }

    fn happened(&mut self) -> Vec<Happening> {
        let mut happened = Vec::new();
        while let Some(event) = self.events.try_next() {
            self.events.acknowledge(event.cookie, 1);
            if event.kind == EventKind::SendQueueDrained {
                happened.push(Happening::Drained {
                    connection: event.cookie as usize,
                });
            }
        }
        for (connection, front) in self.fronts.iter().enumerate() {
            if front.state() == State::Error && !self.has_failed[connection] {
                self.has_failed[connection] = true;
                happened.push(Happening::Failed { connection });
            }
        }
        happened
    }

    fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let glance = || Instant::from_nanos(now.as_nanos() + GLANCE_NS);
        let waits = self.core.shard.has_pending().then(glance);
        let deadline = self.core.shard.lock().next_deadline(now);
        waits.into_iter().chain(deadline).min()
    }

    fn tally(&self) -> Tally {
        let counters = self.core.shard.lock().engine.counters();
        Tally {
            retries: counters.completer_retries,
            not_ready: counters.sent_rnr_naks,
            overflowed: self.wire.borrow().arrived.dropped(),
        }
    }

    fn assert_invariants(&self) {
        self.core.shard.lock().engine.assert_invariants();
    }
}
