//! States: what may be posted, SQD, the error state and its order, RESET, events.

use super::*;
use crate::CreateError;
use crate::qp::ModifyError;

fn try_post(bench: &mut Bench) -> Result<(), PostError> {
    bench.post_payload(1, Operation::Send, SendFlags::SIGNALED, Payload::Sges(&[]))
}

#[test]
fn sends_may_be_posted_from_rts_on() {
    let mut bench = rc_in_rts();
    let attributes = bench.shard.query_qp(bench.qp).unwrap().attributes;
    bench.qp = bench.create(&Capabilities {
        send_wr_max: 4,
        ..Capabilities::default()
    });
    assert_eq!(try_post(&mut bench), Err(PostError::WrongState));
    use AttributeMask as M;
    let mut step = |state, mask| {
        let attributes = Attributes {
            state,
            ..attributes
        };
        bench
            .shard
            .modify_qp(
                bench.now,
                bench.qp,
                &attributes,
                mask | M::STATE,
                &bench.memory,
            )
            .unwrap();
        try_post(&mut bench)
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let wrong = Err(PostError::WrongState);
    assert_eq!(step(State::Init, init), wrong);
    let rtr = M::ADDRESS_VECTOR
        | M::PATH_MTU
        | M::DEST_QPN
        | M::RQ_PSN
        | M::MAX_DEST_RD_ATOMIC
        | M::MIN_RNR_TIMER;
    assert_eq!(step(State::ReadyToReceive, rtr), wrong);
    let rts = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC;
    assert_eq!(step(State::ReadyToSend, rts), Ok(()));
    assert_eq!(step(State::SendQueueDrained, M::empty()), Ok(()));
    assert_eq!(step(State::Error, M::empty()), Ok(()));
}

#[test]
fn in_sqd_what_was_started_is_finished_and_told_and_nothing_else_starts() {
    let mut bench = rc_in_rts_with(|setup| {
        setup.config.window.bytes = 2 * 272 + 832;
    });
    bench.post(1, Operation::Send, 4 * 256);
    bench.post(2, Operation::Send, 0);
    assert_eq!(bench.outline(), ["SEND_FIRST 0", "SEND_MIDDLE 1"]);
    bench.modify(State::SendQueueDrained);
    bench.post(3, Operation::Send, 0);
    assert!(bench.shard.query_qp(bench.qp).unwrap().is_draining);
    bench.ack(packets(1));
    assert_eq!(bench.outline(), ["SEND_MIDDLE 2", "SEND_LAST 3"]);
    assert_eq!(bench.events(), []);
    let early = Attributes {
        state: State::ReadyToSend,
        ..Attributes::default()
    };
    let refused = bench.shard.modify_qp(
        bench.now,
        bench.qp,
        &early,
        AttributeMask::STATE,
        &bench.memory,
    );
    assert_eq!(
        refused,
        Err(ModifyError::Transition {
            from: State::SendQueueDrained,
            to: State::ReadyToSend
        })
    );
    bench.ack(packets(3));
    bench.expect(&[]);
    assert_eq!(bench.events(), [AsyncEvent::SendQueueDrained(bench.qp)]);
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    // and they start by themselves when it is in RTS again
    bench.modify(State::ReadyToSend);
    assert_eq!(bench.outline(), ["SEND_ONLY 4", "SEND_ONLY 5"]);
    assert_eq!(bench.events(), []);
}

#[test]
fn an_idle_queue_pair_is_drained_at_once() {
    let mut bench = rc_in_rts();
    bench.modify(State::SendQueueDrained);
    bench.expect(&[]);
    assert_eq!(bench.events(), [AsyncEvent::SendQueueDrained(bench.qp)]);
    bench.expect(&[]);
    assert_eq!(bench.events(), [], "once");
}

#[test]
fn sqd_is_told_only_to_who_asked() {
    let mut bench = rc_in_rts();
    let attributes = Attributes {
        state: State::SendQueueDrained,
        ..Attributes::default()
    };
    bench
        .shard
        .modify_qp(
            bench.now,
            bench.qp,
            &attributes,
            AttributeMask::STATE,
            &bench.memory,
        )
        .unwrap();
    bench.expect(&[]);
    assert_eq!(bench.events(), []);
}

#[test]
fn to_the_error_state_receives_are_flushed_first_then_sends_in_order() {
    let mut bench = rc_in_rts();
    // one queue for both, to see the order
    let options = QpOptions {
        transport: Transport::Rc,
        pd: PdId(1),
        capabilities: bench.shard.query_qp(bench.qp).unwrap().capabilities,
        port_mtu: Mtu::B4096,
        signal_all: false,
        send_cq: bench.send_cq.clone(),
        receive_cq: bench.send_cq.clone(),
        receives: bench.receives.clone(),
    };
    let attributes = bench.shard.query_qp(bench.qp).unwrap().attributes;
    bench.qp = QpIndex(bench.shard.create_qp(options).unwrap().index());
    bench.connect(bench.qp, &attributes);
    bench.post_receive(1, 1024);
    bench.post_receive(2, 8);
    bench.post_flags(3, Operation::Send, 0, SendFlags::empty());
    bench.post(4, Operation::Read(REMOTE), 8);
    bench.sent();
    // half of a message is there
    bench.receive_send(Opcode::RC_SEND_FIRST, 0, &[0; 256]);
    bench.modify(State::Error);
    let flushed = [1, 2, 3, 4].map(|id| (id, Status::Flushed));
    assert_eq!(bench.completions(), flushed);
    assert_eq!(bench.events(), [], "the program knows");

    // posting goes on and is flushed at once
    bench.post(5, Operation::Send, 0);
    assert_eq!(bench.completions(), [(5, Status::Flushed)]);
    bench.post_receive(6, 8);
    bench.shard.flush_receives(bench.qp);
    assert_eq!(bench.completions(), [(6, Status::Flushed)]);
    bench.expect(&[]);
}

#[test]
fn a_failed_send_comes_before_everything_that_is_flushed() {
    let mut bench = rc_in_rts();
    bench.post_receive(1, 8);
    bench.post(2, Operation::Send, 0);
    bench.post(3, Operation::Send, 0);
    bench.sent();
    bench.nak(packets(0), NakCode::RemoteOperational);
    assert_eq!(
        bench.completions(),
        [(2, Status::RemoteOperational), (3, Status::Flushed)]
    );
    assert_eq!(short(&bench.receive_cq.drain()), [(1, Status::Flushed)]);
    assert_eq!(
        bench.events(),
        [AsyncEvent::StateChanged {
            qp: bench.qp,
            state: State::Error
        }]
    );
}

#[test]
fn receives_of_a_shared_queue_stay_and_the_last_one_is_told() {
    let mut bench = rc_in_rts();
    let attributes = bench.shard.query_qp(bench.qp).unwrap().attributes;
    bench.receives = ReceiveQueue::shared(8);
    bench.qp = bench.create(&Capabilities::default());
    bench.connect(bench.qp, &attributes);
    bench.post_receive(1, 8);
    bench.modify(State::Error);
    assert_eq!(bench.receives.len(), 1);
    assert_eq!(bench.receive_cq.drain(), []);
    assert_eq!(bench.events(), [AsyncEvent::LastWqeReached(bench.qp)]);
    bench.modify(State::Error);
    assert_eq!(bench.events(), [], "once");
}

#[test]
fn reset_forgets_everything_without_completions_and_a_new_connection_starts_clean() {
    let mut bench = rc_in_rts();
    let attributes = bench.shard.query_qp(bench.qp).unwrap().attributes;
    bench.post_receive(1, 8);
    bench.post(2, Operation::Send, 700);
    bench.post(3, Operation::Read(REMOTE), 700);
    bench.sent();
    bench.modify(State::Reset);
    assert_eq!(bench.completions(), []);
    assert_eq!(bench.receive_cq.drain(), []);
    assert!(bench.receives.is_empty());
    assert_eq!(bench.shard.in_flight_bytes(), 0);
    bench.pass(ms(10_000));
    bench.expect(&[]);

    let again = Attributes {
        sq_psn: Psn::truncated(0x42),
        ..attributes
    };
    bench.connect(bench.qp, &again);
    bench.post(4, Operation::Send, 0);
    bench.expect(&["SEND_ONLY psn=0x000042 A len=0"]);
    // an acknowledgement of the old connection
    bench.ack(packets(2));
    assert_eq!(bench.completions(), []);
    bench.ack(Psn::truncated(0x42));
    assert_eq!(bench.completions(), [(4, Status::Success)]);
}

#[test]
fn the_nak_that_ends_a_connection_still_leaves() {
    let mut bench = rc_in_rts();
    bench.post(1, Operation::Send, 0);
    // a LAST without a FIRST
    bench.receive_send(Opcode::RC_SEND_LAST, 0, &[1]);
    assert_eq!(bench.state(), State::Error);
    assert_eq!(bench.completions(), [(1, Status::Flushed)]);
    assert_eq!(
        bench.events(),
        [
            AsyncEvent::RequestError(bench.qp),
            AsyncEvent::StateChanged {
                qp: bench.qp,
                state: State::Error
            }
        ]
    );
    let lines = bench.sent();
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("ACKNOWLEDGE psn=0x000500"),
        "{lines:?}"
    );
}

