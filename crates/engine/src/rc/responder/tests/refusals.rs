//! Each refusal: what the requester is told, what the receive in hand says, which event.

use wire::{MemoryKey, Opcode, Qpn};

use super::bench::*;
use crate::access::{Access, MemoryRange, PdId};
use crate::completion::{CompletionOpcode, Status};
use crate::event::AsyncEvent;
use crate::model::CompletionQueue;

/// Whatever the refusal was: the first packet is answered by `line`, and no event or the given one
/// is raised.
#[track_caller]
fn assert_refused(bench: &mut Bench, line: &str, event: Option<fn(crate::QpIndex) -> AsyncEvent>) {
    assert_eq!(bench.sends(), [line]);
    let expected: Vec<_> = event
        .map(|event| event(bench.common.index()))
        .into_iter()
        .collect();
    assert_eq!(bench.events(), expected);
}

#[test]
fn each_wrong_sequence_of_opcodes_is_an_invalid_request() {
    let begun: [Option<Opcode>; 3] = [
        None,
        Some(Opcode::RC_SEND_FIRST),
        Some(Opcode::RC_WRITE_FIRST),
    ];
    let mut cases = 0;
    for first in begun {
        for opcode in Opcode::all() {
            let operation = opcode.operation();
            if opcode.transport() != wire::Transport::Rc || operation.is_response() {
                continue;
            }
            let goes_on = first.is_some_and(|first| first.operation() == operation)
                && !opcode.starts_message();
            let is_supported = !matches!(
                operation,
                wire::Operation::Flush | wire::Operation::AtomicWrite
            );
            let begins = first.is_none() && opcode.starts_message() && is_supported;
            if goes_on || begins {
                continue;
            }
            let mut bench = responder_in_rtr();
            bench.post(1, 0, 4096);
            let mut next = psn(0);
            if let Some(first) = first {
                let mut header = header(first, next);
                if first == Opcode::RC_WRITE_FIRST {
                    header = bench.write_header(first, next, 0, 1024);
                }
                assert_fine(bench.arrives_with(header, &pattern(MTU)));
                next = next.plus(1);
            }
            let mut wrong = header(opcode, next);
            let headers = opcode.headers();
            if headers.contains(wire::Header::Reth) {
                wrong.reth = bench.read_header(next, 0, 8).reth;
            }
            if headers.contains(wire::Header::AtomicEth) {
                wrong.atomic_eth = bench.atomic_header(opcode, next, 0, 0, 0).atomic_eth;
            }
            if headers.contains(wire::Header::Immediate) {
                wrong.immediate = Some([0; 4]);
            }
            if headers.contains(wire::Header::Ieth) {
                wrong.ieth = Some(MemoryKey(0));
            }
            if headers.contains(wire::Header::Feth) {
                wrong.feth = Some(wire::Feth::from_bytes(&[0; 4]));
            }
            let payload = match opcode.payload_rule() {
                wire::PayloadRule::None => 0,
                wire::PayloadRule::ExactMtu => MTU,
                _ => 8,
            };
            assert_fatal(bench.arrives_with(wrong, &pattern(payload)));
            let line = format!("ACKNOWLEDGE {} 61 msn 0", next.distance_from(FIRST));
            assert_eq!(bench.sends(), [line], "{opcode} after {first:?}");
            let completions = bench.completions();
            if first == Some(Opcode::RC_SEND_FIRST) {
                assert_eq!(completions[0].status, Status::RemoteInvalidRequest);
                assert!(bench.events().is_empty(), "the completion reports it");
            } else {
                assert!(completions.is_empty());
                let event = AsyncEvent::RequestError(bench.common.index());
                assert_eq!(bench.events(), [event]);
            }
            cases += 1;
        }
    }
    assert_eq!(cases, 9 + 15 + 16);
}

