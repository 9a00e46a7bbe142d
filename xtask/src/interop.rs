//! `cargo xtask interop`: our devices against the kernel's rxe and siw, which run in a guest.
//!
//! Host and guest are joined by a bridge inside of a [`Sandbox`]; every case is run with our end
//! as the client and as the server.

mod connections;
mod siw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::guest::{self, Guest, Network};
use crate::packages::{self, Purpose};
use crate::process::Running;
use crate::programs::{
    DATAGRAMS, DEFAULT, Host, PerfTest, PingPong, SHARED, ip, matches, succeeded,
};
use crate::sandbox::{FOLDER, Sandbox, Who};
use crate::tally::{Tally, Verdict};
use crate::{dist, workspace};
use connections::Meeting;
use siw::{OURS_SIW, Variant};

/// Which cases, and with what.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only cases whose name contains this; `^` and `$` hold it to start and end
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Also what takes long, or differs little from other cases
    #[arg(long)]
    full: bool,
    /// Print what the programs print, also when all is well
    #[arg(long)]
    verbose: bool,
    /// A folder that `cargo xtask dist` has filled, instead of building one
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// Run a bash script in the guest, without our device, and stop
    #[arg(long, value_name = "SCRIPT", conflicts_with = "filter")]
    guest_script: Option<String>,
    /// Run the cases here: used inside of a sandbox
    #[arg(long, hide = true)]
    inside: bool,
}

/// The largest path MTU needs jumbo frames.
const INTERFACE_MTU: u32 = 9000;

/// All cases together, with an emulated machine.
const WHOLE_GUARD: Duration = Duration::from_secs(1500);

const GUEST_ADDRESS: &str = "10.77.0.2";

/// Our C programs.
const PROGRAMS: [&str; 4] = ["verbs_twin", "verbs_trials", "cm_twin", "cm_errors"];

/// Our end: the bridge, to begin with.
const OURS: Host = Host {
    namespace: None,
    device: "rxe_br0",
    interface: "br0",
    address: "10.77.0.1",
    who: Who::Root,
};

/// Which end is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// Which device of the kernel ours meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Rxe,
    Siw(Variant),
}

/// One case.
struct Case {
    name: String,
    role: Role,
    peer: Peer,
    test: Test,
}

/// What is run at both ends.
enum Test {
    PingPong(PingPong),
    PerfTest(PerfTest),
    /// `verbs_twin` with this GID index and path MTU.
    Twin {
        gid: u8,
        mtu: u32,
    },
    /// By connection management.
    Connection(Meeting),
}

/// `cargo xtask interop`
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.inside {
        return inside(arguments);
    }
    let tally = run_all(arguments)?;
    println!("interop: {tally}");
    ensure!(tally.failed == 0, "{} cases failed", tally.failed);
    Ok(())
}

/// Builds what is needed and runs the cases in a sandbox, printing a line for each.
pub fn run_all(arguments: &Arguments) -> Result<Tally> {
    guest::build()?;
    let mut inner = vec!["interop", "--inside"];
    let dist = match &arguments.dist {
        _ if arguments.guest_script.is_some() => PathBuf::new(),
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?,
        None => dist::build(false, &workspace::root().join("target/dist"))?.folder,
    };
    match &arguments.guest_script {
        Some(script) => inner.extend(["--guest-script", script]),
        None => inner.extend(["--filter", &arguments.filter]),
    }
    if arguments.verbose {
        inner.push("--verbose");
    }
    if arguments.full {
        inner.push("--full");
    }
    let sandbox = Sandbox {
        dist,
        programs: build_programs()?,
    };
    let mut running = sandbox.start(Who::Root, &inner)?;
    let ended = running.wait_showing(WHOLE_GUARD)?;
    if arguments.guest_script.is_some() {
        ensure!(ended.code == 0, "the script failed");
        return Ok(Tally::default());
    }
    let mut tally = Tally::parse(&ended.output)
        .with_context(|| format!("it ended with code {}", ended.code))?;
    for line in ended
        .output
        .lines()
        .filter(|line| line.starts_with("FAIL "))
    {
        tally.remember("the real kernel", line);
    }
    Ok(tally)
}

