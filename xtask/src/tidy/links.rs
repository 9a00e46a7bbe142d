//! Links between the pages of the project lead somewhere.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Adds a line for each link of a page that leads to no file, or to no heading of its file.
pub fn check(root: &Path, page: &Path, text: &str, breaches: &mut Vec<String>) {
    let folder = root
        .join(page)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let mut known: HashMap<PathBuf, Vec<String>> = HashMap::new();
    for (number, line) in prose(text) {
        for target in targets(line) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                root.join(page)
            } else {
                folder.join(file)
            };
            let mut breach = |what: &str| {
                breaches.push(format!(
                    "{}:{}: {target}: {what}",
                    page.display(),
                    number + 1
                ));
            };
            if !path.exists() {
                breach("no such file");
            } else if !anchor.is_empty() && path.extension().is_some_and(|ending| ending == "md") {
                let headings = known.entry(path).or_insert_with_key(|path| {
                    headings(&fs::read_to_string(path).unwrap_or_default())
                });
                if !headings.iter().any(|heading| heading == anchor) {
                    breach("no such heading");
                }
            }
        }
    }
}

/// The numbered lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Where the links of a line lead, without those to other places.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let ends = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    ends.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// The anchors that a page's headings get where it is displayed.
fn headings(text: &str) -> Vec<String> {
    let titles = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    titles
        .map(|title| anchor(title.trim_start_matches('#').trim()))
        .collect()
}

fn anchor(title: &str) -> String {
    let lower = title.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{anchor, check};

    #[test]
    fn dead_links_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "# One page\n[a](Cargo.toml) [b](https://example.org/x) [c](#one-page)\n\
                    [d](nowhere.md)\n```\n[e](code.md)\n```\n";
        let mut breaches = Vec::new();
        check(root, Path::new("page.md"), text, &mut breaches);
        // the page itself is not a file here, so its own heading cannot be found either
        assert_eq!(breaches.len(), 2, "{breaches:?}");
        assert!(
            breaches[1].starts_with("page.md:3: nowhere.md"),
            "{breaches:?}"
        );
    }

    #[test]
    fn anchors_are_spelled_as_displayed() {
        assert_eq!(
            anchor("2.1 One UDP port, many processes"),
            "21-one-udp-port-many-processes"
        );
    }
}
