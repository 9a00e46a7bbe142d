use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::poll::wait_readable;
use crate::raw;

/// Hang guard.
const GUARD: Duration = Duration::from_secs(30);
const GUARD_NS: u64 = 30_000_000_000;

fn any(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().expect("a literal"), 0)
}

/// A connection from the first to the second.
fn pair(address: &str) -> (Stream, Stream) {
    let listener = Listener::listen(any(address), false, 4).expect("loopback");
    let to = listener.address().expect("bound");
    let ours = Stream::connect(Some(any(address)), to, 0).expect("loopback");
    ours.wait_connected(GUARD).expect("somebody listens");
    let (theirs, from) = accept(&listener);
    assert_eq!(from, ours.local().expect("bound"));
    assert_eq!(theirs.local(), Ok(to));
    assert_eq!((theirs.remote(), ours.remote()), (Ok(from), Ok(to)));
    (ours, theirs)
}

fn accept(listener: &Listener) -> (Stream, SocketAddr) {
    loop {
        if let Some(accepted) = listener.accept().expect("descriptors are left") {
            return accepted;
        }
        assert_eq!(wait_readable(listener, Some(GUARD_NS)), Ok(true));
    }
}

/// What comes next, once something does.
fn receive(stream: &Stream, into: &mut [u8]) -> Receiving {
    assert_eq!(wait_readable(stream, Some(GUARD_NS)), Ok(true), "nothing");
    stream.receive(into)
}

fn send(stream: &Stream, bytes: &[u8]) -> Sending {
    let all = Part::Own(0..bytes.len());
    stream.send(bytes, &[all], &mut Gather::default())
}

#[test]
fn parts_arrive_in_their_order_in_both_families() {
    for address in ["127.0.0.1", "::1"] {
        let (ours, theirs) = pair(address);
        assert_eq!(theirs.receive(&mut [0; 4]), Receiving::Nothing);
        let program = b"from elsewhere".to_vec();
        let parts = [
            Part::Own(4..6),
            Part::Elsewhere {
                address: program.as_ptr().addr(),
                length: program.len(),
            },
            Part::Own(0..0),
            Part::Own(0..4),
        ];
        let total: usize = parts.iter().map(Part::length).sum();
        let sent = ours.send(b"last: ", &parts, &mut Gather::default());
        assert_eq!(sent, Sending::Sent(total));
        let mut bytes = [0; 64];
        assert_eq!(receive(&theirs, &mut bytes), Receiving::Received(total));
        assert_eq!(&bytes[..total], b": from elsewherelast");
        let segment = ours.segment_size().expect("connected");
        assert!((500..1 << 16).contains(&segment), "{segment}");
    }
}

#[test]
fn a_connection_that_is_being_made_is_looked_at_without_waiting() {
    let listener = Listener::listen(any("127.0.0.1"), false, 0).expect("loopback");
    let to = listener.address().expect("bound");
    let first = Stream::connect(None, to, 0).expect("loopback");
    first.wait_connected(GUARD).expect("somebody listens");
    assert_eq!(first.is_connected(), Ok(true));
    // there is no room for another one until the first is accepted
    let second = Stream::connect(None, to, 0).expect("loopback");
    assert_eq!(second.is_connected(), Ok(false));
    assert_eq!(send(&second, b"early"), Sending::Full);
    accept(&listener);
    assert_eq!(second.wait_connected(GUARD), Ok(()));
    drop(listener);
    let third = Stream::connect(None, to, 0).expect("loopback");
    assert_eq!(third.wait_connected(GUARD), Err(Errno::CONNREFUSED));
}

