//! What can be said of this process's objects when somebody asks for a list of them.
//!
//! Queue pairs, regions and IDs of connection management are in tables of their own, which are read
//! when the question comes. The rest has a [`Shelf`] here: who makes or destroys an object takes
//! its lock for a moment, and who uses one never does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use broker::resource::{Details, Kind, Object, Question, QueuePairPeer, REPORTED_MAX, Report};
use engine::qp::Transport;
use engine::{QpIndex, QpView};

use crate::completion_queue::CompletionQueue;
use crate::process::Process;
use crate::protection_domain::PdInner;

/// Places that are looked at for one report, most of which may be empty.
const PLACES_MAX: u64 = 16_384;

/// Queue pairs of a lane.
const QUEUE_PAIRS: u64 = 1 << 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Registry {
    /// Names of links.
    pub(crate) contexts: Shelf<Arc<str>>,
    pub(crate) domains: Shelf<Domain>,
    pub(crate) queues: Shelf<Queue>,
    /// Numbers of protection domains.
    pub(crate) shared_receives: Shelf<u32>,
}

/// A protection domain.
#[derive(Clone)]
pub(crate) struct Domain {
    pub(crate) context: u32,
    /// Only to count by: one more reference, and it would seem to be in use.
    pub(crate) inner: Weak<PdInner>,
}

/// A completion queue.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) context: u32,
    pub(crate) queue: Weak<CompletionQueue>,
}

/// Objects of one kind by their numbers, which are not used again soon.
pub(crate) struct Shelf<T>(Mutex<Numbered<T>>);

struct Numbered<T> {
    next: u32,
    objects: BTreeMap<u32, T>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(Mutex::new(Numbered {
            next: 0,
            objects: BTreeMap::new(),
        }))
    }
}

impl<T: Clone> Shelf<T> {
    /// Adds an object, and gives it its number.
    pub(crate) fn add(&self, object: T) -> u32 {
        let mut shelf = self.lock();
        let number = shelf.next;
        shelf.objects.insert(number, object);
        while shelf.objects.contains_key(&shelf.next) {
            shelf.next = shelf.next.wrapping_add(1);
        }
        number
    }

    /// Adds an object that has a number.
    pub(crate) fn put(&self, number: u32, object: T) {
        self.lock().objects.insert(number, object);
    }

    /// Takes an object away.
    pub(crate) fn remove(&self, number: u32) {
        self.lock().objects.remove(&number);
    }

    /// The object with this number.
    fn get(&self, number: u32) -> Option<T> {
        self.lock().objects.get(&number).cloned()
    }

