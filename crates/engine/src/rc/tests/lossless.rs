//! Nothing is lost: operations, segmentation, acknowledgements, order.

use super::*;
use crate::CompletionOpcode;

#[test]
fn a_send_of_five_bytes_is_one_packet_and_completes_when_it_is_acknowledged() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 5);
    bench.expect(&["SEND_ONLY psn=0xfffffe A pad=3 len=5"]);
    assert_eq!(bench.payload, [0, 1, 2, 3, 4]);
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.ack(packets(0)), Outcome::Delivered);
    let completions = bench.send_cq.drain();
    assert_eq!(
        completions,
        [WorkCompletion::success(
            1,
            CompletionOpcode::Send,
            5,
            Qpn::from_parts(SLOT, 0)
        )]
    );
    bench.expect(&[]);
}

#[test]
fn every_send_and_write_on_the_wire() {
    // roce.md §14, trap 30: immediate data stays in wire order
    let mut bench = rc_in_rts();
    let solicited = SendFlags::SOLICITED;
    bench.post_flags(1, Operation::SendImmediate([0, 0, 1, 2]), 257, solicited);
    bench.post_flags(2, Operation::SendInvalidate(MemoryKey(0x99)), 0, solicited);
    bench.post_flags(3, Operation::Write(REMOTE), 600, solicited);
    bench.post_flags(4, Operation::WriteImmediate(REMOTE, [9; 4]), 256, solicited);
    bench.expect(&[
        "SEND_FIRST psn=0xfffffe len=256",
        "SEND_LAST_WITH_IMMEDIATE psn=0xffffff SE A pad=3 imm=0x00000102 len=1",
        "SEND_ONLY_WITH_INVALIDATE psn=0x000000 SE A inv=0x00000099 len=0",
        "WRITE_FIRST psn=0x000001 va=0x8000 rkey=0x00000077 dma=600 len=256",
        "WRITE_MIDDLE psn=0x000002 len=256",
        "WRITE_LAST psn=0x000003 A len=88",
        "WRITE_ONLY_WITH_IMMEDIATE psn=0x000004 SE A va=0x8000 rkey=0x00000077 dma=256 \
         imm=0x09090909 len=256",
    ]);
    let expected: Vec<u8> = (0..257).chain(0..600).chain(0..256).map(pattern).collect();
    assert_eq!(bench.payload, expected);
}

#[test]
fn payload_is_gathered_over_elements_and_packets() {
    let mut bench = rc_in_rts();
    let sges = [(0, 100), (5000, 0), (1000, 300), (77, 1)].map(|(offset, length)| Sge {
        address: BASE + offset,
        length,
        key: bench.key,
    });
    bench
        .post_payload(
            1,
            Operation::Send,
            SendFlags::SIGNALED,
            Payload::Sges(&sges),
        )
        .unwrap();
    bench.expect(&[
        "SEND_FIRST psn=0xfffffe len=256",
        "SEND_LAST psn=0xffffff A pad=3 len=145",
    ]);
    let expected: Vec<u8> = (0..100)
        .chain(1000..1300)
        .chain(77..78)
        .map(pattern)
        .collect();
    assert_eq!(bench.payload, expected);
}

#[test]
fn inline_payload_is_what_it_was_when_posted() {
    let mut bench = rc_in_rts();
    let mut bytes = *b"abc";
    bench
        .post_payload(
            1,
            Operation::Send,
            SendFlags::INLINE,
            Payload::Inline(&bytes),
        )
        .unwrap();
    bytes.fill(0);
    bench.expect(&["SEND_ONLY psn=0xfffffe A pad=1 len=3"]);
    assert_eq!(bench.payload, b"abc");
    bench.pass(ms(6720));
    bench.expect(&["SEND_ONLY psn=0xfffffe A pad=1 len=3"]);
    assert_eq!(bench.payload, b"abc");
}