#[test]
fn an_operation_that_is_not_enabled_is_an_invalid_request() {
    type Ask = fn(&mut Bench) -> crate::rc::responder::Handled;
    let cases: [(Access, Ask); 3] = [
        (Access::REMOTE_WRITE, |bench| {
            let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 1);
            bench.arrives_with(write, b"x")
        }),
        (Access::REMOTE_READ, |bench| bench.read(psn(0), 0, 1)),
        (Access::REMOTE_ATOMIC, |bench| bench.fetch_add(psn(0), 0, 1)),
    ];
    for (right, ask) in cases {
        let mut bench = responder_in_rtr();
        bench.common.attributes.access -= right;
        assert_fatal(ask(&mut bench));
        assert_refused(
            &mut bench,
            "ACKNOWLEDGE 0 61 msn 0",
            Some(AsyncEvent::RequestError),
        );
    }
}

/// Trap 7: LAST must not be empty, FIRST and MIDDLE must be full, nothing exceeds the MTU.
#[test]
fn payloads_of_a_wrong_length_are_invalid_requests() {
    let full = pattern(MTU);
    let long = pattern(MTU + 4);
    let short = pattern(MTU - 4);
    for (opcode, payload) in [
        (Opcode::RC_SEND_FIRST, &short[..]),
        (Opcode::RC_SEND_FIRST, &long[..]),
        (Opcode::RC_SEND_ONLY, &long[..]),
    ] {
        let mut bench = responder_in_rtr();
        bench.post(1, 0, 4096);
        assert_fatal(bench.arrives(opcode, psn(0), payload));
        assert_eq!(bench.completions()[0].status, Status::RemoteInvalidRequest);
        assert_refused(&mut bench, "ACKNOWLEDGE 0 61 msn 0", None);
    }
    for (opcode, payload) in [
        (Opcode::RC_SEND_MIDDLE, &short[..]),
        (Opcode::RC_SEND_LAST, &[][..]),
        (Opcode::RC_SEND_LAST, &long[..]),
    ] {
        let mut bench = responder_in_rtr();
        bench.post(1, 0, 4096);
        assert_fine(bench.arrives(Opcode::RC_SEND_FIRST, psn(0), &full));
        assert_fatal(bench.arrives(opcode, psn(1), payload));
        assert_refused(&mut bench, "ACKNOWLEDGE 1 61 msn 0", None);
    }
}

#[test]
fn a_pad_that_the_payload_does_not_need_is_an_invalid_request() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 64);
    let mut send = header(Opcode::RC_SEND_ONLY, psn(0));
    send.bth.pad = 2;
    assert_fatal(bench.arrives_as_is(send, b"abc"));
    assert_refused(&mut bench, "ACKNOWLEDGE 0 61 msn 0", None);
}

#[test]
fn a_write_must_end_where_its_length_says() {
    let full = pattern(MTU);
    // (length, payload of the packets, which packet is refused)
    let cases: [(u32, &[usize], u32); 4] = [
        (300, &[MTU, 45], 1),
        (300, &[MTU, 43], 1),
        (256, &[MTU], 0),
        (400, &[MTU, MTU], 1),
    ];
    for (length, parts, refused) in cases {
        let mut bench = responder_in_rtr();
        for (count, part) in parts.iter().enumerate() {
            let count = count as u32;
            let header = match count {
                0 => bench.write_header(Opcode::RC_WRITE_FIRST, psn(0), 0, length),
                _ => header(Opcode::RC_WRITE_LAST, psn(count)),
            };
            let handled = bench.arrives_with(header, &full[..*part]);
            assert_eq!(
                handled.fatal,
                count == refused,
                "{length} {parts:?} {count}"
            );
        }
        let line = format!("ACKNOWLEDGE {refused} 61 msn 0");
        assert_refused(&mut bench, &line, Some(AsyncEvent::RequestError));
    }
}

#[test]
fn a_message_above_2_to_31_bytes_is_an_invalid_request() {
    let mut bench = responder_in_rtr();
    let write = bench.write_header(Opcode::RC_WRITE_FIRST, psn(0), 0, (1 << 31) + 1);
    assert_fatal(bench.arrives_with(write, &pattern(MTU)));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 61 msn 0",
        Some(AsyncEvent::RequestError),
    );
}

