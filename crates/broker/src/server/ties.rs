//! Connections of programs, as far as their messages tell: enough to say to a peer that a program
//! is gone.
//!
//! Read first: IBA 12.9. A program that is killed says nothing, and its peer may have nothing under
//! way that would find out. With the kernel's rdma_cm the kernel closes what a dead program had
//! open; here that is the broker, through which all messages *to* a program come. A REQ or REP and
//! an RTU bring a connection about, a DREQ, DREP or REJ ends it. What a program says itself is not
//! seen, so something may be said about a connection that is over: its peer knows nothing of it any
//! more.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::IpAddr,
};

use wire::{
    Mad, Qpn,
    mad::{Answered, CommId, Dreq, Message, Rej, RejectReason, TransactionId},
};

use crate::steer::Origin;

/// Connections remembered, and requests, oldest forgotten first: their peers learn from time-outs.
const REMEMBERED_MAX: usize = 1 << 16;

/// A peer's queue pair, as it names connection and pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    id: CommId,
    qpn: Qpn,
    /// The way its messages came.
    origin: Origin,
}

/// A request that was passed on, and is not known to be established.
#[derive(Clone, Copy, Debug)]
struct Asked {
    slot: u8,
    transaction: TransactionId,
    peer: Peer,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ties {
    /// By the program's own communication ID, in which its slot is.
    established: Recent<CommId, Peer>,
    /// By the peer's.
    asked: Recent<(IpAddr, CommId), Asked>,
}

impl Ties {
    /// Takes note of a message that was passed on to `slot`.
    pub(super) fn note(&mut self, slot: u8, mad: &Mad, origin: &Origin) {
        let source = origin.source;
        match &mad.message {
            Message::Req(req) => {
                let asked = Asked {
                    slot,
                    transaction: mad.transaction,
                    peer: Peer {
                        id: req.local_id,
                        qpn: req.local_qpn,
                        origin: *origin,
                    },
                };
                self.asked.insert((source, req.local_id), asked);
            }
            Message::Rep(rep) => {
                let peer = Peer {
                    id: rep.local_id,
                    qpn: rep.local_qpn,
                    origin: *origin,
                };
                self.established.insert(rep.remote_id, peer);
            }
            Message::Rtu(rtu) => {
                if let Some(asked) = self.asked.remove(&(source, rtu.local_id)) {
                    self.established.insert(rtu.remote_id, asked.peer);
                }
            }
            Message::Rej(rej) => {
                self.asked.remove(&(source, rej.local_id));
                self.established.remove(&rej.remote_id);
            }
            Message::Dreq(dreq) => {
                self.asked.remove(&(source, dreq.local_id));
                self.established.remove(&dreq.remote_id);
            }
            Message::Drep(drep) => {
                self.established.remove(&drep.remote_id);
            }
            Message::Mra(_)
            | Message::SidrReq(_)
            | Message::SidrRep(_)
            | Message::Lap(_)
            | Message::Apr(_) => {}
        }
    }

    /// The program with `slot` is gone: what is to be said to its peers, and the ways there, seen
    /// from here as the ways that messages came.
    pub(super) fn end_slot(&mut self, slot: u8) -> Vec<(Origin, Mad)> {
        let mut farewells = Vec::new();
        for (own, peer) in self.established.take(|own, _| own.slot() == slot) {
            let release = Dreq {
                local_id: own,
                remote_id: peer.id,
                remote_qpn: peer.qpn,
                ..Dreq::default()
            };
            farewells.push((
                peer.origin,
                Mad {
                    transaction: TransactionId(own.0.into()),
                    modifier: 0,
                    message: release.into(),
                },
            ));
        }
        for (_, asked) in self.asked.take(|_, asked| asked.slot == slot) {
            let refusal = Rej {
                remote_id: asked.peer.id,
                answers: Answered::Req,
                reason: RejectReason::Consumer,
                ..Rej::default()
            };
            farewells.push((
                asked.peer.origin,
                Mad {
                    transaction: asked.transaction,
                    modifier: 0,
                    message: refusal.into(),
                },
            ));
        }
        farewells
    }
}

/// A map that forgets the oldest when it is full.
#[derive(Debug)]
struct Recent<K, V> {
    entries: HashMap<K, V>,
    /// In the order in which they came; some are no longer there.
    order: VecDeque<K>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    fn insert(&mut self, key: K, value: V) {
        if self.entries.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        while self.entries.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        if self.order.len() > 2 * REMEMBERED_MAX {
            self.order.retain(|key| self.entries.contains_key(key));
        }
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)
    }

