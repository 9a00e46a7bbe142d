//! Our device and the kernel's on the same work: both ends in the guest, on its `lo`.
//!
//! The guest is emulated, so its figures say nothing and only their ratios count. The kernel's
//! device is in the first network namespace, where it has UDP port 4791; ours is in another one.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::ends::Exchange;
use super::figures::By;
use super::perftest::{Length, Perftest, Program};
use super::plan::{Comparison, Row, Target, Work};
use super::rounds::{self, Run};
use crate::guest::{self, Guest};
use crate::process::Running;
use crate::programs::succeeded;
use crate::sandbox::FOLDER;

/// Whose device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    Kernel,
    Ours,
}

/// The work, with what our device should reach of the kernel's.
const WORK: [(Perftest, By, Target); 3] = [
    (
        work(Program::WriteBw, 64 << 10),
        By::Bandwidth,
        Target::AtLeast(2.0),
    ),
    (work(Program::WriteBw, 64), By::Rate, Target::AtLeast(5.0)),
    (work(Program::SendLat, 2), By::Latency, Target::AtMost(0.8)),
];

const fn work(program: Program, size: u32) -> Perftest {
    Perftest {
        program,
        size,
        mtu: 4096,
        queue_pairs: 1,
    }
}

const PORT: u16 = 18_515;

/// A link of each on `lo`; they have the same name.
const SET_UP: &str = "set -e
cp -a /host/dist /tmp/dist
rdma link add rxe_lo type rxe netdev lo
ip netns add ours
ip -n ours link set lo up
ip netns exec ours /tmp/dist/bin/softrdma link add rxe_lo type rxe netdev lo
";

/// Runs a command as a server, then with an address behind it as a client, whose output it prints.
/// $1 port, $2 seconds after which it hangs, $3 address, $4... the command.
const EXCHANGE: &str = r#"port=$(printf :%04X "$1") guard=$2 address=$3
shift 3
timeout --signal=KILL "$guard" "$@" > /tmp/server.out 2>&1 &
server=$!
until grep -q "$port .* 0A " /proc/net/tcp /proc/net/tcp6; do
  kill -0 "$server" || break
  sleep 0.05
done
code=0
timeout --signal=KILL "$guard" "$@" "$address" || code=$?
[ "$code" -eq 0 ] || kill "$server"
wait "$server" || { code=$?; echo "the server ended with code $code:"; cat /tmp/server.out; }
exit "$code"
"#;

/// How long a program may take beyond its measurement, in seconds; the machine is slow.
const HUNG_SECONDS: u32 = 60;

/// The kernel's rows, and ours that are compared with them.
pub fn rows() -> Vec<Row> {
    let row = |stack, perftest: Perftest, comparison| Row {
        name: name(stack, perftest),
        work: Work::Guest(stack, perftest),
        comparison,
        note: "",
    };
    let kernel = WORK.map(|(perftest, _, _)| row(Stack::Kernel, perftest, None));
    let ours = WORK.map(|(perftest, by, target)| {
        let to = name(Stack::Kernel, perftest);
        let target = Some(target);
        row(Stack::Ours, perftest, Some(Comparison { to, by, target }))
    });
    kernel.into_iter().chain(ours).collect()
}

fn name(stack: Stack, perftest: Perftest) -> String {
    let stack = match stack {
        Stack::Kernel => "kernel",
        Stack::Ours => "ours",
    };
    format!("{stack}/{perftest}")
}

/// The part that runs in the sandbox: boots a guest and measures in it.
pub fn run(run: Run<'_>) -> Result<()> {
    let seconds = run.seconds;
    let share = Path::new("/run/out/share");
    fs::create_dir(share)?;
    let dist = Path::new(FOLDER).join("dist");
    let status = Command::new("cp")
        .arg("-a")
        .args([dist, share.join("dist")])
        .status()
        .context("cp")?;
    ensure!(status.success(), "copying our libraries: {status}");
    fs::write(share.join("exchange"), EXCHANGE)?;
    let mut guest = Guest::boot(&guest::folder(), share, None)?;
    succeeded("preparing the guest", &guest.start(SET_UP)?.wait()?)?;
    rounds::run_with(run, &mut |row, messages| {
        let Work::Guest(stack, perftest) = row.work else {
            bail!("this is not for the guest");
        };
        perftest.measure(seconds, messages, &mut |length| {
            exchange(&mut guest, stack, perftest, length, seconds)
        })
    })
}

fn exchange(
    guest: &mut Guest,
    stack: Stack,
    perftest: Perftest,
    length: Length,
    seconds: u32,
) -> Result<Exchange> {
    let guard = seconds + HUNG_SECONDS;
    let script = script(stack, perftest, length, guard);
    let whole = std::time::Duration::from_secs(3 * u64::from(guard));
    let ended = guest.start(&script)?.wait_at_most(whole)?;
    succeeded("perftest in the guest", &ended)?;
    Ok(Exchange {
        outputs: vec![ended.output],
        // the kernel's device works in threads of the kernel, which nobody counts
        cpu_seconds: None,
        datagrams_dropped: None,
    })
}

fn script(stack: Stack, perftest: Perftest, length: Length, guard: u32) -> String {
    let (place, loader) = match stack {
        Stack::Kernel => ("", ""),
        Stack::Ours => ("ip netns exec ours ", "/tmp/dist/bin/softrdma run -- "),
    };
    let argv = perftest.argv(length, "rxe_lo", PORT, None).join(" ");
    format!("exec {place}bash /host/exchange {PORT} {guard} 127.0.0.1 {loader}{argv}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_our_rows_is_compared_with_the_kernels_of_the_same_work() {
        let rows = rows();
        for ours in rows.iter().filter(|row| row.name.starts_with("ours/")) {
            let to = &ours.comparison.as_ref().unwrap().to;
            assert_eq!(to.strip_prefix("kernel/"), ours.name.strip_prefix("ours/"));
            assert!(rows.iter().any(|row| row.name == *to));
        }
        assert_eq!(rows.len(), 2 * WORK.len());
    }

    #[test]
    fn only_ours_is_loaded() {
        let (perftest, ..) = WORK[0];
        let script = |stack| script(stack, perftest, Length::Seconds(1), 61);
        assert_eq!(
            script(Stack::Kernel),
            "exec bash /host/exchange 18515 61 127.0.0.1 ib_write_bw -d rxe_lo -x 1 -m 4096 \
             -p 18515 -s 65536 -D 1 -f 0 -q 1 --report_gbits -F"
        );
        assert!(script(Stack::Ours).starts_with(
            "exec ip netns exec ours bash /host/exchange 18515 61 127.0.0.1 \
             /tmp/dist/bin/softrdma run -- ib_write_bw "
        ));
    }
}
