//! Sends, Writes and READs between two ends that mean well.

use super::*;

#[test]
fn the_story_of_an_rping() {
    let mut pair = Pair::new(Setting::default());
    let source = pair.active.region(&pattern(64));
    let target = pair.passive.region(&[0; 64]);
    let (ours, theirs) = (pair.active.region(&[0; 32]), pair.passive.region(&[1; 32]));
    pair.active.post_receive(1, ours, 16);
    pair.passive.post_receive(1, theirs, 16);
    pair.active.post(7, Operation::Send, &[sge(ours, 16, 16)]);
    pair.settle();
    assert_eq!(pair.passive.received(), [(1, Status::Success, 16)]);
    let read = Operation::Read(remote(source, 0));
    pair.passive.post(8, read, &[sge(target, 0, 64)]);
    pair.passive
        .post(9, Operation::Send, &[sge(theirs, 16, 16)]);
    pair.settle();
    assert_eq!(
        pair.lines,
        [
            "> SEND msn=1 mo=0 length=16",
            "< READ_REQUEST msn=1 mo=0 length=64 source=0x000001a5@0x1000 sink=0x000001a5@0x1000",
            "< SEND msn=1 mo=0 length=16",
            "> READ_RESPONSE stag=0x000001a5 to=0x1000 length=64",
        ]
    );
    assert_eq!(pair.passive.memory.read(target, 0, 64), pattern(64));
    assert_eq!(pair.active.sent(), [(7, Status::Success)]);
    assert_eq!(pair.active.received(), [(1, Status::Success, 16)]);
    assert_eq!(
        pair.passive.sent(),
        [(8, Status::Success), (9, Status::Success)]
    );
}

/// Every operation, long and short, whatever the sizes of segments and fragments.
#[test]
fn messages_arrive_in_any_segmentation_and_fragmentation() {
    for has_markers in [false, true] {
        for (mulpdu, fragment) in [(1442, 1), (200, 7), (65_535, 1460), (128, usize::MAX)] {
            let mut pair = Pair::open(Setting {
                has_markers,
                mulpdu,
                fragment,
                ..Setting::default()
            });
            for length in [0, 1, 3, 4, 181, 182, 183, 184, 1424, 1425, 5000] {
                transfer(&mut pair, length);
            }
        }
    }
}

fn transfer(pair: &mut Pair, length: usize) {
    let bytes = pattern(length);
    let all = length as u32;
    let source = pair.active.region(&[&bytes[..], &[9; 8]].concat());
    let written = pair.passive.region(&vec![0; length + 8]);
    let received = pair.passive.region(&vec![0; length + 8]);
    let read = pair.active.region(&vec![0; length + 8]);
    pair.passive.post_receive(5, received, all + 8);
    // in two elements, the first of them empty or odd
    let half = (all / 2) | 1;
    let (first, second) = if length > 1 {
        (half, all - half)
    } else {
        (0, all)
    };
    let sges = [
        sge(source, 0, first),
        sge(source, first.into(), second),
        sge(source, 0, 0),
    ];
    pair.active
        .post(1, Operation::Write(remote(written, 0)), &sges);
    pair.active.post(2, Operation::Send, &sges);
    let sink = [sge(read, 0, first), sge(read, first.into(), second)];
    pair.active
        .post(3, Operation::Read(remote(written, 0)), &sink);
    pair.settle();
    assert_eq!(
        pair.active.sent(),
        [1, 2, 3].map(|id| (id, Status::Success)),
        "{length} bytes"
    );
    assert_eq!(pair.passive.received(), [(5, Status::Success, all)]);
    let expected = [&bytes[..], &[0; 8]].concat();
    for (end, key) in [
        (&pair.passive, written),
        (&pair.passive, received),
        (&pair.active, read),
    ] {
        assert_eq!(end.memory.read(key, 0, length + 8), expected, "{length}");
    }
}

#[test]
fn a_long_message_is_cut_and_no_other_comes_between() {
    let mut pair = Pair::open(Setting {
        mulpdu: 64,
        ..Setting::default()
    });
    let region = pair.active.region(&pattern(100));
    let target = pair.passive.region(&pattern(100));
    pair.passive.post_receive(1, target, 100);
    // 64 - 18 is 46, and 44 is a multiple of 4
    pair.active.post(1, Operation::Send, &[sge(region, 0, 100)]);
    let write = Operation::Write(remote(target, 0));
    pair.active.post(2, write, &[sge(region, 0, 60)]);
    pair.settle();
    assert_eq!(
        pair.lines,
        [
            "> SEND msn=1 mo=0 more length=44",
            "> SEND msn=1 mo=44 more length=44",
            "> SEND msn=1 mo=88 length=12",
            "> WRITE stag=0x000001a5 to=0x1000 more length=48",
            "> WRITE stag=0x000001a5 to=0x1030 length=12",
        ]
    );
}

