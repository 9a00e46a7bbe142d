//! What queue pairs of a shard share: turns, windows, paths, indices; and who a packet is for.

use super::*;
use crate::rc::window::WindowConfig;
use crate::{DropReason, PathIndex};

/// UDP payload of a full packet of 256 bytes.
const FULL: u64 = 12 + 256 + 4;

/// Truesize of a datagram of so many full packets.
fn run_of(packets: u64) -> u64 {
    packets * FULL + 832
}

/// Room for `packets` full packets in one datagram.
fn window_of(packets: u64) -> impl FnOnce(&mut Setup) {
    move |setup| {
        setup.config.window = WindowConfig {
            bytes: run_of(packets),
            first: run_of(packets),
            ..WindowConfig::default()
        };
    }
}

/// A second queue pair like the first.
fn second_qp(bench: &mut Bench) -> QpIndex {
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let second = bench.create(&view.capabilities);
    let attributes = Attributes {
        sq_psn: FIRST_PSN,
        ..view.attributes
    };
    bench.connect(second, &attributes);
    second
}

/// Runs `f` as if `qp` were the queue pair of the bench.
fn on<R>(bench: &mut Bench, qp: QpIndex, f: impl FnOnce(&mut Bench) -> R) -> R {
    let first = core::mem::replace(&mut bench.qp, qp);
    let result = f(bench);
    bench.qp = first;
    result
}

fn owners(bench: &Bench) -> Vec<u16> {
    bench.origins.iter().map(|origin| origin.qp.0).collect()
}

#[test]
fn a_long_message_asks_for_acknowledgements_on_the_way_and_stops_at_the_window() {
    let mut bench = rc_in_rts_with(window_of(7));
    bench.post(1, Operation::Send, 12 * 256);
    bench.expect(&[
        "SEND_FIRST psn=0xfffffe len=256",
        "SEND_MIDDLE psn=0xffffff A len=256", // half a window without asking
        "SEND_MIDDLE psn=0x000000 A len=256", // the next one might not fit
        "SEND_MIDDLE psn=0x000001 A len=256",
        "SEND_MIDDLE psn=0x000002 A len=256",
        "SEND_MIDDLE psn=0x000003 A len=256",
        "SEND_MIDDLE psn=0x000004 A len=256", // and now it is full
    ]);
    // a datagram is in the receiver's buffer until all of it was taken
    bench.ack(packets(3));
    bench.expect(&[]);
    bench.ack(packets(6));
    assert_eq!(bench.sent().len(), 5);
    assert_eq!(bench.shard.in_flight_bytes(), run_of(5));
}

#[test]
fn queue_pairs_to_one_destination_share_its_window_and_are_woken_in_turn() {
    let mut bench = rc_in_rts_with(window_of(4));
    let second = second_qp(&mut bench);
    let third = second_qp(&mut bench);
    for qp in [bench.qp, second, third] {
        on(&mut bench, qp, |bench| {
            bench.post(1, Operation::Send, 6 * 256)
        });
    }
    // the first one fills the window; who waits has it next, longest first
    bench.sent();
    assert_eq!(owners(&bench), [0; 4]);
    assert_eq!(bench.shard.in_flight_bytes(), run_of(4));
    let ack = |bench: &mut Bench, qp: QpIndex, last: u32| {
        on(bench, qp, |bench| bench.ack(packets(last)));
        bench.sent();
        owners(bench)
    };
    assert_eq!(ack(&mut bench, QpIndex(0), 3), [0, 0, 1, 1]);
    assert_eq!(bench.shard.in_flight_bytes(), run_of(4));
    // the turn of the second goes on where it was
    assert_eq!(ack(&mut bench, QpIndex(0), 5), [1, 1]);
    assert_eq!(ack(&mut bench, second, 3), [1, 1, 2, 2]);
    assert_eq!(ack(&mut bench, second, 5), [2, 2]);
    assert_eq!(ack(&mut bench, third, 3), [2, 2]);
    assert_eq!(ack(&mut bench, third, 5), [0; 0]);
    assert_eq!(bench.completions().len(), 3);
    assert_eq!(bench.shard.in_flight_bytes(), 0);
}

#[test]
fn a_queue_pair_that_fails_or_is_destroyed_gives_its_part_of_the_window_back() {
    for destroy in [false, true] {
        let mut bench = rc_in_rts_with(window_of(4));
        let second = second_qp(&mut bench);
        bench.post(1, Operation::Send, 6 * 256);
        on(&mut bench, second, |bench| {
            bench.post(2, Operation::Send, 6 * 256)
        });
        assert_eq!(bench.sent().len(), 4);
        if destroy {
            assert!(bench.shard.destroy_qp(bench.qp));
            assert!(!bench.shard.destroy_qp(bench.qp));
        } else {
            bench.modify(State::Error);
        }
        assert_eq!(bench.sent().len(), 4);
        assert_eq!(owners(&bench), [1; 4]);
        assert_eq!(bench.shard.in_flight_bytes(), run_of(4));
    }
}

