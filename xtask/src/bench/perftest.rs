//! perftest: its arguments, and what it prints.

use anyhow::{Context, Result, ensure};

use super::ends::Exchange;
use super::figures::Figures;

/// Messages of a first run that tells how many fill the time.
const MESSAGES_TO_LEARN: u32 = 1000;

/// Work requests that perftest keeps posted for a queue pair if nothing is said.
const DEPTH_TO_SEND: u32 = 128;
const DEPTH_TO_RECEIVE: u32 = 512;
/// All queue pairs share a completion queue. The kernel's device, which gets the same work, has no
/// larger one.
const COMPLETIONS_MAX: u32 = 32_767;

/// One of its programs, for reliable connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    WriteBw,
    ReadBw,
    SendBw,
    WriteLat,
    ReadLat,
    SendLat,
    AtomicLat,
}

/// What it goes over, and how its ends find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// By a TCP connection of their own.
    Roce {
        /// Of the path.
        mtu: u32,
    },
    /// By rdma_cm, as iWARP needs it.
    Iwarp {
        /// Of FPDUs.
        has_crc: bool,
    },
}

/// One run, both ends with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perftest {
    pub program: Program,
    /// Bytes of a message.
    pub size: u32,
    pub over: Over,
    pub queue_pairs: u32,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Seconds(u32),
    /// Programs for latency print quantiles only of a number of messages.
    Messages(u32),
}

/// What the client printed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Printed {
    Bandwidth {
        messages: u64,
        gbit_per_s: f64,
    },
    Latency {
        typical_us: f64,
        average_us: f64,
        p99_us: f64,
    },
}

impl Program {
    /// Without the `ib_` of all of them.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write_bw",
            Self::ReadBw => "read_bw",
            Self::SendBw => "send_bw",
            Self::WriteLat => "write_lat",
            Self::ReadLat => "read_lat",
            Self::SendLat => "send_lat",
            Self::AtomicLat => "atomic_lat",
        }
    }

    pub fn is_latency(self) -> bool {
        matches!(
            self,
            Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat
        )
    }

    /// Whether what it prints is half of what a message and its answer take.
    fn prints_halves(self) -> bool {
        matches!(self, Self::WriteLat | Self::SendLat)
    }

    /// Who serves the other side, where that decides about the figure.
    pub fn note(self) -> &'static str {
        match self {
            Self::WriteLat => "both programs poll memory, and their queue once a message",
            Self::ReadLat | Self::AtomicLat => {
                "a whole round trip; the responder sleeps, with a processor of its own"
            }
            Self::SendLat => "both programs poll their completion queue",
            Self::WriteBw | Self::ReadBw | Self::SendBw => "",
        }
    }
}

impl Perftest {
    /// The command line on `device`; the client's also names the server.
    pub fn argv(
        &self,
        length: Length,
        device: &str,
        port: u16,
        server: Option<&str>,
    ) -> Vec<String> {
        let mut argv = vec![format!("ib_{}", self.program.name())];
        if let Over::Iwarp { .. } = self.over {
            argv.push("-R".into());
        }
        let mut option = |name: &str, value: &str| argv.extend([name.into(), value.into()]);
        option("-d", device);
        if let Over::Roce { mtu } = self.over {
            option("-x", "1"); // the GID of the first IPv4 address
            option("-m", &mtu.to_string());
        }
        option("-p", &port.to_string());
        if self.program != Program::AtomicLat {
            option("-s", &self.size.to_string());
        }
        match length {
            Length::Seconds(seconds) => {
                option("-D", &seconds.to_string());
                option("-f", "0"); // all of that time counts
            }
            Length::Messages(messages) => option("-n", &messages.to_string()),
        }
        if !self.program.is_latency() {
            option("-q", &self.queue_pairs.to_string());
            let share = COMPLETIONS_MAX / self.queue_pairs.max(1);
            if share < DEPTH_TO_SEND.max(DEPTH_TO_RECEIVE) {
                option("-t", &(share / 2).min(DEPTH_TO_SEND).to_string());
                if self.program == Program::SendBw {
                    option("-r", &(share / 2).min(DEPTH_TO_RECEIVE).to_string());
                }
            }
            argv.push("--report_gbits".into());
        }
        argv.push("-F".into()); // no remarks about the processor's clock
        argv.extend(server.map(String::from));
        argv
    }

