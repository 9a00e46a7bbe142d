use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno as RawErrno, read};

use super::*;

pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    let mut ready = [PollFd::new(&descriptor, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut ready, Some(&at_once)).expect("a valid descriptor") == 1
}

fn queue() -> Events<u8> {
    Events::new().expect("a descriptor")
}

/// What a C program does: read a token, then ask what it was.
fn read_one(events: &Events<u8>) -> Option<Event<u8>> {
    let mut token = [0; 8];
    assert_eq!(read(events, &mut token), Ok(8));
    assert_eq!(u64::from_ne_bytes(token), 1, "one read is one event");
    events.pop()
}

#[test]
fn readable_while_there_are_events_and_in_their_order() {
    let events = queue();
    assert!(!is_readable(&events));
    for kind in 0..3 {
        events.push(kind, u64::from(kind) + 100);
    }
    for kind in 0..3 {
        assert!(is_readable(&events));
        assert_eq!(
            read_one(&events),
            Some(Event {
                kind,
                cookie: u64::from(kind) + 100
            })
        );
    }
    assert!(!is_readable(&events));
}

#[test]
fn the_program_may_make_it_non_blocking() {
    let events = queue();
    rustix::fs::fcntl_setfl(&events, rustix::fs::OFlags::NONBLOCK).expect("it can be set");
    assert_eq!(read(&events, &mut [0; 8]), Err(RawErrno::AGAIN));
    events.push(1, 2);
    assert!(read_one(&events).is_some());
    assert_eq!(read(&events, &mut [0; 8]), Err(RawErrno::AGAIN));
}

#[test]
fn trying_never_blocks_on_a_blocking_descriptor() {
    let events = queue();
    assert_eq!(events.try_next(), None);
    events.push(4, 5);
    assert_eq!(events.try_next(), Some(Event { kind: 4, cookie: 5 }));
    assert_eq!(events.try_next(), None);
    assert!(!is_readable(&events));
}

#[test]
fn retiring_takes_back_what_was_not_fetched() {
    let events = queue();
    events.push(1, 7);
    events.push(2, 8);
    events.push(3, 7);
    events.retire(7);
    assert!(is_readable(&events));
    assert_eq!(read_one(&events), Some(Event { kind: 2, cookie: 8 }));
    assert!(!is_readable(&events));
}

#[test]
fn a_reader_that_was_faster_than_retiring_reads_again() {
    let events = queue();
    events.push(1, 7);
    assert_eq!(read(&events, &mut [0; 8]), Ok(8));
    events.retire(7);
    assert_eq!(events.pop(), None);
    events.push(2, 8);
    assert_eq!(read_one(&events), Some(Event { kind: 2, cookie: 8 }));
}

#[test]
fn retiring_waits_for_acknowledgements() {
    let events = Arc::new(queue());
    for _ in 0..3 {
        events.push(1, 7);
        read_one(&events).expect("an event");
    }
    events.push(1, 8);
    read_one(&events).expect("an event of another object, which is not waited for");
    let retired = Arc::new(AtomicBool::new(false));
    let waiter = {
        let (events, retired) = (Arc::clone(&events), Arc::clone(&retired));
        thread::spawn(move || {
            events.retire(7);
            retired.store(true, Ordering::SeqCst);
        })
    };
    events.acknowledge(7, 1);
    events.acknowledge(8, 1);
    thread::sleep(Duration::from_millis(50));
    assert!(!retired.load(Ordering::SeqCst), "two are owed");
    events.acknowledge(7, 2);
    waiter.join().expect("it does not panic");
    assert!(retired.load(Ordering::SeqCst));
}

#[test]
fn acknowledging_too_much_is_harmless() {
    let events = queue();
    events.acknowledge(7, 1);
    events.push(1, 7);
    read_one(&events).expect("an event");
    events.acknowledge(7, 100);
    events.retire(7);
}

#[test]
fn events_of_the_engine_and_of_verbs() {
    let qp = engine::QpIndex(3);
    for (event, kind, number) in [
        (AsyncEvent::Fatal(qp), EventKind::QueuePairFatal, 1),
        (
            AsyncEvent::RequestError(qp),
            EventKind::QueuePairRequestError,
            2,
        ),
        (
            AsyncEvent::AccessError(qp),
            EventKind::QueuePairAccessError,
            3,
        ),
        (
            AsyncEvent::CommunicationEstablished(qp),
            EventKind::CommunicationEstablished,
            4,
        ),
        (
            AsyncEvent::SendQueueDrained(qp),
            EventKind::SendQueueDrained,
            5,
        ),
        (
            AsyncEvent::LastWqeReached(qp),
            EventKind::LastWqeReached,
            16,
        ),
    ] {
        assert_eq!(EventKind::of(event), Some(kind));
        assert_eq!(kind as u32, number);
    }
}