#[test]
fn a_full_stream_takes_a_part_then_nothing_then_goes_on() {
    let (ours, theirs) = pair("127.0.0.1");
    let bytes: Vec<u8> = (0..256 << 10).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    loop {
        let from = sent % bytes.len();
        match send(&ours, &bytes[from..]) {
            Sending::Sent(count) => sent += count,
            Sending::Full => break,
            other => panic!("{other:?}"),
        }
        assert!(sent < 1 << 30, "the kernel takes all");
    }
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while received < sent {
        let Receiving::Received(count) = receive(&theirs, &mut buffer) else {
            panic!("the stream ended after {received} bytes");
        };
        let expected = bytes.iter().cycle().skip(received % bytes.len());
        assert!(buffer[..count].iter().eq(expected.take(count)));
        received += count;
    }
    assert!(matches!(send(&ours, &bytes), Sending::Sent(_)));
}

#[test]
fn memory_that_is_not_there_is_a_fault_and_what_is_before_it_leaves() {
    let (ours, theirs) = pair("127.0.0.1");
    let nothing = Part::Elsewhere {
        address: 8,
        length: 100,
    };
    let gather = &mut Gather::default();
    let alone = std::slice::from_ref(&nothing);
    assert_eq!(ours.send(b"", alone, gather), Sending::Fault);
    assert_eq!(
        ours.send(b"abc", &[Part::Own(2..9)], gather),
        Sending::Fault
    );
    // whether the kernel keeps what is before the fault is its own affair; it never sends more
    match ours.send(b"abc", &[Part::Own(0..3), nothing], gather) {
        Sending::Sent(count) => assert!(count <= 3),
        other => assert_eq!(other, Sending::Fault),
    }
    ours.finish();
    let mut bytes = [0; 16];
    while let Receiving::Received(count) = receive(&theirs, &mut bytes) {
        assert!(b"abc".starts_with(&bytes[..count]));
    }
}

#[test]
fn one_half_ends_and_the_other_goes_on() {
    let (ours, theirs) = pair("::1");
    assert_eq!(send(&ours, b"last words"), Sending::Sent(10));
    ours.finish();
    let mut bytes = [0; 16];
    assert_eq!(receive(&theirs, &mut bytes), Receiving::Received(10));
    assert_eq!(receive(&theirs, &mut bytes), Receiving::End);
    assert_eq!(send(&theirs, b"answer"), Sending::Sent(6));
    assert_eq!(receive(&ours, &mut bytes), Receiving::Received(6));
    assert_eq!(send(&ours, b"more"), Sending::Lost(Errno::PIPE));
    drop(theirs);
    assert_eq!(receive(&ours, &mut bytes), Receiving::End);
}

#[test]
fn a_reset_is_a_loss() {
    let (ours, theirs) = pair("127.0.0.1");
    assert_eq!(send(&ours, b"who cares"), Sending::Sent(9));
    ours.reset();
    let mut bytes = [0; 16];
    // what came before may still be read
    let mut outcome = receive(&theirs, &mut bytes);
    while let Receiving::Received(_) = outcome {
        outcome = receive(&theirs, &mut bytes);
    }
    assert_eq!(outcome, Receiving::Lost(Errno::CONNRESET));
}

#[test]
fn nobody_listens() {
    let listener = Listener::listen(any("127.0.0.1"), false, 1).expect("loopback");
    let to = listener.address().expect("bound");
    drop(listener);
    let stream = Stream::connect(None, to, 0);
    let outcome = stream.and_then(|stream| stream.wait_connected(GUARD));
    assert_eq!(outcome, Err(Errno::CONNREFUSED));
}

#[test]
fn a_port_has_one_listener_and_ordinary_sockets_count() {
    let first = Listener::listen(any("127.0.0.1"), false, 1).expect("loopback");
    let taken = first.address().expect("bound");
    let second = Listener::listen(taken, false, 1);
    assert_eq!(second.map(drop), Err(Errno::ADDRINUSE));
    let other = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = other.local_addr().expect("bound");
    let second = Listener::listen(taken, false, 1);
    assert_eq!(second.map(drop), Err(Errno::ADDRINUSE));
}