    /// Objects from `place` on, by number.
    fn from(&self, place: u64) -> Vec<(u32, T)> {
        let Ok(from) = u32::try_from(place) else {
            return Vec::new();
        };
        let shelf = self.lock();
        let objects = shelf.objects.range(from..).take(REPORTED_MAX);
        objects
            .map(|(number, object)| (*number, object.clone()))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Numbered<T>> {
        // nothing that can panic runs between two consistent states
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// What this process has.
    pub(crate) fn report(&self, question: Question) -> Report {
        let from = question.from;
        match question.kind {
            Kind::Context => self.list(&self.registry.contexts, from, |_, link| {
                Some((Some(link), Details::Context))
            }),
            Kind::ProtectionDomain => self.list(&self.registry.domains, from, |_, domain| {
                let details = Details::ProtectionDomain {
                    context: domain.context,
                    // but for the program's own handle
                    users: (domain.inner.strong_count() as u32).saturating_sub(1),
                };
                Some((self.registry.contexts.get(domain.context), details))
            }),
            Kind::CompletionQueue => self.list(&self.registry.queues, from, |_, queue| {
                let counted = queue.queue.upgrade()?;
                let details = Details::CompletionQueue {
                    context: queue.context,
                    capacity: counted.capacity(),
                    users: counted.users(),
                };
                Some((self.registry.contexts.get(queue.context), details))
            }),
            Kind::MemoryRegion => self.list_regions(from),
            Kind::QueuePair => self.list_queue_pairs(from),
            Kind::ConnectionId => self.connections.report(from),
            Kind::Counters => {
                for lane in self.lanes.all() {
                    lane.publish(self);
                }
                Report::default()
            }
            Kind::SharedReceiveQueue => self.list(&self.registry.shared_receives, from, |_, pd| {
                Some((self.link_of(pd), Details::SharedReceiveQueue { pd }))
            }),
        }
    }

    fn list<T: Clone>(
        &self,
        shelf: &Shelf<T>,
        from: u64,
        details: impl Fn(u32, T) -> Option<(Option<Arc<str>>, Details)>,
    ) -> Report {
        let found = shelf.from(from);
        let next = found
            .last()
            .filter(|_| found.len() == REPORTED_MAX)
            .map(|(number, _)| u64::from(*number) + 1);
        let objects = found.into_iter().filter_map(|(number, object)| {
            // one without a link is being destroyed
            let (link, details) = details(number, object)?;
            Some(self::object(number, link?, details))
        });
        Report {
            objects: objects.collect(),
            next,
        }
    }

    fn list_regions(&self, from: u64) -> Report {
        let end = u64::from(self.memory.indices_end());
        collect(from, end, |place| {
            let region = self.memory.listed(place as u32)?; // below `end`, which is of 32 bits
            let details = Details::MemoryRegion {
                key: region.key.0,
                length: region.length,
                pd: region.pd.0,
            };
            Some(object(place as u32, self.link_of(region.pd.0)?, details))
        })
    }

    fn list_queue_pairs(&self, from: u64) -> Report {
        let mut report = Report::default();
        let lane_number = from / QUEUE_PAIRS;
        let Some(lane) = self.lanes.get(lane_number as usize) else {
            return report;
        };
        let end = (lane_number + 1) * QUEUE_PAIRS;
        {
            let inner = lane.core.shard.lock();
            report = collect(from, end, |place| {
                let index = QpIndex((place % QUEUE_PAIRS) as u16);
                let view = inner.query(index)?;
                let front = inner.fronts.get(&index);
                Some(object(
                    view.qpn.get(),
                    self.link_of(view.pd.0)?,
                    queue_pair(&view, front.and_then(|front| front.shared_receives())),
                ))
            });
        }
        // somebody may have posted while the lock was held and gone away
        lane.attendant.wake_before(lane.core.flush());
        // the next lane's, if there is one
        report.next = report.next.or(Some(end));
        report
    }

    /// The link of a protection domain.
    fn link_of(&self, pd: u32) -> Option<Arc<str>> {
        let domain = self.registry.domains.get(pd)?;
        self.registry.contexts.get(domain.context)
    }
}

/// What is in the places from `from` to `end`, a bounded number of them.
fn collect(from: u64, end: u64, mut look: impl FnMut(u64) -> Option<Object>) -> Report {
    let end_of_look = end.min(from.saturating_add(PLACES_MAX));
    let mut report = Report::default();
    let mut place = from;
    while place < end_of_look && report.objects.len() < REPORTED_MAX {
        report.objects.extend(look(place));
        place += 1;
    }
    report.next = (place < end).then_some(place);
    report
}

fn object(number: u32, link: Arc<str>, details: Details) -> Object {
    Object {
        number,
        link: Some(link.as_ref().to_owned()),
        details,
    }
}

/// A queue pair that takes from the shared receive queue with this number, or from its own.
fn queue_pair(view: &QpView, srq: Option<u32>) -> Details {
    let attributes = &view.attributes;
    let is_connected = matches!(view.transport, Transport::Rc | Transport::Uc);
    Details::QueuePair {
        transport: view.transport as u8,
        state: view.state as u8,
        port: (attributes.port != 0).then_some(attributes.port),
        peer: is_connected.then(|| QueuePairPeer {
            qpn: attributes.dest_qpn.get(),
            rq_psn: attributes.rq_psn.get(),
        }),
        sq_psn: attributes.sq_psn.get(),
        pd: view.pd.0,
        srq,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shelf: &Shelf<char>, from: u64) -> Vec<u32> {
        shelf.from(from).iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn numbers_count_up_and_pass_by_those_in_use() {
        let shelf = Shelf::default();
        assert_eq!([shelf.add('a'), shelf.add('b'), shelf.add('c')], [0, 1, 2]);
        shelf.remove(1);
        assert_eq!(shelf.add('d'), 3);
        assert_eq!(numbers(&shelf, 0), [0, 2, 3]);
        assert_eq!(numbers(&shelf, 1), [2, 3]);
        shelf.lock().next = u32::MAX;
        assert_eq!([shelf.add('e'), shelf.add('f')], [u32::MAX, 1]);
        assert_eq!(shelf.get(u32::MAX), Some('e'));
        assert!(numbers(&shelf, u64::from(u32::MAX) + 1).is_empty());
    }

    #[test]
    fn a_long_list_comes_in_pieces_that_are_all_of_it() {
        let is_there = |place: u64| place.is_multiple_of(3) || place > 50_000;
        let mut seen = Vec::new();
        let mut from = Some(0);
        while let Some(place) = from {
            let report = collect(place, 60_000, |place| {
                is_there(place).then(|| object(place as u32, "rxe_lo".into(), Details::Context))
            });
            assert!(report.objects.len() <= REPORTED_MAX);
            seen.extend(report.objects.iter().map(|object| u64::from(object.number)));
            assert!(report.next.is_none_or(|next| next > place));
            from = report.next;
        }
        let expected: Vec<u64> = (0..60_000).filter(|place| is_there(*place)).collect();
        assert_eq!(seen, expected);
    }
}
