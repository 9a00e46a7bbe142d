//! `cargo xtask demo`: a program of Debian, neither changed nor rebuilt, over our device on `lo`.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{self, Purpose};
use crate::process::{Ended, Local, Running};
use crate::{dist, workspace};

const DEVICE: &str = "rxe_lo";

/// `cargo xtask demo`
pub fn run() -> Result<()> {
    packages::ensure_installed(&[Purpose::Build, Purpose::Demo])?;
    println!("building target/dist");
    let dist = dist::build(true, &workspace::root().join("target/dist"))?;
    let softrdma = dist.command();

    let links = output(&softrdma, &["link", "show"])?;
    let is_ours = !links.contains(&format!("link {DEVICE}/"));
    if is_ours {
        show(
            &softrdma,
            &["link", "add", DEVICE, "type", "rxe", "netdev", "lo"],
        )?;
    }
    let outcome = exchange(&softrdma);
    if is_ours {
        show(&softrdma, &["link", "delete", DEVICE])?;
    }
    outcome
}

fn exchange(softrdma: &Path) -> Result<()> {
    show(softrdma, &["devinfo", "-d", DEVICE])?;
    if !packages::on_path("ibv_rc_pingpong") {
        bail!("ibv_rc_pingpong is not here: install ibverbs-utils to see it run");
    }
    // two demos at once do not meet
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let number = port.to_string();
    let program = [
        "run",
        "--",
        "ibv_rc_pingpong",
        "-d",
        DEVICE,
        "-g",
        "1",
        "-c",
        "-p",
        &number,
    ];
    let mut server = start(softrdma, &program)?;
    server.wait_for_listener(port).context("the server")?;
    let mut client = start(softrdma, &[&program[..], &["127.0.0.1"]].concat())?;
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
    let line = server.output.lines().find(|line| line.contains("bytes in"));
    println!(
        "Over {DEVICE}, without RDMA hardware or kernel modules: {}",
        line.unwrap_or_default()
    );
    Ok(())
}

fn start(softrdma: &Path, arguments: &[&str]) -> Result<Local> {
    println!("$ softrdma {}", arguments.join(" "));
    let program = softrdma.display().to_string();
    let argv = [&[program.as_str()], arguments].concat();
    Local::start(&std::env::temp_dir(), &argv, &[])
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
