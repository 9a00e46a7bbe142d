//! What one file may contain.

use std::path::Path;

/// Crates whose library (or program) forbids unsafe code as a whole.
const SAFE_CRATES: [&str; 6] = [
    "crates/wire/src/lib.rs",
    "crates/tap/src/lib.rs",
    "crates/engine/src/lib.rs",
    "crates/sim/src/lib.rs",
    "crates/cli/src/main.rs",
    "xtask/src/main.rs",
];

/// Crates that meet whatever the network sends: nothing in them may panic.
const MUST_NOT_PANIC: [&str; 2] = ["crates/wire/src", "crates/engine/src"];

/// From this many lines a file has to say at its top why it is one file.
const LONG_FILE: usize = 800;
/// How it says so, in one of its first lines.
const LENGTH_REASON: &str = "long because";
const FIRST_LINES: usize = 15;

const WIDTH: usize = 100;

/// Adds a line to `breaches` for each rule that this file breaks. `path` is from the root.
pub fn check(path: &Path, text: &str, breaches: &mut Vec<String>) {
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    let mut breach = |line: usize, what: &str| {
        breaches.push(format!("{}:{}: {what}", path.display(), line + 1));
    };
    promises(text, &mut breach);
    strangers(path, text, &mut breach);
    if ending == "rs" {
        rust(path, text, &mut breach);
    }
    if !["txt", "snap"].contains(&ending) {
        layout(text, ending == "rs", &mut breach); // not of what tools print
    }
}

/// Work that somebody meant to do later has a place in the tracker, not here.
fn promises(text: &str, breach: &mut impl FnMut(usize, &str)) {
    // spelled apart, or this file would break its own rule
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("HA", "CK"),
    ];
    let macros = [concat!("todo", "!("), concat!("unimple", "mented!(")];
    for (number, line) in text.lines().enumerate() {
        let has_word = words.iter().any(|word| contains_word(line, word));
        if has_word || macros.iter().any(|name| line.contains(name)) {
            breach(number, "a promise; do it, or open an issue");
        }
    }
}

/// Names that say nothing, and paths of one machine.
fn strangers(path: &Path, text: &str, breach: &mut impl FnMut(usize, &str)) {
    let nameless = ["utils", "util", "helpers", "misc", "common"];
    if path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .is_some_and(|stem| nameless.contains(&stem))
    {
        breach(0, "a name that says nothing about what is in the file");
    }
    let homes = [concat!("/wo", "rk/"), concat!("/ho", "me/")];
    let words = [
        concat!("fn ge", "t_"),
        concat!("Man", "ager {"),
        concat!("Man", "ager;"),
    ];
    let usual = ["fn get_mut(", "fn get_or_"]; // of the standard library
    // C has names of its own
    let in_c = path.starts_with("crates/capi");
    let ours = path.extension().is_some_and(|ending| ending == "rs") && !in_c;
    for (number, line) in text.lines().enumerate() {
        if homes.iter().any(|home| starts_a_path(line, home)) && !line.contains(":x:") {
            breach(number, "a path of one machine");
        }
        let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
        if ours && has(&words) && !has(&usual) {
            breach(number, "a name without content: say what it gives or does");
        }
    }
}

/// Whether an absolute path begins with `prefix` here, and not a part of another path.
fn starts_a_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || "./_$}~-".contains(c))
    })
}

fn rust(path: &Path, text: &str, breach: &mut impl FnMut(usize, &str)) {
    if SAFE_CRATES.iter().any(|file| path == Path::new(file))
        && !text.contains("#![forbid(unsafe_code)]")
    {
        breach(0, "this crate forbids unsafe code; say so");
    }
    let length = text.lines().count();
    let says_why = text
        .lines()
        .take(FIRST_LINES)
        .any(|line| line.contains(LENGTH_REASON));
    if length > LONG_FILE && !says_why {
        breach(
            0,
            &format!("{length} lines; find a seam, or say \"{LENGTH_REASON} …\" at the top"),
        );
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("#[ignore]") {
            breach(number, "a test is ignored without a reason");
        }
    }
    let inside = MUST_NOT_PANIC.iter().any(|folder| path.starts_with(folder));
    if inside && !is_test_file(path) {
        panics(text, breach);
    }
}

