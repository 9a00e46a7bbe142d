//! Times to the millisecond.

use wire::mad::{Mra, Rej, RejectReason};

use super::*;

/// Lets time pass in steps of a millisecond until `side` has sent or its program been told
/// something; how many.
fn silence(pair: &mut Pair, side: usize) -> u64 {
    for milliseconds in 1..200_000 {
        pair.sleep(ms(1));
        let cm = &pair.cms[side];
        if !cm.out.transmit.is_empty() || !cm.out.events.is_empty() {
            return milliseconds;
        }
    }
    panic!("nothing happens");
}

#[test]
fn a_request_is_sent_sixteen_times() {
    let Asked {
        mut pair,
        active,
        req,
    } = Asked::new();
    for _ in 0..15 {
        assert_eq!(silence(&mut pair, ACTIVE), 4608);
        assert_eq!(pair.sent_one(ACTIVE), req);
        assert_eq!(pair.told(ACTIVE), []);
    }
    assert_eq!(silence(&mut pair, ACTIVE), 4608);
    let told = pair.told_one(ACTIVE);
    assert_eq!((told.id, told.kind), (active, CmEventKind::Unreachable));
    // a passive side that got the request need not wait
    let rej = rej_of(&pair.sent_one(ACTIVE));
    assert_eq!(rej.reason, RejectReason::Timeout);
    assert_eq!(rej.guid(), Some(local(ACTIVE).guid));
    pair.sleep(ms(100_000));
    pair.assert_quiet();
    assert_eq!(pair.cms[ACTIVE].next_deadline(), None);
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    pair.assert_forgotten(ACTIVE);
}

#[test]
fn a_reply_is_sent_sixteen_times() {
    let Connected {
        mut pair,
        active,
        passive,
        rep,
        ..
    } = half_connected();
    for _ in 0..15 {
        assert_eq!(silence(&mut pair, PASSIVE), 4096);
        assert_eq!(pair.sent_one(PASSIVE), rep);
    }
    assert_eq!(silence(&mut pair, PASSIVE), 4096);
    let told = pair.told_one(PASSIVE);
    assert_eq!((told.id, told.kind), (passive, CmEventKind::Unreachable));
    // an active side that holds it for established has to know
    let rej = pair.sent_one(PASSIVE);
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::Taken);
    let told = pair.told_one(ACTIVE);
    assert_eq!(told.id, active);
    assert!(matches!(told.kind, CmEventKind::Rejected(_)));
}

#[test]
fn a_dreq_is_sent_sixteen_times_by_either_side() {
    for (side, wait) in [(ACTIVE, 4608), (PASSIVE, 4096)] {
        let Connected {
            mut pair,
            active,
            passive,
            ..
        } = connected();
        let id = [active, passive][side];
        pair.cms[side].disconnect(pair.now, id).unwrap();
        let dreq = pair.sent_one(side);
        for _ in 0..15 {
            assert_eq!(silence(&mut pair, side), wait);
            assert_eq!(pair.sent_one(side), dreq);
        }
        assert_eq!(silence(&mut pair, side), wait);
        assert_eq!(pair.told_one(side).kind, disconnected(true));
        assert_eq!(silence(&mut pair, side), 512);
        assert_eq!(pair.told_one(side).kind, CmEventKind::TimeWaitExit);
        pair.assert_quiet();
    }
}

#[test]
fn a_service_id_resolution_request_is_sent_sixteen_times() {
    let mut pair = Pair::new();
    let request = SidrRequest::new(path(), SERVICE);
    let id = pair.cms[ACTIVE].resolve(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    for _ in 0..15 {
        assert_eq!(silence(&mut pair, ACTIVE), 4096);
        assert_eq!(pair.sent_one(ACTIVE), req);
    }
    assert_eq!(silence(&mut pair, ACTIVE), 4096);
    let told = pair.told_one(ACTIVE);
    assert_eq!((told.id, told.kind), (id, CmEventKind::Unreachable));
    pair.assert_quiet();
}

#[test]
fn an_mra_makes_either_side_wait_longer_once() {
    // 2^(24 - 8) ms that it asks for, and 512 ms
    const LONGER: u64 = 65_536 + 512;
    let (mut pair, _, passive, _) = Asked::new().received();
    pair.cms[PASSIVE].mra(pair.now, passive).unwrap();
    let mra = pair.sent_one(PASSIVE);
    pair.sleep(ms(1000));
    assert_eq!(pair.deliver(ACTIVE, &mra), MadOutcome::Taken);
    pair.sleep(ms(500));
    pair.deliver(ACTIVE, &mra);
    assert_eq!(silence(&mut pair, ACTIVE), LONGER - 500);
    assert_eq!(names(&pair.sent(ACTIVE)), "REQ");

    let (mut pair, active, ..) = replied();
    pair.cms[ACTIVE].mra(pair.now, active).unwrap();
    let mra = pair.sent_one(ACTIVE);
    assert_eq!(pair.deliver(PASSIVE, &mra), MadOutcome::Taken);
    assert_eq!(silence(&mut pair, PASSIVE), LONGER);
    assert_eq!(names(&pair.sent(PASSIVE)), "REP");
}

#[test]
fn an_mra_of_another_message_changes_nothing() {
    let (mut pair, active, passive, req) = Asked::new().received();
    let mra = Mad {
        message: Message::Mra(Mra {
            local_id: passive,
            remote_id: active,
            answers: wire::mad::Answered::Rep,
            service_timeout: Bits::truncated(24),
            ..Mra::default()
        }),
        ..req
    };
    assert_eq!(pair.deliver(ACTIVE, &mra), MadOutcome::Unknown);
    assert_eq!(silence(&mut pair, ACTIVE), 4608);
}

#[test]
fn a_peer_that_gives_up_is_believed_before_its_id_is_known() {
    let Asked {
        mut pair,
        active,
        req,
    } = Asked::new();
    let guid = local(PASSIVE).guid.0.to_be_bytes();
    let rej = Mad {
        message: Message::Rej(Rej {
            local_id: CommId(0x1100_0001),
            remote_id: active,
            answers: wire::mad::Answered::Other,
            info_length: Bits::truncated(8),
            reason: RejectReason::Timeout,
            info: Padded::new(&guid).unwrap(),
            ..Rej::default()
        }),
        ..req
    };
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::Taken);
    assert!(matches!(
        pair.told_one(ACTIVE).kind,
        CmEventKind::Rejected(_)
    ));
}

#[test]
fn the_times_of_a_request_are_kept_by_both_sides() {
    let mut pair = Pair::listening();
    let request = ConnectRequest {
        packet_life: Bits::truncated(10),
        response_timeout: Bits::truncated(12),
        cm_retries: Bits::truncated(2),
        ..request()
    };
    pair.cms[ACTIVE].connect(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    // 2 · 4 ms and 16 ms
    assert_eq!(silence(&mut pair, ACTIVE), 24);
    pair.deliver(PASSIVE, &req);
    let passive = pair.told_one(PASSIVE).id;
    pair.cms[PASSIVE]
        .accept(pair.now, passive, &accept())
        .unwrap();
    pair.sent(PASSIVE);
    for _ in 0..2 {
        assert_eq!(silence(&mut pair, PASSIVE), 16);
        assert_eq!(names(&pair.sent(PASSIVE)), "REP");
    }
    assert_eq!(silence(&mut pair, PASSIVE), 16);
    assert_eq!(pair.told_one(PASSIVE).kind, CmEventKind::Unreachable);
}
