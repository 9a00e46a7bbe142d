//! Sizes, offsets and constants: ours from the example `abi_table`, theirs from a C program that is
//! generated from ours and compiled with the installed headers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Findings, output_of};
use crate::workspace;

/// Which headers declare what, and the Debian packages that bring them.
const HEADERS: [(&str, &str); 5] = [
    ("infiniband/verbs.h", "libibverbs-dev"),
    ("infiniband/sa.h", "libibverbs-dev"),
    ("rdma/rdma_cma.h", "librdmacm-dev"),
    ("rdma/ib_user_verbs.h", "libibverbs-dev"),
    ("rdma/ib_user_sa.h", "libibverbs-dev"),
];

/// This structure grows at its front: only the distance of a field from this one is fixed.
const GROWS_AT_FRONT: (&str, &str) = ("verbs_context", "context");

/// Ours: a structure or union, or the constants.
struct Row {
    /// An expression of C whose value must be `value`.
    expression: String,
    value: i64,
    /// Fields that younger headers have: (structure, field) to try first.
    later: Option<(String, String)>,
    /// Sizes of structures that may have grown since the headers.
    may_be_smaller: bool,
}

/// Compares every row of our table.
pub fn compare(findings: &mut Findings) -> Result<()> {
    let missing: Vec<_> = HEADERS
        .iter()
        .filter(|(header, _)| !Path::new("/usr/include").join(header).exists())
        .collect();
    if !missing.is_empty() {
        for (header, package) in missing {
            findings
                .skipped
                .push(format!("layouts: no {header} (apt-get install {package})"));
        }
        return Ok(());
    }
    let table = output_of(
        Command::new(workspace::cargo())
            .current_dir(workspace::root())
            .args([
                "run",
                "--quiet",
                "--locked",
                "--package",
                "softrdma-capi",
                "--example",
                "abi_table",
            ]),
    )?;
    let mut rows = parse(&table)?;
    let workshop = Workshop::open()?;

    let mut absent: Vec<(String, String)> = Vec::new();
    for row in &rows {
        if let Some((structure, field)) = &row.later
            && !absent.contains(&(structure.clone(), field.clone()))
            && !workshop.compiles(&format!("sizeof((({structure} *)0)->{field})"))?
        {
            absent.push((structure.clone(), field.clone()));
        }
    }
    rows.retain(|row| {
        row.later
            .as_ref()
            .is_none_or(|later| !absent.contains(later))
    });
    for (structure, field) in &absent {
        findings.skipped.push(format!(
            "{structure}.{field}: these headers do not have it yet"
        ));
    }

    let theirs = workshop.values(rows.iter().map(|row| row.expression.as_str()))?;
    let mut same = 0;
    for (row, theirs) in rows.iter().zip(theirs) {
        let accepted = row.value == theirs || (row.may_be_smaller && theirs < row.value);
        if accepted {
            same += 1;
        } else {
            findings
                .wrong
                .push(format!("{}: {theirs}, ours {}", row.expression, row.value));
        }
    }
    findings.checked.push(format!(
        "{same} sizes, offsets and constants of the installed headers"
    ));
    Ok(())
}

/// The table of `abi_table` as expressions of C.
fn parse(table: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut structure = String::new();
    let mut anchor: BTreeMap<String, i64> = BTreeMap::new();
    let mut fields: Vec<(String, String, i64, Option<i64>, bool)> = Vec::new();
    let mut sizes: Vec<(String, i64)> = Vec::new();
    for line in table.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["type", kind, name, size] => {
                structure = format!("{kind} {name}");
                sizes.push((structure.clone(), size.parse()?));
            }
            ["field", path, offset, size, since] => {
                let offset: i64 = offset.parse()?;
                let size = (size != "-").then(|| size.parse()).transpose()?;
                if structure.ends_with(&format!(" {}", GROWS_AT_FRONT.0))
                    && path == GROWS_AT_FRONT.1
                {
                    anchor.insert(structure.clone(), offset);
                }
                fields.push((structure.clone(), path.into(), offset, size, since != "44"));
            }
            ["constant", name, value] => rows.push(Row {
                expression: name.into(),
                value: value.parse()?,
                later: None,
                may_be_smaller: false,
            }),
            _ => bail!("a line of abi_table that nobody understands: {line:?}"),
        }
    }
    for (structure, path, offset, size, later) in &fields {
        let later = later.then(|| (structure.clone(), path.clone()));
        let (expression, value) = match anchor.get(structure) {
            Some(at) => (
                format!(
                    "(long long)offsetof({structure}, {}) - (long long)offsetof({structure}, {path})",
                    GROWS_AT_FRONT.1
                ),
                at - offset,
            ),
            None => (format!("offsetof({structure}, {path})"), *offset),
        };
        rows.push(Row {
            expression,
            value,
            later: later.clone(),
            may_be_smaller: false,
        });
        if let Some(size) = size {
            let expression = format!("sizeof((({structure} *)0)->{path})");
            rows.push(Row {
                expression,
                value: *size,
                later,
                may_be_smaller: false,
            });
        }
    }
    for (structure, size) in sizes {
        let may_be_smaller = fields.iter().any(|field| field.0 == structure && field.4);
        let expression = format!("sizeof({structure})");
        rows.push(Row {
            expression,
            value: size,
            later: None,
            may_be_smaller,
        });
    }
    Ok(rows)
}

/// A folder for the C programs; gone when dropped.
struct Workshop(std::path::PathBuf);

impl Workshop {
    fn open() -> Result<Workshop> {
        let folder = std::env::temp_dir().join(format!("softrdma-abi.{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Workshop(folder))
    }

    /// Whether an expression makes sense to these headers.
    fn compiles(&self, expression: &str) -> Result<bool> {
        let file = self.0.join("probe.c");
        fs::write(&file, program(&format!("\t(void)({expression});\n")))?;
        let compiler = Command::new("cc").arg("-fsyntax-only").arg(&file).output();
        Ok(compiler.context("run cc")?.status.success())
    }

    /// The values of expressions.
    fn values<'a>(&self, expressions: impl Iterator<Item = &'a str>) -> Result<Vec<i64>> {
        let mut body = String::new();
        for expression in expressions {
            writeln!(body, "\tprintf(\"%lld\\n\", (long long)({expression}));")?;
        }
        let (file, binary) = (self.0.join("values.c"), self.0.join("values"));
        fs::write(&file, program(&body))?;
        output_of(Command::new("cc").arg(&file).arg("-o").arg(&binary))?;
        let printed = output_of(&mut Command::new(&binary))?;
        printed
            .lines()
            .map(|line| line.parse().context("what the C program printed"))
            .collect()
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // Only files of ours; a leftover harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program(body: &str) -> String {
    let includes: String = HEADERS
        .iter()
        .map(|(header, _)| format!("#include <{header}>\n"))
        .collect();
    format!(
        "#include <stddef.h>\n#include <stdio.h>\n{includes}\nint main(void)\n{{\n{body}\treturn 0;\n}}\n"
    )
}
