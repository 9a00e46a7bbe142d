//! `ibv_rc_pingpong`, `ibv_srq_pingpong` and `ibv_ud_pingpong`: their arguments, and whether they
//! did what they say.

use anyhow::{Context, Result, ensure};

use super::succeeded;
use crate::process::{Ended, Running};

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One connection.
    Connection,
    /// 16 connections that share a receive queue on each side.
    Shared,
    /// Datagrams, which have no path MTU.
    Datagrams,
}

/// One run, both ends with the same arguments.
#[derive(Clone, Copy, Debug)]
pub struct PingPong {
    /// Which program.
    pub kind: Kind,
    /// GID index.
    pub gid: u8,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU.
    pub mtu: u32,
    /// Messages each way.
    pub count: u32,
    /// Sleep on completion events.
    pub events: bool,
    /// How many receives to post; the program's own number if not given.
    pub receives: Option<u32>,
    /// TCP port of the exchange.
    pub port: u16,
}

/// As the program has them, but for the GID index, which it does not choose by itself.
pub const DEFAULT: PingPong = PingPong {
    kind: Kind::Connection,
    gid: 1,
    size: 4096,
    mtu: 1024,
    count: 1000,
    events: false,
    receives: None,
    port: 18515,
};

/// The same with a shared receive queue.
pub const SHARED: PingPong = PingPong {
    kind: Kind::Shared,
    ..DEFAULT
};

/// The same with datagrams, which fit an interface of 1500 bytes.
pub const DATAGRAMS: PingPong = PingPong {
    kind: Kind::Datagrams,
    size: 1024,
    ..DEFAULT
};

impl PingPong {
    /// The command line on `device`; the client's also names the server.
    pub fn argv(&self, device: &str, server: Option<&str>) -> Vec<String> {
        let program = match self.kind {
            Kind::Connection => "ibv_rc_pingpong",
            Kind::Shared => "ibv_srq_pingpong",
            Kind::Datagrams => "ibv_ud_pingpong",
        };
        let mut argv = vec![program.into(), "-c".into(), "-d".into(), device.into()];
        let mut option = |name: &str, value: String| argv.extend([name.to_string(), value]);
        option("-g", self.gid.to_string());
        option("-s", self.size.to_string());
        if self.kind != Kind::Datagrams {
            option("-m", self.mtu.to_string());
        }
        option("-n", self.count.to_string());
        option("-p", self.port.to_string());
        if let Some(receives) = self.receives {
            option("-r", receives.to_string());
        }
        if self.events {
            argv.push("-e".into());
        }
        argv.extend(server.map(String::from));
        argv
    }

    /// Starts the server with one, the client with the other, and judges both.
    pub fn run<S: Running, C: Running>(
        &self,
        server: impl FnOnce(&[&str]) -> Result<S>,
        client: impl FnOnce(&[&str]) -> Result<C>,
        devices: (&str, &str),
        address: &str,
    ) -> Result<()> {
        let argv = self.argv(devices.0, None);
        let mut server = server(&as_strs(&argv))?;
        server.wait_for_listener(self.port).context("server")?;
        let argv = self.argv(devices.1, Some(address));
        let client = client(&as_strs(&argv))?.wait().context("client")?;
        // a client that failed leaves a server that waits for ever
        self.judge("client", &client)
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        self.judge("server", &server.wait().context("server")?)
    }

    /// Whether what one end printed says that everything arrived, and rightly.
    pub fn judge(&self, end: &str, ended: &Ended) -> Result<()> {
        succeeded(end, ended)?;
        let moved = format!(
            "{} bytes in",
            u64::from(self.size) * u64::from(self.count) * 2
        );
        let turns = format!("{} iters in", self.count);
        let output = &ended.output;
        ensure!(output.contains(&moved), "{end}: no {moved:?} in:\n{output}");
        ensure!(output.contains(&turns), "{end}: no {turns:?} in:\n{output}");
        // the program prints this and still ends with 0
        ensure!(
            !output.contains("invalid data"),
            "{end}: wrong data:\n{output}"
        );
        print!("{end}:\n{output}");
        Ok(())
    }
}

impl std::fmt::Display for PingPong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PingPong {
            kind,
            gid,
            size,
            mtu,
            count,
            events,
            receives,
            port: _,
        } = *self;
        f.write_str(match kind {
            Kind::Connection => "pingpong",
            Kind::Shared => "srq-pingpong",
            Kind::Datagrams => "ud-pingpong",
        })?;
        write!(f, ",gid={gid},size={size}")?;
        if kind != Kind::Datagrams {
            write!(f, ",mtu={mtu}")?;
        }
        write!(f, ",n={count}")?;
        if events {
            write!(f, ",events")?;
        }
        receives.map_or(Ok(()), |receives| write!(f, ",r={receives}"))
    }
}

fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::DEFAULT;
    use crate::process::Ended;

    #[test]
    fn a_good_end_and_bad_ones() {
        let judge = |code, output: &str| {
            DEFAULT
                .judge(
                    "client",
                    &Ended {
                        code,
                        output: output.into(),
                    },
                )
                .is_ok()
        };
        let good = "8192000 bytes in 0.01 seconds = 1.0 Mbit/sec\n1000 iters in 0.01 seconds\n";
        assert!(judge(0, good));
        assert!(!judge(1, good));
        assert!(!judge(0, &format!("{good}invalid data in page 3\n")));
        assert!(!judge(
            0,
            "8192 bytes in 0.01 seconds\n1000 iters in 0.01 seconds\n"
        ));
    }
}
