//! `kill -9` of either end of a connection, and of ours while one is being made: the other end
//! learns of it and ends, and at both nothing is left.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{PAUSE, Peer, RPING, RPing, Role, as_strs, await_listener, ends, tail, words};
use crate::guest::Guest;
use crate::interop::OURS;
use crate::process::{GUARD, Local, Running};
use crate::programs::{NOTHING, signal};

/// What is killed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// The end that is not ours, in the middle of a transfer.
    Peer,
    /// Our end, in the middle of a transfer.
    Own,
    /// Our end, when one side has asked and the other not answered.
    OwnEarly,
}

impl Kill {
    /// Runs it and returns what the survivor printed.
    pub fn run(self, device: Peer, role: Role, guest: &mut Guest) -> Result<String> {
        match (self, role) {
            (Self::Peer, _) => peer(device, role, guest),
            (Self::Own, _) => own(role, guest),
            (Self::OwnEarly, Role::Client) => when_asking(guest),
            (Self::OwnEarly, Role::Server) => when_asked(guest),
        }
    }
}

impl std::fmt::Display for Kill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peer => "rping,peer-killed",
            Self::Own => "rping,our-end-killed",
            Self::OwnEarly => "ucmatose,our-end-killed-early",
        })
    }
}

/// An exchange that has no end of its own.
const ENDLESS: RPing = RPing {
    count: 1_000_000_000,
    ..RPING
};

/// Our command line and that of the other end.
fn endless(role: Role) -> (Vec<String>, Vec<String>) {
    let address = role.address_of_server(false);
    let (ours, theirs) = match role {
        Role::Client => ("-c", "-s"),
        Role::Server => ("-s", "-c"),
    };
    let lines = words(&["stdbuf", "-oL"]);
    (
        [&lines[..], &ENDLESS.argv(ours, address)].concat(),
        ENDLESS.argv(theirs, address),
    )
}

/// Our end, once it is at work; started again as often as nobody listens.
fn at_work(mut local: Local, ours: &[String]) -> Result<Local> {
    let since = Instant::now();
    while !local.output().contains("ping data") {
        let seconds = since.elapsed();
        ensure!(seconds < GUARD, "never at work:\n{}", local.output());
        std::thread::sleep(PAUSE);
        if local.ended()?.is_some() {
            local = OURS.start(&as_strs(ours), &[])?; // the other did not listen yet
        }
    }
    Ok(local)
}

fn peer(device: Peer, role: Role, guest: &mut Guest) -> Result<String> {
    /// What `rping` ends with when it is refused.
    const REFUSED: u8 = 255;
    let (ours, theirs) = endless(role);
    let theirs = theirs.join(" ");
    let script = format!("while {theirs} > /dev/null; [ $? = {REFUSED} ]; do sleep 0.2; done");
    let start = || OURS.start(&as_strs(&ours), &[]);
    let (mut job, local) = match role {
        Role::Client => {
            let mut job = guest.start(&script)?;
            await_listener(device, &ours, &mut job)?;
            (job, start()?)
        }
        Role::Server => {
            let mut local = start()?;
            await_listener(device, &ours, &mut local)?;
            (guest.start(&script)?, local)
        }
    };
    let mut local = at_work(local, &ours)?;
    job.kill_program("rping")?;
    let ended = local.wait().context("our end, after the peer was killed")?;
    // by a DREQ, or by the refusal of what the dead one's memory was asked for before
    let heard = ["DISCONNECT EVENT", "cq completion failed status"];
    ensure!(
        heard.iter().any(|text| ended.output.contains(text)),
        "our end did not hear that the peer is gone:\n{}",
        tail(&ended.output)
    );
    Ok(tail(&ended.output).to_string())
}

fn own(role: Role, guest: &mut Guest) -> Result<String> {
    let (ours, theirs) = endless(role);
    let theirs = theirs.join(" ");
    let script = format!(
        "while {theirs} > /tmp/survivor; grep -q 'REJECTED, error 8' /tmp/survivor
         do sleep 0.2; done
         tail -c 2000 /tmp/survivor"
    );
    let mut job = guest.start(&script)?;
    at_work(OURS.start(&as_strs(&ours), &[])?, &ours)?.kill()?;
    let ended = job.wait().context("the peer, after our end was killed")?;
    ensure!(
        ended.output.contains("DISCONNECT EVENT"),
        "the peer did not hear that our end is gone:\n{}",
        ended.output
    );
    nothing_is_left(guest)?;
    Ok(ended.output)
}

