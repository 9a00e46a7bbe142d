//! Twenty processes write to one: real devices, the real credit table, and a receive buffer that
//! counts as the kernel's does. Two of the processes run at any moment, as on a small machine, so
//! the receiver sleeps while many of the others send.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::access::{Access, PdId, Sge};
use engine::qp::{
    AttributeMask as Mask, Attributes, Capabilities, Operation, Payload, RemoteMemory, SendFlags,
    SendRequest, State,
};
use engine::{Path, PathMeta, Status, WorkCompletion, run};
use softrdma::EventQueue;
use softrdma::completion_queue::CompletionQueue;
use softrdma::core::{Clock, Core, QueuePairSpec};
use softrdma::credit::{CreditTable, SlotCredit};
use softrdma::front::Front;
use softrdma::memory::{MemoryTable, OwnedRegion};
use softrdma::network::{Errno, Network, OutgoingRun, RxBuffer, SendOutcome};
use softrdma::shard::Server;
use softrdma_sim::rng::Rng;
use tap::Tap;
use wire::{Mtu, Qpn};

const PD: PdId = PdId(1);
const SENDERS: u8 = 20;
/// Messages of each sender, and of them in flight as far as the program is concerned.
const MESSAGES: u64 = 32;
const DEPTH: u64 = 16;
const MESSAGE: u32 = 64 << 10;
/// What `SO_RCVBUF` of 212,992 is granted.
const BUFFER: u64 = 425_984;
/// How long a process has a core.
const SLICE_NS: u64 = 50_000;
/// When the receiver gets none: for 60 ms, which is less than the timeout of the senders.
const ASLEEP: core::ops::Range<u64> = 500..1700;
const RECEIVER: u8 = 1;

/// The one address of the host.
fn address() -> IpAddr {
    [0xfd00, 0, 0, 0, 0, 0, 0, 1].into()
}

/// A datagram in a receive buffer.
struct Datagram {
    bytes: Vec<u8>,
    segment_size: usize,
    from: u8,
    truesize: u64,
}

/// A socket's receive buffer as the kernel has it: what was read is given back in quarters of the
/// buffer, or when it is empty.
#[derive(Default)]
struct Buffer {
    queue: VecDeque<Datagram>,
    used: u64,
    read: u64,
    dropped: u64,
}

impl Buffer {
    fn push(&mut self, datagram: Datagram) {
        if self.used + datagram.truesize > BUFFER {
            self.dropped += 1;
            return;
        }
        self.used += datagram.truesize;
        self.queue.push_back(datagram);
    }

    fn pop(&mut self) -> Option<Datagram> {
        let datagram = self.queue.pop_front()?;
        self.read += datagram.truesize;
        if self.read >= BUFFER / 4 || self.queue.is_empty() {
            self.used -= self.read;
            self.read = 0;
        }
        Some(datagram)
    }
}

/// What all processes of the host share.
#[derive(Default)]
struct Host {
    buffers: HashMap<u8, Buffer>,
    /// Bytes that senders handed over, of all datagrams.
    sent: u64,
}

/// A process's way to it.
struct Socket {
    host: Rc<RefCell<Host>>,
    slot: u8,
}

impl Network for Socket {
    fn source_port(&mut self, _path: &Path, _dest: Qpn) -> Result<u16, Errno> {
        Ok(port_of(self.slot))
    }

    fn transmit(&mut self, run: &OutgoingRun<'_>) -> SendOutcome {
        let length = run.bytes.len() as u64;
        let truesize = if run.bytes.len() > run.segment_size {
            length + u64::from(run::DATAGRAM_OVERHEAD)
        } else {
            run::alone(length as u32)
        };
        let mut host = self.host.borrow_mut();
        if self.slot != RECEIVER {
            host.sent += length;
        }
        let buffer = host.buffers.entry(run.dest.slot()).or_default();
        buffer.push(Datagram {
            bytes: run.bytes.to_vec(),
            segment_size: run.segment_size,
            from: self.slot,
            truesize,
        });
        SendOutcome::Sent
    }

