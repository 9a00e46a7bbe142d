use wire::mad::{Drep, Dreq, TransactionId};

use super::*;

fn dreq_of(mad: &Mad) -> Dreq {
    match mad.message {
        Message::Dreq(dreq) => dreq,
        _ => panic!("{mad}"),
    }
}

/// Closes from `side`; the DREQ.
fn close(pair: &mut Pair, side: usize, id: CommId) -> Mad {
    pair.cms[side].disconnect(pair.now, id).unwrap();
    pair.sent_one(side)
}

#[test]
fn either_side_closes() {
    for side in [ACTIVE, PASSIVE] {
        let Connected {
            mut pair,
            active,
            passive,
            ..
        } = connected();
        let ids = [active, passive];
        let (own, others) = (ids[side], ids[1 - side]);
        let mad = close(&mut pair, side, own);
        let dreq = dreq_of(&mad);
        assert_eq!((dreq.local_id, dreq.remote_id), (own, others));
        assert_eq!(dreq.remote_qpn, local(1 - side).qpn);
        let expected = TransactionId(1 << 32 | u64::from(own.0));
        assert_eq!(mad.transaction, expected);

        assert_eq!(pair.deliver(1 - side, &mad), MadOutcome::Taken);
        assert_eq!(pair.told_one(1 - side).kind, disconnected(false));
        // the answer is the program's to give
        pair.assert_quiet();
        assert_eq!(pair.deliver(1 - side, &mad), MadOutcome::Repeated);
        pair.assert_quiet();
        let drep = close(&mut pair, 1 - side, others);
        assert_eq!(names(&[drep]), "DREP");
        assert_eq!(drep.transaction, mad.transaction);

        assert_eq!(pair.deliver(side, &drep), MadOutcome::Taken);
        assert_eq!(pair.told_one(side).kind, disconnected(false));
        assert_eq!(pair.deliver(side, &drep), MadOutcome::OutOfPlace);
        pair.assert_quiet();
        pair.sleep(ms(512));
        for (side, id) in [(side, own), (1 - side, others)] {
            assert_eq!(pair.told_one(side).kind, CmEventKind::TimeWaitExit);
            pair.cms[side].destroy(pair.now, id).unwrap();
            pair.assert_forgotten(side);
        }
    }
}

#[test]
fn both_sides_close_at_once() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let dreqs = [
        close(&mut pair, ACTIVE, active),
        close(&mut pair, PASSIVE, passive),
    ];
    let dreps = [ACTIVE, PASSIVE].map(|side| {
        assert_eq!(pair.deliver(side, &dreqs[1 - side]), MadOutcome::Taken);
        assert_eq!(pair.told_one(side).kind, disconnected(false));
        let drep = pair.sent_one(side);
        assert_eq!(names(&[drep]), "DREP");
        assert_eq!(drep.transaction, dreqs[1 - side].transaction);
        drep
    });
    for side in [ACTIVE, PASSIVE] {
        assert_eq!(pair.deliver(side, &dreps[1 - side]), MadOutcome::OutOfPlace);
    }
    assert_eq!(pair.told(PASSIVE), []);
    assert_eq!(pair.told(ACTIVE), []);
    pair.sleep(ms(100_000));
    for side in [ACTIVE, PASSIVE] {
        assert_eq!(pair.told_one(side).kind, CmEventKind::TimeWaitExit);
    }
    pair.assert_quiet();
}

#[test]
fn a_dreq_in_time_wait_is_answered_again() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let dreq = close(&mut pair, ACTIVE, active);
    pair.deliver(PASSIVE, &dreq);
    let drep = close(&mut pair, PASSIVE, passive);
    pair.told(PASSIVE);
    assert_eq!(pair.deliver(PASSIVE, &dreq), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(PASSIVE), drep);
    pair.assert_quiet();
}

#[test]
fn a_dreq_of_nobody_is_answered() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let dreq = close(&mut pair, ACTIVE, active);
    let mut restarted = Pair::new();
    assert_eq!(restarted.deliver(PASSIVE, &dreq), MadOutcome::Unknown);
    let drep = restarted.sent_one(PASSIVE);
    assert_eq!(drep.transaction, dreq.transaction);
    let expected = Drep {
        local_id: passive,
        remote_id: active,
        ..Drep::default()
    };
    assert_eq!(drep.message, Message::Drep(expected));
    assert_eq!(pair.deliver(ACTIVE, &drep), MadOutcome::Taken);
    assert_eq!(pair.told_one(ACTIVE).kind, disconnected(false));
}

