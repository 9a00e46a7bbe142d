//! Resident memory: after very many queue pairs, and during a long transfer.

use anyhow::{Context, Result, ensure};

use super::{Plan, number_before, program, rate};
use crate::programs::World;

/// What a process may grow by.
const GROWTH_MAX_KIB: f64 = 2048.0;

/// Cycles of a queue pair's life; growth counts from a tenth of them on.
const CYCLES: u32 = 100_000;
const CYCLES_SHORT: u32 = 1_000;

/// Cycles in a second, at the least: for the guard only.
const CYCLES_PER_SECOND: u64 = 20;

pub fn soak(world: &World, plan: Plan) -> Result<()> {
    let cycles = if plan.short { CYCLES_SHORT } else { CYCLES };
    let argv = ["/run/verbs_pairs", "-c", &cycles.to_string()].map(String::from);
    let output = program(world, &argv, u64::from(cycles) / CYCLES_PER_SECOND)?;
    print!("{output}");
    for worker in 0..2 {
        let resident = |cycle: u32| {
            let start = format!("worker {worker}: cycle {cycle}: ");
            let line = output.lines().find(|line| line.starts_with(&start));
            line.and_then(|line| number_before(line, "KiB"))
                .with_context(|| format!("no {start:?}"))
        };
        within(resident(cycles)? - resident(cycles / 10)?)
            .with_context(|| format!("worker {worker}, from cycle {} on", cycles / 10))?;
    }

    let argv = ["/run/verbs_pairs", "-t", &plan.seconds.to_string()].map(String::from);
    let output = program(world, &argv, plan.seconds)?;
    print!("{output}");
    ensure!(rate(&output)? > 0.0, "nothing was transferred");
    let ends: Vec<&str> = output
        .lines()
        .filter(|line| line.ends_with("more than at first"))
        .collect();
    ensure!(ends.len() == 2, "not two ends");
    for line in ends {
        within(number_before(line, "KiB").context("no KiB")?).context(line.to_owned())?;
    }
    Ok(())
}

fn within(growth: f64) -> Result<()> {
    ensure!(growth < GROWTH_MAX_KIB, "grew by {growth} KiB");
    Ok(())
}
