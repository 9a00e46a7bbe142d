//! How connections end: by the program, by the peer, by time.

use super::*;
use crate::event::AsyncEvent;
use crate::qp::PostError;
use crate::shard::Posted;

const LATE: Instant = Instant::from_nanos(60_000_000_000);

fn disconnected(ending: Ending) -> Event {
    Event::Disconnected(ending)
}

fn is_over(told: &[Event], ending: Ending, how: Event) -> bool {
    told.contains(&disconnected(ending)) && told.last() == Some(&how)
}

#[test]
fn what_was_posted_and_asked_is_done_before_the_end() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[3; 8]), pair.passive.region(&[4; 8]));
    pair.active.post_receive(9, ours, 8);
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(1, read, &[sge(ours, 0, 8)]);
    let write = Operation::Write(remote(theirs, 0));
    pair.active.post(2, write, &[sge(ours, 0, 8)]);
    pair.active.qp.disconnect(NOW);
    assert_eq!(pair.active.qp.state(), State::SendQueueDrained);
    pair.active.post(3, write, &[sge(ours, 0, 8)]);
    assert_eq!(pair.active.told(), [], "not yet");
    pair.settle();
    assert_eq!(pair.active.told(), [Event::Finish]);
    assert_eq!(
        pair.active.sent(),
        [(1, Status::Success), (2, Status::Success)]
    );

    pair.passive.qp.handle_end();
    assert!(is_over(
        &pair.passive.told(),
        Ending::PeerClosed,
        Event::Close
    ));
    pair.active.qp.handle_end();
    assert!(is_over(&pair.active.told(), Ending::Closed, Event::Close));
    assert_eq!(pair.active.qp.state(), State::Error);
    assert_eq!(pair.active.sent(), [(3, Status::Flushed)]);
    assert_eq!(pair.active.received(), [(9, Status::Flushed, 0)]);
    assert_eq!(pair.lines.len(), 3, "the third work request never left");
    assert_eq!(pair.active.qp.next_deadline(), None);
}

#[test]
fn the_peer_may_send_until_it_has_seen_the_end() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[3; 8]), pair.passive.region(&[4; 8]));
    pair.active.post_receive(9, ours, 8);
    pair.active.qp.disconnect(NOW);
    assert_eq!(pair.active.told(), [Event::Finish]);
    pair.passive.post(1, Operation::Send, &[sge(theirs, 0, 8)]);
    pair.settle();
    assert_eq!(pair.active.received(), [(9, Status::Success, 8)]);
}

#[test]
fn a_peer_that_does_not_close_is_given_up() {
    let mut pair = Pair::open(Setting::default());
    pair.active.qp.disconnect(NOW);
    assert_eq!(pair.active.told(), [Event::Finish]);
    let deadline = pair.active.qp.next_deadline().unwrap();
    pair.active
        .qp
        .handle_timeout(Instant::from_nanos(deadline.as_nanos() - 1));
    assert_eq!(pair.active.told(), []);
    pair.active.qp.handle_timeout(deadline);
    assert!(is_over(&pair.active.told(), Ending::TimedOut, Event::Close));
    assert_eq!(pair.active.counted(), [("conn_timeout", 1)]);
}

#[test]
fn a_peer_that_does_not_read_what_is_wrong_is_given_up() {
    let mut pair = Pair::open(Setting::default());
    pair.forge(&[0xff; 20]);
    let told = pair.passive.told();
    assert!(matches!(
        told.last(),
        Some(Event::Disconnected(Ending::Refused(_)))
    ));
    assert_eq!(pair.passive.qp.state(), State::Error);
    // the socket has no room, so the Terminate is not asked for
    let deadline = pair.passive.qp.next_deadline().unwrap();
    pair.passive
        .qp
        .handle_timeout(Instant::from_nanos(deadline.as_nanos() - 1));
    assert_eq!(pair.passive.told(), []);
    pair.passive.qp.handle_timeout(deadline);
    assert_eq!(pair.passive.told(), [Event::Close]);
    assert_eq!(pair.passive.qp.next_deadline(), None);
}

#[test]
fn a_read_that_is_never_answered_does_not_keep_a_connection_open() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[3; 8]), pair.passive.region(&[4; 8]));
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(1, read, &[sge(ours, 0, 8)]);
    pair.active.transmit(&mut Vec::new());
    pair.active.qp.disconnect(NOW);
    pair.active.qp.handle_timeout(LATE);
    assert!(is_over(&pair.active.told(), Ending::TimedOut, Event::Close));
    assert_eq!(pair.active.sent(), [(1, Status::Flushed)]);
}

#[test]
fn the_end_within_an_fpdu_is_a_loss() {
    let mut pair = Pair::open(Setting::default());
    let ours = pair.active.region(&[3; 8]);
    pair.active.post(1, Operation::Send, &[sge(ours, 0, 8)]);
    let stream = pair.active.transmit(&mut Vec::new());
    pair.passive
        .receive(&stream[..stream.len() - 1], usize::MAX);
    pair.passive.qp.handle_end();
    assert!(is_over(&pair.passive.told(), Ending::Lost, Event::Abort));
    assert_eq!(pair.passive.counted(), [("conn_lost", 1)]);
}

