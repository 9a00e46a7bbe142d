//! Connection management between our device and the kernel's: who connects, refuses, goes away.
//!
//! The programs meet by RDMA ports, on which nothing outside tells whether somebody listens: a
//! client that is refused because of that asks again.

mod killed;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{GUEST_ADDRESS, OURS, Peer, Role, as_strs, in_guest, siw};
use crate::guest::{Guest, Job};
use crate::process::{Ended, GUARD, Local, Running};
use crate::programs::{
    PerfTest, RPING, RPing, STREAM, Stream, came_between_listens, multicast, succeeded,
};
use crate::sandbox::FOLDER;
pub use killed::Kill;

/// The IPv6 addresses of the two ends.
const GUEST_ADDRESS_V6: &str = "fd77::2";
pub const OUR_ADDRESS_V6: &str = "fd77::1";

/// How long a client waits before it asks again.
const PAUSE: Duration = Duration::from_millis(200);

/// Reasons of a REJ. spec: IBA 12.6.7.2
const INVALID_SERVICE_ID: i32 = 8;
const CONSUMER: i32 = 28;
/// An MPA reply has no reason: `-ECONNRESET`.
const NO_REASON: i32 = -104;

/// What programs print when TCP refuses: `rdma_connect` says it at once.
const NO_TCP_LISTENER: &str = "Connection refused";

/// Every twentieth packet each way: about one handshake in four has to repeat something.
const LOSS: &str = "5%";

