//! Transcripts of a datagram queue pair: post, expect packets, feed a packet, expect completions.

use std::net::IpAddr;

use wire::{Bth, Deth, HeaderRepr, MemoryKey, Mtu, Opcode, Packet, Psn, QKey, Qpn};

use super::GRH_LENGTH;
use crate::model::{CompletionQueue, ModelCredit, ModelHost, ModelMemory, ReceiveQueue};
use crate::qp::{
    Addressee, AttributeMask, Attributes, Capabilities, ModifyError, Operation, Payload, PostError,
    RemoteMemory, SendFlags, SendRequest, State, Transport,
};
use crate::{
    Access, AsyncEvent, AttachError, Burst, Config, DropReason, Group, Instant, Membership, Origin,
    Outcome, Path, PathMeta, PdId, QpIndex, QpOptions, ReceiveWqe, Sge, Shard, Status,
};

const BASE: u64 = 0x10_0000;
const REGION: u32 = 16 << 10;
/// Where receives are, in the region.
const INBOX: u64 = BASE + 8192;
const QKEY: QKey = QKey(0x1111_1111);
const PEER: Qpn = Qpn::from_parts(9, 7);
const NOW: Instant = Instant::from_nanos(1_000_000);

/// A datagram queue pair with a port MTU of 1024, its memory and its queues.
struct Bench {
    shard: Shard<ModelHost>,
    memory: ModelMemory,
    key: MemoryKey,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    receives: ReceiveQueue,
    qp: QpIndex,
    origins: Vec<Origin>,
}

fn ud_in_reset() -> Bench {
    let memory = ModelMemory::default();
    let bytes = (0..REGION).map(|at| at as u8).collect();
    let key = memory.register(PdId(1), BASE, bytes, Access::LOCAL_WRITE);
    let send_cq = CompletionQueue::new(16);
    let receive_cq = CompletionQueue::new(16);
    let receives = ReceiveQueue::new(16);
    let mut shard = Shard::new(Config::for_slot(3), ModelCredit::default());
    let qpn = shard
        .create_qp(options(&send_cq, &receive_cq, &receives))
        .unwrap();
    Bench {
        shard,
        memory,
        key,
        send_cq,
        receive_cq,
        receives,
        qp: QpIndex(qpn.index()),
        origins: Vec::new(),
    }
}

fn options(
    send_cq: &CompletionQueue,
    receive_cq: &CompletionQueue,
    receives: &ReceiveQueue,
) -> QpOptions<ModelHost> {
    QpOptions {
        transport: Transport::Ud,
        pd: PdId(1),
        capabilities: Capabilities {
            send_wr_max: 8,
            receive_wr_max: 8,
            send_sge_max: 2,
            receive_sge_max: 2,
            inline_max: 16,
        },
        port_mtu: Mtu::B1024,
        signal_all: false,
        send_cq: send_cq.clone(),
        receive_cq: receive_cq.clone(),
        receives: receives.clone(),
    }
}

fn ud_in_rts() -> Bench {
    let mut bench = ud_in_reset();
    use AttributeMask as M;
    bench
        .modify(State::Init, M::PKEY_INDEX | M::PORT | M::QKEY)
        .unwrap();
    bench.modify(State::ReadyToReceive, M::empty()).unwrap();
    bench.modify(State::ReadyToSend, M::SQ_PSN).unwrap();
    bench
}

fn path(last: u8) -> Path {
    Path {
        local: IpAddr::from([10, 0, 0, 1]),
        remote: IpAddr::from([10, 0, 0, last]),
        ..Attributes::default().path
    }
}

fn peer() -> Addressee {
    Addressee {
        path: path(2),
        qpn: PEER,
        qkey: QKEY,
    }
}

fn meta(source: &str, destination: &str) -> PathMeta {
    PathMeta {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
    }
}

impl Bench {
    fn modify(&mut self, state: State, mask: AttributeMask) -> Result<State, ModifyError> {
        let attributes = Attributes {
            state,
            port: 1,
            qkey: QKEY,
            sq_psn: Psn::truncated(0xff_ffff),
            sqd_async_notify: true,
            ..Attributes::default()
        };
        let mask = mask | AttributeMask::STATE;
        let outcome = self
            .shard
            .modify_qp(NOW, self.qp, &attributes, mask, &self.memory);
        self.shard.assert_invariants();
        outcome
    }

