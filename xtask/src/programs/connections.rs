//! Programs that connect with librdmacm: `rping` of Debian's `rdmacm-utils`.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::resource;
use super::scenes::Scene;
use super::succeeded;
use super::world::World;
use crate::process::{Ended, GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 4] = [
    ("rping,persistent", persistent),
    ("rping,refused", refused),
    ("rping,beside-tcp", beside_tcp),
    ("cm-twin", twin),
];

/// How long a client waits before it asks again.
pub const PAUSE: Duration = Duration::from_millis(50);

/// One run of `rping`, both ends with the same arguments.
#[derive(Clone, Copy, Debug)]
pub struct RPing {
    /// Address of the server; `None` is the one that the world gives.
    pub address: Option<&'static str>,
    /// Bytes of a message.
    pub size: u32,
    /// Messages.
    pub count: u32,
    /// RDMA port.
    pub port: u16,
}

/// Small messages, validated.
pub const DEFAULT: RPing = RPing {
    address: None,
    size: 64,
    count: 100,
    port: 7174,
};

impl RPing {
    /// The command line of an end, `-s` or `-c`; the server's address is at both.
    pub fn argv(&self, end: &str, address: &str) -> Vec<String> {
        let mut argv: Vec<String> = ["rping", end, "-V", "-v"].map(String::from).into();
        let mut option = |name: &str, value: String| argv.extend([name.to_string(), value]);
        option("-a", address.into());
        option("-p", self.port.to_string());
        option("-S", self.size.to_string());
        option("-C", self.count.to_string());
        argv
    }

    /// Runs server and client and judges both.
    pub fn run(&self, world: &World) -> Result<()> {
        let address = self.address.unwrap_or(world.server.address);
        let argv = self.argv("-s", address);
        let mut server = world.server.start(&as_strs(&argv), &[])?;
        world.server.wait_for_listener(&mut server)?;
        let client = world
            .client
            .start(&as_strs(&self.argv("-c", address)), &[])?
            .wait();
        let client = client.with_context(|| format!("the server printed:\n{}", server.output()))?;
        self.judge("client", &client)?;
        self.judge("server", &server.wait().context("server")?)
    }

    /// Whether every message arrived, and rightly: the program compares (`-V`) and says so.
    pub fn judge(&self, end: &str, ended: &Ended) -> Result<()> {
        succeeded(end, ended)?;
        let pings = ended.output.matches("ping data: rdma-ping-").count();
        ensure!(
            pings == self.count as usize,
            "{end}: {pings} messages of {}:\n{}",
            self.count,
            ended.output
        );
        ensure!(
            !ended.output.contains("data mismatch"),
            "{end}: wrong data:\n{}",
            ended.output
        );
        Ok(())
    }
}

impl std::fmt::Display for RPing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            address,
            size,
            count,
            port: _,
        } = self;
        let family = match address {
            Some(address) if address.contains(':') => "ipv6",
            _ => "ipv4",
        };
        write!(f, "rping,{family},size={size},n={count}")
    }
}

/// A server that serves one client after the other, and several at once.
pub fn persistent(world: &World) -> Result<()> {
    const ROUNDS: usize = 3;
    const CLIENTS: usize = 4;
    let ping = DEFAULT;
    let address = world.server.address;
    let argv = [ping.argv("-s", address), vec!["-P".into()]].concat();
    let mut server = world.server.start(&as_strs(&argv), &[])?;
    world.server.wait_for_listener(&mut server)?;
    let argv = ping.argv("-c", address);
    for _ in 0..ROUNDS {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let client = world.client.start(&as_strs(&argv), &[])?;
            // the server of release 44 forgets a request when the next one comes before its main
            // thread has looked, and takes that one twice: EINVAL; later releases wait
            let start = Instant::now();
            while !client.output().contains("ping data") && start.elapsed() < GUARD {
                std::thread::sleep(PAUSE);
            }
            clients.push(client);
        }
        for mut client in clients {
            let ended = client.wait().context("client")?;
            ping.judge("client", &ended)
                .with_context(|| format!("the server printed:\n{}", server.output()))?;
        }
    }
    Ok(())
}

/// Our own program, which ends connections in every way and checks what it is told.
pub fn twin(world: &World) -> Result<()> {
    both_ends("/run/cm_twin", world)
}

