use engine::Status;
use wire::iwarp::{Framer, Msn, Opcode, Tagged, TaggedOffset, Untagged};

use super::*;

/// A side that has accepted a peer which speaks for itself.
fn with_raw_peer(settings: Settings) -> (Side, Arc<Front>, Raw, StreamListener) {
    let b = Side::new(settings);
    let listener = b.listen("127.0.0.1");
    let mut raw = Raw::call(listener.address());
    raw.say(&plain_request());
    let ReportKind::Requested(incoming) = report(&[&b], &b).kind else {
        panic!("not a request");
    };
    let front = b.queue_pair();
    b.accept(&front, incoming);
    let mut reply = [0; 20 + 4 + 7];
    raw.0.read_exact(&mut reply).expect("a reply");
    assert!(reply.starts_with(b"MPA ID Rep Frame"));
    let told = report(&[&b], &b).kind;
    assert!(matches!(told, ReportKind::Established { .. }), "{told:?}");
    (b, front, raw, listener)
}

fn fpdu(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = ((header.len() + payload.len()) as u16)
        .to_be_bytes()
        .to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(payload);
    Framer::new(false, false).seal(&mut bytes, 0);
    bytes
}

/// The connection has ended for this queue pair alone.
fn assert_ended(b: &Side, front: &Front) {
    let told = report(&[b], b).kind;
    assert!(matches!(told, ReportKind::Disconnected(_)), "{told:?}");
    assert_eq!(front.state(), State::Error);
}

/// Another connection to the same side still works.
fn assert_well(b: Side) {
    let a = Side::new(b.settings);
    let b_qp = b.queue_pair();
    let pair = Pair::on("127.0.0.1", a, b, b_qp);
    pair.b.post_receive(&pair.b_qp, 5, 0, 10);
    pair.a.post(&pair.a_qp, 6, send(), &[pair.a.sge(0, 10)]);
    let done = until(&pair.sides(), || {
        pair.b.completion().filter(|done| done.id == 5)
    });
    assert_eq!(done.status, Status::Success);
}

#[test]
fn garbage_is_an_error_of_its_own_queue_pair_and_told_to_the_peer() {
    for length in [1, 7, 64, 5000, 300_000] {
        let (b, front, mut raw, _listener) = with_raw_peer(Settings::default());
        let garbage: Vec<u8> = (0..length).map(|at| (at * 37 + 201) as u8).collect();
        raw.say(&garbage);
        raw.0
            .shutdown(std::net::Shutdown::Write)
            .expect("an open stream");
        assert_ended(&b, &front);
        let counted = b.counted(Some(&front));
        let reasons = counted
            .iter()
            .filter(|(name, _)| *name != "sent_terminates");
        let reasons: Vec<_> = reasons.collect();
        assert!(matches!(reasons[..], [(_, 1)]), "one reason: {counted:?}");
        // whatever it was answered, the connection ends
        let hearing = std::thread::spawn(move || raw.hear_all());
        until(&[&b], || hearing.is_finished().then_some(()));
        assert!(b.region.read(0, REGION).iter().all(|byte| *byte == 0));
        assert_well(b);
    }
}

#[test]
fn a_refused_write_is_answered_with_a_terminate() {
    let (b, front, mut raw, _listener) = with_raw_peer(Settings::default());
    b.post_receive(&front, 3, 0, 10);
    let foreign = Tagged::new(
        Opcode::Write,
        true,
        wire::MemoryKey(0x1234),
        TaggedOffset(0),
    );
    raw.say(&fpdu(&foreign.to_bytes(), b"never"));
    assert_ended(&b, &front);
    let done = completion(&[&b], &b);
    assert_eq!((done.id, done.status), (3, Status::Flushed));
    let hearing = std::thread::spawn(move || {
        let mut heard = [0; 64];
        let count = raw.0.read(&mut heard).expect("a Terminate");
        (heard[..count].to_vec(), raw)
    });
    until(&[&b], || hearing.is_finished().then_some(()));
    let (heard, raw) = hearing.join().expect("it was heard");
    let counted = [("sent_terminates", 1), ("rcvd_segment_err", 1)];
    assert_eq!(b.counted(Some(&front)), counted);
    // spec: RFC 5040 4.8: DDP, tagged, invalid STag
    assert_eq!(heard[2..4], [0x41, 0x47]);
    assert_eq!(heard[20..22], [0x11, 0x00]);
    drop(raw);
    assert_well(b);
}

