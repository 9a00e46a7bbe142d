//! `rstream` of `rdmacm-utils`: a stream of bytes over rsockets, and by the same program over plain
//! TCP, with which it is compared.

use anyhow::{Context, Result, ensure};

use super::ends::Exchange;
use super::figures::{By, Figures};
use super::plan::{Comparison, Extent, Row, Work};

const KIB: u32 = 1 << 10;

/// From this size on a stream is to be wide, below it quick.
const WIDE: u32 = 4 * KIB;
/// Transfers of a wide one in a direction before the other has its turn.
const TRANSFERS: u32 = 100;
/// Turns of a first run that tells how many fill the time.
const TURNS_TO_LEARN: u32 = 10;

const NOTE: &str =
    "rstream with calls that block; of small transfers the average time of one, both ways alike";

/// What the bytes go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The program's own TCP sockets.
    Tcp,
    Roce,
    Iwarp,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub over: Over,
    /// Bytes of a transfer.
    pub size: u32,
}

/// Wide and quick streams over each.
pub fn rows(extent: Extent) -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [64, 64 * KIB] {
        for over in [Over::Tcp, Over::Roce, Over::Iwarp] {
            let stream = Stream { over, size };
            // programs that CI runs do the same
            if extent != Extent::Quick {
                rows.push(stream.row());
            }
        }
    }
    rows
}

impl Stream {
    fn row(self) -> Row {
        let basis = Self {
            over: Over::Tcp,
            ..self
        };
        Row {
            name: self.name(),
            work: Work::Stream(self),
            comparison: (self != basis).then(|| Comparison {
                to: basis.name(),
                by: if self.is_wide() {
                    By::Bandwidth
                } else {
                    By::Latency
                },
                target: None,
            }),
            note: NOTE,
        }
    }

    fn name(self) -> String {
        let over = match self.over {
            Over::Tcp => "tcp",
            Over::Roce => "rxe",
            Over::Iwarp => "siw",
        };
        format!("rstream/{over},size={}", self.size)
    }

    fn is_wide(self) -> bool {
        self.size >= WIDE
    }

    /// Transfers of an end in a turn.
    fn transfers(self) -> u32 {
        if self.is_wide() { TRANSFERS } else { 1 }
    }

    /// The command line of the server, or with its address that of the client.
    pub fn argv(self, turns: u32, port: u16, server: Option<&str>) -> Vec<String> {
        let mut argv = vec!["rstream".to_owned()];
        let mut option = |name: &str, value: &str| argv.extend([name.into(), value.into()]);
        match server {
            Some(address) => option("-s", address),
            // the address of the device, which decides about the protocol
            None => option("-b", "127.0.0.1"),
        }
        option("-p", &port.to_string());
        option("-S", &self.size.to_string());
        option("-C", &self.transfers().to_string());
        option("-I", &turns.to_string());
        option("-T", "b");
        if self.over == Over::Tcp {
            option("-T", "s");
        }
        argv
    }

    /// Measures it once; `run` runs both ends. A first run finds how many turns fill the time, and
    /// leaves it in `turns`.
    pub fn measure(
        self,
        seconds: u32,
        turns: &mut Option<u32>,
        run: &mut dyn FnMut(u32) -> Result<Exchange>,
    ) -> Result<Figures> {
        let count = match *turns {
            Some(turns) => turns,
            None => {
                let seen = run(TURNS_TO_LEARN)?;
                *turns.insert(self.turns_for(seconds, self.microseconds(&seen)?))
            }
        };
        let seen = run(count)?;
        Ok(self.figures(count, self.microseconds(&seen)?, &seen))
    }

    /// Turns that fill so many seconds at the speed of an earlier run.
    fn turns_for(self, seconds: u32, transfer_us: f64) -> u32 {
        const FEWEST: f64 = 20.0;
        const MOST: f64 = 200_000.0;
        let turn_us = transfer_us * 2.0 * f64::from(self.transfers());
        (f64::from(seconds) * 1e6 / turn_us).clamp(FEWEST, MOST) as u32
    }

