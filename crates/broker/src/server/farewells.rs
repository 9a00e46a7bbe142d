//! What was said to the peers of programs that are gone, until they have answered.
//!
//! Read first: IBA 12.9. A DREQ may be lost like any other datagram, and it is sent again like any
//! other: after the time that Linux's rdma_cm and our programs give each other, as often as they
//! do, by somebody who is there as long as the host has a broker.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use wire::{
    Mad,
    mad::{CommId, Message},
};

use crate::steer::Origin;

/// How long an answer may take: 2^(20 − 8) ms, of the response timeout in a REQ of rdma_cm.
const WAIT: Duration = Duration::from_millis(4096);

/// How often a DREQ is repeated: the maximum of CM retries in a REQ of rdma_cm.
const REPETITIONS: u8 = 15;

/// What is not answered, at most; what is more is said once.
const UNANSWERED_MAX: usize = 1 << 16;

/// One farewell.
#[derive(Clone, Copy, Debug)]
struct Farewell {
    origin: Origin,
    mad: Mad,
    repetitions_left: u8,
    at: Instant,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Farewells {
    /// By the communication ID that the program had.
    unanswered: HashMap<CommId, Farewell>,
    /// Exactly the times of those.
    deadlines: BTreeSet<(Instant, CommId)>,
}

impl Farewells {
    /// A message was sent by the way that `origin` came: it is repeated if it has an answer.
    pub(super) fn said(&mut self, origin: Origin, mad: Mad, now: Instant) {
        let Message::Dreq(dreq) = &mad.message else {
            return;
        };
        let id = dreq.local_id;
        self.end(id);
        if self.unanswered.len() < UNANSWERED_MAX {
            self.put(
                id,
                Farewell {
                    origin,
                    mad,
                    repetitions_left: REPETITIONS,
                    at: now + WAIT,
                },
            );
        }
    }

    /// A message came that may be an answer: whether it is one, and nobody else's.
    pub(super) fn hear(&mut self, message: &Message) -> bool {
        match message {
            Message::Drep(drep) => self.end(drep.remote_id),
            // it has closed by itself, or knows nothing of it: it is answered like any other
            Message::Dreq(dreq) => {
                self.end(dreq.remote_id);
                false
            }
            Message::Rej(rej) => self.end(rej.remote_id),
            _ => false,
        }
    }

    /// When [`Self::next_due`] has something.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// One that is to be said again now.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<(Origin, Mad)> {
        loop {
            let &(_, id) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
            let farewell = *self.unanswered.get(&id)?;
            self.end(id);
            if let Some(left) = farewell.repetitions_left.checked_sub(1) {
                self.put(
                    id,
                    Farewell {
                        repetitions_left: left,
                        at: now + WAIT,
                        ..farewell
                    },
                );
                return Some((farewell.origin, farewell.mad));
            }
        }
    }

    fn put(&mut self, id: CommId, farewell: Farewell) {
        self.deadlines.insert((farewell.at, id));
        self.unanswered.insert(id, farewell);
    }

    fn end(&mut self, id: CommId) -> bool {
        let ended = self.unanswered.remove(&id);
        ended.is_some_and(|farewell| self.deadlines.remove(&(farewell.at, id)))
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{Drep, Dreq, Rej, Rep, TransactionId};

    use super::*;

    const OWN: CommId = CommId(0x0700_0001);
    const PEER: CommId = CommId(0x0500_0001);

    fn origin() -> Origin {
        Origin {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            interface: 3,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    fn mad(message: impl Into<Message>) -> Mad {
        Mad {
            transaction: TransactionId(9),
            modifier: 0,
            message: message.into(),
        }
    }

    fn dreq() -> Mad {
        mad(Dreq {
            local_id: OWN,
            remote_id: PEER,
            ..Dreq::default()
        })
    }

    /// After a DREQ at the time that is given back.
    fn said() -> (Farewells, Instant) {
        let now = Instant::now();
        let mut farewells = Farewells::default();
        farewells.said(origin(), dreq(), now);
        (farewells, now)
    }

    #[test]
    fn a_dreq_is_repeated_until_it_is_given_up() {
        let (mut farewells, mut now) = said();
        let mut repetitions = 0;
        while let Some(at) = farewells.next_deadline() {
            assert_eq!(at, now + WAIT);
            assert_eq!(farewells.next_due(at - Duration::from_millis(1)), None);
            now = at;
            if let Some(again) = farewells.next_due(now) {
                assert_eq!(again, (origin(), dreq()));
                repetitions += 1;
            }
        }
        assert_eq!(repetitions, REPETITIONS);
        assert!(farewells.unanswered.is_empty());
    }

    #[test]
    fn whatever_shows_that_the_peer_has_closed_ends_it() {
        let drep = Message::from(Drep {
            local_id: PEER,
            remote_id: OWN,
            ..Drep::default()
        });
        let rej = Message::from(Rej {
            remote_id: OWN,
            ..Rej::default()
        });
        let crossing = Message::from(Dreq {
            local_id: PEER,
            remote_id: OWN,
            ..Dreq::default()
        });
        for (answer, is_only_that) in [(drep, true), (rej, true), (crossing, false)] {
            let (mut farewells, _) = said();
            assert_eq!(farewells.hear(&answer), is_only_that);
            assert_eq!(farewells.next_deadline(), None);
            assert!(!farewells.hear(&answer), "heard once");
        }
    }

    #[test]
    fn messages_of_others_are_not_for_it() {
        let (mut farewells, _) = said();
        let drep = Drep {
            remote_id: PEER,
            ..Drep::default()
        };
        let rep = Rep {
            remote_id: OWN,
            ..Rep::default()
        };
        assert!(!farewells.hear(&drep.into()));
        assert!(!farewells.hear(&rep.into()));
        // a refusal has no answer
        farewells.said(origin(), mad(Rej::default()), Instant::now());
        assert_eq!(farewells.unanswered.len(), 1);
    }

    #[test]
    fn there_is_a_bound() {
        let (mut farewells, now) = said();
        for n in 0..2 * UNANSWERED_MAX as u32 {
            let local_id = CommId(n);
            let release = Dreq {
                local_id,
                ..Dreq::default()
            };
            farewells.said(origin(), mad(release), now);
        }
        assert_eq!(farewells.unanswered.len(), UNANSWERED_MAX);
        assert_eq!(farewells.deadlines.len(), UNANSWERED_MAX);
    }
}
