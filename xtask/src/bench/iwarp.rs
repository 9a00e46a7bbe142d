//! The rows of iWARP: what TCP with its framing reaches, and perftest over our device on `lo`.

use super::figures::By;
use super::perftest::{Over, Perftest, Program};
use super::plan::{Comparison, Extent, Row, Target, Work};
use super::raw_tcp::Plan;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

const SIZES: [u32; 3] = [64, 64 * KIB, MIB];
const POLL: &str = "raw/tcp,poll";

/// What rows are compared with; those with CRCs with those without.
pub fn limits(extent: Extent) -> Vec<Row> {
    let row = |name: String, plan, comparison| Row {
        name,
        work: Work::TcpLimit(plan),
        comparison,
        note: "RDMA WRITEs as iWARP frames them, placed by a copy",
    };
    let mut rows = Vec::new();
    for has_crc in [false, true] {
        for size in SIZES {
            if extent == Extent::Quick && size != 64 * KIB {
                continue;
            }
            let message = size as usize;
            let comparison = has_crc.then(|| Comparison {
                to: limit(size, false),
                by: By::Bandwidth,
                target: None,
            });
            let plan = Plan::Stream { message, has_crc };
            rows.push(row(limit(size, has_crc), plan, comparison));
        }
    }
    rows.push(Row {
        note: "half a round trip of TCP, both ends poll",
        ..row(POLL.into(), Plan::PingPong, None)
    });
    rows
}

fn limit(size: u32, has_crc: bool) -> String {
    let crc = if has_crc { ",crc" } else { "" };
    format!("raw/tcp,size={size}{crc}")
}

/// perftest over our device, whose ends connect by rdma_cm.
pub fn rows(extent: Extent) -> Vec<Row> {
    let mut all = Vec::new();
    for has_crc in [false, true] {
        let mut add = |program, size| {
            all.push(Perftest {
                program,
                size,
                over: Over::Iwarp { has_crc },
                queue_pairs: 1,
            });
        };
        add(Program::WriteBw, 64 * KIB);
        if extent != Extent::Quick {
            add(Program::WriteBw, MIB);
            add(Program::WriteBw, 64);
            add(Program::ReadBw, 64 * KIB);
            add(Program::SendBw, 64 * KIB);
            add(Program::WriteLat, 2);
        }
        if extent != Extent::Quick || !has_crc {
            add(Program::SendLat, 2);
        }
    }
    let row = |perftest: Perftest| Row {
        name: format!("siw/{perftest}"),
        work: Work::Iwarp(perftest),
        comparison: comparison(perftest),
        note: perftest.program.note(),
    };
    all.into_iter().map(row).collect()
}

fn comparison(perftest: Perftest) -> Option<Comparison> {
    let Over::Iwarp { has_crc } = perftest.over else {
        return None;
    };
    if perftest.program.is_latency() {
        return Some(Comparison {
            to: POLL.into(),
            by: By::Latency,
            target: Some(Target::AtMost(1.8)),
        });
    }
    let (size, program) = (perftest.size, perftest.program);
    let least = if has_crc { 0.6 } else { 0.7 };
    let has_target = program == Program::WriteBw && size == 64 * KIB;
    Some(Comparison {
        to: limit(size, has_crc),
        by: if size <= 64 { By::Rate } else { By::Bandwidth },
        target: has_target.then_some(Target::AtLeast(least)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_at_the_rows_they_are_for() {
        let rows = rows(Extent::Usual);
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.name == name);
            let comparison = row.and_then(|row| row.comparison.clone());
            comparison.unwrap_or_else(|| panic!("no row {name}"))
        };
        for (name, to, target) in [
            ("write_bw,size=65536", "size=65536", Target::AtLeast(0.7)),
            (
                "write_bw,size=65536,crc",
                "size=65536,crc",
                Target::AtLeast(0.6),
            ),
            ("send_lat,size=2", "poll", Target::AtMost(1.8)),
            ("write_lat,size=2,crc", "poll", Target::AtMost(1.8)),
        ] {
            let found = of(&format!("siw/{name}"));
            assert_eq!(found.to, format!("raw/tcp,{to}"), "{name}");
            assert_eq!(found.target, Some(target), "{name}");
        }
        let small = of("siw/write_bw,size=64");
        assert_eq!((small.by, small.target), (By::Rate, None));
    }
}