#[test]
fn who_waited_waits_again_on_a_new_connection_to_somewhere_else() {
    let mut bench = rc_in_rts_with(window_of(4));
    let here = bench.shard.query_qp(bench.qp).unwrap().attributes;
    let mut there = here;
    there.path.traffic_class = 0x20;
    let waiter = second_qp(&mut bench);
    let other = second_qp(&mut bench);
    on(&mut bench, other, |bench| bench.modify(State::Reset));
    bench.connect(other, &there);
    for qp in [bench.qp, waiter, other] {
        on(&mut bench, qp, |bench| {
            bench.post(1, Operation::Send, 8 * 256)
        });
    }
    bench.sent();
    assert_eq!(owners(&bench), [0, 0, 0, 0, 2, 2, 2, 2]);
    on(&mut bench, waiter, |bench| bench.modify(State::Reset));
    bench.connect(waiter, &there);
    on(&mut bench, waiter, |bench| {
        bench.post(1, Operation::Send, 2 * 256)
    });
    bench.expect(&[]);
    on(&mut bench, other, |bench| bench.ack(packets(3)));
    bench.sent();
    assert_eq!(owners(&bench), [2; 4], "it waited longer");
    on(&mut bench, other, |bench| bench.ack(packets(7)));
    bench.sent();
    assert_eq!(owners(&bench), [1, 1]);
    bench.ack(packets(3));
    bench.sent();
    assert_eq!(owners(&bench), [0; 4], "nobody waits here any more");
}

#[test]
fn long_reads_are_asked_for_as_the_window_opens_and_complete_once() {
    // 64 KiB of answers in 256 packets take 280 KiB of our buffer: two such fill it
    let mut bench = rc_in_rts_with(|setup| {
        setup.config.window.bytes = 574_000;
        setup.config.window.first = 574_000;
        setup.attributes.max_rd_atomic = 16;
    });
    bench.post(1, Operation::Read(REMOTE), 150_000);
    bench.expect(&[
        "READ_REQUEST psn=0xfffffe A va=0x8000 rkey=0x00000077 dma=65536",
        "READ_REQUEST psn=0x0000fe A va=0x18000 rkey=0x00000077 dma=65536",
    ]);
    let mut asked = Vec::new();
    for index in 0..586 {
        let (start, end) = (index % 256 == 0, index % 256 == 255 || index == 585);
        let opcode = match (start, end) {
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            _ => Opcode::RC_READ_RESPONSE_LAST,
        };
        let length = if index == 585 { 240 } else { 256 };
        assert_eq!(bench.completions(), []);
        bench.read_response(opcode, packets(index), &[index as u8; 256][..length]);
        asked.extend(bench.sent());
    }
    assert_eq!(
        asked,
        ["READ_REQUEST psn=0x0001fe A va=0x28000 rkey=0x00000077 dma=18928",]
    );
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    let bytes = bench.memory.read(bench.key, 0, 150_000);
    let wrong = (0..150_000).find(|&offset| bytes[offset] != (offset / 256) as u8);
    assert_eq!(wrong, None);
    assert_eq!(bench.shard.in_flight_bytes(), 0);
}

