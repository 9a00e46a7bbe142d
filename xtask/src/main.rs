//! Builds, checks, demos and measurements of softrdma: `cargo xtask COMMAND`.
//!
//! One module per command. `cargo xtask demo` and `cargo xtask test` are the two a visitor needs;
//! the others are the parts they are made of.
#![forbid(unsafe_code)]

mod abi;
mod bench;
mod conformance;
mod demo;
mod dist;
mod guest;
mod interop;
mod licences;
mod packages;
mod process;
mod programs;
mod sandbox;
mod soak;
mod steps;
mod tally;
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
    /// An unmodified program over our device, its output shown
    Demo,
    /// All of CI: check, programs, mutated packets, simulation, the real kernel
    Test(steps::Arguments),
    /// What to run before each commit: format, lints, tests, documentation, licences, house rules
    Check(steps::Arguments),
    /// Layouts and symbols against the installed headers, libraries and programs
    Abi(abi::Arguments),
    /// Assembles target/dist: the command and the libraries that programs load
    Dist(dist::Arguments),
    /// Unmodified programs of Debian over our device
    Programs(programs::Arguments),
    /// Our device against the kernel's rxe in a guest
    Interop(interop::Arguments),
    /// rdma-core's own tests over our device
    Conformance(conformance::Arguments),
    /// What must hold for a long time: random verbs, hostile packets, kills, memory
    Soak(soak::Arguments),
    /// What this machine can do, in figures that are kept
    Bench(bench::Arguments),
    /// The simulator: `sim --seeds N`, `sim --seed SEED --trace`
    Sim {
        /// Passed on
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// A seeded mutator over every parser: `fuzz --executions N --seed S`
    Fuzz {
        /// Passed on
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Which Debian packages these commands use, and which are missing
    Packages(packages::Arguments),
    /// House rules: direction of dependencies, unsafe code, sizes, panics, words
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo => demo::run(),
        Command::Test(arguments) => steps::test(&arguments),
        Command::Check(arguments) => steps::check(&arguments),
        Command::Abi(arguments) => abi::run(&arguments),
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Programs(arguments) => programs::run(&arguments),
        Command::Interop(arguments) => interop::run(&arguments),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Sim { arguments } => steps::sim(&arguments),
        Command::Fuzz { arguments } => steps::run_fuzz(&arguments),
        Command::Packages(arguments) => packages::run(&arguments),
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
