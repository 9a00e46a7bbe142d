//! IDs whose device is gone: with the broker, or alone with its network interface. The program is
//! told so, and as by the kernel's rdma_cm nothing else any more.

use std::sync::Arc;

use engine::Instant;

use super::event::{Event, EventKind};
use super::record::{Record, State};
use super::{Connections, Inner};
use crate::process::Process;

impl Connections {
    /// The broker died: whoever has a device is told that it is gone.
    pub(crate) fn lose_device(&self) {
        for (number, record) in &self.lock().records {
            if record.route.is_some() {
                record.tell_of_removal(*number);
            }
        }
    }
}

impl Process {
    /// The link of this name is gone: its IDs are told, and their connections are over.
    pub(crate) fn lose_link(self: &Arc<Self>, name: &str) {
        self.in_connections(|inner, now| inner.lose_link(now, name));
    }
}

impl Inner {
    fn lose_link(&mut self, now: Instant, name: &str) {
        for (number, record) in &mut self.records {
            if record.route.as_ref().is_none_or(|route| route.link != name) {
                continue;
            }
            record.tell_of_removal(*number);
            // who listens waits in vain, until it is destroyed
            if record.state != State::Listening {
                record.state = State::Disconnected;
            }
            // which resets a peer that waits for an answer
            record.stream.incoming = None;
            if let Some(comm) = record.comm.take() {
                self.by_comm.remove(&comm);
                if let Some(cm) = &mut self.cm {
                    // a peer that can still be reached is told; it may be over and forgotten
                    let _ = cm.destroy(now, comm);
                }
            }
        }
    }
}

impl Record {
    fn tell_of_removal(&self, number: u64) {
        self.tell(number, Event::of(self, EventKind::DeviceRemoval, 0));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use broker::link::LinkKind;
    use engine::Path;
    use engine::cm::{Cm, Config, ConnectRequest, LocalQueuePair};
    use engine::qp::Transport;
    use wire::mad::{Bits, Guid, PortSpace, ServiceId};
    use wire::{Mtu, Psn, Qpn};

    use super::super::EventChannel;
    use super::super::record::Route;
    use super::*;

    const NOW: Instant = Instant::from_nanos(0);
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn route(link: &str, kind: LinkKind) -> Route {
        Route {
            link: link.to_owned(),
            kind,
            has_atomics: true,
            gid_index: 1,
            guid: Guid(1),
            mtu: Mtu::B1024,
            path: Path {
                local: HERE,
                remote: HERE,
                interface: 0,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            },
        }
    }

    fn connection(cm: &mut Cm, path: Path) -> wire::mad::CommId {
        let own = LocalQueuePair {
            guid: Guid(1),
            qpn: Qpn::new(2).expect("24 bits"),
            starting_psn: Psn::default(),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry_count: Bits::MAX,
            has_srq: false,
        };
        let request = ConnectRequest::new(path, ServiceId::new(PortSpace::Tcp, 7), own);
        cm.connect(NOW, &request).expect("there is room")
    }

    /// IDs on two links and on none, one of them with a connection.
    #[test]
    fn the_ids_of_a_link_are_told_and_those_of_others_are_not() {
        let channel = Arc::new(EventChannel::new().expect("a descriptor"));
        let mut inner = Inner {
            cm: Some(Cm::new(Config::new(1, 0))),
            ..Inner::default()
        };
        let mut add = |number, state, on: Option<Route>| {
            let mut record = Record::new(&channel, PortSpace::Tcp, Transport::Rc, Psn::default());
            record.state = state;
            if let (State::Connecting, Some(cm), Some(route)) = (state, &mut inner.cm, &on) {
                let comm = connection(cm, route.path);
                record.comm = Some(comm);
                inner.by_comm.insert(comm, number);
            }
            record.route = on;
            inner.records.insert(number, record);
        };
        add(1, State::Idle, None);
        add(2, State::Listening, Some(route("lost", LinkKind::Siw)));
        add(3, State::Connecting, Some(route("lost", LinkKind::Rxe)));
        add(4, State::Connecting, Some(route("other", LinkKind::Rxe)));

        inner.lose_link(NOW, "lost");
        let told = std::iter::from_fn(|| channel.try_next());
        let mut told: Vec<_> = told.map(|event| (event.cookie, event.kind.kind)).collect();
        told.sort_unstable_by_key(|(number, _)| *number);
        let removal = EventKind::DeviceRemoval;
        assert_eq!(told, [(2, removal), (3, removal)]);

        let state_of = |number| inner.records.get(&number).map(|record| record.state);
        assert_eq!(state_of(2), Some(State::Listening));
        assert_eq!(state_of(3), Some(State::Disconnected));
        assert_eq!(state_of(4), Some(State::Connecting));
        // nothing that a peer says is about it any more
        assert_eq!(inner.by_comm.values().copied().collect::<Vec<_>>(), [4]);
    }
}
