//! `cargo xtask packages`: which Debian packages the commands of xtask use, and which are missing.
//!
//! Our device needs none of them; they bring the programs that are run over it, the headers it is
//! compared with, and the machine in which the real kernel runs.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::sandbox::is_root;

/// What to do about missing packages.
#[derive(clap::Args)]
pub struct Arguments {
    /// Install what is missing (as root)
    #[arg(long)]
    install: bool,
}

/// What a package is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `dist`: linking the libraries.
    Build,
    /// `demo`: the programs that it shows.
    Demo,
    /// `programs`, `abi`: programs and headers to be compatible with.
    Programs,
    /// `programs`: what some cases capture with, the tutorial's among them.
    Captures,
    /// `conformance`: what runs rdma-core's tests; the tests themselves are not installed.
    Conformance,
    /// `interop`: the guest.
    Guest,
}

const PACKAGES: [(&str, Purpose); 19] = [
    ("gcc", Purpose::Build),
    ("libc6-dev", Purpose::Build),
    ("ibverbs-utils", Purpose::Demo),
    ("iproute2", Purpose::Programs),
    ("util-linux", Purpose::Programs),
    ("libibverbs-dev", Purpose::Programs),
    ("librdmacm-dev", Purpose::Programs),
    ("rdmacm-utils", Purpose::Demo),
    ("perftest", Purpose::Programs),
    ("binutils", Purpose::Programs),
    ("tshark", Purpose::Captures),
    ("python3", Purpose::Conformance),
    ("libpython3.11", Purpose::Conformance),
    ("qemu-system-x86", Purpose::Guest),
    ("cpio", Purpose::Guest),
    ("kmod", Purpose::Guest),
    ("make", Purpose::Guest),
    ("xz-utils", Purpose::Guest),
    ("debian-archive-keyring", Purpose::Guest),
];

/// `cargo xtask packages`
pub fn run(arguments: &Arguments) -> Result<()> {
    let all = [
        Purpose::Build,
        Purpose::Demo,
        Purpose::Programs,
        Purpose::Captures,
        Purpose::Conformance,
        Purpose::Guest,
    ];
    if arguments.install {
        return ensure_installed(&all);
    }
    let missing = missing(&all);
    for (package, purpose) in PACKAGES {
        let state = if missing.contains(&package) {
            "missing"
        } else {
            "here"
        };
        println!(
            "{state:<8} {package} ({})",
            format!("{purpose:?}").to_lowercase()
        );
    }
    Ok(())
}

/// Those of these purposes that are not installed.
pub fn missing(purposes: &[Purpose]) -> Vec<&'static str> {
    let wanted = PACKAGES
        .iter()
        .filter(|(_, purpose)| purposes.contains(purpose));
    wanted
        .map(|(package, _)| *package)
        .filter(|package| !is_installed(package))
        .collect()
}

/// Why something that needs these packages cannot be done, if it cannot.
pub fn lacking(purposes: &[Purpose]) -> Option<String> {
    let missing = missing(purposes);
    (!missing.is_empty()).then(|| format!("missing packages: {}", missing.join(" ")))
}

/// Installs what is missing if we are root; else says what it is and goes on.
pub fn ensure_installed(purposes: &[Purpose]) -> Result<()> {
    let missing = missing(purposes);
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() || !on_path("apt-get") {
        println!("missing packages: apt-get install {}", missing.join(" "));
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    apt_get(&["update"])?;
    let install = ["install", "--yes", "--no-install-recommends"];
    apt_get(&[&install[..], &missing[..]].concat())
}

/// Whether a program of this name can be started.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_installed(package: &str) -> bool {
    let query = ["--show", "--showformat", "${db:Status-Status}", package];
    let output = Command::new("dpkg-query").args(query).output();
    output.is_ok_and(|output| output.stdout == b"installed")
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-qq", "-o", "Acquire::Retries=3"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("apt-get")?;
    ensure!(
        status.success(),
        "apt-get {}: {status}",
        arguments.join(" ")
    );
    Ok(())
}
