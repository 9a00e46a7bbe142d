//! Multicast groups: how to send to one, for the ID of a datagram queue pair.
//!
//! RoCE has nobody to ask: a group is its address, and a host is in it while a queue pair is
//! attached. So the answer comes at once, as an event, and attaching is left to who has the queue
//! pair. The kernel's rdma_cm is the model, which also says so for IPv4; here IPv6 is the same.

use std::net::IpAddr;

use engine::qp::Transport;
use wire::{Gid, Qpn};

use super::event::{DatagramPeer, Event, EventKind};
use super::id::Id;
use super::record::State;
use super::resolve::HOP_LIMIT;
use crate::address::AddressVector;
use crate::error::{Error, Result};

impl Id {
    /// Joins a group. An event says how to send to it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an ID of connections or without a device, and for an address that is
    /// no group or of another family than the own one; [`Error::Unsupported`] over iWARP.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        self.change(|inner, number| {
            let record = inner.record(number)?;
            let (State::Bound | State::AddressResolved, Transport::Ud, Some(route)) =
                (record.state, record.transport, &record.route)
            else {
                return Err(Error::Invalid(
                    "only an ID of datagrams with a device can join",
                ));
            };
            if record.is_stream() {
                return Err(Error::Unsupported("a group over iWARP"));
            }
            if !group.is_multicast() || group.is_ipv4() != route.path.local.is_ipv4() {
                return Err(Error::Invalid("that is no group for this address"));
            }
            let address = AddressVector {
                source_index: u8::try_from(route.gid_index)
                    .map_err(|_| Error::Invalid("the GID index does not fit"))?,
                dest: Gid::from_ip(group),
                traffic_class: record.options.traffic_class,
                hop_limit: HOP_LIMIT,
                port: 1,
                ..AddressVector::default()
            };
            let qkey = record.own_qkey()?;
            let event = Event {
                datagram_peer: Some(DatagramPeer {
                    address,
                    qpn: Qpn::MULTICAST.get(),
                    qkey,
                }),
                ..Event::of(record, EventKind::MulticastJoin, 0)
            };
            record.tell(number, event);
            Ok(())
        })
    }

    /// Takes back the events of a group that wait.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub fn forget_join(&self, group: IpAddr) -> Result<()> {
        let group = Gid::from_ip(group);
        self.with(|record| {
            let is_of_group = |event: &Event| {
                event.kind == EventKind::MulticastJoin
                    && event
                        .datagram_peer
                        .is_some_and(|peer| peer.address.dest == group)
            };
            for event in record.channel.withdraw(self.number()) {
                if !is_of_group(&event) {
                    record.tell(self.number(), event);
                }
            }
            Ok(())
        })
    }
}
