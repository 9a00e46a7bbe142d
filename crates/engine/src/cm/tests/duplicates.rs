//! Lost and repeated messages; the program is told nothing twice.

use wire::mad::{Answered, RejectReason};

use super::*;

#[test]
fn a_request_again_asks_a_slow_program_for_time() {
    let (mut pair, active, passive, req) = Asked::new().received();
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    let mra = pair.sent_one(PASSIVE);
    let Message::Mra(body) = mra.message else {
        panic!("{mra}");
    };
    assert_eq!((body.local_id, body.remote_id), (passive, active));
    assert_eq!(body.answers, Answered::Req);
    assert_eq!(body.service_timeout.get(), 24);
    assert_eq!(mra.transaction, req.transaction);
    pair.assert_quiet();
}

#[test]
fn a_request_again_after_the_reply_is_left_to_the_replys_timer() {
    let (mut pair, _, _, req, _) = accepted();
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    pair.assert_quiet();
    let Connected { mut pair, req, .. } = connected();
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    pair.assert_quiet();
}

#[test]
fn a_request_again_in_time_wait_is_stale() {
    let Connected {
        mut pair,
        active,
        passive,
        req,
        ..
    } = connected();
    pair.cms[ACTIVE].disconnect(pair.now, active).unwrap();
    let dreq = pair.sent_one(ACTIVE);
    pair.deliver(PASSIVE, &dreq);
    pair.cms[PASSIVE].disconnect(pair.now, passive).unwrap();
    pair.sent(PASSIVE);
    pair.told(PASSIVE);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    let rej = rej_of(&pair.sent_one(PASSIVE));
    assert_eq!(rej.reason, RejectReason::StaleConnection);
    assert_eq!((rej.local_id, rej.remote_id), (CommId(0), active));
    pair.assert_quiet();
}

#[test]
fn another_request_of_a_queue_pair_ends_its_old_connection() {
    let Connected {
        mut pair,
        passive,
        mut req,
        ..
    } = connected();
    let Message::Req(body) = &mut req.message else {
        panic!("{req}");
    };
    // the peer was started again
    body.local_id = CommId(77);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    let sent = pair.sent(PASSIVE);
    assert_eq!(names(&sent), "REJ DREQ");
    let rej = rej_of(&sent[0]);
    assert_eq!(rej.reason, RejectReason::StaleConnection);
    assert_eq!(rej.remote_id, CommId(77));
    assert_eq!(pair.told(PASSIVE), []);
    // the peer knows nothing of it: its answer ends the old connection
    let mut restarted = Pair::new();
    assert_eq!(restarted.deliver(ACTIVE, &sent[1]), MadOutcome::Unknown);
    let drep = restarted.sent_one(ACTIVE);
    assert_eq!(pair.deliver(PASSIVE, &drep), MadOutcome::Taken);
    let told = pair.told_one(PASSIVE);
    assert_eq!((told.id, told.kind), (passive, disconnected(false)));
}

#[test]
fn a_queue_pair_of_another_host_is_another_one() {
    let Connected {
        mut pair, mut req, ..
    } = connected();
    let Message::Req(body) = &mut req.message else {
        panic!("{req}");
    };
    body.local_id = CommId(77);
    let elsewhere = PathMeta {
        source: [10, 0, 0, 9].into(),
        ..meta(PASSIVE)
    };
    let outcome = pair.cms[PASSIVE].handle_mad(pair.now, &req, &elsewhere);
    assert_eq!(outcome, MadOutcome::Taken);
    assert!(pair.cms[PASSIVE].poll_transmit().is_none());
}

#[test]
fn a_reply_from_a_queue_pair_in_use_is_stale() {
    let Connected { mut pair, .. } = connected();
    let mut request = request();
    request.local.qpn = Qpn::truncated(0x99);
    let second = pair.cms[ACTIVE].connect(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    pair.deliver(PASSIVE, &req);
    let passive = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE]
        .accept(pair.now, passive, &accept())
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Refused);
    let sent = pair.sent(ACTIVE);
    assert_eq!(names(&sent), "REJ DREQ");
    let rej = rej_of(&sent[0]);
    assert_eq!(rej.reason, RejectReason::StaleConnection);
    assert_eq!(rej.answers, Answered::Rep);
    assert_eq!((rej.local_id, rej.remote_id), (second, passive));
    assert_eq!(pair.deliver(PASSIVE, &sent[0]), MadOutcome::Taken);
    assert!(matches!(
        pair.told_one(PASSIVE).kind,
        CmEventKind::Rejected(_)
    ));
}