#[test]
fn a_lost_connection_flushes_everything_and_ends_once() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[3; 8]), pair.passive.region(&[4; 8]));
    pair.active.post_receive(9, ours, 8);
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(1, read, &[sge(ours, 0, 8)]);
    pair.active.transmit(&mut Vec::new());
    pair.active.qp.handle_lost();
    assert!(is_over(&pair.active.told(), Ending::Lost, Event::Abort));
    assert_eq!(pair.active.sent(), [(1, Status::Flushed)]);
    assert_eq!(pair.active.received(), [(9, Status::Flushed, 0)]);
    pair.active.qp.handle_end();
    pair.active.qp.handle_lost();
    pair.active.qp.handle_timeout(LATE);
    pair.active.qp.disconnect(NOW);
    assert_eq!(pair.active.told(), []);
    assert_eq!(pair.active.counted(), [("conn_lost", 1)]);
}

#[test]
fn the_error_state_flushes_what_is_posted_later_and_is_for_good() {
    let mut pair = Pair::open(Setting::default());
    let ours = pair.active.region(&[3; 8]);
    assert!(pair.active.qp.set_state(NOW, State::Error));
    assert!(is_over(&pair.active.told(), Ending::Local, Event::Close));
    pair.active.post(4, Operation::Send, &[sge(ours, 0, 8)]);
    pair.active.post_receive(5, ours, 8);
    pair.active.qp.flush_receives();
    assert_eq!(pair.active.sent(), [(4, Status::Flushed)]);
    assert_eq!(pair.active.received(), [(5, Status::Flushed, 0)]);
    assert!(pair.active.qp.set_state(NOW, State::Reset));
    assert_eq!(pair.active.qp.state(), State::Error);
    assert_eq!(pair.active.counted(), [], "it was asked for");
}

#[test]
fn states_without_a_connection() {
    let mut end = End::new(Role::Active, &Setting::default());
    assert!(!end.qp.set_state(NOW, State::Init), "it is connected");
    let options = Options {
        qpn: Qpn::truncated(2),
        pd: PD,
        capabilities: Capabilities::default(),
        signal_all: false,
        send_cq: end.send_cq.clone(),
        receive_cq: end.receive_cq.clone(),
        receives: end.receives.clone(),
        extensions: false,
    };
    let mut qp = QueuePair::<ModelHost>::new(options);
    for state in [State::Init, State::ReadyToReceive, State::Reset] {
        assert!(qp.set_state(NOW, state));
        assert_eq!(qp.state(), state);
    }
    assert!(!qp.set_state(NOW, State::ReadyToSend), "only a stream does");
    let request = SendRequest {
        id: 1,
        operation: Operation::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        to: None,
    };
    assert_eq!(qp.post_send(&request), Err(PostError::WrongState));
    assert!(qp.set_state(NOW, State::Error));
    assert_eq!(qp.post_send(&request), Ok(Posted::Flushed));
    qp.assert_invariants();
}

#[test]
fn memory_that_is_gone_when_it_is_sent_ends_that_work_request_and_tells_the_peer() {
    let mut pair = Pair::open(Setting::default());
    let (good, gone) = (pair.active.region(&[3; 8]), pair.active.region(&[5; 3000]));
    let theirs = pair.passive.region(&[0; 3000]);
    let write = Operation::Write(remote(theirs, 0));
    pair.active.post(1, write, &[sge(good, 0, 8)]);
    pair.active.post(2, write, &[sge(gone, 0, 3000)]);
    pair.active.post(3, write, &[sge(good, 0, 8)]);
    // still registered, but the mapping ends: only the copy can know
    pair.active.memory.unmap_from(gone, 2000);
    pair.settle();
    assert_eq!(
        pair.active.sent(),
        [
            (1, Status::Success),
            (2, Status::LocalProtection),
            (3, Status::Flushed)
        ]
    );
    assert_eq!(
        pair.lines,
        [
            "> WRITE stag=0x000001a5 to=0x1000 length=8",
            "> WRITE stag=0x000001a5 to=0x1000 more length=1428",
            "> TERMINATE msn=1 mo=0 0/0/00 local-catastrophic-error",
        ]
    );
    let code = wire::iwarp::TerminateCode::LOCAL_CATASTROPHIC;
    assert!(is_over(
        &pair.passive.told(),
        Ending::PeerTerminated(code),
        Event::Close
    ));
    let told = pair.active.told();
    assert_eq!(told.last(), Some(&Event::Finish), "then the peer closes");
    pair.active.qp.handle_end();
    assert_eq!(pair.active.told(), [Event::Close]);
}

#[test]
fn an_answer_whose_memory_is_gone_ends_the_connection() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (
        pair.active.region(&[0; 3000]),
        pair.passive.region(&[4; 3000]),
    );
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(1, read, &[sge(ours, 0, 3000)]);
    pair.passive.memory.unmap_from(theirs, 100);
    pair.settle();
    assert_eq!(pair.active.sent(), [(1, Status::Flushed)]);
    let index = crate::burst::QpIndex(1);
    let told = pair.passive.told();
    assert!(told.contains(&Event::Async(AsyncEvent::AccessError(index))));
    assert!(told.contains(&disconnected(Ending::Local)));
}
