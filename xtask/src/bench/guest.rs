//! Our device and the kernel's on the same work: both ends in the guest, on its `lo`.
//!
//! The guest is emulated, so its figures say nothing and only their ratios count. The kernel's
//! device is in the first network namespace, where it has UDP port 4791; ours is in another one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::ends::Exchange;
use super::figures::{By, Figures};
use super::perftest::{Length, Over, Perftest, Program};
use super::plan::{Comparison, Row, Target, Task, Work};
use super::rounds::{self, Run};
use super::set_up;
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

impl Stack {
    /// What stands before a command: where it runs, and on what libraries.
    fn surroundings(self) -> (&'static str, &'static str) {
        match self {
            Self::Kernel => ("", ""),
            Self::Ours => ("ip netns exec ours ", "/tmp/dist/bin/softrdma run -- "),
        }
    }
}

/// The work, with what our device should reach of the kernel's.
const WORK: [(Task, By, Target); 4] = [
    (
        work(Program::WriteBw, 64 << 10),
        By::Bandwidth,
        Target::AtLeast(2.0),
    ),
    (work(Program::WriteBw, 64), By::Rate, Target::AtLeast(5.0)),
    (work(Program::SendLat, 2), By::Latency, Target::AtMost(0.8)),
    (Task::SetUp, By::Rate, Target::AtLeast(1.0)),
];

const fn work(program: Program, size: u32) -> Task {
    Task::Perftest(Perftest {
        program,
        size,
        over: Over::Roce { mtu: 4096 },
        queue_pairs: 1,
    })
}

const PORT: u16 = 18_515;

/// A link of each on `lo`, and one on an interface that has [`ADDRESS`], to which connections are
/// made: the kernel's device makes none to 127.0.0.1. Names are the same.
const SET_UP: &str = "set -e
cp -a /host/dist /tmp/dist
ip netns add ours
ip -n ours link set lo up
for place in '' '-n ours'; do
  ip $place link add veth_a type veth peer name veth_b
  ip $place address add 10.77.9.1/24 dev veth_a
  ip $place link set veth_a up
  ip $place link set veth_b up
done
for link in 'rxe_lo type rxe netdev lo' 'rxe_a type rxe netdev veth_a'; do
  rdma link add $link
  ip netns exec ours /tmp/dist/bin/softrdma link add $link
done
";

const ADDRESS: &str = "10.77.9.1";

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

/// Makes connections to a server that is ended afterwards. $1 seconds after which a program hangs,
/// $2 address, $3... the command.
const SET_UP_ONCE: &str = r#"guard=$1 address=$2
shift 2
timeout --signal=KILL "$guard" "$@" > /tmp/server.out 2>&1 &
server=$!
while :; do
  code=0
  timeout --signal=KILL "$guard" "$@" -s "$address" > /tmp/client.out 2>&1 || code=$?
  grep -q -e RDMA_CM_EVENT_REJECTED -e 'event: 8' /tmp/client.out || break
  kill -0 "$server" || break
done
kill -KILL "$server"
cat /tmp/client.out
[ "$code" -eq 0 ] || { echo "the server printed:"; cat /tmp/server.out; }
exit "$code"
"#;

/// How long a program may take beyond its measurement, in seconds; the machine is slow.
const HUNG_SECONDS: u32 = 60;

/// The kernel's rows, and ours that are compared with them.
pub fn rows() -> Vec<Row> {
    let row = |stack, task: Task, comparison| Row {
        name: name(stack, task),
        work: Work::Guest(stack, task),
        comparison,
        note: match task {
            Task::SetUp => set_up::NOTE,
            Task::Perftest(_) => "",
        },
    };
    let kernel = WORK.map(|(task, _, _)| row(Stack::Kernel, task, None));
    let ours = WORK.map(|(task, by, target)| {
        let to = name(Stack::Kernel, task);
        let target = Some(target);
        row(Stack::Ours, task, Some(Comparison { to, by, target }))
    });
    kernel.into_iter().chain(ours).collect()
}

fn name(stack: Stack, task: Task) -> String {
    let stack = match stack {
        Stack::Kernel => "kernel",
        Stack::Ours => "ours",
    };
    match task {
        Task::Perftest(perftest) => format!("{stack}/{perftest}"),
        Task::SetUp => format!("{stack}/{}", set_up::NAME),
    }
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
    fs::write(share.join("set_up"), SET_UP_ONCE)?;
    let mut guest = Guest::boot(&guest::folder(), share, None)?;
    succeeded("preparing the guest", &guest.start(SET_UP)?.wait()?)?;
    rounds::run_with(run, &mut |row, messages| {
        let Work::Guest(stack, task) = row.work else {
            bail!("this is not for the guest");
        };
        match task {
            Task::Perftest(perftest) => perftest.measure(seconds, messages, &mut |length| {
                exchange(&mut guest, stack, perftest, length, seconds)
            }),
            Task::SetUp => make_connections(&mut guest, stack),
        }
    })
}

fn make_connections(guest: &mut Guest, stack: Stack) -> Result<Figures> {
    let (place, loader) = stack.surroundings();
    let argv = set_up::argv(None).join(" ");
    let script = format!("exec {place}bash /host/set_up {HUNG_SECONDS} {ADDRESS} {loader}{argv}");
    let whole = Duration::from_secs(3 * u64::from(HUNG_SECONDS));
    let ended = guest.start(&script)?.wait_at_most(whole)?;
    set_up::judged(ended.code, &ended.output)
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
    let whole = Duration::from_secs(3 * u64::from(guard));
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
    let (place, loader) = stack.surroundings();
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
        let (Task::Perftest(perftest), ..) = WORK[0] else {
            panic!("it is another task");
        };
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