#[test]
fn both_families_arrive_at_the_wildcard_unless_it_is_of_one() {
    let both = Listener::listen(any("::"), false, 4).expect("IPv6");
    let port = both.address().expect("bound").port();
    let v4 = SocketAddr::new([127, 0, 0, 1].into(), port);
    let connected = TcpStream::connect_timeout(&v4, GUARD).expect("it listens");
    let (_stream, from) = accept(&both);
    assert_eq!(from, connected.local_addr().expect("bound"), "as IPv4");
    let one = Listener::listen(any("::"), true, 4).expect("IPv6");
    let port = one.address().expect("bound").port();
    let v4 = SocketAddr::new([127, 0, 0, 1].into(), port);
    assert!(TcpStream::connect_timeout(&v4, GUARD).is_err());
}

#[test]
fn an_ordinary_program_is_a_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let to = listener.local_addr().expect("bound");
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("five bytes");
        stream.write_all(&bytes).expect("an open stream");
    });
    let stream = Stream::connect(None, to, 0).expect("loopback");
    stream.wait_connected(GUARD).expect("it listens");
    assert_eq!(send(&stream, b"hello"), Sending::Sent(5));
    let mut bytes = [0; 8];
    assert_eq!(receive(&stream, &mut bytes), Receiving::Received(5));
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!(receive(&stream, &mut bytes), Receiving::End);
    peer.join().expect("the peer is content");
}

/// The TOS, or else the traffic class, of what a socket sends.
fn traffic_class(of: impl AsFd + Copy) -> [u8; 2] {
    [
        (libc::SOL_IP, libc::IP_TOS),
        (libc::SOL_IPV6, libc::IPV6_TCLASS),
    ]
    .map(|(level, name)| {
        let mut value = [0; 4];
        match raw::read_bytes(of, level, name, &mut value) {
            Ok(_) => i32::from_ne_bytes(value) as u8, // eight bits of the header
            Err(_) => 0,                              // not of this family
        }
    })
}

#[test]
fn packets_have_the_traffic_class_from_the_first_on() {
    const CLASS: u8 = 0xb8;
    const OTHER: u8 = 0x28;
    for (host, at) in [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
    ] {
        let listener = Listener::listen(any(host), false, 4).expect("loopback");
        listener.set_traffic_class(CLASS).expect("an own socket");
        let port = listener.address().expect("bound").port();
        let to = SocketAddr::new(at.parse().expect("a literal"), port);
        let ours = Stream::connect(None, to, CLASS).expect("loopback");
        ours.wait_connected(GUARD).expect("somebody listens");
        let (theirs, _) = accept(&listener);
        let expected = match host {
            "127.0.0.1" => [CLASS, 0],
            _ => [CLASS, CLASS],
        };
        assert_eq!(traffic_class(&theirs), expected, "{host}");
        let plain = Stream::connect(None, to, 0).expect("loopback");
        let of_family = traffic_class(&ours);
        assert!(of_family.contains(&CLASS), "{of_family:?} to {at}");
        assert_eq!(traffic_class(&plain), [0, 0]);
        theirs.set_traffic_class(OTHER).expect("an own socket");
        assert_eq!(traffic_class(&theirs)[0], OTHER);
    }
}

#[test]
fn a_child_has_no_connection_and_does_not_end_one() {
    let (ours, theirs) = pair("127.0.0.1");
    let listener = Listener::listen(any("127.0.0.1"), false, 1).expect("loopback");
    let raw = [ours.as_raw_fd(), listener.as_fd().as_raw_fd()];
    // SAFETY: the child does nothing but the few calls below and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks for the flags of numbers, open or not.
        let is_open = raw.map(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(is_open != [false, false])) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child has a socket of its parent's");
    assert_eq!(send(&ours, b"still here"), Sending::Sent(10));
    let mut bytes = [0; 16];
    assert_eq!(receive(&theirs, &mut bytes), Receiving::Received(10));
    assert_eq!(theirs.receive(&mut bytes), Receiving::Nothing, "no end");
}
