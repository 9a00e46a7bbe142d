//! What is measured: the rows, what each is compared with, and what it should reach.

use serde::Serialize;

use super::figures::By;
use super::guest::Stack;
use super::loads::Load;
use super::perftest::{Over, Perftest, Program};
use super::raw::Limit;
use super::streams::Stream;
use super::{iwarp, raw_tcp, set_up, streams};
use crate::programs::{Net, matches};

/// How many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One of each kind on each network.
    Quick,
    /// Those that show where the time goes.
    Usual,
    /// All that can be combined.
    Full,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub work: Work,
    pub comparison: Option<Comparison>,
    /// What a reader has to know about it.
    pub note: &'static str,
}

/// What is done for a row.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    Limit(Limit),
    TcpLimit(raw_tcp::Plan),
    Perftest(Net, Perftest),
    /// perftest over our iWARP device on `lo`.
    Iwarp(Perftest),
    Load(Load),
    /// `rstream` on `lo`.
    Stream(Stream),
    /// Connections of `cmtime`.
    SetUp(Net),
    /// Both ends in the guest.
    Guest(Stack, Task),
}

/// What both ends in the guest do.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    Perftest(Perftest),
    SetUp,
}

/// The row that another one is compared with.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Its name.
    pub to: String,
    pub by: By,
    pub target: Option<Target>,
}

/// The ratio that should be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    /// Whether this ratio reaches it.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Self::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

const SIZES: [u32; 5] = [64, 4 * KIB, 8 * KIB, 64 * KIB, MIB];
const MTUS: [u32; 2] = [4096, 1024];
const QUEUE_PAIRS: [u32; 3] = [1, 16, 256];
const BANDWIDTHS: [Program; 3] = [Program::WriteBw, Program::ReadBw, Program::SendBw];
const LATENCIES: [Program; 3] = [Program::WriteLat, Program::ReadLat, Program::SendLat];
const LATENCY_SIZES: [u32; 2] = [2, 8];
const NETS: [Net; 3] = [Net::Lo, Net::Veth(9000), Net::Veth(1500)];

/// What rows are compared with.
const LIMITS: [(&str, Limit); 5] = [
    ("raw/4096", Limit::Stream { payload: 4096 }),
    ("raw/1024", Limit::Stream { payload: 1024 }),
    ("raw/64", Limit::Stream { payload: 64 }),
    ("raw/poll", Limit::PingPong { blocking: false }),
    ("raw/block", Limit::PingPong { blocking: true }),
];

/// All rows of this extent, those first that others are compared with.
pub fn rows(extent: Extent) -> Vec<Row> {
    let limits = LIMITS.iter().map(|(name, limit)| Row {
        name: name.to_string(),
        work: Work::Limit(*limit),
        comparison: None,
        note: "",
    });
    let mut rows: Vec<Row> = limits.collect();
    rows.extend(iwarp::limits(extent));
    for net in NETS {
        let wanted = match extent {
            Extent::Quick => quick(net),
            Extent::Usual => usual(net),
            Extent::Full => full(net),
        };
        rows.extend(wanted.into_iter().map(|perftest| row(net, perftest)));
        if net == Net::Lo {
            rows.push(Row {
                name: format!("lo/{}", set_up::NAME),
                work: Work::SetUp(net),
                comparison: None,
                note: set_up::NOTE,
            });
            rows.extend([Load::Busy, Load::Incast].map(|load| Row {
                name: format!("lo/{}", load.name()),
                work: Work::Load(load),
                comparison: None,
                note: load.note(),
            }));
        }
    }
    rows.extend(iwarp::rows(extent));
    rows.extend(streams::rows(extent));
    rows
}

/// The rows that a filter of the command line chooses, and those that they are compared with.
pub fn select(rows: Vec<Row>, filter: &str) -> Vec<Row> {
    let mut wanted: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| matches(&row.name, filter)) {
        wanted.push(row.name.clone());
        wanted.extend(row.comparison.iter().map(|other| other.to.clone()));
    }
    rows.into_iter()
        .filter(|row| wanted.contains(&row.name))
        .collect()
}

fn usual(net: Net) -> Vec<Perftest> {
    let mut all = Vec::new();
    match net {
        Net::Lo => {
            all.extend(bandwidths(&BANDWIDTHS, &SIZES, &[4096], &[1]));
            all.extend(bandwidths(&BANDWIDTHS, &[64 * KIB], &[4096], &[16, 256]));
            all.extend(bandwidths(&[Program::WriteBw], &[64], &[4096], &[16, 256]));
            all.extend(bandwidths(&BANDWIDTHS, &[64 * KIB], &[1024], &[1]));
            all.extend(bandwidths(
                &[Program::WriteBw],
                &[8 * KIB, MIB],
                &[1024],
                &[1],
            ));
            all.extend(latencies(&LATENCIES, &LATENCY_SIZES, 4096));
            all.push(ATOMIC);
        }
        Net::Veth(9000) => {
            all.extend(bandwidths(&BANDWIDTHS, &[64 * KIB], &[4096], &[1]));
            all.extend(bandwidths(&[Program::WriteBw], &[64, MIB], &[4096], &[1]));
            all.extend(latencies(&LATENCIES, &[2], 4096));
            all.push(ATOMIC);
        }
        Net::Veth(_) => {
            all.extend(bandwidths(&BANDWIDTHS, &[64 * KIB], &[1024], &[1]));
            all.extend(bandwidths(&[Program::WriteBw], &[64], &[1024], &[1]));
            all.extend(latencies(&[Program::SendLat], &[2], 1024));
        }
    }
    all
}

