//! IDs that wait for whoever takes packets to their destination.
//!
//! The kernel looks for a neighbour when there is a packet for it, and nobody has sent one before
//! an address is resolved. So where the neighbour is not known a packet has the kernel ask for it,
//! and the background thread looks what came of that. A host that is not there is told within the
//! time that the program gives, as by the kernel's rdma_cm, and not only when nobody answers a
//! request.

use std::net::SocketAddr;
use std::time::Duration;

use engine::Instant;
use io::Errno;
use io::netlink::{Hop, Neighbours, Reach, solicit};

use super::event::{Event, EventKind};
use super::record::{Record, Route, State};
use super::resolve::{flow_label, scope};
use super::{Inner, advice};

/// How long the first pause between two looks is, and how long any.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// An ID that waits.
pub(super) struct Awaited {
    number: u64,
    way: Way,
    hop: Hop,
    /// When the program wants to know.
    until: Instant,
    look_at: Instant,
    pause: Duration,
    /// Whether its address was the program's choice.
    was_bound: bool,
}

/// A destination and how to get there, as an ID has it once the neighbour is known.
pub(super) struct Way {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub route: Route,
}

/// Who has to be found before packets get from `local` to `remote`. `None` if nobody has to; and
/// where the kernel does not tell, since then the request for a connection finds out.
pub(super) fn missing(local: SocketAddr, remote: SocketAddr) -> Option<Hop> {
    if local.ip() == remote.ip() || remote.ip().is_multicast() {
        return None;
    }
    let look = || {
        let mut kernel = Neighbours::new()?;
        let interface = scope(local).max(scope(remote));
        let Some(hop) = kernel.next_hop(local.ip(), remote.ip(), interface)? else {
            return Ok(None);
        };
        let mut reach = kernel.reach(&hop)?;
        if reach == Reach::Unknown {
            solicit(local, remote)?;
            // a neighbour next door has answered meanwhile
            reach = kernel.reach(&hop)?;
        }
        Ok((reach != Reach::Known).then_some(hop))
    };
    look().unwrap_or_else(|errno: Errno| {
        tracing::debug!(%remote, %errno, "not known whether the neighbour is there");
        None
    })
}

impl Record {
    /// The destination is known, and the link to it. The port is that to which it is bound.
    pub(super) fn take_way(&mut self, number: u64, mut way: Way) {
        let port = self.local.map_or(0, |bound| bound.port());
        way.local.set_port(port);
        way.route.path.flow_label = flow_label(port, way.remote.port());
        (self.local, self.remote) = (Some(way.local), Some(way.remote));
        self.route = Some(way.route);
        self.state = State::AddressResolved;
        self.tell(number, Event::of(self, EventKind::AddressResolved, 0));
    }
}

impl Inner {
    /// Lets an ID wait for the neighbour on its way.
    pub(super) fn await_neighbour(
        &mut self,
        number: u64,
        way: Way,
        hop: Hop,
        was_bound: bool,
        [now, until]: [Instant; 2],
    ) {
        self.awaited.push(Awaited {
            number,
            way,
            hop,
            until,
            look_at: now.plus(PAUSE_MIN).min(until),
            pause: PAUSE_MIN,
            was_bound,
        });
    }

    /// When to look next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.awaited.iter().map(|awaited| awaited.look_at).min()
    }

    /// Looks for the neighbours of those who have waited long enough.
    pub(super) fn look_for_neighbours(&mut self, now: Instant) {
        if self.next_look().is_none_or(|at| at > now) {
            return;
        }
        let mut look = Look::new();
        for mut awaited in std::mem::take(&mut self.awaited) {
            if awaited.look_at > now {
                self.awaited.push(awaited);
                continue;
            }
            let record = self.records.get_mut(&awaited.number);
            let Some(record) = record.filter(|record| record.state == State::Resolving) else {
                continue; // it was destroyed
            };
            if look.finds(&awaited) {
                record.take_way(awaited.number, awaited.way);
            } else if awaited.until <= now {
                awaited.give_up(record);
            } else {
                awaited.pause = (awaited.pause * 2).min(PAUSE_MAX);
                awaited.look_at = now.plus(awaited.pause).min(awaited.until);
                self.awaited.push(awaited);
            }
        }
    }
}

impl Awaited {
    /// Nobody answered: the ID is where it was, and may ask for another.
    fn give_up(self, record: &mut Record) {
        advice::no_neighbour(self.way.remote.ip(), &self.hop, &self.way.route.link);
        record.state = State::Bound;
        if !self.was_bound {
            record.forget_address();
        }
        let event = Event::of(record, EventKind::AddressError, -libc::ETIMEDOUT);
        record.tell(self.number, event);
    }
}

/// One look at all neighbours: many IDs may wait for the same one.
struct Look {
    kernel: Result<Neighbours, Errno>,
    seen: Vec<(Hop, bool)>,
}

impl Look {
    fn new() -> Self {
        Self {
            kernel: Neighbours::new(),
            seen: Vec::new(),
        }
    }

    /// Whether packets get through to the neighbour, as far as can be told. If nobody asks for it
    /// any more it is asked for again.
    fn finds(&mut self, awaited: &Awaited) -> bool {
        let Awaited { hop, way, .. } = awaited;
        if let Some((_, is_known)) = self.seen.iter().find(|(seen, _)| seen == hop) {
            return *is_known;
        }
        let reach = match &mut self.kernel {
            Ok(kernel) => kernel.reach(hop),
            // no descriptor at the moment
            Err(errno) => Err(*errno),
        };
        if reach == Ok(Reach::Unknown) {
            // what it says of the way now is said of the neighbour in time
            let _ = solicit(way.local, way.remote);
        }
        let is_known = reach == Ok(Reach::Known);
        self.seen.push((*hop, is_known));
        is_known
    }
}
