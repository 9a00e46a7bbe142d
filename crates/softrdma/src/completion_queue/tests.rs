use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use engine::CompletionOpcode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::Qpn;

use super::*;
use crate::event_queue::tests::is_readable;

fn completion(id: u64) -> WorkCompletion {
    WorkCompletion::success(id, CompletionOpcode::Send, 0, Qpn::truncated(0x11))
}

struct Fixture {
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    events: Arc<EventQueue>,
}

fn fixture(size: u32) -> Fixture {
    let channel = Arc::new(CompletionChannel::new().expect("a descriptor"));
    let events = Arc::new(EventQueue::new().expect("a descriptor"));
    let queue = CompletionQueue::new(size, Some(Arc::clone(&channel)), Arc::clone(&events))
        .expect("a valid size");
    queue.set_cookie(42);
    Fixture {
        queue: Arc::new(queue),
        channel,
        events,
    }
}

impl Fixture {
    fn push(&self, id: u64, solicited: bool) {
        self.queue
            .push(completion(id), solicited)
            .expect("there is room");
    }

    fn poll_ids(&self) -> Vec<u64> {
        let mut into = [completion(0); 16];
        let count = self.queue.poll(&mut into);
        into[..count]
            .iter()
            .map(|completion| completion.id)
            .collect()
    }

    /// How many events the channel has; takes them.
    fn woken(&self) -> usize {
        let mut count = 0;
        while is_readable(&self.channel) {
            assert_eq!(
                self.channel.events.try_next().map(|event| event.cookie),
                Some(42)
            );
            self.channel.events.acknowledge(42, 1);
            count += 1;
        }
        count
    }
}

#[test]
fn completions_come_in_order_and_in_parts() {
    let fixture = fixture(100);
    for id in 0..20 {
        fixture.push(id, false);
    }
    assert_eq!(fixture.queue.poll(&mut []), 0);
    assert_eq!(fixture.poll_ids(), (0..16).collect::<Vec<_>>());
    assert_eq!(fixture.poll_ids(), (16..20).collect::<Vec<_>>());
    assert!(fixture.poll_ids().is_empty());
}

#[test]
fn sizes_as_programs_expect_them() {
    for (size, capacity) in [(1, 1), (2, 3), (10, 15), (100, 127), (32_767, 32_767)] {
        assert_eq!(fixture(size).queue.capacity(), capacity);
    }
    let events = Arc::new(EventQueue::new().expect("a descriptor"));
    for size in [0, COMPLETIONS_MAX + 1, u32::MAX] {
        let refused = CompletionQueue::new(size, None, Arc::clone(&events)).map(drop);
        assert_eq!(refused, Err(CompletionQueueError::InvalidSize));
    }
}

#[test]
fn resizing_keeps_what_is_there() {
    let fixture = fixture(7);
    for id in 0..5 {
        fixture.push(id, false);
    }
    assert_eq!(
        fixture.queue.resize(4),
        Err(CompletionQueueError::InvalidSize)
    );
    assert_eq!(
        fixture.queue.resize(COMPLETIONS_MAX + 1),
        Err(CompletionQueueError::InvalidSize)
    );
    assert_eq!(fixture.queue.resize(5), Ok(7));
    assert_eq!(fixture.queue.resize(20), Ok(31));
    for id in 5..31 {
        fixture.push(id, false);
    }
    assert_eq!(fixture.queue.push(completion(31), false), Err(Overrun));
    assert_eq!(fixture.queue.waiting(), 31);
}

#[test]
fn nothing_wakes_what_was_not_armed() {
    let fixture = fixture(10);
    fixture.push(1, true);
    assert_eq!(fixture.woken(), 0);
}

#[test]
fn one_arming_is_one_event_for_a_later_completion() {
    let fixture = fixture(10);
    fixture.push(1, true);
    fixture.queue.request_notify(false);
    fixture.queue.request_notify(false);
    assert_eq!(fixture.woken(), 0, "what was there raises none");
    fixture.push(2, false);
    fixture.push(3, false);
    assert_eq!(fixture.woken(), 1);
    fixture.queue.request_notify(false);
    fixture.push(4, false);
    assert_eq!(fixture.woken(), 1);
}

