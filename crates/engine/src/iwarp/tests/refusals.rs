//! What a peer may not do, and what it is told.

use wire::iwarp::{
    Body, Control, Header, MessageOffset, Msn, Opcode, QueueNumber, ReadRequest, Reading, Tagged,
    TaggedOffset, Terminate, TerminateCode, Untagged,
};

use super::*;
use crate::burst::QpIndex;
use crate::event::AsyncEvent;

const INDEX: QpIndex = QpIndex(1);

/// The ULPDU of a segment.
fn ulpdu(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.emit_into(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn untagged(opcode: Opcode, msn: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let header = Untagged::new(opcode, true, Msn(msn), MessageOffset(offset));
    ulpdu(Header::Untagged(header), payload)
}

fn tagged(opcode: Opcode, key: MemoryKey, address: u64, payload: &[u8]) -> Vec<u8> {
    let header = Tagged::new(opcode, true, key, TaggedOffset(address));
    ulpdu(Header::Tagged(header), payload)
}

fn read_of(source: MemoryKey, address: u64, length: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink: MemoryKey(7),
        sink_offset: TaggedOffset(8),
        length,
        source,
        source_offset: TaggedOffset(address),
    };
    request.to_bytes().to_vec()
}

/// What the passive end says to a segment, and tells its program.
fn refusal(prepare: impl FnOnce(&mut Pair), segment: Vec<u8>) -> (String, Vec<Event>) {
    let mut pair = Pair::open(Setting::default());
    prepare(&mut pair);
    pair.forge(&segment);
    pair.settle();
    let line = pair.lines.last().cloned().unwrap_or_default();
    assert_eq!(pair.passive.qp.state(), State::Error);
    let reason = if line.contains(" 2/0/03 ") {
        Some("rcvd_framing_err")
    } else {
        // of a receive whose memory is gone the peer can know nothing
        (!line.contains(" 1/0/00 ")).then_some("rcvd_segment_err")
    };
    let counted = ["sent_terminates"].into_iter().chain(reason);
    let counted: Vec<_> = counted.map(|name| (name, 1)).collect();
    assert_eq!(pair.passive.counted(), counted, "{line}");
    assert_eq!(pair.active.counted(), [("rcvd_terminates", 1)], "{line}");
    (line, pair.passive.told())
}

fn nothing(_: &mut Pair) {}

/// The line, and the event that tells the program.
fn check(segment: Vec<u8>, expected: &str, event: AsyncEvent) {
    let (line, told) = refusal(nothing, segment);
    assert_eq!(line, format!("< TERMINATE msn=1 mo=0 {expected}"));
    assert!(told.contains(&Event::Async(event)), "{expected}: {told:?}");
    assert_eq!(told.last(), Some(&Event::Finish), "{expected}");
}

#[test]
fn headers_that_no_message_has() {
    let request = AsyncEvent::RequestError(INDEX);
    let send = untagged(Opcode::Send, 1, 0, b"hello");
    let write = tagged(Opcode::Write, MemoryKey(0), 0, b"hello");
    let with = |segment: &[u8], at: usize, value: u8| {
        let mut segment = segment.to_vec();
        segment[at] = value;
        segment
    };
    for (segment, expected) in [
        (
            with(&send, 0, 0x42),
            "1/2/06 untagged-invalid-ddp-version of SEND",
        ),
        (
            with(&write, 0, 0xc0),
            "1/1/04 tagged-invalid-ddp-version of WRITE",
        ),
        (with(&send, 1, 0x83), "0/2/05 invalid-rdmap-version of SEND"),
        (with(&send, 1, 0x4c), "0/2/06 unexpected-opcode"),
        (
            with(&send, 1, 0x48),
            "0/2/06 unexpected-opcode of IMMEDIATE",
        ),
        (with(&send, 9, 9), "1/2/01 invalid-queue-number of SEND"),
        (send[..17].to_vec(), "2/0/03 mpa-marker-or-length"),
        (write[..13].to_vec(), "2/0/03 mpa-marker-or-length"),
        (vec![0x41], "2/0/03 mpa-marker-or-length"),
    ] {
        check(segment, expected, request);
    }
}

#[test]
fn sends_that_do_not_fit() {
    let request = AsyncEvent::RequestError(INDEX);
    check(
        untagged(Opcode::Send, 1, 0, b"hello"),
        "1/2/02 no-buffer of SEND",
        request,
    );
    check(
        untagged(Opcode::Send, 2, 0, b"hello"),
        "1/2/03 invalid-msn of SEND",
        request,
    );
    let with_receive = |pair: &mut Pair| {
        let buffer = pair.passive.region(&[0; 8]);
        pair.passive.post_receive(3, buffer, 4);
    };
    let (line, told) = refusal(with_receive, untagged(Opcode::Send, 1, 4, b"hello"));
    assert_eq!(
        line,
        "< TERMINATE msn=1 mo=0 1/2/04 invalid-message-offset of SEND"
    );
    assert!(told.contains(&Event::Async(request)));
}

#[test]
fn a_send_that_is_too_long_ends_its_receive() {
    let mut pair = Pair::open(Setting::default());
    let buffer = pair.passive.region(&[0; 8]);
    pair.passive.post_receive(3, buffer, 4);
    pair.passive.post_receive(4, buffer, 4);
    let ours = pair.active.region(&[1; 8]);
    pair.active.post(1, Operation::Send, &[sge(ours, 0, 5)]);
    pair.settle();
    // handed to TCP: the sender's completion was a success already
    assert_eq!(pair.active.sent(), [(1, Status::Success)]);
    assert_eq!(
        pair.passive.received(),
        [(3, Status::LocalLength, 0), (4, Status::Flushed, 0)]
    );
    assert_eq!(pair.passive.memory.read(buffer, 0, 8), [0; 8]);
    assert_eq!(
        pair.lines.last().unwrap(),
        "< TERMINATE msn=1 mo=0 1/2/05 message-too-long of SEND"
    );
    let code = TerminateCode::MESSAGE_TOO_LONG;
    let told = pair.active.told();
    let ending = Event::Disconnected(Ending::PeerTerminated(code));
    assert!(told.contains(&ending));
    assert_eq!(told.last(), Some(&Event::Close));
}

#[test]
fn a_receive_whose_memory_is_gone_ends_with_it() {
    let mut pair = Pair::open(Setting::default());
    let buffer = pair.passive.region(&[0; 8]);
    pair.passive.post_receive(3, buffer, 8);
    pair.passive.memory.deregister(buffer);
    pair.active.post(1, Operation::Send, &[]);
    let ours = pair.active.region(&[1; 8]);
    pair.passive.post_receive(4, buffer, 8);
    pair.active.post(2, Operation::Send, &[sge(ours, 0, 5)]);
    pair.settle();
    assert_eq!(
        pair.passive.received(),
        [(3, Status::Success, 0), (4, Status::LocalProtection, 0)]
    );
    assert_eq!(
        pair.lines.last().unwrap(),
        "< TERMINATE msn=1 mo=0 1/0/00 ddp-local-catastrophic-error"
    );
}

#[test]
fn segments_of_one_send_are_of_one_kind() {
    let mut pair = Pair::open(Setting::default());
    let buffer = pair.passive.region(&[0; 8]);
    pair.passive.post_receive(3, buffer, 8);
    let first = Untagged {
        control: Control::new(Opcode::Send, false),
        ..Untagged::new(Opcode::Send, false, Msn(1), MessageOffset(0))
    };
    pair.forge(&ulpdu(Header::Untagged(first), b"abcd"));
    pair.forge(&untagged(Opcode::SendSolicited, 1, 4, b"efgh"));
    pair.settle();
    assert_eq!(
        pair.lines.last().unwrap(),
        "< TERMINATE msn=1 mo=0 0/2/06 unexpected-opcode of SEND_SOLICITED"
    );
    assert_eq!(pair.passive.received(), [(3, Status::Flushed, 0)]);
}

#[test]
fn writes_to_what_may_not_be_written() {
    let access = AsyncEvent::AccessError(INDEX);
    let key = MemoryKey(0x1a5); // of the first region of a table
    for (key, address, code) in [
        (MemoryKey(0xdead), BASE, "1/1/00 tagged-invalid-stag"),
        (key, BASE + 4, "1/1/01 tagged-base-or-bounds"),
        (key, u64::MAX - 2, "1/1/03 tagged-offset-wrap"),
    ] {
        let region = |pair: &mut Pair| {
            pair.passive.region(&[0; 8]);
        };
        let segment = tagged(Opcode::Write, key, address, b"hello");
        let (line, told) = refusal(region, segment);
        assert_eq!(line, format!("< TERMINATE msn=1 mo=0 {code} of WRITE"));
        assert!(told.contains(&Event::Async(access)), "{code}");
    }
    // another domain, no right of the region, no right of the queue pair
    let mut told = Vec::new();
    for case in 0..3 {
        let mut pair = Pair::open(Setting::default());
        let memory = &pair.passive.memory;
        let key = match case {
            0 => memory.register(PdId(2), BASE, vec![0; 8], ALL),
            1 => memory.register(PD, BASE, vec![0; 8], Access::REMOTE_READ),
            _ => {
                let rights = &mut pair.passive.qp.attributes_mut().access;
                *rights = Access::LOCAL_WRITE;
                pair.passive.region(&[0; 8])
            }
        };
        pair.forge(&tagged(Opcode::Write, key, BASE, b"hello"));
        pair.settle();
        assert_eq!(pair.passive.memory.read(key, 0, 8), [0; 8]);
        told.push(pair.lines.pop().unwrap_or_default());
    }
    assert_eq!(
        told,
        [
            "< TERMINATE msn=1 mo=0 1/1/02 tagged-stag-of-other-stream of WRITE",
            "< TERMINATE msn=1 mo=0 1/1/00 tagged-invalid-stag of WRITE",
            "< TERMINATE msn=1 mo=0 1/1/00 tagged-invalid-stag of WRITE",
        ]
    );
}

#[test]
fn reads_of_what_may_not_be_read() {
    let request = AsyncEvent::RequestError(INDEX);
    let read = |source, address, length| {
        let body = read_of(source, address, length);
        untagged(Opcode::ReadRequest, 1, 0, &body)
    };
    check(
        read(MemoryKey(0xdead), BASE, 4),
        "0/1/00 remote-protection-invalid-stag of READ_REQUEST",
        request,
    );
    let region = |pair: &mut Pair| {
        pair.passive.region(&[0; 8]);
    };
    let key = MemoryKey(0x1a5); // of the first region of a table
    for (address, length, code) in [
        (BASE, 9, "0/1/01 remote-protection-base-or-bounds"),
        (u64::MAX, 9, "0/1/04 remote-protection-offset-wrap"),
    ] {
        let (line, _) = refusal(region, read(key, address, length));
        assert_eq!(
            line,
            format!("< TERMINATE msn=1 mo=0 {code} of READ_REQUEST")
        );
    }
    let write_only = |pair: &mut Pair| {
        let memory = &pair.passive.memory;
        memory.register(PD, BASE, vec![0; 8], Access::REMOTE_WRITE);
    };
    let (line, _) = refusal(write_only, read(key, BASE, 4));
    assert_eq!(
        line,
        "< TERMINATE msn=1 mo=0 0/1/02 remote-protection-access-rights of READ_REQUEST"
    );
}

#[test]
fn read_requests_that_are_none() {
    let request = AsyncEvent::RequestError(INDEX);
    let body = read_of(MemoryKey(0), 0, 0);
    for (segment, code) in [
        (
            untagged(Opcode::ReadRequest, 2, 0, &body),
            "1/2/03 invalid-msn of READ_REQUEST",
        ),
        (
            untagged(Opcode::ReadRequest, 1, 4, &body),
            "1/2/04 invalid-message-offset of READ_REQUEST",
        ),
        (
            untagged(Opcode::ReadRequest, 1, 0, &body[1..]),
            "2/0/03 mpa-marker-or-length",
        ),
        (
            untagged(Opcode::ReadRequest, 1, 0, &[&body[..], &[0]].concat()),
            "1/2/05 message-too-long of READ_REQUEST",
        ),
    ] {
        check(segment, code, request);
    }
}

#[test]
fn the_terminate_of_a_read_carries_the_request() {
    let mut pair = Pair::open(Setting::default());
    let body = read_of(MemoryKey(0xdead), BASE, 4);
    pair.forge(&untagged(Opcode::ReadRequest, 1, 0, &body));
    let mut burst = StreamBurst::with_bound(8000);
    pair.passive
        .qp
        .poll_transmit(NOW, &pair.passive.memory, &mut burst);
    let bytes = burst.header(&burst.ulpdus()[0]);
    let segment = Segment::parse(&bytes[fpdu::LENGTH_FIELD..]).unwrap();
    let Body::Terminate(terminate, reading) = segment.body else {
        panic!("{segment}");
    };
    assert_eq!(reading, Reading::Rfc);
    assert_eq!(terminate.segment_length, Some(28));
    assert_eq!(terminate.request, ReadRequest::parse(&body).ok());
}

#[test]
fn more_reads_than_were_agreed_on() {
    let mut pair = Pair::open(Setting {
        depths: Depths { ird: 2, ord: 2 },
        ..Setting::default()
    });
    for msn in 1..=3 {
        let body = read_of(MemoryKey(0), 0, 0);
        pair.forge(&untagged(Opcode::ReadRequest, msn, 0, &body));
    }
    pair.settle();
    assert_eq!(
        pair.lines.last().unwrap(),
        "< TERMINATE msn=1 mo=0 0/2/07 catastrophic-error-of-the-stream of READ_REQUEST"
    );
}

/// The passive end reads 8 bytes; whatever comes instead of them is not placed.
#[test]
fn responses_that_do_not_fit_their_read() {
    let sink = MemoryKey(0x1a5);
    let response =
        |key, address, payload: &[u8]| tagged(Opcode::ReadResponse, key, address, payload);
    for (segment, code, status) in [
        (
            response(MemoryKey(0xdead), BASE, &[1; 8]),
            "1/1/00 tagged-invalid-stag",
            Status::LocalLength,
        ),
        (
            response(sink, BASE + 1, &[1; 8]),
            "1/1/01 tagged-base-or-bounds",
            Status::LocalLength,
        ),
        (
            response(sink, BASE, &[1; 9]),
            "1/1/01 tagged-base-or-bounds",
            Status::LocalLength,
        ),
    ] {
        let mut pair = Pair::open(Setting::default());
        let region = pair.passive.region(&[0; 16]);
        let read = Operation::Read(RemoteMemory::default());
        pair.passive.post(1, read, &[sge(region, 0, 8)]);
        pair.passive.transmit(&mut Vec::new());
        pair.forge(&segment);
        pair.settle();
        assert_eq!(pair.passive.sent(), [(1, status)], "{code}");
        let expected = format!("< TERMINATE msn=1 mo=0 {code} of READ_RESPONSE");
        assert_eq!(*pair.lines.last().unwrap(), expected);
        assert_eq!(pair.passive.memory.read(region, 0, 16), [0; 16]);
    }
}

#[test]
fn a_response_that_ends_too_early_and_one_that_nobody_asked_for() {
    let mut pair = Pair::open(Setting::default());
    let region = pair.passive.region(&[0; 8]);
    let read = Operation::Read(RemoteMemory::default());
    pair.passive.post(1, read, &[sge(region, 0, 8)]);
    pair.passive.transmit(&mut Vec::new());
    pair.forge(&tagged(Opcode::ReadResponse, region, BASE, &[1; 4]));
    assert_eq!(pair.passive.sent(), [(1, Status::LocalLength)]);
    check(
        tagged(Opcode::ReadResponse, region, BASE, &[1; 4]),
        "0/2/06 unexpected-opcode of READ_RESPONSE",
        AsyncEvent::RequestError(INDEX),
    );
}

#[test]
fn a_wrong_answer_blames_nobody_before_it() {
    let mut pair = Pair::open(Setting::default());
    let passive = &mut pair.passive;
    let region = passive.region(&[0; 8]);
    let elsewhere = RemoteMemory::default();
    for (id, operation) in [
        (1, Operation::Write(elsewhere)),
        (2, Operation::Read(elsewhere)),
    ] {
        passive.post(id, operation, &[sge(region, 0, 8)]);
    }
    let mut burst = StreamBurst::with_bound(8000);
    passive.qp.poll_transmit(NOW, &passive.memory, &mut burst);
    assert_eq!(burst.ulpdus().len(), 2);
    pair.forge(&tagged(Opcode::ReadResponse, region, BASE, &[1; 9]));
    assert_eq!(
        pair.passive.sent(),
        [(1, Status::Flushed), (2, Status::Flushed)]
    );
    assert_eq!(pair.passive.memory.read(region, 0, 8), [0; 8]);
}

#[test]
fn a_key_that_cannot_be_invalidated_ends_the_receive_behind_its_data() {
    let mut pair = Pair::open(Setting::default());
    let plain = pair.passive.region(&[0; 8]);
    pair.passive.post_receive(1, plain, 8);
    let ours = pair.active.region(&[6; 4]);
    let send = Operation::SendInvalidate(plain);
    pair.active.post(1, send, &[sge(ours, 0, 4)]);
    pair.settle();
    assert_eq!(
        pair.passive.received(),
        [(1, Status::RemoteInvalidRequest, 0)]
    );
    assert_eq!(
        pair.lines.last().unwrap(),
        "< TERMINATE msn=1 mo=0 0/1/09 remote-protection-stag-cannot-be-invalidated of \
         SEND_INVALIDATE"
    );
}

#[test]
fn a_broken_stream_is_told_and_what_follows_is_not_looked_at() {
    for (damage, code, reason) in [
        (20, "2/0/02 mpa-crc", "rcvd_crc_err"),
        (0, "2/0/03 mpa-marker-or-length", "rcvd_framing_err"),
    ] {
        let mut pair = Pair::open(Setting::default());
        let theirs = pair.passive.region(&[0; 8]);
        let ours = pair.active.region(&[6; 8]);
        let write = Operation::Write(remote(theirs, 0));
        pair.active.post(1, write, &[sge(ours, 0, 8)]);
        let mut stream = pair.active.transmit(&mut Vec::new());
        let good = stream.clone();
        match damage {
            0 => stream[..2].fill(0),
            at => stream[at] ^= 1,
        }
        stream.extend_from_slice(&good);
        pair.passive.receive(&stream, usize::MAX);
        assert!(pair.passive.inbox.is_empty(), "all of it was taken");
        pair.settle();
        let expected = format!("< TERMINATE msn=1 mo=0 {code}");
        assert_eq!(*pair.lines.last().unwrap(), expected);
        assert_eq!(pair.passive.memory.read(theirs, 0, 8), [0; 8]);
        let told = pair.passive.told();
        assert!(told.contains(&Event::Async(AsyncEvent::Fatal(INDEX))));
        let counted = [("sent_terminates", 1), (reason, 1)];
        assert_eq!(pair.passive.counted(), counted);
        assert_eq!(pair.active.counted(), [("rcvd_terminates", 1)]);
    }
}

#[test]
fn the_first_fpdu_may_be_answered_with_a_terminate() {
    for rtr in [None, Some(Rtr::Write), Some(Rtr::Read)] {
        let setting = Setting {
            rtr,
            ..Setting::default()
        };
        let mut pair = Pair::new(setting);
        pair.forge(&tagged(Opcode::Write, MemoryKey(0x1234), 0, b"never"));
        let told = pair.passive.told();
        let ending = Ending::Refused(TerminateCode::TAGGED_INVALID_STAG);
        assert!(told.contains(&Event::Disconnected(ending)), "{told:?}");
        assert!(!told.contains(&Event::Established), "{rtr:?}");
        let mut lines = Vec::new();
        pair.passive.transmit(&mut lines);
        assert_eq!(
            lines,
            ["TERMINATE msn=1 mo=0 1/1/00 tagged-invalid-stag of WRITE"]
        );
        assert_eq!(pair.passive.told(), [Event::Finish]);
    }
}

#[test]
fn who_has_not_heard_a_whole_fpdu_sends_none_not_even_a_terminate() {
    let mut pair = Pair::new(Setting::default());
    let send = untagged(Opcode::Send, 1, 0, b"hello");
    let mut stream = (send.len() as u16).to_be_bytes().to_vec();
    stream.extend_from_slice(&send);
    pair.active.framer.seal(&mut stream, 0);
    stream[20] ^= 1; // which the CRC tells
    pair.passive.receive(&stream, usize::MAX);
    pair.settle();
    assert!(pair.lines.is_empty());
    assert_eq!(pair.passive.told().last(), Some(&Event::Close));
    assert_eq!(pair.passive.counted(), [("rcvd_crc_err", 1)]);
}

#[test]
fn who_asked_may_end_with_a_terminate_instead_of_its_rtr_message() {
    let setting = Setting {
        rtr: Some(Rtr::Write),
        ..Setting::default()
    };
    let mut pair = Pair::new(setting);
    // of a peer that has not waited for it
    let mut stream = 5u16.to_be_bytes().to_vec();
    stream.extend_from_slice(&[0x41; 5]);
    pair.passive.framer.seal(&mut stream, 0);
    pair.active.receive(&stream, usize::MAX);
    let mut lines = Vec::new();
    pair.active.transmit(&mut lines);
    assert_eq!(lines, ["TERMINATE msn=1 mo=0 2/0/03 mpa-marker-or-length"]);
}

#[test]
fn a_terminate_in_either_reading_ends_everything() {
    let terminate = Terminate::new(TerminateCode::CRC);
    for reading in [Reading::Rfc, Reading::Swapped] {
        let mut pair = Pair::open(Setting::default());
        let mut body = Vec::new();
        terminate.emit_into(reading, &mut body);
        pair.passive.post(7, Operation::Send, &[]);
        pair.forge(&untagged(Opcode::Terminate, 1, 0, &body));
        let told = pair.passive.told();
        let ending = Ending::PeerTerminated(TerminateCode::CRC);
        assert!(told.contains(&Event::Disconnected(ending)), "{told:?}");
        assert_eq!(told.last(), Some(&Event::Close));
        assert_eq!(pair.passive.sent(), [(7, Status::Flushed)]);
        pair.settle();
        assert!(pair.lines.is_empty(), "there is no answer to it");
    }
    // one that nobody can read is one all the same
    let mut pair = Pair::open(Setting::default());
    pair.forge(&untagged(Opcode::Terminate, 1, 0, &[]));
    assert_eq!(pair.passive.told().last(), Some(&Event::Close));
    check(
        untagged(Opcode::Terminate, 2, 0, &[0; 4]),
        "1/2/03 invalid-msn of TERMINATE",
        AsyncEvent::RequestError(INDEX),
    );
    let mut wrong_queue = Untagged::new(Opcode::Terminate, true, Msn(1), MessageOffset(0));
    wrong_queue.queue = QueueNumber::SEND;
    check(
        ulpdu(Header::Untagged(wrong_queue), &[0; 4]),
        "1/2/01 invalid-queue-number of TERMINATE",
        AsyncEvent::RequestError(INDEX),
    );
}

#[test]
fn a_completion_that_is_lost_is_the_end() {
    let mut pair = Pair::open(Setting::default());
    let buffer = pair.passive.region(&[0; 8]);
    for id in 0..70 {
        pair.active.post(id, Operation::Send, &[]);
        pair.passive.post_receive(id, buffer, 8);
        pair.settle();
        pair.active.sent();
        if pair.passive.qp.state() == State::Error {
            assert_eq!(id, 64, "as many as the queue has room for");
            let told = pair.passive.told();
            assert!(told.contains(&Event::Async(AsyncEvent::Fatal(INDEX))));
            return;
        }
    }
    panic!("the queue is endless");
}
