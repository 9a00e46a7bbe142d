//! Requests and replies, and who may send first.

use wire::ParseError;
use wire::iwarp::{Deframer, Depth, Enhanced, Kind, StartFrame};

use super::*;
use crate::iwarp::{
    Asked, AwaitingReply, AwaitingRequest, CrcPolicy, DEPTH_MAX, LinkOptions, Progress, StartError,
};

const LINK: LinkOptions = LinkOptions {
    crc: CrcPolicy::Off,
    markers: false,
    revision: Revision::Two,
    peer_to_peer: false,
    extensions: false,
};
const ONE: Depths = Depths { ird: 1, ord: 1 };

/// A request that is sent, and the state of who sent it.
fn ask(link: LinkOptions, depths: Depths, private_data: &[u8]) -> (AwaitingReply, Vec<u8>) {
    let mut out = Vec::new();
    let asking = AwaitingReply::start(NOW, link, depths, private_data, &mut out);
    (asking.unwrap(), out)
}

/// The request at who listens.
fn hear(link: LinkOptions, request: &[u8]) -> Asked {
    let mut out = Vec::new();
    let waiting = AwaitingRequest::start(NOW, link);
    match waiting.handle_bytes(request, &mut out) {
        Ok(Progress::Done(asked)) => asked,
        other => panic!("{other:?}"),
    }
}

/// The reply at who asked, and what it sends to that.
fn answer(asking: AwaitingReply, reply: &[u8]) -> (Result<Agreement, StartError>, Vec<u8>) {
    let mut out = Vec::new();
    let agreed = match asking.handle_bytes(reply, &mut out) {
        Ok(Progress::Done(agreement)) => Ok(agreement),
        Ok(Progress::Waiting(_)) => panic!("the reply is whole"),
        Err(error) => Err(error),
    };
    (agreed, out)
}

/// Both ends through, with these options.
fn agree(
    active: (LinkOptions, Depths),
    passive: (LinkOptions, Depths),
) -> Result<(Agreement, Agreement), StartError> {
    let (asking, request) = ask(active.0, active.1, b"ask");
    let asked = hear(passive.0, &request);
    assert_eq!(asked.private_data(), b"ask");
    let mut reply = Vec::new();
    let theirs = asked.accept(passive.1, b"yes", &mut reply)?;
    let ours = answer(asking, &reply).0?;
    assert_eq!(ours.private_data, b"yes");
    assert_eq!(ours.has_crc, theirs.has_crc);
    assert_eq!(ours.rtr, theirs.rtr);
    assert_eq!(ours.sends_markers, theirs.receives_markers);
    assert_eq!(ours.receives_markers, theirs.sends_markers);
    Ok((ours, theirs))
}

fn line(kind: Kind, bytes: &[u8]) -> String {
    StartFrame::parse(kind, bytes)
        .unwrap()
        .unwrap()
        .0
        .to_string()
}

/// As the kernel's siw does it in `siw-rping`, `siw-crc-rping`, `siw-v1-rping`, `siw-p2p-rping` and
/// `siw-reject-by-server`.
#[test]
fn frames_are_those_of_siw() {
    let crc = LinkOptions {
        crc: CrcPolicy::On,
        ..LINK
    };
    let old = LinkOptions {
        revision: Revision::One,
        ..LINK
    };
    let peer_to_peer = LinkOptions {
        peer_to_peer: true,
        ..LINK
    };
    for (link, request, reply) in [
        (LINK, "rev=2 ird=1 ord=1", "rev=2 ird=1 ord=1"),
        (crc, "rev=2 crc ird=1 ord=1", "rev=2 crc ird=1 ord=1"),
        (old, "rev=1", "rev=1"),
        (
            peer_to_peer,
            "rev=2 ird=1 ord=1 peer-to-peer rtr-write rtr-read",
            "rev=2 ird=1 ord=1 peer-to-peer rtr-write",
        ),
    ] {
        let (_, asked) = ask(link, ONE, &[]);
        let expected = format!("MPA request {request} private=0");
        assert_eq!(line(Kind::Request, &asked), expected);
        let mut out = Vec::new();
        hear(LINK, &asked).accept(ONE, &[], &mut out).unwrap();
        let expected = format!("MPA reply {reply} private=0");
        assert_eq!(line(Kind::Reply, &out), expected);
    }
    let (asking, asked) = ask(LINK, ONE, &[]);
    let mut out = Vec::new();
    hear(LINK, &asked).reject(b"no", &mut out).unwrap();
    let expected = "MPA reply rev=2 rejected ird=1 ord=1 private=2";
    assert_eq!(line(Kind::Reply, &out), expected);
    let rejected = StartError::Rejected(b"no".to_vec());
    assert_eq!(answer(asking, &out), (Err(rejected), vec![]));
}

