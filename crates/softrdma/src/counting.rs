//! What this process has counted, link by link, written where the broker finds it.
//!
//! Queue pairs count for themselves, and a tap for its lane; neither knows of links or of anybody
//! who wants to read. So a lane's background thread writes the sums into the page of its slot every
//! now and then, and whoever takes the last queue pair away does: nothing of it is on the data
//! path. A process that is killed has not counted what it did since.

use std::net::IpAddr;
use std::sync::Arc;

use tap::{Drops, Tap};

use crate::lane::Lane;
use crate::network::Network;
use crate::process::Process;
use crate::shard::Inner;

/// Own addresses that messages of connection management are counted for.
const ADDRESSES_MAX: usize = 64;

/// What a shard remembers to count, beside the counters of its queue pairs and of its tap.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Of queue pairs that are gone, by the index of their link.
    gone: Vec<(u32, engine::Counters)>,
    /// Messages of connection management, which no queue pair counts.
    messages: Vec<Messages>,
}

/// Messages of connection management of one address.
#[derive(Clone, Copy, Debug)]
struct Messages {
    own: IpAddr,
    sent: u64,
    received: u64,
}

/// What was counted in a shard up to now.
pub(crate) struct Counted {
    by_link: Vec<(u32, engine::Counters)>,
    messages: Vec<Messages>,
    tap: tap::Counters,
    drops: Drops,
}

impl Ledger {
    /// A message left from this address.
    pub(crate) fn sent_from(&mut self, own: IpAddr) {
        self.messages_of(own).sent += 1;
    }

    /// A message arrived at this address.
    pub(crate) fn received_at(&mut self, own: IpAddr) {
        self.messages_of(own).received += 1;
    }

    fn messages_of(&mut self, own: IpAddr) -> &mut Messages {
        let found = self.messages.iter().position(|known| known.own == own);
        // all of 127.0.0.0/8 are addresses of ours: the last place is for the rest of them
        let at = found.unwrap_or(self.messages.len().min(ADDRESSES_MAX - 1));
        if at == self.messages.len() {
            self.messages.push(Messages {
                own,
                sent: 0,
                received: 0,
            });
        }
        &mut self.messages[at]
    }
}

impl<N: Network> Inner<N> {
    /// Keeps what a queue pair of this link has counted, which is about to go.
    pub(crate) fn outlive(&mut self, link: u32, counters: &engine::Counters) {
        of_link(&mut self.ledger.gone, link).add(counters);
    }

    /// All that was counted.
    fn counted(&self) -> Counted {
        let mut by_link = self.ledger.gone.clone();
        for front in self.fronts.values() {
            if let Some(counters) = self.counters_of(front.index()) {
                of_link(&mut by_link, front.link()).add(&counters);
            }
        }
        Counted {
            by_link,
            messages: self.ledger.messages.clone(),
            tap: *self.tap().counters(),
            drops: *self.tap().drops(),
        }
    }
}

impl Lane {
    /// Writes what was counted up to now.
    pub(crate) fn publish(&self, process: &Process) {
        let Some(page) = &self.counters else {
            return;
        };
        let counted = self.core.shard.lock().counted();
        // somebody may have posted while the lock was held and gone away
        self.attendant.wake_before(self.core.flush());
        let mut by_link = counted.by_link;
        for messages in &counted.messages {
            if let Some(link) = process.connections.link_at(messages.own) {
                let counters = of_link(&mut by_link, link);
                counters.sent_packets += messages.sent;
                counters.received_packets += messages.received;
            }
        }
        // callers who made no request have no queue pair that counts them
        if Arc::ptr_eq(&self.attendant, &process.attendant) {
            for (link, counters) in process.reception.counted() {
                of_link(&mut by_link, link).iwarp.add(&counters);
            }
        }
        let Some(oldest) = by_link.iter().map(|(link, _)| *link).min() else {
            return;
        };
        // what belongs to no queue pair counts for the link that was used first
        let first = *self.first_link.get_or_init(|| oldest);
        for (link, of_link) in &by_link {
            let mut counters = named(of_link);
            let mut drops = Drops::default();
            if *link == first {
                take_rest(&mut counters, &counted.tap);
                drops = counted.drops;
            }
            let counts = counters.iter().map(|(_, count)| count);
            let drops = drops.iter().map(|(_, count)| count);
            let of_iwarp = of_link.iwarp.iter().map(|(_, count)| count);
            page.raise(*link, counts.chain(drops).chain(of_iwarp));
        }
    }
}

