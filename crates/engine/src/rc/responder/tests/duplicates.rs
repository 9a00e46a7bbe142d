use wire::{MemoryKey, Opcode, Reth};

use super::bench::*;
use crate::outcome::{DropReason, Outcome};
use crate::rc::responder::Handled;

impl Handled {
    /// It was dropped in silence.
    #[track_caller]
    pub fn dropped(self) {
        assert!(matches!(self.outcome, Outcome::Dropped(_)), "{self:?}");
        assert!(!self.fatal);
    }

    #[track_caller]
    fn unknown(self) {
        let unknown = Outcome::Dropped(DropReason::UnknownDuplicate);
        assert_eq!((self.outcome, self.fatal), (unknown, false));
    }
}

#[test]
fn a_duplicate_send_is_acknowledged_up_to_the_last_executed_packet_and_not_executed() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 16);
    bench.post(2, 0, 16);
    bench.post(3, 0, 16);
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"a"));
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(1), b"b"));
    bench.sends();
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"z"));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 ack msn 2"]);
    assert_eq!(bench.completions().len(), 2);
    assert_eq!(bench.local_bytes(0, 1), b"b");
    assert_eq!(bench.common.receives.len(), 1);
    assert_eq!(bench.common.counters.duplicate_requests, 1);
}

#[test]
fn a_farewell_acknowledges_what_was_executed_and_is_silent_before_that() {
    let mut bench = responder_in_rtr();
    let Bench {
        responder, common, ..
    } = &mut bench;
    responder.repeat_acknowledgement(common);
    assert!(bench.sends().is_empty());
    bench.post(1, 0, 16);
    assert_fine(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"a"));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 1"]);
    for _ in 0..2 {
        let Bench {
            responder, common, ..
        } = &mut bench;
        responder.repeat_acknowledgement(common);
        assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 1"]);
    }
}

#[test]
fn a_duplicate_in_the_middle_of_a_write_changes_nothing() {
    let mut bench = responder_in_rtr();
    let message = pattern(600);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 0, 600, &message[..256]);
    bench.write(Opcode::RC_WRITE_FIRST, psn(0), 0, 600, &[0xee; 256]);
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 ack msn 0"]);
    assert_fine(bench.arrives(Opcode::RC_WRITE_MIDDLE, psn(1), &message[256..512]));
    assert_fine(bench.arrives(Opcode::RC_WRITE_LAST, psn(2), &message[512..]));
    assert_eq!(bench.remote_bytes(0, 600), message);
}

/// Trap 20: the NAK for a gap is not overwritten by what a duplicate is told.
#[test]
fn a_duplicate_behind_a_gap_leaves_the_nak_alone() {
    let mut bench = responder_in_rtr();
    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 1, b"x");
    bench.sends();
    bench.write(Opcode::RC_WRITE_ONLY, psn(2), 0, 1, b"x");
    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 1, b"x");
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 1 60 msn 1"]);
}

#[test]
fn a_duplicate_read_is_read_again() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 0, 300));
    bench.sends();
    bench.memory.write(bench.remote, 0, &[0xcc; 300]);
    assert_fine(bench.read(psn(0), 0, 300));
    assert_eq!(
        bench.sends(),
        [
            "READ_RESPONSE_FIRST 0 ack msn 1 cc x256",
            "READ_RESPONSE_LAST 1 ack msn 1 cc x44"
        ]
    );
}

#[test]
fn the_rest_of_a_read_starts_with_first_or_only() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 0, 700));
    bench.sends();
    assert_fine(bench.read(psn(1), 256, 444));
    assert_eq!(
        bench.sends(),
        [
            "READ_RESPONSE_FIRST 1 ack msn 1 00 x256",
            "READ_RESPONSE_LAST 2 ack msn 1 00 x188"
        ]
    );
    assert_fine(bench.read(psn(2), 512, 188));
    assert_eq!(bench.sends(), ["READ_RESPONSE_ONLY 2 ack msn 1 00 x188"]);
}

#[test]
fn a_duplicate_of_a_read_that_is_being_answered_moves_its_cursor() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 0, 1024));
    assert_eq!(bench.sends_at_most(2).0.len(), 2);
    assert_fine(bench.read(psn(1), 256, 768));
    assert_fine(bench.read(psn(1), 256, 768));
    assert_eq!(
        bench.sends(),
        [
            "READ_RESPONSE_FIRST 1 ack msn 1 00 x256",
            "READ_RESPONSE_MIDDLE 2 00 x256",
            "READ_RESPONSE_LAST 3 ack msn 1 00 x256"
        ],
        "once, from where the requester is"
    );
}

