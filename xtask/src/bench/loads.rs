//! Loads that perftest does not have, made by `interop/verbs_load.c`.

use std::path::Path;

use anyhow::{Context, Result};

use super::ends::{Ends, Exchange};
use super::figures::Figures;
use crate::programs::Host;
use crate::sandbox::FOLDER;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One program polls, computes for 2 ms and polls again, while another one writes to it.
    Busy,
    /// Many processes write to one.
    Incast,
}

/// Processes that write at once.
const INCAST: usize = 20;
/// What each of their messages is; they keep several in flight.
const MESSAGE: f64 = 65_536.0;

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Incast => "incast",
        }
    }

    pub fn note(self) -> &'static str {
        match self {
            Self::Busy => {
                "an 8-byte WRITE to a program that polls 0.1 ms and computes 2 ms in turns"
            }
            Self::Incast => "20 processes write 64 KiB messages to one that sleeps",
        }
    }

    /// Measures it once.
    pub fn measure(self, ends: Ends<'_>, seconds: u32) -> Result<Figures> {
        let (ends, clients) = match self {
            Self::Busy => (ends, 1),
            Self::Incast => (ends.not_pinned(), INCAST),
        };
        let exchange = ends.exchange(clients, |host, port, server| {
            self.argv(seconds, clients, host, port, server)
        })?;
        match self {
            Self::Busy => latency(exchange.outputs.first().context("no client")?),
            Self::Incast => bandwidth(&exchange),
        }
    }

    fn argv(
        self,
        seconds: u32,
        clients: usize,
        host: &Host,
        port: u16,
        server: Option<&str>,
    ) -> Vec<String> {
        let program = Path::new(FOLDER).join("verbs_load").display().to_string();
        let end = if server.is_some() { "client" } else { "server" };
        let mut argv: Vec<String> = vec![program, end.into()];
        let mut option = |name: &str, value: String| argv.extend([name.into(), value]);
        option("-d", host.device.into());
        option("-m", "4096".into());
        option("-p", port.to_string());
        option("-s", seconds.to_string());
        option("-t", self.name().into());
        if server.is_none() {
            option("-n", clients.to_string());
        }
        argv.extend(server.map(String::from));
        argv
    }
}

/// Reads `load: p50 46790 ns, p99 1057986 ns, 1538 writes`.
fn latency(output: &str) -> Result<Figures> {
    let [p50, p99, _] = numbers(output)?;
    Ok(Figures::Latency {
        p50_us: p50 / 1e3,
        p99_us: p99 / 1e3,
    })
}

/// The sum of all senders, each of which prints `load: 25690112 bytes in 1026356406 ns`.
fn bandwidth(exchange: &Exchange) -> Result<Figures> {
    let (mut bytes, mut gbit_per_s) = (0.0, 0.0);
    for output in &exchange.outputs {
        let [moved, ns] = numbers(output)?;
        bytes += moved;
        gbit_per_s += moved * 8.0 / ns;
    }
    Ok(Figures::Messages {
        gbit_per_s,
        mega_messages_per_s: gbit_per_s * 1e3 / 8.0 / MESSAGE,
        cpu_seconds_per_gbyte: exchange.cpu_seconds.map(|seconds| seconds * 1e9 / bytes),
        datagrams_dropped: exchange.datagrams_dropped,
    })
}

/// The numbers of the line that begins with `load:`.
fn numbers<const COUNT: usize>(output: &str) -> Result<[f64; COUNT]> {
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("load:"))
        .with_context(|| format!("no line \"load:\" in:\n{output}"))?;
    let numbers: Vec<f64> = line
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers
        .try_into()
        .ok()
        .with_context(|| format!("not {COUNT} numbers: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_read() {
        let output = "a warning\nload: p50 46790 ns, p99 1057986 ns, 1538 writes\n";
        let figures = Figures::Latency {
            p50_us: 46.79,
            p99_us: 1057.986,
        };
        assert_eq!(latency(output).unwrap(), figures);
        assert!(latency("load: p50 46790 ns\n").is_err());
        assert!(latency("").is_err());
    }

    #[test]
    fn senders_are_added() {
        let sender = "load: 1000000000 bytes in 1000000000 ns\n".to_string();
        let exchange = Exchange {
            outputs: vec![sender; 3],
            cpu_seconds: Some(6.0),
            datagrams_dropped: Some(2),
        };
        assert_eq!(
            bandwidth(&exchange).unwrap(),
            Figures::Messages {
                gbit_per_s: 24.0,
                mega_messages_per_s: 3000.0 / MESSAGE,
                cpu_seconds_per_gbyte: Some(2.0),
                datagrams_dropped: Some(2),
            }
        );
    }
}
