//! Something is lost or late: go-back-N, READs from the middle, RNR waits, the two limits.

use super::*;
use crate::DropReason;

/// 4.096 µs · 2^14.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

#[test]
fn a_sequence_nak_acknowledges_what_is_before_and_sends_the_rest_again() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Write(REMOTE), 700);
    bench.post(3, Operation::Send, 0);
    assert_eq!(bench.sent().len(), 5);
    bench.nak(packets(2), NakCode::SequenceError);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    // from the middle: no FIRST, no RETH
    bench.expect(&[
        "WRITE_MIDDLE psn=0x000000 len=256",
        "WRITE_LAST psn=0x000001 A len=188",
        "SEND_ONLY psn=0x000002 A len=0",
    ]);
    let expected: Vec<u8> = (256..700).map(pattern).collect();
    assert_eq!(
        bench.payload, expected,
        "from the right place of the message"
    );
    bench.ack(packets(4));
    assert_eq!(
        bench.completions(),
        [(2, Status::Success), (3, Status::Success)]
    );
    assert_eq!(bench.counters().received_sequence_naks, 1);
}

#[test]
fn a_nak_that_acknowledges_something_costs_no_retry() {
    let mut bench = rc_in_rts_with(|setup| setup.attributes.retry_count = 0);
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Send, 0);
    bench.sent();
    bench.nak(packets(1), NakCode::SequenceError);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.outline(), ["SEND_ONLY 1"]);
    bench.pass(TIMEOUT);
    assert_eq!(bench.completions(), [(2, Status::RetryExceeded)]);

    let mut bench = rc_in_rts_with(|setup| setup.attributes.retry_count = 0);
    bench.post(1, Operation::Send, 0);
    bench.sent();
    bench.nak(packets(0), NakCode::SequenceError);
    assert_eq!(bench.completions(), [(1, Status::RetryExceeded)]);
}

#[test]
fn one_loss_is_retried_once_until_something_new_is_acknowledged() {
    // roce.md §14, trap 20: a peer that sends a NAK for every packet behind the gap
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 700);
    bench.sent();
    for _ in 0..20 {
        bench.nak(packets(0), NakCode::SequenceError);
    }
    assert_eq!(bench.sent().len(), 3);
    for _ in 0..20 {
        bench.nak(packets(0), NakCode::SequenceError);
    }
    bench.expect(&[]);
    bench.nak(packets(1), NakCode::SequenceError);
    assert_eq!(bench.outline(), ["SEND_MIDDLE 1", "SEND_LAST 2"]);
    bench.ack(packets(2));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn an_acknowledgement_after_going_back_is_as_good_and_nothing_is_sent_twice_then() {
    // roce.md §14, trap 34: reordering makes a NAK, then the original arrives
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 700);
    bench.post(2, Operation::Send, 700);
    bench.sent();
    bench.nak(packets(1), NakCode::SequenceError);
    bench.ack(packets(4));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.outline(), ["SEND_LAST 5"]);
    assert_eq!(
        bench.ack(packets(3)),
        Outcome::Dropped(DropReason::StaleResponse)
    );
    bench.ack(packets(5));
    assert_eq!(bench.completions(), [(2, Status::Success)]);
}

#[test]
fn silence_is_retried_retry_cnt_times_then_the_oldest_work_request_fails() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post_flags(2, Operation::Send, 0, SendFlags::empty());
    assert_eq!(bench.outline(), ["SEND_ONLY 0", "SEND_ONLY 1"]);
    // spec: IBA 9.7.6.1.3: between T and 4T; a silent peer gets more time, retry by retry
    for patience in [1, 2, 4] {
        bench.pass(TIMEOUT * patience - Duration::from_nanos(1));
        bench.expect(&[]);
        bench.pass(Duration::from_nanos(1));
        assert_eq!(bench.outline(), ["SEND_ONLY 0", "SEND_ONLY 1"]);
    }
    assert_eq!(bench.completions(), []);
    bench.pass(TIMEOUT * 4);
    bench.expect(&[]);
    assert_eq!(
        bench.completions(),
        [(1, Status::RetryExceeded), (2, Status::Flushed)]
    );
    assert_eq!(bench.state(), State::Error);
    assert_eq!(bench.counters().retry_exceeded, 1);
}

