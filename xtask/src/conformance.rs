//! `cargo xtask conformance`: rdma-core's own tests, unmodified, over our devices.
//!
//! Debian ships these Python programs with the bindings that they use, in `python3-pyverbs`. The
//! package is unpacked into a folder, not installed. Each module of tests runs under `softrdma run
//! --sysfs` in a process of its own, inside of a [`Sandbox`] whose interface has an address.
//!
//! A test may skip itself because the device lacks something. Each such reason has to be in
//! [`LACKS`], with why it is so: what is missing by mistake is a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::packages::{self, Purpose};
use crate::process::Running;
use crate::programs::{Host, ip, matches};
use crate::sandbox::{Sandbox, Who, is_root};
use crate::tally::{Tally, Verdict};
use crate::{dist, guest, workspace};

/// Which tests, and with what.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only modules whose name contains this; `^` and `$` hold it to start and end
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print what the tests print, also when all is well
    #[arg(long)]
    verbose: bool,
    /// A folder that `cargo xtask dist` has filled, instead of building one
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Run them here, with the package in this folder: used inside of a sandbox
    #[arg(long, value_name = "DIR", hide = true)]
    inside: Option<PathBuf>,
}

/// The package, which is downloaded.
const PACKAGE: &str = "python3-pyverbs";

/// Where it has the bindings and the tests.
const BINDINGS: &str = "usr/lib/python3/dist-packages";
const TESTS: &str = "usr/share/doc/rdma-core/tests";

/// Debian's own Python, for which the bindings are built.
const PYTHON: &str = "/usr/bin/python3";

/// The modules: those that are about every device. What is not here is about cards of one vendor,
/// or about graphics processors.
const MODULES: [&str; 19] = [
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_flow",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
    "test_rss_traffic",
    "test_shared_pd",
    "test_tag_matching",
];

/// The module that runs once more over iWARP, which connects by rdma_cm alone, and its tests.
const IWARP_MODULE: &str = "test_rdmacm";
const IWARP_TESTS: [&str; 7] = [
    "CMTestCase.test_rdmacm_sync_traffic",
    "CMTestCase.test_rdmacm_async_reject_traffic",
    "CMTestCase.test_rdmacm_async_multicast_traffic",
    "CMTestCase.test_rdmacm_async_ex_multicast_traffic",
    "CMTestCase.test_rdmacm_async_ex_leave_multicast_traffic",
    "CMTestCase.test_rdmacm_async_read",
    "CMTestCase.test_rdmacm_async_write",
];

/// Those of its tests that do not skip themselves where a device lacks what they need, and what
/// that is.
const IWARP_OMITTED: [(&str, &str); 3] = [
    (
        "CMTestCase.test_rdmacm_async_udp_traffic",
        "iWARP has no datagrams",
    ),
    (
        "CMTestCase.test_rdmacm_async_traffic",
        "it wants a time-out of acknowledgements, which are TCP's here",
    ),
    (
        "CMTestCase.test_rdmacm_async_traffic_external_qp",
        "it waits for CONNECT_RESPONSE, which iWARP does not have",
    ),
];

/// Without these the tests look for a GID that is an address, which iWARP does not have either.
const IWARP_OPTIONS: [&str; 4] = ["--port", "1", "--gid", "0"];

/// Why tests skip themselves: how their reason begins, and why the device lacks it.
const LACKS: [(&str, &str); 18] = [
    // of this machine
    ("There are no huge pages", MACHINE),
    ("Huge pages of size 2M", MACHINE),
    ("Allocating dmabuf is not supported", MACHINE),
    ("Device /dev/dri/", MACHINE),
    ("Lack of permission to access /dev/dri/", MACHINE),
    // of the device, as of the kernel's software device
    ("Create QP type 8 is not supported", RAW_PACKETS),
    ("Create Raw Packet QP", RAW_PACKETS),
    ("Create XRCD is not supported", "rdma_rxe has no XRC either"),
    ("Device memory is not supported", "a card's own memory"),
    (
        "Extended CQ ",
        "tag matching, and memory of a parent domain: a card's",
    ),
    (
        "ODP is not supported - No ODP caps",
        "nothing is pinned, so all of it is on demand",
    ),
    (
        "Importing a device is not supported",
        "objects belong to one process",
    ),
    (
        "Multicast is not supported on this device",
        "iWARP has no multicast",
    ),
    // not yet
    ("Create UC QP", "unreliable connections are not there yet"),
    ("Create MW is not supported", WINDOWS),
    ("Create memory window of type", WINDOWS),
    (
        "Extended QP is not supported",
        "ATOMIC WRITE and windows are not there yet",
    ),
    ("Rereg MR is not supported", "ibv_rereg_mr is not there yet"),
];