#[test]
fn a_dreq_for_another_queue_pair_is_ignored() {
    let Connected {
        mut pair, active, ..
    } = connected();
    let mut dreq = close(&mut pair, ACTIVE, active);
    let Message::Dreq(body) = &mut dreq.message else {
        panic!("{dreq}");
    };
    body.remote_qpn = Qpn::truncated(0x77);
    assert_eq!(pair.deliver(PASSIVE, &dreq), MadOutcome::OutOfPlace);
    pair.assert_quiet();
}

#[test]
fn a_dreq_before_the_rtu_closes_as_well() {
    let Connected {
        mut pair,
        active,
        passive,
        rtu,
        ..
    } = half_connected();
    let dreq = close(&mut pair, ACTIVE, active);
    assert_eq!(pair.deliver(PASSIVE, &dreq), MadOutcome::Taken);
    let told = pair.told_one(PASSIVE);
    assert_eq!((told.id, told.kind), (passive, disconnected(false)));
    // the RTU was only late
    assert_eq!(pair.deliver(PASSIVE, &rtu), MadOutcome::Repeated);
    pair.assert_quiet();
    let drep = close(&mut pair, PASSIVE, passive);
    pair.deliver(ACTIVE, &drep);
    assert_eq!(pair.told_one(ACTIVE).kind, disconnected(false));
}

#[test]
fn a_dreq_before_the_own_side_is_ready_waits() {
    let (mut pair, active, passive, ..) = replied();
    pair.cms[PASSIVE]
        .notify_established(pair.now, passive)
        .unwrap();
    pair.told(PASSIVE);
    let dreq = close(&mut pair, PASSIVE, passive);
    assert_eq!(pair.deliver(ACTIVE, &dreq), MadOutcome::OutOfPlace);
    pair.assert_quiet();
    pair.cms[ACTIVE]
        .establish(pair.now, active, Padded::default())
        .unwrap();
    pair.sent(ACTIVE);
    assert_eq!(pair.deliver(ACTIVE, &dreq), MadOutcome::Taken);
    assert_eq!(pair.told_one(ACTIVE).kind, disconnected(false));
}

#[test]
fn leaving_an_established_connection_closes_it_without_waiting() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    let dreq = pair.sent_one(ACTIVE);
    assert_eq!(
        pair.cms[ACTIVE].disconnect(pair.now, active),
        Err(CmError::Unknown)
    );
    // it was lost: the connection, which nobody has, sends it again
    pair.sleep(ms(4608));
    assert_eq!(pair.sent_one(ACTIVE), dreq);
    pair.deliver(PASSIVE, &dreq);
    assert_eq!(pair.told_one(PASSIVE).kind, disconnected(false));
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    let drep = pair.sent_one(PASSIVE);
    pair.deliver(ACTIVE, &drep);
    pair.sleep(ms(512));
    pair.assert_quiet();
    pair.assert_forgotten(ACTIVE);
    pair.assert_forgotten(PASSIVE);
}

#[test]
fn leaving_while_closing_tells_nothing_more() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let dreq = close(&mut pair, ACTIVE, active);
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    pair.deliver(PASSIVE, &dreq);
    pair.told(PASSIVE);
    let drep = close(&mut pair, PASSIVE, passive);
    pair.deliver(ACTIVE, &drep);
    pair.sleep(ms(300));
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    pair.sleep(ms(212));
    pair.assert_quiet();
    pair.assert_forgotten(ACTIVE);
    pair.assert_forgotten(PASSIVE);
}

#[test]
fn a_dreq_to_a_side_that_has_refused_is_answered() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = half_connected();
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    // the refusal is lost
    pair.sent(PASSIVE);
    // it does not know the queue pair any more than the connection
    let dreq = close(&mut pair, ACTIVE, active);
    assert_eq!(pair.deliver(PASSIVE, &dreq), MadOutcome::Repeated);
    let drep = pair.sent_one(PASSIVE);
    pair.deliver(ACTIVE, &drep);
    assert_eq!(pair.told_one(ACTIVE).kind, disconnected(false));
}
