use wire::mad::{Answered, ApStatus, Apr, Lap, RejectReason, TransactionId, TransportService};
use wire::{Gid, QKey};

use super::*;

/// What the active side is told of a refusal.
fn rejection(pair: &mut Pair, side: usize) -> Rejection {
    match pair.told_one(side).kind {
        CmEventKind::Rejected(rejection) => *rejection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_listens() {
    let Asked {
        mut pair,
        active,
        req,
    } = Asked::with(Pair::new());
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    let mad = pair.sent_one(PASSIVE);
    let rej = rej_of(&mad);
    assert_eq!(mad.transaction, req.transaction);
    assert_eq!((rej.local_id, rej.remote_id), (CommId(0), active));
    assert_eq!(rej.answers, Answered::Req);
    assert_eq!(rej.reason, RejectReason::InvalidServiceId);
    pair.assert_forgotten(PASSIVE);
    assert_eq!(pair.deliver(ACTIVE, &mad), MadOutcome::Taken);
    assert_eq!(
        rejection(&mut pair, ACTIVE).reason,
        RejectReason::InvalidServiceId
    );
    assert_eq!(pair.deliver(ACTIVE, &mad), MadOutcome::OutOfPlace);
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    pair.assert_forgotten(ACTIVE);
    pair.assert_quiet();
}

#[test]
fn the_program_refuses_a_request() {
    let (mut pair, active, passive, _) = Asked::new().received();
    let refusal = Refusal {
        private_data: Padded::new(b"no").unwrap(),
        ..Refusal::new(RejectReason::Consumer)
    };
    pair.cms[PASSIVE]
        .reject(pair.now, passive, &refusal)
        .unwrap();
    let mad = pair.sent_one(PASSIVE);
    let rej = rej_of(&mad);
    assert_eq!((rej.local_id, rej.remote_id), (passive, active));
    assert_eq!(rej.answers, Answered::Req);
    pair.deliver(ACTIVE, &mad);
    let told = rejection(&mut pair, ACTIVE);
    assert_eq!(told.reason, RejectReason::Consumer);
    assert_eq!(told.private_data.trimmed(), b"no");
    assert_eq!(told.private_data.bytes().len(), 148);
}

#[test]
fn the_program_refuses_a_response() {
    let (mut pair, active, passive, _, rep) = replied();
    let refusal = Refusal::new(RejectReason::Consumer);
    pair.cms[ACTIVE].reject(pair.now, active, &refusal).unwrap();
    let mad = pair.sent_one(ACTIVE);
    assert_eq!(rej_of(&mad).answers, Answered::Rep);
    // it was lost
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(ACTIVE), mad);
    assert_eq!(pair.deliver(PASSIVE, &mad), MadOutcome::Taken);
    assert_eq!(rejection(&mut pair, PASSIVE).reason, RejectReason::Consumer);
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    pair.assert_forgotten(PASSIVE);
}

#[test]
fn a_request_to_another_address_is_told_the_right_one() {
    let Asked {
        mut pair, mut req, ..
    } = Asked::new();
    let Message::Req(body) = &mut req.message else {
        panic!("{req}");
    };
    body.primary.remote_gid = Gid([9; 16]);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
    let rej = rej_of(&pair.sent_one(PASSIVE));
    assert_eq!(rej.reason, RejectReason::PrimaryGid);
    assert_eq!(rej.info_length.get(), 16);
    assert_eq!(rej.info.bytes()[..16], Gid::from_ip(address(PASSIVE)).0);
    assert_eq!(pair.told(PASSIVE), []);
}

#[test]
fn transports_and_mtus_that_do_not_exist() {
    let Asked { mut pair, req, .. } = Asked::new();
    for (transport, mtu, reason) in [
        (TransportService::Rd, 3, RejectReason::InvalidTransport),
        (
            TransportService::Extended,
            3,
            RejectReason::InvalidTransport,
        ),
        (TransportService::Rc, 0, RejectReason::InvalidMtu),
        (TransportService::Uc, 6, RejectReason::InvalidMtu),
    ] {
        let mut req = req;
        let Message::Req(body) = &mut req.message else {
            panic!("{req}");
        };
        body.transport = transport;
        body.mtu_code = Bits::truncated(mtu);
        assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Refused);
        assert_eq!(rej_of(&pair.sent_one(PASSIVE)).reason, reason);
    }
    pair.assert_quiet();
}

#[test]
fn a_refusal_ends_what_is_established() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let rej = Mad {
        transaction: TransactionId(5),
        modifier: 0,
        message: Message::Rej(wire::mad::Rej {
            local_id: passive,
            remote_id: active,
            answers: Answered::Other,
            reason: RejectReason::Consumer,
            ..Default::default()
        }),
    };
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::Taken);
    assert_eq!(rejection(&mut pair, ACTIVE).reason, RejectReason::Consumer);
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::OutOfPlace);
    pair.sleep(ms(511));
    pair.assert_quiet();
    pair.sleep(ms(1));
    assert_eq!(pair.told_one(ACTIVE).kind, CmEventKind::TimeWaitExit);
}

#[test]
fn a_stale_refusal_leads_to_time_wait() {
    let Asked {
        mut pair,
        active,
        req,
    } = Asked::new();
    let rej = Mad {
        message: Message::Rej(wire::mad::Rej {
            remote_id: active,
            reason: RejectReason::StaleConnection,
            ..Default::default()
        }),
        ..req
    };
    pair.deliver(ACTIVE, &rej);
    assert_eq!(
        rejection(&mut pair, ACTIVE).reason,
        RejectReason::StaleConnection
    );
    pair.sleep(ms(512));
    assert_eq!(pair.told_one(ACTIVE).kind, CmEventKind::TimeWaitExit);
}