#[test]
fn one_acknowledgement_completes_all_before_it_and_frees_unsignalled_ones() {
    // roce.md §14, trap 21
    let mut bench = rc_in_rts();
    for round in 0..3 {
        for id in 0..15 {
            bench.post_flags(id, Operation::Send, 1, SendFlags::empty());
        }
        bench.post(15, Operation::Send, 1);
        let full = bench.post_payload(9, Operation::Send, SendFlags::empty(), Payload::Sges(&[]));
        assert_eq!(full, Err(PostError::QueueFull));
        assert_eq!(bench.sent().len(), 16);
        bench.ack(packets(round * 16 + 15));
        assert_eq!(bench.completions(), [(15, Status::Success)]);
    }
}

#[test]
fn an_acknowledgement_inside_a_message_completes_nothing() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 700);
    assert_eq!(bench.sent().len(), 3);
    bench.ack(packets(1));
    assert_eq!(bench.completions(), []);
    bench.ack(packets(2));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn a_read_places_its_answer_and_completes_after_the_last_byte() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Read(REMOTE), 600);
    bench.expect(&["READ_REQUEST psn=0xfffffe A va=0x8000 rkey=0x00000077 dma=600"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(0), &[1; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_MIDDLE, packets(1), &[2; 256]);
    assert_eq!(bench.completions(), []);
    bench.read_response(Opcode::RC_READ_RESPONSE_LAST, packets(2), &[3; 88]);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    let expected = [[1; 256].as_slice(), &[2; 256], &[3; 88], &[pattern(600)]].concat();
    assert_eq!(bench.memory.read(bench.key, 0, 601), expected);
}

#[test]
fn a_read_of_nothing_is_answered_by_an_empty_packet() {
    let mut bench = rc_in_rts();
    bench
        .post_payload(
            1,
            Operation::Read(REMOTE),
            SendFlags::SIGNALED,
            Payload::Sges(&[]),
        )
        .unwrap();
    bench.expect(&["READ_REQUEST psn=0xfffffe A va=0x8000 rkey=0x00000077 dma=0"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(0), &[]);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn a_read_answer_acknowledges_the_sends_before_it() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 4);
    bench.post(2, Operation::Read(REMOTE), 4);
    bench.post(3, Operation::Send, 4);
    assert_eq!(bench.sent().len(), 3, "a SEND may pass a READ");
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(1), &[7; 4]);
    assert_eq!(
        bench.completions(),
        [(1, Status::Success), (2, Status::Success)]
    );
    bench.ack(packets(2));
    assert_eq!(bench.completions(), [(3, Status::Success)]);
}

#[test]
fn atomics_take_the_old_value_in_host_order() {
    // roce.md §14, trap 10: their answer has an opcode of its own
    let mut bench = rc_in_rts();
    bench.post(
        1,
        Operation::CompareSwap {
            remote: REMOTE,
            compare: 5,
            swap: 6,
        },
        8,
    );
    bench.post(
        2,
        Operation::FetchAdd {
            remote: REMOTE,
            add: 0x10,
        },
        8,
    );
    bench.expect(&[
        "COMPARE_SWAP psn=0xfffffe A va=0x8000 rkey=0x00000077 compare=0x5 swap=0x6",
        "FETCH_ADD psn=0xffffff A va=0x8000 rkey=0x00000077 add=0x10",
    ]);
    bench.atomic_response(packets(0), 0x0102_0304_0506_0708);
    let completion = bench.send_cq.poll().unwrap();
    assert_eq!((completion.id, completion.length), (1, 8));
    assert_eq!(bench.memory.read_u64(bench.key, 0), 0x0102_0304_0506_0708);
    bench.atomic_response(packets(1), 6);
    assert_eq!(bench.completions(), [(2, Status::Success)]);
    assert_eq!(bench.memory.read_u64(bench.key, 0), 6);
}

#[test]
fn no_more_reads_in_flight_than_max_rd_atomic() {
    let mut bench = rc_in_rts();
    for id in 0..3 {
        bench.post(id, Operation::Read(REMOTE), 4);
    }
    bench.post(3, Operation::Send, 0);
    assert_eq!(bench.outline(), ["READ_REQUEST 0", "READ_REQUEST 1"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(0), &[0; 4]);
    assert_eq!(bench.outline(), ["READ_REQUEST 2", "SEND_ONLY 3"]);
}

#[test]
fn a_fence_waits_for_every_read_before_it_and_for_no_send() {
    // roce.md §14, trap 6
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Read(REMOTE), 4);
    bench.post(3, Operation::Read(REMOTE), 4);
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    bench.post_flags(4, Operation::Send, 0, fence);
    assert_eq!(
        bench.outline(),
        ["SEND_ONLY 0", "READ_REQUEST 1", "READ_REQUEST 2"]
    );
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(1), &[0; 4]);
    bench.expect(&[]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(2), &[0; 4]);
    assert_eq!(bench.outline(), ["SEND_ONLY 3"]);
    bench.post_flags(5, Operation::Send, 0, fence);
    assert_eq!(bench.outline(), ["SEND_ONLY 4"]);
}

