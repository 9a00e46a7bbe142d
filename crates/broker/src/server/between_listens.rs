//! Requests that come between two listens of a program.
//!
//! Some programs listen, take a connection, and listen on the same port again for the next one;
//! their peers ask for it as soon as the first is there. Who asks in between finds nobody, and what
//! is a matter of luck would be a refusal. So a request for a port whose listener has closed a
//! moment ago waits for another moment, and is refused only then. All this is bounded: the ports,
//! the requests, and the time, which is a small part of that after which a peer asks again.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use io::udp::Received;
use wire::{
    Mad,
    mad::{ServiceId, TransactionId},
};

/// For how long after its listener has closed a port is one that may be listened on again: programs
/// that agree on what to do, or sleep for a second first, are back by then.
const CLOSED_LATELY: Duration = Duration::from_secs(5);

/// How long a request waits at most.
const PATIENCE: Duration = Duration::from_millis(300);

/// Ports remembered, the oldest forgotten first.
const CLOSED_MAX: usize = 256;

/// Requests that wait at most; others are refused at once.
const WAITING_MAX: usize = 1024;

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) service: ServiceId,
    pub(super) received: Received,
    pub(super) bytes: Vec<u8>,
    pub(super) mad: Mad,
}

impl Request {
    /// The same for a request and its repetition.
    fn key(&self) -> (IpAddr, TransactionId) {
        (self.received.source.ip(), self.mad.transaction)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BetweenListens {
    /// Oldest first, each port once.
    closed: VecDeque<(ServiceId, Instant)>,
    /// In the order in which they came, with the time when they are refused.
    waiting: VecDeque<(Instant, Request)>,
}

impl BetweenListens {
    /// A program has closed its listener on a port.
    pub(super) fn closed(&mut self, service: ServiceId, now: Instant) {
        self.closed.retain(|(closed, _)| *closed != service);
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((service, now));
    }

    /// Somebody listens on a port (again): the requests that have waited for that.
    pub(super) fn opened(&mut self, service: ServiceId) -> Vec<Request> {
        self.closed.retain(|(closed, _)| *closed != service);
        let (opened, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, request)| request.service == service);
        self.waiting = waiting;
        opened.into_iter().map(|(_, request)| request).collect()
    }

    /// Lets a request that found nobody wait. It comes back where that has no use.
    pub(super) fn wait(&mut self, request: Request, now: Instant) -> Result<(), Box<Request>> {
        let since_closed = |at: Instant| now.saturating_duration_since(at);
        self.closed
            .retain(|(_, at)| since_closed(*at) < CLOSED_LATELY);
        let is_closed = |(closed, _): &(ServiceId, Instant)| *closed == request.service;
        if !self.closed.iter().any(is_closed) || self.waiting.len() == WAITING_MAX {
            return Err(Box::new(request));
        }
        let key = request.key();
        if !self.waiting.iter().any(|(_, known)| known.key() == key) {
            self.waiting.push_back((now + PATIENCE, request));
        }
        Ok(())
    }

    /// Who asked has given up; whether its request waited.
    pub(super) fn forget(&mut self, source: IpAddr, transaction: TransactionId) -> bool {
        let before = self.waiting.len();
        self.waiting
            .retain(|(_, request)| request.key() != (source, transaction));
        self.waiting.len() < before
    }

    /// When [`Self::next_due`] has something.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(until, _)| *until)
    }

    /// A request that has waited in vain.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Request> {
        let due = self.waiting.pop_front_if(|(until, _)| *until <= now);
        due.map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{PortSpace, Req};

    use super::*;

    fn service(port: u16) -> ServiceId {
        ServiceId::new(PortSpace::Tcp, port)
    }

    fn request(port: u16, transaction: u64) -> Request {
        Request {
            service: service(port),
            received: Received {
                length: 3,
                segment_size: 3,
                source: ([10, 0, 0, 1], 49_152).into(),
                destination: [10, 0, 0, 2].into(),
                interface: 3,
                tos: 0,
                ttl: 64,
                kernel_drops: None,
                truncated: false,
            },
            bytes: vec![1, 2, 3],
            mad: Mad {
                transaction: TransactionId(transaction),
                modifier: 0,
                message: Req::default().into(),
            },
        }
    }

    fn transactions(requests: &[Request]) -> Vec<u64> {
        let number = |request: &Request| request.mad.transaction.0;
        requests.iter().map(number).collect()
    }

    #[test]
    fn who_comes_between_two_listens_gets_to_the_second() {
        let now = Instant::now();
        let mut between = BetweenListens::default();
        between.closed(service(7), now);
        for transaction in [1, 2, 1] {
            assert!(between.wait(request(7, transaction), now).is_ok());
        }
        assert!(between.opened(service(8)).is_empty());
        assert_eq!(transactions(&between.opened(service(7))), [1, 2]);
        assert_eq!(between.next_deadline(), None);
        // it is open: who finds nobody now is refused
        assert!(between.wait(request(7, 3), now).is_err());
    }

    #[test]
    fn who_waits_in_vain_is_refused_a_moment_later() {
        let now = Instant::now();
        let mut between = BetweenListens::default();
        between.closed(service(7), now);
        assert!(between.wait(request(7, 1), now).is_ok());
        let at = now + PATIENCE;
        assert_eq!(between.next_deadline(), Some(at));
        assert!(between.next_due(at - Duration::from_millis(1)).is_none());
        let due = between.next_due(at).expect("its time is up");
        assert_eq!(transactions(&[due]), [1]);
        assert!(between.next_due(at).is_none());
    }

    #[test]
    fn a_port_that_nobody_listened_on_of_late_is_refused_at_once() {
        let now = Instant::now();
        let mut between = BetweenListens::default();
        assert!(between.wait(request(7, 1), now).is_err());
        between.closed(service(7), now);
        assert!(between.wait(request(8, 1), now).is_err());
        assert!(between.wait(request(7, 1), now + CLOSED_LATELY).is_err());
    }

    #[test]
    fn who_gives_up_is_forgotten() {
        let now = Instant::now();
        let mut between = BetweenListens::default();
        between.closed(service(7), now);
        let asked = request(7, 1);
        let (source, transaction) = asked.key();
        assert!(between.wait(asked, now).is_ok());
        assert!(!between.forget(source, TransactionId(2)));
        assert!(between.forget(source, transaction));
        assert!(between.opened(service(7)).is_empty());
    }

    #[test]
    fn there_are_bounds() {
        let now = Instant::now();
        let mut between = BetweenListens::default();
        for port in 1..=2 * CLOSED_MAX as u16 {
            between.closed(service(port), now);
        }
        assert_eq!(between.closed.len(), CLOSED_MAX);
        assert!(between.wait(request(1, 1), now).is_err(), "forgotten");
        let last = 2 * CLOSED_MAX as u16;
        for transaction in 0..WAITING_MAX as u64 {
            assert!(between.wait(request(last, transaction), now).is_ok());
        }
        let more = request(last, WAITING_MAX as u64);
        assert!(between.wait(more, now).is_err());
    }
}
