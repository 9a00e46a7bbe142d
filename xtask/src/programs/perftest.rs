//! perftest: its programs, their options, and whether a run did what it says.

use anyhow::{Context, Result, bail, ensure};

use super::succeeded;
use super::world::{Net, World};
use crate::process::{Ended, Local, Running};

/// One run of a program of perftest, both ends with the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfTest {
    /// Its name.
    pub program: &'static str,
    /// Options and their values, as words.
    pub options: Vec<&'static str>,
}

/// Both ends of a run.
pub struct Pair {
    server: Local,
    client: Local,
}

/// Which programs know an option: the others refuse it before they open a device.
type Knows = fn(program: &str) -> bool;

/// An option with the others that it needs.
struct Flag {
    words: &'static [&'static str],
    knows: Knows,
    /// What it needs of the network.
    fits: fn(Net) -> bool,
}

const fn flag(words: &'static [&'static str], knows: Knows) -> Flag {
    let fits = |_| true;
    Flag { words, knows, fits }
}

/// On an interface of 1500 bytes the port's MTU is 1024, and perftest refuses a larger one.
const fn large_mtu(words: &'static [&'static str]) -> Flag {
    let fits = |net| net != Net::Veth(1500);
    Flag {
        words,
        knows: all,
        fits,
    }
}

fn all(_: &str) -> bool {
    true
}

fn bandwidth(program: &str) -> bool {
    program.ends_with("_bw")
}

fn sends(program: &str) -> bool {
    program.contains("send")
}

fn sized(program: &str) -> bool {
    !program.contains("atomic")
}

fn carries_data(program: &str) -> bool {
    program.contains("write") || program.contains("send")
}

fn sleeps(program: &str) -> bool {
    !program.contains("write")
}

/// Every option, with few iterations: a case is about whether it works.
const FLAGS: [Flag; 28] = [
    flag(&[], all),
    flag(&["-c", "RC"], all),
    // as many as a receive buffer holds in any case: nobody sends a lost datagram again
    flag(&["-c", "UD", "-n", "50"], sends),
    flag(&["-c", "UD", "-n", "50", "-s", "64", "-x", "2"], sends),
    flag(&["-a", "-n", "5"], sized),
    flag(&["-b"], bandwidth),
    flag(&["-q", "1"], bandwidth),
    flag(&["-q", "4"], bandwidth),
    flag(&["-q", "64"], bandwidth),
    flag(&["-q", "256", "-n", "50"], bandwidth),
    flag(&["--use-srq", "-q", "4"], |program| program == "ib_send_bw"),
    flag(&["-e"], sleeps),
    flag(&["-D", "2"], all),
    flag(&["-I", "64"], carries_data),
    flag(&["-l", "16", "-n", "320"], bandwidth),
    flag(&["-m", "256"], all),
    flag(&["-m", "512"], all),
    flag(&["-m", "1024"], all),
    large_mtu(&["-m", "2048"]),
    large_mtu(&["-m", "4096"]),
    flag(&["-x", "0"], all),
    flag(&["-x", "1"], all),
    flag(&["-x", "2"], all),
    flag(&["--report_gbits"], bandwidth),
    flag(&["-N"], bandwidth),
    flag(&["-t", "1"], bandwidth),
    flag(&["-t", "512"], bandwidth),
    // several at once, as people use them
    flag(
        &[
            "-b", "-q", "4", "-l", "16", "-t", "64", "-n", "320", "-s", "8",
        ],
        bandwidth,
    ),
];

/// Every program with every option that it knows.
pub fn every(net: Net) -> Vec<PerfTest> {
    let fitting = FLAGS.iter().filter(|flag| (flag.fits)(net));
    fitting.flat_map(with_all).collect()
}

/// A part that still has every program and every option; `turn` chooses which of them meet.
pub fn some(net: Net, turn: usize) -> Vec<PerfTest> {
    let fitting = FLAGS.iter().filter(|flag| (flag.fits)(net));
    let choose = |(number, flag): (usize, &Flag)| {
        let mut with = with_all(flag);
        // by an odd step, so that programs of one kind do not always get the same options
        let chosen = (number + turn * 3) % with.len();
        with.swap_remove(chosen)
    };
    let plain = with_all(&FLAGS[0]).into_iter();
    plain
        .chain(fitting.enumerate().skip(1).map(choose))
        .collect()
}