    fn receive(&mut self, into: &mut RxBuffer) -> Result<bool, Errno> {
        let mut host = self.host.borrow_mut();
        let Some(datagram) = host.buffers.entry(self.slot).or_default().pop() else {
            return Ok(false);
        };
        into.length = datagram.bytes.len();
        into.bytes[..into.length].copy_from_slice(&datagram.bytes);
        into.segment_size = datagram.segment_size;
        into.source_port = port_of(datagram.from);
        into.meta = PathMeta {
            source: address(),
            destination: address(),
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        Ok(true)
    }

    fn dropped(&self) -> u64 {
        let host = self.host.borrow();
        host.buffers
            .get(&self.slot)
            .map_or(0, |buffer| buffer.dropped)
    }
}

fn port_of(slot: u8) -> u16 {
    0xc000 + u16::from(slot)
}

/// A process with a device.
struct Process {
    core: Core<Socket>,
    queue: Arc<CompletionQueue>,
    events: Arc<EventQueue>,
    region: OwnedRegion,
}

impl Process {
    fn new(
        slot: u8,
        length: u32,
        credit: SlotCredit,
        host: &Rc<RefCell<Host>>,
        time: &Arc<AtomicU64>,
    ) -> Self {
        let memory = Arc::new(MemoryTable::new());
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let queue = CompletionQueue::new(1 << 10, None, Arc::clone(&events));
        let bytes = vec![slot; length as usize];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = OwnedRegion::register(&memory, PD, bytes, 0, access).expect("owned memory");
        let socket = Socket {
            host: Rc::clone(host),
            slot,
        };
        Self {
            core: Core::new(
                engine::Config::for_slot(slot),
                memory,
                credit,
                socket,
                Tap::new(None),
                None,
                Clock::Simulated(Arc::clone(time)),
            ),
            queue: Arc::new(queue.expect("a size within bounds")),
            events,
            region,
        }
    }

    fn queue_pair(&self) -> Arc<Front> {
        let spec = QueuePairSpec {
            transport: engine::qp::Transport::Rc,
            carrier: softrdma::front::Carrier::Packets,
            pd: PD,
            link: 0,
            send_cq: Arc::clone(&self.queue),
            receive_cq: Arc::clone(&self.queue),
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: DEPTH as u32,
                receive_wr_max: 1,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 0,
            },
            port_mtu: wire::Mtu::B4096,
            signal_all: true,
            events: Arc::clone(&self.events),
        };
        self.core
            .create_queue_pair(spec)
            .expect("the slot has room")
    }

    /// RESET to RTS, with a timeout of 67 ms.
    fn connect(&self, front: &Front, dest_qpn: Qpn) {
        let mut attributes = Attributes {
            access: Access::REMOTE_WRITE,
            port: 1,
            path: Path {
                local: address(),
                remote: address(),
                ..Attributes::default().path
            },
            path_mtu: Mtu::B4096,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            dest_qpn,
            ..Attributes::default()
        };
        let init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let receive = Mask::ADDRESS_VECTOR
            | Mask::PATH_MTU
            | Mask::DEST_QPN
            | Mask::RQ_PSN
            | Mask::MAX_DEST_RD_ATOMIC
            | Mask::MIN_RNR_TIMER;
        let send = Mask::TIMEOUT
            | Mask::RETRY_COUNT
            | Mask::RNR_RETRY
            | Mask::SQ_PSN
            | Mask::MAX_RD_ATOMIC;
        for (state, mask) in [
            (State::Init, init),
            (State::ReadyToReceive, receive),
            (State::ReadyToSend, send),
        ] {
            attributes.state = state;
            self.core
                .modify(front, &attributes, Mask::STATE | mask)
                .expect("one state after the other");
        }
    }
}

/// A sender with its program.
struct Sender {
    process: Process,
    front: Arc<Front>,
    target: RemoteMemory,
    posted: u64,
    done: u64,
}

impl Sender {
    /// Has a core for a moment: posts what it may, takes what is complete.
    fn run(&mut self) {
        while self.posted < MESSAGES && self.posted - self.done < DEPTH {
            let sge = Sge {
                address: 0,
                length: MESSAGE,
                key: self.process.region.key(),
            };
            let request = SendRequest {
                id: self.posted,
                operation: Operation::Write(self.target),
                flags: SendFlags::empty(),
                payload: Payload::Sges(&[sge]),
                to: None,
            };
            self.process
                .core
                .post_send(&self.front, &request)
                .expect("the queue has room");
            self.posted += 1;
        }
        self.process.core.serve(Server::Anybody);
        let nothing = WorkCompletion::success(0, engine::CompletionOpcode::Send, 0, Qpn::default());
        let mut completion = [nothing];
        while self.process.queue.poll(&mut completion) == 1 {
            assert_eq!(completion[0].status, Status::Success);
            assert_eq!(completion[0].id, self.done, "in their order");
            self.done += 1;
        }
    }
}

