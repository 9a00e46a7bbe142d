//! The licences of everything that is linked in, against the list of `deny.toml`.
//!
//! What `cargo deny check licenses` does, without building cargo-deny first; `deny.toml` is the
//! list for both.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Fails if a package of the lock file has a licence that is not on the list.
pub fn check() -> Result<()> {
    let text = fs::read_to_string(workspace::root().join("deny.toml")).context("deny.toml")?;
    let allowed = allowed(&text)?;
    let packages = workspace::metadata()?["packages"]
        .as_array()
        .context("packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"]
            .as_str()
            .unwrap_or("a package without a name");
        match package["license"].as_str() {
            Some(licence) if fits(licence, &allowed) => {}
            Some(licence) => wrong.push(format!("{name}: {licence}")),
            None => wrong.push(format!("{name}: no licence")),
        }
    }
    ensure!(
        wrong.is_empty(),
        "licences that are not in deny.toml:\n{}",
        wrong.join("\n")
    );
    println!(
        "{} packages, licences within: {}",
        packages.len(),
        allowed.join(", ")
    );
    Ok(())
}

/// The strings of `allow = [ … ]`.
fn allowed(text: &str) -> Result<Vec<String>> {
    let list = text
        .split("allow = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let list = list.context("no list \"allow\" in deny.toml")?;
    Ok(list
        .split('"')
        .skip(1)
        .step_by(2)
        .map(String::from)
        .collect())
}

/// Whether an SPDX expression can be met with licences of the list.
fn fits(expression: &str, allowed: &[String]) -> bool {
    // old manifests separate alternatives by a slash
    let text = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = &words[..];
    alternatives(&mut rest, allowed) && rest.is_empty()
}

/// `a OR b …`; AND binds more tightly.
fn alternatives(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut any = conjunction(words, allowed);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        any |= conjunction(words, allowed);
    }
    any
}

fn conjunction(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut all = term(words, allowed);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        all &= term(words, allowed);
    }
    all
}

fn term(words: &mut &[&str], allowed: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    if *first == "(" {
        let inner = alternatives(words, allowed);
        let closed = words.first() == Some(&")");
        *words = words.get(1..).unwrap_or_default();
        return inner && closed;
    }
    let mut name = first.to_string();
    if words.first() == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(1).unwrap_or(&""));
        *words = words.get(2..).unwrap_or_default();
    }
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::{allowed, fits};

    #[test]
    fn expressions_are_read_as_spdx_says() {
        let list = allowed("[licenses]\nallow = [\n  \"MIT\", \"Unicode-3.0\",\n]\n").unwrap();
        assert_eq!(list, ["MIT", "Unicode-3.0"]);
        assert!(fits("MIT OR Apache-2.0", &list));
        assert!(fits("Apache-2.0/MIT", &list));
        assert!(fits("(MIT OR Apache-2.0) AND Unicode-3.0", &list));
        assert!(fits("GPL-2.0 AND BSD-2-Clause OR MIT", &list));
        assert!(!fits("MIT AND GPL-2.0", &list));
        assert!(!fits("Apache-2.0 WITH LLVM-exception", &list));
        assert!(!fits("(MIT", &list));
        assert!(!fits("", &list));
    }
}
