//! What was counted stays when who counted is gone.

use crate::support::{Running, eventually};

#[test]
fn counts_outlive_their_process_and_end_with_their_link() {
    let running = Running::start();
    let client = running.client();
    let link = client
        .add_link("rxe_test", "rxe", "lo", false)
        .expect("lo is there");
    let sent = || client.counts("rxe_test").expect("it is there").counts[0];
    assert_eq!(sent(), 0);

    let program = running.client();
    let lease = program.lease_slot().expect("all are free");
    let page = lease.counters.as_ref().expect("memfd exists");
    page.raise(link.index, [10, 20]);
    page.raise(link.index + 100, [1000]);
    assert_eq!(sent(), 10);
    page.raise(link.index, [11, 20]);
    drop(program);
    eventually("the slot is free again", || {
        client.slot_holders().expect("it runs").is_empty()
    });
    assert_eq!(sent(), 11);
    page.raise(link.index, [5000]);
    assert_eq!(sent(), 11, "it is nobody's page any more");

    let other = running.client();
    let lease = other.lease_slot().expect("the rest is free");
    let page = lease.counters.as_ref().expect("memfd exists");
    page.raise(link.index, [9]);
    assert_eq!(sent(), 20);
    other.release_slot(lease.slot).expect("it is its own");
    assert_eq!(sent(), 20);

    client.delete_link("rxe_test").expect("nobody uses it");
    client
        .add_link("rxe_test", "rxe", "lo", false)
        .expect("lo is there");
    assert_eq!(sent(), 0);
    assert_eq!(
        client.counts("nosuch").expect_err("no such link").errno(),
        libc::ENODEV
    );
}
