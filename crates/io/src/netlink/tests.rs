//! The kernel's answers, and answers that no kernel gives.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::message::{
    attributes, messages, neighbour_state, parse_address, parse_hop, parse_link, request,
};
use super::*;
use crate::poll::wait_readable;
use crate::testing::{Tun, in_new_network, ip};

/// Hang guard.
const GUARD_NS: u64 = 30_000_000_000;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `RTM_NEWLINK` of an Ethernet interface, number 9, that is up.
fn link_message() -> Vec<u8> {
    let mut body = vec![0, 0, 1, 0];
    body.extend(9u32.to_ne_bytes());
    body.extend(((libc::IFF_UP | libc::IFF_RUNNING) as u32).to_ne_bytes());
    body.extend([0; 4]);
    body.extend(attribute(libc::IFLA_IFNAME, b"eth9\0"));
    body.extend(attribute(libc::IFLA_MTU, &9000u32.to_ne_bytes()));
    body.extend(attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 1, 2, 3]));
    body.extend(attribute(libc::IFLA_OPERSTATE, &[6]));
    body.extend(attribute(33, &[1]));
    request(libc::RTM_NEWLINK, 0, 1, &body)
}

/// `RTM_NEWADDR` of a point-to-point address with flags that the header has no room for.
fn address_message() -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 32, 0xff, 0];
    body.extend(9u32.to_ne_bytes());
    body.extend(attribute(libc::IFA_ADDRESS, &[10, 0, 0, 2]));
    body.extend(attribute(libc::IFA_LOCAL, &[10, 0, 0, 1]));
    body.extend(attribute(8, &0x200u32.to_ne_bytes()));
    request(libc::RTM_NEWADDR, 0, 1, &body)
}

/// `RTM_NEWROUTE` over a gateway of the other family.
fn route_message() -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 254, 0, 0, libc::RTN_UNICAST];
    body.extend([0; 4]);
    body.extend(attribute(libc::RTA_OIF, &9u32.to_ne_bytes()));
    let mut gateway = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
    gateway.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
    body.extend(attribute(18, &gateway));
    request(libc::RTM_NEWROUTE, 0, 1, &body)
}

#[test]
fn a_gateway_may_be_of_the_other_family() {
    let bytes = route_message();
    let hop = messages(&bytes).find_map(|m| parse_hop(m.body, Ipv4Addr::LOCALHOST.into()));
    let expected = Hop {
        interface: 9,
        neighbour: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
    };
    assert_eq!(hop, Some(Some(expected)));
}

#[test]
fn neighbours_are_found_and_missed() {
    let found = in_new_network("neighbours", || {
        if !ip("link add left type veth peer name right") {
            return;
        }
        for arguments in [
            "link set lo up",
            "link set right up",
            "link set left up",
            "addr add 10.66.0.1/24 dev left",
            "addr add fd66::1/64 dev left nodad",
            "neigh add 10.66.0.3 lladdr 02:00:00:00:00:03 dev left",
            "route add 10.67.0.0/16 via 10.66.0.254",
        ] {
            assert!(ip(arguments), "{arguments}");
        }
        let interface = interface_by_name("left").expect("netlink").expect("made");
        let mut kernel = Neighbours::new().expect("a socket");
        let address = |text: &str| text.parse::<IpAddr>().expect("a literal");
        let own = |to: IpAddr| address(if to.is_ipv4() { "10.66.0.1" } else { "fd66::1" });
        let mut hop = |to: &str| kernel.next_hop(own(address(to)), address(to), 0);
        for (to, neighbour) in [
            ("10.66.0.2", "10.66.0.2"),
            ("10.67.8.9", "10.66.0.254"),
            ("fd66::2", "fd66::2"),
        ] {
            let expected = Hop {
                interface: interface.index,
                neighbour: address(neighbour),
            };
            assert_eq!(hop(to), Ok(Some(expected)), "{to}");
        }
        for to in ["10.66.0.1", "127.0.0.1", "10.66.0.255", "::1"] {
            assert_eq!(hop(to), Ok(None), "{to}");
        }
        assert_eq!(hop("192.0.2.1"), Err(Errno::NETUNREACH));

        let hop = |to: &str| Hop {
            interface: interface.index,
            neighbour: address(to),
        };
        assert_eq!(kernel.reach(&hop("10.66.0.3")), Ok(Reach::Known));
        for to in ["10.66.0.2", "fd66::2"] {
            assert_eq!(kernel.reach(&hop(to)), Ok(Reach::Unknown), "{to}");
            let at = |ip| SocketAddr::new(ip, 0);
            assert_eq!(solicit(at(own(address(to))), at(address(to))), Ok(()));
            assert_eq!(kernel.reach(&hop(to)), Ok(Reach::Sought), "{to}");
        }
        let nowhere = Hop {
            interface: 9999,
            ..hop("10.66.0.2")
        };
        assert_eq!(kernel.reach(&nowhere), Err(Errno::NODEV));
    });
    assert!(found);
}

