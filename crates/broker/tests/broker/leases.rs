//! Slots: what a lease gives, who gets it when, and what becomes of it.

use std::{io::IoSlice, net::UdpSocket, process::Child};

use crate::support::{Running, eventually, free_port, lease_in_child, receive, send_to_slot};
use io::fdpass::DatagramSocket;
use rustix::net::sockopt::socket_recv_buffer_size;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use softrdma_broker::{CallError, Client, Refusal};

#[test]
fn packets_follow_the_slot_in_their_destination() {
    let running = Running::start();
    let (one, two) = (running.client(), running.client());
    let (first, second) = (
        one.lease_slot().expect("free"),
        two.lease_slot().expect("free"),
    );
    assert_ne!(first.slot, second.slot);
    for n in 0..20_u8 {
        send_to_slot(running.port, second.slot, &[2, n]);
        send_to_slot(running.port, first.slot, &[1, n]);
    }
    for n in 0..20_u8 {
        assert_eq!(receive(&first.receive), [1, n]);
        assert_eq!(receive(&second.receive), [2, n]);
    }
}

#[test]
fn a_steering_socket_takes_what_others_pass_on() {
    let running = Running::start();
    let client = running.client();
    let (mine, other) = (
        client.lease_slot().expect("free"),
        client.lease_slot().expect("free"),
    );
    let sender = DatagramSocket::unnamed().expect("descriptors are left");
    let name = mine.steer_name(other.slot);
    let sent = sender.send_to(name.as_bytes(), &[IoSlice::new(b"......segment")]);
    assert!(matches!(sent, Ok(io::fdpass::Sent::Sent)), "{sent:?}");
    assert_eq!(receive(&other.steer), b"segment");
}

#[test]
fn a_released_slot_is_drained_and_reused_oldest_first() {
    let running = Running::start();
    let clients: Vec<Client> = (0..255).map(|_| running.client()).collect();
    let mut leases: Vec<_> = clients
        .iter()
        .map(|client| client.lease_slot().expect("free"))
        .collect();
    let slots: Vec<u8> = leases.iter().map(|lease| lease.slot).collect();
    assert_eq!(slots, (1..=255).collect::<Vec<u8>>());

    let (another, one_more) = (running.client(), running.client());
    let refused = another.lease_slot().expect_err("all are taken");
    let CallError::Refused(Refusal::SlotsExhausted { holders }) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(holders.len(), 255);
    assert!(
        refused
            .to_string()
            .contains(&format!("(pid {})", std::process::id())),
        "{refused}"
    );

    send_to_slot(running.port, 200, b"old");
    for slot in [200, 7] {
        leases.retain(|lease| lease.slot != slot);
        let holder = &clients[usize::from(slot) - 1];
        holder.release_slot(slot).expect("it is theirs");
    }
    let first = another.lease_slot().expect("after a quiet second");
    let second = one_more.lease_slot().expect("after a quiet second");
    assert_eq!((first.slot, second.slot), (200, 7));
    send_to_slot(running.port, 200, b"new");
    assert_eq!(receive(&first.receive), b"new");
}

#[test]
fn whoever_has_a_slot_gets_more_while_over_half_are_free() {
    let running = Running::start();
    let (greedy, modest) = (running.client(), running.client());
    let mut leases: Vec<_> = (0..128)
        .map(|_| greedy.lease_slot().expect("over half are free"))
        .collect();
    let refused = greedy.lease_slot().expect_err("127 of 255 are free");
    assert!(
        matches!(
            refused,
            CallError::Refused(Refusal::NoSlotToSpare { holds: 128 })
        ),
        "{refused}"
    );
    assert_eq!(refused.errno(), libc::EBUSY);
    let first = modest.lease_slot().expect("a first one");
    let holders = modest.slot_holders().expect("it runs");
    assert_eq!(holders.len(), 129);
    modest
        .lease_slot()
        .expect_err("a second one, while others have so many");

    leases.truncate(100);
    for slot in 101..=128 {
        greedy.release_slot(slot).expect("it is mine");
    }
    eventually("enough slots were quiet for a second", || {
        modest.lease_slot().is_ok()
    });
    drop(greedy);
    eventually("all slots of the greedy are given back", || {
        modest.slot_holders().expect("it runs").len() == 2
    });
    drop((leases, first));
}