#[test]
fn frames_may_come_byte_by_byte() {
    let (mut asking, request) = ask(LINK, ONE, b"hello");
    let mut out = Vec::new();
    let mut waiting = AwaitingRequest::start(NOW, LINK);
    let (last, first) = request.split_last().unwrap();
    for byte in first {
        waiting = match waiting.handle_bytes(&[*byte], &mut out) {
            Ok(Progress::Waiting(waiting)) => waiting,
            other => panic!("{other:?}"),
        };
    }
    let Ok(Progress::Done(asked)) = waiting.handle_bytes(&[*last], &mut out) else {
        panic!("it is whole");
    };
    assert_eq!(asked.private_data(), b"hello");
    asked.accept(ONE, b"welcome", &mut out).unwrap();
    let (last, first) = out.split_last().unwrap();
    for byte in first {
        asking = match asking.handle_bytes(&[*byte], &mut Vec::new()) {
            Ok(Progress::Waiting(asking)) => asking,
            other => panic!("{other:?}"),
        };
    }
    let agreed = asking.handle_bytes(&[*last], &mut Vec::new());
    assert!(matches!(agreed, Ok(Progress::Done(_))));
}

#[test]
fn depths_are_the_least_of_what_one_takes_and_the_other_wants() {
    let depths = |ird, ord| Depths { ird, ord };
    for (active, passive, ours, theirs) in [
        (depths(2, 2), depths(2, 2), depths(2, 2), depths(2, 2)),
        // who accepts lowers its own ORD and raises its IRD
        (depths(3, 9), depths(4, 8), depths(3, 9), depths(9, 3)),
        (depths(0, 0), depths(4, 4), depths(0, 0), depths(4, 0)),
        (
            depths(999, 999),
            depths(1, 1),
            depths(DEPTH_MAX, DEPTH_MAX),
            depths(DEPTH_MAX, 1),
        ),
    ] {
        let (one, other) = agree((LINK, active), (LINK, passive)).unwrap();
        assert_eq!((one.depths, other.depths), (ours, theirs));
        // the reply is told as it is, by who asked from its own view
        let mirrored = depths(theirs.ord, theirs.ird);
        assert_eq!((one.replied, other.replied), (mirrored, theirs));
    }
}

#[test]
fn what_the_program_is_offered() {
    let (_, request) = ask(LINK, Depths { ird: 3, ord: 5 }, &[]);
    let offered = hear(LINK, &request).offered();
    assert_eq!(offered, Depths { ird: 5, ord: 3 });
    let old = LinkOptions {
        revision: Revision::One,
        ..LINK
    };
    let (_, request) = ask(old, Depths { ird: 3, ord: 5 }, &[]);
    assert_eq!(hear(LINK, &request).offered(), Depths::default());
}

#[test]
fn numbers_that_are_not_negotiated_are_answered_as_such() {
    let request = StartFrame {
        enhanced: Some(Enhanced {
            ird: Depth::NOT_NEGOTIATED,
            ord: Depth::NOT_NEGOTIATED,
            ..Enhanced::default()
        }),
        ..StartFrame::new(Kind::Request, Revision::Two)
    };
    let mut bytes = Vec::new();
    request.emit_into(&mut bytes).unwrap();
    let mut reply = Vec::new();
    let local = Depths { ird: 4, ord: 5 };
    let agreed = hear(LINK, &bytes).accept(local, &[], &mut reply).unwrap();
    assert_eq!(agreed.depths, local);
    assert_eq!(
        line(Kind::Reply, &reply),
        "MPA reply rev=2 ird=any ord=any private=0"
    );
    let (asking, _) = ask(LINK, local, &[]);
    assert_eq!(answer(asking, &reply).0.unwrap().depths, local);
}

