//! Programs that find each other with librdmacm: those of Debian's `rdmacm-utils` besides `rping`,
//! and perftest's with `-R`.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::perftest::PerfTest;
use super::scenes::Scene;
use super::succeeded;
use super::world::{Net, World};
use crate::process::{Ended, GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 1] = [("cmtime,-c=100", cmtime)];

/// Two programs that talk and end by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    server: &'static str,
    client: &'static str,
    /// Options of both.
    options: &'static [&'static str],
    /// Of the server; `None` is the one that the world gives.
    address: Option<&'static str>,
    /// What both print when all is well.
    good_end: &'static str,
}

const UDADDY: Exchange = Exchange {
    server: "udaddy",
    client: "udaddy",
    options: &["-c", "3", "-C", "100"],
    address: None,
    good_end: "return status 0",
};

const UCMATOSE: Exchange = Exchange {
    server: "ucmatose",
    client: "ucmatose",
    options: &["-c", "10"],
    ..UDADDY
};

const CLIENT_AND_SERVER: Exchange = Exchange {
    server: "rdma_server",
    client: "rdma_client",
    options: &[],
    address: None,
    good_end: ": end 0",
};

/// A few of each; `full` with more sizes and counts.
pub fn on(net: Net, full: bool) -> Vec<Exchange> {
    let ipv6 = net.ipv6();
    let mut all = vec![
        UDADDY,
        UCMATOSE,
        Exchange {
            options: &["-c", "10", "-m"],
            ..UCMATOSE
        },
        CLIENT_AND_SERVER,
    ];
    if net == Net::Lo || full {
        all.extend([
            Exchange {
                address: Some(ipv6),
                ..UDADDY
            },
            Exchange {
                options: &["-c", "4", "-t", "8", "-C", "100", "-S", "4000"],
                ..UCMATOSE
            },
            Exchange {
                server: "rdma_xserver",
                client: "rdma_xclient",
                ..CLIENT_AND_SERVER
            },
        ]);
    }
    if full {
        all.extend([
            Exchange {
                options: &["-c", "100", "-C", "1", "-S", "1"],
                ..UDADDY
            },
            Exchange {
                options: &["-c", "100", "-C", "50", "-S", "65536"],
                ..UCMATOSE
            },
            ucmatose_ipv6(net),
        ]);
    }
    all
}

/// Of [`on`] with `full`.
pub fn ucmatose_ipv6(net: Net) -> Exchange {
    Exchange {
        address: Some(net.ipv6()),
        ..UCMATOSE
    }
}

impl Exchange {
    /// Whether its queue pairs are reliable connections, which is all that iWARP has.
    pub fn is_of_connections(&self) -> bool {
        !matches!(self.client, "udaddy" | "rdma_xclient")
    }

    /// Runs both ends and judges them.
    pub fn run(&self, world: &World) -> Result<()> {
        let address = self.address.unwrap_or(world.server.address);
        let mut server = vec![self.server];
        server.extend(self.options);
        if self.address.is_some() {
            server.extend(["-b", address]);
        }
        let mut client = vec![self.client];
        client.extend(self.options);
        client.extend(["-s", address]);
        let mut server = world.server.start(&server, &[])?;
        world.server.wait_for_listener(&mut server)?;
        let ended = world.client.start(&client, &[])?.wait();
        let ended = ended.with_context(|| format!("the server printed:\n{}", server.output()))?;
        self.judge("client", &ended)
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        self.judge("server", &server.wait().context("server")?)
    }

    fn judge(&self, end: &str, ended: &Ended) -> Result<()> {
        succeeded(end, ended)?;
        ensure!(
            ended.output.contains(self.good_end),
            "{end}: no {:?} in:\n{}",
            self.good_end,
            ended.output
        );
        Ok(())
    }
}

impl std::fmt::Display for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.client)?;
        if self.address.is_some() {
            f.write_str(",ipv6")?;
        }
        for word in self.options {
            let joint = if word.starts_with('-') { ',' } else { '=' };
            write!(f, "{joint}{word}")?;
        }
        Ok(())
    }
}

/// Whether perftest's client came between the two times that its server listens, by what it said.
/// Only later releases ask again instead of crashing.
pub fn came_between_listens(output: &str) -> bool {
    const SAID: [&str; 2] = [
        "Failed to connect RDMA CM events",
        "Failed to connect through RDMA CM",
    ];
    SAID.iter().any(|said| output.contains(said))
}

/// A run of perftest whose ends find each other with librdmacm.
pub fn with_connection_manager(world: &World, test: &PerfTest) -> Result<()> {
    let server_argv = test.argv(world.server.device, None);
    let client_argv = test.argv(world.client.device, Some(world.server.address));
    let start = Instant::now();
    while start.elapsed() < GUARD {
        let mut server = world.server.start(&as_strs(&server_argv), &[])?;
        world.server.wait_for_listener(&mut server)?;
        let client = world.client.start(&as_strs(&client_argv), &[])?.wait()?;
        if came_between_listens(&client.output) {
            server.kill()?;
            continue;
        }
        test.judge("client", &client)
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        return test.judge("server", &server.wait().context("server")?);
    }
    bail!("the client always came between the two times that the server listens");
}

/// Many connections at once; the server goes on for ever.
pub fn cmtime(world: &World) -> Result<()> {
    cmtime_at(world, world.server.address)
}

/// The same at this address of the server.
pub fn cmtime_at(world: &World, address: &str) -> Result<()> {
    let count = ["cmtime", "-c", "100"];
    let mut server = world
        .server
        .start(&[&count[..], &["-b", address]].concat(), &[])?;
    world.server.wait_for_listener(&mut server)?;
    let argv = [&count[..], &["-s", address]].concat();
    let client = world.client.start(&argv, &[])?.wait()?;
    succeeded("client", &client)
        .with_context(|| format!("the server printed:\n{}", server.output()))?;
    for step in ["connect", "disconnect"] {
        let is_told = |line: &str| line.starts_with(step) && line.contains(':');
        ensure!(
            client.output.lines().any(is_told),
            "no time of {step:?} in:\n{}",
            client.output
        );
    }
    server.kill()
}

fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}