    /// Measures it once; `run` runs both ends. Latencies are measured over a number of messages,
    /// which a first run finds and leaves in `messages`.
    pub fn measure(
        &self,
        seconds: u32,
        messages: &mut Option<u32>,
        run: &mut dyn FnMut(Length) -> Result<Exchange>,
    ) -> Result<Figures> {
        let length = match *messages {
            _ if !self.program.is_latency() => Length::Seconds(seconds),
            Some(messages) => Length::Messages(messages),
            None => {
                let seen = run(Length::Messages(MESSAGES_TO_LEARN))?;
                let Printed::Latency { average_us, .. } = self.printed(&seen)? else {
                    anyhow::bail!("not a latency");
                };
                let found = self.messages_for(seconds, average_us);
                *messages = Some(found);
                Length::Messages(found)
            }
        };
        let seen = run(length)?;
        Ok(self.figures(self.printed(&seen)?, &seen))
    }

    fn printed(&self, seen: &Exchange) -> Result<Printed> {
        let output = seen.outputs.first().context("no client")?;
        self.parse(output)
            .with_context(|| format!("the client printed:\n{output}"))
    }

    /// Reads the line of results in what the client printed.
    fn parse(&self, output: &str) -> Result<Printed> {
        let mut lines = output
            .lines()
            .skip_while(|line| !line.trim_start().starts_with("#bytes"));
        let heading = lines.next().context("it printed no results")?;
        let columns: Vec<f64> = lines
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .map_while(|column| column.parse().ok())
            .collect();
        let unexpected = || format!("results in a form that is not known: {heading:?}");
        let printed = if self.program.is_latency() {
            ensure!(heading.contains("t_typical[usec]"), unexpected());
            let [_, _, _, _, typical_us, average_us, _, p99_us, ..] = columns[..] else {
                anyhow::bail!("a line of results with {} numbers", columns.len());
            };
            Printed::Latency {
                typical_us,
                average_us,
                p99_us,
            }
        } else {
            ensure!(heading.contains("average[Gb/sec]"), unexpected());
            let [_, messages, _, gbit_per_s, _] = columns[..] else {
                anyhow::bail!("a line of results with {} numbers", columns.len());
            };
            Printed::Bandwidth {
                messages: messages as u64,
                gbit_per_s,
            }
        };
        Ok(printed)
    }

    /// Messages that fill so many seconds at the speed of an earlier run.
    fn messages_for(&self, seconds: u32, average_us: f64) -> u32 {
        const FEWEST: f64 = 1000.0;
        const MOST: f64 = 200_000.0;
        let halves = if self.program.prints_halves() {
            2.0
        } else {
            1.0
        };
        let messages = f64::from(seconds) * 1e6 / (average_us * halves);
        messages.clamp(FEWEST, MOST) as u32
    }

    fn figures(&self, printed: Printed, seen: &Exchange) -> Figures {
        match printed {
            Printed::Latency {
                typical_us, p99_us, ..
            } => Figures::Latency {
                p50_us: typical_us,
                p99_us,
            },
            Printed::Bandwidth {
                messages,
                gbit_per_s,
            } => Figures::Messages {
                gbit_per_s,
                // what it prints itself has too few digits for large messages
                mega_messages_per_s: gbit_per_s * 1e3 / 8.0 / f64::from(self.size),
                cpu_seconds_per_gbyte: seen
                    .cpu_seconds
                    .map(|seconds| seconds * 1e9 / (messages as f64 * f64::from(self.size))),
                datagrams_dropped: seen.datagrams_dropped,
            },
        }
    }
}

