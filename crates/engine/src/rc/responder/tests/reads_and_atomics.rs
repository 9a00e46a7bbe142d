use wire::{MemoryKey, Opcode};

use super::bench::*;
use crate::event::AsyncEvent;

fn bench_with_data() -> Bench {
    let bench = responder_in_rtr();
    bench.memory.write(bench.remote, 0, &pattern(REGION_LENGTH));
    bench
}

#[test]
fn a_read_is_answered_by_first_middle_last() {
    let mut bench = bench_with_data();
    assert_fine(bench.read(psn(0), 1, 600));
    assert_eq!(
        bench.sends(),
        [
            "READ_RESPONSE_FIRST 0 ack msn 1 07 x256",
            "READ_RESPONSE_MIDDLE 1 08 x256",
            "READ_RESPONSE_LAST 2 ack msn 1 09 x88",
        ]
    );
    // the next request has the PSN after the responses
    assert_fine(bench.read(psn(3), 0, 256));
    assert_eq!(bench.sends(), ["READ_RESPONSE_ONLY 3 ack msn 2 00 x256"]);
}

#[test]
fn an_empty_read_looks_at_no_key_and_has_one_response() {
    let mut bench = responder_in_rtr();
    let mut read = bench.read_header(psn(0), 0, 0);
    if let Some(reth) = &mut read.reth {
        reth.rkey = MemoryKey(0);
    }
    assert_fine(bench.arrives_with(read, &[]));
    assert_eq!(bench.sends(), ["READ_RESPONSE_ONLY 0 ack msn 1"]);
    assert_fine(bench.read(psn(1), 0, 1));
}

#[test]
fn a_read_is_made_burst_by_burst() {
    let mut bench = bench_with_data();
    assert_fine(bench.read(psn(0), 0, 1024));
    let (lines, _) = bench.sends_at_most(3);
    assert_eq!(lines.len(), 3);
    assert!(bench.responder.has_output());
    let (lines, _) = bench.sends_at_most(3);
    assert_eq!(lines, ["READ_RESPONSE_LAST 3 ack msn 1 03 x256"]);
    assert!(!bench.responder.has_output());
}

#[test]
fn responses_leave_in_psn_order() {
    let mut bench = bench_with_data();
    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 8, 1, b"x");
    assert_fine(bench.read(psn(1), 0, 300));
    bench.write(Opcode::RC_WRITE_ONLY, psn(3), 8, 1, b"x");
    bench.write(Opcode::RC_WRITE_ONLY, psn(4), 8, 1, b"x");
    assert_fine(bench.fetch_add(psn(5), 16, 0));
    bench.write(Opcode::RC_WRITE_ONLY, psn(6), 8, 1, b"x");
    let names_and_psns: Vec<String> = bench
        .sends()
        .iter()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        names_and_psns,
        [
            "ACKNOWLEDGE 0",
            "READ_RESPONSE_FIRST 1",
            "READ_RESPONSE_LAST 2",
            "ACKNOWLEDGE 4",
            "ATOMIC_ACKNOWLEDGE 5",
            "ACKNOWLEDGE 6",
        ]
    );
}

#[test]
fn the_memory_of_a_read_is_checked_again_for_each_burst() {
    let mut bench = bench_with_data();
    assert_fine(bench.read(psn(0), 0, 1024));
    let (lines, fatal) = bench.sends_at_most(2);
    assert_eq!((lines.len(), fatal), (2, false));
    bench.memory.deregister(bench.remote);
    let (lines, fatal) = bench.sends_at_most(2);
    assert_eq!((lines.len(), fatal), (0, true));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 2 62 msn 1"]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::AccessError(bench.common.index())]
    );
}

#[test]
fn a_read_whose_bytes_cannot_be_gathered_ends_in_a_nak() {
    let mut bench = bench_with_data();
    assert_fine(bench.read(psn(0), 0, 1024));
    assert_fine(bench.read(psn(4), 0, 1));
    let (lines, _) = bench.sends_at_most(3);
    assert_eq!(lines.len(), 3);
    bench.responder.answer_failed(&mut bench.common, psn(1));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 62 msn 2"]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::AccessError(bench.common.index())]
    );
}

#[test]
fn a_read_out_of_bounds_is_refused_when_it_arrives() {
    let mut bench = responder_in_rtr();
    assert_fatal(bench.read(psn(0), 4000, 97));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 62 msn 0"]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::AccessError(bench.common.index())]
    );
}

/// Trap 29: 0 is legal and means none.
#[test]
fn without_resources_reads_and_atomics_are_invalid_requests() {
    for is_atomic in [false, true] {
        let mut bench = responder_in_rtr();
        bench.responder.start(FIRST, 0);
        let handled = if is_atomic {
            bench.fetch_add(psn(0), 0, 1)
        } else {
            bench.read(psn(0), 0, 1)
        };
        assert_fatal(handled);
        assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 61 msn 0"]);
    }
}

/// Trap 29: the ring can be resized while it is in use.
#[test]
fn fewer_resources_forget_the_oldest() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.fetch_add(psn(0), 0, 1));
    assert_fine(bench.fetch_add(psn(1), 0, 1));
    assert_eq!(bench.sends().len(), 2);
    bench.responder.set_max_dest_rd_atomic(1);
    bench.fetch_add(psn(0), 0, 1).dropped();
    assert_fine(bench.fetch_add(psn(1), 0, 1));
    assert_eq!(bench.sends(), ["ATOMIC_ACKNOWLEDGE 1 ack msn 2 value 1"]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut bench = bench_with_data();
    assert_fine(bench.read(psn(0), 0, 4));
    assert_fine(bench.read(psn(1), 0, 4));
    assert_fatal(bench.read(psn(2), 0, 4));
    assert_eq!(bench.sends().last().unwrap(), "ACKNOWLEDGE 2 61 msn 2");
}

/// Trap 10: the answer to an atomic has its own opcode.
#[test]
fn atomics_answer_with_the_value_before() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.fetch_add(psn(0), 8, 5));
    assert_fine(bench.fetch_add(psn(1), 8, u64::MAX));
    assert_eq!(
        bench.sends(),
        [
            "ATOMIC_ACKNOWLEDGE 0 ack msn 1 value 0",
            "ATOMIC_ACKNOWLEDGE 1 ack msn 2 value 5"
        ]
    );
    assert_eq!(bench.memory.read_u64(bench.remote, 8), 4, "modulo 2^64");
    for (count, compare, before, after) in [(2, 3, 4, 4), (3, 4, 4, 77)] {
        let swap = bench.atomic_header(Opcode::RC_COMPARE_SWAP, psn(count), 8, 77, compare);
        assert_fine(bench.arrives_with(swap, &[]));
        let line = format!(
            "ATOMIC_ACKNOWLEDGE {count} ack msn {} value {before}",
            count + 1
        );
        assert_eq!(bench.sends(), [line]);
        assert_eq!(bench.memory.read_u64(bench.remote, 8), after);
    }
}

#[test]
fn an_atomic_beside_a_word_is_an_invalid_request() {
    let mut bench = responder_in_rtr();
    assert_fatal(bench.fetch_add(psn(0), 4, 1));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 61 msn 0"]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::RequestError(bench.common.index())]
    );
}

#[test]
fn an_atomic_beyond_the_region_is_an_access_error() {
    let mut bench = responder_in_rtr();
    assert_fatal(bench.fetch_add(psn(0), 4096, 1));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 62 msn 0"]);
}
