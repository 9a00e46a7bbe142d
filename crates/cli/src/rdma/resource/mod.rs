//! `resource show`: what the programs of the host have.
//!
//! | file | what |
//! |---|---|
//! | `survey.rs` | asks all processes |
//! | `filter.rs` | what is to be shown of it |
//! | `row.rs` | one object, as iproute2 writes it |

mod filter;
mod row;
pub(super) mod survey;

use std::collections::VecDeque;

use broker::{LinkInfo, resource::Kind};

use super::{
    Ended, OutputOptions, abbreviates,
    format::{Entry, Field, Value, render},
    link::{PORT, WRONG_NAME},
    show_only,
};
use crate::connect::{Failure, connect};
use filter::{Filter, Filters};
use row::Row;
use survey::Survey;

pub(super) const HELP: &str = "\
Usage: softrdma resource
          resource show [DEV]
          resource show [qp|cm_id|pd|mr|cq|ctx|srq|gid]
          resource show qp link [DEV/PORT]
          resource show qp link [DEV/PORT] [FILTER-NAME FILTER-VALUE]
          resource show cm_id link [DEV/PORT]
          resource show cm_id link [DEV/PORT] [FILTER-NAME FILTER-VALUE]
          resource show cq dev [DEV]
          resource show cq dev [DEV] [FILTER-NAME FILTER-VALUE]
          resource show pd dev [DEV]
          resource show pd dev [DEV] [FILTER-NAME FILTER-VALUE]
          resource show mr dev [DEV]
          resource show mr dev [DEV] [FILTER-NAME FILTER-VALUE]
          resource show ctx dev [DEV]
          resource show ctx dev [DEV] [FILTER-NAME FILTER-VALUE]
          resource show srq dev [DEV]
          resource show srq dev [DEV] [FILTER-NAME FILTER-VALUE]
          resource show gid link [DEV/PORT]
";

/// What it means that a process did not answer.
const MISSING: &str = "what it has is missing here";

/// A list that can be shown.
#[derive(Debug)]
struct List {
    /// The word for it.
    name: &'static str,
    /// `None` is the table of GIDs, which is of the link and not of a program.
    kind: Option<Kind>,
    filters: &'static [Filter],
}

/// In iproute2's order, which decides what an abbreviation means.
const LISTS: [List; 8] = [
    List {
        name: "qp",
        kind: Some(Kind::QueuePair),
        filters: filter::QUEUE_PAIRS,
    },
    List {
        name: "cm_id",
        kind: Some(Kind::ConnectionId),
        filters: filter::CONNECTION_IDS,
    },
    List {
        name: "cq",
        kind: Some(Kind::CompletionQueue),
        filters: filter::COMPLETION_QUEUES,
    },
    List {
        name: "mr",
        kind: Some(Kind::MemoryRegion),
        filters: filter::MEMORY_REGIONS,
    },
    List {
        name: "pd",
        kind: Some(Kind::ProtectionDomain),
        filters: filter::PROTECTION_DOMAINS,
    },
    List {
        name: "ctx",
        kind: Some(Kind::Context),
        filters: filter::CONTEXTS,
    },
    List {
        name: "srq",
        kind: Some(Kind::SharedReceiveQueue),
        filters: filter::SHARED_RECEIVE_QUEUES,
    },
    List {
        name: "gid",
        kind: None,
        filters: filter::GIDS,
    },
];

/// What a summary counts, in the kernel's order and words.
const SUMMARY: [(&str, Kind); 7] = [
    ("pd", Kind::ProtectionDomain),
    ("cq", Kind::CompletionQueue),
    ("qp", Kind::QueuePair),
    ("cm_id", Kind::ConnectionId),
    ("mr", Kind::MemoryRegion),
    ("ctx", Kind::Context),
    ("srq", Kind::SharedReceiveQueue),
];

pub(super) fn run(options: OutputOptions, words: VecDeque<String>) -> Ended {
    show_only("resource", HELP, words, |words| show(options, words))
}

