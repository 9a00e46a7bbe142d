//! `cargo xtask check` and `cargo xtask test`: steps one after the other, timed and counted.
//!
//! A failed step does not stop those after it: one run tells all that is wrong. The last line is
//! `N passed, N failed`, where tests and cases count one each, and other steps one.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{self, Purpose};
use crate::sandbox::Sandbox;
use crate::tally::Tally;
use crate::{conformance, interop, licences, programs, soak, tidy, workspace};

/// Seeds of the simulator that `check` and `test` run.
const SEEDS_QUICK: u32 = 300;
const SEEDS: u32 = 5000;
/// Executions of the mutator.
const FUZZ_EXECUTIONS: u32 = 2_000_000;

type Step = (&'static str, fn() -> Result<Tally>);

const CHECK: [Step; 9] = [
    ("format", || cargo("fmt --all --check")),
    ("lints", || {
        cargo("clippy --quiet --workspace --all-targets -- -D warnings")
    }),
    ("fuzz targets", fuzz_targets),
    ("unit tests", unit_tests),
    ("documentation", documentation),
    ("licences", || licences::check().map(|()| Tally::one())),
    ("oldest Rust", oldest_rust),
    ("house rules", || tidy::run().map(|()| Tally::one())),
    ("layouts and symbols", layouts),
];

const QUICK_SEEDS: Step = ("some seeds", || simulate(SEEDS_QUICK));

const REST: [Step; 7] = [
    ("programs", unmodified_programs),
    ("conformance", foreign_tests),
    ("soak", short_soak),
    ("figures", quick_bench),
    ("mutated packets", || {
        fuzz(&["--executions", &FUZZ_EXECUTIONS.to_string()])
    }),
    ("simulation", || simulate(SEEDS)),
    ("the real kernel", real_kernel),
];

/// Which steps.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only steps with this in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// `cargo xtask check`: what to run before each commit.
pub fn check(arguments: &Arguments) -> Result<()> {
    run(CHECK.iter().chain([&QUICK_SEEDS]), &arguments.only)
}

/// `cargo xtask test`: all of CI.
pub fn test(arguments: &Arguments) -> Result<()> {
    let all = [
        Purpose::Build,
        Purpose::Demo,
        Purpose::Programs,
        Purpose::Captures,
        Purpose::Conformance,
        Purpose::Guest,
    ];
    if let Err(error) = packages::ensure_installed(&all) {
        println!("going on without: {error:#}");
    }
    run(CHECK.iter().chain(&REST), &arguments.only)
}

/// `cargo xtask sim`: the simulator with these arguments.
pub fn sim(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run_simulator(&arguments)
}

/// `cargo xtask fuzz`: the seeded mutator over every parser, with these arguments.
pub fn run_fuzz(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fuzz(&arguments).map(|_| ())
}

fn run<'a>(steps: impl Iterator<Item = &'a Step>, only: &str) -> Result<()> {
    let mut total = Tally::default();
    let mut summary = Vec::new();
    for (name, step) in steps.filter(|(name, _)| name.contains(only)) {
        println!("== {name}");
        let start = Instant::now();
        let outcome = step();
        let time = spell(start.elapsed());
        let line = match outcome {
            Ok(tally) => {
                total.add(&tally);
                if tally.failed > 0 {
                    format!("FAILED: {tally}")
                } else {
                    format!("ok: {tally}")
                }
            }
            Err(error) => {
                println!("{error:#}");
                total.failed += 1;
                total.remember(name, &format!("{error:#}"));
                "FAILED".into()
            }
        };
        println!("== {name}: {line}, {time}\n");
        summary.push(format!("{time:>8}  {name}: {line}"));
    }
    println!("{}\n", summary.join("\n"));
    for failure in &total.failures {
        println!("FAILED {failure}\n");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    ensure!(total.failed == 0, "something failed; see above");
    Ok(())
}

fn spell(time: Duration) -> String {
    format!("{}:{:02} min", time.as_secs() / 60, time.as_secs() % 60)
}

/// A cargo command that says by its exit code whether all is well.
fn cargo(arguments: &str) -> Result<Tally> {
    succeed(&mut in_workspace(arguments.split(' '))).map(|()| Tally::one())
}

/// The targets of cargo-fuzz, which are a workspace of their own: formatted, and without a warning
/// of the compiler. Nothing is linked, so libFuzzer need not be there nor be built.
fn fuzz_targets() -> Result<Tally> {
    let folder = workspace::root().join("fuzz");
    let inside = |arguments: &str| {
        let mut command = in_workspace(arguments.split(' '));
        command.current_dir(&folder);
        command
    };
    succeed(&mut inside("fmt --check"))?;
    let mut lints = inside("clippy --quiet --locked -- -D warnings");
    lints.env("CARGO_TARGET_DIR", workspace::target()?.join("fuzz"));
    lints.env("CUSTOM_LIBFUZZER_PATH", "/none/libfuzzer.a");
    succeed(&mut lints).map(|()| Tally::one())
}

/// All tests, counted by what cargo prints of each test program.
fn unit_tests() -> Result<Tally> {
    let mut command = in_workspace(["test", "--workspace", "--no-fail-fast"]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo test")?;
    let output = child.stdout.take().context("output of cargo test")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        // hundreds of tests that are well would hide those that are not
        if !line.ends_with("... ok") && !line.is_empty() {
            println!("{line}");
        }
        if let Some((passed, failed, ignored)) = counts(&line) {
            tally.passed += passed;
            tally.failed += failed;
            tally.skipped += ignored;
        }
    }
    let status = child.wait()?;
    ensure!(status.success() || tally.failed > 0, "cargo test: {status}");
    Ok(tally)
}

/// Reads `test result: ok. 14 passed; 0 failed; 0 ignored; …`.
fn counts(line: &str) -> Option<(usize, usize, usize)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut parts = rest
        .split("; ")
        .map(|part| part.split(' ').next()?.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

fn documentation() -> Result<Tally> {
    let mut command = in_workspace(["doc", "--quiet", "--workspace", "--no-deps"]);
    succeed(command.env("RUSTDOCFLAGS", "-D warnings")).map(|()| Tally::one())
}

/// Every crate promises the same oldest Rust, and no dependency wants a newer one.
fn oldest_rust() -> Result<Tally> {
    let packages = workspace::metadata()?["packages"]
        .as_array()
        .context("packages")?;
    let promise = |package: &serde_json::Value| package["rust_version"].as_str().map(parse_version);
    let ours: Vec<_> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .collect();
    let promised = ours
        .first()
        .and_then(|package| promise(package))
        .context("no rust-version")?;
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        match promise(package) {
            Some(version) if package["source"].is_null() => {
                ensure!(
                    version == promised,
                    "{name} promises {version:?}, others {promised:?}"
                );
            }
            Some(version) => {
                ensure!(
                    version <= promised,
                    "{name} needs {version:?}, we say {promised:?}"
                );
            }
            None => ensure!(!package["source"].is_null(), "{name} names no oldest Rust"),
        }
    }
    println!(
        "{}.{} for {} crates and all that they use",
        promised[0],
        promised[1],
        ours.len()
    );
    Ok(Tally::one())
}

fn parse_version(text: &str) -> [u32; 3] {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

fn layouts() -> Result<Tally> {
    let itself = std::env::current_exe()?;
    succeed(Command::new(itself).arg("abi")).map(|()| Tally::one())
}

fn unmodified_programs() -> Result<Tally> {
    let packages = || packages::lacking(&[Purpose::Demo, Purpose::Programs]);
    if let Some(reason) = Sandbox::missing().or_else(packages) {
        return Ok(Tally::skip(&reason));
    }
    programs::run_all(&programs::Arguments::default())
}

fn foreign_tests() -> Result<Tally> {
    if let Some(reason) = conformance::missing() {
        return Ok(Tally::skip(&reason));
    }
    conformance::run_all(&conformance::Arguments::default())
}

fn short_soak() -> Result<Tally> {
    let packages = || packages::lacking(&[Purpose::Programs]);
    if let Some(reason) = Sandbox::missing().or_else(packages) {
        return Ok(Tally::skip(&reason));
    }
    soak::run_short()
}

/// Whether everything can be measured, with optimised libraries, which no other step runs.
fn quick_bench() -> Result<Tally> {
    let packages = || packages::lacking(&[Purpose::Build, Purpose::Programs]);
    if let Some(reason) = Sandbox::missing().or_else(packages) {
        return Ok(Tally::skip(&reason));
    }
    let itself = std::env::current_exe()?;
    succeed(Command::new(itself).args(["bench", "--quick"])).map(|()| Tally::one())
}

fn real_kernel() -> Result<Tally> {
    if let Some(reason) = interop::missing() {
        return Ok(Tally::skip(&reason));
    }
    interop::run_all(&interop::Arguments::default())
}

fn fuzz(arguments: &[&str]) -> Result<Tally> {
    let fixed = "run --quiet --release --package softrdma-wire --example fuzz_parsers --";
    succeed(in_workspace(fixed.split(' ')).args(arguments)).map(|()| Tally::one())
}

fn simulate(seeds: u32) -> Result<Tally> {
    let seeds = seeds.to_string();
    run_simulator(&["--seeds", &seeds])?;
    run_simulator(&["--device", "--seeds", &seeds])?;
    run_simulator(&["--datagrams", "--seeds", &seeds])?;
    run_simulator(&["--cm", "--seeds", &seeds])?;
    run_simulator(&["--streams", "--seeds", &seeds])?;
    Ok(Tally::one())
}

fn run_simulator(arguments: &[&str]) -> Result<()> {
    let fixed = "run --quiet --profile sim --package softrdma-sim --bin softrdma-sim --";
    succeed(in_workspace(fixed.split(' ')).args(arguments))
}

fn in_workspace<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.args(arguments).current_dir(workspace::root());
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{:?}", command.get_program()))?;
    if !status.success() {
        bail!("{:?}: {status}", command.get_program());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{counts, parse_version};

    #[test]
    fn cargo_counts_tests() {
        let line = "test result: ok. 14 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(counts(line), Some((14, 0, 1)));
        let line = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured";
        assert_eq!(counts(line), Some((3, 2, 0)));
        assert_eq!(counts("running 14 tests"), None);
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(parse_version("1.9") < parse_version("1.95"));
        assert_eq!(parse_version("1.95"), parse_version("1.95.0"));
    }
}
