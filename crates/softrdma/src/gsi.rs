//! What this process receives of QP 1: the messages of connection management that the broker passes
//! on, since it alone reads that queue pair.
//!
//! They come over the steering socket (see [`steer`](crate::steer)), with the addresses that they
//! arrived with, and wait here for who manages the connections of the process.

use std::collections::VecDeque;

use engine::PathMeta;
use tap::DropReason;
use wire::{Mad, Packet, Qpn};

/// Messages that wait at most. Their senders repeat what is not answered, after seconds.
const WAITING_MAX: usize = 16_384;

/// A message with its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// What its IP header said.
    pub meta: PathMeta,
    /// The message.
    pub mad: Mad,
}

/// The messages that wait, oldest first.
#[derive(Debug, Default)]
pub struct Inbox {
    waiting: VecDeque<Arrival>,
}

impl Inbox {
    /// Whether a packet is for QP 1 and so for this inbox.
    pub fn is_for(packet: &Packet<'_>) -> bool {
        packet.bth().destination == Qpn::GSI
    }

    /// Takes the message of a packet that the broker has verified.
    ///
    /// # Errors
    /// The reason to count when it is none, or too many wait.
    pub fn put(&mut self, packet: &Packet<'_>, meta: &PathMeta) -> Result<(), DropReason> {
        let mad = broker::gsi::mad_of(packet).map_err(|_| DropReason::Malformed)?;
        if self.waiting.len() == WAITING_MAX {
            return Err(DropReason::NoReceive);
        }
        self.waiting.push_back(Arrival { meta: *meta, mad });
        Ok(())
    }

    /// The oldest message.
    pub fn take(&mut self) -> Option<Arrival> {
        self.waiting.pop_front()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{Dreq, TransactionId, packet_headers};
    use wire::{Psn, QKey};

    use super::*;

    fn mad(transaction: u64) -> Mad {
        Mad {
            transaction: TransactionId(transaction),
            modifier: 0,
            message: Dreq::default().into(),
        }
    }

    fn meta() -> PathMeta {
        PathMeta {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            interface: 3,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    fn put(inbox: &mut Inbox, mad: &Mad, change: impl Fn(&mut wire::HeaderRepr)) -> bool {
        let mut headers = packet_headers(Psn::truncated(0));
        change(&mut headers);
        let mut bytes = Vec::new();
        headers.emit_packet(&mad.to_bytes(), &mut bytes);
        let packet = Packet::parse(&bytes).expect("a packet");
        Inbox::is_for(&packet) && inbox.put(&packet, &meta()).is_ok()
    }

    #[test]
    fn messages_wait_in_their_order_up_to_the_bound() {
        let mut inbox = Inbox::default();
        let all = WAITING_MAX as u64;
        assert!((0..all).all(|n| put(&mut inbox, &mad(n), |_| {})));
        assert!(!put(&mut inbox, &mad(all), |_| {}), "it is full");
        for n in 0..all {
            let expected = Arrival {
                meta: meta(),
                mad: mad(n),
            };
            assert_eq!(inbox.take(), Some(expected));
        }
        assert!(inbox.is_empty());
    }

    #[test]
    fn only_what_is_right_for_qp_1_is_taken() {
        let mut inbox = Inbox::default();
        let to_another = |headers: &mut wire::HeaderRepr| {
            headers.bth.destination = Qpn::truncated(2);
        };
        let with_another_key = |headers: &mut wire::HeaderRepr| {
            if let Some(deth) = &mut headers.deth {
                deth.qkey = QKey(1);
            }
        };
        assert!(!put(&mut inbox, &mad(1), to_another));
        assert!(!put(&mut inbox, &mad(1), with_another_key));
        assert!(inbox.is_empty());
    }
}