#[test]
fn an_acknowledgement_alone_leaves_behind_the_requests() {
    let mut bench = rc_in_rts();
    bench.post_receive(1, 8);
    bench.post(2, Operation::Send, 0);
    bench.receive_send(Opcode::RC_SEND_ONLY, 0, &[1]);
    assert_eq!(names_of_sent(&mut bench), ["SEND_ONLY", "ACKNOWLEDGE"]);
}

#[test]
fn other_responses_leave_before_requests() {
    let mut bench = rc_in_rts();
    bench.post(2, Operation::Send, 0);
    bench.receive_read(0);
    assert_eq!(
        names_of_sent(&mut bench),
        ["READ_RESPONSE_ONLY", "SEND_ONLY"]
    );
}

fn names_of_sent(bench: &mut Bench) -> Vec<String> {
    let sent = bench.sent();
    let names = sent.iter().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn unreliable_connections_are_not_there_yet() {
    let mut bench = rc_in_rts();
    let options = QpOptions {
        transport: Transport::Uc,
        pd: PdId(1),
        capabilities: Capabilities::default(),
        port_mtu: Mtu::B4096,
        signal_all: false,
        send_cq: bench.send_cq.clone(),
        receive_cq: bench.receive_cq.clone(),
        receives: bench.receives.clone(),
    };
    let error = bench.shard.create_qp(options).unwrap_err();
    assert_eq!(error, CreateError::Unsupported);
}