/// A number that changes when there is something new to write.
pub(crate) fn mark(tap: &Tap) -> u64 {
    let counters = tap.counters();
    counters.sent_pkts.wrapping_add(counters.rcvd_pkts)
}

fn of_link(list: &mut Vec<(u32, engine::Counters)>, link: u32) -> &mut engine::Counters {
    let at = list.iter().position(|(known, _)| *known == link);
    let at = at.unwrap_or_else(|| {
        list.push((link, engine::Counters::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Counts of queue pairs by the names of the kernel's device.
fn named(of: &engine::Counters) -> tap::Counters {
    tap::Counters {
        sent_pkts: of.sent_packets,
        rcvd_pkts: of.received_packets,
        duplicate_request: of.duplicate_requests,
        out_of_seq_request: of.out_of_sequence_requests,
        rcvd_rnr_err: of.received_rnr_naks,
        send_rnr_err: of.sent_rnr_naks,
        rcvd_seq_err: of.received_sequence_naks,
        ack_deferred: of.deferred_acks,
        retry_exceeded_err: of.retry_exceeded,
        retry_rnr_exceeded_err: of.rnr_retry_exceeded,
        completer_retry_err: of.completer_retries,
        send_err: of.send_errors,
        rdma_sends: of.rdma_sends,
        rdma_recvs: of.rdma_receives,
        ..tap::Counters::default()
    }
}

/// What only a tap counts.
fn take_rest(counters: &mut tap::Counters, tap: &tap::Counters) {
    counters.foreign_passed_on = tap.foreign_passed_on;
    counters.fault_duplicated = tap.fault_duplicated;
    counters.fault_corrupted = tap.fault_corrupted;
    counters.fault_delayed = tap.fault_delayed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_for_their_address_as_long_as_there_is_room() {
        let mut ledger = Ledger::default();
        let address = |n: u8| IpAddr::from([127, 0, 0, n]);
        for n in 0..200 {
            ledger.sent_from(address(n));
            ledger.received_at(address(n));
            ledger.received_at(address(n));
        }
        assert_eq!(ledger.messages.len(), ADDRESSES_MAX);
        let first = ledger.messages[3];
        assert_eq!((first.own, first.sent, first.received), (address(3), 1, 2));
        let all: u64 = ledger.messages.iter().map(|of| of.received).sum();
        assert_eq!(all, 400, "none is lost");
    }

    #[test]
    fn counts_of_queue_pairs_have_the_kernels_names() {
        let counters = engine::Counters {
            sent_packets: 1,
            received_packets: 2,
            duplicate_requests: 3,
            out_of_sequence_requests: 4,
            received_rnr_naks: 5,
            sent_rnr_naks: 6,
            received_sequence_naks: 7,
            deferred_acks: 8,
            retry_exceeded: 9,
            rnr_retry_exceeded: 10,
            completer_retries: 11,
            send_errors: 12,
            rdma_sends: 14,
            rdma_receives: 15,
            iwarp: engine::iwarp::Counters::default(),
        };
        let named = named(&counters);
        // the thirteenth, `link_downed`, is the broker's
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 14, 15];
        let found: Vec<u64> = named.rxe().map(|(_, count)| count).collect();
        assert_eq!(found, expected);
        let of_iwarp = counters.iwarp.iter().count();
        let total = named.iter().count() + tap::DropReason::ALL.len() + of_iwarp;
        assert!(total <= broker::counters::COUNTS, "a page has room for all");
    }

    #[test]
    fn links_are_told_apart() {
        let mut list = Vec::new();
        of_link(&mut list, 3).rdma_sends += 1;
        of_link(&mut list, 1).rdma_sends += 10;
        of_link(&mut list, 3).rdma_sends += 1;
        let sends: Vec<_> = list
            .iter()
            .map(|(link, of)| (*link, of.rdma_sends))
            .collect();
        assert_eq!(sends, [(3, 2), (1, 10)]);
    }
}