/// Our client has asked a server that has not answered yet: when it accepts, it is refused.
fn when_asking(guest: &mut Guest) -> Result<String> {
    let (server, client) = commands(Role::Client);
    start_survivor(guest, &server)?;
    in_guest(guest, &await_state("LISTEN"))?;
    in_guest(guest, "kill -STOP $(cat /tmp/survivor.process)")?;
    let mut client = OURS.start(&as_strs(&client), &[])?;
    in_guest(guest, &await_state("CONNECT"))?;
    client.kill()?;
    await_nothing_of_ours()?;
    in_guest(guest, "kill -CONT $(cat /tmp/survivor.process)")?;
    // spec: IBA 12.6.7.2: invalid communication ID
    survivor_is_refused(guest, 6)
}

/// Our server has been asked, and does not answer any more: the client is refused.
fn when_asked(guest: &mut Guest) -> Result<String> {
    let (server, client) = commands(Role::Server);
    let mut server = OURS.start(&as_strs(&server), &[])?;
    OURS.wait_for_listener(&mut server)?;
    signal(&server, "STOP")?;
    let before = passed_on()?;
    start_survivor(guest, &client)?;
    let since = Instant::now();
    while passed_on()? == before {
        ensure!(since.elapsed() < GUARD, "no request arrives");
        std::thread::sleep(PAUSE);
    }
    server.kill()?;
    survivor_is_refused(guest, super::CONSUMER)
}

/// The command lines of server and client.
fn commands(role: Role) -> (Vec<String>, Vec<String>) {
    ends("ucmatose", role, role.address_of_server(false), [&[], &[]])
}

fn start_survivor(guest: &mut Guest, argv: &[String]) -> Result<()> {
    let argv = argv.join(" ");
    let script = format!("{argv} > /tmp/survivor 2>&1 &\necho $! > /tmp/survivor.process");
    in_guest(guest, &script).map(drop)
}

fn survivor_is_refused(guest: &mut Guest, reason: i32) -> Result<String> {
    let script = "while kill -0 $(cat /tmp/survivor.process); do sleep 0.1; done
                  cat /tmp/survivor";
    let output = in_guest(guest, script).context("the peer, after our end was killed")?;
    ensure!(
        output.contains(&format!("RDMA_CM_EVENT_REJECTED, error: {reason}")),
        "the peer is not refused with reason {reason}:\n{output}"
    );
    nothing_is_left(guest)?;
    Ok(output)
}

/// Waits until an ID of the guest is in this state.
fn await_state(state: &str) -> String {
    format!("until rdma resource show cm_id | grep -q 'state {state}'; do sleep 0.1; done")
}

fn in_guest(guest: &mut Guest, script: &str) -> Result<String> {
    let ended = guest
        .start(script)?
        .wait()
        .with_context(|| script.to_owned())?;
    Ok(ended.output)
}

/// How many messages of connection management have gone to programs of ours.
fn passed_on() -> Result<u64> {
    let status = OURS.softrdma(&["broker", "status"])?;
    let number = status.split_once("passed on ").map(|(_, rest)| rest);
    let number = number.and_then(|rest| rest.split(',').next());
    Ok(number.context("no count of messages")?.parse()?)
}

/// Waits until no program at either end has anything of RDMA.
fn nothing_is_left(guest: &mut Guest) -> Result<()> {
    await_nothing_of_ours()?;
    in_guest(
        guest,
        "until rdma resource show rxe0 | grep -q 'cm_id 0 mr 0 ctx 0'; do sleep 0.1; done",
    )
    .map(drop)
}

fn await_nothing_of_ours() -> Result<()> {
    let since = Instant::now();
    loop {
        let left = OURS.softrdma(&["resource", "show"])?;
        if left.contains(NOTHING) {
            return Ok(());
        }
        ensure!(since.elapsed() < GUARD, "it stays:\n{left}");
        std::thread::sleep(PAUSE);
    }
}