    fn take(&mut self, mut wanted: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)> {
        let keys = self.entries.iter();
        let taken: Vec<(K, V)> = keys
            .filter(|(key, value)| wanted(key, value))
            .map(|(key, value)| (*key, *value))
            .collect();
        for (key, _) in &taken {
            self.entries.remove(key);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{Drep, Rep, Req, Rtu};

    use super::*;

    const PEER: CommId = CommId(0x0500_0001);
    const OWN: CommId = CommId(0x0700_0001);
    const SLOT: u8 = 7;

    fn origin() -> Origin {
        Origin {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            interface: 3,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    fn noted(messages: &[Message]) -> Ties {
        let mut ties = Ties::default();
        for message in messages {
            let mad = Mad {
                transaction: TransactionId(9),
                modifier: 0,
                message: *message,
            };
            ties.note(SLOT, &mad, &origin());
        }
        ties
    }

    fn req() -> Message {
        let local_qpn = Qpn::truncated(0x11);
        Message::from(Req {
            local_id: PEER,
            local_qpn,
            ..Req::default()
        })
    }

    fn rtu() -> Message {
        Message::from(Rtu {
            local_id: PEER,
            remote_id: OWN,
            ..Rtu::default()
        })
    }

    fn said(mut ties: Ties) -> Vec<Message> {
        assert!(ties.end_slot(SLOT + 1).is_empty());
        let farewells = ties.end_slot(SLOT);
        assert!(farewells.iter().all(|(to, _)| *to == origin()));
        assert!(ties.end_slot(SLOT).is_empty(), "said once");
        farewells.iter().map(|(_, mad)| mad.message).collect()
    }

    fn release() -> Message {
        Message::from(Dreq {
            local_id: OWN,
            remote_id: PEER,
            remote_qpn: Qpn::truncated(0x11),
            ..Dreq::default()
        })
    }

    #[test]
    fn what_is_established_is_released_from_either_side() {
        assert_eq!(said(noted(&[req(), rtu()])), [release()]);
        let rep = Rep {
            local_id: PEER,
            remote_id: OWN,
            local_qpn: Qpn::truncated(0x11),
            ..Rep::default()
        };
        assert_eq!(said(noted(&[rep.into()])), [release()]);
    }

    #[test]
    fn what_is_only_asked_for_is_refused() {
        let refusal = Rej {
            remote_id: PEER,
            reason: RejectReason::Consumer,
            ..Rej::default()
        };
        assert_eq!(said(noted(&[req(), req()])), [refusal.into()]);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let dreq = Dreq {
            local_id: PEER,
            remote_id: OWN,
            ..Dreq::default()
        };
        let drep = Drep {
            local_id: PEER,
            remote_id: OWN,
            ..Drep::default()
        };
        let rej = Rej {
            local_id: PEER,
            remote_id: OWN,
            ..Rej::default()
        };
        for end in [dreq.into(), drep.into(), rej.into()] {
            assert_eq!(said(noted(&[req(), rtu(), end])), []);
        }
        assert_eq!(said(noted(&[req(), rej.into()])), []);
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut recent = Recent::default();
        let all = REMEMBERED_MAX as u32;
        for key in 0..=all {
            recent.insert(key, ());
        }
        assert!(recent.remove(&0).is_none());
        assert!(recent.remove(&1).is_some());
        for key in all + 1..4 * all {
            recent.insert(key, ());
            recent.remove(&key);
        }
        // those that come and go take no room
        assert!(recent.remove(&2).is_some());
        assert!(recent.order.len() <= 2 * REMEMBERED_MAX);
    }
}
