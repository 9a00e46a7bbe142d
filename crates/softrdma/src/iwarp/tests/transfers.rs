use engine::{CompletionOpcode, Status};
use wire::iwarp::Revision;

use super::*;

/// What a link may be set to.
fn kinds() -> Vec<(&'static str, Settings)> {
    let plain = Settings::default();
    let with = |options| Settings { options, ..plain };
    let options = plain.options;
    vec![
        ("plain", plain),
        (
            "CRC",
            with(LinkOptions {
                crc: CrcPolicy::On,
                ..options
            }),
        ),
        (
            "markers and CRC",
            with(LinkOptions {
                crc: CrcPolicy::Required,
                markers: true,
                ..options
            }),
        ),
        (
            "peer-to-peer",
            with(LinkOptions {
                peer_to_peer: true,
                ..options
            }),
        ),
        (
            "revision 1",
            with(LinkOptions {
                revision: Revision::One,
                ..options
            }),
        ),
        (
            "long segments",
            Settings {
                segment: Segment::Bytes(u16::MAX),
                ..plain
            },
        ),
        (
            "short segments",
            Settings {
                segment: Segment::Bytes(200),
                ..plain
            },
        ),
    ]
}

const SIZES: [usize; 7] = [0, 1, 80, 2048, 2049, 65_536, 1 << 20];

#[test]
fn everything_arrives_whatever_a_link_is_set_to() {
    for address in ["127.0.0.1", "::1"] {
        for (kind, settings) in kinds() {
            let pair = Pair::new(address, settings);
            let (a, b) = (&pair.a, &pair.b);
            for (at, size) in SIZES.into_iter().enumerate() {
                let id = at as u64;
                let what = format!("{kind} over {address}, {size} bytes");
                // the message goes to the second half, the write to the first
                b.post_receive(&pair.b_qp, id, REGION / 2, 1 << 20);
                let source = a.sge(at, size);
                let write = Operation::Write(b.remote(3));
                a.post(&pair.a_qp, id, write, &[source]);
                a.post(&pair.a_qp, 100 + id, send(), &[source]);
                for (expected, opcode) in [
                    (id, CompletionOpcode::RdmaWrite),
                    (100 + id, CompletionOpcode::Send),
                ] {
                    let done = completion(&pair.sides(), a);
                    assert_eq!(
                        (done.id, done.status),
                        (expected, Status::Success),
                        "{what}"
                    );
                    assert_eq!(done.opcode, opcode, "{what}");
                }
                let done = completion(&pair.sides(), b);
                assert_eq!((done.id, done.status), (id, Status::Success), "{what}");
                assert_eq!(done.length as usize, size, "{what}");
                let sent = a.region.read(at, size);
                assert!(
                    b.region.read(REGION / 2, size) == sent,
                    "{what}: the message"
                );
                assert!(b.region.read(3, size) == sent, "{what}: the write");
            }
        }
    }
}

#[test]
fn reads_come_back_in_both_directions() {
    for (kind, settings) in kinds() {
        if kind == "revision 1" {
            continue; // nothing is negotiated there: the depths are each side's own
        }
        let pair = Pair::new("127.0.0.1", settings);
        let (a, b) = (&pair.a, &pair.b);
        // more than may be outstanding
        for id in 0..9 {
            let read = Operation::Read(a.remote(id * 100_000));
            b.post(&pair.b_qp, id as u64, read, &[b.sge(id * 100_000, 99_999)]);
        }
        // who accepted may speak once it has heard something
        let inline = Payload::Inline(b"go");
        b.post_receive(&pair.b_qp, 77, REGION - 8, 8);
        a.post_with(&pair.a_qp, 0, send(), SendFlags::empty(), inline);
        let done = completion(&pair.sides(), b);
        assert_eq!((done.id, done.status), (77, Status::Success), "{kind}");
        for id in 0..9 {
            let done = completion(&pair.sides(), b);
            assert_eq!((done.id, done.status), (id, Status::Success), "{kind}");
            assert_eq!(done.opcode, CompletionOpcode::RdmaRead);
        }
        for id in 0..9 {
            let at = id * 100_000;
            assert!(
                b.region.read(at, 99_999) == a.region.read(at, 99_999),
                "{kind}"
            );
            assert_eq!(
                b.region.read(at + 99_999, 1),
                [0],
                "{kind}: not a byte more"
            );
        }
        a.post(
            &pair.a_qp,
            5,
            Operation::Read(b.remote(50)),
            &[a.sge(0, 10)],
        );
        let done = completion(&pair.sides(), a);
        assert_eq!((done.id, done.status), (5, Status::Success), "{kind}");
        assert!(a.region.read(0, 10) == b.region.read(50, 10), "{kind}");
    }
}

