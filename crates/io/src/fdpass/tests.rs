//! Two sides in one process.

use rustix::io::{FdFlags, fcntl_getfd};

use super::*;
use crate::poll::{Wake, wait_readable};

fn unique_name(what: &str) -> Vec<u8> {
    use std::hash::{BuildHasher, Hasher, RandomState};
    format!("{what}-{:x}", RandomState::new().build_hasher().finish()).into_bytes()
}

fn message(arrival: Arrival) -> Message {
    match arrival {
        Arrival::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptors_travel_with_a_message() {
    let (here, there) = Connection::pair().expect("descriptors");
    let bell = Wake::new().expect("a descriptor");
    let other = Wake::new().expect("a descriptor");
    assert_eq!(
        here.send(b"two bells", &[bell.as_fd(), other.as_fd()]),
        Ok(Sent::Sent)
    );
    let mut buffer = [0; 64];
    let message = message(there.receive(&mut buffer).expect("connected"));
    assert_eq!(&buffer[..message.length], b"two bells");
    assert!(!message.truncated && message.credentials.is_none());
    let [received, _other] = <[Descriptor; 2]>::try_from(message.descriptors).expect("two");
    assert!(
        fcntl_getfd(&received)
            .expect("open")
            .contains(FdFlags::CLOEXEC)
    );
    assert_ne!(received.as_raw_fd(), bell.as_fd().as_raw_fd());
    rustix::io::write(&received, &1u64.to_ne_bytes()).expect("an eventfd");
    assert!(bell.drain(), "it is the same bell");
    assert!(!other.drain(), "and the order is kept");
}

#[test]
fn too_many_descriptors_are_refused_or_marked() {
    let (here, there) = Connection::pair().expect("descriptors");
    let bell = Wake::new().expect("a descriptor");
    let most = [bell.as_fd(); MAX_DESCRIPTORS];
    assert_eq!(
        here.send(b"x", &[bell.as_fd(); MAX_DESCRIPTORS + 1]),
        Err(Errno::INVAL)
    );
    assert_eq!(here.send(b"x", &most), Ok(Sent::Sent));
    let mut buffer = [0; 8];
    let arrived = message(there.receive(&mut buffer).expect("connected"));
    assert_eq!(
        (arrived.descriptors.len(), arrived.truncated),
        (MAX_DESCRIPTORS, false)
    );

    // A peer that keeps to no bound.
    let numbers = bell.as_fd().as_raw_fd().to_ne_bytes().repeat(200);
    let mut control = cmsg::Writer::<{ cmsg::space(800) }>::new();
    assert!(control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &numbers));
    let sent = send(
        &here.descriptor,
        &[],
        &[IoSlice::new(b"x")],
        control.as_bytes(),
    );
    assert_eq!(sent, Ok(Sent::Sent));
    let arrived = message(there.receive(&mut buffer).expect("connected"));
    assert!(arrived.truncated);
    // The room of absent credentials holds a few more.
    assert!((MAX_DESCRIPTORS..2 * MAX_DESCRIPTORS).contains(&arrived.descriptors.len()));
}

#[test]
fn boundaries_are_kept_and_a_close_is_seen() {
    let (here, there) = Connection::pair().expect("descriptors");
    let mut buffer = [0; 4];
    assert!(matches!(there.receive(&mut buffer), Ok(Arrival::Empty)));
    assert_eq!(
        here.send(b"", &[]),
        Err(Errno::INVAL),
        "would look like a close"
    );
    for bytes in [&b"1"[..], b"longer than the buffer", b"3"] {
        assert_eq!(here.send(bytes, &[]), Ok(Sent::Sent));
    }
    drop(here);
    let lengths: Vec<_> = std::iter::from_fn(|| match there.receive(&mut buffer) {
        Ok(Arrival::Message(message)) => Some((message.length, message.truncated)),
        _ => None,
    })
    .collect();
    assert_eq!(lengths, [(1, false), (4, true), (1, false)]);
    assert!(matches!(there.receive(&mut buffer), Ok(Arrival::Closed)));
    assert_eq!(there.send(b"x", &[]), Err(Errno::PIPE));
}

#[test]
fn a_full_queue_is_an_outcome() {
    let (here, there) = Connection::pair().expect("descriptors");
    let mut sent = 0;
    while here.send(&[7; 4096], &[]).expect("connected") == Sent::Sent {
        sent += 1;
        assert!(sent < 1_000_000, "no bound");
    }
    let mut buffer = [0; 4096];
    assert!(matches!(
        there.receive(&mut buffer),
        Ok(Arrival::Message(_))
    ));
}

#[test]
fn a_name_is_listened_on_by_one() {
    let name = unique_name("listen");
    assert_eq!(Connection::connect(&name).err(), Some(Errno::CONNREFUSED));
    let listener = Listener::bind(&name).expect("a fresh name");
    assert_eq!(Listener::bind(&name).err(), Some(Errno::ADDRINUSE));
    assert!(Listener::bind(&[b'x'; MAX_NAME + 1]).is_err());
    assert!(listener.accept().expect("listens").is_none());

    let client = Connection::connect(&name).expect("somebody listens");
    assert_eq!(wait_readable(&listener, Some(0)), Ok(true));
    let server = listener.accept().expect("listens").expect("a client");
    assert_eq!(client.send(b"hello", &[]), Ok(Sent::Sent));
    let mut buffer = [0; 8];
    assert_eq!(
        message(server.receive(&mut buffer).expect("connected")).length,
        5
    );
    let own = Credentials {
        pid: std::process::id() as i32,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    assert_eq!(server.peer(), Ok(own));
    assert_eq!(client.peer(), Ok(own));
    let life = server.peer_pidfd().expect("it lives");
    assert!(fcntl_getfd(&life).expect("open").contains(FdFlags::CLOEXEC));
    assert_eq!(wait_readable(&life, Some(0)), Ok(false), "it lives");
    drop(listener);
    Listener::bind(&name).expect("the name is free again");
}

#[test]
fn datagrams_tell_who_sent_them() {
    let name = unique_name("datagram");
    let receiver = DatagramSocket::bind(&name).expect("a fresh name");
    let sender = DatagramSocket::unnamed().expect("a descriptor");
    let mut buffer = [0; 16];
    assert!(receiver.receive(&mut buffer).expect("open").is_none());
    let payload = [IoSlice::new(b"one "), IoSlice::new(b"packet")];
    assert_eq!(sender.send_to(&name, &payload), Ok(Sent::Sent));
    let arrived = receiver.receive(&mut buffer).expect("open").expect("sent");
    assert_eq!(&buffer[..arrived.length], b"one packet");
    let credentials = arrived.credentials.expect("asked for");
    assert_eq!(credentials.pid, std::process::id() as i32);
    assert_eq!(credentials.uid, rustix::process::getuid().as_raw());

    let mut outcome = Ok(Sent::Sent);
    for _ in 0..100_000 {
        outcome = sender.send_to(&name, &payload);
        if outcome != Ok(Sent::Sent) {
            break;
        }
    }
    assert_eq!(outcome, Ok(Sent::WouldBlock), "the queue is bounded");
    drop(receiver);
    assert_eq!(sender.send_to(&name, &payload), Err(Errno::CONNREFUSED));
    assert_eq!(
        sender.send_to(&[b'x'; MAX_NAME + 1], &payload),
        Err(Errno::INVAL)
    );
}