#[test]
fn an_interface_without_neighbours_needs_none() {
    let known = in_new_network("neighbours of a tun", || {
        let Some(_tun) = Tun::open("tun9") else {
            return;
        };
        assert!(ip("addr add 10.66.0.1/24 dev tun9") && ip("link set tun9 up"));
        let mut kernel = Neighbours::new().expect("a socket");
        let [from, to] = [1, 2].map(|last| Ipv4Addr::new(10, 66, 0, last).into());
        let hop = kernel.next_hop(from, to, 0).expect("a route");
        let hop = hop.expect("not this host");
        assert_eq!(kernel.reach(&hop), Ok(Reach::Known));
    });
    assert!(known);
}

#[test]
fn lo_is_there() {
    let lo = interface_by_name("lo")
        .expect("netlink")
        .expect("lo exists everywhere");
    assert!(lo.is_loopback());
    assert!(lo.index > 0 && lo.mtu > 0);
    assert_eq!(lo.hardware_address, Some([0; 6]));
    if lo.is_up() {
        let found = lo
            .addresses
            .iter()
            .find(|a| a.address == Ipv4Addr::LOCALHOST);
        let found = found.expect("127.0.0.1 is set where lo is up");
        assert_eq!((found.interface, found.prefix_length), (lo.index, 8));
        assert!(found.is_usable());
    }
    assert_eq!(interface_by_name("no-such-thing"), Ok(None));
}

#[test]
fn messages_are_understood() {
    let bytes = [link_message(), address_message()].concat();
    let events: Vec<_> = messages(&bytes)
        .filter_map(|m| monitor::event_of(&m))
        .collect();
    let link = Interface {
        index: 9,
        name: "eth9".into(),
        mtu: 9000,
        hardware_address: Some([2, 0, 0, 1, 2, 3]),
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as u32,
        oper_state: OperState::Up,
        carrier: true,
        addresses: vec![],
    };
    let address = Address {
        interface: 9,
        address: Ipv4Addr::new(10, 0, 0, 1).into(),
        prefix_length: 32,
        scope: 0,
        flags: 0x200,
    };
    assert_eq!(events, [Event::Link(link), Event::Address(address)]);
}

#[test]
fn a_bridge_port_message_says_nothing_of_the_link() {
    let mut bytes = link_message();
    bytes[HEADER_FAMILY] = libc::AF_BRIDGE as u8;
    bytes[4..6].copy_from_slice(&libc::RTM_DELLINK.to_ne_bytes());
    assert_eq!(
        messages(&bytes)
            .filter_map(|m| monitor::event_of(&m))
            .count(),
        0
    );
}

/// Where the family of a link message is.
const HEADER_FAMILY: usize = message::HEADER;