fn show(options: OutputOptions, mut words: VecDeque<String>) -> Result<Ended, Failure> {
    let client = connect()?;
    let links = match &client {
        Some(client) => client.links()?,
        None => Vec::new(),
    };
    let Some(word) = words.pop_front() else {
        return summary(options, &links.iter().collect::<Vec<_>>());
    };
    if words.is_empty()
        && let Some(link) = links.iter().find(|link| link.name == word)
    {
        return summary(options, &[link]);
    }
    let Some(list) = LISTS.iter().find(|list| abbreviates(&word, list.name)) else {
        return Ok(Ended::Usage(format!("Unknown parameter '{word}'.\n")));
    };
    let filters = match Filters::parse(list.filters, words) {
        Ok(filters) => filters,
        Err(text) => return Ok(Ended::Failed(text)),
    };
    let shown = match wanted(list, &filters, &links) {
        Ok(shown) => shown,
        Err(text) => return Ok(Ended::Failed(text)),
    };
    let (rows, remark) = match list.kind {
        None => (row::of_gids(&shown), String::new()),
        Some(kind) => {
            let survey = Survey::take(&kinds(kind))?;
            (
                row::of_objects(kind, &survey.found, &shown),
                survey.remark(MISSING),
            )
        }
    };
    Ok(Ended::Remarked(
        render(&admitted(rows, &filters), options),
        remark,
    ))
}

/// What the filters leave.
fn admitted(rows: Vec<Row>, filters: &Filters) -> Vec<Entry> {
    rows.into_iter()
        .filter(|row| filters.admit(row))
        .map(|mut row| {
            filters.narrow(&mut row);
            row.into_entry()
        })
        .collect()
}

/// What has to be asked for to list a kind: queue pairs know which queue they share.
fn kinds(kind: Kind) -> Vec<Kind> {
    match kind {
        Kind::SharedReceiveQueue => vec![Kind::QueuePair, kind],
        _ => vec![kind],
    }
}

/// The links that a filter leaves.
fn wanted<'a>(
    list: &List,
    filters: &Filters,
    links: &'a [LinkInfo],
) -> Result<Vec<&'a LinkInfo>, String> {
    let Some(name) = filters.device() else {
        return Ok(links.iter().collect());
    };
    let by_port = list.filters.iter().any(|filter| filter.name == "link");
    let is_it = |link: &&LinkInfo| match name.strip_prefix(&link.name) {
        Some("") => true,
        Some(port) => by_port && (port == "/" || port == format!("/{PORT}")),
        None => false,
    };
    match links.iter().find(is_it) {
        Some(link) => Ok(vec![link]),
        None if by_port => Err(format!("{WRONG_NAME}\n")),
        None => Err(format!("{WRONG_NAME} - {name}\n")),
    }
}

/// How many of each kind.
fn summary(options: OutputOptions, links: &[&LinkInfo]) -> Result<Ended, Failure> {
    let survey = Survey::take(&SUMMARY.map(|(_, kind)| kind))?;
    let entries: Vec<Entry> = links
        .iter()
        .map(|link| summary_of(link, &survey.found))
        .collect();
    Ok(Ended::Remarked(
        render(&entries, options),
        survey.remark(MISSING),
    ))
}

fn summary_of(link: &LinkInfo, found: &[survey::Found]) -> Entry {
    let counted = |kind| {
        let is_counted = |found: &&survey::Found| {
            let of = found.object.link.as_ref();
            row::kind(&found.object) == kind && of.is_none_or(|of| *of == link.name)
        };
        Value::Number(found.iter().filter(is_counted).count() as u64)
    };
    let field = |name, value, in_text| Field {
        name,
        value,
        in_text,
    };
    let mut fields = vec![
        field("ifindex", Value::Number(link.index.into()), false),
        field("ifname", Value::Text(link.name.clone()), false),
    ];
    fields.extend(SUMMARY.map(|(name, kind)| field(name, counted(kind), true)));
    Entry {
        head: format!("{}: {}: ", link.index, link.name),
        fields,
    }
}

#[cfg(test)]
mod tests;