impl std::fmt::Display for Perftest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            program,
            size,
            over,
            queue_pairs,
        } = self;
        write!(f, "{},size={size}", program.name())?;
        match over {
            Over::Roce { mtu } => {
                write!(f, ",mtu={mtu}")?;
                if !program.is_latency() {
                    write!(f, ",qp={queue_pairs}")?;
                }
            }
            Over::Iwarp { has_crc: true } => f.write_str(",crc")?,
            Over::Iwarp { has_crc: false } => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE_BW: Perftest = Perftest {
        program: Program::WriteBw,
        size: 65_536,
        over: Over::Roce { mtu: 4096 },
        queue_pairs: 1,
    };

    // as perftest 6.06 prints it
    const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:00:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      7779             0.00               4.07   \t\t   0.007761
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
2       5000          8.16           10077.64      10.40    \t       56.74       \t556.94 \
\t\t103.64  \t\t10047.77\n";

    fn seen(output: &str) -> Exchange {
        Exchange {
            outputs: vec![output.into()],
            cpu_seconds: Some(2.0),
            datagrams_dropped: Some(3),
        }
    }

    #[test]
    fn results_are_read() {
        assert_eq!(
            WRITE_BW.parse(BANDWIDTH).unwrap(),
            Printed::Bandwidth {
                messages: 7779,
                gbit_per_s: 4.07,
            }
        );
        let send_lat = Perftest {
            program: Program::SendLat,
            size: 2,
            ..WRITE_BW
        };
        let mut lengths = Vec::new();
        let mut run = |length| {
            lengths.push(length);
            Ok(seen(LATENCY))
        };
        let mut messages = None;
        for _ in 0..2 {
            let figures = send_lat.measure(1, &mut messages, &mut run).unwrap();
            let expected = Figures::Latency {
                p50_us: 10.40,
                p99_us: 103.64,
            };
            assert_eq!(figures, expected);
        }
        // the first measurement learns how many messages fill a second, the others know it
        let known = Length::Messages(8812);
        assert_eq!(lengths, [Length::Messages(1000), known, known]);
        assert_eq!(send_lat.messages_for(1, 1e6), 1000);
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        assert!(WRITE_BW.parse("Couldn't create CQ\n").is_err());
        assert!(WRITE_BW.parse(LATENCY).is_err());
        let other_unit = BANDWIDTH.replace("Gb/sec", "MB/sec");
        assert!(WRITE_BW.parse(&other_unit).is_err());
        let cut = BANDWIDTH.split(" 65536").next().unwrap();
        assert!(WRITE_BW.parse(cut).is_err());
    }

    #[test]
    fn cost_is_for_what_was_moved() {
        let printed = Printed::Bandwidth {
            messages: 1_000_000,
            gbit_per_s: 80.0,
        };
        let thousand = Perftest {
            size: 1000,
            ..WRITE_BW
        };
        assert_eq!(
            thousand.figures(printed, &seen("")),
            Figures::Messages {
                gbit_per_s: 80.0,
                mega_messages_per_s: 10.0,
                cpu_seconds_per_gbyte: Some(2.0),
                datagrams_dropped: Some(3),
            }
        );
    }

    #[test]
    fn many_queue_pairs_fit_one_completion_queue() {
        let argv = |program, queue_pairs| {
            let perftest = Perftest {
                program,
                queue_pairs,
                ..WRITE_BW
            };
            perftest
                .argv(Length::Seconds(1), "rxe_lo", 19_000, Some("127.0.0.1"))
                .join(" ")
        };
        assert_eq!(
            argv(Program::WriteBw, 1),
            "ib_write_bw -d rxe_lo -x 1 -m 4096 -p 19000 -s 65536 -D 1 -f 0 -q 1 --report_gbits \
             -F 127.0.0.1"
        );
        let iwarp = Perftest {
            over: Over::Iwarp { has_crc: true },
            ..WRITE_BW
        };
        assert_eq!(
            iwarp
                .argv(Length::Seconds(1), "siw_lo", 19_000, None)
                .join(" "),
            "ib_write_bw -R -d siw_lo -p 19000 -s 65536 -D 1 -f 0 -q 1 --report_gbits -F"
        );
        assert!(argv(Program::SendBw, 256).contains(" -t 63 -r 63 "));
        assert!(argv(Program::WriteBw, 256).contains(" -t 63 "));
        assert!(!argv(Program::SendBw, 16).contains(" -t "));
    }

    #[test]
    fn latencies_are_of_a_number_of_messages() {
        let atomic = Perftest {
            program: Program::AtomicLat,
            size: 8,
            ..WRITE_BW
        };
        let argv = atomic.argv(Length::Messages(1000), "rxe_lo", 19_000, None);
        assert_eq!(
            argv.join(" "),
            "ib_atomic_lat -d rxe_lo -x 1 -m 4096 -p 19000 -n 1000 -F"
        );
    }
}
