//! House rules as a test: `cargo xtask tidy` prints every breach, and `cargo test -p xtask` fails
//! on one.
//!
//! Clippy and rustc hold what they can (`undocumented_unsafe_blocks`, `missing_docs`, …); here is
//! what they cannot see.

mod dependencies;
mod links;
mod source;

use std::path::{Path, PathBuf};
use std::{fs, process};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// Runs every rule, prints what breaks one, and fails if anything did.
pub fn run() -> Result<()> {
    let breaches = check()?;
    for breach in &breaches {
        println!("{breach}");
    }
    match breaches.len() {
        0 => Ok(()),
        count => bail!("{count} breaches of the house rules"),
    }
}

/// All breaches, one line each, as `file:line: what`.
fn check() -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    dependencies::check(&mut breaches)?;
    for file in tracked_files()? {
        let path = workspace::root().join(&file);
        // a file may be listed and gone, between a deletion and its commit
        if let Ok(text) = fs::read_to_string(&path) {
            source::check(&file, &text, &mut breaches);
            if file.extension().is_some_and(|ending| ending == "md") {
                links::check(workspace::root(), &file, &text, &mut breaches);
            }
        }
    }
    Ok(breaches)
}

/// The text files of the project: what git has or would take.
fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = process::Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(workspace::root())
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let names = String::from_utf8(output.stdout).context("names of files")?;
    Ok(names
        .split_terminator('\0')
        .filter(|name| is_text(Path::new(name)))
        .map(PathBuf::from)
        .collect())
}

fn is_text(path: &Path) -> bool {
    const ENDINGS: [&str; 9] = ["rs", "toml", "md", "c", "h", "sh", "map", "snap", "txt"];
    match path.extension().and_then(|ending| ending.to_str()) {
        Some(ending) => ENDINGS.contains(&ending),
        None => ["init", "run"].iter().any(|name| path.ends_with(name)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_keeps_its_rules() {
        let breaches = super::check().expect("the rules can be checked");
        assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
    }
}
