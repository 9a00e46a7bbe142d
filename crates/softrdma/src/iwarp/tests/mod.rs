//! Two queue pairs, or one and a peer that misbehaves, on real TCP connections over loopback.
//! Nobody serves them but the test itself.

mod hostile;
mod left_alone;
mod set_up;
mod transfers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant as Clocktime};

use engine::qp::{Capabilities, Operation, Payload, RemoteMemory, SendFlags, SendRequest, State};
use engine::{Access, CompletionOpcode, Path, PdId, ReceiveWqe, Sge, WorkCompletion};
use tap::Tap;
use wire::Qpn;

use super::*;
use crate::completion_queue::CompletionQueue;
use crate::core::{Clock, Core, QueuePairSpec};
use crate::credit::SlotCredit;
use crate::event_queue::EventQueue;
use crate::front::{Carrier, Front};
use crate::memory::{MemoryTable, OwnedRegion};
use crate::network::{Errno, Network, OutgoingRun, RxBuffer, SendOutcome};
use crate::pace::Pace;
use crate::shard::Server;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Hang guard.
const GUARD: Duration = Duration::from_secs(60);
const PD: PdId = PdId(1);
/// Bytes of a side's region.
const REGION: usize = 4 << 20;
const DEPTHS: Depths = Depths { ird: 4, ord: 4 };
/// The link, to count for.
const LINK: u32 = 7;
/// Of reports: who asks, who listens, who accepts.
const CALLER: u64 = 1;
const HOST: u64 = 2;
const TAKER: u64 = 3;

/// No packets come or go.
struct Nowhere;

impl Network for Nowhere {
    fn source_port(&mut self, _: &Path, _: Qpn) -> Result<u16, Errno> {
        Err(Errno::NETDOWN)
    }

    fn transmit(&mut self, _: &OutgoingRun<'_>) -> SendOutcome {
        SendOutcome::Failed(Errno::NETDOWN)
    }

    fn receive(&mut self, _: &mut RxBuffer) -> Result<bool, Errno> {
        Ok(false)
    }

    fn dropped(&self) -> u64 {
        0
    }
}

/// A device with a listener, some memory, and queue pairs that complete to one queue.
struct Side {
    core: Core<Nowhere>,
    reception: Arc<Reception>,
    cq: Arc<CompletionQueue>,
    events: Arc<EventQueue>,
    reports: Arc<Reports>,
    region: OwnedRegion,
    settings: Settings,
}

impl Side {
    /// With a region of these bytes from address 0 on.
    fn with(settings: Settings, bytes: Vec<u8>) -> Self {
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let cq = CompletionQueue::new(4096, None, Arc::clone(&events));
        let memory = Arc::new(MemoryTable::new());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = OwnedRegion::register(&memory, PD, bytes, 0, access);
        Self {
            core: Core::new(
                engine::Config::for_slot(1),
                memory,
                SlotCredit::elsewhere(),
                Nowhere,
                Tap::new(None),
                None,
                Clock::Monotonic(Pace::ORDINARY),
            ),
            reception: Arc::default(),
            cq: Arc::new(cq.expect("a size within bounds")),
            events,
            reports: Arc::default(),
            region: region.expect("owned memory can be registered"),
            settings,
        }
    }

    fn new(settings: Settings) -> Self {
        Self::with(settings, vec![0; REGION])
    }

    fn queue_pair(&self) -> Arc<Front> {
        self.queue_pair_on(None)
    }

    fn queue_pair_on(&self, shared: Option<&Arc<SharedReceiveQueue>>) -> Arc<Front> {
        let spec = QueuePairSpec {
            transport: engine::qp::Transport::Rc,
            carrier: Carrier::Stream {
                has_extensions: self.settings.options.extensions,
            },
            pd: PD,
            link: 0,
            send_cq: Arc::clone(&self.cq),
            receive_cq: Arc::clone(&self.cq),
            shared_receives: shared.cloned(),
            capabilities: Capabilities {
                send_wr_max: 255,
                receive_wr_max: 255,
                send_sge_max: 2,
                receive_sge_max: 2,
                inline_max: 80,
            },
            port_mtu: wire::Mtu::B4096,
            signal_all: false,
            events: Arc::clone(&self.events),
        };
        self.core.create_queue_pair(spec).expect("there is room")
    }

    fn to(&self, token: u64) -> Teller {
        Teller {
            reports: Arc::clone(&self.reports),
            token,
        }
    }

    fn listen(&self, address: &str) -> StreamListener {
        let any = SocketAddr::new(address.parse().expect("a literal"), 0);
        self.listen_on(any, Terms::Same(self.settings))
    }

    fn listen_on(&self, address: SocketAddr, terms: Terms) -> StreamListener {
        let at = ListenAt {
            address,
            v6_only: false,
            backlog: 16,
            traffic_class: 0,
        };
        let listener = self.reception.listen(&at, terms, self.to(HOST));
        listener.expect("loopback")
    }

    fn call(&self, front: &Front, to: SocketAddr, private_data: &[u8]) {
        let stream = io::tcp::Stream::connect(None, to, 0).expect("loopback");
        stream.wait_connected(GUARD).expect("somebody listens");
        self.ask(front, stream, private_data);
    }

    /// Calls without waiting for TCP.
    fn begin_call(&self, front: &Front, to: SocketAddr) {
        let stream = io::tcp::Stream::connect(None, to, 0).expect("loopback");
        self.ask(front, stream, b"");
    }