#[test]
fn a_reply_again_draws_the_rtu_again() {
    let Connected {
        mut pair, rep, rtu, ..
    } = half_connected();
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(ACTIVE), rtu);
    pair.assert_quiet();
}

#[test]
fn a_reply_again_asks_a_slow_program_for_time() {
    let (mut pair, active, passive, _, rep) = replied();
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Repeated);
    let mra = pair.sent_one(ACTIVE);
    let Message::Mra(body) = mra.message else {
        panic!("{mra}");
    };
    assert_eq!((body.local_id, body.remote_id), (active, passive));
    assert_eq!(body.answers, Answered::Rep);
    assert_eq!(pair.deliver(PASSIVE, &mra), MadOutcome::Taken);
    pair.assert_quiet();
}

#[test]
fn a_program_may_ask_for_time_before_the_peer_asks_again() {
    let (mut pair, _, passive, _) = Asked::new().received();
    pair.cms[PASSIVE].mra(pair.now, passive).unwrap();
    assert_eq!(names(&pair.sent(PASSIVE)), "MRA");
    let (mut pair, active, ..) = replied();
    pair.cms[ACTIVE].mra(pair.now, active).unwrap();
    assert_eq!(names(&pair.sent(ACTIVE)), "MRA");
}

#[test]
fn replies_to_nobody_are_dropped() {
    let (mut pair, active, _, _, mut rep) = accepted();
    let Message::Rep(body) = &mut rep.message else {
        panic!("{rep}");
    };
    body.remote_id = CommId(active.0 ^ 1);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Unknown);
    pair.assert_quiet();
    let Connected {
        mut pair, mut rep, ..
    } = connected();
    let Message::Rep(body) = &mut rep.message else {
        panic!("{rep}");
    };
    body.local_id = CommId(5);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::OutOfPlace);
    pair.assert_quiet();
}

#[test]
fn an_rtu_again_is_ignored_and_one_of_somebody_else_too() {
    let Connected {
        mut pair, mut rtu, ..
    } = connected();
    assert_eq!(pair.deliver(PASSIVE, &rtu), MadOutcome::Repeated);
    let Message::Rtu(body) = &mut rtu.message else {
        panic!("{rtu}");
    };
    body.local_id = CommId(5);
    assert_eq!(pair.deliver(PASSIVE, &rtu), MadOutcome::Unknown);
    pair.assert_quiet();
}

#[test]
fn a_connection_is_with_one_host() {
    let (mut pair, _, _, _, rep) = accepted();
    let elsewhere = PathMeta {
        source: [10, 0, 0, 9].into(),
        ..meta(ACTIVE)
    };
    let outcome = pair.cms[ACTIVE].handle_mad(pair.now, &rep, &elsewhere);
    assert_eq!(outcome, MadOutcome::Unknown);
    pair.assert_quiet();
}

#[test]
fn the_request_of_a_refusal_that_was_lost_draws_it_again() {
    let (mut pair, _, passive, req) = Asked::new().received();
    let refusal = Refusal::new(RejectReason::Consumer);
    pair.cms[PASSIVE]
        .reject(pair.now, passive, &refusal)
        .unwrap();
    let rej = pair.sent_one(PASSIVE);
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(PASSIVE), rej);
    pair.assert_quiet();
    // three times as long as the peer waits for it
    pair.sleep(ms(3 * 4096 - 1));
    assert_eq!(pair.cms[PASSIVE].connection_count(), 1);
    pair.cms[ACTIVE].handle_timeout(pair.now);
    pair.sent(ACTIVE);
    pair.sleep(ms(1));
    pair.assert_forgotten(PASSIVE);
}
