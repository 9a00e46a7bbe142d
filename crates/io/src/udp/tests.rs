//! The sockets on a real loopback interface.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::*;
use crate::caps::Caps;
use crate::poll::wait_readable;
use crate::raw;

/// Hang guard for what `lo` has already been given.
const GUARD_NS: u64 = 30_000_000_000;

/// The byte that steers, where the tests need one: as far in as a header may put it.
const OFFSET: u32 = 5;

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A group on a port of its own, so that tests can run side by side.
fn open_group(count: usize) -> (Group, u16) {
    loop {
        // Below the usual range of ephemeral ports.
        let port = 20_000 + (random() % 12_000) as u16;
        match Group::open(port, count, OFFSET) {
            Ok(group) => return (group, port),
            Err(OpenError::Taken { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The loopback addresses that this machine has.
fn loopbacks() -> Vec<IpAddr> {
    let mut addresses = vec![Ipv4Addr::LOCALHOST.into()];
    if Caps::of_this_kernel().ipv6 && UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        addresses.push(Ipv6Addr::LOCALHOST.into());
    }
    addresses
}

fn send_all(socket: &SendSocket, transmit: &Transmit, payload: &[u8]) {
    assert_eq!(
        socket.send(transmit, &[IoSlice::new(payload)]),
        SendOutcome::Sent
    );
}

/// Sends each payload from a port of its own.
fn send_separately(to: SocketAddr, payloads: &[Vec<u8>]) {
    for payload in payloads {
        let socket = SendSocket::open(Family::of(to.ip())).expect("a socket");
        send_all(&socket, &Transmit::to(to), payload);
    }
}

/// Waits for `count` datagrams over all sockets and tells which socket got which.
fn collect(group: &Group, count: usize) -> BTreeMap<usize, Vec<Vec<u8>>> {
    let mut buffer = vec![0; RECEIVE_BUFFER];
    let mut got = BTreeMap::<usize, Vec<Vec<u8>>>::new();
    let mut receivers: Vec<_> = (0..group.len())
        .map(|index| group.receiver(index).expect("a member"))
        .collect();
    let deadline = crate::clock::now_ns() + GUARD_NS;
    while got.values().map(Vec::len).sum::<usize>() < count {
        assert!(
            crate::clock::now_ns() < deadline,
            "datagrams are missing: {got:?}"
        );
        for (index, receiver) in receivers.iter_mut().enumerate() {
            while let Some(received) = receiver.receive(&mut buffer).expect("receives") {
                let payloads = received.segments(&buffer).map(<[u8]>::to_vec);
                got.entry(index).or_default().extend(payloads);
            }
        }
    }
    got
}

fn receive_one(receiver: &mut ReceiveSocket, buffer: &mut [u8]) -> Received {
    assert_eq!(
        wait_readable(&*receiver, Some(GUARD_NS)),
        Ok(true),
        "nothing arrived"
    );
    receiver
        .receive(buffer)
        .expect("receives")
        .expect("readable")
}

fn steered_to(byte: u8) -> Vec<u8> {
    let mut payload = vec![0xee; OFFSET as usize];
    payload.extend([byte, 1, 2, 3]);
    payload
}

/// Each of 16 sockets gets exactly the datagrams with its byte, over every loopback address.
fn assert_steers(group: &Group, port: u16) {
    for address in loopbacks() {
        let payloads: Vec<_> = (0..16).map(steered_to).collect();
        send_separately((address, port).into(), &payloads);
        let expected = (0..16)
            .map(|byte| (usize::from(byte), vec![steered_to(byte)]))
            .collect();
        assert_eq!(collect(group, 16), expected, "{address}");
    }
}

#[test]
fn a_byte_chooses_the_socket() {
    let (group, port) = open_group(16);
    assert_steers(&group, port);
}

/// As the kernel's rxe sends them.
#[test]
fn ipv6_datagrams_without_a_checksum_arrive() {
    let Some(loopback) = loopbacks().into_iter().find(IpAddr::is_ipv6) else {
        println!("skipped: no IPv6 on this machine");
        return;
    };
    let (group, port) = open_group(2);
    let sender = UdpSocket::bind((loopback, 0)).expect("a socket on the loopback");
    raw::set_int(&sender, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).expect("no checksum");
    sender
        .send_to(&steered_to(1), (loopback, port))
        .expect("sending to the loopback");
    assert_eq!(collect(&group, 1)[&1], [steered_to(1)]);
}

#[test]
fn a_byte_beyond_the_group_and_a_short_datagram_go_to_socket_0() {
    let (group, port) = open_group(16);
    for address in loopbacks() {
        let mut payloads: Vec<_> = [16, 17, 128, 255].map(steered_to).to_vec();
        payloads.extend([vec![], vec![9; OFFSET as usize]]);
        // Several ports each: without the program the kernel would scatter them.
        let payloads = vec![payloads; 4].concat();
        send_separately((address, port).into(), &payloads);
        assert_eq!(
            collect(&group, payloads.len()),
            BTreeMap::from([(0, payloads)]),
            "{address}"
        );
    }
}

/// As on a machine without IPv6.
#[test]
fn a_group_of_ipv4_sockets() {
    let (group, port) = loop {
        let port = 20_000 + (random() % 12_000) as u16;
        match Group::open_as(false, port, 16, OFFSET, RECEIVE_MEMORY) {
            Ok(group) => break (group, port),
            Err(OpenError::Taken { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(!group.is_dual_stack());
    let payloads: Vec<_> = (0..16).map(steered_to).collect();
    send_separately((Ipv4Addr::LOCALHOST, port).into(), &payloads);
    assert_eq!(collect(&group, 16).len(), 16);

    let mut receiver = group.receiver(7).expect("a member");
    send_separately((Ipv4Addr::LOCALHOST, port).into(), &[steered_to(7)]);
    let received = receive_one(&mut receiver, &mut vec![0; RECEIVE_BUFFER]);
    assert_eq!(received.destination, Ipv4Addr::LOCALHOST);
    assert_ne!(received.interface, 0);
    assert_eq!(
        (received.source.ip(), received.ttl),
        (Ipv4Addr::LOCALHOST.into(), 64)
    );
}

#[test]
fn the_largest_and_the_smallest_group() {
    let (group, port) = open_group(MAX_SOCKETS);
    send_separately(
        (Ipv4Addr::LOCALHOST, port).into(),
        &[steered_to(255), steered_to(128)],
    );
    let got = collect(&group, 2);
    assert_eq!(got.keys().copied().collect::<Vec<_>>(), [128, 255]);

    let (group, port) = open_group(1);
    send_separately(
        (Ipv4Addr::LOCALHOST, port).into(),
        &[steered_to(0), steered_to(200)],
    );
    assert_eq!(collect(&group, 2).len(), 1);

    for count in [0, MAX_SOCKETS + 1] {
        assert!(
            matches!(Group::open(port, count, 0), Err(OpenError::Count { .. })),
            "{count}"
        );
    }
}

#[test]
fn a_port_is_proved_empty_or_taken() {
    let (group, port) = open_group(2);
    assert!(matches!(prove_empty(port), Err(OpenError::Taken { .. })));
    // Even the same user, whose second group could join the first one.
    assert!(matches!(
        Group::open(port, 2, OFFSET),
        Err(OpenError::Taken { .. })
    ));
    drop(group);
    prove_empty(port).expect("all members are closed");
    let somebody = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).expect("proved empty");
    assert!(matches!(prove_empty(port), Err(OpenError::Taken { .. })));
    drop(somebody);
}

#[test]
fn a_detached_program_is_noticed_and_put_back() {
    let (mut group, port) = open_group(16);
    let mut buffer = vec![0; RECEIVE_BUFFER];
    let nothing = |_: &Received, _: &[u8]| panic!("nobody sends");
    assert_eq!(group.probe(&mut buffer, nothing), Ok(true));

    // What a process can do to which one socket was given:
    let leased = group
        .socket(3)
        .expect("a member")
        .try_clone_to_owned()
        .expect("a descriptor");
    assert_eq!(
        raw::attach_reuseport_program(&leased, &[]),
        Err(Errno::PERM),
        "locked"
    );
    raw::set_int(&leased, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0).expect("not locked");
    assert_eq!(group.probe(&mut buffer, nothing), Ok(false));

    group.reattach().expect("the same user");
    for index in 0..group.len() {
        let mut receiver = group.receiver(index).expect("a member");
        while receiver.receive(&mut buffer).expect("receives").is_some() {}
    }
    assert_eq!(group.probe(&mut buffer, nothing), Ok(true));
    assert_steers(&group, port);
}

#[test]
fn a_probe_loses_nothing_that_arrives_meanwhile() {
    let (mut group, port) = open_group(4);
    send_separately((Ipv4Addr::LOCALHOST, port).into(), &[steered_to(0)]);
    let mut others = Vec::new();
    let mut buffer = vec![0; RECEIVE_BUFFER];
    let steers = group.probe(&mut buffer, |_, bytes| others.push(bytes.to_vec()));
    assert_eq!(steers, Ok(true));
    assert_eq!(others, [steered_to(0)]);
}

#[test]
fn a_segmented_send_arrives_merged_with_all_that_travels_beside_it() {
    if !Caps::of_this_kernel().segmentation || !Caps::of_this_kernel().merging {
        println!("skipped: this kernel has no UDP_SEGMENT or no UDP_GRO");
        return;
    }
    let loopback = crate::netlink::interface_by_name("lo")
        .expect("netlink")
        .expect("lo exists");
    let payload: Vec<u8> = (0..60_500u32).map(|n| (n / 251) as u8).collect();
    let mut buffer = vec![0; RECEIVE_BUFFER];
    for address in loopbacks() {
        let (group, port) = open_group(1);
        let mut receiver = group.receiver(0).expect("a member");
        let sender = SendSocket::open(Family::of(address)).expect("a socket");
        let transmit = Transmit {
            from: Some(address),
            interface: Some(loopback.index),
            tos: 0x62,
            ttl: Some(33),
            segment_size: Some(1000),
            ..Transmit::to((address, port).into())
        };
        let (head, tail) = payload.split_at(1234);
        let slices = [IoSlice::new(head), IoSlice::new(tail)];
        assert_eq!(sender.send(&transmit, &slices), SendOutcome::Sent);

        let received = receive_one(&mut receiver, &mut buffer);
        let expected = Received {
            length: payload.len(),
            segment_size: 1000,
            source: (address, sender.local_port()).into(),
            destination: address,
            interface: loopback.index,
            tos: 0x62,
            ttl: 33,
            kernel_drops: None,
            truncated: false,
        };
        assert_eq!(received, expected);
        let lengths: Vec<_> = received.segments(&buffer).map(<[u8]>::len).collect();
        assert_eq!(lengths.len(), 61);
        assert!(lengths[..60].iter().all(|length| *length == 1000));
        assert_eq!(lengths[60], 500);
        assert_eq!(&buffer[..received.length], payload);
    }
}

#[test]
fn a_single_datagram_is_one_segment() {
    for address in loopbacks() {
        let (group, port) = open_group(1);
        let mut receiver = group.receiver(0).expect("a member");
        let sender = SendSocket::open(Family::of(address)).expect("a socket");
        let mut buffer = vec![0; RECEIVE_BUFFER];
        // The second is shorter than its segment size: nothing to cut.
        for (payload, segment_size) in [(&b""[..], None), (b"abc", Some(4)), (b"abc", None)] {
            let transmit = Transmit {
                segment_size,
                ..Transmit::to((address, port).into())
            };
            send_all(&sender, &transmit, payload);
            let received = receive_one(&mut receiver, &mut buffer);
            assert_eq!(
                (received.length, received.segment_size),
                (payload.len(), payload.len())
            );
            assert_eq!((received.tos, received.ttl), (0, 64));
            assert_eq!(received.segments(&buffer).collect::<Vec<_>>(), [payload]);
        }
        assert_eq!(receiver.receive(&mut buffer), Ok(None));
    }
}

#[test]
fn limits_of_a_send_are_outcomes() {
    let (_group, port) = open_group(1);
    let sender = SendSocket::open(Family::Ipv4).expect("a socket");
    let to = Transmit::to((Ipv4Addr::LOCALHOST, port).into());
    let bytes = vec![0; MAX_PAYLOAD + 1];
    assert_eq!(
        sender.send(&to, &[IoSlice::new(&bytes)]),
        SendOutcome::TooBig
    );
    send_all(&sender, &to, &bytes[..MAX_PAYLOAD]);
    if Caps::of_this_kernel().segmentation {
        let cut = Transmit {
            segment_size: Some(16),
            ..to
        };
        send_all(&sender, &cut, &bytes[..16 * MAX_SEGMENTS]);
        let refused = sender.send(&cut, &[IoSlice::new(&bytes[..16 * MAX_SEGMENTS + 1])]);
        assert_eq!(refused, SendOutcome::GsoRefused, "one segment more");
    }
}

#[test]
fn a_datagram_that_does_not_fit_is_marked() {
    let (group, port) = open_group(1);
    let mut receiver = group.receiver(0).expect("a member");
    send_separately((Ipv4Addr::LOCALHOST, port).into(), &[vec![7; 100]]);
    let mut small = [0; 64];
    let received = receive_one(&mut receiver, &mut small);
    assert!(received.truncated);
    assert_eq!(received.length, 64);
}

#[test]
fn a_full_socket_counts_what_it_drops() {
    if !Caps::of_this_kernel().memory_info {
        println!("skipped: this kernel has no SO_MEMINFO");
        return;
    }
    let (group, port) = open_group(1);
    let mut receiver = group.receiver(0).expect("a member");
    assert_eq!(
        receiver.memory().expect("asked before").granted as usize,
        group.granted_receive_buffer()
    );
    assert_eq!((receiver.drops(), receiver.occupancy()), (0, 0));

    sockopt::set_socket_recv_buffer_size(&receiver, 4096).expect("smaller is always granted");
    let sender = SendSocket::open(Family::Ipv4).expect("a socket");
    let to = Transmit::to((Ipv4Addr::LOCALHOST, port).into());
    for _ in 0..100 {
        send_all(&sender, &to, &[1; 1000]);
    }
    assert!(receiver.occupancy() > 1000);
    let drops = receiver.drops();
    let mut buffer = vec![0; RECEIVE_BUFFER];
    let mut taken = 0;
    while receiver.receive(&mut buffer).expect("receives").is_some() {
        taken += 1;
    }
    assert!(taken > 0 && drops > 0);
    assert_eq!(taken + drops, 100);
    send_all(&sender, &to, b"after");
    assert_eq!(
        receive_one(&mut receiver, &mut buffer).kernel_drops,
        Some(drops)
    );
}

/// What leaves the host: seen by a TUN device, for which the kernel segments in software.
#[test]
fn the_identification_is_the_number_of_the_segment() {
    let seen = crate::testing::in_new_network("identifications", || {
        let Some(tun) = crate::testing::Tun::open("tun0") else {
            return;
        };
        if !crate::testing::ip("addr add 10.77.0.1/24 dev tun0")
            || !crate::testing::ip("link set tun0 up")
        {
            return;
        }
        let sender = SendSocket::open(Family::Ipv4).expect("a socket");
        let single = Transmit::to(SocketAddr::from(([10, 77, 0, 2], 9)));
        for _ in 0..3 {
            send_all(&sender, &single, &[5; 1000]);
        }
        assert_eq!(identifications(&tun, 3), [0, 0, 0]);
        if Caps::of_this_kernel().segmentation {
            send_all(
                &sender,
                &Transmit {
                    segment_size: Some(100),
                    ..single
                },
                &[5; 1250],
            );
            assert_eq!(identifications(&tun, 13), (0..13).collect::<Vec<u16>>());
        }
    });
    assert!(seen);
}

/// Reads UDP packets from the device; asserts DF and gives the identifications.
fn identifications(tun: &crate::testing::Tun, count: usize) -> Vec<u16> {
    let mut found = Vec::new();
    while found.len() < count {
        let packet = tun.read();
        if packet.len() < 28 || packet[0] != 0x45 || packet[9] != 17 {
            continue; // IPv6 neighbour and router discovery
        }
        assert_eq!(packet[6] & 0xe0, 0x40, "DF, no fragment");
        found.push(u16::from_be_bytes([packet[4], packet[5]]));
    }
    found
}
