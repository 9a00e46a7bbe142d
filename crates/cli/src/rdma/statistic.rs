//! `statistic show`: what all programs have counted, also those that are gone.
//!
//! The counters are those of the kernel's device, by its names. With `-d` ours follow: packets that
//! were passed on to another process, faults, and what was dropped in silence, by reason. A link of
//! iWARP has those that mean something there, and its own: why connections ended.

use std::collections::VecDeque;

use broker::link::LinkKind;
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

/// Counters of the kernel's rxe that links of iWARP have too; the others stand still there.
const OF_BOTH: [&str; 6] = [
    "sent_pkts",
    "rcvd_pkts",
    "send_err",
    "link_downed",
    "rdma_sends",
    "rdma_recvs",
];

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
        let counts = client.counts(&link.name)?;
        entries.push(entry(&counts, link.kind, options));
    }
    Ok(Ended::Remarked(
        render(&entries, options),
        survey.remark(LATE),
    ))
}

fn entry(counts: &LinkCounts, kind: LinkKind, options: OutputOptions) -> Entry {
    let field = |name, value, in_text| Field {
        name,
        value,
        in_text,
    };
    let mut fields = vec![
        field("ifname", Value::Text(counts.link.clone()), false),
        field("port", Value::Number(PORT), false),
    ];
    let named = names(kind, options.details).into_iter().zip(&counts.counts);
    for ((name, _), count) in named.filter(|((_, is_shown), _)| *is_shown) {
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

/// All counters in the order in which programs write them, and whether a link of this kind shows
/// them.
fn names(kind: LinkKind, has_details: bool) -> Vec<(&'static str, bool)> {
    let is_iwarp = kind == LinkKind::Siw;
    let packets = Counters::default();
    let streams = softrdma::iwarp::Counters::default();
    let drops = DropReason::ALL.iter().map(|reason| reason.name());
    let kernels = packets.rxe().map(|(name, _)| name);
    let own = packets.iter().skip(Counters::RXE_COUNT);
    // a process that used a link of iWARP first counts there what belongs to no queue pair
    let own = own.map(|(name, _)| name).chain(drops);
    let of_streams = streams.iter().map(|(name, _)| name);
    kernels
        .map(|name| (name, !is_iwarp || OF_BOTH.contains(&name)))
        .chain(own.map(|name| (name, has_details)))
        .chain(of_streams.map(|name| (name, is_iwarp)))
        .collect()
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
        render(&[entry(&counts, LinkKind::Rxe, options)], options)
    }

    #[test]
    fn a_link_of_iwarp_has_its_own_and_what_means_something_there() {
        // each counter is its place
        let counts = LinkCounts {
            link: "siw0".into(),
            downed: 1000,
            counts: (0..broker::counters::COUNTS as u64).collect(),
        };
        let options = OutputOptions::default();
        let text = render(&[entry(&counts, LinkKind::Siw, options)], options);
        let first = 15 + 4 + DropReason::ALL.len();
        let mut expected = String::from(
            "link siw0/1 \n    sent_pkts 0 \n    rcvd_pkts 1 \n    send_err 11 \n    link_downed 1000 \n    \
             rdma_sends 13 \n    rdma_recvs 14 \n",
        );
        for (place, name) in (first..).zip([
            "sent_terminates",
            "rcvd_terminates",
            "rcvd_crc_err",
            "rcvd_framing_err",
            "rcvd_segment_err",
            "conn_lost",
            "conn_timeout",
            "connect_err",
            "request_err",
            "request_timeout",
        ]) {
            expected += &format!("    {name} {place} \n");
        }
        assert_eq!(text, expected);
        let details = OutputOptions {
            details: true,
            ..options
        };
        let text = render(&[entry(&counts, LinkKind::Siw, details)], details);
        assert!(text.contains("    drop_bad_icrc "), "{text}");
        assert!(!text.contains("    ack_deferred "), "{text}");
        assert!(text.ends_with(&expected[expected.find("    sent_t").expect("in it")..]));
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
