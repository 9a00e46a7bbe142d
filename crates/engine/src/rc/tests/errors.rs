//! What ends a connection: refusals by the peer, answers that do not fit, memory that is not there.

use super::*;
use crate::DropReason;

#[test]
fn each_nak_has_its_status_and_everything_before_it_succeeds() {
    // roce.md §14, trap 12: exactly one completion each, signalled or not
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperational),
    ] {
        let mut bench = rc_in_rts();
        for id in 0..2 {
            bench.post(id, Operation::Send, 0);
        }
        bench.post_flags(2, Operation::Write(REMOTE), 700, SendFlags::empty());
        bench.post_flags(3, Operation::Send, 0, SendFlags::empty());
        bench.post(4, Operation::Send, 0);
        bench.sent();
        bench.nak(packets(2), code);
        assert_eq!(
            bench.completions(),
            [
                (0, Status::Success),
                (1, Status::Success),
                (2, status),
                (3, Status::Flushed),
                (4, Status::Flushed),
            ]
        );
        assert_eq!(bench.state(), State::Error);
        bench.expect(&[]);
        assert_eq!(
            bench.ack(packets(5)),
            Outcome::Dropped(DropReason::WrongState)
        );
        assert_eq!(bench.completions(), []);
        assert_eq!(bench.counters().send_errors, 1);
    }
}

#[test]
fn a_read_may_be_refused_with_the_psn_of_its_request_or_of_the_response() {
    for refused in [0, 1] {
        let mut bench = rc_in_rts();
        bench.post(1, Operation::Read(REMOTE), 600);
        bench.sent();
        bench.read_response(Opcode::RC_READ_RESPONSE_FIRST, packets(0), &[0; 256]);
        bench.nak(packets(refused), NakCode::RemoteAccess);
        assert_eq!(bench.completions(), [(1, Status::RemoteAccess)]);
    }
}

#[test]
fn an_answer_that_does_not_fit_is_a_bad_response() {
    use Opcode as O;
    const FULL: &[u8] = &[0; 256];
    // a READ of 600 bytes takes FIRST, MIDDLE, LAST of 88
    let before: [&[(Opcode, &[u8])]; 3] = [
        &[],
        &[(O::RC_READ_RESPONSE_FIRST, FULL)],
        &[
            (O::RC_READ_RESPONSE_FIRST, FULL),
            (O::RC_READ_RESPONSE_MIDDLE, FULL),
        ],
    ];
    for (position, opcode, payload) in [
        (0, O::RC_READ_RESPONSE_MIDDLE, FULL),
        (0, O::RC_READ_RESPONSE_ONLY, FULL),
        (0, O::RC_READ_RESPONSE_LAST, &FULL[..88]),
        (0, O::RC_READ_RESPONSE_FIRST, &FULL[..255]),
        (1, O::RC_READ_RESPONSE_FIRST, FULL),
        (1, O::RC_READ_RESPONSE_LAST, &FULL[..88]),
        (2, O::RC_READ_RESPONSE_MIDDLE, FULL),
        (2, O::RC_READ_RESPONSE_LAST, &FULL[..87]),
        (2, O::RC_READ_RESPONSE_LAST, &FULL[..89]),
        (2, O::RC_READ_RESPONSE_ONLY, &FULL[..88]),
    ] {
        let mut bench = rc_in_rts();
        bench.post(1, Operation::Read(REMOTE), 600);
        bench.sent();
        for (index, (opcode, payload)) in before[position].iter().enumerate() {
            bench.read_response(*opcode, packets(index as u32), payload);
        }
        bench.read_response(opcode, packets(position as u32), payload);
        assert_eq!(
            bench.completions(),
            [(1, Status::BadResponse)],
            "{opcode} at {position}"
        );
    }
}