#[test]
fn only_what_asks_for_one_has_a_completion() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    for id in 0..3 {
        b.post_receive(&pair.b_qp, id, 0, 100);
    }
    let inline = Payload::Inline(b"inline, and soon overwritten");
    a.post_with(&pair.a_qp, 1, send(), SendFlags::empty(), inline);
    a.post_with(&pair.a_qp, 2, send(), SendFlags::SOLICITED, inline);
    a.post_with(&pair.a_qp, 3, send(), SendFlags::SIGNALED, inline);
    assert_eq!(completion(&pair.sides(), a).id, 3);
    for id in 0..3 {
        assert_eq!(completion(&pair.sides(), b).id, id);
    }
    assert!(a.completion().is_none() && b.completion().is_none());
    assert_eq!(b.region.read(0, 12), b"inline, and ");
}

#[test]
fn who_takes_what_left_at_once_does_not_relieve_the_thread_that_brings_the_answers() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (core, cq) = (&pair.a.core, &pair.a.cq);
    let last_poll = || {
        let now = core.now();
        now.as_nanos() - core.shard.silence_ns(now)
    };
    let poll = || {
        let mut one = [WorkCompletion::success(
            0,
            CompletionOpcode::Send,
            0,
            Qpn::default(),
        )];
        core.poll(cq, &mut one, || (), || ())
    };
    let write = |to: &Side, from: &Side, qp| {
        from.post(qp, 1, Operation::Write(to.remote(0)), &[from.sge(0, 2)]);
    };
    write(&pair.b, &pair.a, &pair.a_qp);
    assert_eq!(poll(), 1, "it is complete as it has left");
    let first = last_poll();
    assert_eq!(first, 0, "the connection was set up without a poll");
    core.shard.stamp_poll(core.now());
    write(&pair.b, &pair.a, &pair.a_qp);
    let before = last_poll();
    assert_eq!(poll(), 1);
    let stamped = last_poll();
    assert!(stamped > before, "nobody else has brought anything since");
    write(&pair.a, &pair.b, &pair.b_qp);
    until(&[&pair.b, &pair.a], || {
        (pair.a.region.read(0, 2) == pair.b.region.read(0, 2)).then_some(())
    });
    write(&pair.b, &pair.a, &pair.a_qp);
    assert_eq!(poll(), 1);
    assert_eq!(last_poll(), stamped, "the answer came without a poll");
}

#[test]
fn a_peer_that_does_not_read_stops_the_sender_and_nothing_is_lost() {
    for crc in [CrcPolicy::Off, CrcPolicy::On] {
        let options = LinkOptions {
            crc,
            ..LinkOptions::default()
        };
        let settings = Settings {
            options,
            ..Settings::default()
        };
        let pair = Pair::new("127.0.0.1", settings);
        let (a, b) = (&pair.a, &pair.b);
        const MESSAGE: usize = 1 << 20;
        const MESSAGES: u64 = 40;
        for id in 0..MESSAGES {
            b.post_receive(&pair.b_qp, id, 0, MESSAGE);
            a.post(&pair.a_qp, id, send(), &[a.sge(id as usize, MESSAGE)]);
        }
        // until the socket is full
        let mut complete = 0;
        while !a.core.shard.lock().streams.is_full() {
            a.serve();
            while a.completion().is_some() {
                complete += 1;
            }
        }
        assert!(complete < MESSAGES, "the kernel holds 40 MiB");
        let kept = |side: &Side| side.core.shard.lock().streams.kept();
        assert!(kept(a) > 0, "what the socket has no room for");
        for id in 0..MESSAGES {
            let done = completion(&pair.sides(), b);
            assert_eq!((done.id, done.status), (id, Status::Success));
            assert!(
                b.region.read(MESSAGE - 10, 10) == a.region.read(id as usize + MESSAGE - 10, 10)
            );
            while a.completion().is_some() {
                complete += 1;
            }
        }
        while complete < MESSAGES {
            assert_eq!(completion(&pair.sides(), a).status, Status::Success);
            complete += 1;
        }
        assert_eq!((kept(a), kept(b)), (0, 0), "nothing is on its way");
    }
}

