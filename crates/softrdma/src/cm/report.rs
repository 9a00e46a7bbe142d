//! What IDs there are, for who asks.

use std::collections::BTreeMap;

use broker::resource::{Details, Object, REPORTED_MAX, Report};
use wire::Qpn;

use super::Connections;
use super::record::{Record, State};

impl Connections {
    /// The IDs that have an address, from `place` on.
    pub(crate) fn report(&self, from: u64) -> Report {
        let inner = self.lock();
        // the smallest numbers, of a table without order
        let mut found = BTreeMap::new();
        let mut is_all = true;
        for (number, record) in &inner.records {
            if *number >= from
                && let Some(object) = object(*number, record)
            {
                found.insert(*number, object);
                if found.len() > REPORTED_MAX {
                    found.pop_last();
                    is_all = false;
                }
            }
        }
        let last = found.last_key_value().map(|(number, _)| *number);
        Report {
            next: last.filter(|_| !is_all).map(|last| last + 1),
            objects: found.into_values().collect(),
        }
    }
}

/// An ID as it is listed: the kernel lists those that belong to a device, and who listens at all
/// addresses belongs to each.
fn object(number: u64, record: &Record) -> Option<Object> {
    let link = record.route.as_ref().map(|route| route.link.clone());
    if link.is_none() && record.state != State::Listening {
        return None;
    }
    Some(Object {
        number: number as u32, // IDs are numbered from 1 on
        link,
        details: Details::ConnectionId {
            state: kernel_state(record.state),
            space: record.space,
            qpn: record.qpn.map(Qpn::get),
            source: record.local?,
            destination: record.remote,
        },
    })
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
