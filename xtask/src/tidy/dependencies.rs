//! Which of our crates may know which.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace;

/// Each crate with those it may depend on. Dev-dependencies may not break the direction either:
/// a test that needs an upper crate belongs to the upper crate.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("softrdma-wire", &[]),
    ("softrdma-tap", &["softrdma-wire"]),
    ("softrdma-engine", &["softrdma-wire"]),
    ("softrdma-io", &[]),
    // the broker parses what arrives at QP 1, and its messages carry GIDs and QPNs
    ("softrdma-broker", &["softrdma-io", "softrdma-wire"]),
    (
        "softrdma",
        &[
            "softrdma-wire",
            "softrdma-tap",
            "softrdma-engine",
            "softrdma-io",
            "softrdma-broker",
        ],
    ),
    (
        "softrdma-rsocket",
        &["softrdma-wire", "softrdma-io", "softrdma"],
    ),
    ("softrdma-capi", &["softrdma", "softrdma-rsocket"]),
    (
        "softrdma-sim",
        &[
            "softrdma-wire",
            "softrdma-tap",
            "softrdma-engine",
            "softrdma",
        ],
    ),
    (
        "softrdma-cli",
        &[
            "softrdma-wire",
            "softrdma-tap",
            "softrdma-engine",
            "softrdma-io",
            "softrdma-broker",
            "softrdma",
            "softrdma-sim",
        ],
    ),
    ("xtask", &["softrdma-wire", "softrdma-io", "softrdma-sim"]),
];

/// Compares the dependencies of every workspace member with [`MAY_KNOW`].
pub fn check(breaches: &mut Vec<String>) -> Result<()> {
    let packages = workspace::metadata()?["packages"]
        .as_array()
        .context("packages")?;
    let ours: Vec<&Value> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .collect();
    let names: Vec<&str> = ours
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    for package in &ours {
        let name = package["name"].as_str().context("name of a package")?;
        let known = package["dependencies"].as_array().context("dependencies")?;
        let known = known
            .iter()
            .filter_map(|dependency| dependency["name"].as_str());
        let inner: Vec<&str> = known.filter(|other| names.contains(other)).collect();
        breaches.extend(against_the_arrow(name, &inner));
    }
    Ok(())
}

fn against_the_arrow(name: &str, knows: &[&str]) -> Vec<String> {
    let Some((_, allowed)) = MAY_KNOW.iter().find(|(of, _)| *of == name) else {
        return vec![format!(
            "{name}: a new crate; give it its place in xtask/src/tidy"
        )];
    };
    let wrong = knows.iter().filter(|other| !allowed.contains(*other));
    wrong
        .map(|other| format!("{name}: must not depend on {other}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::against_the_arrow;

    #[test]
    fn an_arrow_upwards_is_a_breach() {
        assert!(against_the_arrow("softrdma-engine", &["softrdma-wire"]).is_empty());
        let found = against_the_arrow("softrdma-engine", &["softrdma-wire", "softrdma-io"]);
        assert_eq!(found, ["softrdma-engine: must not depend on softrdma-io"]);
    }

    #[test]
    fn an_unknown_crate_must_be_placed() {
        assert_eq!(against_the_arrow("softrdma-more", &[]).len(), 1);
    }
}
