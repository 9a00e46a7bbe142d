//! A queue pair takes any stream of FPDUs: nothing panics, and memory that is not for the peer
//! stays as it was. Without CRCs, so that what is changed is looked at.
#![no_main]

use libfuzzer_sys::fuzz_target;
use softrdma_engine::iwarp::{Agreement, Depths, Options, QueuePair, Role, StreamBurst};
use softrdma_engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use softrdma_engine::qp::Capabilities;
use softrdma_engine::{Access, Instant, PdId, ReceiveWqe, Sge};
use softrdma_wire::Qpn;
use softrdma_wire::iwarp::Revision;

const PD: PdId = PdId(1);
const LENGTH: usize = 256;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, mut stream)) = input.split_first() else {
        return;
    };
    let now = Instant::default();
    let memory = ModelMemory::default();
    let region = |access| memory.register(PD, 0x1000, vec![7; LENGTH], access);
    let target = region(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
    let private = region(Access::LOCAL_WRITE);
    let receives = ReceiveQueue::new(8);
    for id in 0..8 {
        let sge = Sge {
            address: 0x1000,
            length: 64,
            key: target,
        };
        let wqe = ReceiveWqe {
            id,
            sges: [sge].into_iter().collect(),
        };
        let _ = receives.post(wqe); // there is room for eight
    }
    let mut qp = QueuePair::<ModelHost>::new(Options {
        qpn: Qpn::truncated(1),
        pd: PD,
        capabilities: Capabilities::default(),
        signal_all: true,
        send_cq: CompletionQueue::new(16),
        receive_cq: CompletionQueue::new(16),
        receives,
        extensions: choice & 1 != 0,
    });
    qp.attributes_mut().access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let agreement = Agreement {
        role: Role::Passive,
        revision: Revision::Two,
        has_crc: false,
        sends_markers: choice & 2 != 0,
        receives_markers: choice & 2 != 0,
        depths: Depths { ird: 2, ord: 2 },
        rtr: None,
        private_data: Vec::new(),
    };
    qp.start(now, &agreement, 128);
    loop {
        let used = qp.handle_stream(now, stream, &memory);
        qp.assert_invariants();
        let mut burst = StreamBurst::with_bound(4096);
        qp.poll_transmit(now, &memory, &mut burst);
        qp.burst_left(now);
        if used == 0 {
            break;
        }
        stream = &stream[used..];
    }
    let kept = memory.read(private, 0, LENGTH);
    assert!(kept.iter().all(|&byte| byte == 7));
});
