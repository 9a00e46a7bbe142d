//! RFC 7306: atomics and immediate data, where both ends were told so.

use super::*;
use crate::qp::PostError;
use wire::iwarp::TerminateCode;

fn extended() -> Pair {
    Pair::open(Setting {
        extensions: true,
        ..Setting::default()
    })
}

#[test]
fn a_write_with_immediate_is_a_write_and_a_message() {
    let mut pair = extended();
    let (ours, theirs) = (
        pair.active.region(&pattern(8)),
        pair.passive.region(&[0; 8]),
    );
    pair.passive.post_receive(3, theirs, 0);
    pair.passive.post_receive(4, theirs, 0);
    let write = |offset| Operation::WriteImmediate(remote(theirs, offset), [1, 2, 3, 4]);
    pair.active.post(1, write(0), &[sge(ours, 0, 8)]);
    pair.active
        .post_with(2, write(0), SendFlags::SOLICITED, &[]);
    pair.settle();
    assert_eq!(
        pair.lines,
        [
            "> WRITE stag=0x000001a5 to=0x1000 length=8",
            "> IMMEDIATE msn=1 mo=0 data=0x0102030400000000",
            "> WRITE stag=0x000001a5 to=0x1000 length=0",
            "> IMMEDIATE_SOLICITED msn=2 mo=0 data=0x0102030400000000",
        ]
    );
    assert_eq!(pair.active.sent().len(), 2);
    let completion = pair.passive.receive_cq.poll().unwrap();
    let kind = CompletionOpcode::ReceiveRdmaWithImmediate;
    assert_eq!(
        (completion.id, completion.opcode, completion.length),
        (3, kind, 8)
    );
    assert_eq!(completion.immediate, Some([1, 2, 3, 4]));
    assert_eq!(pair.passive.receive_cq.poll().unwrap().length, 0);
    assert_eq!(pair.passive.receive_cq.solicited(), 1);
    assert_eq!(pair.passive.memory.read(theirs, 0, 8), pattern(8));
}

#[test]
fn atomics_give_back_what_was_there() {
    let mut pair = extended();
    let word = pair.passive.region(&5_u64.to_ne_bytes());
    let results = pair.active.region(&[0; 24]);
    let add = Operation::FetchAdd {
        remote: remote(word, 0),
        add: 3,
    };
    let swap = |compare| Operation::CompareSwap {
        remote: remote(word, 0),
        compare,
        swap: 100,
    };
    pair.active.post(1, add, &[sge(results, 0, 8)]);
    pair.active.post(2, swap(7), &[sge(results, 8, 8)]);
    pair.active.post(3, swap(8), &[sge(results, 16, 8)]);
    pair.settle();
    assert_eq!(
        pair.active.sent(),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
    let memory = &pair.active.memory;
    let found = [0, 8, 16].map(|at| memory.read_u64(results, at));
    assert_eq!(found, [5, 8, 8]);
    assert_eq!(pair.passive.memory.read_u64(word, 0), 100);
}

#[test]
fn an_atomic_needs_the_right_of_the_queue_pair_too() {
    let mut pair = extended();
    let word = pair.passive.region(&5_u64.to_ne_bytes());
    let rights = &mut pair.passive.qp.attributes_mut().access;
    *rights = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
    let results = pair.active.region(&[0; 8]);
    let add = Operation::FetchAdd {
        remote: remote(word, 0),
        add: 3,
    };
    pair.active.post(1, add, &[sge(results, 0, 8)]);
    pair.settle();
    assert_eq!(pair.passive.memory.read_u64(word, 0), 5);
    let last = pair.lines.pop().unwrap_or_default();
    assert!(last.contains("remote-protection-access-rights"), "{last}");
}

#[test]
fn reads_and_atomics_share_one_depth_and_one_order() {
    let mut pair = Pair::open(Setting {
        extensions: true,
        depths: Depths { ird: 1, ord: 1 },
        ..Setting::default()
    });
    let word = pair.passive.region(&5_u64.to_ne_bytes());
    let results = pair.active.region(&[0; 16]);
    let add = Operation::FetchAdd {
        remote: remote(word, 0),
        add: 3,
    };
    pair.active.post(1, add, &[sge(results, 0, 8)]);
    let read = Operation::Read(remote(word, 0));
    pair.active.post(2, read, &[sge(results, 8, 8)]);
    let mut lines = Vec::new();
    let request = pair.active.transmit(&mut lines);
    assert_eq!(lines.len(), 1);
    pair.passive.receive(&request, usize::MAX);
    pair.settle();
    assert_eq!(pair.active.memory.read_u64(results, 0), 5);
    assert_eq!(pair.active.memory.read_u64(results, 8), 8);
}

#[test]
fn who_was_not_told_posts_nothing_of_it_and_ends_a_peer_that_does() {
    let mut plain = Pair::open(Setting::default());
    let request = |operation| SendRequest {
        id: 1,
        operation,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        to: None,
    };
    let write = Operation::WriteImmediate(RemoteMemory::default(), [0; 4]);
    for operation in [write, Operation::SendImmediate([0; 4])] {
        let posted = plain.active.qp.post_send(&request(operation));
        assert_eq!(posted, Err(PostError::NotOfTransport));
    }
    let told = End::new(
        Role::Active,
        &Setting {
            extensions: true,
            ..Setting::default()
        },
    );
    plain.active = told;
    plain.active.qp.post_send(&request(write)).unwrap();
    plain.settle();
    assert_eq!(
        plain.lines,
        [
            "> WRITE stag=0x00000000 to=0x0 length=0",
            "> IMMEDIATE msn=1 mo=0 data=0x0000000000000000",
            "< TERMINATE msn=1 mo=0 0/2/06 unexpected-opcode of IMMEDIATE",
        ]
    );
    let code = TerminateCode::UNEXPECTED_OPCODE;
    let ending = Event::Disconnected(Ending::PeerTerminated(code));
    assert!(plain.active.told().contains(&ending));
}