#[test]
fn what_is_complete_arrives_though_the_queue_pair_is_destroyed() {
    let pair = Pair::new("127.0.0.1", Settings::default());
    let (a, b) = (&pair.a, &pair.b);
    const MESSAGE: usize = 100_000;
    for id in 0..200 {
        b.post_receive(&pair.b_qp, id, 0, MESSAGE);
        a.post(&pair.a_qp, id, send(), &[a.sge(0, MESSAGE)]);
    }
    a.serve();
    let complete = std::iter::from_fn(|| a.completion()).count();
    a.core.destroy_queue_pair(&pair.a_qp);
    assert!(complete > 0);
    for id in 0..complete as u64 {
        let done = completion(&pair.sides(), b);
        assert_eq!((done.id, done.status), (id, Status::Success));
    }
    let told = until(&pair.sides(), || b.reports.take());
    assert!(matches!(told.kind, ReportKind::Disconnected(_)), "{told:?}");
    until(&pair.sides(), || {
        (pair.b_qp.state() == State::Error).then_some(())
    });
}

#[test]
fn many_connections_take_turns_and_one_that_floods_holds_nobody_up() {
    const CONNECTIONS: u64 = 10;
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let listener = b.listen("127.0.0.1");
    let mut callers = Vec::new();
    let mut takers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (a_qp, b_qp) = (a.queue_pair(), b.queue_pair());
        a.call(&a_qp, listener.address(), b"");
        let ReportKind::Requested(incoming) = report(&[&a, &b], &b).kind else {
            panic!("not a request");
        };
        b.accept(&b_qp, incoming);
        for side in [&a, &b] {
            let told = report(&[&a, &b], side).kind;
            assert!(matches!(told, ReportKind::Established { .. }), "{told:?}");
        }
        callers.push(a_qp);
        takers.push(b_qp);
    }
    for (id, (caller, taker)) in callers.iter().zip(&takers).enumerate().skip(1) {
        b.post_receive(taker, id as u64, 4096 * id, 8);
        for _ in 0..50 {
            let flood = Operation::Write(b.remote(REGION / 2));
            let all = [a.sge(0, 1 << 20)];
            let flags = SendFlags::empty();
            a.post_with(&callers[0], 0, flood, flags, Payload::Sges(&all));
            a.serve();
            if callers[0].state() != State::ReadyToSend {
                break;
            }
        }
        a.post(caller, id as u64, send(), &[a.sge(id, 8)]);
        let done = completion(&[&a, &b], &b);
        assert_eq!((done.id, done.status), (id as u64, Status::Success));
        // the flood may come to its end
        until(&[&a, &b], || {
            let mut inner = a.core.shard.lock();
            inner.settle(&callers[0]);
            let is_done =
                inner.streams.query(callers[0].index()).is_some() && !inner.streams.is_full();
            is_done.then_some(())
        });
        while a.completion().is_some() {}
    }
}

#[test]
fn receives_are_shared_by_connections() {
    let (a, b) = (
        Side::new(Settings::default()),
        Side::new(Settings::default()),
    );
    let shared = SharedReceiveQueue::new(15, 1, Arc::clone(&b.events));
    let shared = Arc::new(shared.expect("sizes within bounds"));
    for id in 0..4 {
        let wqe = ReceiveWqe {
            id,
            sges: [b.sge(100 * id as usize, 100)].into_iter().collect(),
        };
        shared.post(wqe).expect("there is room");
    }
    let b_qp = b.queue_pair_on(Some(&shared));
    let pair = Pair::on("127.0.0.1", a, b, b_qp);
    for id in 0..4 {
        pair.a.post(&pair.a_qp, id, send(), &[pair.a.sge(0, 50)]);
        let done = completion(&pair.sides(), &pair.b);
        assert_eq!((done.id, done.status), (id, Status::Success));
    }
    // there is no fifth
    pair.a.post(&pair.a_qp, 4, send(), &[pair.a.sge(0, 50)]);
    for side in pair.sides() {
        let told = report(&pair.sides(), side).kind;
        assert!(matches!(told, ReportKind::Disconnected(_)), "{told:?}");
    }
}
