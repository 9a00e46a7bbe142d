use wire::{MemoryKey, Opcode, Psn};

use super::bench::*;
use crate::access::{Access, MemoryRange};
use crate::completion::{CompletionOpcode, Status};
use crate::event::AsyncEvent;

#[test]
fn a_send_of_three_packets_fills_its_receive_and_completes_once() {
    let mut bench = responder_in_rtr();
    bench.post_sges(7, &[(0, 100), (1000, 0), (2000, 600)]);
    let message = pattern(600);
    assert_fine(bench.arrives(Opcode::RC_SEND_FIRST, psn(0), &message[..256]));
    assert_fine(bench.arrives(Opcode::RC_SEND_MIDDLE, psn(1), &message[256..512]));
    assert!(bench.completions().is_empty());
    assert!(
        !bench.responder.has_output(),
        "nobody asked for an answer yet"
    );
    assert_fine(bench.arrives(Opcode::RC_SEND_LAST, psn(2), &message[512..]));

    assert_eq!(bench.sends(), ["ACKNOWLEDGE 2 ack msn 1"]);
    let [completion] = bench.completions()[..] else {
        panic!("one completion");
    };
    assert_eq!((completion.id, completion.status), (7, Status::Success));
    assert_eq!(completion.opcode, CompletionOpcode::Receive);
    assert_eq!(completion.length, 600);
    assert!(completion.is_receive && completion.has_grh);
    assert_eq!(bench.local_bytes(0, 100), message[..100]);
    assert_eq!(bench.local_bytes(100, 1), [0], "beyond the first element");
    assert_eq!(bench.local_bytes(2000, 500), message[100..]);
    assert_eq!(bench.common.counters.rdma_receives, 1);
}

#[test]
fn an_empty_send_needs_no_element() {
    let mut bench = responder_in_rtr();
    bench.post_sges(1, &[]);
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), &[]));
    assert_eq!(bench.completions()[0].length, 0);
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 1"]);
}

#[test]
fn only_the_elements_that_are_touched_are_checked() {
    let mut bench = responder_in_rtr();
    bench.post_with_bad_key(1);
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), &[]));
    assert_eq!(bench.completions()[0].status, Status::Success);
}

/// Trap 30: immediate data stay in wire order.
#[test]
fn immediate_data_are_handed_on_byte_for_byte() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 16);
    let mut send = header(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, psn(0));
    send.immediate = Some([1, 2, 3, 4]);
    send.bth.solicited = true;
    assert_fine(bench.arrives_with(send, b"x"));
    let completion = bench.completions()[0];
    assert_eq!(completion.immediate, Some([1, 2, 3, 4]));
    assert_eq!(completion.opcode, CompletionOpcode::Receive);
    assert_eq!(bench.common.receive_cq.solicited(), 1);
}

#[test]
fn only_the_last_packet_can_solicit() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 512);
    let mut first = header(Opcode::RC_SEND_FIRST, psn(0));
    first.bth.solicited = true;
    assert_fine(bench.arrives_with(first, &pattern(MTU)));
    assert_fine(bench.arrives(Opcode::RC_SEND_LAST, psn(1), b"x"));
    assert_eq!(bench.common.receive_cq.len(), 1);
    assert_eq!(bench.common.receive_cq.solicited(), 0);
}

#[test]
fn a_write_lands_at_its_address_and_completes_nothing() {
    let mut bench = responder_in_rtr();
    let message = pattern(700);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 8, 700, &message[..256]);
    assert_fine(bench.arrives(Opcode::RC_WRITE_MIDDLE, psn(1), &message[256..512]));
    assert_fine(bench.arrives(Opcode::RC_WRITE_LAST, psn(2), &message[512..]));
    assert_eq!(bench.remote_bytes(8, 700), message);
    assert_eq!(bench.remote_bytes(0, 8), [0; 8]);
    assert_eq!(bench.remote_bytes(708, 8), [0; 8]);
    assert!(bench.completions().is_empty());
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 2 ack msn 1"]);
}

/// Trap 7: ONLY may be empty.
#[test]
fn an_empty_write_looks_at_no_key() {
    let mut bench = responder_in_rtr();
    let mut write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 0);
    if let Some(reth) = &mut write.reth {
        reth.rkey = MemoryKey(0xdead_0000);
        reth.va = 0;
    }
    assert_fine(bench.arrives_with(write, &[]));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 1"]);
}

#[test]
fn a_write_with_immediate_takes_a_receive_but_not_its_memory() {
    let mut bench = responder_in_rtr();
    bench.post_with_bad_key(9);
    let mut write = bench.write_header(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, psn(0), 16, 3);
    write.immediate = Some([9, 8, 7, 6]);
    assert_fine(bench.arrives_with(write, b"abc"));
    assert_eq!(bench.remote_bytes(16, 3), b"abc");
    let completion = bench.completions()[0];
    assert_eq!(
        completion.opcode,
        CompletionOpcode::ReceiveRdmaWithImmediate
    );
    assert_eq!((completion.id, completion.length), (9, 3));
    assert_eq!(completion.immediate, Some([9, 8, 7, 6]));
}