#[test]
fn a_reset_at_any_byte_loses_the_connection_and_nothing_else() {
    let header = Untagged::new(Opcode::Send, true, Msn::FIRST, Default::default());
    let whole = fpdu(&header.to_bytes(), &[9; 40]);
    for length in 0..whole.len() {
        let (b, front, mut raw, _listener) = with_raw_peer(Settings::default());
        b.post_receive(&front, 3, 0, 64);
        raw.say(&whole[..length]);
        until(&[&b], || {
            let view = b.core.query(&front)?;
            (view.state == State::ReadyToSend).then_some(())
        });
        let linger = rustix::net::sockopt::set_socket_linger(&raw.0, Some(Duration::ZERO));
        linger.expect("a socket");
        drop(raw);
        assert_ended(&b, &front);
        let done = completion(&[&b], &b);
        assert_eq!(
            (done.id, done.status),
            (3, Status::Flushed),
            "{length} bytes"
        );
        assert_eq!(b.counted(Some(&front)), [("conn_lost", 1)]);
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    let b = Side::new(Settings::default());
    let listener = b.listen("127.0.0.1");
    let mut raw = Raw::call(listener.address());
    for byte in plain_request() {
        raw.say(&[byte]);
        b.serve();
    }
    let ReportKind::Requested(incoming) = report(&[&b], &b).kind else {
        panic!("not a request");
    };
    let front = b.queue_pair();
    b.accept(&front, incoming);
    b.post_receive(&front, 1, 0, 100);
    let header = Untagged::new(Opcode::Send, true, Msn::FIRST, Default::default());
    for byte in fpdu(&header.to_bytes(), b"slowly") {
        raw.say(&[byte]);
        b.serve();
    }
    let done = completion(&[&b], &b);
    assert_eq!((done.status, done.length), (Status::Success, 6));
    assert_eq!(b.region.read(0, 6), b"slowly");
}

#[test]
fn callers_that_say_nothing_or_nonsense_keep_nobody_out_and_are_counted() {
    let b = Side::new(Settings {
        link: Some(LINK),
        ..Settings::default()
    });
    let listener = b.listen("127.0.0.1");
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(Raw::call(listener.address()));
        b.serve(); // the backlog is shorter
    }
    let mut liar = Raw::call(listener.address());
    liar.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let hearing = std::thread::spawn(move || liar.hear_all());
    until(&[&b], || hearing.is_finished().then_some(()));
    let mut early = Raw::call(listener.address());
    early.say(&[plain_request(), b"too early".to_vec()].concat());
    let hearing = std::thread::spawn(move || early.hear_all());
    until(&[&b], || hearing.is_finished().then_some(()));
    assert!(b.reports.take().is_none(), "nobody asked properly");
    assert_eq!(b.counted(None), [("request_err", 2)]);
    // who says nothing and hangs up
    drop(silent.pop());
    until(&[&b], || {
        (b.counted(None) == [("request_err", 3)]).then_some(())
    });
    let mark = b.reception.counted_mark();
    let mut good = Raw::call(listener.address());
    good.say(&plain_request());
    let told = report(&[&b], &b).kind;
    assert!(matches!(told, ReportKind::Requested(_)), "{told:?}");
    // the silent ones are given up when their time is over
    let later = b.core.now().plus(Duration::from_secs(6));
    b.reception.serve(later);
    for raw in silent {
        let (heard, has_ended) = raw.hear_all();
        assert!(heard.is_empty() && !has_ended, "it was reset");
    }
    let counted = [("request_err", 3), ("request_timeout", 49)];
    assert_eq!(b.counted(None), counted);
    assert_ne!(b.reception.counted_mark(), mark);
}

#[test]
fn memory_that_goes_away_fails_its_own_work_request() {
    use crate::memory::tests::{PAGE, Pages};
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
        let pages = Pages::anonymous(64);
        // SAFETY: the pages outlive the device's use of them.
        let registered = unsafe {
            let (from, length) = (pages.address(), pages.length());
            a.core
                .memory
                .register(PD, from, length, from, Access::empty())
        };
        let key = registered.expect("mapped pages").key;
        b.post_receive(&pair.b_qp, 1, 0, 100);
        a.post(&pair.a_qp, 1, send(), &[a.sge(0, 100)]);
        assert_eq!(completion(&pair.sides(), a).status, Status::Success);
        assert_eq!(completion(&pair.sides(), b).status, Status::Success);
        pages.unmap_from(8);
        let all = Sge {
            address: pages.address(),
            length: (64 * PAGE) as u32,
            key,
        };
        a.post(&pair.a_qp, 2, Operation::Write(b.remote(0)), &[all]);
        let done = completion(&pair.sides(), a);
        assert_eq!((done.id, done.status), (2, Status::LocalProtection));
        for side in pair.sides() {
            let told = report(&pair.sides(), side).kind;
            assert!(matches!(told, ReportKind::Disconnected(_)), "{told:?}");
        }
        a.core.deregister(key).expect("registered");
    }
}
