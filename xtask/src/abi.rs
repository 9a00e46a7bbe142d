//! `cargo xtask abi`: the binary interface, held against what is installed on this machine.
//!
//! * layouts and constants of `softrdma_capi::abi` against the `-dev` headers ([`layout`]);
//! * exported names and versions of our libraries against their maps, against the distribution's
//!   own libraries, and against what installed programs import ([`symbols`]).
//!
//! What is not installed is named and left out; a difference is an error.

mod layout;
mod symbols;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{dist, workspace};

/// What to compare.
#[derive(clap::Args)]
pub struct Arguments {
    /// A folder that `cargo xtask dist` has filled; built afresh if not given
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
}

/// What a comparison found.
#[derive(Default)]
pub struct Findings {
    /// What was compared, one line each.
    checked: Vec<String>,
    /// What could not be, and which package would bring it.
    skipped: Vec<String>,
    /// What differs.
    wrong: Vec<String>,
}

/// `cargo xtask abi`
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut findings = Findings::default();
    layout::compare(&mut findings)?;
    let libraries = match &arguments.dist {
        Some(folder) => folder.join("lib"),
        None => dist::build(false, &workspace::root().join("target/dist"))?.libraries(),
    };
    symbols::compare(&libraries, &mut findings)?;

    for line in &findings.checked {
        println!("same     {line}");
    }
    for line in &findings.skipped {
        println!("skipped  {line}");
    }
    for line in &findings.wrong {
        println!("DIFFERS  {line}");
    }
    ensure!(
        findings.wrong.is_empty(),
        "{} differences",
        findings.wrong.len()
    );
    Ok(())
}

/// Standard output of a tool that must succeed.
fn output_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} failed ({}):\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("output of {name}"))
}
