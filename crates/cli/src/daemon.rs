//! `broker`: the daemon, and asking after it.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use broker::{
    Client, Config, ConnectError, ConnectOptions, Holder, Refusal, Server, ServerError,
    gsi::Counters, spawn,
};
use rustix::process::{Pid, Signal, kill_process};

/// The daemon that programs share; it starts by itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Stay in the foreground
    #[arg(long)]
    foreground: bool,
    /// End when nobody needed it for so long
    #[arg(long, value_name = "N", default_value_t = 30)]
    idle_seconds: u64,
    /// Receive memory to ask the kernel for, for each program
    #[arg(long, value_name = "BYTES")]
    receive_buffer: Option<usize>,
    /// UDP port
    #[arg(long, hide = true, default_value_t = broker::protocol::ROCE_PORT)]
    port: u16,
    /// Distinguishes brokers of one network namespace
    #[arg(long, hide = true)]
    instance: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Action {
    /// Say how it is
    Status,
    /// End it; programs lose their devices
    Stop,
}

/// How long the starting process looks whether the daemon is there.
const START_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match arguments.action {
        Some(Action::Status) => status(arguments).map(|text| crate::print(&text)),
        Some(Action::Stop) => stop(arguments).map(|()| ExitCode::SUCCESS),
        None if arguments.foreground => serve(arguments).map(|()| ExitCode::SUCCESS),
        None => start(arguments).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(text) => {
            crate::complain(text);
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &Arguments) -> ConnectOptions {
    ConnectOptions {
        start: false,
        instance: arguments.instance.clone(),
        ..ConnectOptions::default()
    }
}

fn serve(arguments: &Arguments) -> Result<(), String> {
    spawn::raise_descriptor_limit();
    let mut config = Config {
        instance: arguments.instance.clone(),
        port: arguments.port,
        idle: Duration::from_secs(arguments.idle_seconds),
        ..Config::default()
    };
    if let Some(bytes) = arguments.receive_buffer {
        config.receive_buffer = bytes;
    }
    let mut server = Server::start(config).map_err(|error| error.to_string())?;
    server.run().map_err(|error: ServerError| error.to_string())
}

/// Starts the daemon away from this session and waits until it answers, so that what is done next
/// finds it.
fn start(arguments: &Arguments) -> Result<(), String> {
    if let Ok(client) = Client::connect(&options(arguments)) {
        let pid = client.status().map_err(|error| error.to_string())?.pid;
        crate::complain(format_args!(
            "the broker runs already (pid {pid}), as it was started"
        ));
        return Ok(());
    }
    let mut words = vec![
        "broker".to_owned(),
        "--foreground".to_owned(),
        "--idle-seconds".to_owned(),
        arguments.idle_seconds.to_string(),
        "--port".to_owned(),
        arguments.port.to_string(),
    ];
    if let Some(bytes) = arguments.receive_buffer {
        words.extend(["--receive-buffer".to_owned(), bytes.to_string()]);
    }
    if let Some(instance) = &arguments.instance {
        words.extend(["--instance".to_owned(), instance.clone()]);
    }
    spawn::detach(&words).map_err(|error| format!("cannot start the broker: {error}"))?;
    let deadline = Instant::now() + START_WAIT;
    while let Err(ConnectError::NotRunning) = Client::connect(&options(arguments)) {
        if Instant::now() >= deadline {
            return Err(
                "the broker does not answer; see why with `softrdma broker --foreground`".into(),
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // any other error is for whoever needs the broker: one is there
    Ok(())
}

fn status(arguments: &Arguments) -> Result<String, String> {
    let client = Client::connect(&options(arguments)).map_err(|error| error.to_string())?;
    let status = client.status().map_err(|error| error.to_string())?;
    let holders = client.slot_holders().map_err(|error| error.to_string())?;
    let mut text = format!(
        "softrdma broker {}: pid {}, uid {}, UDP port {}\n",
        status.release, status.pid, status.uid, status.port
    );
    text += &format!(
        "links {}, connections {}, slots leased {}, cooling {}, steering repaired {}\n",
        status.links, status.clients, status.leased, status.cooling, status.steering_repairs
    );
    text += &format!("RDMA ports {}, QP 1: {}\n", status.ports, gsi(&status.gsi));
    if let Some(problem) = status.port_problem {
        text += &format!("the port is not open: {problem}\n");
    }
    text += &list(&holders);
    Ok(text)
}

/// What became of packets to QP 1, with reasons where some were dropped.
fn gsi(counters: &Counters) -> String {
    let mut text = format!(
        "passed on {}, answered {}, dropped {}",
        counters.passed,
        counters.answered,
        counters.dropped_total() + counters.overflowed
    );
    let mut reasons: Vec<String> = counters
        .dropped
        .iter()
        .map(|(reason, count)| format!("{} {count}", reason.text()))
        .collect();
    if counters.overflowed > 0 {
        reasons.push(format!("receive buffer full {}", counters.overflowed));
    }
    if !reasons.is_empty() {
        text += &format!(" ({})", reasons.join(", "));
    }
    text
}

/// A line for each process, with its slots. Processes that the broker cannot see have no number to
/// tell them apart by.
fn list(holders: &[Holder]) -> String {
    let mut lines: Vec<(&Holder, Vec<String>)> = Vec::new();
    for holder in holders {
        let slot = holder.slot.to_string();
        let line = lines
            .iter_mut()
            .find(|(first, _)| first.pid == holder.pid && holder.pid != 0);
        match line {
            Some((_, slots)) => slots.push(slot),
            None => lines.push((holder, vec![slot])),
        }
    }
    let line = |(holder, slots): &(&Holder, Vec<String>)| {
        let word = if slots.len() == 1 { "slot" } else { "slots" };
        let (program, pid) = (&holder.program, holder.pid);
        format!("{word} {}: {program} (pid {pid})\n", slots.join(", "))
    };
    lines.iter().map(line).collect()
}

fn stop(arguments: &Arguments) -> Result<(), String> {
    match Client::connect(&options(arguments)) {
        Ok(client) => client.shut_down().map_err(|error| error.to_string()),
        Err(ConnectError::NotRunning) => Ok(()),
        // it does not understand us, so it is told in the language that all programs understand
        Err(ConnectError::Refused(Refusal::VersionMismatch { broker_pid, .. })) => {
            let pid = Pid::from_raw(broker_pid)
                .ok_or("the broker is of another version and in another pid namespace")?;
            kill_process(pid, Signal::TERM)
                .map_err(|errno| format!("cannot end the broker (pid {broker_pid}): {errno}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use broker::gsi::DropReason;

    use super::*;

    #[test]
    fn drops_are_told_with_their_reasons() {
        let mut counters = Counters {
            passed: 12,
            answered: 3,
            ..Counters::default()
        };
        assert_eq!(gsi(&counters), "passed on 12, answered 3, dropped 0");
        counters.dropped.insert(DropReason::BadIcrc, 4);
        counters.dropped.insert(DropReason::UnknownId, 1);
        counters.overflowed = 2;
        assert_eq!(
            gsi(&counters),
            "passed on 12, answered 3, dropped 7 \
             (bad ICRC 4, unknown communication ID 1, receive buffer full 2)"
        );
    }

    #[test]
    fn slots_of_one_process_are_on_one_line() {
        let holder = |slot, pid| Holder {
            slot,
            pid,
            program: "rping".into(),
        };
        let holders = [(1, 5), (2, 6), (3, 5), (4, 0), (5, 0)].map(|(s, p)| holder(s, p));
        assert_eq!(
            list(&holders),
            "slots 1, 3: rping (pid 5)\nslot 2: rping (pid 6)\n\
             slot 4: rping (pid 0)\nslot 5: rping (pid 0)\n"
        );
    }
}
