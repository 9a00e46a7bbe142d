//! Connection management of the process: IDs, event channels, and what drives the state machines.
//!
//! Read first: [`engine::cm`] for the states, IBA A11 for addresses and ports. An [`Id`] is a
//! program's end of a connection that it asks for, takes or listens for. What happens to it comes
//! as a [`CmEvent`] through its [`EventChannel`], in the order in which it happened.
//!
//! | module | what |
//! |---|---|
//! | [`id`] | IDs, their addresses, listening |
//! | [`connection`] | what a program does with a peer |
//! | `datagram` | the same with datagram queue pairs |
//! | `multicast` | groups of those |
//! | `streams` | IDs on links of iWARP |
//! | [`event`] | what it is told |
//! | `record` | what is known of an ID |
//! | `resolve` | from addresses to the link and the path between them |
//! | `neighbour` | who is waited for on that path |
//! | `incoming` | from the state machines' events to the program's |
//! | `removal` | what they are told when their device is gone |
//! | `advice` | what the person in front of the program is told |
//! | `report` | what IDs there are, for who asks |
//! | `attributes` | what the queue pair of a connection has to be set to |
//!
//! All IDs of a process are behind one lock, between those of control and the shards: whoever has
//! it sends through the first lane, and asks the broker nothing. The background thread of that
//! lane takes the messages that come and minds the deadlines. It never touches a queue pair: those
//! belong to the program, which moves them when it is told.

mod advice;
mod attributes;
pub mod connection;
mod datagram;
pub mod event;
pub mod id;
mod incoming;
mod multicast;
mod neighbour;
mod record;
mod removal;
mod report;
mod resolve;
mod streams;

pub use connection::Request;
pub use engine::cm::Enhancements;
pub use event::{ConnectionParameters, DatagramPeer, Event as CmEvent, EventChannel, EventKind};
pub use id::{Id, Options};
pub use wire::mad::{Bits, PortSpace, RejectReason};

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::link::LinkInfo;
use broker::protocol::Event;
use engine::Instant;
use engine::cm::{Cm, Config};
use wire::mad::{CommId, ServiceId};

use crate::choice::visible;
use crate::error::{Error, Result};
use crate::iwarp::Reception;
use crate::process::{Process, random};
use neighbour::Awaited;
use record::{Record, Route};
use resolve::{ROCE, kinds, link_of, route};

/// No deadline.
const NEVER: u64 = u64::MAX;

/// All connections of a process.
pub(crate) struct Connections {
    inner: Mutex<Inner>,
    /// The earliest deadline, in nanoseconds of the clock.
    deadline_ns: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// From the first lane on, whose slot is in its communication IDs.
    cm: Option<Cm>,
    records: HashMap<u64, Record>,
    /// The IDs of the connections that the state machines know.
    by_comm: HashMap<CommId, u64>,
    /// Who listens: several at different addresses.
    listeners: HashMap<ServiceId, Vec<u64>>,
    last_number: u64,
    /// Who may have asked a peer that does not answer.
    asked: Option<advice::Asked>,
    /// Who waits for a neighbour.
    awaited: Vec<Awaited>,
    /// The links of this host, as last heard; `None` before anybody asked for them.
    links: Option<Vec<LinkInfo>>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            deadline_ns: AtomicU64::new(NEVER),
        }
    }
}

