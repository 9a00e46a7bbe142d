//! `cargo xtask demo`: programs of Debian, neither changed nor rebuilt, over our devices on `lo`.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{self, Purpose};
use crate::process::{Ended, Local, Running};
use crate::{dist, workspace};

/// Names the devices that a program sees: the first that has an address is the one it gets.
const VARIABLE: &str = "SOFTRDMA_DEVICES";

/// A device on `lo`, and the type of its link.
const ROCE: (&str, &str) = ("rxe_lo", "rxe");
const IWARP: (&str, &str) = ("siw_lo", "siw");

/// `cargo xtask demo`
pub fn run() -> Result<()> {
    packages::ensure_installed(&[Purpose::Build, Purpose::Demo])?;
    println!("building target/dist");
    let dist = dist::build(true, &workspace::root().join("target/dist"))?;
    let softrdma = dist.command();
    with_link(&softrdma, ROCE, || ping_pong(&softrdma))?;
    with_link(&softrdma, IWARP, || ping(&softrdma))
}

/// Shows something over a device, which is made for it if it is not there.
fn with_link(
    softrdma: &Path,
    (device, kind): (&str, &str),
    shown: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let links = output(softrdma, &["link", "show"])?;
    let is_ours = !links.contains(&format!("link {device}/"));
    if is_ours {
        show(
            softrdma,
            &["link", "add", device, "type", kind, "netdev", "lo"],
        )?;
    }
    let outcome = show(softrdma, &["devinfo", "-d", device]).and_then(|()| shown());
    if is_ours {
        show(softrdma, &["link", "delete", device])?;
    }
    outcome
}

/// RoCE: a ping-pong that finds its peer over a TCP connection of its own.
fn ping_pong(softrdma: &Path) -> Result<()> {
    let (device, _) = ROCE;
    needs("ibv_rc_pingpong", "ibverbs-utils")?;
    let port = free_port()?;
    let number = port.to_string();
    let program = [
        "run",
        "--",
        "ibv_rc_pingpong",
        "-d",
        device,
        "-g",
        "1",
        "-c",
        "-p",
        &number,
    ];
    let server = exchange(
        softrdma,
        port,
        device,
        &program,
        &[&program[..], &["127.0.0.1"]].concat(),
    )?;
    let line = server.lines().find(|line| line.contains("bytes in"));
    println!(
        "Over {device}, without RDMA hardware or kernel modules: {}\n",
        line.unwrap_or_default()
    );
    Ok(())
}

/// iWARP: what finds its peer by librdmacm, whose ports are those of TCP here.
fn ping(softrdma: &Path) -> Result<()> {
    let (device, _) = IWARP;
    needs("rping", "rdmacm-utils")?;
    let port = free_port()?;
    let number = port.to_string();
    let program = |end| {
        [
            "run",
            "--",
            "rping",
            end,
            "-a",
            "127.0.0.1",
            "-p",
            number.as_str(),
            "-V",
            "-v",
            "-C",
            "3",
        ]
    };
    exchange(softrdma, port, device, &program("-s"), &program("-c"))?;
    println!("Over {device}, by TCP: 3 messages, compared at both ends");
    Ok(())
}

fn needs(program: &str, package: &str) -> Result<()> {
    if packages::on_path(program) {
        return Ok(());
    }
    bail!("{program} is not here: install {package} to see it run")
}

/// Two demos at once do not meet.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs a server, which listens at a TCP port, and its client, neither of which sees any other
/// device; gives what the server printed.
fn exchange(
    softrdma: &Path,
    port: u16,
    device: &str,
    server: &[&str],
    client: &[&str],
) -> Result<String> {
    let mut server = start(softrdma, device, server)?;
    server.wait_for_listener(port).context("the server")?;
    let mut client = start(softrdma, device, client)?;
    let client = client.wait().context("the client")?;
    let server = if client.code == 0 {
        server.wait().context("the server")?
    } else {
        Ended {
            code: 1,
            output: server.output(),
        } // it waits for a client that is gone
    };
    println!("\nserver:\n{}\nclient:\n{}", server.output, client.output);
    ensure!(client.code == 0 && server.code == 0, "the exchange failed");
    Ok(server.output)
}

fn start(softrdma: &Path, device: &str, arguments: &[&str]) -> Result<Local> {
    println!("$ {VARIABLE}={device} softrdma {}", arguments.join(" "));
    let program = softrdma.display().to_string();
    let argv = [&[program.as_str()], arguments].concat();
    Local::start(&std::env::temp_dir(), &argv, &[(VARIABLE, device)])
}

fn show(softrdma: &Path, arguments: &[&str]) -> Result<()> {
    println!("$ softrdma {}", arguments.join(" "));
    print!("{}", output(softrdma, arguments)?);
    Ok(())
}

fn output(softrdma: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(softrdma)
        .args(arguments)
        .output()
        .context("softrdma")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "softrdma {}: {errors}",
        arguments.join(" ")
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