/// Why this machine cannot do it, if it cannot.
pub fn missing() -> Option<String> {
    if let Some(reason) = packages::lacking(&[Purpose::Guest, Purpose::Programs, Purpose::Demo]) {
        return Some(reason);
    }
    let tun = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    if let Err(error) = tun {
        return Some(format!(
            "/dev/net/tun, which joins the guest to us: {error}"
        ));
    }
    Sandbox::missing()
}

/// Compiles our C programs; one binary of each for our libraries and for the distribution's.
pub fn build_programs() -> Result<Vec<PathBuf>> {
    const WITH: [(&str, &[&str], &[&str]); 12] = [
        ("verbs_twin", &["pair"], &[]),
        ("verbs_trials", &["pair"], &[]),
        ("verbs_load", &["pair"], &[]),
        ("verbs_ring", &["crew"], &[]),
        ("verbs_many", &["crew"], &[]),
        ("verbs_pairs", &["crew"], &[]),
        ("verbs_threads", &["crew"], &[]),
        ("verbs_fuzz", &["crew"], &[]),
        ("cm_twin", &[], &["-lrdmacm"]),
        ("cm_errors", &[], &["-lrdmacm"]),
        ("cm_extensions", &[], &["-lrdmacm"]),
        ("cm_bait", &[], &["-lrdmacm"]),
    ];
    let sources = workspace::root().join("interop");
    let folder = workspace::target()?.join("interop");
    fs::create_dir_all(&folder)?;
    let build = |(name, shared, libraries): (&str, &[&str], &[&str])| {
        let program = folder.join(name);
        let status = Command::new("cc")
            .args([
                "-O1",
                "-g",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
                "-o",
            ])
            .arg(&program)
            .args(
                [&[name], shared]
                    .concat()
                    .iter()
                    .map(|file| sources.join(file).with_extension("c")),
            )
            .args(libraries)
            .args(["-libverbs", "-pthread"])
            .status()
            .context("cc")?;
        ensure!(
            status.success(),
            "cannot compile {name}: are libibverbs-dev and librdmacm-dev installed?"
        );
        Ok(program)
    };
    WITH.into_iter().map(build).collect()
}

/// The part that runs in the sandbox.
fn inside(arguments: &Arguments) -> Result<()> {
    join()?;
    let share = Path::new("/run/out/share");
    fs::create_dir(share)?;
    for program in PROGRAMS {
        fs::copy(Path::new(FOLDER).join(program), share.join(program))?;
    }
    let address = format!("{GUEST_ADDRESS}/24");
    let network = Network {
        tap: "tap0",
        mtu: INTERFACE_MTU,
        addresses: &[&address, "fd77::2/64"],
    };
    let mut guest = Guest::boot(&guest::folder(), share, Some(&network))?;
    if let Some(script) = &arguments.guest_script {
        let ended = guest.start(script)?.wait()?;
        print!("{}", ended.output);
        ensure!(ended.code == 0, "exit code {}", ended.code);
        return Ok(());
    }

    OURS.add_link()?;
    let mut tally = Tally::default();
    let mut peer = Peer::Rxe;
    for case in cases(arguments.full) {
        let name = &case.name;
        if !matches(name, &arguments.filter) {
            continue;
        }
        if let Peer::Siw(variant) = case.peer
            && case.peer != peer
        {
            variant.prepare(peer, &mut guest)?;
        }
        peer = case.peer;
        let start = Instant::now();
        let outcome = case.run(&mut guest);
        let seconds = start.elapsed().as_secs_f32();
        match outcome {
            Ok(output) => {
                let output = if arguments.verbose {
                    output.as_str()
                } else {
                    ""
                };
                print!("PASS {name} ({seconds:.1} s)\n{output}");
                tally.count(Verdict::Passed);
            }
            Err(error) => {
                println!("FAIL {name} ({seconds:.1} s)\n{error:#}");
                println!("again: cargo xtask interop --verbose --filter '^{name}$'");
                tally.count(Verdict::Failed);
            }
        }
    }
    if tally.failed > 0 {
        println!("the guest's console:\n{}", guest.console());
    }
    println!("{tally}");
    Ok(())
}

/// The bridge with our address, and the guest's tap on it.
fn join() -> Result<()> {
    for command in [
        "link add br0 address 52:54:00:77:00:01 type bridge",
        "tuntap add dev tap0 mode tap",
        &format!("link set tap0 mtu {INTERFACE_MTU} master br0 up"),
        &format!("link set br0 mtu {INTERFACE_MTU}"),
    ] {
        ip(command)?;
    }
    fs::write("/proc/sys/net/ipv6/conf/br0/accept_dad", "0")?;
    ip("link set br0 up")?;
    ip("address add 10.77.0.1/24 dev br0")?;
    ip("address add fd77::1/64 dev br0")
}