/// Runs whose ends find each other with librdmacm; `full` with every program.
pub fn with_connection_manager(full: bool) -> Vec<PerfTest> {
    const SOME: [(&str, &[&str]); 4] = [
        ("ib_write_bw", &["-R", "-q", "4"]),
        ("ib_send_bw", &["-R", "-c", "UD", "-n", "50"]),
        ("ib_send_bw", &["-R", "-q", "4", "-e"]),
        ("ib_read_lat", &["-R"]),
    ];
    let some = SOME.into_iter();
    let mut tests: Vec<PerfTest> = some
        .map(|(program, options)| PerfTest {
            program,
            options: options.to_vec(),
        })
        .collect();
    if full {
        for mut test in every(Net::Lo) {
            test.options.insert(0, "-R");
            // librdmacm chooses the address itself
            if !test.has("-x") && !tests.contains(&test) {
                tests.push(test);
            }
        }
    }
    tests
}

/// Runs over iWARP: its programs without those for atomics, which it has not. With IPv4 only: the
/// server's address is no other for perftest 4.5 with `-R`, and its `--ipv6` is about GIDs.
pub fn over_iwarp(net: Net, full: bool) -> Vec<PerfTest> {
    let test = |program, options: &[&'static str]| PerfTest {
        program,
        options: [&["-R"], options].concat(),
    };
    if !full {
        return match net {
            Net::Lo => vec![
                test("ib_write_bw", &["-q", "4", "-b"]),
                test("ib_send_bw", &["-q", "4"]),
                test("ib_read_lat", &[]),
            ],
            Net::Veth(1500) => vec![test("ib_send_lat", &[])],
            Net::Veth(_) => Vec::new(),
        };
    }
    const FLAGS: [Flag; 5] = [
        flag(&[], all),
        flag(&["-a", "-n", "5"], all),
        flag(&["-b"], bandwidth),
        flag(&["-q", "4"], bandwidth),
        flag(&["-e"], sleeps),
    ];
    let programs = || {
        let all = PerfTest::PROGRAMS.into_iter();
        all.filter(|program| !program.contains("atomic"))
    };
    // Over iWARP perftest's sender waits for credit that its peer writes into its memory. With -e
    // it sleeps for a completion instead, which does not come once all of its sends are complete.
    let sleeps_for_credit =
        |flag: &Flag, program: &str| flag.words.contains(&"-e") && program == "ib_send_bw";
    let every = FLAGS.iter().flat_map(|flag| {
        programs()
            .filter(|program| (flag.knows)(program) && !sleeps_for_credit(flag, program))
            .map(|program| test(program, flag.words))
    });
    let mut every: Vec<PerfTest> = every.collect();
    every.push(test("ib_write_bw", &["-q", "4", "-b"]));
    every
}

fn with_all(flag: &Flag) -> Vec<PerfTest> {
    let programs = PerfTest::PROGRAMS
        .iter()
        .filter(|program| (flag.knows)(program));
    programs
        .map(|program| PerfTest {
            program,
            options: flag.words.to_vec(),
        })
        .collect()
}

/// Iterations, where an option does not say how many.
const ITERATIONS: &str = "200";

/// Where the two ends agree on their addresses; perftest's own.
const PORT: u16 = 18515;

/// Messages of programs that end with 0 all the same, in small letters.
const TROUBLE: [&str; 8] = [
    "error",
    "fail",
    "couldn't",
    "cannot",
    "unable",
    "unexpected",
    "invalid",
    "problem",
];

impl PerfTest {
    /// The eight programs.
    pub const PROGRAMS: [&str; 8] = [
        "ib_write_bw",
        "ib_write_lat",
        "ib_send_bw",
        "ib_send_lat",
        "ib_read_bw",
        "ib_read_lat",
        "ib_atomic_bw",
        "ib_atomic_lat",
    ];

    /// The command line on `device`; the client's also names the server.
    pub fn argv(&self, device: &str, server: Option<&str>) -> Vec<String> {
        // -F: the speed of the processor is no matter here
        let mut argv = vec![self.program, "-d", device, "-F"];
        argv.extend(&self.options);
        if !self.has("-n") && !self.has("-D") {
            argv.extend(["-n", ITERATIONS]);
        }
        argv.extend(server);
        argv.into_iter().map(String::from).collect()
    }

    /// The port on which its server listens.
    pub fn port(&self) -> u16 {
        let port = self.value("-p").and_then(|port| port.parse().ok());
        port.unwrap_or(PORT)
    }

    /// The word after an option.
    fn value(&self, option: &str) -> Option<&'static str> {
        let at = self.options.iter().position(|word| *word == option)?;
        self.options.get(at + 1).copied()
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    /// Runs both ends in `world` and judges them.
    pub fn run(&self, world: &World) -> Result<()> {
        self.finish(&mut self.start(world)?)
    }