#[test]
fn crcs_are_used_if_either_end_wants() {
    use CrcPolicy::{Off, On, Required};
    for (active, passive, expected) in [
        (Off, Off, false),
        (On, Off, true),
        // siw takes no CRC that it did not ask for
        (Off, On, false),
        (Off, Required, true),
        (Required, Off, true),
    ] {
        let link = |crc| LinkOptions { crc, ..LINK };
        let (ours, _) = agree((link(active), ONE), (link(passive), ONE)).unwrap();
        assert_eq!(ours.has_crc, expected, "{active:?} {passive:?}");
    }
}

#[test]
fn markers_are_for_links_that_have_them() {
    let markers = LinkOptions {
        markers: true,
        ..LINK
    };
    let (ours, theirs) = agree((markers, ONE), (markers, ONE)).unwrap();
    assert!(ours.sends_markers && theirs.sends_markers);
    let (_, request) = ask(markers, ONE, &[]);
    let mut out = Vec::new();
    let heard = AwaitingRequest::start(NOW, LINK).handle_bytes(&request, &mut out);
    assert!(matches!(heard, Err(StartError::Markers)));
    let expected = "MPA reply rev=2 rejected ird=1 ord=1 private=0";
    assert_eq!(line(Kind::Reply, &out), expected);
    // and who listens may not want them from a link without
    let (asking, request) = ask(LINK, ONE, &[]);
    let mut reply = Vec::new();
    hear(markers, &request)
        .accept(ONE, &[], &mut reply)
        .unwrap();
    assert_eq!(answer(asking, &reply).0, Err(StartError::Markers));
}

/// A reply with these numbers to a request of `link`.
fn answered(link: LinkOptions, enhanced: Enhanced) -> (Result<Agreement, StartError>, Vec<u8>) {
    let (asking, _) = ask(link, ONE, &[]);
    let reply = StartFrame {
        enhanced: Some(enhanced),
        ..StartFrame::new(Kind::Reply, Revision::Two)
    };
    let mut bytes = Vec::new();
    reply.emit_into(&mut bytes).unwrap();
    answer(asking, &bytes)
}

#[test]
fn a_reply_that_cannot_be_kept_to_is_told_by_a_terminate() {
    let peer_to_peer = LinkOptions {
        peer_to_peer: true,
        ..LINK
    };
    let many = Enhanced {
        ird: Depth::saturating(1),
        ord: Depth::saturating(DEPTH_MAX + 1),
        ..Enhanced::default()
    };
    let no_rtr = Enhanced {
        peer_to_peer: true,
        rtr_send: true,
        ..Enhanced::default()
    };
    for (link, enhanced, error, expected) in [
        (
            LINK,
            many,
            StartError::TooManyReads,
            "TERMINATE msn=1 mo=0 2/0/06 mpa-insufficient-ird",
        ),
        (
            peer_to_peer,
            no_rtr,
            StartError::NoRtr,
            "TERMINATE msn=1 mo=0 2/0/07 mpa-no-matching-rtr",
        ),
    ] {
        let (agreed, out) = answered(link, enhanced);
        assert_eq!(agreed, Err(error));
        let mut deframer = Deframer::new(false, false);
        let fpdu = deframer.next(&out).unwrap().unwrap();
        let segment = Segment::parse(fpdu.ulpdu).unwrap();
        assert_eq!(segment.to_string(), expected);
        assert_eq!(fpdu.length, out.len());
    }
    let unasked = answered(LINK, no_rtr);
    assert_eq!(unasked, (Err(StartError::NotAsked), vec![]));
}

#[test]
fn what_is_no_frame_comes_too_early_or_is_too_new() {
    let (asking, request) = ask(LINK, ONE, &[]);
    let listen = || AwaitingRequest::start(NOW, LINK);
    let mut out = Vec::new();
    let early = [&request[..], b"!"].concat();
    let heard = listen().handle_bytes(&early, &mut out);
    assert!(matches!(heard, Err(StartError::TooEarly)));
    let heard = listen().handle_bytes(b"GET / HTTP/1.1", &mut out);
    let Err(StartError::Invalid(ParseError { field, .. })) = heard else {
        panic!("{heard:?}");
    };
    assert_eq!(field, "key");
    let mut reply = Vec::new();
    hear(LINK, &request).accept(ONE, &[], &mut reply).unwrap();
    let early = [&reply[..], &[0; 600]].concat();
    assert_eq!(answer(asking, &early).0, Err(StartError::TooEarly));
    let old = LinkOptions {
        revision: Revision::One,
        ..LINK
    };
    let (asking, _) = ask(old, ONE, &[]);
    assert_eq!(answer(asking, &reply).0, Err(StartError::NotAsked));
}