impl Connections {
    /// When [`Process::serve_connections`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadline = self.deadline_ns.load(Ordering::SeqCst);
        (deadline != NEVER).then(|| Instant::from_nanos(deadline))
    }

    /// News from the broker.
    pub(crate) fn hear(&self, event: &Event, reception: &Reception) {
        let mut inner = self.lock();
        let Some(links) = &mut inner.links else {
            return;
        };
        let known = links.iter().position(|link| link.name == event.link_name());
        match (event, known) {
            (Event::Changed { link, .. }, Some(at)) => links[at] = link.clone(),
            (Event::Changed { link, .. } | Event::Added(link), None) => links.push(link.clone()),
            (Event::Removed { .. }, Some(at)) => drop(links.remove(at)),
            (Event::Added(_), Some(_)) | (Event::Removed { .. }, None) => {}
        }
        *links = visible(std::mem::take(links));
        reception.know(links);
    }

    /// The index of the link that has this address.
    pub(crate) fn link_at(&self, address: IpAddr) -> Option<u32> {
        let inner = self.lock();
        let links = inner.links.as_deref()?;
        let found = link_of(links, SocketAddr::new(address, 0), ROCE);
        found.map(|(link, _)| link.index)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // a panic was reported by the guard of the C library; what it left is looked up, not
        // trusted
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Takes messages that came, and sends again and gives up what is due.
    pub(crate) fn serve_connections(self: &Arc<Self>) {
        let reports: Vec<_> = std::iter::from_fn(|| self.take_stream_report()).collect();
        if !reports.is_empty() {
            self.take_stream_reports(reports);
        }
        let lane = self.lanes.get(0);
        let messages = lane.map(|lane| lane.core.shard.take_messages());
        let messages = messages.unwrap_or_default();
        let is_due = |deadline: Instant| deadline.as_nanos() <= io::clock::now_ns();
        if messages.is_empty() && !self.connections.next_deadline().is_some_and(is_due) {
            return;
        }
        self.in_connections(|inner, now| {
            inner.look_for_neighbours(now);
            let Some(cm) = &mut inner.cm else {
                return;
            };
            for message in &messages {
                let outcome = cm.handle_mad(now, &message.mad, &message.meta);
                tracing::trace!(?outcome, source = %message.meta.source, "a message for QP 1");
            }
            cm.handle_timeout(now);
            inner.look_for_silence(now);
        });
    }

    /// A section of the lock: runs `work`, then tells programs and peers what came of it. Nothing
    /// of a parent's is touched in a child: callers have checked.
    fn in_connections<R>(self: &Arc<Self>, work: impl FnOnce(&mut Inner, Instant) -> R) -> R {
        let now = Instant::from_nanos(io::clock::now_ns());
        let mut inner = self.connections.lock();
        let result = work(&mut inner, now);
        if let Some(lane) = self.lanes.get(0) {
            self.deliver(&mut inner, now);
            if let Some(cm) = &mut inner.cm
                && let Some(first) = cm.poll_transmit()
            {
                let mut shard = lane.core.shard.lock();
                let rest = std::iter::from_fn(|| cm.poll_transmit());
                for outgoing in std::iter::once(first).chain(rest) {
                    shard.send_management(now, &outgoing.path, &outgoing.mad);
                }
            }
        }
        let deadline = inner.next_deadline();
        self.connections
            .deadline_ns
            .store(deadline.map_or(NEVER, Instant::as_nanos), Ordering::SeqCst);
        drop(inner);
        self.attendant.wake_before(deadline);
        result
    }

    /// The way from `local`, over the link that has this address and fits the port space, to
    /// `remote`. `None` if no link has it: then, and only then, the broker is asked, as its news
    /// may be under way.
    fn way(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        traffic_class: u8,
        space: PortSpace,
    ) -> Result<Option<Route>> {
        let find = |links: &[LinkInfo]| {
            let mut rows = kinds(space).iter();
            let (link, index) = rows.find_map(|row| link_of(links, local, row))?;
            Some(route(link, index, local, remote, traffic_class))
        };
        if let Some(known) = find(self.connections.lock().links()) {
            return Ok(Some(known));
        }
        self.learn_links()?;
        Ok(find(self.connections.lock().links()))
    }

    /// Asks the broker for the links of this host.
    fn learn_links(&self) -> Result<()> {
        let links = self.broker.links().map_err(Error::Call)?;
        let mut inner = self.connections.lock();
        self.reception.know(inner.links.insert(visible(links)));
        Ok(())
    }

    /// Makes ready for messages.
    fn start_connections(self: &Arc<Self>) -> Result<u8> {
        let slot = self.first_lane()?.slot;
        let seed = u64::from(random()) << 32 | u64::from(random());
        self.connections
            .lock()
            .cm
            .get_or_insert_with(|| Cm::new(Config::new(slot, seed)));
        Ok(slot)
    }
}

impl Inner {
    /// When somebody has to be asked again, or given up.
    fn next_deadline(&self) -> Option<Instant> {
        let messages = self.cm.as_ref().and_then(Cm::next_deadline);
        [messages, self.next_look()].into_iter().flatten().min()
    }
}
