//! The network inside of a sandbox, with a configured link on each host.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::softrdma;
use crate::process::{GUARD, Local, Running};
use crate::sandbox::Who;

/// What joins the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// Both are on one host and use its `lo`.
    Lo,
    /// Two hosts, each with a broker of its own, joined by a veth pair of this MTU.
    Veth(u32),
}

impl Net {
    /// An address of IPv6 by which the client can reach the server.
    pub const fn ipv6(self) -> &'static str {
        match self {
            Self::Lo => "::1",
            Self::Veth(_) => "fd77::1",
        }
    }
}

/// Of which protocol the links are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// RoCE, type `rxe`.
    Roce,
    /// iWARP, type `siw`.
    Iwarp,
}

/// A host: where to start a program, and what its device is called.
pub struct Host {
    /// Its network namespace, if it is not our own.
    pub namespace: Option<&'static str>,
    /// Name of the device, for `-d`.
    pub device: &'static str,
    /// Name of the interface below.
    pub interface: &'static str,
    /// An address for TCP, by which the other end can reach it.
    pub address: &'static str,
    /// Who starts programs there; only root can make it another.
    pub who: Who,
}

/// Two ends; on `lo` they are the same host.
pub struct World {
    /// Where servers run.
    pub server: Host,
    /// Where clients run.
    pub client: Host,
}

const LOOPBACK: Host = Host {
    namespace: None,
    device: "rxe_lo",
    interface: "lo",
    address: "127.0.0.1",
    who: Who::Root,
};

impl World {
    /// Makes the network and its links, for root.
    pub fn build(net: Net) -> Result<Self> {
        Self::build_for(net, Who::Root)
    }

    /// The same for anybody. Two hosts are made by root, whoever uses them then.
    pub fn build_for(net: Net, who: Who) -> Result<Self> {
        Self::build_over(Links::Roce, net, who)
    }

    /// The same with links of either protocol.
    pub fn build_over(links: Links, net: Net, who: Who) -> Result<Self> {
        let mut world = match net {
            Net::Lo => World {
                server: LOOPBACK,
                client: LOOPBACK,
            },
            Net::Veth(mtu) => Self::two_hosts(mtu, who)?,
        };
        let kind = match links {
            Links::Roce => "rxe",
            Links::Iwarp => "siw",
        };
        if links == Links::Iwarp {
            (world.server.device, world.client.device) = match net {
                Net::Lo => ("siw_lo", "siw_lo"),
                Net::Veth(_) => ("siw_left", "siw_right"),
            };
        }
        world.server.add_link_of(kind, &[])?;
        if net != Net::Lo {
            world.client.add_link_of(kind, &[])?;
        }
        Ok(world)
    }

    /// One host with nothing but `lo` and an iWARP device on it, whose link has these options: this
    /// one, or a new one in a namespace of that name.
    pub fn iwarp_alone(namespace: Option<&'static str>, options: &[&str]) -> Result<Self> {
        let host = || Host {
            namespace,
            device: "siw_lo",
            ..LOOPBACK
        };
        if let Some(name) = namespace {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        let world = World {
            server: host(),
            client: host(),
        };
        world.server.add_link_of("siw", options)?;
        Ok(world)
    }

    fn two_hosts(mtu: u32, who: Who) -> Result<Self> {
        let host = |namespace, device, interface, address| Host {
            namespace: Some(namespace),
            device,
            interface,
            address,
            who,
        };
        let world = World {
            server: host("left", "rxe_left", "veth_left", "10.77.0.1"),
            client: host("right", "rxe_right", "veth_right", "10.77.0.2"),
        };
        ip("netns add left")?;
        ip("netns add right")?;
        ip("link add veth_left netns left type veth peer name veth_right netns right")?;
        for (host, number) in [(&world.server, 1), (&world.client, 2)] {
            let interface = host.interface;
            // addresses that work at once, without the test for duplicates
            let dad = format!("echo 0 > /proc/sys/net/ipv6/conf/{interface}/accept_dad");
            succeed(
                Command::new("ip")
                    .args(["netns", "exec"])
                    .args(host.namespace)
                    .args(["sh", "-c", dad.as_str()]),
            )?;
            let namespace = host.namespace.unwrap_or_default();
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} link set {interface} mtu {mtu} up"))?;
            ip(&format!(
                "-n {namespace} address add 10.77.0.{number}/24 dev {interface}"
            ))?;
            ip(&format!(
                "-n {namespace} address add fd77::{number}/64 dev {interface}"
            ))?;
        }
        Ok(world)
    }
}

impl Host {
    /// Starts a program as it is, without our libraries.
    pub fn start_plain(&self, argv: &[&str], environment: &[(&str, &str)]) -> Result<Local> {
        let mut whole: Vec<&str> = Vec::new();
        if let Some(namespace) = self.namespace {
            whole.extend(["ip", "netns", "exec", namespace]);
        }
        whole.extend(self.who.prefix());
        whole.extend(argv);
        println!("$ {}", spell(&whole, environment));
        Local::start(Path::new("/run/out"), &whole, environment)
    }

    /// Starts a program under `softrdma run`.
    pub fn start(&self, argv: &[&str], environment: &[(&str, &str)]) -> Result<Local> {
        let command = softrdma().display().to_string();
        let mut whole = vec![command.as_str(), "run", "--"];
        whole.extend(argv);
        self.start_plain(&whole, environment)
    }

    /// Runs a program under `softrdma run` to its good end and returns what it printed.
    pub fn output(&self, argv: &[&str]) -> Result<String> {
        let ended = self.start(argv, &[])?.wait()?;
        super::succeeded(argv.first().unwrap_or(&"nothing"), &ended)?;
        print!("{}", ended.output);
        Ok(ended.output)
    }

    /// Waits until a program on this host listens for connections; `server` is the one that will.
    pub fn wait_for_listener(&self, server: &mut Local) -> Result<()> {
        let deadline = Instant::now() + GUARD;
        let what = "listening for connections";
        while !self
            .softrdma(&["resource", "show", "cm_id"])?
            .contains("state LISTEN")
        {
            server.still_coming(what, deadline)?;
        }
        Ok(())
    }

    /// Makes its device.
    pub fn add_link(&self) -> Result<()> {
        self.add_link_of("rxe", &[])
    }

    /// Makes its device, of this type and with these options.
    pub fn add_link_of(&self, kind: &str, options: &[&str]) -> Result<()> {
        let link = ["link", "add", self.device, "type", kind, "netdev"];
        self.softrdma(&[&link[..], &[self.interface], options].concat())
            .map(drop)
    }

    /// The `softrdma` command to its good end; gives what it printed.
    pub fn softrdma(&self, arguments: &[&str]) -> Result<String> {
        let command = softrdma().display().to_string();
        let argv = [&[command.as_str()], arguments].concat();
        let ended = self.start_plain(&argv, &[])?.wait()?;
        super::succeeded(&arguments.join(" "), &ended)?;
        Ok(ended.output)
    }
}

fn spell(argv: &[&str], environment: &[(&str, &str)]) -> String {
    let variables = environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    variables
        .chain(argv.iter().map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs `ip` with these arguments.
pub fn ip(arguments: &str) -> Result<()> {
    succeed(Command::new("ip").args(arguments.split(' ')))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
