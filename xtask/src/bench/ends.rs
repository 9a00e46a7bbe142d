//! Programs that are measured: under `softrdma run`, timed, on a processor of their own, guarded.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use super::figures::Figures;
use super::machine::two_processors;
use super::set_up;
use crate::process::{Ended, Local, Running};
use crate::programs::{Host, World, softrdma, succeeded};

/// Beyond the time that a measurement takes: more than this means that it hangs.
const HUNG: Duration = Duration::from_secs(30);

/// Prints what the program took of processors, with its threads, as the last of its output.
const TIMED: &str = r#"TIMEFORMAT="$0 %U %S"; time "$@""#;
const CPU: &str = "cpu-seconds:";

/// The first of the TCP ports over which programs meet; each run has its own.
const FIRST_PORT: u16 = 30_000;
const PORTS: u16 = 10_000;

/// Where programs run, and how long at most.
pub struct Ends<'a> {
    pub world: &'a World,
    /// The client's and the server's.
    processors: Option<[usize; 2]>,
    guard: Duration,
    /// How it is seen that a server waits.
    meeting: Meeting,
}

/// By what programs find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// A port of TCP.
    Tcp,
    /// One of RDMA, which none of TCP is behind.
    ConnectionManager,
}

/// What was seen of an exchange.
pub struct Exchange {
    /// What each client printed.
    pub outputs: Vec<String>,
    /// Of all its processes, where that was looked at.
    pub cpu_seconds: Option<f64>,
    /// By the kernel, at full receive buffers of the device.
    pub datagrams_dropped: Option<u64>,
}

impl<'a> Ends<'a> {
    /// For measurements of this many seconds.
    pub fn new(world: &'a World, seconds: u32) -> Result<Self> {
        Ok(Self {
            world,
            processors: two_processors()?,
            guard: HUNG + Duration::from_secs(seconds.into()),
            meeting: Meeting::Tcp,
        })
    }

    /// Lets the programs run where the scheduler wants.
    pub fn not_pinned(self) -> Self {
        Self {
            processors: None,
            ..self
        }
    }

    /// The ends meet at an RDMA port of RoCE, at most one server at a time.
    pub fn without_tcp(self) -> Self {
        Self {
            meeting: Meeting::ConnectionManager,
            ..self
        }
    }

    /// Runs one server and so many clients to their good ends. `argv` gives the command line of
    /// the server, or with the server's address, of a client.
    pub fn exchange(
        &self,
        clients: usize,
        argv: impl Fn(&Host, u16, Option<&str>) -> Vec<String>,
    ) -> Result<Exchange> {
        let World { server, client } = self.world;
        let port = next_port();
        let [client_on, server_on] = match self.processors {
            Some(processors) => processors.map(Some),
            None => [None; 2],
        };
        let dropped_before = self.datagrams_dropped()?;
        let mut server_end = End::start(server, server_on, self.guard, &argv(server, port, None))?;
        match self.meeting {
            Meeting::Tcp => server_end.program.wait_for_listener(port),
            Meeting::ConnectionManager => server.wait_for_listener(&mut server_end.program),
        }
        .context("server")?;
        let client_argv = argv(client, port, Some(server.address));
        let mut client_ends = Vec::new();
        for _ in 0..clients {
            client_ends.push(End::start(client, client_on, self.guard, &client_argv)?);
        }
        let mut ended = Vec::new();
        for client in &mut client_ends {
            let client = client.wait("client", self.guard);
            // the reason is often the server's
            let client = client.map_err(|error| server_end.explain(error))?;
            ended.push(client);
        }
        let server = server_end.wait("server", self.guard)?;
        let mut cpu_seconds = cpu(&server.output)?;
        for client in &ended {
            cpu_seconds += cpu(&client.output)?;
        }
        Ok(Exchange {
            outputs: ended.into_iter().map(|client| client.output).collect(),
            cpu_seconds: Some(cpu_seconds),
            datagrams_dropped: Some(self.datagrams_dropped()?.saturating_sub(dropped_before)),
        })
    }

    /// Makes connections once.
    pub fn set_up(&self) -> Result<Figures> {
        let World { server, client } = self.world;
        let [client_on, server_on] = match self.processors {
            Some(processors) => processors.map(Some),
            None => [None; 2],
        };
        // it serves for ever
        let mut server_end = End::start(server, server_on, self.guard, &set_up::argv(None))?;
        server.wait_for_listener(&mut server_end.program)?;
        let argv = set_up::argv(Some(server.address));
        let mut client_end = End::start(client, client_on, self.guard, &argv)?;
        let ended = client_end.program.wait_at_most(self.guard + HUNG)?;
        set_up::judged(ended.code, &ended.output).map_err(|error| server_end.explain(error))
    }