#[test]
fn a_local_invalidation_waits_for_all_before_it_and_holds_all_behind_it() {
    let mut bench = rc_in_rts();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = bench
        .memory
        .register_fast(PdId(1), 0x9000, vec![0; 64], access);
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::LocalInvalidate(key), 0);
    bench.post(3, Operation::Send, 0);
    assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
    bench.ack(packets(0));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.outline(), ["SEND_ONLY 1"]);
    assert_eq!(bench.completions(), [(2, Status::Success)]);
    let sges = [Sge {
        address: 0x9000,
        length: 4,
        key,
    }];
    bench
        .post_payload(
            4,
            Operation::Send,
            SendFlags::SIGNALED,
            Payload::Sges(&sges),
        )
        .unwrap();
    bench.expect(&[]);
    bench.ack(packets(1));
    bench.expect(&[]);
    assert_eq!(
        bench.completions(),
        [(3, Status::Success), (4, Status::LocalProtection)]
    );
}

#[test]
fn psns_go_over_the_wrap_in_the_middle_of_messages() {
    // roce.md §14, trap 23
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Write(REMOTE), 1024);
    bench.expect(&[
        "WRITE_FIRST psn=0xfffffe va=0x8000 rkey=0x00000077 dma=1024 len=256",
        "WRITE_MIDDLE psn=0xffffff len=256",
        "WRITE_MIDDLE psn=0x000000 len=256",
        "WRITE_LAST psn=0x000001 A len=256",
    ]);
    bench.ack(Psn::truncated(1));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

/// Work requests of 2^31 bytes: 2048 elements over the whole region.
fn post_longest(bench: &mut Bench, operation: Operation) {
    let sges = [bench.sge(1 << 20); 2048];
    bench
        .post_payload(1, operation, SendFlags::SIGNALED, Payload::Sges(&sges))
        .unwrap();
}

#[test]
fn the_longest_message_leaves_whole() {
    // roce.md §14, trap 8
    let mut bench = rc_in_rts_with(|setup| {
        setup.capabilities.send_sge_max = 2048;
        setup.attributes.path_mtu = Mtu::B4096;
        setup.config.window.bytes = 1 << 40;
        setup.config.window.first = 1 << 40;
    });
    post_longest(&mut bench, Operation::Send);
    let mut burst = Burst::with_bound(1 << 10);
    let mut sent = 0;
    loop {
        burst.clear();
        bench
            .shard
            .poll_transmit(bench.now, &bench.memory, &mut burst);
        let Some(last) = burst.packets().last() else {
            break;
        };
        sent += burst.packets().len() as u32;
        assert_eq!(last.origin.psn, packets(sent - 1));
    }
    assert_eq!(sent, 1 << 19);
    bench.ack(packets(sent - 2));
    assert_eq!(bench.completions(), []);
    bench.ack(packets(sent - 1));
    let completion = bench.send_cq.poll().unwrap();
    assert_eq!((completion.id, completion.length), (1, 1 << 31));
}

#[test]
fn no_more_than_2_to_the_22_psns_are_in_flight() {
    // an acknowledgement must not be taken for one of half the numbers ago
    let mut bench = rc_in_rts_with(|setup| {
        setup.capabilities.send_sge_max = 2048;
        setup.config.window.bytes = 1 << 40;
        setup.config.window.first = 1 << 40;
        setup.config.window.read_chunk = 1 << 29;
        setup.attributes.max_rd_atomic = 16;
    });
    post_longest(&mut bench, Operation::Read(REMOTE));
    // each asks for 2^21 packets
    assert_eq!(bench.outline(), ["READ_REQUEST 0", "READ_REQUEST 2097152"]);
}