#[test]
fn an_answer_to_another_operation_is_a_bad_response() {
    let add = Operation::FetchAdd {
        remote: REMOTE,
        add: 1,
    };
    let read = Operation::Read(REMOTE);
    for (operation, opcode) in [
        (Operation::Send, Opcode::RC_READ_RESPONSE_ONLY),
        (Operation::Send, Opcode::RC_ATOMIC_ACKNOWLEDGE),
        (read, Opcode::RC_ATOMIC_ACKNOWLEDGE),
        (add, Opcode::RC_READ_RESPONSE_ONLY),
    ] {
        let mut bench = rc_in_rts();
        bench.post(1, operation, 8);
        bench.sent();
        match opcode {
            Opcode::RC_ATOMIC_ACKNOWLEDGE => bench.atomic_response(packets(0), 0),
            _ => bench.read_response(opcode, packets(0), &[0; 8]),
        };
        assert_eq!(bench.completions(), [(1, Status::BadResponse)], "{opcode}");
    }
}

#[test]
fn answers_to_what_was_never_sent_are_dropped() {
    let mut bench = rc_in_rts();
    let stale = Outcome::Dropped(DropReason::StaleResponse);
    assert_eq!(bench.ack(packets(0)), stale);
    bench.post(1, Operation::Send, 0);
    bench.sent();
    for psn in [packets(1), packets(0x7f_ffff), packets(0).minus(1)] {
        assert_eq!(bench.ack(psn), stale);
        assert_eq!(bench.nak(psn, NakCode::RemoteAccess), stale);
        assert_eq!(bench.rnr_nak(psn, 1), stale);
    }
    let reserved = Syndrome::from_byte(0x9f);
    assert_eq!(
        bench.acknowledge(packets(0), reserved),
        Outcome::Dropped(DropReason::Reserved)
    );
    assert_eq!(bench.completions(), []);
    bench.ack(packets(0));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
}

#[test]
fn a_bad_element_waits_for_the_results_of_those_before_it() {
    // the kernel's device loses these: roce.md §12.2
    let wrong_key = |sge: &mut Sge| sge.key.0 ^= 0x100;
    let out_of_bounds = |sge: &mut Sge| sge.address = BASE + REGION as u64 - 3;
    let wraps = |sge: &mut Sge| sge.address = u64::MAX - 1; // roce.md §14, trap 15
    let spoil: [fn(&mut Sge); 3] = [wrong_key, out_of_bounds, wraps];
    for spoil in spoil {
        let mut bench = rc_in_rts();
        bench.post(1, Operation::Send, 0);
        let mut sges = [bench.sge(4); 2];
        spoil(&mut sges[1]);
        bench
            .post_payload(2, Operation::Send, SendFlags::empty(), Payload::Sges(&sges))
            .unwrap();
        bench.post(3, Operation::Send, 0);
        assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
        assert_eq!(bench.completions(), []);
        bench.pass(ms(6720));
        assert_eq!(bench.outline(), ["SEND_ONLY 0"], "still retried");
        bench.ack(packets(0));
        bench.expect(&[]);
        assert_eq!(
            bench.completions(),
            [
                (1, Status::Success),
                (2, Status::LocalProtection),
                (3, Status::Flushed)
            ]
        );
        assert_eq!(bench.state(), State::Error);
    }
}

#[test]
fn nothing_of_a_message_leaves_if_its_end_cannot_be_read() {
    let mut bench = rc_in_rts();
    let mut bad = bench.sge(4);
    bad.key = MemoryKey(0);
    let sges = [bench.sge(3000), bad];
    bench
        .post_payload(1, Operation::Send, SendFlags::empty(), Payload::Sges(&sges))
        .unwrap();
    bench.expect(&[]);
    assert_eq!(bench.completions(), [(1, Status::LocalProtection)]);
}

#[test]
fn a_read_needs_the_right_to_write_at_home_before_it_is_asked_for() {
    let mut bench = rc_in_rts();
    let key = bench
        .memory
        .register(PdId(1), 0x5000, vec![0; 64], Access::REMOTE_READ);
    let sges = [Sge {
        address: 0x5000,
        length: 8,
        key,
    }];
    bench
        .post_payload(
            1,
            Operation::Read(REMOTE),
            SendFlags::empty(),
            Payload::Sges(&sges),
        )
        .unwrap();
    bench.expect(&[]);
    assert_eq!(bench.completions(), [(1, Status::LocalProtection)]);
}

