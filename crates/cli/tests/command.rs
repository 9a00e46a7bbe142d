//! The command itself: starting brokers by itself, and what it leaves behind.
//!
//! Each test has a network namespace of its own, so that port 4791 and the broker's name are its
//! own too. Where the kernel or a container forbids that, the tests say so and end.

use std::{
    fs,
    io::Read,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

const SOFTRDMA: &str = env!("CARGO_BIN_EXE_softrdma");

/// Waits for a condition, a minute at most.
const UNTIL_TRUE: &str = "
    until_true() {
        n=0
        while ! eval \"$1\" >/dev/null 2>&1 && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done
    }
";

/// A folder as `cargo xtask dist` makes it, with a library that is only looked for.
struct Dist(PathBuf);

impl Dist {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("softrdma-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).expect("there is room");
        fs::create_dir_all(folder.join("lib")).expect("there is room");
        // a symbolic link would be resolved to where cargo built it; a copy could still be open for
        // writing in a child that another test is just starting
        fs::hard_link(SOFTRDMA, folder.join("bin/softrdma")).expect("the same file system");
        for library in ["lib/libibverbs.so.1", "lib/librdmacm.so.1"] {
            symlink("/dev/null", folder.join(library)).expect("there is room");
        }
        Self(folder)
    }

    /// Runs a script in a network namespace with `lo` up; `$S` is the command. The broker in it is
    /// stopped in the end, whatever happens. `None` if namespaces are forbidden.
    fn script(&self, script: &str) -> Option<Output> {
        let whole = format!(
            "S={}\nip link set lo up || exit 99\ntrap '$S broker stop' EXIT\n{UNTIL_TRUE}{script}",
            self.0.join("bin/softrdma").display()
        );
        let output = namespace(&whole)
            .output()
            .expect("unshare is part of every system");
        if output.status.code() == Some(99) || !can_unshare() {
            eprintln!("skipped: no network namespace of one's own here");
            return None;
        }
        Some(output)
    }
}

impl Drop for Dist {
    fn drop(&mut self) {
        // a file that somebody still executes can be removed as well
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", script]);
    command
}

fn can_unshare() -> bool {
    namespace("true")
        .status()
        .is_ok_and(|status| status.success())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn programs_that_start_the_broker_at_once_share_one() {
    let dist = Dist::new("race");
    let script = "
        for n in 1 2 3 4 5 6 7 8; do $S run -- true & pids=\"$pids $!\"; done
        for pid in $pids; do wait $pid || echo failed; done
        $S link; $S broker status";
    let Some(output) = dist.script(script) else {
        return;
    };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let mut lines = out.lines();
    let link = lines.next().unwrap_or_default();
    assert!(
        link.starts_with("link rxe_lo/1 state ACTIVE "),
        "{out}{err}"
    );
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("softrdma broker ")),
        "{out}{err}"
    );
    let told = err
        .matches("no link is configured: made rxe_lo on lo")
        .count();
    assert_eq!(told, 1, "{err}");
    assert!(!out.contains("failed"), "{out}{err}");
}

#[test]
fn the_broker_keeps_nothing_of_the_program_that_started_it() {
    let dist = Dist::new("leftovers");
    let script = "
        exec 7>/dev/full
        SECRET=x $S link add rxe_lo type rxe netdev lo >/dev/null 2>&1
        pid=$($S broker status | sed -n 's/.*: pid \\([0-9]*\\),.*/\\1/p')
        readlink /proc/$pid/cwd /proc/$pid/fd/0 /proc/$pid/fd/1 /proc/$pid/fd/2
        ls -l /proc/$pid/fd | grep -c /dev/full
        tr '\\0' '\\n' < /proc/$pid/environ | grep -c SECRET
        [ $(cut -d' ' -f6 /proc/$pid/stat) = $(cut -d' ' -f6 /proc/$$/stat) ] && echo same session";
    let Some(output) = dist.script(script) else {
        return;
    };
    let expected = "/\n/dev/null\n/dev/null\n/dev/null\n0\n0\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn whoever_reads_the_output_of_a_step_is_not_kept_waiting() {
    let dist = Dist::new("pipe");
    if !can_unshare() {
        eprintln!("skipped: no network namespace of one's own here");
        return;
    }
    // the broker outlives the step that started it; only its own name can end it afterwards
    let script = format!(
        "S={}; ip link set lo up; $S broker --idle-seconds 1; $S broker status",
        dist.0.join("bin/softrdma").display()
    );
    let mut child = namespace(&script)
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare is part of every system");
    let mut out = String::new();
    // ends only when nobody holds the pipe any more
    child
        .stdout
        .take()
        .expect("it is a pipe")
        .read_to_string(&mut out)
        .expect("text");
    assert!(child.wait().expect("it is ours").success());
    assert!(out.starts_with("softrdma broker "), "{out}");
}

#[test]
fn run_becomes_the_program() {
    let dist = Dist::new("run");
    let script = "
        $S link add rxe_lo type rxe netdev lo
        LD_LIBRARY_PATH=/before $S run sh -c 'echo $LD_LIBRARY_PATH; exit 7'; echo $?
        $S run -- sh -c 'kill -KILL $$'; echo $?
        $S run -- no-such-program; echo $?
        $S run -- /etc/passwd; echo $?";
    let Some(output) = dist.script(script) else {
        return;
    };
    let lib = dist.0.join("lib");
    let expected = format!("{}:/before\n7\n137\n127\n126\n", lib.display());
    let err = text(&output.stderr);
    assert_eq!(text(&output.stdout), expected, "{err}");
    assert!(
        err.contains("softrdma: no-such-program: command not found"),
        "{err}"
    );
    assert!(!err.contains("no link is configured"), "{err}");
}

#[test]
fn run_without_its_libraries_says_where_they_should_be() {
    let dist = Dist::new("bare");
    fs::remove_file(dist.0.join("lib/libibverbs.so.1")).expect("it was made");
    let output = Command::new(dist.0.join("bin/softrdma"))
        .args(["run", "--", "true"])
        .output()
        .expect("it is a program");
    assert_eq!(output.status.code(), Some(125));
    let err = text(&output.stderr);
    assert!(
        err.contains(&format!(
            "no libibverbs.so.1 in {}",
            dist.0.join("lib").display()
        )),
        "{err}"
    );
}

#[test]
fn links_follow_addresses_and_interfaces() {
    let dist = Dist::new("follow");
    let script = "
        ip link add left mtu 9000 type veth peer name right || exit 99
        $S link add rxe0 type rxe netdev left
        $S link show
        ip addr add 10.9.0.1/24 dev left
        ip link set left up; ip link set right up
        until_true '$S link | grep ACTIVE'
        $S link show
        $S devinfo -d rxe0 -v | grep -e active_mtu -e 'GID.*10.9.0.1'
        ip link del left
        until_true '! $S link | grep rxe0'
        $S link show";
    let Some(output) = dist.script(script) else {
        return;
    };
    let expected = "\
link rxe0/1 state DOWN physical_state DISABLED netdev left\x20
link rxe0/1 state ACTIVE physical_state LINK_UP netdev left\x20
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tGID[  1]:\t\t::ffff:10.9.0.1, RoCE v2
";
    let err = text(&output.stderr);
    assert_eq!(text(&output.stdout), expected, "{err}");
    assert!(err.contains("left is down: `ip link set left up`"), "{err}");
}

#[test]
fn a_link_is_made_only_if_programs_can_use_it() {
    let dist = Dist::new("port");
    let script = "
        $S broker --instance other
        $S link add rxe1 type rxe netdev lo 2>&1; echo $?
        $S link add siw1 type siw netdev lo 2>&1 | head -n 1; $S link show
        $S broker --instance other stop
        $S link add rxe1 type rxe netdev lo; echo $?; $S link show";
    let Some(output) = dist.script(script) else {
        return;
    };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let lines: Vec<&str> = out.lines().collect();
    let [kernel, ours, failed, siw, added, link] = lines[..] else {
        panic!("{out}{err}");
    };
    assert_eq!(kernel, "error: Address already in use");
    let told = "softrdma: UDP port 4791 is in use by softrdma (pid ";
    assert!(ours.starts_with(told), "{ours}");
    assert_eq!((failed, siw, added), ("1", kernel, "0"), "{out}{err}");
    assert!(link.starts_with("link rxe1/1 state ACTIVE "), "{out}{err}");
}

#[test]
fn no_link_is_made_that_the_program_would_not_see() {
    let dist = Dist::new("unseen");
    let script = "
        SOFTRDMA_DEVICES=nope,other $S run -- true; $S link show; echo made:
        SOFTRDMA_DEVICES=nope,rxe_lo $S run -- $S link show";
    let Some(output) = dist.script(script) else {
        return;
    };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let made = "made:\nlink rxe_lo/1 state ACTIVE physical_state LINK_UP netdev lo \n";
    assert_eq!(out, made, "{err}");
    assert!(
        err.contains("SOFTRDMA_DEVICES=nope,other names none"),
        "{err}"
    );
    assert_eq!(err.matches("made rxe_lo on lo").count(), 1, "{err}");
}

#[test]
fn ping_without_an_address_serves_all_and_says_why_it_fails() {
    let dist = Dist::new("ping");
    let script = "
        $S link add rxe_lo type rxe netdev lo
        $S link add siw_lo type siw netdev lo
        for device in rxe_lo siw_lo; do
            export SOFTRDMA_DEVICES=$device
            for address in 127.0.0.1 ::1; do
                $S ping -s & pid=$!
                is_served=no
                until_true '$S ping -c -a $address -C 2 -V && is_served=yes'
                [ $is_served = yes ] || kill $pid
                wait $pid
                echo $device $address $is_served
            done
        done
        export SOFTRDMA_DEVICES=siw_lo
        $S ping -c -a 127.0.0.1
        export SOFTRDMA_DEVICES=nope
        $S ping -c -a 127.0.0.1
        $S ping -s -a 127.0.0.1";
    let Some(output) = dist.script(script) else {
        return;
    };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let served = "rxe_lo 127.0.0.1 yes\nrxe_lo ::1 yes\nsiw_lo 127.0.0.1 yes\nsiw_lo ::1 yes\n";
    assert_eq!(out, served, "{err}");
    let refused = "softrdma: connect to 127.0.0.1:7174: nobody listens at that TCP port";
    assert!(err.contains(refused), "{err}");
    assert_eq!(err.matches("SOFTRDMA_DEVICES=nope").count(), 2, "{err}");
}

#[test]
fn a_second_broker_is_told_of_the_first() {
    let dist = Dist::new("second");
    let script = "
        $S broker 2>&1; $S broker 2>&1; echo $?
        $S broker status | sed -n 's/.*: pid \\([0-9]*\\),.*/\\1/p'";
    let Some(output) = dist.script(script) else {
        return;
    };
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let [told, "0", pid] = lines[..] else {
        panic!("{out}{}", text(&output.stderr));
    };
    let expected = format!("softrdma: the broker runs already (pid {pid}), as it was started");
    assert_eq!(told, expected);
}

#[test]
fn a_killed_broker_is_replaced() {
    let dist = Dist::new("killed");
    let script = "
        $S link add rxe_lo type rxe netdev lo
        pid() { $S broker status | sed -n 's/.*: pid \\([0-9]*\\),.*/\\1/p'; }
        first=$(pid); kill -KILL $first
        until_true '! $S broker status'
        $S link; echo nothing
        $S run -- true; $S link
        [ $(pid) != $first ] && echo another";
    let Some(output) = dist.script(script) else {
        return;
    };
    let expected =
        "nothing\nlink rxe_lo/1 state ACTIVE physical_state LINK_UP netdev lo \nanother\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn mistakes_of_the_command_line_end_as_those_of_rdma() {
    for (words, code) in [
        (&["link", "bogus"][..], 0),
        (&["link", "add"], 1),
        (&["link", "delete"], 1),
        (&["link", "--nonsense"], 1),
        (&["link", "help"], 0),
        (&["dev", "bogus"], 0),
    ] {
        let output = Command::new(SOFTRDMA)
            .args(words)
            .output()
            .expect("it is a program");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        let is_told = text(&output.stderr).contains("softrdma: nothing was done");
        assert_eq!(is_told, words[1] == "bogus", "{words:?}: {output:?}");
    }
}

#[test]
fn whom_nothing_can_be_told_the_exit_code_tells() {
    let full = || fs::File::create("/dev/full").expect("part of every system");
    let softrdma = |arguments: &[&str]| {
        let mut command = Command::new(SOFTRDMA);
        command.args(arguments);
        command
    };
    let code = |mut command: Command| command.status().expect("it starts").code();
    for (arguments, expected) in [
        (&["run", "--", "/nonexistent"][..], 127),
        (&["link", "show", "-x"], 1),
        (&["link", "frobnicate"], 0),
    ] {
        let mut command = softrdma(arguments);
        command.stderr(full());
        assert_eq!(code(command), Some(expected), "{arguments:?}");
    }
    // what was asked for is lost
    let output = softrdma(&["link", "help"]).stdout(full()).output();
    let output = output.expect("it starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write to standard output"), "{err}");
    // a reader that has gone wants no more
    let mut reader = Command::new("true")
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pipe = reader.stdin.take().expect("it is piped");
    reader.wait().expect("it ends");
    let mut command = softrdma(&["link", "help"]);
    command.stdout(pipe);
    assert_eq!(code(command), Some(0));
}

