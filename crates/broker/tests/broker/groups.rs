//! Multicast groups: who gets what is sent to one, and when that ends.

use std::{
    io::IoSlice,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use crate::support::{Running, receive, send_to_slot};
use io::udp::{Family, SendOutcome, SendSocket, Transmit};
use softrdma_broker::{CallError, Refusal};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 77, 1, 1));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 77, 1, 2));
/// `lo`
const INTERFACE: u32 = 1;

/// Sends `text` to a group on `lo`; what steers would choose slot 0xff.
fn send_to(group: IpAddr, port: u16, text: &[u8]) {
    let socket = SendSocket::open(Family::Ipv4).expect("a socket");
    let transmit = Transmit {
        from: Some(Ipv4Addr::LOCALHOST.into()),
        interface: Some(INTERFACE),
        ..Transmit::to(SocketAddr::new(group, port))
    };
    let payload = [&[0, 0, 0, 0, 0, 0xff][..], text].concat();
    assert_eq!(
        socket.send(&transmit, &[IoSlice::new(&payload)]),
        SendOutcome::Sent
    );
}

#[test]
fn every_slot_that_joined_gets_a_copy_until_it_leaves() {
    let running = Running::start();
    let clients = [running.client(), running.client(), running.client()];
    let [one, two, three] =
        [0, 1, 2].map(|number| clients[number].lease_slot().expect("there are slots"));
    for (client, lease) in clients.iter().zip([&one, &two]) {
        for _ in 0..2 {
            client
                .join_group(lease.slot, GROUP, INTERFACE)
                .expect("it is theirs; once or twice is the same");
        }
    }
    let port = running.port;
    send_to(GROUP, port, b"to both");
    send_to(OTHER, port, b"to nobody");
    assert_eq!(receive(&one.receive), b"to both");
    assert_eq!(receive(&two.receive), b"to both");
    clients[0]
        .leave_group(one.slot, GROUP, INTERFACE)
        .expect("it is theirs");
    send_to(GROUP, port, b"to one");
    for lease in [&one, &three] {
        // what comes first is not for the group
        send_to_slot(port, lease.slot, b"to the slot");
        assert_eq!(receive(&lease.receive), b"to the slot");
    }
    assert_eq!(receive(&two.receive), b"to one");
}

#[test]
fn only_groups_and_only_the_own_slot() {
    let running = Running::start();
    let (client, other) = (running.client(), running.client());
    let lease = client.lease_slot().expect("there are slots");
    let stranger = other.join_group(lease.slot, GROUP, INTERFACE);
    assert!(
        matches!(
            stranger,
            Err(CallError::Refused(Refusal::NotYourSlot { .. }))
        ),
        "{stranger:?}"
    );
    for (address, interface) in [(Ipv4Addr::LOCALHOST.into(), INTERFACE), (GROUP, 0)] {
        let refused = client.join_group(lease.slot, address, interface);
        assert!(
            matches!(refused, Err(CallError::Refused(Refusal::Malformed { .. }))),
            "{refused:?}"
        );
    }
    let nowhere = client.join_group(lease.slot, GROUP, u32::MAX >> 1);
    let errno = nowhere.map_err(|error| error.errno());
    assert_eq!(errno, Err(libc::ENODEV));
}

#[test]
fn the_next_owner_of_a_slot_is_in_no_group() {
    let running = Running::start();
    let client = running.client();
    let lease = client.lease_slot().expect("there are slots");
    let (slot, port) = (lease.slot, running.port);
    client
        .join_group(slot, GROUP, INTERFACE)
        .expect("it is theirs");
    drop(lease);
    client.release_slot(slot).expect("it is theirs");
    // all others first, so that the next lease is that slot again
    let others: Vec<_> = std::iter::repeat_with(|| running.client())
        .take(254)
        .collect();
    let _held: Vec<_> = others
        .iter()
        .map(|client| client.lease_slot().expect("254 are left"))
        .collect();
    let again = client.lease_slot().expect("after a quiet second");
    assert_eq!(again.slot, slot);
    send_to(GROUP, port, b"to nobody");
    send_to_slot(port, slot, b"to the slot");
    assert_eq!(receive(&again.receive), b"to the slot");
    client
        .join_group(slot, GROUP, INTERFACE)
        .expect("the socket is not in it any more");
}
