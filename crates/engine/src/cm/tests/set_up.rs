use wire::mad::{CmaHeader, Req, TransactionId};
use wire::{Gid, Mtu};

use super::*;

#[test]
fn a_connection_is_made_of_three_messages_with_one_transaction() {
    let Connected {
        req,
        rep,
        rtu,
        active,
        passive,
        ..
    } = connected();
    let transactions = [req, rep, rtu].map(|mad| mad.transaction);
    assert_eq!(transactions, [req.transaction; 3]);
    assert_eq!([active.slot(), passive.slot()], [0x10, 0x11]);
    let Message::Rtu(rtu) = rtu.message else {
        panic!("{rtu}");
    };
    assert_eq!((rtu.local_id, rtu.remote_id), (active, passive));
}

#[test]
fn the_request_has_what_linux_puts_in() {
    let Asked { req, active, .. } = Asked::new();
    let Message::Req(req) = req.message else {
        panic!("{req}");
    };
    assert_eq!(req.local_id, active);
    assert_eq!(req.remote_response_timeout.get(), 20);
    assert_eq!(req.local_response_timeout.get(), 20);
    assert_eq!(req.cm_retries_max.get(), 15);
    assert_eq!(req.primary.ack_timeout.get(), 17);
    assert_eq!(
        (req.primary.local_lid, req.primary.remote_lid),
        (0xffff, 0xffff)
    );
    assert!(!req.primary.is_subnet_local);
    assert_eq!(req.primary.local_gid, Gid::from_ip(address(ACTIVE)));
    assert_eq!(req.primary.remote_gid, Gid::from_ip(address(PASSIVE)));
    assert_eq!(req.primary.flow_label.get(), 0x12345);
    assert!(req.alternate.is_empty());
}