#[test]
fn files_of_the_kernel_are_shown_to_the_program_alone() {
    let dist = Dist::new("sysfs");
    let script = "
        export S
        $S run --sysfs -- sh -c '
            cd /sys/class/infiniband/rxe_lo
            cat node_guid node_type ports/1/gids/1 ports/1/gid_attrs/ndevs/1
            ls device/net /sys/class/infiniband /dev/infiniband
            test -e /sys/class/net/lo && test -c /dev/null && echo and all else
            ip link set lo down
            n=0; until $S link | grep -q DOWN || [ $n = 600 ]; do sleep 0.1; n=$((n + 1)); done
            $S run --sysfs -- cat ports/1/state'
        [ -e /sys/class/infiniband/rxe_lo ] && echo seen by others";
    let Some(output) = dist.script(script) else {
        return;
    };
    let expected = "0200:00ff:fe00:0000\n1: CA\n0000:0000:0000:0000:0000:ffff:7f00:0001\nlo\n\
                    /dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nrxe_lo\n\n\
                    device/net:\nlo\nand all else\n1: DOWN\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn where_namespaces_are_forbidden_paths_are_changed() {
    let dist = Dist::new("paths");
    let script = format!(
        "
        export XDG_RUNTIME_DIR={}
        for kind in mnt user; do echo 0 > /proc/sys/user/max_${{kind}}_namespaces || exit 99; done
        $S run --sysfs -- sh -c 'cat $SOFTRDMA_SYSFS/sys/class/infiniband/rxe_lo/node_desc'
        $S run --sysfs -- sh -c 'ls $SOFTRDMA_SYSFS/dev/infiniband; echo $LD_PRELOAD'",
        dist.0.display()
    );
    let Some(output) = dist.script(&script) else {
        return;
    };
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let preloaded = dist.0.join("lib/libsoftrdma-paths.so");
    let expected = format!("rxe\nrdma_cm\nuverbs0\n{}\n", preloaded.display());
    assert_eq!(out, expected, "{err}");
    assert!(
        err.contains("no namespace for /sys/class/infiniband"),
        "{err}"
    );
}
