//! Builds, checks, demos and measurements of softrdma: `cargo xtask COMMAND`.
//!
//! One module per command. `cargo xtask demo` and `cargo xtask test` are the two a visitor needs;
//! the others are the parts they are made of.
#![forbid(unsafe_code)]

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
    /// House rules: direction of dependencies, unsafe code, sizes, panics, words
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
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
