//! `SOFTRDMA_LOG` says what is logged (`debug`, `softrdma_broker=trace`); to standard error, or
//! to the end of the file that `SOFTRDMA_LOG_FILE` names: the broker has no standard error.

use std::{env, fs::OpenOptions, sync::Mutex};

use tracing_subscriber::{
    Layer, filter::Targets, layer::SubscriberExt, registry, util::SubscriberInitExt,
};

/// Installs the subscriber, if logging is asked for.
pub(crate) fn start() {
    let Ok(directives) = env::var("SOFTRDMA_LOG") else {
        return;
    };
    let filter: Targets = match directives.parse() {
        Ok(filter) => filter,
        Err(error) => {
            crate::complain(format_args!("SOFTRDMA_LOG: {error}"));
            return;
        }
    };
    let layer = tracing_subscriber::fmt::layer();
    let file = env::var_os("SOFTRDMA_LOG_FILE").map(|path| {
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        opened.map_err(|error| (path, error))
    });
    match file {
        Some(Ok(file)) => {
            let layer = layer.with_ansi(false).with_writer(Mutex::new(file));
            registry().with(layer.with_filter(filter)).init();
            return;
        }
        Some(Err((path, error))) => {
            crate::complain(format_args!("cannot log to {}: {error}", path.display()));
        }
        None => {}
    }
    registry()
        .with(layer.with_writer(std::io::stderr).with_filter(filter))
        .init();
}