#[test]
fn a_neighbour_is_in_the_subnet() {
    let mut pair = Pair::listening();
    let mut request = request();
    request.path.hop_limit = 1;
    pair.cms[ACTIVE].connect(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    let Message::Req(Req { primary, .. }) = req.message else {
        panic!("{req}");
    };
    assert_eq!((primary.local_lid, primary.remote_lid), (0, 0));
    assert!(primary.is_subnet_local);
}

#[test]
fn the_passive_side_learns_what_its_queue_pair_needs() {
    let mut asked = Asked::new();
    asked.pair.deliver(PASSIVE, &asked.req);
    let told = asked.pair.told_one(PASSIVE);
    let CmEventKind::ConnectRequest(told) = told.kind else {
        panic!("{told:?}");
    };
    let peer = local(ACTIVE);
    assert_eq!(told.service, SERVICE);
    assert_eq!(told.path.local, address(PASSIVE));
    assert_eq!(told.path.remote, address(ACTIVE));
    assert_eq!(told.path.flow_label, 0x12345);
    assert_eq!(told.path.hop_limit, 64);
    assert_eq!(told.mtu, Mtu::B1024);
    assert_eq!(told.retry_count.get(), 7);
    assert_eq!(told.ack_timeout.get(), 17);
    assert_eq!(told.remote.qpn, peer.qpn);
    assert_eq!(told.remote.starting_psn, peer.starting_psn);
    // swapped, once: what the peer begins is what we respond to
    assert_eq!(told.remote.responder_resources, peer.initiator_depth);
    assert_eq!(told.remote.initiator_depth, peer.responder_resources);
    assert_eq!(told.private_data.trimmed(), b"hello");
}

#[test]
fn the_active_side_learns_what_its_queue_pair_needs() {
    let (mut pair, active, _, _, rep) = accepted();
    pair.deliver(ACTIVE, &rep);
    let told = pair.told_one(ACTIVE);
    assert_eq!(told.id, active);
    let CmEventKind::ConnectResponse(told) = told.kind else {
        panic!("{told:?}");
    };
    let peer = local(PASSIVE);
    assert_eq!(told.remote.guid, peer.guid);
    assert_eq!(told.remote.qpn, peer.qpn);
    assert_eq!(told.remote.starting_psn, peer.starting_psn);
    assert_eq!(told.remote.responder_resources, peer.initiator_depth);
    assert_eq!(told.remote.initiator_depth, peer.responder_resources);
    assert_eq!(told.ack_timeout.get(), 17);
    assert_eq!(told.private_data.trimmed(), b"welcome");
}

#[test]
fn the_rtu_brings_private_data() {
    let (mut pair, active, passive, ..) = replied();
    let data = Padded::new(b"go").unwrap();
    pair.cms[ACTIVE].establish(pair.now, active, data).unwrap();
    let rtu = pair.sent_one(ACTIVE);
    pair.deliver(PASSIVE, &rtu);
    let told = pair.told_one(PASSIVE);
    assert_eq!(told.id, passive);
    let private_data = Box::new(data);
    assert_eq!(told.kind, CmEventKind::Established { private_data });
}

#[test]
fn data_before_the_rtu_establishes_once() {
    let Connected {
        mut pair,
        passive,
        rtu,
        ..
    } = half_connected();
    let cm = &mut pair.cms[PASSIVE];
    assert_eq!(cm.notify_established(pair.now, passive), Ok(()));
    let again = cm.notify_established(pair.now, passive);
    assert_eq!(again, Err(CmError::Established));
    let told = pair.told_one(PASSIVE).kind;
    assert!(matches!(told, CmEventKind::Established { .. }));
    assert_eq!(pair.deliver(PASSIVE, &rtu), MadOutcome::Repeated);
    pair.sleep(ms(100_000));
    pair.assert_quiet();
}

#[test]
fn a_host_can_be_asked_by_itself() {
    let mut cm = Cm::new(Config::new(1, 1));
    let now = Instant::from_nanos(1);
    cm.listen(SERVICE, 1).unwrap();
    let mut request = request();
    request.path.remote = request.path.local;
    let active = cm.connect(now, &request).unwrap();
    let here = PathMeta {
        source: address(ACTIVE),
        ..meta(ACTIVE)
    };
    let mut passive = None;
    for _ in 0..10 {
        while let Some(out) = cm.poll_transmit() {
            cm.handle_mad(now, &Mad::parse(&out.mad[..]).unwrap(), &here);
        }
        match cm.poll_event() {
            Some(CmEvent { id, kind }) => match kind {
                CmEventKind::ConnectRequest(_) => {
                    passive = Some(id);
                    let mut accept = accept();
                    accept.local.guid = request.local.guid;
                    cm.accept(now, id, &accept).unwrap();
                }
                CmEventKind::ConnectResponse(_) => {
                    cm.establish(now, active, Padded::default()).unwrap();
                }
                CmEventKind::Established { .. } => {
                    assert_eq!(Some(id), passive);
                    return cm.check_invariants().unwrap();
                }
                other => panic!("{other:?}"),
            },
            None => break,
        }
    }
    panic!("not established");
}

#[test]
fn verbs_out_of_place_change_nothing() {
    let Connected {
        mut pair,
        active,
        passive,
        ..
    } = connected();
    let now = pair.now;
    let refusal = Refusal::new(wire::mad::RejectReason::Consumer);
    for (side, id) in [(ACTIVE, active), (PASSIVE, passive)] {
        let cm = &mut pair.cms[side];
        assert_eq!(cm.accept(now, id, &accept()), Err(CmError::State));
        assert_eq!(
            cm.establish(now, id, Padded::default()),
            Err(CmError::State)
        );
        assert_eq!(cm.reject(now, id, &refusal), Err(CmError::State));
        assert_eq!(cm.mra(now, id), Err(CmError::State));
        assert_eq!(cm.forget(now, id), Err(CmError::State));
        assert_eq!(cm.disconnect(now, CommId(1)), Err(CmError::Unknown));
        assert_eq!(cm.destroy(now, CommId(1)), Err(CmError::Unknown));
    }
    pair.assert_quiet();
    assert_eq!(pair.cms[ACTIVE].disconnect(now, active), Ok(()));
}

#[test]
fn the_transaction_names_the_connection_of_who_began_it() {
    let Asked { req, active, .. } = Asked::new();
    assert_eq!(
        req.transaction,
        TransactionId(1 << 32 | u64::from(active.0))
    );
}

#[test]
fn the_consumer_has_what_the_ip_service_leaves_of_the_private_data() {
    // cm.md §4: 56 bytes in a REQ, 180 in a SIDR_REQ
    assert_eq!(
        Padded::<92>::default().bytes().len() - CmaHeader::LENGTH,
        56
    );
    assert_eq!(
        Padded::<216>::default().bytes().len() - CmaHeader::LENGTH,
        180
    );
}

#[test]
fn enhancements_travel_there_and_back() {
    let vendor = Bits::truncated(0x0012_3456);
    let offer = Enhancements {
        vendor,
        options: 0x8000_0001,
    };
    let choice = Enhancements { vendor, options: 1 };
    let mut pair = Pair::listening();
    let request = ConnectRequest {
        enhancements: offer,
        ..request()
    };
    pair.cms[ACTIVE].connect(pair.now, &request).unwrap();
    let req = pair.sent_one(ACTIVE);
    assert_eq!(req.modifier, offer.options);
    pair.deliver(PASSIVE, &req);
    let told = pair.told_one(PASSIVE);
    let CmEventKind::ConnectRequest(asked) = told.kind else {
        panic!("{told:?}");
    };
    assert_eq!(asked.enhancements, offer);
    let accept = Accept {
        enhancements: choice,
        ..accept()
    };
    pair.cms[PASSIVE]
        .accept(pair.now, told.id, &accept)
        .unwrap();
    let rep = pair.sent_one(PASSIVE);
    pair.deliver(ACTIVE, &rep);
    let told = pair.told_one(ACTIVE);
    let CmEventKind::ConnectResponse(answer) = told.kind else {
        panic!("{told:?}");
    };
    assert_eq!(answer.enhancements, choice);
}
