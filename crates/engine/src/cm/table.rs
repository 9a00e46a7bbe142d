//! All connections of a process, by every name that leads to one, and by their deadlines.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use wire::Qpn;
use wire::mad::CommId;

use super::Place;
use super::connection::{Common, Ownership, Peer, State};
use crate::time::Instant;

/// A connection and under which names the table has it.
#[derive(Debug)]
pub(super) struct Entry {
    pub common: Common,
    pub state: State,
    /// Where the request counts against a backlog.
    pub waits_at: Option<Place>,
    names: Names,
    armed: Option<Instant>,
}

/// The peer's names for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    None,
    /// Communication ID.
    Id(Peer, CommId),
    /// Queue pair as well.
    IdAndQueuePair(Peer, CommId, Qpn),
    /// Request ID, which has nothing to do with communication IDs.
    SidrRequest(IpAddr, CommId),
}

impl Names {
    fn of(common: &Common, state: &State) -> Self {
        let peer = common.peer();
        match state {
            State::ReqReceived(_)
            | State::RepReceived(_)
            | State::RepSent(_)
            | State::Established(_)
            | State::DreqSent(_)
            | State::DreqReceived(_) => {
                Self::IdAndQueuePair(peer, common.remote_id, common.remote_qpn)
            }
            // refused before the peer has told its names
            State::TimeWait(_) | State::Refused(_) if common.remote_id == CommId(0) => Self::None,
            State::TimeWait(_) => Self::IdAndQueuePair(peer, common.remote_id, common.remote_qpn),
            State::Refused(_) => Self::Id(peer, common.remote_id),
            State::SidrReceived(_) | State::SidrAnswered(_) => {
                Self::SidrRequest(peer.address, common.remote_id)
            }
            State::Idle | State::ReqSent(_) | State::SidrSent(_) => Self::None,
        }
    }
}

/// The connections.
///
/// Invariant, after [`Table::settle`]: the indexes lead to exactly those connections whose state
/// has the name, each deadline is in the set once, and no idle connection without owner is left.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: HashMap<CommId, Entry>,
    remote_ids: HashMap<(Peer, CommId), CommId>,
    remote_queue_pairs: HashMap<(Peer, Qpn), CommId>,
    sidr_requests: HashMap<(IpAddr, CommId), CommId>,
    deadlines: BTreeSet<(Instant, CommId)>,
}

impl Table {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether an ID is taken.
    pub fn contains(&self, id: CommId) -> bool {
        self.entries.contains_key(&id)
    }

    /// A new connection, idle until it is stepped and settled.
    pub fn insert(&mut self, common: Common, waits_at: Option<Place>) {
        let entry = Entry {
            state: State::Idle,
            waits_at,
            names: Names::None,
            armed: None,
            common,
        };
        self.entries.insert(entry.common.local_id, entry);
    }

    /// The connection with an ID of ours.
    pub fn get(&self, id: CommId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// The connection with an ID of ours.
    pub fn get_mut(&mut self, id: CommId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The connection to a peer that has this communication ID for it.
    pub fn by_remote_id(&self, peer: Peer, id: CommId) -> Option<CommId> {
        self.remote_ids.get(&(peer, id)).copied()
    }

    /// The connection to this queue pair of a peer.
    pub fn by_remote_queue_pair(&self, peer: Peer, qpn: Qpn) -> Option<CommId> {
        self.remote_queue_pairs.get(&(peer, qpn)).copied()
    }

    /// The request of this ID of somebody.
    pub fn by_sidr_request(&self, address: IpAddr, id: CommId) -> Option<CommId> {
        self.sidr_requests.get(&(address, id)).copied()
    }

    /// The earliest deadline and whose it is.
    pub fn earliest(&self) -> Option<(Instant, CommId)> {
        self.deadlines.first().copied()
    }

    /// Makes the indexes and deadlines those of the state that a connection is in now, and removes
    /// it if nobody needs it.
    pub fn settle(&mut self, id: CommId) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let deadline = entry.state.deadline();
        if deadline != entry.armed {
            if let Some(at) = entry.armed {
                self.deadlines.remove(&(at, id));
            }
            if let Some(at) = deadline {
                self.deadlines.insert((at, id));
            }
            entry.armed = deadline;
        }
        let names = Names::of(&entry.common, &entry.state);
        let old = core::mem::replace(&mut entry.names, names);
        let is_idle = matches!(entry.state, State::Idle);
        if is_idle && entry.common.ownership == Ownership::Nobody {
            self.entries.remove(&id);
        }
        if names != old {
            self.forget(old);
            self.remember(names, id);
        }
    }

    fn remember(&mut self, names: Names, id: CommId) {
        match names {
            Names::None => {}
            Names::Id(peer, remote) => {
                self.remote_ids.insert((peer, remote), id);
            }
            Names::IdAndQueuePair(peer, remote, qpn) => {
                self.remote_ids.insert((peer, remote), id);
                self.remote_queue_pairs.insert((peer, qpn), id);
            }
            Names::SidrRequest(address, remote) => {
                self.sidr_requests.insert((address, remote), id);
            }
        }
    }

    fn forget(&mut self, names: Names) {
        match names {
            Names::None => {}
            Names::Id(peer, remote) => {
                self.remote_ids.remove(&(peer, remote));
            }
            Names::IdAndQueuePair(peer, remote, qpn) => {
                self.remote_ids.remove(&(peer, remote));
                self.remote_queue_pairs.remove(&(peer, qpn));
            }
            Names::SidrRequest(address, remote) => {
                self.sidr_requests.remove(&(address, remote));
            }
        }
    }

    /// Whether the invariant of the type holds; for tests and simulation.
    pub fn check(&self) -> Result<(), String> {
        let (mut ids, mut queue_pairs, mut requests, mut deadlines) = (0, 0, 0, 0);
        for (&id, entry) in &self.entries {
            let names = Names::of(&entry.common, &entry.state);
            let is_found = match names {
                Names::None => true,
                Names::Id(peer, remote) => {
                    ids += 1;
                    self.by_remote_id(peer, remote) == Some(id)
                }
                Names::IdAndQueuePair(peer, remote, qpn) => {
                    ids += 1;
                    queue_pairs += 1;
                    self.by_remote_id(peer, remote) == Some(id)
                        && self.by_remote_queue_pair(peer, qpn) == Some(id)
                }
                Names::SidrRequest(address, remote) => {
                    requests += 1;
                    self.by_sidr_request(address, remote) == Some(id)
                }
            };
            if !is_found {
                return Err(format!("{id} is not found by {names:?}"));
            }
            if let Some(at) = entry.state.deadline() {
                deadlines += 1;
                if !self.deadlines.contains(&(at, id)) {
                    return Err(format!("{id} has no alarm"));
                }
            }
        }
        let found = (ids, queue_pairs, requests, deadlines);
        let kept = (
            self.remote_ids.len(),
            self.remote_queue_pairs.len(),
            self.sidr_requests.len(),
            self.deadlines.len(),
        );
        if found != kept {
            return Err(format!("names and alarms are {found:?}, kept are {kept:?}"));
        }
        Ok(())
    }
}