#[test]
fn a_write_whose_last_packet_finds_no_receive_places_it_only_later() {
    let mut bench = responder_in_rtr();
    let message = pattern(300);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 0, 300, &message[..256]);
    let mut last = header(Opcode::RC_WRITE_LAST_WITH_IMMEDIATE, psn(1));
    last.immediate = Some([0; 4]);
    assert_fine(bench.arrives_with(last, &message[256..]));
    assert_eq!(
        bench.sends(),
        ["ACKNOWLEDGE 1 2c msn 0"],
        "RNR NAK, timer 12"
    );
    assert_eq!(bench.remote_bytes(256, 44), [0; 44]);

    bench.post(1, 0, 0);
    assert_fine(bench.arrives_with(last, &message[256..]));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 ack msn 1"]);
    assert_eq!(bench.remote_bytes(0, 300), message);
    assert_eq!(bench.completions()[0].length, 300);
}

#[test]
fn without_a_receive_a_send_is_put_off_and_what_is_behind_it_says_nothing() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"a"));
    bench.arrives(Opcode::RC_SEND_ONLY, psn(1), b"b").dropped();
    bench.arrives(Opcode::RC_SEND_ONLY, psn(2), b"c").dropped();
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 2c msn 0"]);
    assert_eq!(bench.common.counters.sent_rnr_naks, 1);

    bench.post(1, 0, 16);
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"a"));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 1"]);
    assert_eq!(bench.completions().len(), 1);
}

/// Trap 20: one NAK per gap, and it carries the expected PSN.
#[test]
fn a_gap_draws_one_nak_with_the_expected_psn() {
    let mut bench = responder_in_rtr();
    for count in [2, 3, 5] {
        bench.write_header(Opcode::RC_WRITE_ONLY, psn(count), 0, 1);
        let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(count), 0, 1);
        let _ = bench.arrives_with(write, b"x");
    }
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 60 msn 0"]);
    assert_eq!(
        bench.remote_bytes(0, 1),
        [0],
        "nothing behind a gap is executed"
    );
    assert_eq!(bench.common.counters.out_of_sequence_requests, 3);

    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 1, b"a");
    let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(2), 0, 1);
    assert_fine(bench.arrives_with(write, b"x"));
    assert_eq!(
        bench.sends(),
        ["ACKNOWLEDGE 1 60 msn 1"],
        "a new gap, a new NAK, which says also that 0 is done"
    );
}

#[test]
fn acknowledgements_that_wait_are_one() {
    let mut bench = responder_in_rtr();
    for count in 0..5 {
        bench.write(Opcode::RC_WRITE_ONLY, psn(count), 0, 1, b"x");
    }
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 4 ack msn 5"]);
    assert_eq!(bench.common.counters.deferred_acks, 4);
}

/// Trap 23: PSNs wrap in the middle of a message.
#[test]
fn the_psn_wraps_within_a_message() {
    let mut bench = responder_in_rtr();
    let message = pattern(4 * MTU);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 0, 1024, &message[..256]);
    for count in 1..3 {
        let part = &message[count * 256..][..256];
        assert_fine(bench.arrives(Opcode::RC_WRITE_MIDDLE, psn(count as u32), part));
    }
    assert_eq!(psn(2), Psn::default());
    assert_fine(bench.arrives(Opcode::RC_WRITE_LAST, psn(3), &message[768..]));
    assert_eq!(bench.remote_bytes(0, 1024), message);
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 3 ack msn 1"]);
}

#[test]
fn a_send_with_invalidate_makes_the_key_unusable_before_it_completes() {
    let mut bench = responder_in_rtr();
    let window = bench.memory.bind_window(
        QPN,
        bench.remote,
        MemoryRange {
            address: REMOTE,
            length: 64,
        },
        Access::REMOTE_WRITE,
    );
    bench.post(1, 0, 16);
    let mut send = header(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, psn(0));
    send.ieth = Some(window);
    assert_fine(bench.arrives_with(send, b"bye"));
    let completion = bench.completions()[0];
    assert_eq!(completion.invalidated, Some(window));
    assert_eq!(bench.local_bytes(0, 3), b"bye");

    let mut write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(1), 0, 1);
    if let Some(reth) = &mut write.reth {
        reth.rkey = window;
    }
    assert_fatal(bench.arrives_with(write, b"x"));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 62 msn 1"]);
}

#[test]
fn the_first_request_in_rtr_is_an_event_once() {
    let mut bench = responder_in_rtr();
    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 0, &[]);
    bench.write(Opcode::RC_WRITE_ONLY, psn(1), 0, 0, &[]);
    let established = AsyncEvent::CommunicationEstablished(bench.common.index());
    assert_eq!(bench.common.events, [established]);
}

#[test]
fn a_write_whose_region_goes_away_midway_is_refused_there() {
    let mut bench = responder_in_rtr();
    let message = pattern(600);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 0, 600, &message[..256]);
    bench.memory.deregister(bench.remote);
    assert_fatal(bench.arrives(Opcode::RC_WRITE_MIDDLE, psn(1), &message[256..512]));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 62 msn 0"]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::AccessError(bench.common.index())]
    );
}

#[test]
fn the_receive_of_a_half_received_send_is_handed_to_the_flush() {
    let mut bench = responder_in_rtr();
    bench.post(5, 0, 512);
    assert_fine(bench.arrives(Opcode::RC_SEND_FIRST, psn(0), &pattern(MTU)));
    assert_eq!(bench.responder.current_receive().map(|wqe| wqe.id), Some(5));
    assert_eq!(bench.responder.current_receive(), None);
}