    fn figures(self, turns: u32, transfer_us: f64, seen: &Exchange) -> Figures {
        if !self.is_wide() {
            return Figures::Average { us: transfer_us };
        }
        let size = f64::from(self.size);
        let bytes = size * f64::from(turns) * 2.0 * f64::from(self.transfers());
        Figures::Messages {
            gbit_per_s: size * 8.0 / transfer_us / 1e3,
            mega_messages_per_s: 1.0 / transfer_us,
            cpu_seconds_per_gbyte: seen.cpu_seconds.map(|seconds| seconds * 1e9 / bytes),
            datagrams_dropped: seen.datagrams_dropped,
        }
    }

    /// What a transfer took, from the line that the client printed.
    fn microseconds(self, seen: &Exchange) -> Result<f64> {
        let output = seen.outputs.first().context("no client")?;
        parse(output).with_context(|| format!("the client printed:\n{output}"))
    }
}

/// Reads the last column, which has more digits than that of the bandwidth.
fn parse(output: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.starts_with("name "));
    let heading = lines.next().context("it printed no results")?;
    ensure!(
        heading.trim_end().ends_with("usec/xfer"),
        "results in a form that is not known: {heading:?}"
    );
    let line = lines.next().context("no line of results")?;
    let last = line.split_whitespace().next_back();
    let transfer_us: f64 = last.context("an empty line of results")?.parse()?;
    ensure!(transfer_us > 0.0, "it took no time: {line:?}");
    Ok(transfer_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE_ROCE: Stream = Stream {
        over: Over::Roce,
        size: 64 * KIB,
    };

    // as rstream of rdma-core 44 prints it
    const PRINTED: &str = "\
name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer
custom    64k     100     50      624m        0.20s     26.21      20.00
cpu-seconds: 0.250 0.500
";

    fn seen(output: &str) -> Exchange {
        Exchange {
            outputs: vec![output.into()],
            cpu_seconds: Some(0.65536),
            datagrams_dropped: Some(0),
        }
    }

    #[test]
    fn results_are_read() {
        let mut lengths = Vec::new();
        let mut run = |turns| {
            lengths.push(turns);
            Ok(seen(PRINTED))
        };
        let mut turns = None;
        let figures = WIDE_ROCE.measure(1, &mut turns, &mut run).unwrap();
        // 250 turns of 200 transfers fill a second
        assert_eq!(lengths, [TURNS_TO_LEARN, 250]);
        let Figures::Messages {
            gbit_per_s,
            cpu_seconds_per_gbyte: Some(cpu),
            ..
        } = figures
        else {
            panic!("other figures: {figures:?}");
        };
        assert!((gbit_per_s - 26.2144).abs() < 1e-9, "{gbit_per_s}");
        assert!((cpu - 0.2).abs() < 1e-9, "{cpu}");
        let quick = Stream {
            size: 64,
            ..WIDE_ROCE
        };
        let figures = quick.figures(1000, 20.0, &seen(PRINTED));
        assert_eq!(figures, Figures::Average { us: 20.0 });
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        for text in [
            "rconnect: Connection refused\n".to_owned(),
            PRINTED.replace("usec/xfer", "msec"),
            PRINTED.replace("20.00", "0.00"),
            PRINTED.split("custom").next().unwrap().to_owned(),
        ] {
            assert!(parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn both_ends_do_the_same() {
        let tcp = Stream {
            over: Over::Tcp,
            size: 64,
        };
        assert_eq!(
            tcp.argv(9, 30_000, Some("127.0.0.1")).join(" "),
            "rstream -s 127.0.0.1 -p 30000 -S 64 -C 1 -I 9 -T b -T s"
        );
        assert_eq!(
            WIDE_ROCE.argv(9, 30_000, None).join(" "),
            "rstream -b 127.0.0.1 -p 30000 -S 65536 -C 100 -I 9 -T b"
        );
    }
}
