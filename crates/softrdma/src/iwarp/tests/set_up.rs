use broker::iwarp::{Crc, IwarpOptions};
use broker::link::{LinkInfo, LinkKind};
use engine::Status;

use super::*;
use crate::iwarp::settings::tests::link;

#[test]
fn both_ends_learn_who_the_other_is_and_what_it_says() {
    for address in ["127.0.0.1", "::1"] {
        let (a, b) = (
            Side::new(Settings::default()),
            Side::new(Settings::default()),
        );
        let listener = b.listen(address);
        let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
        a.call(&a_qp, listener.address(), b"hello");
        let told = report(&[&a, &b], &b);
        let ReportKind::Requested(incoming) = told.kind else {
            panic!("{told:?}");
        };
        assert_eq!(
            (told.token, incoming.private_data.as_slice()),
            (HOST, &b"hello"[..])
        );
        assert_eq!(incoming.offered, DEPTHS);
        assert_eq!(incoming.local, listener.address());
        assert_eq!(incoming.remote.ip(), listener.address().ip());
        assert_eq!((a_qp.state(), b_qp.state()), (State::Reset, State::Reset));
        b.accept(&b_qp, incoming);
        assert_eq!(b_qp.state(), State::ReadyToSend);
        let told = report(&[&a, &b], &a);
        let ReportKind::Established {
            depths,
            replied,
            private_data,
        } = told.kind
        else {
            panic!("{told:?}");
        };
        assert_eq!(
            (told.token, private_data.as_slice()),
            (CALLER, &b"welcome"[..])
        );
        assert_eq!((depths, replied), (DEPTHS, DEPTHS));
        assert_eq!(a_qp.state(), State::ReadyToSend);
        let told = report(&[&a, &b], &b);
        assert_eq!(told.token, TAKER);
        assert!(
            matches!(told.kind, ReportKind::Established { .. }),
            "{told:?}"
        );
    }
}

#[test]
fn who_is_refused_learns_why_and_may_call_again() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let listener = b.listen("127.0.0.1");
    let a_qp = a.queue_pair();
    for _ in 0..2 {
        a.call(&a_qp, listener.address(), b"please");
        let ReportKind::Requested(incoming) = report(&[&a, &b], &b).kind else {
            panic!("not a request");
        };
        incoming.reject(b"no").expect("two bytes");
        let told = report(&[&a, &b], &a).kind;
        let ReportKind::Rejected { private_data } = told else {
            panic!("{told:?}");
        };
        assert_eq!(
            (private_data.as_slice(), a_qp.state()),
            (&b"no"[..], State::Reset)
        );
        assert_eq!(a.counted(Some(&a_qp)), [], "it was answered");
    }
}

#[test]
fn who_is_refused_ends_first() {
    let b = Side::new(Settings::default());
    let listener = b.listen("127.0.0.1");
    let mut raw = Raw::call(listener.address());
    raw.say(&plain_request());
    let ReportKind::Requested(incoming) = report(&[&b], &b).kind else {
        panic!("not a request");
    };
    incoming.reject(b"no").expect("two bytes");
    let mut reply = [0; 20 + 4 + 2];
    raw.0.read_exact(&mut reply).expect("a reply");
    assert!(reply.ends_with(b"no"), "{reply:?}");
    // on loopback an end would be here together with the reply
    raw.0.set_nonblocking(true).expect("an open stream");
    let next = raw.0.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(next, Err(std::io::ErrorKind::WouldBlock));
    raw.0.set_nonblocking(false).expect("an open stream");
    raw.0
        .shutdown(std::net::Shutdown::Write)
        .expect("an open stream");
    let hearing = std::thread::spawn(move || raw.hear_all());
    until(&[&b], || hearing.is_finished().then_some(()));
    assert_eq!(hearing.join().expect("no panic"), (Vec::new(), true));
}

#[test]
fn a_listener_at_all_addresses_has_the_terms_of_each_link() {
    let b = Side::new(Settings::default());
    let strict = LinkInfo {
        iwarp: Some(IwarpOptions {
            crc: Crc::Required,
            ..IwarpOptions::default()
        }),
        ..link("siw_strict", LinkKind::Siw, &["::", "::1"])
    };
    let plain = link("siw_plain", LinkKind::Siw, &["::", "127.0.0.1"]);
    b.reception.know(&[plain, strict]);
    let any = SocketAddr::new("::".parse().expect("a literal"), 0);
    let listener = b.listen_on(any, Terms::OfLink);
    for (host, has_crc) in [("127.0.0.1", false), ("::1", true)] {
        let host = host.parse().expect("a literal");
        let mut raw = Raw::call(SocketAddr::new(host, listener.address().port()));
        raw.say(&plain_request());
        let incoming = until(&[&b], || match b.reports.take()?.kind {
            ReportKind::Requested(incoming) => Some(incoming),
            _ => None,
        });
        assert_eq!(incoming.local.ip(), host);
        b.accept(&b.queue_pair(), incoming);
        let mut reply = [0; 20];
        raw.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[16] & 0x40 != 0, has_crc, "at {host}");
    }
}