    /// Starts both ends.
    pub fn start(&self, world: &World) -> Result<Pair> {
        let argv = self.argv(world.server.device, None);
        let mut server = world.server.start(&as_strs(&argv), &[])?;
        server.wait_for_listener(self.port()).context("server")?;
        let argv = self.argv(world.client.device, Some(world.server.address));
        let client = world.client.start(&as_strs(&argv), &[])?;
        Ok(Pair { server, client })
    }

    /// Waits for the end of both and judges them.
    pub fn finish(&self, pair: &mut Pair) -> Result<()> {
        let Pair { server, client } = pair;
        let ended = client.wait();
        let ended = ended.with_context(|| format!("client; the server:\n{}", server.output()))?;
        // a client that failed leaves a server that waits for ever
        self.judge("client", &ended)
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        self.judge("server", &server.wait().context("server")?)
    }

    /// Whether what one end printed says that all is well.
    pub fn judge(&self, end: &str, ended: &Ended) -> Result<()> {
        succeeded(end, ended)?;
        let output = &ended.output;
        let trouble = |line: &&str| {
            let line = line.to_lowercase();
            TROUBLE.iter().any(|word| line.contains(word))
        };
        if let Some(line) = output.lines().find(trouble) {
            bail!("{end}: {:?} in:\n{output}", line.trim());
        }
        if end == "client" {
            self.judge_results(output)
                .with_context(|| format!("{end}:\n{output}"))?;
        }
        print!("{end}:\n{output}");
        Ok(())
    }

    /// A line of figures for each size, with as many iterations as were asked for.
    fn judge_results(&self, output: &str) -> Result<()> {
        let lines = output.lines().filter_map(figures);
        let results: Vec<Vec<f64>> = lines.collect();
        let sizes = if self.has("-a") { 23 } else { 1 };
        ensure!(
            results.len() == sizes,
            "{} lines of results, not {sizes}",
            results.len()
        );
        let number = |option| self.value(option).unwrap_or("1").parse::<f64>();
        for result in &results {
            ensure!(result.iter().all(|figure| figure.is_finite()), "{result:?}");
            let done = result[1];
            if self.has("-D") {
                ensure!(done > 0.0, "nothing was done in all the time");
                continue;
            }
            let asked: f64 = self.value("-n").unwrap_or(ITERATIONS).parse()?;
            // perftest multiplies by queues, and some programs by directions
            let expected = asked * number("-q")?;
            ensure!(
                [expected, 2.0 * expected].contains(&done),
                "{done} iterations, not {expected}"
            );
        }
        Ok(())
    }
}

/// The numbers at the start of a line of results: size, iterations and two more at least.
fn figures(line: &str) -> Option<Vec<f64>> {
    let words = line.split_whitespace();
    let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    (numbers.len() >= 4).then_some(numbers)
}

impl std::fmt::Display for PerfTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.program)?;
        for word in &self.options {
            let joint = if word.starts_with('-') { ',' } else { '=' };
            write!(f, "{joint}{word}")?;
        }
        Ok(())
    }
}

fn as_strs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::{FLAGS, PerfTest, every, some};
    use crate::process::Ended;
    use crate::programs::world::Net;

    #[test]
    fn a_part_has_every_program_and_every_option() {
        for net in [Net::Lo, Net::Veth(1500), Net::Veth(9000)] {
            for turn in 0..6 {
                let some = some(net, turn);
                for program in PerfTest::PROGRAMS {
                    assert!(some.iter().any(|test| test.program == program));
                }
                for flag in FLAGS.iter().filter(|flag| (flag.fits)(net)) {
                    assert!(some.iter().any(|test| test.options == flag.words));
                }
                let every = every(net);
                assert!(some.iter().all(|test| every.contains(test)));
            }
        }
    }

    #[test]
    fn a_good_end_and_bad_ones() {
        let test = PerfTest {
            program: "ib_write_bw",
            options: vec!["-q", "4"],
        };
        assert_eq!(test.to_string(), "ib_write_bw,-q=4");
        let judge = |code, output: &str| {
            let output = output.into();
            test.judge("client", &Ended { code, output }).is_ok()
        };
        let good = " #bytes #iterations BW\n 65536      800      364.70   275.01   0.004400\n";
        assert!(judge(0, good));
        assert!(!judge(1, good));
        assert!(!judge(0, " #bytes #iterations BW\n"), "no results");
        let few = good.replace("800", "700");
        assert!(!judge(0, &few), "too few iterations");
        let trouble = format!("{good} Completion with error at client\n");
        assert!(!judge(0, &trouble));
        let endless = good.replace("275.01", "inf");
        assert!(!judge(0, &endless), "a figure that is none");
    }
}