fn quick(net: Net) -> Vec<Perftest> {
    let mtu = largest_mtu(net);
    let mut all = bandwidths(&BANDWIDTHS, &[64 * KIB], &[mtu], &[1]);
    all.extend(latencies(&[Program::SendLat], &[2], mtu));
    if net == Net::Lo {
        all.extend(bandwidths(&[Program::WriteBw], &[64], &[mtu], &[1]));
        all.extend(bandwidths(&[Program::WriteBw], &[64 * KIB], &[mtu], &[256]));
        all.extend(latencies(&[Program::WriteLat, Program::ReadLat], &[2], mtu));
        all.push(ATOMIC);
    }
    all
}

fn full(net: Net) -> Vec<Perftest> {
    let mtus: Vec<u32> = MTUS
        .into_iter()
        .filter(|mtu| *mtu <= largest_mtu(net))
        .collect();
    let mut all = bandwidths(&BANDWIDTHS, &SIZES, &mtus, &QUEUE_PAIRS);
    all.extend(latencies(&LATENCIES, &LATENCY_SIZES, largest_mtu(net)));
    all.push(Perftest {
        over: Over::Roce {
            mtu: largest_mtu(net),
        },
        ..ATOMIC
    });
    all
}

/// The largest path MTU that an interface carries.
fn largest_mtu(net: Net) -> u32 {
    match net {
        Net::Veth(interface) if interface < 4096 + 100 => 1024,
        _ => 4096,
    }
}

const ATOMIC: Perftest = Perftest {
    program: Program::AtomicLat,
    size: 8,
    over: Over::Roce { mtu: 4096 },
    queue_pairs: 1,
};

fn bandwidths(
    programs: &[Program],
    sizes: &[u32],
    mtus: &[u32],
    queue_pairs: &[u32],
) -> Vec<Perftest> {
    let mut all = Vec::new();
    for &mtu in mtus {
        for &program in programs {
            for &queue_pairs in queue_pairs {
                all.extend(sizes.iter().map(|&size| Perftest {
                    program,
                    size,
                    over: Over::Roce { mtu },
                    queue_pairs,
                }));
            }
        }
    }
    all
}

fn latencies(programs: &[Program], sizes: &[u32], mtu: u32) -> Vec<Perftest> {
    bandwidths(programs, sizes, &[mtu], &[1])
}

fn row(net: Net, perftest: Perftest) -> Row {
    Row {
        name: name(net, perftest),
        work: Work::Perftest(net, perftest),
        comparison: comparison(net, perftest),
        note: perftest.program.note(),
    }
}

fn name(net: Net, perftest: Perftest) -> String {
    let net = match net {
        Net::Lo => "lo".to_string(),
        Net::Veth(mtu) => format!("veth{mtu}"),
    };
    format!("{net}/{perftest}")
}

