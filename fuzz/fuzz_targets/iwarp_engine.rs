//! A queue pair of either role, with requests of its own under way, takes whatever its peer sends:
//! nothing panics, memory that is not for the peer stays as it was, each request completes once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use softrdma_engine::iwarp::{Agreement, Depths, Options, QueuePair, Role, Rtr, StreamBurst};
use softrdma_engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use softrdma_engine::qp::{
    Capabilities, Operation, Payload, RemoteMemory, SendFlags, SendRequest, State,
};
use softrdma_engine::{Access, Instant, PdId, ReceiveWqe, Sge};
use softrdma_wire::iwarp::{Framer, Revision};
use softrdma_wire::{MemoryKey, Qpn};

const PD: PdId = PdId(1);
const BASE: u64 = 0x1000;
const LENGTH: usize = 256;
/// Bytes of a READ, and of the memory that it goes to.
const READ: usize = 64;
const RECEIVES: usize = 8;

fuzz_target!(|input: &[u8]| {
    let [choice, posts, peer @ ..] = input else {
        return;
    };
    let is = |bit: u8| choice & (1 << bit) != 0;
    let (has_crc, has_markers) = (is(0), is(1));
    let now = Instant::default();
    let memory = ModelMemory::default();
    let region = |access| memory.register(PD, BASE, vec![7; LENGTH], access);
    let target = region(
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    );
    let (private, sink) = (region(Access::LOCAL_WRITE), region(Access::LOCAL_WRITE));
    let sge = |key, length| Sge {
        address: BASE,
        length,
        key,
    };
    let receives = ReceiveQueue::new(RECEIVES);
    for id in 0..RECEIVES as u64 {
        let sges = [sge(target, 64)].into_iter().collect();
        let _ = receives.post(ReceiveWqe { id, sges }); // there is room for all
    }
    let (send_cq, receive_cq) = (CompletionQueue::new(16), CompletionQueue::new(16));
    let mut qp = QueuePair::<ModelHost>::new(Options {
        qpn: Qpn::truncated(1),
        pd: PD,
        capabilities: Capabilities {
            send_wr_max: 8,
            receive_wr_max: RECEIVES as u32,
            send_sge_max: 1,
            receive_sge_max: 1,
            inline_max: 0,
        },
        signal_all: true,
        send_cq: send_cq.clone(),
        receive_cq: receive_cq.clone(),
        receives,
        extensions: is(2),
    });
    qp.attributes_mut().access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let agreement = Agreement {
        role: if is(3) { Role::Active } else { Role::Passive },
        revision: Revision::Two,
        has_crc,
        sends_markers: has_markers,
        receives_markers: has_markers,
        depths: Depths { ird: 2, ord: 2 },
        replied: Depths::default(),
        rtr: [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)]
            [usize::from(choice >> 4 & 3)],
        private_data: Vec::new(),
    };
    qp.start(now, &agreement, 128);
    let requests = requests(*posts, sink, &mut qp);

    let mut rest = stream(peer, has_crc, has_markers);
    loop {
        transmit(&mut qp, now, &memory);
        let used = qp.handle_stream(now, &rest, &memory);
        qp.assert_invariants();
        rest.drain(..used);
        if used == 0 {
            break;
        }
    }
    qp.abort();
    transmit(&mut qp, now, &memory);
    assert_eq!(qp.state(), State::Error);
    assert_eq!(send_cq.drain().len(), requests);
    assert_eq!(receive_cq.drain().len(), RECEIVES);
    let kept = |key, from: usize| {
        let now = memory.read(key, from, LENGTH - from);
        now.iter().all(|&byte| byte == 7)
    };
    assert!(kept(private, 0), "written by a peer who may not");
    assert!(kept(sink, READ), "written behind what was asked for");
});

/// Posts what `choice` says, two bits a request; gives how many were taken.
fn requests(mut choice: u8, sink: MemoryKey, qp: &mut QueuePair<ModelHost>) -> usize {
    let remote = RemoteMemory {
        address: BASE,
        key: sink,
    };
    let mut taken = 0;
    while choice != 0 {
        let (operation, length) = match choice & 3 {
            0 => (Operation::Send, READ),
            1 => (Operation::Read(remote), READ),
            2 => (Operation::FetchAdd { remote, add: 1 }, 8),
            _ => (
                Operation::CompareSwap {
                    remote,
                    compare: 0,
                    swap: 1,
                },
                8,
            ),
        };
        let sge = Sge {
            address: BASE,
            length: length as u32,
            key: sink,
        };
        let request = SendRequest {
            id: taken as u64,
            operation,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[sge]),
            to: None,
        };
        taken += usize::from(qp.post_send(&request).is_ok());
        choice >>= 2;
    }
    taken
}

/// What the peer sends: with CRCs, which chance never hits, pieces of the input as ULPDUs; else the
/// input as it is.
fn stream(mut input: &[u8], has_crc: bool, has_markers: bool) -> Vec<u8> {
    if !has_crc {
        return input.to_vec();
    }
    let mut framer = Framer::new(has_crc, has_markers);
    let mut stream = Vec::new();
    while let Some((&length, rest)) = input.split_first() {
        let (ulpdu, rest) = rest.split_at(rest.len().min(length.into()));
        let mut fpdu = u16::from(length).to_be_bytes().to_vec();
        fpdu.extend_from_slice(ulpdu);
        fpdu.resize(2 + usize::from(length), 0);
        framer.seal(&mut fpdu, 0);
        stream.extend_from_slice(&fpdu);
        input = rest;
    }
    stream
}

fn transmit(qp: &mut QueuePair<ModelHost>, now: Instant, memory: &ModelMemory) {
    let mut burst = StreamBurst::with_bound(4096);
    qp.poll_transmit(now, memory, &mut burst);
    qp.burst_left(now);
}
