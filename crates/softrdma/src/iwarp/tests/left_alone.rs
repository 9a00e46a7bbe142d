//! Connections that nobody manages any more, and queue pairs whose device is gone.

use engine::Status;

use super::*;

fn is_quiet(side: &Side) -> bool {
    side.serve();
    side.reports.take().is_none()
}

#[test]
fn the_peer_of_who_leaves_is_told_and_gets_what_was_sent() {
    for leaves_first in [true, false] {
        let pair = Pair::new("127.0.0.1", Settings::default());
        let (a, b) = (
            (&pair.a, &pair.a_qp, CALLER, TAKER),
            (&pair.b, &pair.b_qp, TAKER, CALLER),
        );
        let ((side, front, manager, other), (peer, peer_front, ..)) =
            if leaves_first { (a, b) } else { (b, a) };
        peer.post_receive(peer_front, 1, 0, 100);
        side.post_receive(front, 2, 0, 100);
        if leaves_first {
            // who accepted may not speak first
            side.post(front, 3, send(), &[side.sge(0, 10)]);
        }
        // another connection is none of its business
        side.core.abandon(front, &side.to(other));
        assert_eq!(front.state(), State::ReadyToSend);

        side.core.abandon(front, &side.to(manager));
        assert_eq!(front.state(), State::Error);
        let told = report(&pair.sides(), peer).kind;
        assert!(
            matches!(told, ReportKind::Disconnected(Ending::PeerClosed)),
            "{told:?}"
        );
        let arrived = completion(&pair.sides(), peer);
        let expected = if leaves_first {
            Status::Success
        } else {
            Status::Flushed
        };
        assert_eq!((arrived.id, arrived.status), (1, expected));
        let flushed = until(&pair.sides(), || {
            side.completion().filter(|done| done.id == 2)
        });
        assert_eq!(flushed.status, Status::Flushed);
        assert!(is_quiet(side), "nobody asked");
    }
}

#[test]
fn a_request_of_who_leaves_is_taken_back() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let listener = b.listen("127.0.0.1");
    let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
    a.call(&a_qp, listener.address(), b"");
    let ReportKind::Requested(incoming) = report(&[&a, &b], &b).kind else {
        panic!("not a request");
    };
    a.core.abandon(&a_qp, &a.to(CALLER));
    assert_eq!(a_qp.state(), State::Reset);
    let accepting = Accepting {
        incoming,
        depths: DEPTHS,
        private_data: Vec::new(),
        to: b.to(TAKER),
    };
    let refused = b.core.accept(&b_qp, accepting).expect_err("it is gone");
    assert_eq!(refused.errno(), libc::ECONNRESET);
    assert!(!refused.is_about_setup(), "any peer can do that: {refused}");
    assert!(is_quiet(&a) && is_quiet(&b));
    // the queue pair never had a connection
    a.call(&a_qp, listener.address(), b"again");
    let told = report(&[&a, &b], &b).kind;
    assert!(matches!(told, ReportKind::Requested(_)), "{told:?}");
}

#[test]
fn who_leaves_after_closing_has_everything_sent() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    for id in 0..4 {
        b.post_receive(&pair.b_qp, id, 0, 1 << 20);
        a.post(&pair.a_qp, id, send(), &[a.sge(0, 1 << 20)]);
    }
    a.core.disconnect(&pair.a_qp);
    a.core.abandon(&pair.a_qp, &a.to(CALLER));
    for id in 0..4 {
        let done = completion(&pair.sides(), b);
        assert_eq!((done.id, done.status), (id, Status::Success));
    }
    let told = report(&pair.sides(), b).kind;
    assert!(
        matches!(told, ReportKind::Disconnected(Ending::PeerClosed)),
        "{told:?}"
    );
    until(&pair.sides(), || {
        (pair.a_qp.state() == State::Error).then_some(())
    });
    assert!(is_quiet(a));
}

#[test]
fn queue_pairs_of_a_lost_device_are_flushed_and_those_of_others_are_not() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    let others = Arc::new(EventQueue::new().expect("a descriptor"));
    a.post_receive(&pair.a_qp, 1, 0, 100);
    a.core.lose_queue_pairs(|front| front.reports_to(&others));
    assert_eq!(pair.a_qp.state(), State::ReadyToSend);
    assert!(a.completion().is_none());

    a.core.lose_queue_pairs(|front| front.reports_to(&a.events));
    assert_eq!(pair.a_qp.state(), State::Error);
    let done = completion(&pair.sides(), a);
    assert_eq!((done.id, done.status), (1, Status::Flushed));
    let told = report(&pair.sides(), b).kind;
    assert!(
        matches!(told, ReportKind::Disconnected(Ending::PeerClosed)),
        "{told:?}"
    );
}