#[test]
fn retry_cnt_7_is_seven_retries() {
    // roce.md §14, trap 22: only rnr_retry 7 is without end
    let mut bench = rc_in_rts_with(|setup| setup.attributes.retry_count = 7);
    bench.post(1, Operation::Send, 0);
    let mut transmissions = bench.sent().len();
    while bench.state() == State::ReadyToSend {
        bench.pass(TIMEOUT);
        transmissions += bench.sent().len();
    }
    assert_eq!(transmissions, 8);
    assert_eq!(bench.completions(), [(1, Status::RetryExceeded)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 10 * 256);
    bench.sent();
    for packet in 0..10 {
        for patience in [1, 2, 4] {
            bench.pass(TIMEOUT * patience);
            assert_eq!(bench.sent().len(), 10 - packet);
        }
        bench.ack(packets(packet as u32));
    }
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn an_acknowledgement_restarts_the_timer_and_a_transmission_does_not() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.sent();
    bench.pass(TIMEOUT / 2);
    bench.post(2, Operation::Send, 0);
    bench.sent();
    bench.ack(packets(0));
    bench.pass(TIMEOUT / 2);
    bench.expect(&[]);
    bench.pass(TIMEOUT / 2);
    assert_eq!(bench.outline(), ["SEND_ONLY 1"]);

    bench.ack(packets(1));
    bench.post(3, Operation::Send, 0);
    bench.sent();
    bench.pass(TIMEOUT / 2);
    bench.post(4, Operation::Send, 0);
    bench.sent();
    bench.pass(TIMEOUT / 2);
    assert_eq!(bench.outline(), ["SEND_ONLY 2", "SEND_ONLY 3"]);
}

#[test]
fn timeout_0_is_never_and_short_timeouts_are_rounded_up() {
    let mut bench = rc_in_rts_with(|setup| setup.attributes.timeout = 0);
    bench.post(1, Operation::Send, 0);
    bench.sent();
    assert_eq!(bench.shard.next_deadline(), None);

    let mut bench = rc_in_rts_with(|setup| setup.attributes.timeout = 1);
    bench.post(1, Operation::Send, 0);
    bench.sent();
    let deadline = bench.shard.next_deadline().unwrap();
    assert_eq!(deadline.since(bench.now), Config::for_slot(0).timeout_min);
}

#[test]
fn an_rnr_nak_makes_it_wait_and_nothing_cancels_the_wait() {
    // roce.md §14, trap 5: the SENDs behind the refused one draw a sequence NAK
    let mut bench = rc_in_rts_with(|setup| setup.attributes.rnr_retry = 1);
    for id in 0..3 {
        bench.post(id, Operation::Send, 0);
    }
    bench.sent();
    bench.rnr_nak(packets(1), 12);
    assert_eq!(bench.completions(), [(0, Status::Success)]);
    bench.nak(packets(1), NakCode::SequenceError);
    bench.rnr_nak(packets(1), 12); // a copy costs no retry
    bench.post(3, Operation::Send, 0);
    bench.expect(&[]);
    bench.pass(ms(63));
    bench.expect(&[]);
    bench.pass(ms(1));
    assert_eq!(
        bench.outline(),
        ["SEND_ONLY 1", "SEND_ONLY 2", "SEND_ONLY 3"]
    );
    // the NAK of what was in flight may also come late: the retry is under way already
    bench.nak(packets(1), NakCode::SequenceError);
    bench.expect(&[]);
    bench.ack(packets(3));
    let all = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(bench.completions(), all);
}

#[test]
fn the_retransmission_timer_does_not_end_an_rnr_wait() {
    // code 0 is 655.36 ms, ten times the timeout
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.sent();
    bench.rnr_nak(packets(0), 0);
    for _ in 0..9 {
        bench.pass(TIMEOUT);
        bench.expect(&[]);
    }
    bench.pass(TIMEOUT);
    assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
}

#[test]
fn rnr_retries_are_counted_apart_and_7_is_without_end() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    for _ in 0..2 {
        assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
        bench.rnr_nak(packets(0), 12);
        bench.pass(ms(64));
    }
    assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
    bench.rnr_nak(packets(0), 12);
    assert_eq!(bench.completions(), [(1, Status::RnrRetryExceeded)]);
    assert_eq!(bench.counters().rnr_retry_exceeded, 1);

    let mut bench = rc_in_rts_with(|setup| setup.attributes.rnr_retry = 7);
    bench.post(1, Operation::Send, 0);
    for _ in 0..100 {
        assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
        bench.rnr_nak(packets(0), 12);
        bench.pass(ms(64));
    }
    bench.sent();
    bench.ack(packets(0));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn a_receive_that_came_in_time_ends_the_wait() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Send, 0);
    bench.sent();
    bench.rnr_nak(packets(0), 0);
    bench.ack(packets(0)); // a copy of it was accepted
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.outline(), ["SEND_ONLY 1"]);
}

/// A READ of 1000 bytes whose second answer is lost.
fn read_with_a_gap() -> Bench {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Read(REMOTE), 1000);
    bench.expect(&["READ_REQUEST psn=0xfffffe A va=0x8000 rkey=0x00000077 dma=1000"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(0), &[1; 256]);
    let gap = bench.read_response(Opcode::RC_READ_RESPONSE_MIDDLE, packets(2), &[3; 256]);
    assert_eq!(gap, Outcome::Dropped(DropReason::ResponseGap));
    bench.read_response(Opcode::RC_READ_RESPONSE_LAST, packets(3), &[4; 232]);
    assert_eq!(bench.completions(), []);
    bench.expect(&["READ_REQUEST psn=0xffffff A va=0x8100 rkey=0x00000077 dma=744"]);
    bench
}

