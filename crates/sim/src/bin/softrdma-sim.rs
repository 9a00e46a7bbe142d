//! Runs seeds: `softrdma-sim [WORLD] --seeds COUNT [--first SEED]`, or
//! `softrdma-sim [WORLD] --seed SEED [--trace]`, with `--device`, `--datagrams`, `--cm` or
//! `--streams` for the world.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use softrdma_sim::replay::{self, Trace};
use softrdma_sim::world::Summary;
use softrdma_sim::{cm_world, datagram_world, device_world, model_world, stream_world};

const USAGE: &str = "usage: softrdma-sim [--device|--datagrams|--cm|--streams] [--seeds COUNT] \
                     [--first SEED] [--seed SEED [--trace]]";

/// Failing seeds that are reported before a run of many stops.
const FAILURES_MAX: usize = 10;

struct Options {
    first: u64,
    count: u64,
    trace: Trace,
    /// The option that names the world; without one it is the engine's model.
    world: &'static str,
}

fn main() -> ExitCode {
    let Some(options) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let started = Instant::now();
    let next = AtomicU64::new(options.first);
    let end = options.first.saturating_add(options.count);
    let total = Mutex::new(Summary::default());
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(options.count as usize) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || lock(&failures).len() >= FAILURES_MAX {
                        break;
                    }
                    match run(seed, &options) {
                        Ok(summary) => add(&mut lock(&total), &summary),
                        Err(text) => {
                            println!(
                                "seed {seed}: {text}\n  see it: {}",
                                replay::command(seed, options.world)
                            );
                            lock(&failures).push(seed);
                        }
                    }
                }
            });
        }
    });
    let failures = lock(&failures);
    let total = lock(&total);
    println!(
        "{} seeds in {:.1?}: {} failed; {total:?}",
        options.count,
        started.elapsed(),
        failures.len()
    );
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a seed; a panic of the engine is a failure like any other.
fn run(seed: u64, options: &Options) -> Result<Summary, String> {
    let world = match options.world {
        "--device" => device_world::run,
        "--datagrams" => datagram_world::run,
        "--cm" => cm_world::run,
        "--streams" => stream_world::run,
        _ => model_world::run,
    };
    catch_unwind(AssertUnwindSafe(|| world(seed, options.trace))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn add(total: &mut Summary, one: &Summary) {
    total.events += one.events;
    total.packets += one.packets;
    total.completed += one.completed;
    total.flawed += one.flawed;
    total.exhausted += one.exhausted;
    total.retries += one.retries;
    total.not_ready += one.not_ready;
}

/// A thread that panicked while it held the lock has reported that already.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options {
        first: 0,
        count: 1000,
        trace: Trace::Off,
        world: "",
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--device" => options.world = "--device",
            "--datagrams" => options.world = "--datagrams",
            "--cm" => options.world = "--cm",
            "--streams" => options.world = "--streams",
            "--trace" => options.trace = Trace::Print,
            "--seeds" => options.count = arguments.next()?.parse().ok()?,
            "--first" => options.first = arguments.next()?.parse().ok()?,
            "--seed" => {
                options.first = arguments.next()?.parse().ok()?;
                options.count = 1;
            }
            _ => return None,
        }
    }
    Some(options)
}