/// Our own program, whose wrong requests end connections of iWARP, one after the other; and a
/// caller who speaks another protocol. The counters tell of each.
pub fn errors(world: &World) -> Result<()> {
    both_ends("/run/cm_errors", world)?;
    let counted = resource::counters(world)?;
    for (name, expected) in [
        // of IPv4 and IPv6: seven that the peer refuses, and a SEND whose memory is not its own
        ("rcvd_segment_err", 14),
        ("sent_terminates", 16),
        ("rcvd_crc_err", 0),
        ("request_err", 0),
    ] {
        let count = counted(name)?;
        ensure!(count == expected, "{name} is {count}, not {expected}");
    }

    let address = world.server.address;
    let mut server = world.server.start(&["rping", "-s", "-a", address], &[])?;
    world.server.wait_for_listener(&mut server)?;
    let mut caller = TcpStream::connect((address, DEFAULT.port))?;
    caller.set_read_timeout(Some(GUARD))?;
    caller.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    // it is not answered, and comes to an end
    caller.read_to_end(&mut Vec::new())?;
    let start = Instant::now();
    while resource::counters(world)?("request_err")? != 1 {
        ensure!(start.elapsed() < GUARD, "the caller is not counted");
        std::thread::sleep(PAUSE);
    }
    server.kill()
}

fn both_ends(program: &str, world: &World) -> Result<()> {
    for address in [world.server.address, "::1"] {
        meet(program, world, address)?;
    }
    Ok(())
}

/// Both ends of a program of ours, which meet at this address of the server.
pub fn meet(program: &str, world: &World, address: &str) -> Result<()> {
    let argv = |end| [program, end, address];
    let mut server = world.server.start(&argv("server"), &[])?;
    world.server.wait_for_listener(&mut server)?;
    let client = world.client.start(&argv("client"), &[])?.wait()?;
    succeeded("client", &client)
        .with_context(|| format!("the server printed:\n{}", server.output()))?;
    succeeded("server", &server.wait()?)
}

/// A program that listens at all addresses for RDMA where its server of TCP has the same number, as
/// Valkey does, on a host with links of both protocols. It is reached over RoCE, and told of the
/// other; the server of TCP stays reachable.
fn beside_tcp(world: &World) -> Result<()> {
    let interface = world.server.interface;
    let link = ["link", "add", "siw_lo", "type", "siw", "netdev", interface];
    world.server.softrdma(&link)?;
    // of both families
    let tcp = TcpListener::bind((Ipv6Addr::UNSPECIFIED, DEFAULT.port))?;
    for (wildcard, address) in [("0.0.0.0", "127.0.0.1"), ("::", "::1")] {
        let argv = DEFAULT.argv("-s", wildcard);
        let mut server = world.server.start(&as_strs(&argv), &[])?;
        world.server.wait_for_listener(&mut server)?;
        server.wait_for_text("those over iWARP will not")?;
        let argv = DEFAULT.argv("-c", address);
        let client = world.client.start(&as_strs(&argv), &[])?.wait()?;
        DEFAULT
            .judge("client", &client)
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        DEFAULT.judge("server", &server.wait().context("server")?)?;
        let caller = TcpStream::connect((address, DEFAULT.port)).context("plain TCP")?;
        let (_, from) = tcp.accept()?;
        let ours = caller.local_addr()?;
        ensure!(from.port() == ours.port(), "{from} came instead of {ours}");
    }
    Ok(())
}

/// Without a server the client is refused and ends.
fn refused(world: &World) -> Result<()> {
    let argv = DEFAULT.argv("-c", world.server.address);
    let ended = world.client.start(&as_strs(&argv), &[])?.wait()?;
    ensure!(
        ended.code != 0 && ended.output.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "not refused with reason 8:\n{}",
        ended.output
    );
    Ok(())
}

/// Between two hosts: an address that nobody on the network has is told as such, in the time that
/// the programs give for it.
pub fn nobody(world: &World) -> Result<()> {
    let ping = |address| RPing::argv(&DEFAULT, "-c", address);
    let told = "RDMA_CM_EVENT_ADDR_ERROR, error -110";
    let stream = ["rstream", "-T", "b", "-s", "10.77.0.99"];
    let stream = stream.map(String::from).into();
    let mut ends = Vec::new();
    for (argv, told) in [
        (ping("10.77.0.99"), told),
        (ping("fd77::99"), told),
        (stream, "rconnect: Connection timed out"),
    ] {
        ends.push((world.client.start(&as_strs(&argv), &[])?, told));
    }
    for (mut end, told) in ends {
        let ended = end.wait()?;
        ensure!(
            ended.code != 0 && ended.output.contains(told),
            "no {told:?} in:\n{}",
            ended.output
        );
    }
    Ok(())
}

/// Words as they are passed on.
pub fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}
