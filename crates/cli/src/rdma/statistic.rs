//! `statistic show`: what all programs have counted, also those that are gone.
//!
//! The counters are those of the kernel's device, by its names. With `-d` ours follow: packets that
//! were passed on to another process, faults, and what was dropped in silence, by reason.

use std::collections::VecDeque;

use broker::{LinkInfo, counters::LinkCounts, resource::Kind};
use tap::{Counters, DropReason};

use super::{
    Ended, OutputOptions, abbreviates,
    format::{Entry, Field, Value, render},
    link::{PORT, WRONG_NAME},
    resource::survey::Survey,
    show_only,
};
use crate::connect::{Failure, connect};

pub(super) const HELP: &str = "\
Usage: softrdma statistic show
       softrdma statistic show link [ DEV/PORT_INDEX ]
";

/// What it means that a process did not answer.
const LATE: &str = "what it has counted of late may be missing here";

pub(super) fn run(options: OutputOptions, words: VecDeque<String>) -> Ended {
    show_only("statistic", HELP, words, |words| show(options, words))
}

fn show(options: OutputOptions, mut words: VecDeque<String>) -> Result<Ended, Failure> {
    match words.pop_front() {
        Some(word) if !abbreviates(&word, "link") => {
            return Ok(Ended::Usage(format!("Unknown parameter '{word}'.\n")));
        }
        _ => {}
    }
    let wanted = words.pop_front();
    let Some(client) = connect()? else {
        return Ok(match wanted {
            None => Ended::Output(render(&[], options)),
            Some(_) => Ended::Failed(format!("{WRONG_NAME}\n")),
        });
    };
    let links = client.links()?;
    let shown: Vec<&LinkInfo> = match &wanted {
        None => links.iter().collect(),
        Some(name) => {
            let is_it = |link: &&LinkInfo| {
                let port = name.strip_prefix(&link.name);
                port.is_some_and(|port| port.is_empty() || port == format!("/{PORT}"))
            };
            match links.iter().find(is_it) {
                Some(link) => vec![link],
                None => return Ok(Ended::Failed(format!("{WRONG_NAME}\n"))),
            }
        }
    };
    // what processes have counted up to this moment is to be among it
    let survey = Survey::take(&[Kind::Counters])?;
    let mut entries = Vec::new();
    for link in shown {
        entries.push(entry(&client.counts(&link.name)?, options));
    }
    Ok(Ended::Remarked(
        render(&entries, options),
        survey.remark(LATE),
    ))
}

fn entry(counts: &LinkCounts, options: OutputOptions) -> Entry {
    let field = |name, value, in_text| Field {
        name,
        value,
        in_text,
    };
    let mut fields = vec![
        field("ifname", Value::Text(counts.link.clone()), false),
        field("port", Value::Number(PORT), false),
    ];
    let names = Counters::default();
    let drops = DropReason::ALL.iter().map(|reason| reason.name());
    let names = names.iter().map(|(name, _)| name).chain(drops);
    let shown = if options.details {
        usize::MAX
    } else {
        Counters::RXE_COUNT
    };
    for (name, count) in names.zip(&counts.counts).take(shown) {
        let count = if name == "link_downed" {
            counts.downed
        } else {
            *count
        };
        fields.push(field(name, Value::Count(count), true));
    }
    Entry {
        head: format!("link {}/{PORT} ", counts.link),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../testdata/rdma-statistic.txt");

    fn shown(first: [u64; 15], options: OutputOptions) -> String {
        let mut counts = first.to_vec();
        counts.resize(broker::counters::COUNTS, 0);
        // the broker alone knows how often the port went down
        let downed = std::mem::take(&mut counts[12]);
        let counts = LinkCounts {
            link: "rxe0".into(),
            downed,
            counts,
        };
        render(&[entry(&counts, options)], options)
    }

    #[test]
    fn counters_are_printed_as_iproute2_does() {
        let json = OutputOptions {
            json: true,
            ..OutputOptions::default()
        };
        let pretty = OutputOptions {
            pretty: true,
            ..json
        };
        for (command, options, counts) in [
            (
                "rdma statistic show",
                OutputOptions::default(),
                [
                    31079, 31079, 0, 0, 0, 0, 0, 15538, 0, 0, 0, 0, 1, 10362, 10362,
                ],
            ),
            (
                "rdma -j statistic show",
                json,
                [
                    34978, 34979, 0, 0, 0, 0, 0, 17488, 0, 0, 0, 0, 1, 11661, 11662,
                ],
            ),
            (
                "rdma -j -p statistic show",
                pretty,
                [
                    33679, 33679, 0, 0, 0, 0, 0, 16838, 0, 0, 0, 0, 1, 11227, 11228,
                ],
            ),
        ] {
            let expected = crate::rdma::reference_output(REFERENCE, command, 0);
            assert_eq!(shown(counts, options), expected, "{command}");
        }
    }

    #[test]
    fn details_are_what_the_kernel_does_not_count() {
        let details = OutputOptions {
            details: true,
            ..OutputOptions::default()
        };
        let text = shown([0; 15], details);
        let after = text
            .split("rdma_recvs 0 \n")
            .nth(1)
            .expect("the kernel's last");
        assert!(after.starts_with("    foreign_passed_on 0 \n"), "{after}");
        assert!(after.contains("    drop_bad_icrc 0 \n"), "{after}");
        assert_eq!(text.lines().count(), 1 + 19 + DropReason::ALL.len());
    }
}