/// What became of it.
#[derive(Debug)]
struct Outcome {
    /// Datagrams that the receiver's buffer had no room for.
    dropped: u64,
    /// Bytes sent for each thousand bytes that were needed.
    sent_per_mille: u64,
    /// Most messages done by one sender when the first was through, and least.
    spread: (u64, u64),
}

fn incast(seed: u64, has_table: bool) -> Outcome {
    let mut rng = Rng::from_seed(seed);
    let host = Rc::new(RefCell::new(Host::default()));
    let time = Arc::new(AtomicU64::new(1));
    let (table, file) = CreditTable::create().expect("memfd exists");
    table.grant(RECEIVER, BUFFER);
    let credit = |slot| {
        let table = has_table.then(|| CreditTable::open(&file).expect("made just now"));
        SlotCredit::new(slot, table)
    };
    let length = u32::from(SENDERS) * MESSAGE;
    let receiver = Process::new(RECEIVER, length, credit(RECEIVER), &host, &time);
    let mut senders: Vec<Sender> = (0..SENDERS)
        .map(|number| {
            let slot = RECEIVER + 1 + number;
            let process = Process::new(slot, MESSAGE, credit(slot), &host, &time);
            let (front, there) = (process.queue_pair(), receiver.queue_pair());
            process.connect(&front, there.qpn());
            receiver.connect(&there, front.qpn());
            Sender {
                process,
                front,
                target: RemoteMemory {
                    address: u64::from(number) * u64::from(MESSAGE),
                    key: receiver.region.key(),
                },
                posted: 0,
                done: 0,
            }
        })
        .collect();
    let mut spread = None;
    for slice in 1.. {
        assert!(slice < 1_000_000, "it never ends");
        time.store(slice * SLICE_NS, Ordering::Relaxed);
        for _core in 0..2 {
            match rng.below(u64::from(SENDERS) + 1) as usize {
                0 if ASLEEP.contains(&slice) => {}
                0 => drop(receiver.core.serve(Server::Anybody)),
                number => senders[number - 1].run(),
            }
        }
        let done = || senders.iter().map(|sender| sender.done);
        if spread.is_none() && done().any(|done| done == MESSAGES) {
            spread = Some((done().max().unwrap_or(0), done().min().unwrap_or(0)));
        }
        if done().all(|done| done == MESSAGES) {
            break;
        }
    }
    for number in 0..SENDERS {
        let offset = usize::from(number) * MESSAGE as usize;
        let bytes = receiver.region.read(offset, MESSAGE as usize);
        assert!(bytes.iter().all(|byte| *byte == RECEIVER + 1 + number));
    }
    let host = host.borrow();
    // 16 packets with BTH and ICRC, and one RETH
    let message = u64::from(MESSAGE) + 16 * 16 + 16;
    Outcome {
        dropped: host.buffers[&RECEIVER].dropped,
        sent_per_mille: host.sent * 1000 / (message * MESSAGES * u64::from(SENDERS)),
        spread: spread.expect("all are through"),
    }
}

#[test]
fn twenty_to_one_lose_nothing_though_the_receiver_sleeps() {
    for seed in 0..8 {
        let outcome = incast(seed, true);
        assert_eq!(outcome.dropped, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.sent_per_mille <= 1010, "seed {seed}: {outcome:?}");
        let (most, least) = outcome.spread;
        assert!(least >= most / 2, "seed {seed}: {outcome:?}");
    }
}

/// The same without the table, to see that it is the table.
#[test]
fn without_the_table_the_buffer_is_overrun_and_yet_all_arrives() {
    let outcome = incast(0, false);
    assert!(outcome.dropped > 20, "{outcome:?}");
    // losses shrink the windows: there is no storm
    assert!(outcome.sent_per_mille <= 1500, "{outcome:?}");
}