#[test]
fn solicited_arming_waits_for_a_solicited_completion() {
    let fixture = fixture(10);
    fixture.queue.request_notify(true);
    fixture.push(1, false);
    assert_eq!(fixture.woken(), 0);
    fixture.push(2, true);
    assert_eq!(fixture.woken(), 1);
    fixture.push(3, true);
    assert_eq!(fixture.woken(), 0);
}

#[test]
fn the_wider_of_two_armings_holds() {
    for order in [[true, false], [false, true]] {
        let fixture = fixture(10);
        for solicited_only in order {
            fixture.queue.request_notify(solicited_only);
        }
        fixture.push(1, false);
        assert_eq!(fixture.woken(), 1, "{order:?}");
    }
}

#[test]
fn an_overrun_is_told_once_and_remembered() {
    let fixture = fixture(3);
    for id in 0..3 {
        fixture.push(id, false);
    }
    fixture.queue.request_notify(false);
    for _ in 0..3 {
        assert_eq!(fixture.queue.push(completion(9), false), Err(Overrun));
    }
    let event = fixture.events.try_next().expect("an event");
    assert_eq!(
        (event.kind, event.cookie),
        (EventKind::CompletionQueueError, 42)
    );
    assert_eq!(fixture.events.try_next(), None);
    // what was there can be polled; there is no way back
    assert_eq!(fixture.poll_ids(), [0, 1, 2]);
    assert_eq!(fixture.queue.push(completion(9), false), Err(Overrun));
    assert_eq!(fixture.woken(), 0);
}

#[test]
fn a_queue_in_use_cannot_be_closed() {
    let fixture = fixture(3);
    assert_eq!(fixture.channel.attached(), 1);
    let send = fixture.queue.attach();
    let receive = fixture.queue.attach();
    drop(send);
    assert_eq!(fixture.queue.close(), Err(CompletionQueueError::Busy));
    assert!(fixture.queue.channel().is_some());
    drop(receive);
    assert_eq!(fixture.queue.close(), Ok(()));
    assert_eq!(fixture.channel.attached(), 0);
}

#[test]
fn closing_takes_events_back_and_waits_for_the_others() {
    let fixture = fixture(3);
    fixture.queue.request_notify(false);
    fixture.push(1, false);
    let fetched = fixture.channel.events.try_next().expect("an event");
    fixture.queue.request_notify(false);
    fixture.push(2, false);
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            fixture.queue.close().expect("nobody uses it");
            closed.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!closed.load(Ordering::SeqCst));
        fixture.channel.events.acknowledge(fetched.cookie, 1);
    });
    assert!(!is_readable(&fixture.channel));
}

#[test]
fn shards_that_feed_it() {
    let fixture = fixture(3);
    assert_eq!(fixture.queue.shards(), 0);
    fixture.queue.add_shard(0);
    fixture.queue.add_shard(5);
    assert_eq!(fixture.queue.shards(), 0b10_0001);
}

/// The loop of the manual pages: arm, poll until empty, wait, acknowledge. No wake-up may be lost.
#[test]
fn arming_and_pushing_race_without_losing_a_wake_up() {
    const TOTAL: u64 = 20_000;
    let fixture = fixture(32_767);
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..TOTAL {
                fixture.push(id, false);
                if id % 64 == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut seen = 0;
        while seen < TOTAL {
            fixture.queue.request_notify(false);
            loop {
                let ids = fixture.poll_ids();
                if ids.is_empty() {
                    break;
                }
                for id in ids {
                    assert_eq!(id, seen);
                    seen += 1;
                }
            }
            if seen < TOTAL {
                let mut ready = [PollFd::new(&fixture.channel, PollFlags::IN)];
                let guard = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                let count = poll(&mut ready, Some(&guard)).expect("a valid descriptor");
                assert_eq!(count, 1, "a wake-up was lost after {seen} completions");
                fixture.woken();
            }
        }
    });
}
