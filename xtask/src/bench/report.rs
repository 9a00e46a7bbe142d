//! The table of a whole bench, and the same as JSON for keeping.

use anyhow::Result;
use serde::Serialize;

use super::figures::{Figures, median};
use super::machine::{self, Machine};
use super::plan::{Comparison, Row, Target};
use super::rounds::{Run, Samples};

/// With fewer rounds a median is no median.
const ROUNDS_TO_JUDGE: u32 = 3;

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    seconds: u32,
    rows: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    median: Option<Figures>,
    /// Name of the row that it is compared with.
    compared_with: Option<&'a str>,
    ratio: Option<f64>,
    target: Option<Target>,
    /// Whether the target is met, where the run can tell; a row without figures does not meet it.
    met: Option<bool>,
    note: &'a str,
    failure: Option<&'a str>,
    rounds: &'a [Figures],
}

/// Prints the table and writes the report.
pub fn write(run: &Run<'_>, samples: &[Samples]) -> Result<()> {
    let warning = run.machine.warning();
    let judged = warning.is_none() && run.rounds >= ROUNDS_TO_JUDGE;
    let lines = lines(run.rows, samples, judged);
    print(&lines);
    if judged {
        let verdicts = || lines.iter().filter_map(|line| line.met);
        let met = verdicts().filter(|met| *met).count();
        println!("\n{met} of {} targets met", verdicts().count());
    } else {
        let reason = warning.unwrap_or_else(|| format!("fewer than {ROUNDS_TO_JUDGE} rounds"));
        println!("\ntargets are not judged: {reason}");
    }
    let report = Report {
        machine: &run.machine,
        seconds: run.seconds,
        rows: lines,
    };
    machine::keep(&report, run.file)
}

fn lines<'a>(rows: &'a [Row], samples: &'a [Samples], judged: bool) -> Vec<Line<'a>> {
    let medians: Vec<Option<Figures>> = samples.iter().map(|row| median(&row.rounds)).collect();
    let median_of = |name: &str| {
        let index = rows.iter().position(|row| row.name == name)?;
        medians[index]
    };
    let ratio = |own: Figures, comparison: &Comparison| {
        let other = median_of(&comparison.to)?;
        Some(own.by(comparison.by)? / other.by(comparison.by)?)
    };
    let line = |(index, row): (usize, &'a Row)| {
        let comparison = row.comparison.as_ref();
        let ratio = medians[index]
            .zip(comparison)
            .and_then(|(own, comparison)| ratio(own, comparison));
        let target = comparison.and_then(|comparison| comparison.target);
        Line {
            name: &row.name,
            median: medians[index],
            compared_with: comparison.map(|comparison| comparison.to.as_str()),
            ratio,
            target,
            met: target
                .filter(|_| judged)
                .map(|target| ratio.is_some_and(|ratio| target.is_met(ratio))),
            note: row.note,
            failure: samples[index].failure.as_deref(),
            rounds: &samples[index].rounds,
        }
    };
    rows.iter().enumerate().map(line).collect()
}

