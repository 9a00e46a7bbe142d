//! The table for people, and the same as JSON for keeping.

use anyhow::{Context, Result};
use serde::Serialize;

use super::Row;
use super::plan::{Exchange, Plan};
use crate::bench::figures::{Figures, median};
use crate::bench::machine::{self, Machine};

/// What is kept of a bench.
#[derive(Serialize)]
struct Report<'a> {
    machine: Machine,
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
    rounds: &'a [Figures],
}

/// Prints the table and writes `bench/raw.json` in the target folder.
pub fn write(rows: &[Row], samples: &[Vec<Figures>], seconds: f64, machine: Machine) -> Result<()> {
    let lines = lines(rows, samples)?;
    print(&lines);
    if let Some(warning) = machine.warning() {
        println!("\n{warning}");
    }
    let report = Report {
        machine,
        seconds,
        rows: lines,
    };
    machine::keep(&report, &machine::kept("raw.json")?)
}

fn lines<'a>(rows: &'a [Row], samples: &'a [Vec<Figures>]) -> Result<Vec<Line<'a>>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut first = f64::NAN;
    for (row, rounds) in rows.iter().zip(samples) {
        let median = median(rounds).context("a row that was not measured")?;
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
    Ok(lines)
}

/// Rows of one group move the same amount of payload in the same way.
fn group(plan: &Plan) -> (bool, usize) {
    (plan.exchange == Exchange::Stream, plan.payload)
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
        let (one, other, lost) = match line.median {
            Figures::Packets {
                gbit_per_s,
                mega_packets_per_s,
                lost_bytes,
            } => (gbit_per_s, mega_packets_per_s, lost_bytes),
            Figures::Messages {
                gbit_per_s,
                mega_messages_per_s,
                ..
            } => (gbit_per_s, mega_messages_per_s, 0),
            Figures::Latency { p50_us, p99_us } => (p50_us, p99_us, 0),
            // plain sockets have none of these
            Figures::Connections { connections_per_s } => (0.0, connections_per_s, 0),
            Figures::Average { us } => (us, 0.0, 0),
        };
        let note = if lost > 0 {
            format!("  {lost} bytes lost")
        } else {
            String::new()
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

    fn throughput(gbit_per_s: f64) -> Figures {
        Figures::Packets {
            gbit_per_s,
            mega_packets_per_s: gbit_per_s / 10.0,
            lost_bytes: 0,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_to_the_first_row_of_a_group() {
        let row = |name, payload| Row {
            name,
            plan: Plan::throughput(payload, 2),
        };
        let rows = [row("plain", 4096), row("sealed", 4096), row("plain", 1024)];
        let samples: Vec<Vec<Figures>> = [[10.0, 90.0, 100.0], [45.0, 1.0, 99.0], [7.0, 8.0, 9.0]]
            .iter()
            .map(|rounds| rounds.map(throughput).to_vec())
            .collect();
        let lines = lines(&rows, &samples).unwrap();
        let ratios: Vec<f64> = lines.iter().map(|line| line.ratio).collect();
        assert_eq!(ratios, [1.0, 0.5, 1.0]);
        assert_eq!(lines[2].median.main(), 8.0);
        assert_eq!(lines[0].rounds.len(), 3);
    }
}
