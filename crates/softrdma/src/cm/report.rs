//! What IDs there are, for who asks.

use std::collections::{BTreeMap, HashMap};

use broker::link::LinkInfo;
use broker::resource::{Details, Object, REPORTED_MAX, Report};
use wire::Qpn;

use super::Connections;
use super::record::{Record, State};
use crate::choice;

impl Connections {
    /// The IDs that have an address, from `place` on.
    pub(crate) fn report(&self, from: u64) -> Report {
        let inner = self.lock();
        let seen = choice::is_made().then(|| inner.links());
        report_of(&inner.records, seen, from)
    }
}

/// The same of these IDs. `seen` are the links that the program sees, unless those are all.
fn report_of(records: &HashMap<u64, Record>, seen: Option<&[LinkInfo]>, from: u64) -> Report {
    // the smallest numbers, of a table without order
    let mut found = BTreeMap::new();
    let mut next: Option<u64> = None;
    for (number, record) in records {
        if *number < from || next.is_some_and(|next| *number >= next) {
            continue;
        }
        let objects = objects(*number, record, seen);
        if !objects.is_empty() {
            found.insert(*number, objects);
        }
        // one ID may be at several links: a report has all of it, or the next one has
        while found.len() > 1 && found.values().map(Vec::len).sum::<usize>() > REPORTED_MAX {
            next = found.pop_last().map(|(number, _)| number);
        }
    }
    Report {
        objects: found.into_values().flatten().collect(),
        next,
    }
}

/// An ID as it is listed: the kernel lists those that belong to a device, and who listens at all
/// addresses belongs to each that its program sees.
fn objects(number: u64, record: &Record, seen: Option<&[LinkInfo]>) -> Vec<Object> {
    let Some(source) = record.local else {
        return Vec::new();
    };
    let links = match (&record.route, seen) {
        (Some(route), _) => vec![Some(route.link.clone())],
        (None, _) if record.state != State::Listening => Vec::new(),
        (None, None) => vec![None],
        (None, Some(seen)) => seen.iter().map(|link| Some(link.name.clone())).collect(),
    };
    let object = |link| Object {
        number: number as u32, // IDs are numbered from 1 on
        link,
        details: Details::ConnectionId {
            state: kernel_state(record.state),
            space: record.space,
            qpn: record.qpn.map(Qpn::get),
            source,
            destination: record.remote,
        },
    };
    links.into_iter().take(REPORTED_MAX).map(object).collect()
}

/// The values of the kernel's `enum rdma_cm_state`.
fn kernel_state(state: State) -> u8 {
    match state {
        State::Idle => 0,
        State::Resolving => 1,
        State::AddressResolved => 2,
        State::RouteResolved => 4,
        State::Connecting
        | State::Responding
        | State::Requested
        | State::Accepted
        | State::Connected => 5,
        State::Disconnected => 6,
        State::Bound => 7,
        State::Listening => 8,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use broker::link::LinkKind;
    use engine::qp::Transport;
    use wire::Psn;
    use wire::mad::PortSpace;

    use super::*;
    use crate::cm::EventChannel;
    use crate::iwarp::link_for_test as link;

    /// IDs that listen at all addresses, numbered from 1.
    fn listening(count: u64) -> HashMap<u64, Record> {
        let channel = Arc::new(EventChannel::new().expect("an eventfd"));
        let record = || {
            let mut record = Record::new(&channel, PortSpace::Tcp, Transport::Rc, Psn::default());
            record.state = State::Listening;
            record.local = Some(([0, 0, 0, 0], 7174).into());
            record
        };
        (1..=count).map(|number| (number, record())).collect()
    }

    fn links_in(report: &Report) -> Vec<Option<&str>> {
        let links = report.objects.iter();
        links.map(|object| object.link.as_deref()).collect()
    }

    #[test]
    fn who_listens_at_all_addresses_does_so_at_the_links_that_it_sees() {
        let records = listening(1);
        let siw = link("siw0", LinkKind::Siw, &["192.0.2.1"]);
        let rxe = link("rxe1", LinkKind::Rxe, &["192.0.2.2"]);
        assert_eq!(links_in(&report_of(&records, None, 0)), [None], "any");
        let some = report_of(&records, Some(&[siw, rxe]), 0);
        assert_eq!(links_in(&some), [Some("siw0"), Some("rxe1")]);
        assert_eq!(links_in(&report_of(&records, Some(&[]), 0)), []);
    }

    #[test]
    fn a_report_that_is_full_is_gone_on_with() {
        let seen = ["a", "b", "c"].map(|name| link(name, LinkKind::Siw, &[]));
        let records = listening(REPORTED_MAX as u64);
        let (mut from, mut numbers) = (0, Vec::new());
        loop {
            let report = report_of(&records, Some(&seen), from);
            assert!(report.objects.len() <= REPORTED_MAX);
            numbers.extend(report.objects.iter().map(|object| u64::from(object.number)));
            match report.next {
                Some(next) => from = next,
                None => break,
            }
        }
        let all = (1..=REPORTED_MAX as u64).flat_map(|number| [number; 3]);
        assert_eq!(numbers, all.collect::<Vec<_>>());
    }
}