/// Two ends that connect, and what has to come of it.
#[derive(Clone, Debug)]
pub enum Meeting {
    /// Our own program, which ends connections in every way and checks what it is told.
    Twin,
    /// Our own program, whose requests end connections of iWARP.
    Errors,
    /// `rstream` or `riostream` at both ends: rsockets.
    Stream(Stream),
    /// `rping` at both ends.
    Ping(RPing),
    /// An `rping` server that stays, and clients one after the other.
    Persistent,
    /// A program with these options at both ends: `ucmatose`, `udaddy`.
    Both(&'static str, &'static [&'static str]),
    /// So many connections of `cmtime`, whose server stays.
    Times(u32),
    /// perftest, whose ends agree by rdma_cm too.
    Measure(PerfTest),
    /// Nobody listens: REJ with reason 8.
    NoListener,
    /// The server has enough connections: REJ with reason 28, from the program, or an MPA reply.
    Refused,
    /// An end is killed.
    Killed(Kill),
    /// `ucmatose` while every twentieth packet is lost, each way.
    Loss(u32),
    /// `mckey`: the server receives from a multicast group, the client sends to it.
    Group,
}

/// The cases; `full` with those that take long or differ little.
pub fn cases(full: bool) -> Vec<Meeting> {
    let ping = RPing { count: 20, ..RPING };
    let large = RPing {
        size: 65_535,
        ..ping
    };
    let v6 = |ping| RPing {
        address: Some(OUR_ADDRESS_V6),
        ..ping
    };
    let measure = |program, options: &[&'static str]| {
        let options = [&["-R", "-n", "50"], options].concat();
        Meeting::Measure(PerfTest { program, options })
    };
    let mut cases = vec![
        Meeting::Twin,
        Meeting::Ping(large),
        Meeting::Ping(v6(ping)),
        Meeting::Persistent,
        Meeting::Both(
            "ucmatose",
            &["-c", "10", "-C", "5", "-S", "1000", "-t", "32"],
        ),
        Meeting::Both("udaddy", &["-c", "3", "-C", "5", "-S", "1000"]),
        Meeting::Stream(STREAM),
        Meeting::Times(100),
        measure("ib_write_bw", &[]),
        measure("ib_send_lat", &[]),
        Meeting::NoListener,
        Meeting::Refused,
        Meeting::Killed(Kill::Peer),
        Meeting::Killed(Kill::Own),
        Meeting::Loss(10),
        Meeting::Group,
    ];
    if full {
        cases.extend(["nv", "av"].map(|manner| Meeting::Stream(Stream { manner, ..STREAM })));
        // its server sets the size of its iomap only after it listens: in the slow guest a client
        // may come in between, which then cannot map anything
        cases.push(Meeting::Stream(Stream {
            program: "riostream",
            ..STREAM
        }));
        cases.extend([100, 1024, 4097].map(|size| Meeting::Ping(RPing { size, ..ping })));
        cases.push(Meeting::Ping(v6(large)));
        cases.push(Meeting::Ping(RPing {
            count: 1000,
            ..ping
        }));
        cases.push(Meeting::Both(
            "ucmatose",
            &["-c", "1", "-C", "10", "-S", "65536"],
        ));
        cases.push(Meeting::Both(
            "ucmatose",
            &["-c", "100", "-C", "1", "-S", "64"],
        ));
        cases.push(Meeting::Both(
            "ucmatose",
            &["-c", "5", "-C", "2", "-S", "100", "-m"],
        ));
        cases.push(Meeting::Times(1000));
        cases.push(Meeting::Killed(Kill::OwnEarly));
        for program in PerfTest::PROGRAMS {
            cases.push(measure(program, &["-m", "512"]));
        }
        cases.push(measure("ib_write_bw", &["-q", "4", "-b"]));
        cases.push(measure("ib_read_bw", &["-q", "4"]));
        cases.push(Meeting::Loss(50));
    }
    cases
}

impl Meeting {
    /// Runs it and returns what the programs printed.
    pub fn run(&self, role: Role, peer: Peer, guest: &mut Guest) -> Result<String> {
        let at_server = role.address_of_server(self.is_v6());
        match self {
            Self::Twin | Self::Errors => {
                let program = if matches!(self, Self::Twin) {
                    "cm_twin"
                } else {
                    "cm_errors"
                };
                let end = |end, is_ours| {
                    let folder = if is_ours { FOLDER } else { "/host" };
                    words(&[&format!("{folder}/{program}"), end, at_server])
                };
                let server = end("server", role == Role::Server);
                let client = end("client", role == Role::Client);
                let (server, client) = meet(peer, At::both(role, guest), &server, &client)?;
                let output = both(&server.output, &client);
                for (end, ended) in [("server", &server), ("client", &client)] {
                    succeeded(end, ended).with_context(|| format!("both ends:\n{output}"))?;
                }
                if matches!(self, Self::Errors) && role == Role::Server {
                    siw::judge_terminates(guest)?;
                }
                Ok(output)
            }
            Self::Stream(stream) => {
                let end = |end| stream.argv(end, at_server);
                let (server, client) = meet(peer, At::both(role, guest), &end("-b"), &end("-s"))?;
                let output = both(&server.output, &client);
                stream
                    .judge("client", &client)
                    .and_then(|()| stream.judge("server", &server))
                    .with_context(|| format!("both ends:\n{output}"))?;
                Ok(output)
            }
            Self::Ping(ping) => {
                let end = |end| ping.argv(end, at_server);
                let (server, client) = meet(peer, At::both(role, guest), &end("-s"), &end("-c"))?;
                ping.judge("server", &server)?;
                ping.judge("client", &client)?;
                Ok(both(&server.output, &client))
            }
            Self::Persistent => {
                let ping = RPing { count: 10, ..RPING };
                let server = [ping.argv("-s", at_server), vec!["-P".into()]].concat();
                serve(peer, role, guest, &server, |clients| {
                    let client = ping.argv("-c", at_server);
                    let mut output = String::new();
                    for _ in 0..3 {
                        let ended = clients.connect(&client)?;
                        ping.judge("client", &ended)?;
                        output += &ended.output;
                    }
                    Ok(output)
                })
            }
            Self::Both(program, options) => {
                let options = words(options);
                let (server, client) = ends(program, role, at_server, [&options, &options]);
                let (server, client) = meet(peer, At::both(role, guest), &server, &client)?;
                finished(&server, &client)
            }
            Self::Times(count) => {
                let count = count.to_string();
                let server = words(&["cmtime", "-b", at_server]);
                let own = role.address_of_client();
                let client = ["cmtime", "-b", own, "-s", at_server, "-c", &count];
                serve(peer, role, guest, &server, |clients| {
                    let ended = clients.connect(&words(&client))?;
                    succeeded("client", &ended)?;
                    ensure!(
                        ended.output.contains("destroy") && !ended.output.contains("error"),
                        "no table of times:\n{}",
                        ended.output
                    );
                    Ok(ended.output)
                })
            }
            Self::Measure(test) => {
                let end = |is_server, address| test.argv(role.device(peer, is_server), address);
                let argv = (end(true, None), end(false, Some(at_server)));
                let since = Instant::now();
                let (server, client) = loop {
                    let ended = meet(peer, At::both(role, guest), &argv.0, &argv.1)?;
                    if !begins_again(peer, &ended.0, &ended.1) || since.elapsed() > GUARD {
                        break ended;
                    }
                };
                let output = both(&server.output, &client);
                test.judge("server", &server)
                    .and_then(|()| test.judge("client", &client))
                    .with_context(|| format!("both ends:\n{output}"))?;
                Ok(output)
            }
            Self::NoListener => {
                let mut host = At::client(role, guest);
                let mut client = host.start(&RPING.argv("-c", at_server))?;
                refused(client.running().wait()?, INVALID_SERVICE_ID)
            }
            Self::Refused => {
                let (server, client) = ends(
                    "ucmatose",
                    role,
                    at_server,
                    [&words(&["-c", "1"]), &words(&["-c", "2"])],
                );
                let (mut server_at, mut client_at) = At::both(role, guest);
                let argv = server;
                let mut server = server_at.start(&argv)?;
                await_listener(peer, &argv, server.running())?;
                let client = client_at.connect(&client)?;
                server.running().wait().context("the server")?;
                // a server that refuses the second ends the first as well, perhaps before a slow
                // client has thanked for it
                let too_late = "RDMA_CM_EVENT_CONNECT_ERROR";
                if client.code != 0 && client.output.contains(too_late) {
                    return Ok(client.output);
                }
                let reason = match peer {
                    Peer::Rxe => CONSUMER,
                    Peer::Siw(_) => NO_REASON,
                };
                refused(client, reason)
            }
            Self::Killed(kill) => kill.run(peer, role, guest),
            Self::Loss(connections) => lossy(role, guest, *connections),
            Self::Group => group(role, guest),
        }
    }

    fn is_v6(&self) -> bool {
        matches!(self, Self::Ping(ping) if ping.address.is_some())
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twin => f.write_str("cm-twin"),
            Self::Errors => f.write_str("cm-errors"),
            Self::Stream(stream) => write!(f, "{stream}"),
            Self::Ping(ping) => write!(f, "{ping}"),
            Self::Persistent => f.write_str("rping,persistent"),
            Self::Both(program, options) => {
                f.write_str(program)?;
                for word in *options {
                    let joint = if word.starts_with('-') { ',' } else { '=' };
                    write!(f, "{joint}{word}")?;
                }
                Ok(())
            }
            Self::Times(count) => write!(f, "cmtime,n={count}"),
            Self::Measure(test) => write!(f, "{test}"),
            Self::NoListener => f.write_str("rping,no-listener"),
            Self::Refused => f.write_str("ucmatose,refused"),
            Self::Killed(kill) => write!(f, "{kill}"),
            Self::Loss(connections) => write!(f, "ucmatose,loss,-c={connections}"),
            Self::Group => f.write_str("mckey"),
        }
    }
}

impl Role {
    fn address_of_server(self, is_v6: bool) -> &'static str {
        match (self, is_v6) {
            (Role::Client, false) => GUEST_ADDRESS,
            (Role::Client, true) => GUEST_ADDRESS_V6,
            (Role::Server, false) => OURS.address,
            (Role::Server, true) => OUR_ADDRESS_V6,
        }
    }