const MACHINE: &str = "this machine has none";
const WINDOWS: &str = "memory windows are not there yet";
const RAW_PACKETS: &str = "raw Ethernet packets: a card's";

const WHOLE_GUARD: Duration = Duration::from_secs(1200);
const MODULE_GUARD: Duration = Duration::from_secs(300);

/// Where the tests run.
const HOST: Host = Host {
    namespace: None,
    device: "rxe_veth0",
    interface: "veth0",
    address: "10.77.0.1",
    who: Who::Root,
};

/// The same with an iWARP device.
const IWARP_HOST: Host = Host {
    device: "siw_veth0",
    ..HOST
};

/// `cargo xtask conformance`
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(folder) = &arguments.inside {
        return inside(arguments, folder);
    }
    let tally = run_all(arguments)?;
    println!("conformance: {tally}");
    ensure!(tally.failed == 0, "{} tests failed", tally.failed);
    Ok(())
}

/// Why this machine cannot do it, if it cannot.
pub fn missing() -> Option<String> {
    packages::lacking(&[Purpose::Conformance, Purpose::Programs]).or_else(Sandbox::missing)
}

/// Fetches what is needed and runs the modules in a sandbox, printing a line for each test.
pub fn run_all(arguments: &Arguments) -> Result<Tally> {
    let package = fetch()?;
    let dist = match &arguments.dist {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?,
        None => dist::build(false, &workspace::root().join("target/dist"))?.folder,
    };
    let sandbox = Sandbox {
        dist,
        programs: Vec::new(),
    };
    let folder = package.display().to_string();
    let mut inner = vec!["conformance", "--inside", &folder];
    inner.extend(["--filter", &arguments.filter]);
    if arguments.verbose {
        inner.push("--verbose");
    }
    let mut running = sandbox.start(Who::Root, &inner)?;
    let ended = running.wait_showing(WHOLE_GUARD)?;
    let mut tally = Tally::parse(&ended.output)
        .with_context(|| format!("it ended with code {}", ended.code))?;
    let failures = ended
        .output
        .lines()
        .filter(|line| line.starts_with("FAIL "));
    failures.for_each(|line| tally.remember("conformance", line));
    Ok(tally)
}

