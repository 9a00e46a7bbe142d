//! Backlogs, tables and listeners.

use wire::mad::RejectReason;

use super::*;

/// Requests of `count` connections, not delivered.
fn ask(pair: &mut Pair, count: u32) -> Vec<Mad> {
    let ask = |number| {
        let mut request = request();
        request.local.qpn = Qpn::truncated(0x100 + number);
        pair.cms[ACTIVE].connect(pair.now, &request).unwrap();
        pair.sent_one(ACTIVE)
    };
    (0..count).map(ask).collect()
}

#[test]
fn a_full_backlog_forgets_the_request() {
    let mut pair = Pair::new();
    pair.cms[PASSIVE].listen(SERVICE, 2).unwrap();
    let reqs = ask(&mut pair, 3);
    let outcomes: Vec<_> = reqs.iter().map(|req| pair.deliver(PASSIVE, req)).collect();
    assert_eq!(
        outcomes,
        [MadOutcome::Taken, MadOutcome::Taken, MadOutcome::Full]
    );
    let told = pair.told(PASSIVE);
    assert_eq!(told.len(), 2);
    pair.assert_quiet();
    // an answer makes room
    pair.cms[PASSIVE]
        .accept(pair.now, told[0].id, &accept())
        .unwrap();
    pair.sent(PASSIVE);
    assert_eq!(pair.deliver(PASSIVE, &reqs[2]), MadOutcome::Taken);
}

#[test]
fn an_event_that_was_fetched_makes_room_once() {
    let mut pair = Pair::new();
    pair.cms[PASSIVE].listen(SERVICE, 1).unwrap();
    let reqs = ask(&mut pair, 3);
    assert_eq!(pair.deliver(PASSIVE, &reqs[0]), MadOutcome::Taken);
    let first = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE].delivered(first);
    assert_eq!(pair.deliver(PASSIVE, &reqs[1]), MadOutcome::Taken);
    pair.cms[PASSIVE].delivered(first);
    pair.cms[PASSIVE]
        .accept(pair.now, first, &accept())
        .unwrap();
    assert_eq!(pair.deliver(PASSIVE, &reqs[2]), MadOutcome::Full);
}

#[test]
fn each_way_out_of_the_backlog_makes_room() {
    let mut pair = Pair::new();
    pair.cms[PASSIVE].listen(SERVICE, 1).unwrap();
    let reqs = ask(&mut pair, 4);
    let refusal = Refusal::new(RejectReason::Consumer);
    for (number, req) in reqs.iter().enumerate() {
        assert_eq!(pair.deliver(PASSIVE, req), MadOutcome::Taken);
        let id = pair.told_one(PASSIVE).id;
        let cm = &mut pair.cms[PASSIVE];
        match number {
            0 => cm.reject(pair.now, id, &refusal).unwrap(),
            1 => cm.destroy(pair.now, id).unwrap(),
            _ => cm.forget(pair.now, id).unwrap(),
        }
    }
}

#[test]
fn a_listener_is_gone_when_it_is_gone() {
    let Asked { mut pair, req, .. } = Asked::new();
    assert_eq!(pair.cms[PASSIVE].listen(SERVICE, 1), Err(CmError::InUse));
    pair.cms[PASSIVE].unlisten(SERVICE);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    assert_eq!(pair.cms[PASSIVE].listen(SERVICE, 1), Ok(()));
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Taken);
}

#[test]
fn the_requests_of_an_earlier_listener_do_not_count_against_a_later_one() {
    let mut pair = Pair::new();
    let reqs = ask(&mut pair, 3);
    pair.cms[PASSIVE].listen(SERVICE, 1).unwrap();
    pair.deliver(PASSIVE, &reqs[0]);
    let old = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE].unlisten(SERVICE);
    pair.cms[PASSIVE].listen(SERVICE, 1).unwrap();
    assert_eq!(pair.deliver(PASSIVE, &reqs[1]), MadOutcome::Taken);
    // this one does not leave the later backlog, in which it never was
    pair.cms[PASSIVE].accept(pair.now, old, &accept()).unwrap();
    assert_eq!(pair.deliver(PASSIVE, &reqs[2]), MadOutcome::Full);
}

#[test]
fn a_full_table_begins_nothing() {
    let mut config = Config::new(0x11, 1);
    config.connections_max = 1;
    let mut pair = Pair::new();
    pair.cms[PASSIVE] = Cm::new(config);
    pair.cms[PASSIVE].listen(SERVICE, 10).unwrap();
    let reqs = ask(&mut pair, 2);
    assert_eq!(pair.deliver(PASSIVE, &reqs[0]), MadOutcome::Taken);
    assert_eq!(pair.deliver(PASSIVE, &reqs[1]), MadOutcome::Full);
    let cm = &mut pair.cms[PASSIVE];
    assert_eq!(cm.connect(pair.now, &request()), Err(CmError::Full));
    let sidr = SidrRequest::new(path(), SERVICE);
    assert_eq!(cm.resolve(pair.now, &sidr), Err(CmError::Full));
}

#[test]
fn ten_thousand_connections_wait_at_once() {
    let mut pair = Pair::new();
    pair.cms[PASSIVE].listen(SERVICE, 10_000).unwrap();
    let cms = &mut pair.cms;
    for number in 0..10_000 {
        let mut request = request();
        request.local.qpn = Qpn::truncated(0x100 + number);
        cms[ACTIVE].connect(pair.now, &request).unwrap();
        let out = cms[ACTIVE].poll_transmit().unwrap();
        let req = Mad::parse(&out.mad[..]).unwrap();
        let outcome = cms[PASSIVE].handle_mad(pair.now, &req, &meta(PASSIVE));
        assert_eq!(outcome, MadOutcome::Taken);
    }
    assert_eq!(pair.told(PASSIVE).len(), 10_000);
    pair.sleep(ms(4608));
    assert_eq!(pair.sent(ACTIVE).len(), 10_000);
}
