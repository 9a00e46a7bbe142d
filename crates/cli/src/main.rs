//! The `softrdma` command.
//!
//! | subcommand | file |
//! |---|---|
//! | `link`, `dev`, `resource`, `statistic`: syntax and output of iproute2's `rdma` | `rdma/` |
//! | `run`: a program with our libraries | `run/` |
//! | `devices`, `devinfo`: output of `ibv_devices` and `ibv_devinfo` | `devinfo.rs` |
//! | `ping`: what rping does | `ping/` |
//! | `broker`: the daemon | `daemon.rs` |
#![forbid(unsafe_code)]

mod connect;
mod daemon;
mod devinfo;
mod logging;
mod ping;
mod rdma;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA on any Linux machine, in user space.
#[derive(Debug, Parser)]
#[command(name = "softrdma", version)]
struct Arguments {
    #[command(flatten)]
    output: rdma::OutputOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program with the libraries of softrdma
    Run(run::Arguments),
    /// Make, delete and show links: RDMA devices on network interfaces (see `link help`)
    #[command(disable_help_flag = true)]
    Link(rdma::Words),
    /// Show devices (see `dev help`)
    #[command(disable_help_flag = true)]
    Dev(rdma::Words),
    /// Show what programs have: queue pairs, memory regions and so on (see `resource help`)
    #[command(disable_help_flag = true)]
    Resource(rdma::Words),
    /// Show what was counted (see `statistic help`)
    #[command(disable_help_flag = true)]
    Statistic(rdma::Words),
    /// List the devices, as ibv_devices does
    Devices,
    /// Show attributes of devices, as ibv_devinfo does
    Devinfo(devinfo::Arguments),
    /// Connect to another host and send texts to and fro, as rping does
    Ping(ping::Arguments),
    /// The daemon that programs share; it starts by itself
    Broker(daemon::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Link(words) => rdma::run(rdma::Object::Link, arguments.output, words),
        Command::Dev(words) => rdma::run(rdma::Object::Dev, arguments.output, words),
        Command::Resource(words) => rdma::run(rdma::Object::Resource, arguments.output, words),
        Command::Statistic(words) => rdma::run(rdma::Object::Statistic, arguments.output, words),
        Command::Devices => devinfo::list_devices(),
        Command::Devinfo(arguments) => devinfo::run(&arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Broker(arguments) => daemon::run(&arguments),
    }
}

/// Writes to standard output; a reader that has gone (`softrdma … | head`) is no error.
fn print(text: &str) {
    use std::io::Write;
    let mut output = std::io::stdout().lock();
    if let Err(error) = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        tracing::debug!(%error, "standard output is gone");
    }
}
