//! Two devices and a wire between them that counts datagrams; nobody else serves them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use engine::access::Access;
use engine::qp::{Operation, Payload, SendFlags};
use engine::{CompletionOpcode, Path, PathMeta, Sge};
use wire::{Mtu, Psn, Qpn};

use super::*;
use crate::memory::OwnedRegion;
use crate::network::{Errno, OutgoingRun, RxBuffer, SendOutcome};

const PORT: u16 = 50_000;
const PD: PdId = PdId(1);

fn address(end: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + end as u16).into()
}

/// Datagrams on their way to each end, with the size of their segments.
type Cable = Rc<RefCell<[VecDeque<(Vec<u8>, usize)>; 2]>>;

struct Wire {
    cable: Cable,
    end: usize,
}

impl Network for Wire {
    fn source_port(&mut self, _path: &Path, _dest: Qpn) -> std::result::Result<u16, Errno> {
        Ok(PORT)
    }

    fn transmit(&mut self, run: &OutgoingRun<'_>) -> SendOutcome {
        let datagram = (run.bytes.to_vec(), run.segment_size);
        self.cable.borrow_mut()[1 - self.end].push_back(datagram);
        SendOutcome::Sent
    }

    fn receive(&mut self, into: &mut RxBuffer) -> std::result::Result<bool, Errno> {
        let Some((bytes, segment_size)) = self.cable.borrow_mut()[self.end].pop_front() else {
            return Ok(false);
        };
        into.bytes[..bytes.len()].copy_from_slice(&bytes);
        (into.length, into.segment_size) = (bytes.len(), segment_size);
        into.meta = PathMeta {
            source: address(1 - self.end),
            destination: address(self.end),
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        into.source_port = PORT;
        Ok(true)
    }

    fn dropped(&self) -> u64 {
        0
    }
}

/// One end, with a queue pair in RTS.
struct End {
    core: Core<Wire>,
    front: Arc<Front>,
    send_cq: Arc<CompletionQueue>,
    receive_cq: Arc<CompletionQueue>,
    /// Where messages go.
    sge: Sge,
    _region: OwnedRegion,
}

impl End {
    fn new(cable: &Cable, end: usize) -> Self {
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let new_cq = || {
            let queue = CompletionQueue::new(16, None, Arc::clone(&events));
            Arc::new(queue.expect("a size within bounds"))
        };
        let (send_cq, receive_cq) = (new_cq(), new_cq());
        let wire = Wire {
            cable: Rc::clone(cable),
            end,
        };
        let memory = Arc::new(MemoryTable::new());
        let region = OwnedRegion::register(&memory, PD, vec![0; 8], 0, Access::LOCAL_WRITE)
            .expect("owned memory can be registered");
        let core = Core::new(
            engine::Config::for_slot(end as u8 + 1),
            memory,
            SlotCredit::elsewhere(),
            wire,
            Tap::new(None),
            None,
            Clock::Simulated(Arc::new(AtomicU64::new(1))),
        );
        // as if the background thread would look
        core.shard.hold.set_tended(true);
        let spec = QueuePairSpec {
            transport: engine::qp::Transport::Rc,
            carrier: Carrier::Packets,
            pd: PD,
            link: 0,
            send_cq: Arc::clone(&send_cq),
            receive_cq: Arc::clone(&receive_cq),
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: 15,
                receive_wr_max: 15,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 32,
            },
            port_mtu: wire::Mtu::B4096,
            signal_all: true,
            events,
        };
        let front = core.create_queue_pair(spec).expect("the slot has room");
        Self {
            core,
            front,
            send_cq,
            receive_cq,
            sge: Sge {
                address: 0,
                length: 8,
                key: region.key(),
            },
            _region: region,
        }
    }

    fn connect(&self, end: usize, peer: Qpn) {
        let attributes = Attributes {
            port: 1,
            path_mtu: Mtu::B1024,
            dest_qpn: peer,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 14,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            path: Path {
                local: address(end),
                remote: address(1 - end),
                interface: 0,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            },
            ..Attributes::default()
        };
        use AttributeMask as Mask;
        let to_init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let to_rtr = Mask::ADDRESS_VECTOR
            | Mask::PATH_MTU
            | Mask::DEST_QPN
            | Mask::RQ_PSN
            | Mask::MAX_DEST_RD_ATOMIC
            | Mask::MIN_RNR_TIMER;
        let to_rts = Mask::TIMEOUT
            | Mask::RETRY_COUNT
            | Mask::RNR_RETRY
            | Mask::SQ_PSN
            | Mask::MAX_RD_ATOMIC;
        for (state, mask) in [
            (State::Init, to_init),
            (State::ReadyToReceive, to_rtr),
            (State::ReadyToSend, to_rts),
        ] {
            let step = Attributes {
                state,
                ..attributes
            };
            self.core
                .modify(&self.front, &step, Mask::STATE | mask)
                .expect("a step of the usual way up");
        }
    }

