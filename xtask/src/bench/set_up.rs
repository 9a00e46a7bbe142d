//! How fast connections are made: `cmtime` of `rdmacm-utils`, which makes many at once, step by
//! step.

use anyhow::{Context, Result, ensure};

use super::figures::Figures;

/// Its rows.
pub const NAME: &str = "cmtime,n=1000";
/// What a reader has to know about them.
pub const NOTE: &str =
    "connections a second, from creating IDs to being connected, 1000 at once, each step for all";

/// Connections of a measurement.
pub const CONNECTIONS: u32 = 1000;

/// What has to be done before a connection can be used, as `cmtime` calls it.
const STEPS: [&str; 6] = [
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "connect",
];

/// Steps that may be left out: a client without an address of its own does not bind.
const OPTIONAL: [&str; 1] = ["bind addr"];

/// The command line of the server, or with its address that of the client.
pub fn argv(server: Option<&str>) -> Vec<String> {
    let mut argv = vec!["cmtime".into(), "-c".into(), CONNECTIONS.to_string()];
    if let Some(address) = server {
        argv.extend(["-s".into(), address.into()]);
    }
    argv
}

/// Reads the table of a client: `connect : 19.39 19.03 16114.00 6461.67`, the first of which is
/// the time of the step for all connections, in milliseconds.
pub fn figures(output: &str) -> Result<Figures> {
    let mut whole_ms = 0.0;
    for step in STEPS {
        match total_ms(output, step) {
            Some(total) => whole_ms += total,
            None => ensure!(OPTIONAL.contains(&step), "no step {step:?} in:\n{output}"),
        }
    }
    ensure!(whole_ms > 0.0, "it took no time:\n{output}");
    Ok(Figures::Connections {
        connections_per_s: f64::from(CONNECTIONS) * 1e3 / whole_ms,
    })
}

fn total_ms(output: &str, step: &str) -> Option<f64> {
    let numbers = output.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim_end() == step).then_some(numbers)
    });
    numbers?.split_whitespace().next()?.parse().ok()
}

/// As [`figures`], for a client that ended with this code.
pub fn judged(code: i32, output: &str) -> Result<Figures> {
    ensure!(code == 0, "cmtime ended with code {code}:\n{output}");
    figures(output).context("cmtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "connecting\n\
        step              total ms     max ms     min us  us / conn\n\
        create id    :        0.10       0.05       5.00      34.67\n\
        bind addr    :        2.16       2.08      15.00     720.33\n\
        resolve addr :        4.24       3.81     173.00    1411.67\n\
        resolve route:        0.83       0.44     249.00     276.67\n\
        create qp    :        2.37       2.07     127.00     789.00\n\
        connect      :       90.30      19.03   16114.00    6461.67\n\
        disconnect   :        5.61       3.22    2499.00    1871.33\n";

    #[test]
    fn all_that_comes_before_use_counts() {
        let Figures::Connections { connections_per_s } = figures(TABLE).unwrap() else {
            panic!("other figures");
        };
        assert!((connections_per_s - 10_000.0).abs() < 1e-6);
        let without_bind = TABLE.replace("bind addr    :        2.16", "");
        assert!(figures(&without_bind).is_ok());
        assert!(figures(&TABLE.replace("create qp", "nothing")).is_err());
        assert!(judged(1, TABLE).is_err());
    }
}