    fn address_of_client(self) -> &'static str {
        match self {
            Role::Client => OURS.address,
            Role::Server => GUEST_ADDRESS,
        }
    }
}

/// A host, as somebody who starts programs there.
enum At<'a> {
    Ours { variables: &'a [(&'a str, &'a str)] },
    Guest(&'a mut Guest),
}

/// A program at one of the hosts.
enum Program<'a> {
    Ours(Local),
    Guests(Job<'a>),
}

impl<'a> At<'a> {
    /// Where the server and where the client is to run.
    fn both(role: Role, guest: &'a mut Guest) -> (Self, Self) {
        Self::both_with(role, guest, &[])
    }

    /// The same, with these variables for the program at our end.
    fn both_with(
        role: Role,
        guest: &'a mut Guest,
        variables: &'a [(&'a str, &'a str)],
    ) -> (Self, Self) {
        let ours = At::Ours { variables };
        match role {
            Role::Client => (At::Guest(guest), ours),
            Role::Server => (ours, At::Guest(guest)),
        }
    }

    fn client(role: Role, guest: &'a mut Guest) -> Self {
        Self::both(role, guest).1
    }

    fn start(&mut self, argv: &[String]) -> Result<Program<'_>> {
        Ok(match self {
            At::Ours { variables } => Program::Ours(OURS.start(&as_strs(argv), variables)?),
            At::Guest(guest) => Program::Guests(guest.start(&in_guest(argv))?),
        })
    }

    /// A client that is started again while nobody listens.
    fn connect(&mut self, argv: &[String]) -> Result<Ended> {
        let start = Instant::now();
        loop {
            let ended = self.start(argv)?.running().wait().context("the client")?;
            if !nobody_listened(&ended) || start.elapsed() > GUARD {
                return Ok(ended);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Program<'_> {
    fn running(&mut self) -> &mut dyn Running {
        match self {
            Program::Ours(local) => local,
            Program::Guests(job) => job,
        }
    }

    /// Ends one that would go on.
    fn end(&mut self) -> Result<()> {
        match self {
            Program::Ours(local) => local.kill(),
            Program::Guests(job) => job.kill(),
        }
    }
}

/// Waits until a server of iWARP listens: it does on a TCP port, which is to be seen, and `rping`
/// waits for ever when TCP refuses it, over whatever library.
fn await_listener(peer: Peer, argv: &[String], server: &mut dyn Running) -> Result<()> {
    const PORTS: [(&str, u16); 5] = [
        ("rping", RPING.port),
        ("ib_", 18_515),
        ("cm_twin", 7175),
        ("cm_errors", 7176),
        ("", 7471), // those of rdmacm-utils
    ];
    if peer == Peer::Rxe {
        return Ok(());
    }
    let is_here = |name: &str| argv.iter().take(3).any(|word| word.contains(name));
    match PORTS.iter().find(|(name, _)| is_here(name)) {
        Some((_, port)) => server.wait_for_listener(*port),
        None => Ok(()),
    }
}

/// A server and a client that both end by themselves.
fn meet(
    peer: Peer,
    (mut server_at, mut client_at): (At<'_>, At<'_>),
    server: &[String],
    client: &[String],
) -> Result<(Ended, Ended)> {
    let argv = server;
    let mut server = server_at.start(argv)?;
    await_listener(peer, argv, server.running())?;
    let client = client_at
        .connect(client)
        .with_context(|| format!("the server printed:\n{}", server.running().output()))?;
    if client.code != 0 {
        server.end()?; // it would wait for ever
    }
    let ended = server.running().wait().with_context(|| {
        let Ended { code, output } = &client;
        format!("the server; the client ended with {code} and printed:\n{output}")
    })?;
    Ok((ended, client))
}

/// A server that stays, and what its clients do.
fn serve(
    peer: Peer,
    role: Role,
    guest: &mut Guest,
    server: &[String],
    clients: impl FnOnce(&mut At<'_>) -> Result<String>,
) -> Result<String> {
    let (mut server_at, mut client_at) = At::both(role, guest);
    let argv = server;
    let mut server = server_at.start(argv)?;
    await_listener(peer, argv, server.running())?;
    let outcome = clients(&mut client_at)
        .with_context(|| format!("the server printed:\n{}", server.running().output()));
    server.end()?;
    outcome
}

/// A receiver at one end and a sender at the other. That a receiver has joined is to be seen in its
/// kernel.
fn group(role: Role, guest: &mut Guest) -> Result<String> {
    const GROUP: &str = "239.77.1.1";
    /// The same in `/proc/net/igmp`.
    const NUMBER: &str = "01014DEF";
    // the program ends when it has posted, and the kernel's device has sent no more than one then
    let once = words(&["-C", "1"]);
    let receiver = multicast::receiver(role.address_of_server(false), GROUP);
    let sender = multicast::sender(role.address_of_client(), GROUP);
    let [receiver, sender] = [receiver, sender].map(|argv| [&argv[..], &once].concat());
    let (receiver, sender) = match role {
        Role::Server => {
            let mut receiver = OURS.start(&as_strs(&receiver), &[])?;
            multicast::await_members(&OURS, GROUP.parse()?, 1)?;
            let sender = guest.start(&in_guest(&sender))?.wait().context("sender")?;
            (receiver.wait().context("receiver")?, sender)
        }
        Role::Client => {
            let receiver = receiver.join(" ");
            let mut job = guest.start(&format!(
                "timeout 80 {receiver} & until grep -q {NUMBER} /proc/net/igmp\n\
                 do sleep 0.1; done; echo joined; wait $!"
            ))?;
            let since = Instant::now();
            while !job.output().contains("joined") {
                ensure!(since.elapsed() < GUARD, "never joined:\n{}", job.output());
                std::thread::sleep(PAUSE);
            }
            let sender = OURS
                .start(&as_strs(&sender), &[])?
                .wait()
                .context("sender")?;
            (job.wait().context("receiver")?, sender)
        }
    };
    multicast::judge("sender", &sender)?;
    multicast::judge("receiver", &receiver)?;
    Ok([receiver.output, sender.output].concat())
}

/// Connections over a network that loses packets both ways.
fn lossy(role: Role, guest: &mut Guest, connections: u32) -> Result<String> {
    let lose = format!("tc qdisc replace dev eth0 root netem loss {LOSS}");
    succeeded("tc", &guest.start(&lose)?.wait()?)?;
    let outcome = under_loss(role, guest, connections);
    succeeded("tc", &guest.start("tc qdisc del dev eth0 root")?.wait()?)?;
    outcome
}

fn under_loss(role: Role, guest: &mut Guest, connections: u32) -> Result<String> {
    let count = connections.to_string();
    let options = words(&["-c", &count, "-C", "1", "-S", "64"]);
    let address = role.address_of_server(false);
    let (server, client) = ends("ucmatose", role, address, [&options, &options]);
    let plan = format!("loss={LOSS},seed={connections}");
    let variables = [("SOFTRDMA_FAULTS", plan.as_str())];
    let (server, client) = meet(
        Peer::Rxe,
        At::both_with(role, guest, &variables),
        &server,
        &client,
    )?;
    finished(&server, &client)
}

/// The command lines of a program of rdmacm-utils for server and client, with their options.
fn ends(
    program: &str,
    role: Role,
    server: &str,
    [server_options, client_options]: [&[String]; 2],
) -> (Vec<String>, Vec<String>) {
    let server_argv = words(&[program, "-b", server]);
    let client_argv = words(&[program, "-b", role.address_of_client(), "-s", server]);
    (
        [&server_argv[..], server_options].concat(),
        [&client_argv[..], client_options].concat(),
    )
}

/// Whether both ends did all, which they say; gives what they printed.
fn finished(server: &Ended, client: &Ended) -> Result<String> {
    let output = both(&server.output, client);
    for (end, ended) in [("server", server), ("client", client)] {
        ensure!(
            ended.code == 0 && ended.output.contains("data transfers complete"),
            "{end} ended with {}; both ends:\n{output}",
            ended.code
        );
    }
    Ok(output)
}

fn refused(ended: Ended, reason: i32) -> Result<String> {
    ensure!(
        ended.code != 0 && is_refused(&ended, reason),
        "not refused with reason {reason}, but ended with {}:\n{}",
        ended.code,
        ended.output
    );
    Ok(ended.output)
}

/// Whether a client came too early: perftest tells the event's number and no reason, datagrams get
/// a SIDR_REP.
fn nobody_listened(ended: &Ended) -> bool {
    const ELSE: [&str; 5] = [
        NO_TCP_LISTENER,
        "Function rdma_connect failed",
        "rpoll: Operation now in progress",
        "Unexpected CM event bl blka 8",
        "RDMA_CM_EVENT_UNREACHABLE, error: 1",
    ];
    is_refused(ended, INVALID_SERVICE_ID) || ELSE.iter().any(|text| ended.output.contains(text))
}

/// Whether perftest's two ends have to begin again, which they would over any library.
///
/// It connects twice, to agree and then to measure, and a client that is quicker than the server is
/// refused the second time. It receives only after it has accepted, and iWARP waits for no receive.
/// The kernel's siw fails a SEND that has left if the peer, who has got it, closes before the
/// kernel has come to its end. And a machine with others on it has no steady clock.
fn begins_again(peer: Peer, server: &Ended, client: &Ended) -> bool {
    const OVER_SIW: [&str; 3] = [
        "Failed to sync between client and server after creating RDMA CM connection",
        "Failed to exchange data between server and clients",
        "Failed to close connection between server and client",
    ];
    let is_said = |said: &&str| [server, client].iter().any(|end| end.output.contains(said));
    let is_number = |word: &str| !matches!(word.trim_start_matches('-'), "inf" | "nan");
    came_between_listens(&client.output)
        || (peer != Peer::Rxe && OVER_SIW.iter().any(is_said))
        || !client.output.split_whitespace().all(is_number)
}

/// Whether a program says that it got a REJ of this reason; some have a colon in it.
fn is_refused(ended: &Ended, reason: i32) -> bool {
    let line = format!("RDMA_CM_EVENT_REJECTED, error {reason}");
    let mut lines = ended.output.lines();
    lines.any(|found| found.replace("error:", "error").ends_with(&line))
}

fn both(server: &str, client: &Ended) -> String {
    format!("server:\n{server}client:\n{}", client.output)
}

/// The end of a long output.
fn tail(output: &str) -> &str {
    let start = output.len().saturating_sub(2000);
    let start = (start..output.len()).find(|at| output.is_char_boundary(*at));
    &output[start.unwrap_or(0)..]
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_its_reason() {
        let ended = |output: &str| Ended {
            code: 255,
            output: output.into(),
        };
        let rping = ended("cma event RDMA_CM_EVENT_REJECTED, error 8\nconnect error -1\n");
        assert!(is_refused(&rping, INVALID_SERVICE_ID) && !is_refused(&rping, CONSUMER));
        let ucmatose = ended("cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28\n");
        assert!(is_refused(&ucmatose, CONSUMER) && !is_refused(&ucmatose, INVALID_SERVICE_ID));
    }

    #[test]
    fn perftest_begins_again_only_for_what_is_not_ours() {
        let ended = |output: &str| Ended {
            code: 0,
            output: output.into(),
        };
        let (good, slow) = (ended("2 50 3.1 4.0\n"), ended("2 50 3.1 -nan inf\n"));
        let early = ended(" Failed to exchange data between server and clients\n");
        let siw = Peer::Siw(siw::Variant::Default);
        assert!(!begins_again(siw, &good, &good));
        assert!(begins_again(siw, &good, &slow) && begins_again(siw, &early, &good));
        assert!(!begins_again(Peer::Rxe, &early, &good));
    }

    #[test]
    fn the_client_goes_to_the_other_host() {
        let options = words(&["-c", "2"]);
        let (server, client) = ends("ucmatose", Role::Client, GUEST_ADDRESS, [&[], &options]);
        assert_eq!(server.join(" "), "ucmatose -b 10.77.0.2");
        assert_eq!(client.join(" "), "ucmatose -b 10.77.0.1 -s 10.77.0.2 -c 2");
        assert_eq!(Role::Server.address_of_server(true), OUR_ADDRESS_V6);
    }

    #[test]
    fn an_output_is_cut_between_characters() {
        let long = format!("{}é{}", "a".repeat(100), "b".repeat(1999));
        assert_eq!(tail(&long), "b".repeat(1999));
        assert_eq!(tail("short"), "short");
    }
}