#[test]
fn memory_that_goes_away_fails_the_retransmission() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 4);
    bench.sent();
    bench.memory.deregister(bench.key);
    bench.pass(ms(6720));
    bench.expect(&[]);
    assert_eq!(bench.completions(), [(1, Status::LocalProtection)]);

    let mut bench = rc_in_rts();
    bench.post(1, Operation::Read(REMOTE), 4);
    bench.sent();
    bench.memory.deregister(bench.key);
    bench.read_response(Opcode::RC_READ_RESPONSE_ONLY, packets(0), &[0; 4]);
    assert_eq!(bench.completions(), [(1, Status::LocalProtection)]);
}

#[test]
fn an_earlier_transmission_that_arrived_counts_although_the_memory_is_gone() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Send, 4);
    bench.sent();
    bench.memory.deregister(bench.key);
    bench.pass(ms(6720));
    assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
    bench.ack(packets(1));
    assert_eq!(
        bench.completions(),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(bench.state(), State::ReadyToSend);
    bench.post(3, Operation::Send, 0);
    assert_eq!(bench.outline(), ["SEND_ONLY 2"]);
}

#[test]
fn a_packet_that_could_not_be_gathered_fails_its_work_request_after_those_before_it() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Send, 700);
    bench.post(3, Operation::Send, 0);
    bench.sent();
    let origin = bench.origins[2];
    assert_eq!((origin.psn, origin.is_response), (packets(2), false));
    bench
        .shard
        .transmit_failed(bench.now, origin, &bench.memory);
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.outline(), ["SEND_ONLY 0"], "may be a duplicate");
    bench.ack(packets(0));
    bench.expect(&[]);
    assert_eq!(
        bench.completions(),
        [
            (1, Status::Success),
            (2, Status::LocalProtection),
            (3, Status::Flushed)
        ]
    );
}

#[test]
fn a_completion_queue_that_overflows_ends_the_connection() {
    let mut bench = rc_in_rts();
    for round in 0..4 {
        for id in 0..16 {
            bench.post(id, Operation::Send, 0);
        }
        bench.sent();
        bench.ack(packets(round * 16 + 15));
    }
    assert_eq!(bench.state(), State::ReadyToSend);
    bench.post(64, Operation::Send, 0);
    bench.sent();
    bench.ack(packets(64));
    assert_eq!(bench.state(), State::Error);
    assert_eq!(
        bench.events(),
        [
            AsyncEvent::Fatal(bench.qp),
            AsyncEvent::StateChanged {
                qp: bench.qp,
                state: State::Error
            }
        ]
    );
    assert_eq!(bench.completions().len(), 64);
}

#[test]
fn a_read_that_could_never_start_fails() {
    // roce.md §14, trap 27: max_rd_atomic 0
    let mut bench = rc_in_rts_with(|setup| setup.attributes.max_rd_atomic = 0);
    bench.post(1, Operation::Send, 0);
    bench.post(2, Operation::Read(REMOTE), 4);
    assert_eq!(bench.outline(), ["SEND_ONLY 0"]);
    bench.ack(packets(0));
    bench.expect(&[]);
    assert_eq!(
        bench.completions(),
        [(1, Status::Success), (2, Status::LocalQpOperation)]
    );
}

#[test]
fn a_key_that_cannot_be_invalidated_is_a_memory_management_error() {
    let mut bench = rc_in_rts();
    bench.post_flags(
        1,
        Operation::LocalInvalidate(bench.key),
        0,
        SendFlags::empty(),
    );
    bench.expect(&[]);
    assert_eq!(bench.completions(), [(1, Status::MemoryWindowBind)]);
}