#[test]
fn a_refusal_of_a_request_that_was_answered_is_ignored() {
    let (mut pair, active, passive, req, _) = replied();
    let rej = Mad {
        message: Message::Rej(wire::mad::Rej {
            local_id: passive,
            remote_id: active,
            reason: RejectReason::Consumer,
            ..Default::default()
        }),
        ..req
    };
    assert_eq!(pair.deliver(ACTIVE, &rej), MadOutcome::Unknown);
    pair.assert_quiet();
}

#[test]
fn the_program_leaves_before_there_is_an_answer() {
    let (mut pair, active, passive, req) = Asked::new().received();
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    let mad = pair.sent_one(ACTIVE);
    let rej = rej_of(&mad);
    assert_eq!(mad.transaction, req.transaction);
    assert_eq!((rej.local_id, rej.remote_id), (active, CommId(0)));
    assert_eq!(rej.reason, RejectReason::Timeout);
    assert_eq!(rej.guid(), Some(local(ACTIVE).guid));
    // found by GUID and the sender's ID, which is all that it names
    assert_eq!(pair.deliver(PASSIVE, &mad), MadOutcome::Taken);
    let told = pair.told_one(PASSIVE);
    assert_eq!(told.id, passive);
    assert!(matches!(told.kind, CmEventKind::Rejected(_)));
    let late = pair.cms[PASSIVE].accept(pair.now, passive, &accept());
    assert_eq!(late, Err(CmError::State));
}

#[test]
fn the_reply_to_somebody_who_left_is_refused() {
    let (mut pair, active, _, _, rep) = accepted();
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    // the refusal is lost
    pair.sent(ACTIVE);
    assert_eq!(pair.deliver(ACTIVE, &rep), MadOutcome::Repeated);
    let mad = pair.sent_one(ACTIVE);
    assert_eq!(pair.deliver(PASSIVE, &mad), MadOutcome::Taken);
    assert_eq!(rejection(&mut pair, PASSIVE).reason, RejectReason::Timeout);
}

#[test]
fn leaving_in_each_state_of_the_set_up_is_a_refusal() {
    let (mut pair, _, passive, _) = Asked::new().received();
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    let rej = rej_of(&pair.sent_one(PASSIVE));
    assert_eq!(
        (rej.reason, rej.answers),
        (RejectReason::Consumer, Answered::Req)
    );

    let (mut pair, active, ..) = replied();
    pair.cms[ACTIVE].destroy(pair.now, active).unwrap();
    let rej = rej_of(&pair.sent_one(ACTIVE));
    assert_eq!(
        (rej.reason, rej.answers),
        (RejectReason::Consumer, Answered::Rep)
    );

    // the peer holds it for established: its RTU was lost
    let Connected {
        mut pair,
        active,
        passive,
        rtu,
        ..
    } = half_connected();
    pair.cms[PASSIVE].destroy(pair.now, passive).unwrap();
    let mad = pair.sent_one(PASSIVE);
    let rej = rej_of(&mad);
    assert_eq!(
        (rej.reason, rej.answers),
        (RejectReason::Consumer, Answered::Other)
    );
    assert_eq!(pair.deliver(PASSIVE, &rtu), MadOutcome::Repeated);
    assert_eq!(pair.sent_one(PASSIVE), mad);
    pair.deliver(ACTIVE, &mad);
    assert_eq!(pair.told_one(ACTIVE).id, active);
}

#[test]
fn a_forgotten_request_leaves_nothing() {
    let (mut pair, _, passive, req) = Asked::new().received();
    pair.cms[PASSIVE].forget(pair.now, passive).unwrap();
    pair.assert_quiet();
    pair.assert_forgotten(PASSIVE);
    assert_eq!(pair.deliver(PASSIVE, &req), MadOutcome::Taken);
    let again = pair.told_one(PASSIVE);
    assert!(matches!(again.kind, CmEventKind::ConnectRequest(_)));
}

#[test]
fn another_path_is_refused() {
    let Connected {
        mut pair,
        active,
        passive,
        req,
        ..
    } = connected();
    let mut lap = Lap {
        local_id: active,
        remote_id: passive,
        ..Lap::default()
    };
    let mad = |lap| Mad {
        message: Message::Lap(lap),
        ..req
    };
    assert_eq!(pair.deliver(PASSIVE, &mad(lap)), MadOutcome::Refused);
    let expected = Apr {
        local_id: passive,
        remote_id: active,
        status: ApStatus::Unsupported,
        ..Apr::default()
    };
    let apr = pair.sent_one(PASSIVE);
    assert_eq!(apr.message, Message::Apr(expected));
    assert_eq!(pair.deliver(ACTIVE, &apr), MadOutcome::OutOfPlace);
    lap.local_id = CommId(5);
    assert_eq!(pair.deliver(PASSIVE, &mad(lap)), MadOutcome::Unknown);
    pair.assert_quiet();
}

#[test]
fn qkeys_are_left_to_reliable_datagrams() {
    let Connected { req, rep, .. } = connected();
    let (Message::Req(req), Message::Rep(rep)) = (req.message, rep.message) else {
        panic!("{req} {rep}");
    };
    assert_eq!((req.local_qkey, rep.local_qkey), (QKey(0), QKey(0)));
}
