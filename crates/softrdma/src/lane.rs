//! A lane: one slot of the process with its sockets, its shard and its background thread.
//!
//! Threads that use different lanes share no lock. What a process has of them, and which one a
//! queue pair gets: [`lanes`](crate::lanes).

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use broker::client::Client;
use broker::counters::CounterPage;
use engine::Instant;
use io::fork::ClosedInChild;
use io::poll::Wake;
use io::udp::ReceiveSocket;
use tap::Tap;

use crate::core::{Clock, Core};
use crate::credit::SlotCredit;
use crate::error::{Error, Result};
use crate::memory::MemoryTable;
use crate::network::{Network, RxBuffer, UdpNetwork};
use crate::pace::Pace;
use crate::process::random;
use crate::steer::Steering;

/// See the module.
pub struct Lane {
    /// The leased descriptors, which a child must not keep open; dropped before they are.
    inherited: Mutex<Vec<ClosedInChild>>,
    /// The broker's number of it.
    pub(crate) slot: u8,
    /// Memory and the queue pairs.
    pub(crate) core: Core<UdpNetwork>,
    /// The way to its background thread.
    pub(crate) attendant: Arc<Attendant>,
    /// Where to write what was counted.
    pub(crate) counters: Option<CounterPage>,
    /// The index of the link that counts what belongs to no queue pair.
    pub(crate) first_link: OnceLock<u32>,
    /// Queue pairs in it, or about to be.
    queue_pairs: AtomicU32,
    /// Joining and leaving of groups, one at a time; asks the broker, so it comes before the shard.
    pub(crate) joining: Mutex<()>,
}

impl Lane {
    /// Leases a slot.
    ///
    /// # Errors
    /// [`Error::Call`]
    pub(crate) fn lease(
        broker: &Client,
        memory: &Arc<MemoryTable>,
        tap: Tap,
        attendant: Arc<Attendant>,
    ) -> Result<Self> {
        let lease = broker.lease_slot().map_err(Error::Call)?;
        let inherited = [&lease.receive, &lease.steer].map(|fd| ClosedInChild::new(fd.as_fd()));
        let slot = lease.slot;
        let names: Vec<String> = (0..=u8::MAX).map(|slot| lease.steer_name(slot)).collect();
        let name_of = Box::new(move |slot: u8| names[usize::from(slot)].clone());
        let config = engine::Config {
            first_index: random() as u16,
            ..engine::Config::for_slot(slot)
        };
        let mut network = UdpNetwork::new(ReceiveSocket::from_fd(lease.receive));
        let mut buffer = RxBuffer::default();
        // what arrives before the first queue pair is there is for nobody
        let pace = Pace::measure(io::clock::now_ns, || {
            let _ = network.receive(&mut buffer);
        });
        let core = Core::new(
            config,
            Arc::clone(memory),
            SlotCredit::new(slot, lease.credit),
            network,
            tap,
            Some(Steering::new(lease.steer, name_of)),
            Clock::Monotonic(pace),
        );
        core.shard.set_reader(&attendant);
        Ok(Self {
            inherited: Mutex::new(inherited.into()),
            slot,
            core,
            attendant,
            counters: lease.counters,
            first_link: OnceLock::new(),
            queue_pairs: AtomicU32::new(0),
            joining: Mutex::new(()),
        })
    }

    /// Queue pairs in it, or about to be.
    pub(crate) fn queue_pairs(&self) -> u32 {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Closes what was leased and ends every queue pair.
    pub(crate) fn close(&self) {
        let mut inner = self.core.shard.lock();
        // the numbers first: once closed they may be somebody else's
        self.inherited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        inner.network.close();
        self.core.end_queue_pairs(&mut inner, |_| true);
    }
}

/// The place of one queue pair in a lane.
pub struct Place(Arc<Lane>);

impl Place {
    pub(crate) fn new(lane: &Arc<Lane>) -> Self {
        lane.queue_pairs.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(lane))
    }
}

impl Deref for Place {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a background thread tells of itself, and how to wake it.
#[derive(Debug)]
pub struct Attendant {
    /// Wakes it.
    pub(crate) wake: Wake,
    /// When it looks again by itself, in nanoseconds of the clock.
    pub(crate) wakes_at_ns: AtomicU64,
    /// Whether it is, or will be before it sleeps, listening to the sockets.
    pub(crate) is_watching: AtomicBool,
    /// Completion queues that wait to raise an event: it watches the sockets for them.
    pub(crate) watched: AtomicU32,
}

impl Attendant {
    /// Of a thread that is about to start.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> std::result::Result<Self, io::Errno> {
        Ok(Self {
            wake: Wake::new()?,
            wakes_at_ns: AtomicU64::new(0),
            is_watching: AtomicBool::new(false),
            watched: AtomicU32::new(0),
        })
    }

    /// Makes the thread look at the sockets before `deadline` at the latest.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>) {
        // lowered, so that those who come before the thread has a core need not wake it again
        if let Some(deadline) = deadline.map(Instant::as_nanos)
            && deadline < self.wakes_at_ns.load(Ordering::Relaxed)
            && deadline < self.wakes_at_ns.fetch_min(deadline, Ordering::Relaxed)
        {
            self.wake.wake();
        }
    }

    /// The program is about to wait for an event: the thread takes over unless it is watching the
    /// sockets already.
    pub(crate) fn wake_before_blocking(&self) {
        if !self.is_watching.load(Ordering::SeqCst) {
            self.wake.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_before_the_thread_has_a_core_need_not_wake_it_again() {
        let attendant = Attendant::new().expect("a descriptor");
        attendant.wakes_at_ns.store(1_000, Ordering::Relaxed);
        let wakes_for = |deadline| {
            attendant.wake_before(Some(Instant::from_nanos(deadline)));
            attendant.wake.drain()
        };
        assert!(!wakes_for(1_000), "it looks by then");
        assert!(wakes_for(500));
        assert!(!wakes_for(500) && !wakes_for(700));
        assert!(wakes_for(400), "an earlier one matters");
    }
}
