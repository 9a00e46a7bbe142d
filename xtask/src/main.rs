//! Builds, checks, demos and measurements of softrdma: `cargo xtask COMMAND`.
//!
//! One module per command. `cargo xtask demo` and `cargo xtask test` are the two a visitor needs;
//! the others are the parts they are made of.
#![forbid(unsafe_code)]

mod dist;
mod guest;
mod interop;
mod process;
mod programs;
mod sandbox;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, checks, demos and measurements of softrdma.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Assembles target/dist: the command and the libraries that programs load
    Dist(dist::Arguments),
    /// Unmodified programs of Debian over our device
    Programs(programs::Arguments),
    /// Our device against the kernel's rxe in a guest
    Interop(interop::Arguments),
    /// House rules: direction of dependencies, unsafe code, sizes, panics, words
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Programs(arguments) => programs::run(&arguments),
        Command::Interop(arguments) => interop::run(&arguments),
        Command::Tidy => tidy::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