#[test]
fn a_request_that_nobody_answers_is_reset() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let listener = b.listen("127.0.0.1");
    let a_qp = a.queue_pair();
    a.call(&a_qp, listener.address(), b"");
    drop(report(&[&a, &b], &b));
    let told = report(&[&a, &b], &a).kind;
    assert!(
        matches!(told, ReportKind::Failed(StartError::Ended)),
        "{told:?}"
    );
    assert_eq!(a.counted(Some(&a_qp)), [("connect_err", 1)]);
    // nor does anybody who listens no more
    a.call(&a_qp, listener.address(), b"");
    drop(listener);
    let told = report(&[&a, &b], &a).kind;
    assert!(
        matches!(told, ReportKind::Failed(StartError::Ended)),
        "{told:?}"
    );
}

/// A host that takes no more connections: it does not answer until somebody accepts.
fn full_listener() -> (io::tcp::Listener, TcpStream) {
    let any = SocketAddr::new("127.0.0.1".parse().expect("a literal"), 0);
    let listener = io::tcp::Listener::listen(any, false, 0).expect("loopback");
    let first = TcpStream::connect(listener.address().expect("bound")).expect("room for one");
    (listener, first)
}

#[test]
fn who_does_not_wait_for_tcp_is_told_and_holds_nobody_up() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let (deaf, _first) = full_listener();
    let a_qp = a.queue_pair();
    a.begin_call(&a_qp, deaf.address().expect("bound"));
    // meanwhile another one gets through
    let listener = b.listen("127.0.0.1");
    a.begin_call(&a.queue_pair(), listener.address());
    let told = report(&[&a, &b], &b).kind;
    assert!(matches!(told, ReportKind::Requested(_)), "{told:?}");
    assert!(a.reports.take().is_none());
    assert_eq!(a_qp.state(), State::Reset);
    // TCP asks again, and the request follows
    let accept = || until(&[&a], || deaf.accept().expect("descriptors are left")).0;
    let _ = accept();
    let stream = accept();
    let mut request = [0; 64];
    let count = until(&[&a], || match stream.receive(&mut request) {
        io::tcp::Receiving::Received(count) => Some(count),
        other => {
            assert_eq!(other, io::tcp::Receiving::Nothing);
            None
        }
    });
    assert_eq!(request[..count], plain_request());
}

#[test]
fn who_does_not_wait_for_tcp_is_told_why_it_fails_and_may_call_again() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let gone = b.listen("127.0.0.1").address();
    let a_qp = a.queue_pair();
    for count in 1..=2 {
        a.begin_call(&a_qp, gone);
        let told = report(&[&a], &a);
        let ReportKind::Unreached(errno) = told.kind else {
            panic!("{told:?}");
        };
        assert_eq!((told.token, errno), (CALLER, Errno::CONNREFUSED));
        assert_eq!(a_qp.state(), State::Reset);
        assert_eq!(a.counted(Some(&a_qp)), [("connect_err", count)]);
    }
}

#[test]
fn who_is_no_longer_wanted_is_not_reached() {
    let a = Side::new(Settings::default());
    let (deaf, first) = full_listener();
    let queue_pairs = [a.queue_pair(), a.queue_pair()];
    for front in &queue_pairs {
        a.begin_call(front, deaf.address().expect("bound"));
    }
    // either way of giving up
    a.core.disconnect(&queue_pairs[0]);
    a.core.destroy_queue_pair(&queue_pairs[1]);
    let told = report(&[&a], &a).kind;
    assert!(
        matches!(told, ReportKind::Failed(StartError::Ended)),
        "{told:?}"
    );
    drop((deaf, first));
    a.serve();
    assert!(a.reports.take().is_none());
}

#[test]
fn a_queue_pair_has_one_connection_and_no_state_without_it() {
    use engine::qp::{AttributeMask, Attributes};
    let pair = Pair::new("127.0.0.1", Settings::default());
    let to = |side: &Side, front: &Front, state| {
        let attributes = Attributes {
            state,
            ..Attributes::default()
        };
        side.core.modify(front, &attributes, AttributeMask::STATE)
    };
    let fresh = pair.a.queue_pair();
    assert!(matches!(
        to(&pair.a, &fresh, State::ReadyToSend),
        Err(crate::Error::NotConnected)
    ));
    assert!(to(&pair.a, &fresh, State::Init).is_ok());
    assert!(
        to(&pair.a, &pair.a_qp, State::Reset).is_err(),
        "it is connected"
    );
    let stream = io::tcp::Stream::connect(None, pair._listener.address(), 0).expect("loopback");
    let asking = Asking {
        stream,
        settings: Settings::default(),
        depths: DEPTHS,
        private_data: Vec::new(),
        to: pair.a.to(9),
    };
    assert!(pair.a.core.ask(&pair.a_qp, asking).is_err());
    // the error state is for good, and the peer learns of it
    to(&pair.a, &pair.a_qp, State::Error).expect("at any time");
    let told = report(&pair.sides(), &pair.b).kind;
    assert!(
        matches!(told, ReportKind::Disconnected(Ending::PeerClosed)),
        "{told:?}"
    );
    to(&pair.a, &pair.a_qp, State::Reset).expect("it is said to be taken");
    assert_eq!(pair.a_qp.state(), State::Error);
}