fn assert_read_is_whole(bench: &mut Bench) {
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    let expected = [[1; 256].as_slice(), &[2; 256], &[3; 256], &[4; 232]].concat();
    assert_eq!(bench.memory.read(bench.key, 0, 1000), expected);
}

#[test]
fn a_read_is_asked_for_again_from_the_first_missing_byte() {
    let mut bench = read_with_a_gap();
    bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(1), &[2; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_MIDDLE, packets(2), &[3; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_LAST, packets(3), &[4; 232]);
    assert_read_is_whole(&mut bench);
}

#[test]
fn a_retried_read_may_be_answered_middle_first() {
    // roce.md §14, trap 33: rdma_rxe goes on with the answer it had begun
    let mut bench = read_with_a_gap();
    bench.read_response(Opcode::RC_READ_RESPONSE_MIDDLE, packets(1), &[2; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_MIDDLE, packets(2), &[3; 256]);
    bench.read_response(Opcode::RC_READ_RESPONSE_LAST, packets(3), &[4; 232]);
    assert_read_is_whole(&mut bench);
}

#[test]
fn the_end_of_a_read_may_be_answered_as_last_or_only() {
    for opcode in [Opcode::RC_READ_RESPONSE_LAST, Opcode::RC_READ_RESPONSE_ONLY] {
        let mut bench = rc_in_rts();
        bench.post(1, Operation::Read(REMOTE), 300);
        bench.sent();
        bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(0), &[1; 256]);
        bench.pass(TIMEOUT);
        bench.expect(&["READ_REQUEST psn=0xffffff A va=0x8100 rkey=0x00000077 dma=44"]);
        bench.read_response(opcode, packets(1), &[2; 44]);
        assert_eq!(bench.completions(), [(1, Status::Success)]);
    }
}

#[test]
fn an_acknowledgement_behind_a_read_says_that_its_answer_was_lost() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Read(REMOTE), 4);
    bench.post(3, Operation::Send, 0);
    bench.sent();
    bench.ack(packets(2));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.outline(), ["READ_REQUEST 1", "SEND_ONLY 2"]);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(1), &[0; 4]);
    bench.ack(packets(2));
    assert_eq!(
        bench.completions(),
        [(2, Status::Success), (3, Status::Success)]
    );
}

#[test]
fn a_read_of_zero_retries_fails_when_its_answer_is_lost() {
    let mut bench = rc_in_rts_with(|setup| setup.attributes.retry_count = 0);
    bench.post(1, Operation::Read(REMOTE), 4);
    bench.post(2, Operation::Send, 0);
    bench.sent();
    bench.ack(packets(1));
    assert_eq!(
        bench.completions(),
        [(1, Status::RetryExceeded), (2, Status::Flushed)]
    );
}

#[test]
fn an_atomic_is_sent_again_as_it_was_and_a_second_answer_changes_nothing() {
    // roce.md §14, trap 9, seen from the requester
    let mut bench = rc_in_rts();
    let add = Operation::FetchAdd {
        remote: REMOTE,
        add: 1,
    };
    bench.post(1, add, 8);
    let line = "FETCH_ADD psn=0xfffffe A va=0x8000 rkey=0x00000077 add=0x1";
    bench.expect(&[line]);
    bench.pass(TIMEOUT);
    bench.expect(&[line]);
    bench.atomic_response(packets(0), 41);
    let stale = Outcome::Dropped(DropReason::StaleResponse);
    assert_eq!(bench.atomic_response(packets(0), 99), stale);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(bench.memory.read_u64(bench.key, 0), 41);
}

#[test]
fn retries_send_what_memory_holds_then() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 4);
    bench.sent();
    assert_eq!(bench.payload, [0, 1, 2, 3]);
    bench.memory.write(bench.key, 0, &[9; 4]);
    bench.pass(TIMEOUT);
    bench.sent();
    assert_eq!(bench.payload, [9; 4]);
}

#[test]
fn garbage_in_the_msn_harms_nothing() {
    // roce.md §14, trap 25, seen from the requester: credits are not used
    let mut bench = rc_in_rts();
    for id in 0..4 {
        bench.post(id, Operation::Send, 0);
    }
    assert_eq!(bench.sent().len(), 4);
    let mut header = bench.response(Opcode::RC_ACKNOWLEDGE, packets(3));
    header.aeth = Some(Aeth {
        syndrome: Syndrome::from_byte(0), // no credits at all
        msn: wire::Msn::truncated(0xdead),
    });
    bench.feed(header, &[]);
    assert_eq!(bench.completions().len(), 4);
    bench.post(5, Operation::Send, 0);
    assert_eq!(bench.sent().len(), 1);
}
