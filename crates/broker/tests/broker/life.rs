//! Versions, links, events, and the end of brokers.

use std::time::Duration;

use crate::support::{Running, free_port, wait};
use io::fdpass::{Arrival, Connection, Listener, Sent};
use softrdma_broker::{
    CallError, Client, Config, ConnectError, ConnectOptions, Event, News, PROTOCOL_VERSION,
    Refusal, Server, ServerError, protocol,
};

/// The next record of a connection, as text.
fn next_record(connection: &Connection) -> String {
    wait(connection);
    let mut buffer = vec![0; 4096];
    match connection.receive(&mut buffer) {
        Ok(Arrival::Message(message)) => {
            String::from_utf8(buffer[..message.length].to_vec()).expect("JSON")
        }
        other => panic!("a record expected: {other:?}"),
    }
}

#[test]
fn without_a_broker_nothing_is_started_unasked() {
    let options = ConnectOptions {
        start: false,
        instance: Some("test/nobody".into()),
        ..ConnectOptions::default()
    };
    assert!(matches!(
        Client::connect(&options),
        Err(ConnectError::NotRunning)
    ));
}

#[test]
fn a_program_that_cannot_be_found_is_named() {
    let options = ConnectOptions {
        instance: Some("test/nobody".into()),
        library: Some("/no/such/place/lib/libibverbs.so.1".into()),
        ..ConnectOptions::default()
    };
    let error = Client::connect(&options).expect_err("there is no program");
    assert!(
        error.to_string().contains("/no/such/place/bin/softrdma"),
        "{error}"
    );
    assert_eq!(error.errno(), libc::ENODEV);
}

