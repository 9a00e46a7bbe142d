//! House rules as a test: `cargo xtask tidy` prints every breach, `cargo test -p xtask` fails on one.
//!
//! Clippy and rustc hold what they can (`undocumented_unsafe_blocks`, `missing_docs`, …); here is
//! what they cannot see.

mod dependencies;

use anyhow::{Result, bail};

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
    Ok(breaches)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_keeps_its_rules() {
        let breaches = super::check().expect("the rules can be checked");
        assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
    }
}