#[test]
fn only_the_holder_releases() {
    let running = Running::start();
    let (one, two) = (running.client(), running.client());
    let lease = one.lease_slot().expect("free");
    let refused = two.release_slot(lease.slot).expect_err("not theirs");
    assert_eq!(refused.errno(), libc::EINVAL);
    one.release_slot(lease.slot).expect("it is mine");
}

#[test]
fn a_closed_connection_gives_its_slots_back() {
    let running = Running::start();
    let watcher = running.client();
    let client = running.client();
    let _lease = client.lease_slot().expect("free");
    assert_eq!(watcher.slot_holders().expect("it runs").len(), 1);
    drop(client);
    eventually("the slot is given back", || {
        watcher.slot_holders().expect("it runs").is_empty()
    });
}

#[test]
fn a_killed_process_loses_its_slot_though_its_connection_lives_on() {
    let running = Running::start();
    let client = running.client();
    let (mut child, slot) = lease_in_child(&running, &[]);
    let holders = client.slot_holders().expect("it runs");
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].pid, child.0.id() as i32);
    assert_eq!(holders[0].slot, slot);
    assert_eq!(holders[0].program, "lease");

    // as a forked child would
    let kept = sockets_of(&child.0);
    assert!(!kept.is_empty());
    child.0.kill().expect("it is ours");
    child.0.wait().expect("it is ours");
    eventually("the slot of the dead is free", || {
        client.slot_holders().expect("it runs").is_empty()
    });
    assert_eq!(client.status().expect("it runs").leased, 0);
    drop(kept);
}

#[test]
fn a_lease_brings_the_credit_table_with_what_was_granted() {
    let running = Running::start();
    let client = running.client();
    let lease = client.lease_slot().expect("free");
    let table = lease.credit.as_ref().expect("this kernel has memfd");
    let granted = socket_recv_buffer_size(&lease.receive).expect("it is a socket");
    assert_eq!(table.look(lease.slot, 0).granted, granted as u64);
    client.release_slot(lease.slot).expect("it is mine");
    assert_eq!(table.look(lease.slot, 0).granted, 0);
}

#[test]
fn what_a_killed_process_had_in_flight_is_taken_back() {
    let running = Running::start();
    let client = running.client();
    let lease = client.lease_slot().expect("free");
    let table = lease.credit.as_ref().expect("this kernel has memfd");
    let (mut child, slot) = lease_in_child(&running, &[]);
    // as the child would note it: all mappings are one table
    table.note(lease.slot, slot, 100_000);
    let seen = table.look(lease.slot, lease.slot);
    assert_eq!((seen.others, seen.others_in_flight), (1, 100_000));
    child.0.kill().expect("it is ours");
    child.0.wait().expect("it is ours");
    eventually("the dead have nothing in flight", || {
        table.look(lease.slot, lease.slot).others == 0
    });
}

#[test]
fn a_taken_port_names_who_has_it_and_is_tried_again() {
    let port = free_port();
    let squatter = UdpSocket::bind(("::", port)).expect("it was free");
    let running = Running::start_on(port);
    let client = running.client();
    let refused = client.lease_slot().expect_err("the port is taken");
    assert_eq!(refused.errno(), libc::EADDRINUSE);
    let text = refused.to_string();
    assert!(text.contains(&format!("UDP port {port}")), "{text}");
    assert!(
        text.contains(&format!("(pid {})", std::process::id())),
        "{text}"
    );
    drop(squatter);
    let lease = client.lease_slot().expect("the port is free now");
    send_to_slot(port, lease.slot, b"here");
    assert_eq!(receive(&lease.receive), b"here");
}

/// Copies of all sockets of a child of ours.
fn sockets_of(child: &Child) -> Vec<rustix::fd::OwnedFd> {
    let pid = Pid::from_raw(child.id() as i32).expect("not 0");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
    std::fs::read_dir(format!("/proc/{}/fd", child.id()))
        .expect("it lives")
        .flatten()
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| is_socket(&to)))
        .filter_map(|fd| {
            let number = fd.file_name().to_str()?.parse().ok()?;
            pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()
        })
        .collect()
}

fn is_socket(link: &std::path::Path) -> bool {
    link.to_string_lossy().starts_with("socket:")
}
