//! Filters: pairs of a name and what the value must be, in iproute2's forms.

use std::collections::VecDeque;

use super::row::Row;
use crate::rdma::{abbreviates, format::Value};

/// A name that can be filtered by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    pub(super) name: &'static str,
    is_number: bool,
}

const fn number(name: &'static str) -> Filter {
    Filter {
        name,
        is_number: true,
    }
}

const fn text(name: &'static str) -> Filter {
    Filter {
        name,
        is_number: false,
    }
}

pub(super) const QUEUE_PAIRS: &[Filter] = &[
    text("link"),
    number("lqpn"),
    number("rqpn"),
    number("pid"),
    number("sq-psn"),
    number("rq-psn"),
    text("type"),
    text("path-mig-state"),
    text("state"),
    number("pdn"),
];

pub(super) const CONNECTION_IDS: &[Filter] = &[
    text("link"),
    number("lqpn"),
    text("qp-type"),
    text("state"),
    text("ps"),
    text("dev-type"),
    text("transport-type"),
    number("pid"),
    text("src-addr"),
    number("src-port"),
    text("dst-addr"),
    number("dst-port"),
    number("cm-idn"),
];

pub(super) const COMPLETION_QUEUES: &[Filter] = &[
    text("dev"),
    number("users"),
    text("poll-ctx"),
    number("pid"),
    number("cqn"),
    number("ctxn"),
];

pub(super) const MEMORY_REGIONS: &[Filter] = &[
    text("dev"),
    number("rkey"),
    number("lkey"),
    number("mrlen"),
    number("pid"),
    number("mrn"),
    number("pdn"),
];

pub(super) const PROTECTION_DOMAINS: &[Filter] = &[
    text("dev"),
    number("users"),
    number("pid"),
    number("ctxn"),
    number("pdn"),
];

pub(super) const CONTEXTS: &[Filter] = &[text("dev"), number("ctxn"), number("pid")];

pub(super) const SHARED_RECEIVE_QUEUES: &[Filter] = &[
    text("dev"),
    number("srqn"),
    text("type"),
    number("pid"),
    number("pdn"),
    number("cqn"),
    number("lqpn"),
];

pub(super) const GIDS: &[Filter] = &[text("link"), number("gid-index"), text("gid")];

/// The characters of a number filter: numbers, lists and ranges of them.
const NUMBER_CHARACTERS: &str = "1234567890,-";

/// What was asked for.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<(String, String)>);

impl Filters {
    /// Takes all words; otherwise why not.
    pub(super) fn parse(known: &[Filter], words: VecDeque<String>) -> Result<Self, String> {
        let words: Vec<String> = words.into();
        if let [word] = &words[..] {
            return Err(format!(
                "No filter data was supplied to filter option {word}\n"
            ));
        }
        if !words.len().is_multiple_of(2) {
            return Err("There is filter option without data\n".into());
        }
        let mut filters = Vec::new();
        for pair in words.chunks_exact(2) {
            let (name, value) = (&pair[0], &pair[1]);
            let Some(filter) = known.iter().find(|known| abbreviates(name, known.name)) else {
                return Err(format!("Unsupported filter option: {name}\n"));
            };
            if filter.is_number && !value.chars().all(|c| NUMBER_CHARACTERS.contains(c)) {
                return Err(format!(
                    "{name} filter accepts \"{NUMBER_CHARACTERS}\" characters only\n"
                ));
            }
            filters.push((name.clone(), value.clone()));
        }
        Ok(Self(filters))
    }

    /// The device that was asked for, with its port or without.
    pub(super) fn device(&self) -> Option<&str> {
        let is_device = |name: &str| abbreviates(name, "dev") || abbreviates(name, "link");
        self.0
            .iter()
            .find(|(name, _)| is_device(name))
            .map(|(_, value)| value.as_str())
    }

    /// Of a list of numbers only those are shown that were asked for.
    pub(super) fn narrow(&self, row: &mut Row) {
        for (name, numbers) in row.lists() {
            let asked = self.0.iter().filter(|(of, _)| abbreviates(of, name));
            for (_, wanted) in asked {
                numbers.retain(|number| is_in(wanted, (*number).into()));
            }
        }
    }

    /// Whether an object is to be shown. One that has no such value at all is not.
    pub(super) fn admit(&self, row: &Row) -> bool {
        self.0.iter().all(|(name, wanted)| {
            if abbreviates(name, "dev") || abbreviates(name, "link") {
                return true;
            }
            let mut values = row.values().filter(|(of, _)| abbreviates(name, of));
            values
                .next()
                .is_some_and(|(_, value)| matches(value, wanted))
                && values.all(|(_, value)| matches(value, wanted))
        })
    }
}

fn matches(value: &Value, wanted: &str) -> bool {
    match value {
        Value::Number(number) => is_in(wanted, *number),
        Value::Key(key) => is_in(wanted, u64::from(*key)),
        Value::Text(text) => wanted
            .split(',')
            .any(|alternative| alternative.eq_ignore_ascii_case(text)),
        Value::Ranges(numbers) => numbers.iter().any(|number| is_in(wanted, (*number).into())),
        Value::Count(_) | Value::Switch(_) | Value::List(_) => false,
    }
}

/// Whether a number is in a list such as `1,3-5`.
fn is_in(list: &str, number: u64) -> bool {
    list.split(',').any(|item| match item.split_once('-') {
        Some((first, last)) => match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&number),
            _ => false,
        },
        None => item.parse() == Ok(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Filters, String> {
        let words = text.split_whitespace().map(str::to_owned).collect();
        Filters::parse(QUEUE_PAIRS, words)
    }

    #[test]
    fn lists_and_ranges_of_numbers() {
        for (list, admitted) in [
            ("17", &[17][..]),
            ("17,20", &[17, 20]),
            (",17", &[17]),
            ("17-19", &[17, 18, 19]),
            ("1,18-19,21-22", &[18, 19, 21, 22]),
            ("-", &[]),
            ("", &[]),
        ] {
            let found: Vec<u64> = (16..23).filter(|number| is_in(list, *number)).collect();
            assert_eq!(found, admitted, "{list}");
        }
    }

    #[test]
    fn errors_are_those_of_iproute2() {
        let error = |text| parse(text).expect_err("wrong");
        assert_eq!(error("qp-type RC"), "Unsupported filter option: qp-type\n");
        assert_eq!(
            error("link"),
            "No filter data was supplied to filter option link\n"
        );
        assert_eq!(
            error("link rxe0 lqpn"),
            "There is filter option without data\n"
        );
        assert_eq!(
            error("lqpn x"),
            "lqpn filter accepts \"1234567890,-\" characters only\n"
        );
    }

    #[test]
    fn the_device_is_found_wherever_it_stands() {
        let device = |text| parse(text).expect("right").device().map(str::to_owned);
        assert_eq!(device("lqpn 17 link rxe0/1").as_deref(), Some("rxe0/1"));
        assert_eq!(device("pid 17"), None);
    }
}