#[test]
fn completions_keep_the_order_of_the_queue_though_a_read_takes_longer() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[4; 8]));
    let element = [sge(ours, 0, 8)];
    pair.active
        .post(1, Operation::Write(remote(theirs, 0)), &element);
    pair.active
        .post(2, Operation::Read(remote(theirs, 0)), &element);
    pair.active
        .post(3, Operation::Write(remote(theirs, 0)), &element);
    let mut lines = Vec::new();
    let request = pair.active.transmit(&mut lines);
    // all have left, but what follows the READ is not told before it
    assert_eq!(lines.len(), 3);
    assert_eq!(pair.active.sent(), [(1, Status::Success)]);
    pair.passive.receive(&request, usize::MAX);
    let response = pair.passive.transmit(&mut lines);
    pair.active.receive(&response, usize::MAX);
    assert_eq!(
        pair.active.sent(),
        [(2, Status::Success), (3, Status::Success)]
    );
}

#[test]
fn an_answer_may_come_before_all_of_the_burst_has_left() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[4; 8]));
    let active = &mut pair.active;
    for (id, operation) in [
        (1, Operation::Write(remote(theirs, 0))),
        (2, Operation::Read(remote(theirs, 0))),
        (3, Operation::Write(remote(theirs, 0))),
    ] {
        active.post(id, operation, &[sge(ours, 0, 8)]);
    }
    let mut burst = StreamBurst::with_bound(8000);
    active.qp.poll_transmit(NOW, &active.memory, &mut burst);
    let mut request = Vec::new();
    let failed = active.frame(&burst, &mut request, &mut Vec::new());
    assert_eq!(failed, None);
    pair.passive.receive(&request, usize::MAX);
    let response = pair.passive.transmit(&mut Vec::new());
    pair.active.receive(&response, usize::MAX);
    assert_eq!(
        pair.active.sent(),
        [],
        "the socket may still have the last bytes to take"
    );
    pair.active.qp.burst_left(NOW);
    let success = |id| (id, Status::Success);
    assert_eq!(pair.active.sent(), [1, 2, 3].map(success));
}

#[test]
fn no_more_reads_than_the_peer_takes() {
    let mut pair = Pair::open(Setting {
        depths: Depths { ird: 2, ord: 2 },
        ..Setting::default()
    });
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[4; 8]));
    for id in 1..=5 {
        let read = Operation::Read(remote(theirs, 0));
        pair.active.post(id, read, &[sge(ours, 0, 8)]);
    }
    let mut lines = Vec::new();
    let requests = pair.active.transmit(&mut lines);
    assert_eq!(lines.len(), 2, "the others wait");
    pair.passive.receive(&requests, usize::MAX);
    let responses = pair.passive.transmit(&mut lines);
    pair.active.receive(&responses, usize::MAX);
    pair.settle();
    let all: Vec<_> = (1..=5).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.active.sent(), all);
}

#[test]
fn without_any_read_outstanding_allowed_a_read_fails_in_its_turn() {
    let mut pair = Pair::open(Setting {
        depths: Depths { ird: 0, ord: 0 },
        ..Setting::default()
    });
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[4; 8]));
    let write = Operation::Write(remote(theirs, 0));
    pair.active.post(1, write, &[sge(ours, 0, 8)]);
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(2, read, &[sge(ours, 0, 8)]);
    pair.settle();
    assert_eq!(
        pair.active.sent(),
        [(1, Status::Success), (2, Status::LocalQpOperation)]
    );
    assert_eq!(pair.active.qp.state(), State::Error);
}

#[test]
fn a_fence_and_an_invalidation_wait_for_reads() {
    let mut pair = Pair::open(Setting::default());
    let theirs = pair.passive.region(&[4; 8]);
    let ours = pair
        .active
        .memory
        .register_fast(PD, BASE, vec![0; 8], Access::LOCAL_WRITE);
    let read = Operation::Read(remote(theirs, 0));
    let write = Operation::Write(remote(theirs, 0));
    let element = [sge(ours, 0, 8)];
    pair.active.post(1, read, &element);
    pair.active
        .post_with(2, write, SendFlags::FENCE, &element[..0]);
    pair.active.post(3, read, &element);
    pair.active.post(4, Operation::LocalInvalidate(ours), &[]);
    pair.active.post(5, write, &element[..0]);
    let mut lines = Vec::new();
    let request = pair.active.transmit(&mut lines);
    assert_eq!(lines.len(), 1, "the fence holds");
    pair.passive.receive(&request, usize::MAX);
    pair.settle();
    let done: Vec<_> = pair.active.send_cq.drain();
    let kinds: Vec<_> = done.iter().map(|one| (one.id, one.opcode)).collect();
    use CompletionOpcode::{LocalInvalidate, RdmaRead, RdmaWrite};
    assert_eq!(
        kinds,
        [
            (1, RdmaRead),
            (2, RdmaWrite),
            (3, RdmaRead),
            (4, LocalInvalidate),
            (5, RdmaWrite)
        ]
    );
    assert!(done.iter().all(|one| one.status == Status::Success));
    // the key is gone
    pair.active.post(6, Operation::Send, &element);
    pair.settle();
    assert_eq!(pair.active.sent(), [(6, Status::LocalProtection)]);
}

