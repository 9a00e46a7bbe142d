//! A broker in a thread of the test, on a port and a name of its own: no privileges, no leftovers.

use std::{
    io::{BufRead, BufReader},
    net::UdpSocket,
    os::fd::AsFd,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use softrdma_broker::{Client, Config, ConnectOptions, Server};

/// Longer than anything takes on a loaded machine; only a hang reaches it.
pub const HANG: Duration = Duration::from_secs(60);

pub struct Running {
    pub instance: String,
    pub port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start() -> Self {
        let port = free_port();
        Self::start_on(port)
    }

    pub fn start_on(port: u16) -> Self {
        Self::start_with(port, HANG)
    }

    pub fn start_with(port: u16, idle: Duration) -> Self {
        let instance = format!("test/{}/{port}", std::process::id());
        let config = Config {
            instance: Some(instance.clone()),
            port,
            idle,
            ..Config::default()
        };
        let mut server = Server::start(config).expect("nobody else has this name");
        let thread = std::thread::spawn(move || server.run().expect("the loop does not fail"));
        Self {
            instance,
            port,
            thread: Some(thread),
        }
    }

    pub fn options(&self) -> ConnectOptions {
        ConnectOptions {
            start: false,
            instance: Some(self.instance.clone()),
            ..ConnectOptions::default()
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.options()).expect("the broker runs")
    }

    pub fn subscriber(&self) -> Client {
        let options = ConnectOptions {
            subscribe: true,
            ..self.options()
        };
        Client::connect(&options).expect("the broker runs")
    }

    /// Waits for the end of the broker.
    pub fn join(mut self) {
        let thread = self.thread.take().expect("taken only here and in drop");
        thread.join().expect("the broker does not panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // it may have ended already
            if let Ok(client) = Client::connect(&self.options()) {
                let _ = client.shut_down();
            }
            let _ = thread.join();
        }
    }
}

/// A UDP port below those that the kernel gives out by itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static START: Mutex<Option<u16>> = Mutex::new(None);
    let start = *START
        .lock()
        .expect("no test panics in here")
        .get_or_insert_with(|| (std::process::id() % 100 * 100) as u16);
    (0..10_000)
        .map(|_| 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000)
        .find(|port| UdpSocket::bind(("::", *port)).is_ok())
        .expect("one of ten thousand ports is free")
}

/// Sends a datagram to the slot of the broker at `port`.
pub fn send_to_slot(port: u16, slot: u8, payload: &[u8]) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback is up");
    let mut packet = vec![0, 0, 0, 0, 0, slot];
    packet.extend_from_slice(payload);
    socket
        .send_to(&packet, ("127.0.0.1", port))
        .expect("loopback takes it");
}

/// What arrives next at a leased socket, without its first six bytes.
pub fn receive(socket: impl AsFd) -> Vec<u8> {
    let copy = socket
        .as_fd()
        .try_clone_to_owned()
        .expect("descriptors are left");
    let socket = UdpSocket::from(copy);
    socket.set_read_timeout(Some(HANG)).expect("not zero");
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).expect("something arrives");
    buffer[6..length].to_vec()
}

/// The example program, killed when the test ends.
pub struct Leasing(
    pub Child,
    #[allow(dead_code, reason = "keeps its output open")] ChildStdout,
);

impl Drop for Leasing {
    fn drop(&mut self) {
        // it may be dead and reaped already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another process with a slot, and which.
pub fn lease_in_child(running: &Running, arguments: &[&str]) -> (Leasing, u8) {
    let test = std::env::current_exe().expect("this is a program");
    let program = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("cargo's folders");
    let mut child = Command::new(program.join("examples/lease"))
        .arg(&running.instance)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("`cargo test -p softrdma-broker` without --test builds the example");
    let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it prints its slot");
    let slot = line
        .trim()
        .strip_prefix("slot ")
        .expect("it prints its slot");
    let slot = slot.parse().expect("a number");
    (Leasing(child, output.into_inner()), slot)
}

/// Waits until a descriptor can be read.
pub fn wait(fd: impl AsFd) {
    let nanoseconds = u64::try_from(HANG.as_nanos()).expect("a minute");
    assert!(
        io::poll::wait_readable(fd, Some(nanoseconds)).expect("it is open"),
        "nothing arrives"
    );
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