    /// At both hosts, since they are.
    fn datagrams_dropped(&self) -> Result<u64> {
        let World { server, client } = self.world;
        let mut dropped = dropped_at(server)?;
        if client.namespace != server.namespace {
            dropped += dropped_at(client)?;
        }
        Ok(dropped)
    }
}

/// A program and all that it started. Ended when dropped.
struct End {
    program: Local,
}

impl End {
    fn start(
        host: &Host,
        processor: Option<usize>,
        guard: Duration,
        argv: &[String],
    ) -> Result<Self> {
        let argv = wrap(host, processor, guard, argv);
        let program = Local::start(Path::new("/run/out"), &argv, &[("LC_ALL", "C")])?;
        Ok(Self { program })
    }

    fn wait(&mut self, end: &str, guard: Duration) -> Result<Ended> {
        let ended = self.program.wait_at_most(guard + HUNG)?;
        ensure!(
            ended.code != 128 + Signal::KILL.as_raw(),
            "the {end} hung and was ended after {guard:?}; it printed:\n{}",
            ended.output
        );
        succeeded(end, &ended)?;
        Ok(ended)
    }

    /// What went wrong at the other end, with what this one said so far.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        anyhow!("{error:#}\nthe server printed:\n{}", self.program.output())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // `timeout` made itself the leader of a group
        let group = i32::try_from(self.program.id())
            .ok()
            .and_then(Pid::from_raw);
        if let Some(group) = group
            && !matches!(self.program.ended(), Ok(Some(_)))
        {
            // It may not have come so far: then it is alone, and ended by its own drop.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn wrap(host: &Host, processor: Option<usize>, guard: Duration, argv: &[String]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| whole.extend(words.iter().map(ToString::to_string));
    if let Some(namespace) = host.namespace {
        add(&["ip", "netns", "exec", namespace]);
    }
    add(&["timeout", "--signal=KILL", &guard.as_secs().to_string()]);
    if let Some(processor) = processor {
        add(&["taskset", "--cpu-list", &processor.to_string()]);
    }
    add(&["bash", "-c", TIMED, CPU]);
    add(&[&softrdma().display().to_string(), "run", "--"]);
    whole.extend(argv.iter().cloned());
    whole
}

/// Seconds of processors, from what [`TIMED`] printed.
fn cpu(output: &str) -> Result<f64> {
    let line = output.lines().rev().find_map(|line| line.strip_prefix(CPU));
    let mut times = line
        .context("no times in the output")?
        .split_whitespace()
        .map(str::parse::<f64>);
    let [user, kernel] = [times.next(), times.next()].map(|time| time.context("a time"));
    Ok(user?? + kernel??)
}

/// Datagrams that this host's sockets on the device's port had no room for.
fn dropped_at(host: &Host) -> Result<u64> {
    let mut argv = Vec::new();
    if let Some(namespace) = host.namespace {
        argv.extend(["ip", "netns", "exec", namespace]);
    }
    argv.extend(["cat", "/proc/net/udp", "/proc/net/udp6"]);
    let ended = Local::start(Path::new("/run/out"), &argv, &[])?.wait()?;
    succeeded("cat", &ended)?;
    Ok(dropped(&ended.output))
}

fn dropped(table: &str) -> u64 {
    let of_device = |line: &&str| {
        let local = line.split_whitespace().nth(1).unwrap_or_default();
        local.ends_with(":12B7") // 4791
    };
    let drops = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
    table.lines().filter(of_device).filter_map(drops).sum()
}

fn next_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    FIRST_PORT + NUMBER.fetch_add(1, Ordering::Relaxed) % PORTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_the_programs_output() {
        assert_eq!(cpu("results\ncpu-seconds: 1.250 0.500\n").unwrap(), 1.75);
        assert!(cpu("results\n").is_err());
        assert!(cpu("cpu-seconds: 1.250\n").is_err());
    }

    #[test]
    fn drops_are_those_of_the_devices_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue drops\n\
             7: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 0 0 5 2 0 31\n\
             8: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 0 0 5 2 0 9\n\
             9: 00000000000000000000000000000000:12B7 00000000:0000 07 0 0 0 4\n";
        assert_eq!(dropped(table), 35);
        assert_eq!(dropped(""), 0);
    }

    #[test]
    fn a_program_is_guarded_in_its_namespace() {
        let host = Host {
            namespace: Some("left"),
            device: "rxe_left",
            interface: "veth_left",
            address: "10.77.0.1",
            who: crate::sandbox::Who::Root,
        };
        let argv = wrap(
            &host,
            Some(1),
            Duration::from_secs(31),
            &["ib_write_bw".into()],
        );
        // the leader of the group that is killed is the process that was started
        assert_eq!(argv[..5], ["ip", "netns", "exec", "left", "timeout"]);
        assert!(argv.join(" ").contains(" taskset --cpu-list 1 bash "));
        assert!(argv.ends_with(&["run".into(), "--".into(), "ib_write_bw".into()]));
    }
}
