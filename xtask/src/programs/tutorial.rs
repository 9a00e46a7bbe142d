//! The commands of the tutorial as they are printed there, each section in a shell of its own.
//!
//! A reader takes a moment from one command to the next, and looks whether what he started in the
//! background is ready; so does the case. All else is run as it stands, and what the text shows of
//! the output has to be printed.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::world::World;
use super::{softrdma, succeeded};
use crate::process::Running;

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");

/// What of a text stands for something that is left out.
const ELLIPSIS: &str = "…";

/// The prompts of root in the namespace of the tutorial, where the case is too, and before it.
const PROMPT: &str = "# ";
const OUTSIDE: &str = "$ ";

/// Runs all sections, on `lo`.
pub fn run(world: &World) -> Result<()> {
    // the text makes its own
    world
        .server
        .softrdma(&["link", "delete", world.server.device])?;
    // captures go there
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs", "/tmp"])
        .status()
        .context("mount")?;
    ensure!(mounted.success(), "mount: {mounted}");
    for section in TUTORIAL.split("\n## ") {
        let title = section.lines().next().unwrap_or_default();
        try_out(world, &steps(section)).with_context(|| title.to_owned())?;
    }
    Ok(())
}

/// A line of a block of commands.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// With the lines that it goes on in.
    Command(String),
    /// What comes of it.
    Shown(&'static str),
}

/// What the blocks of commands of a text are made of.
fn steps(text: &'static str) -> Vec<Step> {
    let blocks = text.split("```console\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split_once("```"));
    let mut steps = Vec::new();
    for line in blocks.flat_map(|(block, _)| block.lines()) {
        match (line.strip_prefix(PROMPT), steps.last_mut()) {
            (Some(command), _) => steps.push(Step::Command(command.to_owned())),
            (None, Some(Step::Command(before))) if before.ends_with('\\') => {
                *before = format!("{before}\n{line}");
            }
            _ if line.starts_with(OUTSIDE) => {}
            _ => steps.push(Step::Shown(line)),
        }
    }
    steps
}

/// Runs the commands and looks for what they are said to print.
fn try_out(world: &World, steps: &[Step]) -> Result<()> {
    let commands = steps.iter().filter_map(|step| match step {
        Step::Command(command) => Some(unhurried(command)),
        Step::Shown(_) => None,
    });
    // with jobs, as at a terminal
    let script = ["set -em".into()].into_iter().chain(commands);
    let script = script.collect::<Vec<String>>().join("\n");
    let command = softrdma();
    let folder = command.parent().context("softrdma is in no folder")?;
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", folder.display());
    let mut shell = world
        .server
        .start_plain(&["bash", "-c", &script], &[("PATH", &path)])?;
    let ended = shell.wait()?;
    succeeded("bash", &ended)?;
    for step in steps {
        if let Step::Shown(line) = step {
            ensure!(
                is_printed(line, &ended.output),
                "nothing like {line:?} in:\n{}",
                ended.output
            );
        }
    }
    Ok(())
}

/// A command, and behind it what a reader waits for before the next one.
fn unhurried(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_server = words.contains(&"run") && !words.contains(&"127.0.0.1");
    let waits_for = match words.split_last() {
        // `kill` ends a capture: what it has not fetched yet would be missing
        _ if words.first() == Some(&"kill") => return format!("sleep 1\n{command}\nwait"),
        Some((&"&", words)) if words.first() == Some(&"tshark") => {
            words.last().map(|file| format!("[ -s {file} ]"))
        }
        // ping-pongs and perftest meet at TCP port 18515
        Some((&"&", _)) if is_server => {
            Some("grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6".into())
        }
        _ => None,
    };
    match waits_for {
        Some(condition) => format!("{command}\nuntil {condition}; do sleep 0.05; done"),
        None => command.to_owned(),
    }
}

/// Whether a line like this was printed: numbers differ from run to run, and what `…` stands for is
/// left open.
fn is_printed(line: &str, output: &str) -> bool {
    let (start, end) = match line.split_once(ELLIPSIS) {
        Some((start, end)) => (start, Some(end)),
        None => (line, None),
    };
    let start: Vec<&str> = words(start).collect();
    let end: Option<Vec<&str>> = end.map(|end| words(end).collect());
    output.lines().any(|line| {
        let printed: Vec<&str> = words(line).collect();
        let rest = printed.strip_prefix(start.as_slice());
        rest.is_some_and(|rest| match &end {
            Some(end) => rest.ends_with(end),
            None => rest.is_empty(),
        })
    })
}

/// The words of a line, all numbers of which are the same.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().map(|word| {
        let is_hexadecimal = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        if is_hexadecimal || has_digit {
            "0"
        } else {
            word
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHINESE: &str = include_str!("../../../docs/zh/tutorial.md");

    #[test]
    fn both_languages_have_the_same_commands_in_the_same_sections() {
        let sections = |text: &'static str| text.split("\n## ").map(steps).collect::<Vec<_>>();
        let english = sections(TUTORIAL);
        assert!(english.iter().filter(|steps| !steps.is_empty()).count() >= 9);
        assert_eq!(sections(CHINESE), english);
    }

    #[test]
    fn commands_go_on_behind_a_backslash() {
        let text = "text\n```console\n$ sh\n# one \\\n  two\n# three &\nfour\n```\n# no command\n";
        let expected = [
            Step::Command("one \\\n  two".into()),
            Step::Command("three &".into()),
            Step::Shown("four"),
        ];
        assert_eq!(steps(text), expected);
    }

    #[test]
    fn what_runs_in_the_background_is_waited_for() {
        let waits = |command| unhurried(command).lines().nth(1).map(str::to_owned);
        let for_file = "until [ -s /tmp/x ]; do sleep 0.05; done";
        assert_eq!(waits("tshark -w /tmp/x &").as_deref(), Some(for_file));
        assert!(waits("softrdma run -- ib_write_bw &").is_some());
        for command in ["softrdma run -- ib_write_bw 127.0.0.1 &", "true", "a | b"] {
            assert_eq!(waits(command), None, "{command}");
        }
    }

    #[test]
    fn a_line_is_printed_with_other_numbers_and_not_in_other_words() {
        let output = "rdma_connect successful\nRDMA addr abc rkey 17 len 64\n";
        for (line, expected) in [
            ("RDMA addr 5597fc20a3c0 rkey 4ee len 64", true),
            ("RDMA addr 5597fc20a3c0 rkey 4ee", false),
            ("RDMA addr 5597fc20a3c0 …", true),
            ("… rkey 4ee len 64", true),
            ("RDMA … len 64", true),
            ("… rkey 4ee", false),
            ("rdma_connect", false),
            ("…", true),
            ("rdma_accept …", false),
        ] {
            assert_eq!(is_printed(line, output), expected, "{line}");
        }
    }
}