#[test]
fn private_data_has_its_bound() {
    let most = [1; 508];
    let (_, request) = ask(LINK, ONE, &most);
    assert_eq!(hear(LINK, &request).private_data(), most);
    let mut out = Vec::new();
    let refused = AwaitingReply::start(NOW, LINK, ONE, &[1; 509], &mut out);
    assert!(matches!(refused, Err(StartError::PrivateData(_))));
    assert!(out.is_empty());
}

#[test]
fn a_silent_peer_is_given_up() {
    let (asking, _) = ask(LINK, ONE, &[]);
    let deadline = asking.deadline();
    assert_eq!(deadline.since(NOW), Duration::from_secs(10));
    let asking = asking
        .handle_timeout(Instant::from_nanos(deadline.as_nanos() - 1))
        .unwrap();
    let late = asking.handle_timeout(deadline);
    assert!(matches!(late, Err(StartError::TimedOut)));
    let waiting = AwaitingRequest::start(NOW, LINK);
    let deadline = waiting.deadline();
    assert_eq!(deadline.since(NOW), Duration::from_secs(5));
    let late = waiting.handle_timeout(deadline);
    assert!(matches!(late, Err(StartError::TimedOut)));
}

#[test]
fn who_accepted_sends_nothing_before_it_has_heard() {
    let mut pair = Pair::new(Setting::default());
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[1; 8]));
    pair.active.post_receive(1, ours, 8);
    pair.passive.post(1, Operation::Send, &[sge(theirs, 0, 8)]);
    pair.settle();
    assert!(pair.lines.is_empty(), "it waits");
    pair.active
        .post(2, Operation::Write(RemoteMemory::default()), &[]);
    pair.settle();
    assert_eq!(pair.lines.len(), 2);
    assert_eq!(pair.active.received(), [(1, Status::Success, 8)]);
}

#[test]
fn who_accepted_waits_no_longer_than_it_is_told_to() {
    let mut pair = Pair::new(Setting::default());
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[1; 8]));
    pair.active.post_receive(1, ours, 8);
    pair.passive.post(1, Operation::Send, &[sge(theirs, 0, 8)]);
    pair.passive.qp.hear_until(NOW);
    assert_eq!(pair.passive.qp.next_deadline(), Some(NOW));
    pair.passive.qp.handle_timeout(Instant::default());
    pair.settle();
    assert!(pair.lines.is_empty(), "it waits");
    pair.passive.qp.handle_timeout(NOW);
    pair.settle();
    assert_eq!(pair.active.received(), [(1, Status::Success, 8)]);
}

#[test]
fn a_peer_that_says_nothing_is_reminded_three_times() {
    let mut pair = Pair::open(Setting::default());
    assert_eq!(pair.passive.qp.next_deadline(), None, "it has heard us");
    let since = NOW;
    for after_ms in [10, 100, 1000] {
        let due = since.plus(Duration::from_millis(after_ms));
        assert_eq!(pair.active.qp.next_deadline(), Some(due));
        let early = Instant::from_nanos(due.as_nanos() - 1);
        pair.active.qp.handle_timeout(early);
        pair.settle();
        assert!(pair.lines.is_empty(), "not before it is time");
        pair.active.qp.handle_timeout(due);
        pair.settle();
        assert_eq!(pair.lines, ["> WRITE stag=0x00000001 to=0x0 length=0"]);
        pair.lines.clear();
    }
    assert_eq!(pair.active.qp.next_deadline(), None, "that must do");
    assert_eq!(pair.passive.told(), []);
    assert!(pair.active.sent().is_empty() && pair.passive.received().is_empty());
}