/// `unwrap` and its like need `// ok: reason` on the line or the line above.
fn panics(text: &str, breach: &mut impl FnMut(usize, &str)) {
    const PANICS: [&str; 5] = [
        ".unwrap()",
        ".expect(",
        "panic!(",
        "unreachable!(",
        ".unwrap_err()",
    ];
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        // tests stand last in a file
        if line.trim() == "#[cfg(test)]" {
            return;
        }
        let code = line.split("//").next().unwrap_or_default();
        let reasoned = line.contains("// ok:") || before.contains("// ok:");
        if PANICS.iter().any(|panic| code.contains(panic)) && !reasoned {
            breach(
                number,
                "may panic; return an error, or add `// ok: why it cannot`",
            );
        }
        before = line;
    }
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

/// Lines of Rust fit, but for those that cannot be broken: links and single long words.
fn layout(text: &str, rust: bool, breach: &mut impl FnMut(usize, &str)) {
    let mut aligned: Option<usize> = None; // indentation of a table that rustfmt leaves alone
    for (number, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            breach(number, "blanks at the end of the line");
        }
        let indentation = line.len() - line.trim_start().len();
        if line.trim() == "#[rustfmt::skip]" {
            aligned = Some(indentation);
        } else if aligned == Some(indentation) && line.trim_start().starts_with(['}', ']']) {
            aligned = None;
        }
        let breakable = !line.contains("http")
            && !is_literal(line)
            && line
                .split_whitespace()
                .all(|word| word.chars().count() < WIDTH);
        if rust && aligned.is_none() && breakable && line.chars().count() > WIDTH {
            breach(number, &format!("wider than {WIDTH} columns"));
        }
    }
}

/// Hexadecimal packets and expected output stand as they are.
fn is_literal(line: &str) -> bool {
    line.trim_start().starts_with(['"', '\\']) || line.contains("r#\"") || line.contains("\\t")
}

fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        !letter(line[..at].chars().next_back()) && !letter(line[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{LONG_FILE, check};

    fn breaches(path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check(Path::new(path), text, &mut found);
        found
    }

    #[test]
    fn a_panic_in_wire_needs_its_reason() {
        let path = "crates/wire/src/bth.rs";
        assert_eq!(breaches(path, "let a = b.unwrap();\n").len(), 1);
        assert!(breaches(path, "let a = b.unwrap(); // ok: checked above\n").is_empty());
        assert!(breaches(path, "// ok: checked above\nlet a = b.unwrap();\n").is_empty());
        assert!(breaches(path, "#[cfg(test)]\nmod tests { b.unwrap() }\n").is_empty());
        assert!(breaches("crates/wire/src/bth/tests.rs", "b.unwrap();\n").is_empty());
        assert!(breaches("crates/io/src/udp.rs", "b.unwrap();\n").is_empty());
    }

    #[test]
    fn a_long_file_says_why() {
        let lines = "//\n".repeat(LONG_FILE + 1);
        assert_eq!(breaches("xtask/src/long.rs", &lines).len(), 1);
        let lines = format!("//! One file, long because it is a table.\n{lines}");
        assert!(breaches("xtask/src/long.rs", &lines).is_empty());
    }

    #[test]
    fn unsafe_code_is_forbidden_where_it_must_be() {
        assert_eq!(breaches("crates/engine/src/lib.rs", "//! text\n").len(), 1);
        assert!(breaches("crates/engine/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn promises_and_wide_lines_are_found() {
        assert_eq!(breaches("a.md", concat!("TO", "DO: more\n")).len(), 1);
        assert!(breaches("a.md", "MASTODON\n").is_empty());
        assert_eq!(breaches("a.rs", &"ab ".repeat(40)).len(), 2);
        let table = format!(
            "#[rustfmt::skip]\nconst A: B = [\n{}x,\n];\n",
            "a,  ".repeat(40)
        );
        assert!(breaches("a.rs", &table).is_empty());
    }
}