#[test]
fn what_is_posted_before_the_end_arrives_before_it() {
    let pair = Pair::new("::1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    for id in 0..3 {
        b.post_receive(&pair.b_qp, id, 0, 500_000);
    }
    for id in 0..2 {
        a.post(&pair.a_qp, id, send(), &[a.sge(0, 500_000)]);
    }
    a.core.disconnect(&pair.a_qp);
    for (id, status) in [
        (0, Status::Success),
        (1, Status::Success),
        (2, Status::Flushed),
    ] {
        let done = completion(&pair.sides(), b);
        assert_eq!((done.id, done.status), (id, status));
    }
    for id in 0..2 {
        let done = completion(&pair.sides(), a);
        assert_eq!((done.id, done.status), (id, Status::Success));
    }
    let told = report(&pair.sides(), b).kind;
    assert!(
        matches!(told, ReportKind::Disconnected(Ending::PeerClosed)),
        "{told:?}"
    );
    let told = report(&pair.sides(), a).kind;
    assert!(
        matches!(told, ReportKind::Disconnected(Ending::Closed)),
        "{told:?}"
    );
    for (side, front) in [(a, &pair.a_qp), (b, &pair.b_qp)] {
        assert_eq!(front.state(), State::Error);
        side.post_receive(front, 7, 0, 1);
        let done = completion(&pair.sides(), side);
        assert_eq!((done.id, done.status), (7, Status::Flushed));
        side.post(front, 8, send(), &[]);
        let done = completion(&pair.sides(), side);
        assert_eq!((done.id, done.status), (8, Status::Flushed));
    }
}

#[test]
fn who_accepted_speaks_when_it_was_spoken_to() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    a.post_receive(&pair.a_qp, 1, 0, 100);
    b.post_receive(&pair.b_qp, 2, 0, 100);
    b.post(&pair.b_qp, 3, send(), &[b.sge(0, 10)]);
    for side in pair.sides() {
        side.serve();
        assert!(side.completion().is_none(), "it waits");
    }
    a.post(&pair.a_qp, 4, send(), &[a.sge(0, 10)]);
    let ids = |side| [0; 2].map(|_| completion(&pair.sides(), side).id);
    let (mut of_a, mut of_b) = (ids(a), ids(b));
    of_a.sort_unstable();
    of_b.sort_unstable();
    assert_eq!((of_a, of_b), ([1, 4], [2, 3]));
}

#[test]
fn receives_come_back_though_there_was_no_connection() {
    use engine::qp::{AttributeMask, Attributes};
    let side = Side::new(Settings::default());
    let front = side.queue_pair();
    for state in [State::Init, State::Error] {
        let attributes = Attributes {
            state,
            ..Attributes::default()
        };
        let moved = side.core.modify(&front, &attributes, AttributeMask::STATE);
        moved.expect("at any time");
        side.post_receive(&front, state as u64, 0, 100);
    }
    for id in [State::Init, State::Error] {
        let done = completion(&[&side], &side);
        assert_eq!((done.id, done.status), (id as u64, Status::Flushed));
    }
}

#[test]
fn a_read_where_none_may_be_in_flight_fails_and_is_known_to() {
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
    let accepting = Accepting {
        incoming,
        depths: Depths { ird: 4, ord: 0 },
        private_data: Vec::new(),
        to: b.to(TAKER),
    };
    b.core.accept(&b_qp, accepting).expect("a new queue pair");
    for side in [&a, &b] {
        let told = report(&[&a, &b], side).kind;
        assert!(matches!(told, ReportKind::Established { .. }), "{told:?}");
    }
    let will_refuse = |side: &Side, front: &Front, operation: &Operation| {
        let mut inner = side.core.shard.lock();
        let pair = inner.streams.pair(front.index());
        pair.expect("a queue pair of this side")
            .will_refuse(operation)
    };
    let read = Operation::Read(a.remote(0));
    assert!(will_refuse(&b, &b_qp, &read));
    assert!(!will_refuse(&b, &b_qp, &send()), "it needs no answer");
    assert!(!will_refuse(&a, &a_qp, &read), "of the other direction");
    b.post(&b_qp, 1, read, &[b.sge(0, 64)]);
    assert_eq!(completion(&[&a, &b], &b).status, Status::LocalQpOperation);
}
