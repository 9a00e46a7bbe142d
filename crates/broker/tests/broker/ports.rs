//! RDMA ports: who gets which, and when they are free again. The rules of sharing are tested where
//! they are, in the broker.

use std::net::IpAddr;

use crate::support::{Running, eventually, lease_in_child};
use softrdma_broker::{CallError, Client, PortAddress, PortRefusal, PortSpace, Refusal};

fn at(address: &str) -> PortAddress {
    PortAddress::of(address.parse().expect("a literal"))
}

fn bind(client: &Client, port: u16, address: &str) -> Result<u16, CallError> {
    client
        .bind_port(PortSpace::Tcp, port, at(address), false)
        .map(|bound| bound.port)
}

fn refusal(result: Result<u16, CallError>) -> PortRefusal {
    match result {
        Err(CallError::Refused(Refusal::Port(refusal))) => refusal,
        other => panic!("a refusal expected: {other:?}"),
    }
}

#[test]
fn a_port_is_free_again_when_it_is_given_back_or_its_client_ends() {
    let running = Running::start();
    let (one, two) = (running.client(), running.client());
    let bound = one
        .bind_port(PortSpace::Tcp, 7471, at("127.0.0.1"), false)
        .expect("free");
    let refused = bind(&two, 7471, "127.0.0.1").expect_err("it is theirs");
    assert_eq!(refused.errno(), libc::EADDRINUSE);
    assert!(two.release_port(bound.id).is_err(), "not theirs");
    assert!(two.listen(bound.id, 1).is_err(), "not theirs");
    one.release_port(bound.id).expect("it is mine");
    bind(&two, 7471, "127.0.0.1").expect("free");
    assert_eq!(one.status().expect("it runs").ports, 1);
    drop(two);
    eventually("the port of the client that ended is free", || {
        bind(&one, 7471, "127.0.0.1").is_ok()
    });
}

#[test]
fn a_killed_listener_leaves_no_port() {
    let running = Running::start();
    let client = running.client();
    let (mut child, _) = lease_in_child(&running, &["7471"]);
    let refused = bind(&client, 7471, "127.0.0.1").expect_err("it is theirs");
    assert_eq!(refused.errno(), libc::EADDRNOTAVAIL, "theirs is wider");
    child.0.kill().expect("it is ours");
    child.0.wait().expect("it is ours");
    eventually("the port of the dead is free", || {
        bind(&client, 7471, "127.0.0.1").is_ok()
    });
}

#[test]
fn who_gives_a_slot_back_listens_there_no_more() {
    let running = Running::start();
    let client = running.client();
    let lease = client.lease_slot().expect("free");
    let listen = |slot| {
        let bound = client.bind_port(PortSpace::Tcp, 7471, at("127.0.0.1"), false)?;
        client
            .listen(bound.id, slot)
            .inspect_err(|_| client.release_port(bound.id).expect("it is mine"))
    };
    let refused = listen(lease.slot + 1).expect_err("not mine");
    assert!(
        matches!(refused, CallError::Refused(Refusal::NotYourSlot { .. })),
        "{refused}"
    );
    listen(lease.slot).expect("alone");
    assert!(listen(lease.slot).is_err());
    client.release_slot(lease.slot).expect("it is mine");
    bind(&client, 7471, "127.0.0.1").expect("free");
}

#[test]
fn port_0_is_one_of_the_kernels_range() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range: Vec<u16> = range
        .expect("proc is there")
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    let running = Running::start();
    let client = running.client();
    let mut given: Vec<u16> = (0..100)
        .map(|_| bind(&client, 0, "0.0.0.0").expect("most are free"))
        .collect();
    assert!(
        given
            .iter()
            .all(|port| (range[0]..=range[1]).contains(port))
    );
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), 100, "each once");
}

#[test]
fn an_address_must_be_of_this_host() {
    let running = Running::start();
    let client = running.client();
    // spec: RFC 5737, RFC 3849: for documentation only
    for foreign in ["192.0.2.1", "2001:db8::1"] {
        let address: IpAddr = foreign.parse().expect("a literal");
        let refused = refusal(bind(&client, 7471, foreign));
        assert_eq!(refused, PortRefusal::NotLocal { address });
        assert_eq!(refused.errno(), libc::EADDRNOTAVAIL);
    }
    let refused = refusal(bind(&client, 7471, "fe80::1"));
    assert_eq!(refused.errno(), libc::EINVAL, "no interface");
    bind(&client, 7471, "127.9.9.9").expect("all of 127.0.0.0/8 is here");
}

#[test]
fn low_ports_are_for_privileged_programs() {
    let running = Running::start();
    let client = running.client();
    let start = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let start: u16 = start.expect("proc is there").trim().parse().expect("one");
    if start == 0 {
        println!("skipped: on this system all ports are for everybody");
        return;
    }
    let low = bind(&client, start - 1, "127.0.0.1");
    if rustix::process::geteuid().is_root() {
        assert_eq!(low.expect("root may"), start - 1);
    } else {
        let refused = refusal(low);
        assert_eq!(refused, PortRefusal::Privileged { port: start - 1 });
        assert_eq!(refused.errno(), libc::EACCES);
    }
    bind(&client, start, "127.0.0.1").expect("anybody may");
}

#[test]
fn ten_thousand_ports_hurt_nobody() {
    let running = Running::start();
    let (client, other) = (running.client(), running.client());
    let lease = client.lease_slot().expect("free");
    for port in 20_000..30_000 {
        let bound = client.bind_port(PortSpace::Tcp, port, at("127.0.0.1"), false);
        client
            .listen(bound.expect("free").id, lease.slot)
            .expect("alone");
    }
    assert_eq!(other.status().expect("it runs").ports, 10_000);
    assert!(bind(&other, 29_999, "0.0.0.0").is_err());
    drop(client);
    eventually("all are given back", || {
        other.status().expect("it runs").ports == 0
    });
}
