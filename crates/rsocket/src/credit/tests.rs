use wire::MemoryKey;

use super::*;

const HALF: usize = 64;
const CREDITS: u16 = 8;

fn target(offset: usize) -> Target {
    Target {
        address: offset as u64,
        key: MemoryKey(7),
        length: HALF as u32,
    }
}

#[test]
fn the_second_half_is_announced_at_once() {
    let mut window = ReceiveWindow::new(HALF, CREDITS);
    assert!(window.is_due());
    let first = Announcement {
        sequence: CREDITS,
        target: Some(HALF),
    };
    assert_eq!(window.announce(), first);
    assert!(!window.is_due());
}

#[test]
fn half_of_the_credits_are_said_without_a_target() {
    let mut window = ReceiveWindow::new(HALF, CREDITS);
    window.announce();
    for _ in 0..CREDITS / 2 {
        assert!(!window.is_due());
        window.receive(1).expect("room");
    }
    let credits = Announcement {
        sequence: CREDITS + CREDITS / 2,
        target: None,
    };
    assert_eq!(window.announce(), credits);
    assert!(!window.is_due());
}

#[test]
fn a_peer_that_writes_more_than_it_was_given_is_found_out() {
    let mut window = ReceiveWindow::new(HALF, CREDITS);
    assert_eq!(window.receive(HALF as u32 + 1), Err(Overflow));
    window.receive(HALF as u32).expect("what it was given");
    assert_eq!(window.receive(1), Err(Overflow));
    window.announce();
    window.receive(HALF as u32).expect("the second half");
    assert_eq!(window.receive(1), Err(Overflow));
    // reading gives room only after it was announced
    window.consume(HALF);
    assert_eq!(window.receive(1), Err(Overflow));
    assert_eq!(window.announce().target, Some(0));
    window.receive(HALF as u32).expect("the first half again");
}

#[test]
fn a_sender_needs_credit_target_slot_and_room() {
    let fresh = || SendWindow::new(128, 2, 2, target(0));
    assert!(fresh().is_open());
    assert!(!SendWindow::new(128, 2, 0, target(0)).is_open());
    assert!(!SendWindow::new(128, 0, 2, target(0)).is_open());
    assert!(!SendWindow::new(128, 2, 2, Target::default()).is_open());
    let mut window = fresh();
    window.commit_data(1);
    window.commit_slot(1);
    // a small buffer has to be empty
    assert!(!window.is_open());
    window.complete(1);
    assert!(window.is_open());
    window.commit_data(1);
    window.commit_slot(1);
    window.complete(1);
    assert!(!window.is_open(), "no credit is left");
    window.allow(3);
    assert!(window.is_open());
}

/// One side sends, the other receives, with steps of every kind chosen by a seed: every byte
/// arrives where the reader looks for it.
#[test]
fn bytes_are_read_where_they_were_written() {
    for seed in 1..2000_u64 {
        let mut random = seed;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut memory = [0_u8; 2 * HALF];
        let mut list = std::collections::VecDeque::new();
        let mut send = SendWindow::new(4096, 4, CREDITS, target(0));
        let mut receive = ReceiveWindow::new(HALF, CREDITS);
        let (mut written, mut read) = (0_u64, 0_u64);
        let mut in_flight = std::collections::VecDeque::new();
        for _ in 0..500 {
            match below(4) {
                0 => {
                    if send.needs_target()
                        && let Some(next) = list.pop_front()
                    {
                        send.set_target(next);
                    }
                    if !send.is_open() {
                        continue;
                    }
                    let (to, length) = send.target(below(40) as usize + 1);
                    let (_, length) = send.room(length);
                    for at in 0..length {
                        memory[to.address as usize + at] = (written + at as u64) as u8;
                    }
                    written += length as u64;
                    send.commit_data(length as u32);
                    send.commit_slot(length);
                    in_flight.push_back(length);
                    receive.receive(length as u32).expect("what it was given");
                }
                1 => {
                    let (at, length) = receive.piece(0, below(50) as usize);
                    for byte in &memory[at..at + length] {
                        assert_eq!(*byte, read as u8, "seed {seed}, byte {read}");
                        read += 1;
                    }
                    receive.consume(length);
                }
                2 if receive.is_due() => {
                    let announcement = receive.announce();
                    send.allow(announcement.sequence);
                    list.extend(announcement.target.map(target));
                }
                _ => {
                    if let Some(length) = in_flight.pop_front() {
                        send.complete(length);
                    }
                }
            }
            assert_eq!(receive.readable() as u64, written - read);
        }
        assert!(written > 500, "seed {seed} moved {written} bytes");
    }
}