    fn state(&self) -> State {
        self.shard.query_qp(self.qp).unwrap().state
    }

    fn sge(&self, length: u32) -> Sge {
        Sge {
            address: BASE,
            length,
            key: self.key,
        }
    }

    fn post_as(
        &mut self,
        id: u64,
        operation: Operation,
        payload: Payload<'_>,
        to: Option<&Addressee>,
    ) -> Result<(), PostError> {
        let request = SendRequest {
            id,
            operation,
            flags: SendFlags::SIGNALED,
            payload,
            to,
        };
        self.shard.post_send(self.qp, &request).map(drop)
    }

    /// Posts a SEND of so many bytes to the peer.
    fn post(&mut self, id: u64, length: u32) {
        let sges = [self.sge(length)];
        self.post_as(id, Operation::Send, Payload::Sges(&sges), Some(&peer()))
            .unwrap();
    }

    /// Posts a SEND of memory that is not the program's.
    fn post_bad(&mut self, id: u64) {
        let sges = [Sge {
            key: MemoryKey(self.key.0 ^ 0x55),
            ..self.sge(8)
        }];
        self.post_as(id, Operation::Send, Payload::Sges(&sges), Some(&peer()))
            .unwrap();
    }

    fn post_receive(&mut self, id: u64, length: u32) {
        let sges = [Sge {
            address: INBOX,
            length,
            key: self.key,
        }];
        let sges = sges.into_iter().collect();
        self.receives.post(ReceiveWqe { id, sges }).unwrap();
    }

    fn inbox(&self, length: usize) -> Vec<u8> {
        self.memory.read(self.key, (INBOX - BASE) as usize, length)
    }

    /// One burst: a line for each packet. It has not left before the next call.
    fn burst(&mut self) -> Vec<String> {
        let mut burst = Burst::with_bound(4);
        self.shard.poll_transmit(NOW, &self.memory, &mut burst);
        self.shard.assert_invariants();
        self.origins = burst.packets().iter().map(|packet| packet.origin).collect();
        let lines = burst.packets().iter().map(|packet| {
            let mut bytes = burst.header(packet).to_vec();
            for span in burst.spans(packet) {
                bytes.extend(self.memory.gather(span).unwrap());
            }
            bytes.resize(packet.sealed_length(), 0);
            let to = self.shard.path(packet.path).unwrap().remote;
            format!("{to} {}", Packet::parse(&bytes).unwrap())
        });
        lines.collect()
    }

    fn sends(&self) -> Vec<(u64, Status)> {
        let completions = self.send_cq.drain();
        completions.iter().map(|c| (c.id, c.status)).collect()
    }

    fn receptions(&self) -> Vec<(u64, Status, u32)> {
        let completions = self.receive_cq.drain();
        let short = completions.iter().map(|c| (c.id, c.status, c.length));
        short.collect()
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| self.shard.poll_event()).collect()
    }

    fn receive(&mut self, qkey: QKey, meta: &PathMeta, payload: &[u8]) -> Outcome {
        self.receive_at(Qpn::from_parts(3, self.qp.0), qkey, meta, payload)
    }

    fn receive_at(&mut self, to: Qpn, qkey: QKey, meta: &PathMeta, payload: &[u8]) -> Outcome {
        let opcode = Opcode::UD_SEND_ONLY_WITH_IMMEDIATE;
        let mut header = HeaderRepr::new(Bth::new(opcode, to, Psn::truncated(0x10)));
        header.deth = Some(Deth { qkey, source: PEER });
        header.immediate = Some([1, 2, 3, 4]);
        header.bth.pad = Bth::pad_of(payload.len());
        let mut bytes = Vec::new();
        header.emit_packet(payload, &mut bytes);
        let packet = Packet::parse(&bytes).unwrap();
        let outcome = self.shard.handle_datagram(NOW, &packet, meta, &self.memory);
        self.shard.assert_invariants();
        outcome
    }
}

