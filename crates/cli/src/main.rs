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
// these panic when nobody can be written to
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod connect;
mod daemon;
mod devinfo;
mod logging;
mod ping;
mod rdma;
mod run;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
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

/// Writes to standard output; the exit code of a command that has nothing else to do. A reader that
/// has gone (`softrdma … | head`) is no error.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Says on standard error, in a line of its own, what is wrong.
fn complain(text: impl Display) {
    print_error(&format!("softrdma: {text}\n"));
}

/// Writes to standard error. Where that cannot be done the exit code says enough.
fn print_error(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_be_repeated() {
        for option in ["-d", "-j", "-p", "--details"] {
            let parsed = Arguments::try_parse_from(["softrdma", option, option, "link"]);
            assert!(parsed.is_ok(), "{option}");
        }
    }
}