/// All cases; those of each device together, because it takes time to change them.
fn cases(full: bool) -> Vec<Case> {
    let usual = PingPong {
        count: 200,
        ..DEFAULT
    };
    let mut exchanges: Vec<PingPong> = Vec::new();
    for gid in [0, 1, 2] {
        exchanges.push(PingPong { gid, ..usual });
        exchanges.push(PingPong {
            gid,
            size: 65_536,
            ..usual
        });
    }
    for size in [1, 2, 3, 63, 1023, 1024, 1025, 4095, 4097, 32_769, 65_535] {
        exchanges.push(PingPong { size, ..usual });
    }
    for mtu in [256, 512, 2048, 4096] {
        exchanges.push(PingPong {
            mtu,
            size: 20_001,
            ..usual
        });
    }
    exchanges.push(PingPong {
        gid: 2,
        mtu: 4096,
        size: 65_536,
        ..usual
    });
    exchanges.push(PingPong {
        events: true,
        ..usual
    });
    exchanges.push(PingPong {
        receives: Some(1),
        ..usual
    });
    exchanges.push(PingPong {
        size: 1 << 20,
        count: 10,
        ..usual
    });
    for (gid, size) in [(0, 1024), (1, 1024), (2, 1024), (1, 1), (1, 4096)] {
        exchanges.push(PingPong {
            gid,
            size,
            count: 200,
            ..DATAGRAMS
        });
    }
    exchanges.push(PingPong {
        count: 50,
        ..SHARED
    });

    const ROLES: [(Role, &str); 2] = [(Role::Client, "client"), (Role::Server, "server")];
    let mut cases = Vec::new();
    for (role, end) in ROLES {
        let mut add = |what: String, test| {
            cases.push(Case {
                name: format!("{end}/{what}"),
                role,
                peer: Peer::Rxe,
                test,
            });
        };
        for exchange in &exchanges {
            add(exchange.to_string(), Test::PingPong(*exchange));
        }
        for test in measurements() {
            add(test.to_string(), Test::PerfTest(test));
        }
        for (gid, mtu) in [(1, 1024), (2, 1024), (1, 256), (1, 4096)] {
            add(format!("twin,gid={gid},mtu={mtu}"), Test::Twin { gid, mtu });
        }
        for meeting in connections::cases(full) {
            add(meeting.to_string(), Test::Connection(meeting));
        }
    }
    for (variant, meeting) in siw::cases(full) {
        let roles = ROLES.iter().filter(|(role, _)| siw::ends(&meeting, *role));
        for (role, end) in roles {
            cases.push(Case {
                name: format!("siw/{variant}/{meeting}/{end}"),
                role: *role,
                peer: Peer::Siw(variant),
                test: Test::Connection(meeting.clone()),
            });
        }
    }
    cases
}

/// perftest, with few iterations: the guest is emulated.
fn measurements() -> Vec<PerfTest> {
    let mut tests = Vec::new();
    let mut add = |program, options: &[&'static str]| {
        let options = [&["-x", "1", "-n", "50"], options].concat();
        tests.push(PerfTest { program, options });
    };
    for program in PerfTest::PROGRAMS {
        add(program, &[]);
    }
    for program in ["ib_write_bw", "ib_send_bw", "ib_read_bw"] {
        add(program, &["-b", "-q", "4"]);
        add(program, &["-l", "10", "-s", "64"]);
        add(program, &["-m", "1024", "-s", "20001"]);
    }
    add("ib_atomic_bw", &["-b", "-q", "4", "-l", "10"]);
    for program in ["ib_write_lat", "ib_send_lat", "ib_send_bw"] {
        add(program, &["-I", "64", "-s", "64"]);
    }
    // not ib_send_lat: between two kernels, too, it waits for ever now and then
    for program in ["ib_send_bw", "ib_read_lat", "ib_atomic_lat", "ib_read_bw"] {
        add(program, &["-e"]);
    }
    add("ib_write_bw", &["-a"]);
    tests
}

