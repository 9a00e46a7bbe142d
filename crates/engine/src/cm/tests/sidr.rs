use wire::QKey;
use wire::mad::SidrStatus;

use super::*;

/// A request under way, not delivered.
fn asked(mut pair: Pair) -> (Pair, CommId, Mad) {
    let request = SidrRequest {
        private_data: Padded::new(b"hello").unwrap(),
        ..SidrRequest::new(path(), SERVICE)
    };
    let id = pair.cms[ACTIVE].resolve(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    (pair, id, req)
}

fn answer() -> SidrAnswer {
    SidrAnswer {
        status: SidrStatus::Valid,
        qpn: Qpn::truncated(0x22),
        qkey: QKey(0x0123_4567),
        private_data: Padded::new(b"welcome").unwrap(),
    }
}

fn response(pair: &mut Pair) -> SidrResponse {
    match pair.told_one(ACTIVE).kind {
        CmEventKind::SidrResponse(response) => *response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_id_becomes_a_queue_pair() {
    let (mut pair, active, req) = asked(Pair::listening());
    assert_eq!(active.slot(), 0x10);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Taken);
    let told = pair.told_one(PASSIVE);
    let passive = told.id;
    let CmEventKind::SidrRequest(told) = told.kind else {
        panic!("{told:?}");
    };
    assert_eq!(told.service, SERVICE);
    assert_eq!(told.private_data.trimmed(), b"hello");
    assert_eq!(told.path.remote, address(ACTIVE));

    pair.cms[PASSIVE]
        .answer_sidr(pair.now, passive, &answer())
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    assert_eq!(rep.transaction, req.transaction);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Taken);
    let told = response(&mut pair);
    assert_eq!(
        (told.status, told.qpn, told.qkey),
        (SidrStatus::Valid, answer().qpn, answer().qkey)
    );
    assert_eq!(told.private_data.trimmed(), b"welcome");
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::OutOfPlace);
    pair.assert_quiet();
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    pair.assert_forgotten(ACTIVE);
}

#[test]
fn the_question_again_draws_the_answer_again() {
    let (mut pair, _, req) = asked(Pair::listening());
    pair.deliver(PASSIVE, &req);
    let passive = pair.told_one(PASSIVE).id;
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    pair.assert_quiet();
    pair.cms[PASSIVE]
        .answer_sidr(pair.now, passive, &answer())
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(PASSIVE), rep);
    pair.assert_quiet();
    let late = pair.cms[PASSIVE].answer_sidr(pair.now, passive, &answer());
    assert_eq!(late, Err(CmError::Unknown));
    pair.deliver(ACTIVE, &rep);
    pair.sleep(ms(3 * 4096));
    pair.assert_forgotten(PASSIVE);
}

#[test]
fn nobody_listens() {
    let (mut pair, _, req) = asked(Pair::new());
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    let rep = pair.sent_one(PASSIVE);
    pair.assert_forgotten(PASSIVE);
    pair.deliver(ACTIVE, &rep);
    assert_eq!(response(&mut pair).status, SidrStatus::Unsupported);
}

#[test]
fn leaving_without_an_answer_is_a_refusal() {
    let (mut pair, _, req) = asked(Pair::listening());
    pair.deliver(PASSIVE, &req);
    let passive = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    let rep = pair.sent_one(PASSIVE);
    pair.deliver(ACTIVE, &rep);
    assert_eq!(response(&mut pair).status, SidrStatus::Rejected);
}

#[test]
fn leaving_without_waiting_for_the_answer_tells_nobody() {
    let (mut pair, active, req) = asked(Pair::listening());
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    pair.assert_quiet();
    pair.assert_forgotten(ACTIVE);
    pair.deliver(PASSIVE, &req);
    let passive = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE]
        .answer_sidr(pair.now, passive, &answer())
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Unknown);
}

#[test]
fn request_ids_and_communication_ids_do_not_mix() {
    let (mut pair, active, req) = asked(Pair::listening());
    // a REP and a REJ that name the request
    let (mut other, _, _, _, mut rep) = accepted();
    let Message::Rep(body) = &mut rep.message else {
        panic!("{rep}");
    };
    body.remote_id = active;
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::OutOfPlace);
    let rej = Mad {
        message: Message::Rej(wire::mad::Rej {
            remote_id: active,
            reason: wire::mad::RejectReason::Consumer,
            ..Default::default()
        }),
        ..req
    };
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::OutOfPlace);
    pair.assert_quiet();
    other.assert_quiet();
}