/// Bandwidth is compared with the limit of the same packets, many queue pairs with one, a latency
/// with half round trips. Targets are for `lo`, where the limits are measured.
fn comparison(net: Net, perftest: Perftest) -> Option<Comparison> {
    let Over::Roce { mtu } = perftest.over else {
        return None;
    };
    let one = Perftest {
        queue_pairs: 1,
        ..perftest
    };
    let limit = |limit: &str| format!("raw/{limit}");
    let (to, by, target) = match (perftest.program, perftest.size) {
        (Program::WriteLat, size) => {
            // the program polls memory; who serves has to be woken
            let target = (size == 2).then_some(Target::AtMost(1.0));
            (limit("block"), By::Latency, target)
        }
        (Program::ReadLat, size) => {
            let target = (size == 2).then_some(Target::AtMost(3.0));
            (limit("poll"), By::Latency, target)
        }
        (Program::SendLat, size) => {
            let target = (size == 2).then_some(Target::AtMost(2.0));
            (limit("poll"), By::Latency, target)
        }
        (Program::AtomicLat, _) => (limit("poll"), By::Latency, None),
        (_, size) if perftest.queue_pairs > 1 => {
            let by = if size <= 64 { By::Rate } else { By::Bandwidth };
            let target =
                (perftest.queue_pairs == 256 && size >= 64 * KIB).then_some(Target::AtLeast(0.8));
            (name(net, one), by, target)
        }
        (program, 64) => {
            let target = (program == Program::WriteBw).then_some(Target::AtLeast(0.15));
            (limit("64"), By::Rate, target)
        }
        (program, size) => {
            let least = match (program, size) {
                _ if mtu != 4096 => None,
                (Program::WriteBw, 8192) => Some(0.3),
                (Program::WriteBw, size) if size >= 64 * KIB => Some(0.6),
                (_, size) if size >= 64 * KIB => Some(0.5),
                _ => None,
            };
            let limit = limit(&mtu.to_string());
            (limit, By::Bandwidth, least.map(Target::AtLeast))
        }
    };
    Some(Comparison {
        to,
        by,
        target: target.filter(|_| net == Net::Lo),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(extent: Extent, name: &str) -> Row {
        let rows = rows(extent);
        let found = rows.into_iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn names_are_unique_and_each_row_comes_after_what_it_is_compared_with() {
        for extent in [Extent::Quick, Extent::Usual, Extent::Full] {
            let mut seen: Vec<String> = Vec::new();
            for row in rows(extent) {
                assert!(!seen.contains(&row.name), "two rows {}", row.name);
                if let Some(comparison) = &row.comparison {
                    assert!(
                        seen.contains(&comparison.to),
                        "{} before its basis",
                        row.name
                    );
                }
                seen.push(row.name);
            }
        }
    }

    #[test]
    fn targets_are_at_the_rows_they_are_for() {
        for (name, to, target) in [
            (
                "lo/write_bw,size=65536,mtu=4096,qp=1",
                "raw/4096",
                Target::AtLeast(0.6),
            ),
            (
                "lo/write_bw,size=1048576,mtu=4096,qp=1",
                "raw/4096",
                Target::AtLeast(0.6),
            ),
            (
                "lo/write_bw,size=8192,mtu=4096,qp=1",
                "raw/4096",
                Target::AtLeast(0.3),
            ),
            (
                "lo/write_bw,size=64,mtu=4096,qp=1",
                "raw/64",
                Target::AtLeast(0.15),
            ),
            (
                "lo/read_bw,size=65536,mtu=4096,qp=1",
                "raw/4096",
                Target::AtLeast(0.5),
            ),
            (
                "lo/send_bw,size=1048576,mtu=4096,qp=1",
                "raw/4096",
                Target::AtLeast(0.5),
            ),
            (
                "lo/send_lat,size=2,mtu=4096",
                "raw/poll",
                Target::AtMost(2.0),
            ),
            (
                "lo/read_lat,size=2,mtu=4096",
                "raw/poll",
                Target::AtMost(3.0),
            ),
            (
                "lo/write_lat,size=2,mtu=4096",
                "raw/block",
                Target::AtMost(1.0),
            ),
            (
                "lo/write_bw,size=65536,mtu=4096,qp=256",
                "lo/write_bw,size=65536,mtu=4096,qp=1",
                Target::AtLeast(0.8),
            ),
        ] {
            let comparison = row(Extent::Usual, name).comparison.unwrap();
            assert_eq!(comparison.to, to, "{name}");
            assert_eq!(comparison.target, Some(target), "{name}");
        }
        for name in [
            "veth9000/write_bw,size=65536,mtu=4096,qp=1",
            "lo/atomic_lat,size=8,mtu=4096",
        ] {
            assert_eq!(row(Extent::Usual, name).comparison.unwrap().target, None);
        }
    }

    #[test]
    fn a_filter_keeps_what_its_rows_are_compared_with() {
        let chosen = |filter| -> Vec<String> {
            let rows = select(rows(Extent::Usual), filter);
            rows.into_iter().map(|row| row.name).collect()
        };
        assert_eq!(
            chosen("^lo/send_lat,size=2"),
            ["raw/poll", "lo/send_lat,size=2,mtu=4096"]
        );
        assert_eq!(
            chosen("lo/read_bw,size=65536,mtu=4096,qp=256"),
            [
                "lo/read_bw,size=65536,mtu=4096,qp=1",
                "lo/read_bw,size=65536,mtu=4096,qp=256"
            ]
        );
        assert!(chosen("nothing has this name").is_empty());
    }

    #[test]
    fn a_path_mtu_fits_its_interface() {
        for row in rows(Extent::Full) {
            if let Work::Perftest(Net::Veth(1500), perftest) = row.work {
                assert_eq!(perftest.over, Over::Roce { mtu: 1024 }, "{}", row.name);
            }
        }
    }

    #[test]
    fn a_target_is_met_at_its_edge() {
        assert!(Target::AtLeast(0.6).is_met(0.6) && !Target::AtLeast(0.6).is_met(0.59));
        assert!(Target::AtMost(2.0).is_met(2.0) && !Target::AtMost(2.0).is_met(2.01));
        assert!(!Target::AtLeast(0.6).is_met(f64::NAN));
    }
}