/// The unpacked package, beside the guest: it survives `cargo clean`.
fn fetch() -> Result<PathBuf> {
    let folder = guest::folder().with_file_name("conformance");
    let finished = folder.join("finished");
    if finished.exists() {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    println!("downloading {PACKAGE}");
    let download = || in_folder(&folder, &["apt-get", "-qq", "download", PACKAGE]);
    if download().is_err() && is_root() {
        in_folder(&folder, &["apt-get", "-qq", "update"])?;
    }
    let is_debian = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
    let debian = || -> Result<Option<PathBuf>> {
        let entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        Ok(entries
            .into_iter()
            .map(|entry| entry.path())
            .find(is_debian))
    };
    if debian()?.is_none() {
        download()?;
    }
    let file = debian()?.context("apt-get download left no package")?;
    let file = file.display().to_string();
    in_folder(&folder, &["dpkg-deb", "--extract", &file, "."])?;
    // documentation is compressed, and that is what the tests are to Debian
    in_folder(&folder, &["gunzip", "--recursive", TESTS])?;
    fs::write(finished, "")?;
    Ok(folder)
}

fn in_folder(folder: &Path, argv: &[&str]) -> Result<()> {
    let status = Command::new(argv[0])
        .args(&argv[1..])
        .current_dir(folder)
        .status()
        .with_context(|| argv.join(" "))?;
    ensure!(status.success(), "{}: {status}", argv.join(" "));
    Ok(())
}

/// The part that runs in the sandbox.
fn inside(arguments: &Arguments, package: &Path) -> Result<()> {
    join()?;
    HOST.add_link()?;
    let mut tally = Tally::default();
    for module in MODULES {
        if matches(module, &arguments.filter) {
            let whole = [format!("tests.{module}")];
            tally.add(&run_tests(
                &HOST,
                module,
                &whole,
                package,
                arguments.verbose,
            )?);
        }
    }
    let name = format!("siw/{IWARP_MODULE}");
    if matches(&name, &arguments.filter) {
        // an address belongs to the device that was there first: there is but one
        HOST.softrdma(&["link", "delete", HOST.device])?;
        IWARP_HOST.add_link_of("siw", &[])?;
        let tests = IWARP_TESTS.map(|test| format!("tests.{IWARP_MODULE}.{test}"));
        let words = [&IWARP_OPTIONS.map(String::from)[..], &tests].concat();
        let verbose = arguments.verbose;
        tally.add(&run_tests(&IWARP_HOST, &name, &words, package, verbose)?);
        for (test, why) in IWARP_OMITTED {
            println!("SKIP {name}.{test}: {why}");
            tally.count(Verdict::Skipped);
        }
    }
    println!("{tally}");
    Ok(())
}

/// An interface with a carrier and addresses, over which multicast goes too.
fn join() -> Result<()> {
    for command in [
        "link add veth0 type veth peer name veth1",
        "link set veth1 up",
        "link set veth0 up",
        "address add 10.77.0.1/24 dev veth0",
        "address add fd77::1/64 dev veth0 nodad",
        "route add 224.0.0.0/4 dev veth0",
    ] {
        ip(command)?;
    }
    Ok(())
}

/// Runs tests in one process: `words` are options and their names, `name` is what to call them.
fn run_tests(
    host: &Host,
    name: &str,
    words: &[String],
    package: &Path,
    verbose: bool,
) -> Result<Tally> {
    let program = package.join(TESTS).join("run_tests.py");
    let program = program.display().to_string();
    let bindings = package.join(BINDINGS).display().to_string();
    let command = crate::programs::softrdma().display().to_string();
    // -B: nothing is written beside the tests
    let mut argv = vec![
        command.as_str(),
        "run",
        "--sysfs",
        "--",
        PYTHON,
        "-B",
        &program,
        "-v",
        "--dev",
        host.device,
    ];
    argv.extend(words.iter().map(String::as_str));
    let variables = [("PYTHONPATH", bindings.as_str())];
    let start = Instant::now();
    let mut running = host.start_plain(&argv, &variables)?;
    let ended = running.wait_at_most(MODULE_GUARD)?;
    let mut tally = Tally::default();
    let place = &name[..name.rfind('/').map_or(0, |slash| slash + 1)];
    let mut show = verbose || ![0, 1].contains(&ended.code);
    for (test, outcome) in outcomes(&ended.output) {
        let verdict = judge(&outcome);
        tally.count(verdict);
        show |= matches!(verdict, Verdict::Failed);
        println!("{} {place}{test}{}", word(verdict), outcome.explained());
    }
    // a module that cannot be loaded, or dies, has no tests that failed
    if tally.failed == 0 && (ended.code != 0 || tally.passed + tally.skipped == 0) {
        println!("FAIL {name}: ended with code {}", ended.code);
        tally.count(Verdict::Failed);
        show = true;
    }
    if show {
        println!("{}", ended.output);
    }
    println!("{name}: {tally} ({:.1} s)", start.elapsed().as_secs_f32());
    Ok(tally)
}

/// How a test ended, as Python's `unittest` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Skipped(String),
    /// `FAIL`, `ERROR`, or nothing at all.
    Bad(&'static str),
}

impl Outcome {
    fn explained(&self) -> String {
        match self {
            Outcome::Ok => String::new(),
            Outcome::Skipped(reason) => match why(reason) {
                Some(why) => format!(": {reason}: {why}"),
                None => format!(": {reason}: nobody said that this may be missing"),
            },
            Outcome::Bad(how) => format!(": {how}"),
        }
    }
}

fn judge(outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Ok => Verdict::Passed,
        Outcome::Skipped(reason) if why(reason).is_some() => Verdict::Skipped,
        Outcome::Skipped(_) | Outcome::Bad(_) => Verdict::Failed,
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "PASS",
        Verdict::Failed => "FAIL",
        Verdict::Skipped => "SKIP",
    }
}

