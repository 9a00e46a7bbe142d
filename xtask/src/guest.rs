//! A virtual machine with Debian's kernel and its rxe, in which jobs can be run.
//!
//! `interop/guest/` builds and boots it; here is how a test talks to it. All traffic of jobs goes
//! through files of a shared folder, so nothing in the guest needs a network for control.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{Ended, Local, Running};
use crate::workspace;

/// The folder that `interop/guest/build.sh` fills; survives `cargo clean`.
pub fn folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/var/tmp".into()))
                .join(".cache")
        });
    cache.join("softrdma/guest")
}

/// Builds the guest, unless it is there.
pub fn build() -> Result<()> {
    let script = workspace::root().join("interop/guest/build.sh");
    let status = Command::new(&script)
        .arg(folder())
        .status()
        .context("guest/build.sh")?;
    ensure!(status.success(), "guest/build.sh: {status}");
    Ok(())
}

/// The guest's network card.
pub struct Network<'a> {
    /// A tap device of the network namespace we are in.
    pub tap: &'a str,
    /// Its MTU on both sides.
    pub mtu: u32,
    /// Addresses with prefix lengths.
    pub addresses: &'a [&'a str],
}

/// How often a guest is started before its not booting is an error.
const BOOTS_MAX: u32 = 4;

/// A booted guest. Dropped, it is switched off without ceremony.
pub struct Guest {
    machine: Local,
    share: PathBuf,
    jobs: u32,
}

impl Guest {
    /// Boots it and waits until it takes jobs. `share` is its `/host`; without a network it has
    /// only `lo`. A kernel that dies on its
    /// way up is started again: the emulator is not always exact when one processor changes code
    /// that another one runs, as the kernel does while it boots.
    pub fn boot(folder: &Path, share: &Path, network: Option<&Network<'_>>) -> Result<Self> {
        for _ in 1..BOOTS_MAX {
            match Self::boot_once(folder, share, network) {
                Err(error) => println!("the guest did not boot, once more: {error:#}"),
                booted => return booted,
            }
        }
        Self::boot_once(folder, share, network)
    }

    fn boot_once(folder: &Path, share: &Path, network: Option<&Network<'_>>) -> Result<Self> {
        let script = workspace::root()
            .join("interop/guest/run.sh")
            .display()
            .to_string();
        let mut argv = vec![
            script,
            folder.display().to_string(),
            share.display().to_string(),
        ];
        if let Some(network) = network {
            argv.extend([network.tap.to_string(), network.mtu.to_string()]);
            argv.extend(network.addresses.iter().map(ToString::to_string));
        }
        let mut machine = Local::start(share, &argv, &[])?;
        machine
            .wait_for_text("guest: ready")
            .context("booting the guest")?;
        Ok(Self {
            machine,
            share: share.to_owned(),
            jobs: 0,
        })
    }

    /// Starts a bash script in it.
    pub fn start(&mut self, script: &str) -> Result<Job<'_>> {
        self.jobs += 1;
        let name = self.jobs.to_string();
        let part = self.share.join(format!("{name}.part"));
        let head = format!("exec 2> /host/{name}.err\necho $$ > /host/{name}.process");
        fs::write(&part, format!("{head}\n{script}"))?;
        fs::rename(&part, self.share.join(format!("{name}.job")))?;
        Ok(Job { guest: self, name })
    }

    /// What its console said, for the report of a failure.
    pub fn console(&self) -> String {
        self.machine.output()
    }
}

/// A script that runs in a guest.
pub struct Job<'a> {
    guest: &'a mut Guest,
    name: String,
}

impl Job<'_> {
    /// Ends it.
    pub fn kill(&mut self) -> Result<()> {
        let script = format!("kill $(cat /host/{}.process)", self.name);
        self.guest.start(&script)?.wait()?;
        self.wait().map(drop)
    }

    /// Ends a program of this name that it has started, as `kill -9` does; then it ends itself.
    pub fn kill_program(&mut self, name: &str) -> Result<()> {
        let script = format!("kill -9 $(busybox pidof {name})");
        self.guest.start(&script)?.wait()?;
        self.wait().map(drop)
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.guest.share.join(format!("{}.{ending}", self.name))
    }
}

impl Running for Job<'_> {
    fn streams(&self) -> [String; 2] {
        ["out", "err"].map(|ending| {
            let bytes = fs::read(self.file(ending)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }

    fn ended(&mut self) -> Result<Option<Ended>> {
        let Ok(code) = fs::read_to_string(self.file("code")) else {
            if let Some(machine) = self.guest.machine.ended()? {
                anyhow::bail!("the guest went down:\n{}", machine.output);
            }
            return Ok(None);
        };
        let code = code.trim().parse().context("exit code of a job")?;
        Ok(Some(Ended {
            code,
            output: self.output(),
        }))
    }

    fn listens(&mut self, port: u16) -> Result<bool> {
        let table = format!("grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6");
        Ok(self.guest.start(&table)?.wait()?.code == 0)
    }
}