#[test]
fn answers_to_duplicates_go_before_those_with_later_psns() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 0, 4));
    bench.sends();
    bench.write(Opcode::RC_WRITE_ONLY, psn(1), 0, 1, b"x");
    assert_fine(bench.fetch_add(psn(2), 8, 1));
    assert_fine(bench.read(psn(0), 0, 4));
    let names: Vec<_> = bench
        .sends()
        .iter()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        ["READ_RESPONSE_ONLY", "ACKNOWLEDGE", "ATOMIC_ACKNOWLEDGE"]
    );
}

/// Trap 19: what is not the same READ is dropped in silence.
#[test]
fn a_duplicate_read_with_another_key_or_range_is_unknown() {
    type Spoil = fn(&mut Reth);
    let cases: [Spoil; 4] = [
        |reth| reth.rkey = MemoryKey(reth.rkey.0 + 0x100),
        |reth| reth.va += 1,
        |reth| reth.va -= 1,
        |reth| reth.dma_length += 1,
    ];
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 8, 300));
    bench.sends();
    for spoil in cases {
        let mut read = bench.read_header(psn(0), 8, 300);
        let mut reth = read.reth.expect("a READ has one");
        spoil(&mut reth);
        read.reth = Some(reth);
        bench.arrives_with(read, &[]).unknown();
    }
    bench.read(psn(1), 8, 44).unknown();
    assert!(!bench.responder.has_output());
}

/// Trap 9: never executed again, answered with the original value.
#[test]
fn a_duplicate_atomic_is_answered_from_memory_of_it() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.fetch_add(psn(0), 0, 10));
    assert_fine(bench.fetch_add(psn(1), 0, 10));
    bench.sends();
    assert_fine(bench.fetch_add(psn(0), 0, 10));
    assert_eq!(bench.sends(), ["ATOMIC_ACKNOWLEDGE 0 ack msn 2 value 0"]);
    assert_eq!(bench.memory.read_u64(bench.remote, 0), 20);
}

#[test]
fn a_duplicate_atomic_whose_answer_still_waits_is_answered_once() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.fetch_add(psn(0), 0, 10));
    assert_fine(bench.fetch_add(psn(0), 0, 10));
    assert_eq!(bench.sends(), ["ATOMIC_ACKNOWLEDGE 0 ack msn 1 value 0"]);
}

#[test]
fn an_atomic_that_was_forgotten_or_differs_is_unknown() {
    let mut bench = responder_in_rtr();
    for count in 0..3 {
        assert_fine(bench.fetch_add(psn(count), 0, 1));
        bench.sends();
    }
    bench.fetch_add(psn(0), 0, 1).unknown();
    bench.fetch_add(psn(1), 0, 2).unknown();
    let swap = bench.atomic_header(Opcode::RC_COMPARE_SWAP, psn(1), 0, 1, 0);
    bench.arrives_with(swap, &[]).unknown();
    assert!(!bench.responder.has_output());
    assert_eq!(bench.memory.read_u64(bench.remote, 0), 3);
}

#[test]
fn a_stale_duplicate_does_not_count_against_the_agreed_number() {
    let mut bench = responder_in_rtr();
    for count in 0..2 {
        assert_fine(bench.read(psn(count), 0, 4));
    }
    bench.sends();
    assert_fine(bench.read(psn(0), 0, 4)); // a late copy: the requester has its answer
    assert_fine(bench.read(psn(2), 0, 4));
    assert_fine(bench.read(psn(3), 0, 4));
    let psns: Vec<_> = bench
        .sends()
        .iter()
        .map(|line| line.split(' ').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(
        psns,
        ["2", "3"],
        "the answer to the forgotten READ is dropped"
    );
}

/// Trap 25: the MSN counts executed messages, not duplicates.
#[test]
fn duplicates_do_not_move_the_msn() {
    let mut bench = responder_in_rtr();
    bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 1, b"x");
    for _ in 0..3 {
        bench.write(Opcode::RC_WRITE_ONLY, psn(0), 0, 1, b"x");
    }
    assert_fine(bench.read(psn(1), 0, 1));
    assert_fine(bench.read(psn(1), 0, 1));
    let lines = bench.sends();
    assert_eq!(lines[0], "ACKNOWLEDGE 0 ack msn 1");
    assert!(lines[1].contains("msn 2"), "{lines:?}");
}