#[test]
fn a_client_of_another_version_is_told() {
    let running = Running::start();
    let name = protocol::control_name(&running.instance);
    let connection = Connection::connect(name.as_bytes()).expect("the broker runs");
    let sent = connection.send(br#"{"version":99,"pid":1,"news":true}"#, &[]);
    assert_eq!(sent, Ok(Sent::Sent));
    let answer = next_record(&connection);
    assert!(
        answer.contains(&format!("\"version\":{PROTOCOL_VERSION}")),
        "{answer}"
    );
    assert!(answer.contains("VersionMismatch"), "{answer}");
    wait(&connection);
    assert!(matches!(
        connection.receive(&mut [0; 16]),
        Ok(Arrival::Closed)
    ));
}

#[test]
fn a_broker_of_another_version_is_a_clear_error() {
    let instance = format!("test/{}/other-version", std::process::id());
    let name = protocol::control_name(&instance);
    let listener = Listener::bind(name.as_bytes()).expect("the name is free");
    let broker = std::thread::spawn(move || {
        wait(&listener);
        let connection = listener
            .accept()
            .expect("somebody connects")
            .expect("it waits");
        next_record(&connection);
        connection.send(br#"{"version":77,"pid":4242,"tomorrow":[1,2]}"#, &[])
    });
    let options = ConnectOptions {
        start: false,
        instance: Some(instance),
        ..ConnectOptions::default()
    };
    let error = Client::connect(&options).expect_err("another version");
    let text = error.to_string();
    for part in [
        format!("(pid {})", std::process::id()),
        "protocol version 77".into(),
        format!("this program version {PROTOCOL_VERSION}"),
        "softrdma broker stop".into(),
    ] {
        assert!(text.contains(&part), "{part:?} is not in {text:?}");
    }
    assert_eq!(broker.join().expect("no panic"), Ok(Sent::Sent));
}

/// What a process without a free descriptor gets: the kernel leaves the sockets out.
#[test]
fn a_slot_that_came_without_its_sockets_is_given_back() {
    let instance = format!("test/{}/no-descriptors", std::process::id());
    let name = protocol::control_name(&instance);
    let listener = Listener::bind(name.as_bytes()).expect("the name is free");
    let broker = std::thread::spawn(move || {
        wait(&listener);
        let connection = listener
            .accept()
            .expect("somebody connects")
            .expect("it waits");
        let lease = concat!(
            r#"{"id":1,"result":{"Ok":{"Lease":{"slot":7,"has_credit":false,"#,
            r#""has_counters":false,"steer_prefix":"no/"}}}}"#
        );
        let greeting = format!(r#"{{"version":{PROTOCOL_VERSION},"pid":1,"program":"fake"}}"#);
        let answers = [&greeting, lease, r#"{"id":2,"result":{"Ok":"Done"}}"#];
        answers.map(|answer| {
            let request = next_record(&connection);
            let sent = connection.send(answer.as_bytes(), &[]);
            assert_eq!(sent, Ok(Sent::Sent));
            request
        })
    });
    let options = ConnectOptions {
        start: false,
        instance: Some(instance),
        ..ConnectOptions::default()
    };
    let client = Client::connect(&options).expect("it greets well");
    let error = client.lease_slot().expect_err("there are no sockets");
    assert!(
        matches!(error, CallError::System(io::Errno::MFILE)),
        "{error}"
    );
    let [_, _, last] = broker.join().expect("no panic");
    assert!(last.contains(r#"{"ReleaseSlot":{"slot":7}}"#), "{last}");
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let running = Running::start();
    let client = running.client();
    let name = protocol::control_name(&running.instance);
    for nonsense in ["", "\0", "{}", "[[[[", r#"{"version":1}"#] {
        let connection = Connection::connect(name.as_bytes()).expect("the broker runs");
        if connection.send(nonsense.as_bytes(), &[]).is_ok() {
            next_record(&connection);
            // a good greeting has to be followed by good calls
            let _ = connection.send(br#"{"id":1,"request":{"Nothing":1}}"#, &[]);
            wait(&connection);
            assert!(
                matches!(
                    connection.receive(&mut [0; 16]),
                    Ok(Arrival::Closed) | Err(io::Errno::CONNRESET)
                ),
                "{nonsense:?}"
            );
        }
    }
    client.status().expect("others are not disturbed");
}

#[test]
fn links_come_and_go_and_subscribers_hear_of_it() {
    let running = Running::start();
    let (client, subscriber) = (running.client(), running.subscriber());
    assert_eq!(subscriber.news().expect("it runs"), []);
    let link = client
        .add_link("rxe_test", "rxe", "lo", false)
        .expect("lo is there");
    assert_eq!(link.gid(0).map(|entry| entry.gid.to_string()).as_deref(), {
        Some("fe80::200:ff:fe00:0")
    });
    assert_eq!(
        client.links().expect("it runs"),
        std::slice::from_ref(&link)
    );
    wait(&subscriber);
    let added = News::Link(Event::Added(link));
    assert_eq!(subscriber.news().expect("it runs"), [added]);

    let again = client
        .add_link("rxe_test", "rxe", "lo", false)
        .expect_err("lo has one");
    assert_eq!(again.errno(), libc::EEXIST);
    client.delete_link("rxe_test").expect("nobody uses it");
    wait(&subscriber);
    let removed = News::Link(Event::Removed {
        name: "rxe_test".into(),
    });
    assert_eq!(subscriber.news().expect("it runs"), [removed]);
    assert_eq!(
        client.link("rxe_test").expect_err("gone").errno(),
        libc::ENODEV
    );
}

#[test]
fn a_link_in_use_is_not_deleted() {
    let running = Running::start();
    let (user, other) = (running.client(), running.client());
    user.add_link("rxe_test", "rxe", "lo", false)
        .expect("lo is there");
    user.begin_use("rxe_test").expect("it is there");
    let refused = other.delete_link("rxe_test").expect_err("in use");
    assert_eq!(refused.errno(), libc::EBUSY);
    assert!(
        refused
            .to_string()
            .contains(&format!("(pid {})", std::process::id())),
        "{refused}"
    );
    user.end_use("rxe_test").expect("it runs");
    other.delete_link("rxe_test").expect("nobody uses it");
    user.end_use("rxe_test")
        .expect("the link may be gone before its user");
    assert_eq!(
        user.begin_use("rxe_test").expect_err("gone").errno(),
        libc::ENODEV
    );
}

#[test]
fn the_end_of_the_broker_is_seen() {
    let running = Running::start();
    let (client, subscriber) = (running.client(), running.subscriber());
    assert_eq!(client.news().expect("it runs"), []);
    client.shut_down().expect("it runs");
    running.join();
    for client in [client, subscriber] {
        wait(&client);
        assert!(matches!(client.news(), Err(CallError::Lost)));
        assert!(matches!(client.lease_slot(), Err(CallError::Lost)));
    }
}

#[test]
fn a_new_broker_waits_for_the_sockets_of_the_former_ones_clients() {
    let port = free_port();
    let former = Running::start_on(port);
    let client = former.client();
    let lease = client.lease_slot().expect("free");
    client.shut_down().expect("it runs");
    former.join();

    let running = Running::start_on(port);
    let new = running.client();
    let problem = new
        .status()
        .expect("it runs")
        .port_problem
        .expect("the lease is in the way");
    assert!(
        problem.contains(&format!("(pid {})", std::process::id())),
        "{problem}"
    );
    drop(lease);
    new.lease_slot().expect("the port is free now");
    assert_eq!(new.status().expect("it runs").port_problem, None);
}

#[test]
fn two_brokers_do_not_share_a_name() {
    let running = Running::start();
    let config = Config {
        instance: Some(running.instance.clone()),
        ..Config::default()
    };
    assert!(matches!(
        Server::start(config),
        Err(ServerError::AlreadyRunning)
    ));
}

#[test]
fn a_broker_ends_when_nobody_needs_it() {
    let running = Running::start_with(free_port(), Duration::from_millis(50));
    running.join();
}

#[test]
fn a_kept_link_and_a_holding_process_keep_the_broker() {
    let idle = Duration::from_millis(200);
    for keep in [true, false] {
        let (running, client) = loop {
            let running = Running::start_with(free_port(), idle);
            match Client::connect(&running.options()) {
                Ok(client) => break (running, client),
                // it had ended before this thread got so far
                Err(_) => running.join(),
            }
        };
        if keep {
            client
                .add_link("rxe_test", "rxe", "lo", true)
                .expect("lo is there");
        } else {
            client.hold().expect("it runs");
        }
        drop(client);
        // without a reason to stay it would have ended by then
        std::thread::sleep(5 * idle);
        let client = running.client();
        client.status().expect("it runs");
        client.shut_down().expect("it runs");
        running.join();
    }
}

#[test]
fn refusals_keep_their_error_numbers_on_the_way() {
    let running = Running::start();
    let client = running.client();
    for (name, kind, netdev, errno) in [
        ("rxe9", "rxe", "missing0", libc::ENODEV),
        ("rxe9", "nosuchtype", "lo", libc::EINVAL),
        ("rxe%d", "rxe", "lo", libc::EINVAL),
    ] {
        let refused = client
            .add_link(name, kind, netdev, true)
            .expect_err("a mistake");
        assert!(matches!(refused, CallError::Refused(_)));
        assert_eq!(refused.errno(), errno, "{refused}");
    }
    let refused = client.delete_link("missing0").expect_err("a mistake");
    assert!(matches!(
        refused,
        CallError::Refused(Refusal::NoSuchLink { .. })
    ));
}