#[test]
fn a_send_with_invalidate_and_event_does_both() {
    let mut pair = Pair::open(Setting::default());
    let window = pair
        .passive
        .memory
        .register_fast(PD, BASE, vec![0; 8], Access::REMOTE_WRITE);
    let buffer = pair.passive.region(&[0; 8]);
    pair.passive.post_receive(1, buffer, 8);
    let send = Operation::SendInvalidate(window);
    pair.active.post_with(1, send, SendFlags::SOLICITED, &[]);
    pair.settle();
    assert_eq!(
        pair.lines,
        ["> SEND_SOLICITED_INVALIDATE msn=1 mo=0 invalidates=0x000001a5 length=0"]
    );
    let completion = pair.passive.receive_cq.poll().unwrap();
    assert_eq!(completion.invalidated, Some(window));
    assert!(!completion.has_grh);
    assert_eq!(pair.passive.receive_cq.solicited(), 1);
    // nobody can write there any more
    let ours = pair.active.region(&[0; 8]);
    let write = Operation::Write(remote(window, 0));
    pair.active.post(2, write, &[sge(ours, 0, 8)]);
    pair.settle();
    assert_eq!(pair.passive.qp.state(), State::Error);
}

#[test]
fn of_nothing_no_key_is_looked_at() {
    let mut pair = Pair::open(Setting::default());
    let nowhere = RemoteMemory {
        address: 0xdead_0000,
        key: MemoryKey(0xbeef),
    };
    pair.active.post(1, Operation::Write(nowhere), &[]);
    pair.active.post(2, Operation::Read(nowhere), &[]);
    pair.settle();
    assert_eq!(
        pair.active.sent(),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(
        pair.lines,
        [
            "> WRITE stag=0x0000beef to=0xdead0000 length=0",
            "> READ_REQUEST msn=1 mo=0 length=0 source=0x0000beef@0xdead0000 \
             sink=0x00000000@0x0",
            "< READ_RESPONSE stag=0x00000000 to=0x0 length=0",
        ]
    );
}

#[test]
fn answers_and_requests_take_turns() {
    let mut pair = Pair::open(Setting::default());
    let (ours, theirs) = (pair.active.region(&[0; 8]), pair.passive.region(&[4; 8]));
    for id in 1..=3 {
        let read = Operation::Read(remote(theirs, 0));
        pair.active.post(id, read, &[sge(ours, 0, 8)]);
        let write = Operation::Write(remote(ours, 0));
        pair.passive.post(id, write, &[sge(theirs, 0, 8)]);
    }
    let mut lines = Vec::new();
    let requests = pair.active.transmit(&mut lines);
    pair.passive.receive(&requests, usize::MAX);
    lines.clear();
    pair.passive.transmit(&mut lines);
    let kinds: Vec<_> = lines.iter().map(|line| &line[..5]).collect();
    assert_eq!(
        kinds,
        ["READ_", "WRITE", "READ_", "WRITE", "READ_", "WRITE"]
    );
}

#[test]
fn an_answer_waits_for_the_end_of_a_message_that_was_begun() {
    let mut pair = Pair::open(Setting {
        mulpdu: 128,
        ..Setting::default()
    });
    let (ours, theirs) = (
        pair.active.region(&[0; 300]),
        pair.passive.region(&[1; 300]),
    );
    let write = Operation::Write(remote(ours, 0));
    pair.passive.post(1, write, &[sge(theirs, 0, 300)]);
    let mut burst = StreamBurst::with_bound(1);
    let passive = &mut pair.passive;
    passive.qp.poll_transmit(NOW, &passive.memory, &mut burst);
    assert_eq!(burst.ulpdus().len(), 1, "of three");
    let mut stream = Vec::new();
    passive.frame(&burst, &mut stream, &mut Vec::new());
    passive.qp.burst_left(NOW);
    pair.active.receive(&stream, usize::MAX);
    let read = Operation::Read(remote(theirs, 0));
    pair.active.post(2, read, &[sge(ours, 0, 8)]);
    pair.settle();
    let kinds: Vec<_> = pair.lines.iter().map(|line| &line[..8]).collect();
    assert_eq!(kinds, ["> READ_R", "< WRITE ", "< WRITE ", "< READ_R"]);
}

#[test]
fn inline_data_is_what_it_was_when_it_was_posted() {
    let mut pair = Pair::open(Setting::default());
    let theirs = pair.passive.region(&[0; 8]);
    let request = SendRequest {
        id: 1,
        operation: Operation::Write(remote(theirs, 1)),
        flags: SendFlags::INLINE,
        payload: Payload::Inline(b"hello"),
        to: None,
    };
    pair.active.qp.post_send(&request).unwrap();
    pair.settle();
    assert_eq!(pair.passive.memory.read(theirs, 0, 8), b"\0hello\0\0");
    assert_eq!(pair.active.sent(), [(1, Status::Success)]);
}
