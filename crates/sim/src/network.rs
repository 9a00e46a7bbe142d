//! The simulated network: links with delays and faults, receive buffers as the kernel counts them.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use engine::{Instant, PathMeta};
use tap::{FaultPlan, Injector, Verdict};
use wire::icrc::PseudoHeader;

use crate::rng::Rng;

/// What the kernel adds to each datagram in its accounts of a receive buffer, in bytes.
pub const DATAGRAM_OVERHEAD: usize = 832;

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// Where host `number` sends from.
pub fn address(is_v6: bool, number: usize) -> SocketAddr {
    let last = number as u16 + 1;
    let ip: IpAddr = if is_v6 {
        [0xfd00, 0, 0, 0, 0, 0, 0, last].into()
    } else {
        [10, 0, 0, last as u8].into()
    };
    SocketAddr::new(ip, 0xc000 + last)
}

/// What the checksum of packets from a host covers of their IP and UDP headers.
pub fn pseudo_header(is_v6: bool, from: usize) -> PseudoHeader {
    let destination = SocketAddr::new(address(is_v6, 1 - from).ip(), ROCE_PORT);
    PseudoHeader::new(address(is_v6, from), destination).expect("both of one family")
}

/// What the IP header of packets to host `number` says.
pub fn meta(is_v6: bool, number: usize) -> PathMeta {
    PathMeta {
        source: address(is_v6, 1 - number).ip(),
        destination: address(is_v6, number).ip(),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
    }
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Link {
    /// Time from sending to arriving.
    delay: Duration,
    /// Up to this much more, without reordering.
    jitter: Duration,
    /// What goes wrong: the same plan that a device reads from `SOFTRDMA_FAULTS`.
    faults: Option<Injector>,
    /// How much later a copy arrives at most.
    lag: Duration,
    /// When the last datagram that was not reordered arrives.
    last: Instant,
    rng: Rng,
}

/// A datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// UDP payload.
    pub bytes: Vec<u8>,
}

impl Link {
    /// A link with its own chance.
    pub fn new(delay: Duration, jitter: Duration, rng: Rng) -> Self {
        Self {
            delay,
            jitter,
            faults: None,
            lag: Duration::ZERO,
            last: Instant::default(),
            rng,
        }
    }

    /// The same with faults; copies arrive up to `lag` after their originals.
    #[must_use]
    pub fn with_faults(mut self, plan: &FaultPlan, lag: Duration) -> Self {
        self.faults = Some(Injector::new(plan, self.rng.bits()));
        self.lag = lag;
        self
    }

    /// From now on nothing goes wrong.
    pub fn heal(&mut self) {
        self.faults = None;
    }

    /// Sends a datagram; hands each copy that will arrive to `arrives`.
    pub fn send(&mut self, now: Instant, mut bytes: Vec<u8>, mut arrives: impl FnMut(Arrival)) {
        let verdict = match &mut self.faults {
            Some(injector) => injector.decide(now.as_nanos(), bytes.len()),
            None => Verdict::Pass,
        };
        let on_time = now
            .plus(self.delay)
            .plus(self.rng.duration(self.jitter))
            .max(self.last);
        let mut at = on_time;
        match verdict {
            Verdict::Pass => {}
            Verdict::Drop => return,
            Verdict::Duplicate => arrives(Arrival {
                at: on_time.plus(self.rng.duration(self.lag)),
                bytes: bytes.clone(),
            }),
            Verdict::Corrupt { bit } => self.damage(&mut bytes, bit),
            Verdict::Delay { until_ns } => {
                at = Instant::from_nanos(until_ns).plus(self.delay);
            }
        }
        if at == on_time {
            self.last = on_time;
        }
        arrives(Arrival { at, bytes });
    }

    /// A wrong bit, now and then two more or a wrong length.
    fn damage(&mut self, bytes: &mut Vec<u8>, bit: usize) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        match self.rng.below(8) {
            0 => bytes.truncate(self.rng.below(bytes.len() as u64) as usize),
            1 => {
                for _ in 0..2 {
                    let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            _ => {}
        }
    }
}

/// A socket's receive buffer: what does not fit is lost.
#[derive(Debug)]
pub struct ReceiveBuffer {
    datagrams: VecDeque<Vec<u8>>,
    used: usize,
    capacity: usize,
    dropped: u64,
}

impl ReceiveBuffer {
    /// A buffer of so many bytes of truesize.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            datagrams: VecDeque::new(),
            used: 0,
            capacity,
            dropped: 0,
        }
    }

    /// A datagram arrives; false if it was lost.
    pub fn push(&mut self, bytes: Vec<u8>) -> bool {
        let size = truesize(&bytes);
        if self.used + size > self.capacity {
            self.dropped += 1;
            return false;
        }
        self.used += size;
        self.datagrams.push_back(bytes);
        true
    }

    /// The oldest datagram.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let bytes = self.datagrams.pop_front()?;
        self.used -= truesize(&bytes);
        Some(bytes)
    }

    /// Bytes of the oldest datagram.
    pub fn next_length(&self) -> Option<usize> {
        self.datagrams.front().map(Vec::len)
    }

    /// How many were lost.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn truesize(bytes: &[u8]) -> usize {
    bytes.len() + DATAGRAM_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_100(plan: Option<&str>) -> Vec<Arrival> {
        let delay = Duration::from_micros(10);
        let mut link = Link::new(delay, delay, Rng::from_seed(3));
        if let Some(plan) = plan {
            let plan = plan.parse().expect("a plan");
            link = link.with_faults(&plan, Duration::from_millis(1));
        }
        let mut arrivals = Vec::new();
        for number in 0..100 {
            let now = Instant::from_nanos(u64::from(number));
            link.send(now, vec![number; 40], |arrival| arrivals.push(arrival));
        }
        arrivals
    }

    #[test]
    fn a_link_without_faults_keeps_everything_in_order() {
        let arrivals = send_100(None);
        assert_eq!(arrivals.len(), 100);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        assert!((0..100).all(|i| arrivals[i].bytes == [i as u8; 40]));
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let lost = send_100(Some("loss=50%"));
        assert!((20..80).contains(&lost.len()), "{}", lost.len());
        let doubled = send_100(Some("duplicate=50%"));
        assert!((120..180).contains(&doubled.len()), "{}", doubled.len());
        let shuffled = send_100(Some("reorder=50%"));
        assert!(!shuffled.is_sorted_by_key(|arrival| arrival.at));
        let damaged = send_100(Some("corrupt=100%"));
        let is_wrong = |&i: &usize| damaged[i].bytes != [i as u8; 40];
        assert!(
            (0..100).filter(is_wrong).count() > 90,
            "bits may undo each other"
        );
    }

    #[test]
    fn a_full_receive_buffer_loses_the_newest() {
        let mut buffer = ReceiveBuffer::with_capacity(2 * (DATAGRAM_OVERHEAD + 10));
        assert!(buffer.push(vec![1; 10]));
        assert!(buffer.push(vec![2; 10]));
        assert!(!buffer.push(vec![3; 0]));
        assert_eq!(buffer.pop(), Some(vec![1; 10]));
        assert!(buffer.push(vec![4; 10]));
        assert_eq!(buffer.dropped(), 1);
    }
}
