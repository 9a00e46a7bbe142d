//! The machine that is measured: its processors, what else it does, and where its figures are kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::workspace;

/// Both sides need a processor of their own; others that use more than this of one take it away.
const OTHERS_MAX: f64 = 0.1;
/// How long to look at what others do.
const LOOK: Duration = Duration::from_secs(1);
/// `/proc/stat` counts in this unit on every architecture of ours.
const TICKS_PER_SECOND: f64 = 100.0;

/// What the figures depend on besides the code.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    kernel: String,
    processors: usize,
    /// Processors that other programs used while nothing was measured; the most that was seen.
    others: f64,
    /// Bytes; the kernel grants a socket twice as much.
    receive_buffer_max: u64,
}

impl Machine {
    /// As it is now, before anything is measured; takes a second.
    pub fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            others: busy(),
            receive_buffer_max: read("/proc/sys/net/core/rmem_max")
                .trim()
                .parse()
                .unwrap_or(0),
        }
    }

    /// Looks once more for other programs, while nothing is measured; takes a second.
    pub fn look_again(&mut self) {
        self.others = self.others.max(busy());
    }

    /// What to say below the figures if other programs were running.
    pub fn warning(&self) -> Option<String> {
        let others = self.others;
        (others > OTHERS_MAX).then(|| {
            format!("other programs used {others:.2} processors: even the ratios say little")
        })
    }
}

/// Processors in use during the next second.
fn busy() -> f64 {
    let ticks = || busy_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
    let (before, start) = (ticks(), Instant::now());
    std::thread::sleep(LOOK); // longer, where others have the processors
    let seconds = start.elapsed().as_secs_f64();
    let ticks = before
        .zip(ticks())
        .map_or(0, |(before, after)| after.saturating_sub(before));
    ticks as f64 / TICKS_PER_SECOND / seconds
}

/// Time that all processors together were not idle, from `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let mut columns = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let mut next = || columns.next()?.parse::<u64>().ok();
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _waiting) = (next()?, next()?);
    let interrupts: u64 = std::iter::from_fn(next).take(2).sum();
    Some(user + nice + system + interrupts)
}

/// A processor for each side, the sender's first, where this process may use two.
pub fn two_processors() -> Result<Option<[usize; 2]>> {
    let allowed = sched_getaffinity(None)?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Ok(usable
        .next()
        .zip(usable.next())
        .map(|(first, second)| [first, second]))
}

/// Keeps this thread on one processor until it is dropped.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub fn to(processor: usize) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).context("pinning to a processor")?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; if no more, this thread stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Where the figures of this name are kept; makes the folder.
pub fn kept(name: &str) -> Result<PathBuf> {
    let folder = workspace::target()?.join("bench");
    fs::create_dir_all(&folder).context("making the folder")?;
    Ok(folder.join(name))
}

/// Writes a report where it is kept and says so.
pub fn keep(report: &impl Serialize, path: &Path) -> Result<()> {
    fs::write(path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| format!("writing {}", path.display()))?;
    println!("\nkept in {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_not_idle() {
        let stat = "cpu  10 20 30 4000 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_ticks(stat), Some(10 + 20 + 30 + 6 + 7));
        assert_eq!(busy_ticks(""), None);
        assert_eq!(busy_ticks("cpu 1 2 x"), None);
    }

    #[test]
    fn a_pinned_thread_may_go_everywhere_again() {
        let before = sched_getaffinity(None).unwrap();
        let Some([_, second]) = two_processors().unwrap() else {
            return; // one processor: nothing to pin
        };
        {
            let _pinned = Pinned::to(second).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        }
        let after = sched_getaffinity(None).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|cpu| before.is_set(cpu) == after.is_set(cpu)));
    }
}