#[test]
fn a_send_longer_than_its_receive_says_so_on_both_sides() {
    let mut bench = responder_in_rtr();
    bench.post_sges(1, &[(0, 200), (500, 99)]);
    assert_fine(bench.arrives(Opcode::RC_SEND_FIRST, psn(0), &pattern(MTU)));
    assert_fatal(bench.arrives(Opcode::RC_SEND_LAST, psn(1), &pattern(44)));
    assert_eq!(bench.completions()[0].status, Status::LocalLength);
    assert_eq!(bench.common.receive_cq.solicited(), 1, "errors always wake");
    assert_refused(&mut bench, "ACKNOWLEDGE 1 61 msn 0", None);
}

/// Trap 13: a NAK needs no receive. Trap 15: ends of ranges are not wrapped.
#[test]
fn remote_memory_that_may_not_be_written_is_an_access_error() {
    let other_pd = PdId(99);
    type Spoil = fn(&mut Bench, &mut wire::Reth);
    let cases: [(&str, Spoil); 6] = [
        ("unknown key", |_, reth| reth.rkey = MemoryKey(0xdead_0000)),
        ("key of before", |_, reth| reth.rkey.0 ^= 1),
        ("beyond the end", |_, reth| reth.va += 4096),
        ("end of the address space", |_, reth| reth.va = u64::MAX),
        ("before the start", |_, reth| reth.va = REMOTE - 1),
        ("no right", |bench, reth| {
            let bytes = vec![0; 64];
            reth.rkey = bench
                .memory
                .register(PD, REMOTE, bytes, Access::REMOTE_READ);
        }),
    ];
    for (name, spoil) in cases {
        let mut bench = responder_in_rtr();
        let mut write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 2);
        let mut reth = write.reth.expect("a WRITE has one");
        spoil(&mut bench, &mut reth);
        write.reth = Some(reth);
        assert_fatal(bench.arrives_with(write, b"xy"));
        assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 62 msn 0"], "{name}");
        let event = AsyncEvent::AccessError(bench.common.index());
        assert_eq!(bench.events(), [event], "{name}");
    }
    let mut bench = responder_in_rtr();
    bench.common.pd = other_pd;
    let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 2);
    assert_fatal(bench.arrives_with(write, b"xy"));
    assert_eq!(bench.sends(), ["ACKNOWLEDGE 0 62 msn 0"]);
}

#[test]
fn a_long_write_is_refused_at_its_first_packet() {
    let mut bench = responder_in_rtr();
    let length = REGION_LENGTH as u32 + 1;
    let write = bench.write_header(Opcode::RC_WRITE_FIRST, psn(0), 0, length);
    assert_fatal(bench.arrives_with(write, &pattern(MTU)));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 62 msn 0",
        Some(AsyncEvent::AccessError),
    );
    assert_eq!(bench.remote_bytes(0, 8), [0; 8]);
}

/// Trap 18: a type 2 window is for its own queue pair.
#[test]
fn a_window_of_another_queue_pair_is_an_access_error() {
    let mut bench = responder_in_rtr();
    let range = MemoryRange {
        address: REMOTE,
        length: 64,
    };
    let other = Qpn::truncated(QPN.get() + 1);
    let right = Access::REMOTE_WRITE;
    let window = bench.memory.bind_window(other, bench.remote, range, right);
    let mut write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 1);
    if let Some(reth) = &mut write.reth {
        reth.rkey = window;
    }
    assert_fatal(bench.arrives_with(write, b"x"));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 62 msn 0",
        Some(AsyncEvent::AccessError),
    );
}

#[test]
fn a_write_with_immediate_to_a_bad_key_fails_its_receive() {
    let mut bench = responder_in_rtr();
    bench.post(4, 0, 0);
    let mut write = bench.write_header(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, psn(0), 4096, 1);
    write.immediate = Some([0; 4]);
    assert_fatal(bench.arrives_with(write, b"x"));
    let completion = bench.completions()[0];
    assert_eq!(completion.status, Status::LocalAccess);
    assert_eq!(
        completion.opcode,
        CompletionOpcode::ReceiveRdmaWithImmediate
    );
    assert_refused(&mut bench, "ACKNOWLEDGE 0 62 msn 0", None);
}