#[test]
fn a_piece_of_a_long_read_is_retried_within_its_own_bounds() {
    let mut bench = rc_in_rts_with(|setup| setup.config.window.read_chunk = 512);
    bench.post(1, Operation::Read(REMOTE), 5 * 256);
    assert_eq!(bench.outline(), ["READ_REQUEST 0", "READ_REQUEST 2"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(0), &[0; 256]);
    // LAST of the first piece is lost
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(2), &[0; 256]);
    bench.expect(&[
        "READ_REQUEST psn=0xffffff A va=0x8100 rkey=0x00000077 dma=256",
        "READ_REQUEST psn=0x000000 A va=0x8200 rkey=0x00000077 dma=512",
    ]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(1), &[1; 256]);
    bench.expect(&["READ_REQUEST psn=0x000002 A va=0x8400 rkey=0x00000077 dma=256"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(2), &[2; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_LAST, packets(3), &[3; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(4), &[4; 256]);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn queue_pairs_take_turns_of_32_packets_and_ask_at_the_end_of_each() {
    let mut bench = rc_in_rts_with(window_of(1000));
    let second = second_qp(&mut bench);
    for qp in [bench.qp, second] {
        on(&mut bench, qp, |bench| {
            bench.post(1, Operation::Send, 40 * 256)
        });
    }
    let mut burst = Burst::with_bound(1000);
    bench
        .shard
        .poll_transmit(bench.now, &bench.memory, &mut burst);
    let owners: Vec<u16> = burst
        .packets()
        .iter()
        .map(|packet| packet.origin.qp.0)
        .collect();
    let turns: Vec<(u16, usize)> = owners
        .chunk_by(|a, b| a == b)
        .map(|turn| (turn[0], turn.len()))
        .collect();
    assert_eq!(turns, [(0, 32), (1, 32), (0, 8), (1, 8)]);
    let asks: Vec<usize> = (0..80)
        .filter(|&index| burst.header(&burst.packets()[index])[8] & 0x80 != 0)
        .collect();
    assert_eq!(asks, [31, 63, 71, 79]);
}

#[test]
fn a_burst_is_never_longer_than_its_bound_and_the_rest_comes_next() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 20 * 256);
    let mut lengths = Vec::new();
    let mut burst = Burst::with_bound(8);
    loop {
        burst.clear();
        bench
            .shard
            .poll_transmit(bench.now, &bench.memory, &mut burst);
        if burst.is_empty() {
            break;
        }
        lengths.push(burst.packets().len());
    }
    assert_eq!(lengths, [8, 8, 4]);
}

#[test]
fn packets_carry_the_path_of_their_connection_and_equal_paths_are_one() {
    let mut bench = rc_in_rts();
    let second = second_qp(&mut bench);
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let third = bench.create(&view.capabilities);
    let mut attributes = view.attributes;
    attributes.path.traffic_class = 0x48;
    bench.connect(third, &attributes);
    for qp in [bench.qp, second, third] {
        on(&mut bench, qp, |bench| bench.post(1, Operation::Send, 0));
    }
    let mut burst = Burst::with_bound(8);
    bench
        .shard
        .poll_transmit(bench.now, &bench.memory, &mut burst);
    let paths: Vec<PathIndex> = burst.packets().iter().map(|packet| packet.path).collect();
    assert_eq!(paths[0], paths[1]);
    assert_eq!(bench.shard.path(paths[0]), Some(&view.attributes.path));
    assert_eq!(bench.shard.path(paths[2]), Some(&attributes.path));
    assert!(burst.packets().iter().all(|packet| packet.dest == PEER));
    bench.shard.destroy_qp(third);
    assert_eq!(bench.shard.path(paths[2]), None);
}

#[test]
fn an_index_is_used_again_after_all_others_oldest_first() {
    let mut bench = rc_in_rts();
    let capabilities = Capabilities::default();
    let mut destroyed = Vec::new();
    loop {
        let index = bench.create(&capabilities);
        if destroyed.contains(&index.0) {
            assert_eq!(index.0, destroyed[0]);
            break;
        }
        bench.shard.destroy_qp(index);
        if destroyed.len() < 3 {
            destroyed.push(index.0);
        }
    }
    assert_eq!(destroyed, [1, 2, 3]);
    assert_eq!(bench.state(), State::ReadyToSend, "index 0 was never free");
}

#[test]
fn late_packets_and_timers_of_a_queue_pair_that_is_gone_find_nobody() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.sent();
    let sent = bench.shard.counters().sent_packets;
    bench.shard.destroy_qp(bench.qp);
    assert_eq!(
        bench.ack(packets(0)),
        Outcome::Dropped(DropReason::UnknownQp)
    );
    bench.pass(ms(10_000));
    bench.expect(&[]);
    assert_eq!(bench.shard.next_deadline(), None);
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.shard.counters().sent_packets, sent, "still counted");
    let request = SendRequest {
        id: 1,
        operation: Operation::Send,
        flags: SendFlags::empty(),
        payload: Payload::Inline(b""),
        to: None,
    };
    let error = bench.shard.post_send(bench.qp, &request).unwrap_err();
    assert_eq!(error, PostError::NoQueuePair);
}

#[test]
fn who_a_packet_is_not_for() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.sent();
    let ack = |bench: &Bench| {
        let mut header = bench.response(Opcode::RC_ACKNOWLEDGE, packets(0));
        header.aeth = Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: wire::Msn::truncated(1),
        });
        header
    };

    let mut header = ack(&bench);
    header.bth.destination = Qpn::from_parts(SLOT + 1, bench.qp.0);
    assert_eq!(bench.feed(header, &[]), Outcome::Foreign);
    header.bth.destination = Qpn::from_parts(SLOT, 77);
    let unknown = Outcome::Dropped(DropReason::UnknownQp);
    assert_eq!(bench.feed(header, &[]), unknown);

    let header = bench.response(Opcode::UC_SEND_ONLY, packets(0));
    let wrong = Outcome::Dropped(DropReason::WrongTransport);
    assert_eq!(bench.feed(header, &[]), wrong);
    let header = bench.response(Opcode::CNP, packets(0));
    assert_eq!(bench.feed(header, &[]), wrong);

    let stranger = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66));
    let header = ack(&bench);
    assert_eq!(
        bench.feed_from(stranger, header, &[]),
        Outcome::Dropped(DropReason::WrongAddress)
    );
    let mut header = ack(&bench);
    header.bth.pkey = wire::PKey(0x1234);
    assert_eq!(
        bench.feed(header, &[]),
        Outcome::Dropped(DropReason::BadPKey)
    );
    header.bth.pkey = wire::PKey(0x7fff); // a limited member may talk to us
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.feed(header, &[]), Outcome::Delivered);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn two_connections_between_the_same_hosts_are_told_apart_by_their_numbers() {
    // roce.md §14, trap 31
    let mut bench = rc_in_rts();
    let second = second_qp(&mut bench);
    for (id, qp) in [(1, bench.qp), (2, second)] {
        on(&mut bench, qp, |bench| bench.post(id, Operation::Send, 0));
    }
    bench.sent();
    on(&mut bench, second, |bench| bench.ack(packets(0)));
    assert_eq!(bench.completions(), [(2, Status::Success)]);
}