    fn ask(&self, front: &Front, stream: io::tcp::Stream, private_data: &[u8]) {
        let asking = Asking {
            stream,
            settings: self.settings,
            depths: DEPTHS,
            private_data: private_data.to_vec(),
            to: self.to(CALLER),
        };
        self.core.ask(front, asking).expect("a new queue pair");
    }

    fn accept(&self, front: &Front, incoming: Incoming) {
        let accepting = Accepting {
            incoming,
            depths: DEPTHS,
            private_data: b"welcome".to_vec(),
            to: self.to(TAKER),
        };
        self.core
            .accept(front, accepting)
            .expect("a new queue pair");
    }

    /// What a queue pair, or the reception where there is none, has counted that is not 0.
    fn counted(&self, front: Option<&Front>) -> Vec<(&'static str, u64)> {
        let counters = match front {
            Some(front) => {
                let view = self.core.query(front).expect("a queue pair of this side");
                view.counters.iwarp
            }
            None => {
                let counted = self.reception.counted();
                assert!(counted.iter().all(|(link, _)| *link == LINK));
                counted.first().map(|(_, of)| *of).unwrap_or_default()
            }
        };
        counters.iter().filter(|(_, count)| *count > 0).collect()
    }

    fn serve(&self) {
        self.reception.serve(self.core.now());
        self.core.serve(Server::Anybody);
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: offset as u64,
            length: length as u32,
            key: self.region.key(),
        }
    }

    fn remote(&self, offset: usize) -> RemoteMemory {
        RemoteMemory {
            address: offset as u64,
            key: self.region.key(),
        }
    }

    fn post(&self, front: &Front, id: u64, operation: Operation, sges: &[Sge]) {
        let flags = SendFlags::SIGNALED;
        self.post_with(front, id, operation, flags, Payload::Sges(sges));
    }

    fn post_with(
        &self,
        front: &Front,
        id: u64,
        operation: Operation,
        flags: SendFlags,
        payload: Payload<'_>,
    ) {
        let request = SendRequest {
            id,
            operation,
            flags,
            payload,
            to: None,
        };
        self.core
            .post_send(front, &request)
            .expect("it is accepted");
    }

    fn post_receive(&self, front: &Front, id: u64, offset: usize, length: usize) {
        let wqe = ReceiveWqe {
            id,
            sges: [self.sge(offset, length)].into_iter().collect(),
        };
        self.core.post_receive(front, wqe).expect("there is room");
    }

    /// The next completion that is there.
    fn completion(&self) -> Option<WorkCompletion> {
        let mut one = [WorkCompletion::success(
            0,
            CompletionOpcode::Send,
            0,
            Qpn::default(),
        )];
        (self.cq.poll(&mut one) == 1).then(|| one[0])
    }
}

/// Serves both sides until there is an answer.
fn until<T>(sides: &[&Side], mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Clocktime::now();
    loop {
        for side in sides {
            side.serve();
        }
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < GUARD, "it does not happen");
        std::thread::yield_now();
    }
}

fn completion(sides: &[&Side], of: &Side) -> WorkCompletion {
    until(sides, || of.completion())
}

fn report(sides: &[&Side], of: &Side) -> Report {
    until(sides, || of.reports.take())
}

/// Two sides with a connection.
struct Pair {
    a: Side,
    b: Side,
    a_qp: Arc<Front>,
    b_qp: Arc<Front>,
    _listener: StreamListener,
}

impl Pair {
    fn new(address: &str, settings: Settings) -> Self {
        let bytes = (0..REGION).map(|at| (at * 7 + at / 4093) as u8).collect();
        Self::of(address, Side::with(settings, bytes), Side::new(settings))
    }

    /// The first one calls.
    fn of(address: &str, a: Side, b: Side) -> Self {
        let b_qp = b.queue_pair();
        Self::on(address, a, b, b_qp)
    }

    fn on(address: &str, a: Side, b: Side, b_qp: Arc<Front>) -> Self {
        let listener = b.listen(address);
        let a_qp = a.queue_pair();
        a.call(&a_qp, listener.address(), b"hello");
        let ReportKind::Requested(incoming) = report(&[&a, &b], &b).kind else {
            panic!("not a request");
        };
        b.accept(&b_qp, incoming);
        for side in [&a, &b] {
            let told = report(&[&a, &b], side).kind;
            assert!(matches!(told, ReportKind::Established { .. }), "{told:?}");
        }
        Self {
            a,
            b,
            a_qp,
            b_qp,
            _listener: listener,
        }
    }

    fn sides(&self) -> [&Side; 2] {
        [&self.a, &self.b]
    }
}

/// A peer that speaks for itself.
struct Raw(TcpStream);

impl Raw {
    fn call(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, GUARD).expect("somebody listens");
        stream.set_read_timeout(Some(GUARD)).expect("a socket");
        Self(stream)
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("an open stream");
    }

    /// All until the end; `None` at the end if the stream was reset.
    fn hear_all(mut self) -> (Vec<u8>, bool) {
        let mut heard = Vec::new();
        let ended = self.0.read_to_end(&mut heard).is_ok();
        (heard, ended)
    }
}

/// A request of revision 2 without private data.
fn plain_request() -> Vec<u8> {
    let mut request = Vec::new();
    let (now, link) = (engine::Instant::from_nanos(0), LinkOptions::default());
    engine::iwarp::AwaitingReply::start(now, link, DEPTHS, b"", &mut request)
        .expect("no private data");
    request
}

fn send() -> Operation {
    Operation::Send
}