#[test]
fn each_datagram_goes_its_own_way_and_is_complete_once_the_burst_has_left() {
    let mut bench = ud_in_rts();
    bench.post(1, 5);
    let other = Addressee {
        path: path(3),
        qpn: Qpn::from_parts(4, 1),
        qkey: QKey(7),
    };
    let immediate = Operation::SendImmediate([0, 0, 0, 9]);
    bench
        .post_as(2, immediate, Payload::Inline(b"abcd"), Some(&other))
        .unwrap();
    let expected = [
        concat!(
            "10.0.0.2 UD SEND_ONLY qp=0x090007 psn=0xffffff pad=3 ",
            "qkey=0x11111111 src_qp=0x030000 len=5"
        ),
        concat!(
            "10.0.0.3 UD SEND_ONLY_WITH_IMMEDIATE qp=0x040001 psn=0x000000 ",
            "qkey=0x00000007 src_qp=0x030000 imm=0x00000009 len=4"
        ),
    ];
    assert_eq!(bench.burst(), expected);
    assert_eq!(
        bench.sends(),
        [],
        "nobody knows yet whether it can be sealed"
    );
    assert_eq!(bench.burst(), [""; 0]);
    assert_eq!(bench.sends(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(
        bench.shard.query_qp(bench.qp).unwrap().attributes.sq_psn,
        Psn::truncated(1)
    );
}

#[test]
fn a_key_with_the_high_bit_stands_for_the_own_one() {
    let mut bench = ud_in_rts();
    let privileged = Addressee {
        qkey: QKey(0x8000_0000),
        ..peer()
    };
    bench
        .post_as(1, Operation::Send, Payload::Sges(&[]), Some(&privileged))
        .unwrap();
    let line = bench.burst().concat();
    assert!(line.contains("qkey=0x11111111"), "{line}");
}

#[test]
fn what_cannot_be_posted() {
    let mut bench = ud_in_rts();
    let long = [bench.sge(1025)];
    let fits = [bench.sge(1024)];
    let to = peer();
    let remote = RemoteMemory::default();
    use Operation::{Send, SendInvalidate, Write};
    for (operation, sges, to, expected) in [
        (Send, &long, Some(&to), Err(PostError::MessageTooLong)),
        (Send, &fits, None, Err(PostError::NoAddressee)),
        (
            Write(remote),
            &fits,
            Some(&to),
            Err(PostError::NotOfTransport),
        ),
        (
            SendInvalidate(MemoryKey(1)),
            &fits,
            Some(&to),
            Err(PostError::NotOfTransport),
        ),
        (Send, &fits, Some(&to), Ok(())),
    ] {
        let posted = bench.post_as(1, operation, Payload::Sges(sges), to);
        assert_eq!(posted, expected, "{operation:?}");
    }
    let mut reset = ud_in_reset();
    let posted = reset.post_as(1, Send, Payload::Sges(&[]), Some(&to));
    assert_eq!(posted, Err(PostError::WrongState));
}

#[test]
fn a_receive_begins_with_the_ip_header() {
    let mut bench = ud_in_rts();
    bench.post_receive(1, 100);
    let from_v4 = meta("10.0.0.1", "10.0.0.2");
    assert_eq!(bench.receive(QKEY, &from_v4, b"ABCD"), Outcome::Delivered);
    let mut expected = vec![0; 20];
    // roce.md §8, but for the identification, which sockets do not tell, and 4 bytes of immediate
    expected.extend([0x45, 0, 0, 0x3c, 0, 0, 0x40, 0, 0x40, 0x11, 0x26, 0xaf]);
    expected.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    expected.extend(b"ABCD");
    assert_eq!(bench.inbox(44), expected);
    let completion = bench.receive_cq.poll().unwrap();
    assert_eq!((completion.id, completion.length), (1, 44));
    assert_eq!(completion.source_qpn, PEER);
    assert_eq!(completion.immediate, Some([1, 2, 3, 4]));
    assert!(completion.is_receive);

    bench.post_receive(2, GRH_LENGTH);
    let from_v6 = meta("fd00::1", "fd00::2");
    assert_eq!(bench.receive(QKEY, &from_v6, b""), Outcome::Delivered);
    let found = bench.inbox(40);
    assert_eq!(found[..8], [0x60, 0, 0, 0, 0, 36, 17, 64]);
    assert_eq!(
        (found[8], found[23], found[24], found[39]),
        (0xfd, 1, 0xfd, 2)
    );
    assert_eq!(bench.receptions(), [(2, Status::Success, 40)]);
}

#[test]
fn a_datagram_that_is_not_wanted_is_dropped() {
    let mut bench = ud_in_rts();
    let from = meta("10.0.0.1", "10.0.0.2");
    let dropped = Outcome::Dropped;
    assert_eq!(
        bench.receive(QKEY, &from, b""),
        dropped(DropReason::NoReceive)
    );
    bench.post_receive(1, 100);
    assert_eq!(
        bench.receive(QKey(1), &from, b""),
        dropped(DropReason::BadQKey)
    );
    assert_eq!(bench.receives.len(), 1, "it does not take the receive");
    assert_eq!(bench.receptions(), []);
}

#[test]
fn one_that_is_too_long_ends_its_receive_alone() {
    let mut bench = ud_in_rts();
    let from = meta("10.0.0.1", "10.0.0.2");
    bench.post_receive(1, GRH_LENGTH + 3);
    bench.post_receive(2, GRH_LENGTH + 4);
    for _ in 0..2 {
        assert_eq!(bench.receive(QKEY, &from, b"ABCD"), Outcome::Delivered);
    }
    assert_eq!(
        bench.receptions(),
        [(1, Status::LocalLength, 0), (2, Status::Success, 44)]
    );
    assert_eq!(
        (bench.state(), bench.events()),
        (State::ReadyToSend, vec![])
    );
}

#[test]
fn a_receive_without_memory_ends_the_queue_pair() {
    let mut bench = ud_in_rts();
    let sges = [Sge {
        key: MemoryKey(bench.key.0 ^ 0x55),
        ..bench.sge(100)
    }];
    let sges = sges.into_iter().collect();
    bench.receives.post(ReceiveWqe { id: 1, sges }).unwrap();
    bench.post_receive(2, 100);
    bench.receive(QKEY, &meta("10.0.0.1", "10.0.0.2"), b"");
    assert_eq!(
        bench.receptions(),
        [(1, Status::LocalProtection, 0), (2, Status::Flushed, 0)]
    );
    assert_eq!(bench.state(), State::Error);
}

#[test]
fn a_send_that_cannot_be_sent_ends_the_send_queue_until_it_is_started_again() {
    let mut bench = ud_in_rts();
    bench.post(1, 8);
    bench.post_bad(2);
    bench.post(3, 8);
    assert_eq!(bench.burst().len(), 1);
    assert_eq!(bench.burst().len(), 0);
    let expected = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    assert_eq!(bench.sends(), expected);
    assert_eq!(bench.state(), State::SendQueueError);
    bench.post(4, 8);
    assert_eq!(bench.sends(), [(4, Status::Flushed)]);
    bench.post_receive(9, 100);
    bench.receive(QKEY, &meta("10.0.0.1", "10.0.0.2"), b"");
    assert_eq!(bench.receptions().len(), 1, "it still receives");
    bench
        .modify(State::ReadyToSend, AttributeMask::empty())
        .unwrap();
    bench.post(5, 8);
    assert_eq!(bench.burst().len(), 1);
    bench.burst();
    assert_eq!(bench.sends(), [(5, Status::Success)]);
}

#[test]
fn memory_that_goes_before_the_packet_is_sealed() {
    let mut bench = ud_in_rts();
    for id in 1..=3 {
        bench.post(id, 8);
    }
    assert_eq!(bench.burst().len(), 3);
    let origin = bench.origins[1];
    bench.shard.transmit_failed(NOW, origin, &bench.memory);
    let expected = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    assert_eq!(bench.sends(), expected);
    let third = bench.origins[2];
    bench.shard.transmit_failed(NOW, third, &bench.memory);
    bench.burst();
    assert_eq!(
        (bench.sends(), bench.state()),
        (vec![], State::SendQueueError)
    );
}

#[test]
fn the_error_state_flushes_what_has_not_left() {
    let mut bench = ud_in_rts();
    for id in 1..=5 {
        bench.post(id, 8);
    }
    bench.post_receive(9, 100);
    assert_eq!(bench.burst().len(), 4);
    bench.modify(State::Error, AttributeMask::empty()).unwrap();
    let mut expected: Vec<_> = (1..=4).map(|id| (id, Status::Success)).collect();
    expected.push((5, Status::Flushed));
    assert_eq!(bench.sends(), expected);
    assert_eq!(bench.receptions(), [(9, Status::Flushed, 0)]);
    assert_eq!(bench.burst().len(), 0);
    bench.modify(State::Reset, AttributeMask::empty()).unwrap();
    assert_eq!(bench.sends(), []);
}

#[test]
fn a_drained_send_queue_waits() {
    let mut bench = ud_in_rts();
    let sqd = AttributeMask::SQD_ASYNC_NOTIFY;
    bench.modify(State::SendQueueDrained, sqd).unwrap();
    assert_eq!(bench.events(), [AsyncEvent::SendQueueDrained(bench.qp)]);
    bench.post(1, 8);
    assert_eq!(bench.burst().len(), 0);
    bench
        .modify(State::ReadyToSend, AttributeMask::empty())
        .unwrap();
    assert_eq!(bench.burst().len(), 1);
}

#[test]
fn a_lost_completion_is_fatal() {
    let mut bench = ud_in_rts();
    for round in 0..3 {
        for id in 0..6 {
            let sges = [bench.sge(8)];
            let to = peer();
            let posted = bench.post_as(id, Operation::Send, Payload::Sges(&sges), Some(&to));
            assert_eq!(posted, Ok(()), "{round}");
        }
        while !bench.burst().is_empty() {}
    }
    assert_eq!(bench.state(), State::Error);
    assert!(bench.events().contains(&AsyncEvent::Fatal(bench.qp)));
}

#[test]
fn a_packet_to_a_group_is_for_each_queue_pair_that_is_attached() {
    let mut bench = ud_in_rts();
    let first = bench.qp;
    let queues = options(&bench.send_cq, &bench.receive_cq, &bench.receives);
    bench.qp = QpIndex(bench.shard.create_qp(queues).unwrap().index());
    for (state, mask) in [
        (
            State::Init,
            AttributeMask::PKEY_INDEX | AttributeMask::PORT | AttributeMask::QKEY,
        ),
        (State::ReadyToReceive, AttributeMask::empty()),
    ] {
        bench.modify(state, mask).unwrap();
    }
    let group = Group {
        address: "239.77.1.1".parse().unwrap(),
        interface: 2,
    };
    let to_group = PathMeta {
        interface: 2,
        ..meta("10.0.0.2", "239.77.1.1")
    };
    let to_all = Qpn::MULTICAST;
    let unknown = Outcome::Dropped(DropReason::UnknownQp);
    assert_eq!(bench.receive_at(to_all, QKEY, &to_group, b"none"), unknown);
    for qp in [first, bench.qp] {
        bench.shard.attach(qp, group).unwrap();
        for _ in 0..2 {
            bench.post_receive(qp.0.into(), 64);
        }
    }
    let delivered = Outcome::Delivered;
    assert_eq!(
        bench.receive_at(to_all, QKEY, &to_group, b"both"),
        delivered
    );
    let completions = bench.receive_cq.drain();
    let members: Vec<u16> = completions.iter().map(|c| c.qpn.index()).collect();
    assert_eq!(members, [first.0, bench.qp.0]);
    assert_eq!(bench.inbox(44)[40..], *b"both");

    let other_interface = PathMeta {
        interface: 3,
        ..to_group
    };
    let misses = [
        (to_all, other_interface, DropReason::UnknownQp),
        // a group and its number go together
        (
            to_all,
            meta("10.0.0.2", "10.0.0.1"),
            DropReason::WrongAddress,
        ),
        (
            Qpn::from_parts(3, first.0),
            to_group,
            DropReason::WrongAddress,
        ),
        (Qpn::from_parts(4, 0), to_group, DropReason::WrongAddress),
    ];
    for (to, meta, reason) in misses {
        let outcome = bench.receive_at(to, QKEY, &meta, b"nobody");
        assert_eq!(outcome, Outcome::Dropped(reason), "{to}");
    }
    let bad_key = Outcome::Dropped(DropReason::BadQKey);
    assert_eq!(
        bench.receive_at(to_all, QKey(9), &to_group, b"key"),
        bad_key
    );

    assert_eq!(bench.shard.detach(first, group), Membership::OneOfSeveral);
    assert_eq!(bench.receive_at(to_all, QKEY, &to_group, b"one"), delivered);
    assert_eq!(bench.receive_cq.drain()[0].qpn.index(), bench.qp.0);
    bench.shard.destroy_qp(bench.qp);
    assert_eq!(bench.receive_at(to_all, QKEY, &to_group, b"none"), unknown);
    assert_eq!(
        bench.shard.attach(bench.qp, group),
        Err(AttachError::NoQueuePair)
    );
}