fn print(lines: &[Line<'_>]) {
    let mut group = "";
    for line in lines {
        let (net, name) = line.name.split_once('/').unwrap_or(("", line.name));
        if net != group {
            group = net;
            println!(
                "\n{net:<36}{:>9}{:>10}{:>10}{:>10}{:>8}{:>8}  target",
                "Gbit/s", "M/s", "CPU s/GB", "p50 µs", "p99 µs", "ratio"
            );
        }
        let text = format!("  {name:<34}{}{}", columns(line.median), remarks(line));
        println!("{}", text.trim_end());
    }
    for line in lines {
        if let Some(failure) = line.failure {
            println!("\n{} failed {failure}", line.name);
        }
    }
    println!("\nM/s: million packets or messages a second; ratio: to the row named behind it");
    for (subject, note) in notes(lines) {
        println!("{subject}: {note}");
    }
}

/// What is worth knowing of a program or load, once for all its rows.
fn notes<'a>(lines: &[Line<'a>]) -> Vec<(&'a str, &'a str)> {
    let subject = |name: &'a str| {
        let (_, name) = name.split_once('/')?;
        name.split(',').next()
    };
    let mut notes: Vec<(&str, &str)> = Vec::new();
    for line in lines.iter().filter(|line| !line.note.is_empty()) {
        let note = (subject(line.name).unwrap_or(line.name), line.note);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

fn columns(figures: Option<Figures>) -> String {
    match figures {
        Some(Figures::Packets {
            gbit_per_s,
            mega_packets_per_s,
            ..
        }) => format!(
            "{:>9}{:>10}{:>28}",
            digits(gbit_per_s),
            digits(mega_packets_per_s),
            ""
        ),
        Some(Figures::Messages {
            gbit_per_s,
            mega_messages_per_s,
            cpu_seconds_per_gbyte,
            ..
        }) => {
            let cpu =
                cpu_seconds_per_gbyte.map_or(String::new(), |seconds| format!("{seconds:.2}"));
            format!(
                "{gbit_per_s:>9.2}{mega_messages_per_s:>10.3}{cpu:>10}{:>18}",
                ""
            )
        }
        Some(Figures::Latency { p50_us, p99_us }) => {
            format!("{:>29}{p50_us:>10.2}{p99_us:>8.1}", "")
        }
        Some(Figures::Average { us }) => format!("{:>29}{us:>10.2}{:>8}", "", ""),
        Some(Figures::Connections { connections_per_s }) => {
            format!("{:>9}{connections_per_s:>10.0}/s{:>26}", "", "")
        }
        None => format!("{:>47}", "-"),
    }
}

/// An emulated machine reaches thousandths of what others do.
fn digits(value: f64) -> String {
    if value < 1.0 {
        format!("{value:.4}")
    } else {
        format!("{value:.2}")
    }
}

fn remarks(line: &Line<'_>) -> String {
    let mut remarks = match line.ratio {
        Some(ratio) => format!("{ratio:>8.2}"),
        None => format!("{:>8}", ""),
    };
    if let Some(target) = line.target {
        let verdict = match line.met {
            Some(true) => " met",
            Some(false) => " missed",
            None => "",
        };
        remarks += &format!("  {target}{verdict}");
    }
    if let Some(other) = line.compared_with {
        remarks += &format!("  ({other})");
    }
    match line.median {
        Some(Figures::Packets {
            lost_bytes: 1.., ..
        }) => remarks += "  loses bytes",
        Some(Figures::Messages {
            datagrams_dropped: Some(dropped @ 1..),
            ..
        }) => remarks += &format!("  {dropped} datagrams dropped"),
        _ => {}
    }
    if let Some(reason) = line.failure.and_then(|failure| failure.lines().next()) {
        remarks += &format!("  FAILED {reason}");
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::By;
    use crate::bench::plan::Work;
    use crate::bench::raw::Limit;

    fn row(name: &str, comparison: Option<(&str, Target)>) -> Row {
        Row {
            name: name.into(),
            work: Work::Limit(Limit::Stream { payload: 4096 }),
            comparison: comparison.map(|(to, target)| Comparison {
                to: to.into(),
                by: By::Bandwidth,
                target: Some(target),
            }),
            note: "",
        }
    }

    fn samples(gbits: &[f64]) -> Samples {
        let rounds = gbits.iter().map(|gbit_per_s| Figures::Packets {
            gbit_per_s: *gbit_per_s,
            mega_packets_per_s: 1.0,
            lost_bytes: 0,
        });
        Samples {
            rounds: rounds.collect(),
            ..Samples::default()
        }
    }

    #[test]
    fn ratios_are_of_medians_and_targets_are_judged() {
        let rows = [
            row("raw/a", None),
            row("lo/b", Some(("raw/a", Target::AtLeast(0.5)))),
            row("lo/c", Some(("raw/a", Target::AtLeast(0.5)))),
        ];
        let all = [
            samples(&[100.0, 1.0, 80.0]),
            samples(&[48.0, 900.0, 0.0]),
            samples(&[8.0]),
        ];
        let unjudged = lines(&rows, &all, false);
        assert!(unjudged.iter().all(|line| line.met.is_none()));
        let lines = lines(&rows, &all, true);
        assert_eq!(lines[0].ratio, None);
        assert_eq!((lines[1].ratio, lines[1].met), (Some(0.6), Some(true)));
        assert_eq!((lines[2].ratio, lines[2].met), (Some(0.1), Some(false)));
    }

    #[test]
    fn a_row_that_failed_has_no_ratio_and_misses_its_target() {
        let rows = [
            row("raw/a", None),
            row("lo/b", Some(("raw/a", Target::AtMost(2.0)))),
        ];
        let failed = Samples {
            failure: Some("in round 1: it hung\nand printed this".into()),
            ..Samples::default()
        };
        let all = [samples(&[100.0]), failed];
        let lines = lines(&rows, &all, true);
        assert_eq!((lines[1].ratio, lines[1].met), (None, Some(false)));
        assert!(remarks(&lines[1]).contains("missed"));
        assert!(remarks(&lines[1]).contains("FAILED in round 1: it hung"));
    }
}
