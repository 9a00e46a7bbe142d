//! The simulated network: links with delays and faults, receive buffers as the kernel counts them.

use core::time::Duration;
use std::collections::VecDeque;

use engine::Instant;

use crate::rng::Rng;

/// What the kernel adds to each datagram in its accounts of a receive buffer, in bytes.
pub const DATAGRAM_OVERHEAD: usize = 832;

/// What can happen to a datagram, each in so many of 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// It is lost.
    pub loss: u16,
    /// It arrives twice.
    pub duplication: u16,
    /// It arrives later than those behind it.
    pub reordering: u16,
    /// Some of its bits are wrong.
    pub corruption: u16,
    /// How much later copies and reordered datagrams arrive at most.
    pub lag: Duration,
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Link {
    /// Time from sending to arriving.
    pub delay: Duration,
    /// Up to this much more, without reordering.
    pub jitter: Duration,
    /// What goes wrong.
    pub faults: Faults,
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
    /// What happened to it, for the trace.
    pub fate: &'static str,
}

impl Link {
    /// A link with its own chance.
    pub fn new(delay: Duration, jitter: Duration, faults: Faults, rng: Rng) -> Self {
        Self {
            delay,
            jitter,
            faults,
            last: Instant::default(),
            rng,
        }
    }

    /// From now on nothing goes wrong.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
    }

    /// Sends a datagram; hands each copy that will arrive to `arrives`.
    pub fn send(&mut self, now: Instant, mut bytes: Vec<u8>, mut arrives: impl FnMut(Arrival)) {
        let Faults {
            loss,
            duplication,
            reordering,
            corruption,
            lag,
        } = self.faults;
        let on_time = now
            .plus(self.delay)
            .plus(self.rng.duration(self.jitter))
            .max(self.last);
        if self.rng.chance(loss) {
            return;
        }
        if self.rng.chance(duplication) {
            arrives(Arrival {
                at: on_time.plus(self.rng.duration(lag)),
                bytes: bytes.clone(),
                fate: "copy",
            });
        }
        let mut fate = "";
        if self.rng.chance(corruption) {
            self.damage(&mut bytes);
            fate = "corrupted";
        }
        let mut at = on_time;
        if self.rng.chance(reordering) {
            at = on_time.plus(self.rng.duration(lag));
            fate = "late";
        } else {
            self.last = on_time;
        }
        arrives(Arrival { at, bytes, fate });
    }

    /// One to three wrong bits, or a wrong length.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        if self.rng.chance(100) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
            return;
        }
        for _ in 0..self.rng.range(1, 3) {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
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

    fn send_100(faults: Faults) -> Vec<Arrival> {
        let delay = Duration::from_micros(10);
        let mut link = Link::new(delay, delay, faults, Rng::from_seed(3));
        let mut arrivals = Vec::new();
        for number in 0..100 {
            let now = Instant::from_nanos(u64::from(number));
            link.send(now, vec![number; 40], |arrival| arrivals.push(arrival));
        }
        arrivals
    }

    #[test]
    fn a_link_without_faults_keeps_everything_in_order() {
        let arrivals = send_100(Faults::default());
        assert_eq!(arrivals.len(), 100);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        assert!((0..100).all(|i| arrivals[i].bytes == [i as u8; 40]));
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let lag = Duration::from_millis(1);
        let half = 500;
        let lost = send_100(Faults {
            loss: half,
            ..Faults::default()
        });
        assert!((20..80).contains(&lost.len()), "{}", lost.len());
        let doubled = send_100(Faults {
            duplication: half,
            lag,
            ..Faults::default()
        });
        assert!((120..180).contains(&doubled.len()), "{}", doubled.len());
        let shuffled = send_100(Faults {
            reordering: half,
            lag,
            ..Faults::default()
        });
        assert!(!shuffled.is_sorted_by_key(|arrival| arrival.at));
        let damaged = send_100(Faults {
            corruption: 1000,
            ..Faults::default()
        });
        assert!(
            (0..100)
                .filter(|&i| damaged[i].bytes != [i as u8; 40])
                .count()
                > 90,
            "two bits may undo each other, but seldom"
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