    fn post_receive(&self) {
        let wqe = ReceiveWqe {
            id: 0,
            sges: [self.sge].into_iter().collect(),
        };
        self.core
            .post_receive(&self.front, wqe)
            .expect("there is room");
    }

    fn post_send(&self) {
        let request = SendRequest {
            id: 0,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Inline(b"long"), // as an acknowledgement
            to: None,
        };
        self.core
            .post_send(&self.front, &request)
            .expect("there is room");
    }

    /// Completions that one poll finds.
    fn poll(&self, queue: &CompletionQueue) -> usize {
        let nothing = WorkCompletion::success(0, CompletionOpcode::Send, 0, Qpn::default());
        self.core.poll(queue, &mut [nothing; 4], || {}, || {})
    }
}

/// Two connected ends, each with a receive posted.
fn pair() -> (Cable, [End; 2]) {
    let cable = Cable::default();
    let ends = [0, 1].map(|end| End::new(&cable, end));
    for end in [0, 1] {
        ends[end].connect(end, ends[1 - end].front.qpn());
        ends[end].post_receive();
    }
    (cable, ends)
}

#[test]
fn an_acknowledgement_travels_with_the_answer_whichever_queue_is_polled_first() {
    let (cable, [asks, answers]) = pair();
    asks.post_send();
    for round in 0..10 {
        assert_eq!(answers.poll(&answers.receive_cq), 1, "round {round}");
        answers.post_receive();
        answers.post_send();
        assert_eq!(cable.borrow()[0].len(), 1, "answer and acknowledgement");
        // both completions come in one poll; the program sees them in two
        assert_eq!(asks.poll(&asks.send_cq), 1);
        assert_eq!(asks.poll(&asks.receive_cq), 1);
        assert_eq!(cable.borrow()[1].len(), 0, "the acknowledgement waits");
        asks.post_receive();
        asks.post_send();
        assert_eq!(cable.borrow()[1].len(), 1, "and travels with the next");
        assert_eq!(answers.poll(&answers.send_cq), 1);
    }
}

#[test]
fn an_acknowledgement_leaves_alone_with_the_poll_that_finds_nothing() {
    let (cable, [asks, answers]) = pair();
    asks.post_send();
    assert_eq!(answers.poll(&answers.receive_cq), 1);
    assert_eq!(cable.borrow()[0].len(), 0);
    assert_eq!(answers.poll(&answers.receive_cq), 0);
    assert_eq!(cable.borrow()[0].len(), 1);
    assert_eq!(asks.poll(&asks.send_cq), 1);
}

#[test]
fn what_was_posted_while_somebody_served_is_done_by_who_needs_to_know() {
    let (cable, [asks, _answers]) = pair();
    let serving = asks.core.shard.lock();
    asks.post_send();
    drop(serving);
    assert_eq!(cable.borrow()[1].len(), 0, "left to who served");
    asks.core.catch_up();
    assert_eq!(cable.borrow()[1].len(), 1);
}

/// A send of `asks` arrives and is acknowledged.
fn send([asks, answers]: &[End; 2]) {
    asks.post_send();
    answers.core.serve(Server::Anybody);
    assert_eq!(answers.poll(&answers.receive_cq), 1);
    answers.post_receive();
}

#[test]
fn a_poll_that_takes_the_last_send_stays_for_the_answer_where_the_thread_had_to_bring_it() {
    let (cable, ends) = pair();
    let [asks, answers] = &ends;
    for end in &ends {
        // so that nothing waits for company
        end.core.shard.hold.set_tended(false);
    }
    let take = |is_answered: bool| {
        if is_answered {
            answers.post_send();
        }
        assert_eq!(asks.poll(&asks.send_cq), 1);
    };
    // a poll found the completion: the program serves itself
    send(&ends);
    assert_eq!(asks.poll(&asks.receive_cq), 0);
    take(true);
    assert_eq!(cable.borrow()[0].len(), 1, "left for the next poll");
    assert_eq!(asks.poll(&asks.receive_cq), 1);
    asks.post_receive();

    send(&ends);
    asks.core.serve(Server::Anybody);
    take(true);
    assert_eq!(cable.borrow()[0].len(), 0, "the poll stayed");
    asks.post_receive();

    // in vain once, so it does not the next time
    for (is_answered, left) in [(false, 0), (true, 1), (true, 0)] {
        asks.post_receive();
        send(&ends);
        asks.core.serve(Server::Anybody);
        take(is_answered);
        assert_eq!(cable.borrow()[0].len(), left);
    }
}

#[test]
fn queue_pairs_of_a_lost_device_are_flushed() {
    let (_cable, [client, server]) = pair();
    server.core.lose_queue_pairs(|_| false);
    assert_eq!(server.front.state(), State::ReadyToSend);
    assert_eq!(server.poll(&server.receive_cq), 0);
    client.post_send();
    client.core.lose_queue_pairs(|_| true);
    for queue in [&client.send_cq, &client.receive_cq] {
        assert_eq!(client.poll(queue), 1);
    }
    assert_eq!(client.front.state(), State::Error);
}
