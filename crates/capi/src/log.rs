//! `SOFTRDMA_LOG`: what the library does, on standard error.
//!
//! The value is a filter as `tracing-subscriber` reads it: `debug`, or
//! `softrdma=trace,warn`. The
//! subscriber is installed for the copy of `tracing` inside this shared object: nothing of it is
//! exported, so the program's own copy, if it has one, never knows. The reasons are in
//! `docs/decisions/0021-log-inside-a-program.md`.

use core::fmt::Display;
use std::io::Write;
use std::sync::Once;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts the log if the environment asks for it; the first entry points of a program call this.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        softrdma::report_by(|text| tell(&text));
        let Ok(filter) = std::env::var("SOFTRDMA_LOG") else {
            return;
        };
        let filter = match filter.parse::<Targets>() {
            Ok(filter) => filter,
            Err(error) => {
                tell(&format_args!("SOFTRDMA_LOG: {error}"));
                return;
            }
        };
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(false);
        // It fails only if there is one already, and then that one will do.
        let _ = tracing_subscriber::registry()
            .with(layer.with_filter(filter))
            .try_init();
    });
}

/// Says something to the person in front of the program. A standard error that takes nothing (a
/// full disk, a pipe without a reader) is no reason to panic, as it is for `eprintln!`.
pub fn tell(text: &dyn Display) {
    tell_to(std::io::stderr(), text);
}

/// A line is one write: those of several programs of a terminal do not mix.
fn tell_to(mut to: impl Write, text: &dyn Display) {
    let _ = to.write_all(format!("softrdma: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each write is given.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_write() {
        let mut writes = Writes::default();
        tell_to(&mut writes, &format_args!("{} of {}", 1, 2));
        assert_eq!(writes.0, [b"softrdma: 1 of 2\n"]);
    }
}