#[test]
fn damaged_messages_are_survived() {
    let whole = [link_message(), address_message(), route_message()].concat();
    let mut parsed = 0usize;
    let mut parse_all = |bytes: &[u8]| {
        for message in messages(bytes) {
            parsed += usize::from(parse_link(message.body).is_some());
            parsed += usize::from(parse_address(message.body).is_some());
            parsed += usize::from(parse_hop(message.body, Ipv4Addr::LOCALHOST.into()).is_some());
            parsed += usize::from(neighbour_state(message.body).is_some());
            parsed += attributes(message.body).count();
        }
    };
    for length in 0..whole.len() {
        parse_all(&whole[..length]);
    }
    // Every byte with every value: lengths of 0, of more than there is, of the wrong parity.
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        for value in 0..=255 {
            bytes[position] = value;
            parse_all(&bytes);
        }
    }
    assert!(parsed > 0, "the undamaged value is among them");
    assert_eq!(messages(&0u32.to_ne_bytes().repeat(8)).count(), 0);
    assert_eq!(attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
}

#[test]
fn an_error_answer_carries_its_errno() {
    assert_eq!(error_of(&(-1i32).to_ne_bytes()), Errno::PERM);
    assert_eq!(error_of(&(-95i32).to_ne_bytes()), Errno::OPNOTSUPP);
    for nonsense in [0i32, 1, -4096, i32::MIN] {
        assert_eq!(
            error_of(&nonsense.to_ne_bytes()),
            Errno::PROTO,
            "{nonsense}"
        );
    }
    assert_eq!(error_of(&[]), Errno::PROTO);
}

/// Waits for an event that `is_it`; others may come before it.
fn await_event(monitor: &mut Monitor, what: &str, is_it: impl Fn(&Event) -> bool) {
    loop {
        while let Some(event) = monitor.next_event().expect("listens") {
            if is_it(&event) {
                return;
            }
        }
        assert_eq!(
            wait_readable(&*monitor, Some(GUARD_NS)),
            Ok(true),
            "no event: {what}"
        );
    }
}

#[test]
fn changes_are_heard() {
    let heard = in_new_network("changes", || {
        let mut monitor = Monitor::new().expect("listens");
        assert_eq!(monitor.next_event(), Ok(None));
        let lo = interface_by_name("lo").expect("netlink").expect("lo");
        assert!(
            !lo.is_up() && lo.addresses.is_empty(),
            "as a new namespace is"
        );

        if !ip("link set lo up") {
            return;
        }
        await_event(
            &mut monitor,
            "lo is up",
            |event| matches!(event, Event::Link(l) if l.index == lo.index && l.is_running()),
        );
        let expected: IpAddr = "10.66.0.1".parse().expect("a literal");
        assert!(ip("addr add 10.66.0.1/24 dev lo"));
        await_event(&mut monitor, "address", |event| {
            matches!(event, Event::Address(a)
                if a.address == expected && a.prefix_length == 24 && a.interface == lo.index)
        });
        let lo = interface_by_name("lo").expect("netlink").expect("lo");
        assert!(
            lo.addresses
                .iter()
                .any(|address| address.address == expected)
        );
        assert!(ip("addr del 10.66.0.1/24 dev lo"));
        await_event(
            &mut monitor,
            "address gone",
            |event| matches!(event, Event::AddressGone(a) if a.address == expected),
        );

        if !ip("link add left type veth peer name right") {
            return;
        }
        await_event(
            &mut monitor,
            "veth",
            |event| matches!(event, Event::Link(link) if link.name == "left" && !link.is_up()),
        );
        let left = interface_by_name("left")
            .expect("netlink")
            .expect("just made");
        assert_eq!((left.carrier, left.mtu), (false, 1500));
        assert!(left.hardware_address.is_some_and(|mac| mac != [0; 6]));
        let index = left.index;
        assert!(ip("link set left up") && ip("link set right up"));
        await_event(&mut monitor, "carrier", |event| {
            matches!(event, Event::Link(link)
                if link.name == "left" && link.carrier && link.oper_state == OperState::Up)
        });
        await_event(
            &mut monitor,
            "link-local address",
            |event| matches!(event, Event::Address(a) if a.is_link_scope() && a.interface == index),
        );
        assert!(ip("link del left"));
        await_event(
            &mut monitor,
            "veth gone",
            |event| matches!(event, Event::LinkGone(link) if link.index == index),
        );
    });
    assert!(heard);
}