#[test]
fn memory_of_a_peer_that_faults_is_an_access_error() {
    let mut bench = responder_in_rtr();
    bench.memory.unmap_from(bench.remote, 0);
    let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(0), 0, 1);
    assert_fatal(bench.arrives_with(write, b"x"));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 62 msn 0",
        Some(AsyncEvent::AccessError),
    );

    let mut bench = responder_in_rtr();
    bench.memory.unmap_from(bench.remote, 0);
    assert_fatal(bench.fetch_add(psn(0), 0, 1));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 62 msn 0",
        Some(AsyncEvent::AccessError),
    );
}

#[test]
fn a_receive_that_cannot_be_written_is_an_operational_error() {
    type Spoil = fn(&mut Bench);
    let cases: [(&str, Spoil); 3] = [
        ("bad key", |bench| bench.post_with_bad_key(1)),
        ("beyond the region", |bench| bench.post(1, 4090, 64)),
        ("unmapped", |bench| {
            bench.post(1, 0, 64);
            bench.memory.unmap_from(bench.local, 4);
        }),
    ];
    for (name, spoil) in cases {
        let mut bench = responder_in_rtr();
        spoil(&mut bench);
        assert_fatal(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), &pattern(64)));
        let completion = bench.completions()[0];
        assert_eq!(completion.status, Status::LocalProtection, "{name}");
        assert_refused(&mut bench, "ACKNOWLEDGE 0 63 msn 0", None);
    }
}

/// Trap 15 again: the end of an element at the end of the address space.
#[test]
fn an_element_that_wraps_is_an_operational_error() {
    let mut bench = responder_in_rtr();
    let low = bench
        .memory
        .register(PD, 0, vec![0; 512], Access::LOCAL_WRITE);
    let sge = crate::Sge {
        address: u64::MAX - 255,
        length: 512,
        key: low,
    };
    let wqe = crate::ReceiveWqe {
        id: 1,
        sges: smallvec::smallvec![sge],
    };
    bench.common.receives.post(wqe).expect("room");
    bench.responder.message = crate::rc::responder::Message::Send { placed: 256 };
    bench.responder.receive = crate::ReceiveSource::take(&bench.common.receives);
    assert_fatal(bench.arrives(Opcode::RC_SEND_LAST, psn(0), b"x"));
    assert_eq!(bench.completions()[0].status, Status::LocalProtection);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_receive_but_not_the_requester() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 16);
    let mut send = header(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, psn(0));
    send.ieth = Some(bench.remote);
    assert_fatal(bench.arrives_with(send, b"x"));
    assert_eq!(bench.completions()[0].status, Status::RemoteInvalidRequest);
    assert_refused(&mut bench, "ACKNOWLEDGE 0 ack msn 0", None);
}

#[test]
fn a_lost_completion_is_fatal() {
    let mut bench = responder_in_rtr();
    bench.common.receive_cq = CompletionQueue::new(0);
    bench.post(1, 0, 16);
    assert_fatal(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"x"));
    assert_refused(
        &mut bench,
        "ACKNOWLEDGE 0 63 msn 0",
        Some(AsyncEvent::Fatal),
    );
}

/// Trap 16: one refusal fails one receive; the others are the flush's.
#[test]
fn a_refusal_takes_only_the_receive_in_hand() {
    let mut bench = responder_in_rtr();
    bench.post(1, 0, 4);
    bench.post(2, 0, 4);
    assert_fatal(bench.arrives(Opcode::RC_SEND_ONLY, psn(0), b"too long"));
    let ids: Vec<_> = bench.completions().iter().map(|c| c.id).collect();
    assert_eq!(ids, [1]);
    assert_eq!(bench.common.receives.len(), 1);
    assert_eq!(bench.responder.current_receive(), None);
}

#[test]
fn what_was_done_before_a_refusal_is_answered_first() {
    let mut bench = responder_in_rtr();
    assert_fine(bench.read(psn(0), 0, 4));
    let write = bench.write_header(Opcode::RC_WRITE_ONLY, psn(1), 4096, 1);
    assert_fatal(bench.arrives_with(write, b"x"));
    assert_eq!(
        bench.sends(),
        [
            "READ_RESPONSE_ONLY 0 ack msn 1 00 x4",
            "ACKNOWLEDGE 1 62 msn 1"
        ]
    );
}
