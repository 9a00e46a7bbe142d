//! The commands of the tutorial about connections, as they are printed there, one after the other.

use anyhow::{Context, Result, ensure};

use super::scenes::Scene;
use super::world::World;
use super::{softrdma, succeeded};
use crate::process::Running;

/// Runs once, as root on `lo`.
pub const SCENES: [Scene; 1] = [("tutorial", tutorial)];

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");

/// How the section begins that is run.
const SECTION: &str = "\n## 8. ";

/// What of a text stands for something that is left out.
const ELLIPSIS: &str = "…";

fn tutorial(world: &World) -> Result<()> {
    let lines = console(TUTORIAL).context("the section is gone")?;
    let commands = lines.iter().filter_map(|line| line.strip_prefix("# "));
    let script = ["set -e"].into_iter().chain(commands);
    let script = script.collect::<Vec<_>>().join("\n");
    let command = softrdma();
    let folder = command.parent().context("softrdma is in no folder")?;
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut shell = world
        .server
        .start_plain(&["sh", "-c", &script], &[("PATH", &path)])?;
    let ended = shell.wait()?;
    succeeded("sh", &ended)?;
    for line in lines.iter().filter(|line| !line.starts_with("# ")) {
        ensure!(
            is_printed(line, &ended.output),
            "nothing like {line:?} in:\n{}",
            ended.output
        );
    }
    Ok(())
}

/// The lines of the section's blocks of commands.
fn console(tutorial: &str) -> Option<Vec<&str>> {
    let (_, section) = tutorial.split_once(SECTION)?;
    let section = section.split("\n## ").next()?;
    let blocks = section.split("```console\n").skip(1);
    let lines = blocks.filter_map(|block| Some(block.split_once("```")?.0.lines()));
    Some(lines.flatten().collect())
}

/// Whether a line like this was printed: numbers differ from run to run, and what follows `…` is
/// left open.
fn is_printed(line: &str, output: &str) -> bool {
    let (shown, is_whole) = match line.split_once(ELLIPSIS) {
        Some((shown, _)) => (shown, false),
        None => (line, true),
    };
    let shown: Vec<&str> = words(shown).collect();
    output.lines().any(|line| {
        let printed: Vec<&str> = words(line).collect();
        printed.starts_with(&shown) && (!is_whole || printed.len() == shown.len())
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
    fn both_languages_have_the_same_lines() {
        let lines = console(TUTORIAL).expect("the section");
        assert!(lines.contains(&"# wait"));
        assert_eq!(console(CHINESE), Some(lines));
    }

    #[test]
    fn a_line_is_printed_with_other_numbers_and_not_in_other_words() {
        let output = "rdma_connect successful\nRDMA addr abc rkey 17 len 64\n";
        for (line, expected) in [
            ("RDMA addr 5597fc20a3c0 rkey 4ee len 64", true),
            ("RDMA addr 5597fc20a3c0 rkey 4ee", false),
            ("RDMA addr 5597fc20a3c0 …", true),
            ("rdma_connect", false),
            ("…", true),
            ("rdma_accept …", false),
        ] {
            assert_eq!(is_printed(line, output), expected, "{line}");
        }
    }
}
