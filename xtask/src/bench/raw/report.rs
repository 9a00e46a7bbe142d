//! The table for people, and the same as JSON for keeping.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Row;
use super::plan::{Exchange, Plan};
use super::sender::Sample;
use crate::workspace;

/// Both sides need a processor of their own; with more load than this before, they had none.
const LOAD_MAX: f64 = 0.5;

/// What is kept of a bench.
#[derive(Serialize)]
struct Report<'a> {
    kernel: String,
    processors: usize,
    /// Of the minute before: other programs.
    load_average: f64,
    seconds: f64,
    rows: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    plan: &'a Plan,
    median: Figures,
    /// To the first row of the group.
    ratio: f64,
    rounds: Vec<Figures>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum Figures {
    Throughput {
        gbit_per_s: f64,
        mega_packets_per_s: f64,
        lost_bytes: u64,
    },
    Latency {
        p50_us: f64,
        p99_us: f64,
    },
}

impl Figures {
    /// The one that rows are compared by.
    fn main(self) -> f64 {
        match self {
            Self::Throughput { gbit_per_s, .. } => gbit_per_s,
            Self::Latency { p50_us, .. } => p50_us,
        }
    }
}

impl From<&Sample> for Figures {
    fn from(sample: &Sample) -> Self {
        match *sample {
            Sample::Throughput {
                gbit_per_s,
                mega_packets_per_s,
                lost,
            } => Self::Throughput {
                gbit_per_s,
                mega_packets_per_s,
                lost_bytes: lost,
            },
            Sample::Latency { p50, p99 } => Self::Latency {
                p50_us: p50,
                p99_us: p99,
            },
        }
    }
}

/// Processes that wanted a processor during the last minute; 0 where it cannot be read.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|minute| minute.parse().ok())
        .unwrap_or(0.0)
}

/// Prints the table and writes `bench/raw.json` in the target folder.
pub fn write(rows: &[Row], samples: &[Vec<Sample>], seconds: f64, load_average: f64) -> Result<()> {
    let lines = lines(rows, samples);
    print(&lines);
    if load_average > LOAD_MAX {
        println!("\nother programs were running (load {load_average}): even the ratios say little");
    }
    let report = Report {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| "unknown".into(), |text| text.trim().into()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load_average,
        seconds,
        rows: lines,
    };
    let path = workspace::target()?.join("bench/raw.json");
    fs::create_dir_all(path.parent().unwrap_or(&path)).context("making the folder")?;
    fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("writing {}", path.display()))?;
    println!("\nkept in {}", path.display());
    Ok(())
}

fn lines<'a>(rows: &'a [Row], samples: &[Vec<Sample>]) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut first = f64::NAN;
    for (row, samples) in rows.iter().zip(samples) {
        let rounds: Vec<Figures> = samples.iter().map(Figures::from).collect();
        let median = median(&rounds);
        let begins_group = lines
            .last()
            .is_none_or(|line| group(line.plan) != group(&row.plan));
        if begins_group {
            first = median.main();
        }
        let ratio = median.main() / first;
        lines.push(Line {
            name: row.name,
            plan: &row.plan,
            median,
            ratio,
            rounds,
        });
    }
    lines
}

/// Rows of one group move the same amount of payload in the same way.
fn group(plan: &Plan) -> (bool, usize) {
    (plan.exchange == Exchange::Stream, plan.payload)
}

/// The round in the middle by its main figure, so that its figures belong together.
fn median(rounds: &[Figures]) -> Figures {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(|one, other| one.main().total_cmp(&other.main()));
    sorted[sorted.len() / 2]
}

fn print(lines: &[Line<'_>]) {
    let mut previous = None;
    for line in lines {
        let group = group(line.plan);
        if previous != Some(group) {
            println!();
            match group {
                (true, payload) => {
                    println!(
                        "{:<34}{:>9}{:>12}{:>8}",
                        "", "Gbit/s", "Mpackets/s", "ratio"
                    );
                    println!("payload {payload}");
                }
                (false, _) => {
                    println!("{:<34}{:>9}{:>12}{:>8}", "", "p50 µs", "p99 µs", "ratio");
                    println!("half round trip, payload 64");
                }
            }
            previous = Some(group);
        }
        let (one, other, note) = match line.median {
            Figures::Throughput {
                gbit_per_s,
                mega_packets_per_s,
                lost_bytes,
            } => {
                let note = if lost_bytes > 0 {
                    format!("  {lost_bytes} bytes lost")
                } else {
                    String::new()
                };
                (gbit_per_s, mega_packets_per_s, note)
            }
            Figures::Latency { p50_us, p99_us } => (p50_us, p99_us, String::new()),
        };
        println!(
            "  {:<32}{one:>9.2}{other:>12.2}{:>8.2}{note}",
            line.name, line.ratio
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throughput(gbit_per_s: f64) -> Sample {
        Sample::Throughput {
            gbit_per_s,
            mega_packets_per_s: gbit_per_s / 10.0,
            lost: 0,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_to_the_first_row_of_a_group() {
        let row = |name, payload| Row {
            name,
            plan: Plan::throughput(payload, 2),
        };
        let rows = [row("plain", 4096), row("sealed", 4096), row("plain", 1024)];
        let samples: Vec<Vec<Sample>> = [[10.0, 90.0, 100.0], [45.0, 1.0, 99.0], [7.0, 8.0, 9.0]]
            .iter()
            .map(|rounds| rounds.map(throughput).to_vec())
            .collect();
        let lines = lines(&rows, &samples);
        let ratios: Vec<f64> = lines.iter().map(|line| line.ratio).collect();
        assert_eq!(ratios, [1.0, 0.5, 1.0]);
        assert_eq!(lines[2].median.main(), 8.0);
        assert_eq!(lines[0].rounds.len(), 3);
    }
}