#[test]
fn nobody_is_reminded_who_has_answered_or_hears_something_new() {
    let mut pair = Pair::open(Setting::default());
    let since = NOW;
    let at = |after_ms| since.plus(Duration::from_millis(after_ms));
    // what was sent since is a reminder itself; of looks that were missed, the last one counts
    pair.active
        .post(1, Operation::Write(RemoteMemory::default()), &[]);
    pair.settle();
    pair.lines.clear();
    pair.active.qp.handle_timeout(at(100));
    pair.settle();
    assert!(pair.lines.is_empty());
    assert_eq!(pair.active.qp.next_deadline(), Some(at(1000)));
    pair.passive
        .post(2, Operation::Write(RemoteMemory::default()), &[]);
    pair.settle();
    assert_eq!(pair.active.qp.next_deadline(), None);
    pair.active.qp.handle_timeout(at(1000));
    pair.lines.clear();
    pair.settle();
    assert!(pair.lines.is_empty());
    assert_eq!(pair.active.told(), []);
}

#[test]
fn who_asked_knows_how_much_of_the_reply_is_missing() {
    let (mut asking, request) = ask(LINK, ONE, &[]);
    let mut reply = Vec::new();
    hear(LINK, &request)
        .accept(ONE, b"yes", &mut reply)
        .unwrap();
    assert_eq!(asking.missing(), 20);
    let mut rest = &reply[..];
    while rest.len() > 1 {
        let step = asking.missing().min(rest.len() - 1).min(7);
        let (now, later) = rest.split_at(step);
        let Ok(Progress::Waiting(more)) = asking.handle_bytes(now, &mut Vec::new()) else {
            panic!("it is not whole");
        };
        (asking, rest) = (more, later);
    }
    assert_eq!(asking.missing(), 1);
}

#[test]
fn the_rtr_message_opens_the_other_end_and_completes_nothing() {
    for (rtr, expected) in [
        (Rtr::Write, &["> WRITE stag=0x00000001 to=0x0 length=0"][..]),
        (
            Rtr::Read,
            &[
                "> READ_REQUEST msn=1 mo=0 length=0 source=0x00000001@0x0 sink=0x00000001@0x0",
                "< READ_RESPONSE stag=0x00000001 to=0x0 length=0",
            ],
        ),
        (Rtr::Send, &["> SEND msn=1 mo=0 length=0"]),
    ] {
        let setting = Setting {
            rtr: Some(rtr),
            depths: ONE,
            ..Setting::default()
        };
        let mut active = End::new(Role::Active, &setting);
        let mut passive = End::new(Role::Passive, &setting);
        assert_eq!(active.told(), [Event::Established]);
        assert_eq!(passive.told(), [], "it has heard nothing");
        let mut pair = Pair {
            active,
            passive,
            setting,
            lines: Vec::new(),
        };
        pair.settle();
        assert_eq!(pair.lines, expected, "{rtr:?}");
        assert_eq!(pair.passive.told(), [Event::Established]);
        assert!(pair.active.sent().is_empty() && pair.passive.received().is_empty());
        // the numbers of what follows count it
        let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[1; 8]));
        pair.passive.post_receive(4, theirs, 8);
        let read = Operation::Read(remote(theirs, 0));
        pair.active.post(1, read, &[sge(ours, 0, 8)]);
        if rtr != Rtr::Send {
            pair.active.post(2, Operation::Send, &[sge(ours, 0, 8)]);
        }
        pair.settle();
        assert_eq!(pair.active.sent()[0], (1, Status::Success), "{rtr:?}");
        assert_eq!(pair.passive.qp.state(), State::ReadyToSend);
    }
}

#[test]
fn an_rtr_message_that_does_not_come_is_not_waited_for_without_end() {
    let setting = Setting {
        rtr: Some(Rtr::Write),
        ..Setting::default()
    };
    let mut passive = End::new(Role::Passive, &setting);
    let deadline = passive.qp.next_deadline().unwrap();
    passive.qp.handle_timeout(deadline);
    assert_eq!(
        passive.told(),
        [
            Event::Async(crate::event::AsyncEvent::StateChanged {
                qp: crate::burst::QpIndex(1),
                state: State::Error,
            }),
            Event::Disconnected(Ending::TimedOut),
            Event::Close,
        ]
    );
}