impl Case {
    /// Runs it and returns what the programs printed.
    fn run(&self, guest: &mut Guest) -> Result<String> {
        let role = self.role;
        let device = |server| role.device(self.peer, server);
        let (port, server, client) = match &self.test {
            Test::PingPong(pingpong) => {
                let end = |server| pingpong.argv(device(server), role.address(server));
                (pingpong.port, end(true), end(false))
            }
            Test::PerfTest(test) => {
                let end = |server| test.argv(device(server), role.address(server));
                (test.port(), end(true), end(false))
            }
            Test::Twin { gid, mtu } => (
                18_600,
                twin_argv(role, true, *gid, *mtu),
                twin_argv(role, false, *gid, *mtu),
            ),
            Test::Connection(meeting) => return meeting.run(role, self.peer, guest),
        };
        // a client that fails leaves a server that waits for ever: it is ended
        let (server, client) = match role {
            Role::Client => {
                let mut server = guest.start(&in_guest(&server))?;
                server
                    .wait_for_listener(port)
                    .context("the guest's server")?;
                let client = OURS
                    .start(&as_strs(&client), &[])?
                    .wait()
                    .context("our client")?;
                if client.code != 0 {
                    server.kill()?;
                }
                (server.wait().context("the guest's server")?, client)
            }
            Role::Server => {
                let mut server = OURS.start(&as_strs(&server), &[])?;
                server.wait_for_listener(port).context("our server")?;
                let client = guest
                    .start(&in_guest(&client))?
                    .wait()
                    .context("guest's client")?;
                if client.code != 0 {
                    server.kill()?;
                }
                (server.wait().context("our server")?, client)
            }
        };
        let output = format!("server:\n{}client:\n{}", server.output, client.output);
        for (end, ended) in [("server", &server), ("client", &client)] {
            match &self.test {
                Test::PingPong(pingpong) => pingpong.judge(end, ended),
                Test::PerfTest(test) => test.judge(end, ended),
                Test::Twin { .. } | Test::Connection(_) => succeeded(end, ended),
            }
            .with_context(|| format!("both ends:\n{output}"))?;
        }
        Ok(output)
    }
}

impl Role {
    /// Our device or the guest's, whichever is at the asked end.
    fn device(self, peer: Peer, server: bool) -> &'static str {
        let (ours, guests) = match peer {
            Peer::Rxe => (OURS.device, "rxe0"),
            Peer::Siw(_) => (OURS_SIW.device, "siw0"),
        };
        if server == (self == Role::Server) {
            ours
        } else {
            guests
        }
    }

    /// Where the client finds the server.
    fn address(self, server: bool) -> Option<&'static str> {
        match self {
            _ if server => None,
            Role::Client => Some(GUEST_ADDRESS),
            Role::Server => Some(OURS.address),
        }
    }
}

fn twin_argv(role: Role, server: bool, gid: u8, mtu: u32) -> Vec<String> {
    let ours = server == (role == Role::Server);
    let program = if ours {
        "/run/verbs_twin"
    } else {
        "/host/verbs_twin"
    };
    let end = if server { "server" } else { "client" };
    let mut argv: Vec<String> = [program, end, "-d", role.device(Peer::Rxe, server)]
        .map(String::from)
        .into();
    argv.extend(["-g".into(), gid.to_string(), "-m".into(), mtu.to_string()]);
    if server && !ours {
        argv.push("-k".into());
    }
    argv.extend(role.address(server).map(String::from));
    argv
}

/// As a script; ended before our own guard, for nobody can reach into the guest to kill it.
fn in_guest(argv: &[String]) -> String {
    format!("exec timeout 80 {}", argv.join(" "))
}

fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::{Role, cases, twin_argv};

    #[test]
    fn each_end_gets_its_own_device_and_the_client_the_address_of_the_other() {
        let client = twin_argv(Role::Client, false, 1, 1024).join(" ");
        assert_eq!(
            client,
            "/run/verbs_twin client -d rxe_br0 -g 1 -m 1024 10.77.0.2"
        );
        let server = twin_argv(Role::Client, true, 1, 1024).join(" ");
        assert_eq!(server, "/host/verbs_twin server -d rxe0 -g 1 -m 1024 -k");
        let client = twin_argv(Role::Server, false, 1, 1024).join(" ");
        assert_eq!(
            client,
            "/host/verbs_twin client -d rxe0 -g 1 -m 1024 10.77.0.1"
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = cases(true).into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