/// Why a test may skip itself with this reason.
fn why(reason: &str) -> Option<&'static str> {
    let mut lacks = LACKS.iter();
    lacks
        .find(|(start, _)| reason.starts_with(start))
        .map(|(_, why)| *why)
}

/// Each test of the output of `unittest --verbose` with its end. What tests print themselves may
/// come between the two.
fn outcomes(output: &str) -> Vec<(String, Outcome)> {
    let mut found: Vec<(String, Outcome)> = Vec::new();
    for line in output.lines() {
        if line.starts_with("======") || line.starts_with("------") {
            break; // the details of what went wrong
        }
        if let Some(name) = test_of(line) {
            found.push((name, Outcome::Bad("it did not end")));
        }
        if let (Some(outcome), Some((_, last))) = (outcome_of(line), found.last_mut()) {
            *last = outcome;
        }
    }
    found
}

/// `test_x (tests.test_module.Case.test_x) …`: the name from the module on.
fn test_of(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" (tests.")?;
    let (path, _) = rest.split_once(')')?;
    let is_test = name.starts_with("test_") && !name.contains(' ');
    is_test.then(|| path.to_owned())
}

fn outcome_of(line: &str) -> Option<Outcome> {
    let end = line.rsplit_once(" ... ").map_or(line, |(_, end)| end);
    match end {
        "ok" => return Some(Outcome::Ok),
        "FAIL" => return Some(Outcome::Bad("FAIL")),
        "ERROR" => return Some(Outcome::Bad("ERROR")),
        _ => {}
    }
    let reason = end.strip_prefix("skipped ")?;
    let quote = reason.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    Some(Outcome::Skipped(reason.trim_matches(quote).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_gets_its_outcome() {
        let output = "test_one (tests.test_a.Case.test_one)\n\
                      What it does. ... ok\n\
                      test_two (tests.test_a.Case.test_two) ... skipped 'Not \"here\"'\n\
                      test_three (tests.test_a.Case.test_three) ... Player passive got: x\n\
                      ERROR\n\
                      test_four (tests.test_a.Case.test_four) ... FAIL\n\
                      test_five (tests.test_a.Case.test_five) ...\n\
                      ======================\n\
                      test_one (tests.test_a.Case.test_one) ... ok\n";
        let named = |name: &str, outcome| (format!("test_a.Case.{name}"), outcome);
        assert_eq!(
            outcomes(output),
            [
                named("test_one", Outcome::Ok),
                named("test_two", Outcome::Skipped("Not \"here\"".into())),
                named("test_three", Outcome::Bad("ERROR")),
                named("test_four", Outcome::Bad("FAIL")),
                named("test_five", Outcome::Bad("it did not end")),
            ]
        );
    }

    #[test]
    fn only_what_is_known_to_be_missing_may_be_skipped() {
        assert!(matches!(judge(&Outcome::Ok), Verdict::Passed));
        assert!(matches!(judge(&Outcome::Bad("FAIL")), Verdict::Failed));
        let unknown = Outcome::Skipped("No IB devices found".into());
        assert!(matches!(judge(&unknown), Verdict::Failed));
        for (reason, _) in LACKS {
            let known = Outcome::Skipped(format!("{reason} here"));
            assert!(matches!(judge(&known), Verdict::Skipped));
        }
    }
}
