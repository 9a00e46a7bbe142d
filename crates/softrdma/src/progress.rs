//! Who makes progress when the program does not: the background thread.
//!
//! Programs that poll serve themselves. The thread looks at the stamp that polls leave: while it is
//! fresh the thread sleeps, for an armed epoll would make every *send* to this socket pay for a
//! wake-up. When nobody polled for [`SERVICE_BOUND_NS`] it serves, spins a little while packets
//! come, then blocks in a one-shot epoll until a packet, a deadline or a wake.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use io::poll::{Events, Interest, Poller};

use crate::process::Process;

/// Nobody polled for so long: the thread serves. 100 µs.
const SERVICE_BOUND_NS: u64 = 100_000;
/// While the program polls by itself the thread looks again after this, growing to the maximum.
const GLANCE_MIN_NS: u64 = 100_000;
/// Longest time between two looks at a program that polls: a silence is noticed within it.
const GLANCE_MAX_NS: u64 = 1_000_000;
/// After the last packet the thread stays awake for this, where a core is free.
const SPIN_NS: u64 = 20_000;
/// Somebody else had the lock: look again after this.
const CONTENDED_NS: u64 = 50_000;
/// With nothing to do at all, the thread looks whether the process still needs it.
const IDLE_NS: u64 = 1_000_000_000;

const BROKER: u64 = 1;
const WAKE: u64 = 2;
const RECEIVE: u64 = 3;
const STEER: u64 = 4;

/// Starts the thread: all signals blocked (the program's handlers run on its own threads), all
/// cores allowed (a pinned program would put it on the core that spins), minimal timer slack.
///
/// # Errors
/// No descriptor or no thread to be had.
pub fn start(process: &Arc<Process>) -> Result<(), io::Errno> {
    let poller = Poller::new()?;
    poller.add_disarmed(process.broker.as_fd(), BROKER)?;
    poller.add_disarmed(process.wake.as_fd(), WAKE)?;
    let weak = Arc::downgrade(process);
    io::thread::spawn_quiet("softrdma", move || {
        Thread {
            process: weak,
            poller,
            has_sockets: false,
            glance_ns: GLANCE_MIN_NS,
            spins: io::thread::cores() > 1,
        }
        .run();
    })
}

struct Thread {
    process: Weak<Process>,
    poller: Poller,
    /// Whether the data path's sockets are in the poller.
    has_sockets: bool,
    glance_ns: u64,
    spins: bool,
}

impl Thread {
    fn run(mut self) {
        let mut events = Events::with_capacity(8);
        while let Some(process) = self.process.upgrade() {
            if process.is_dead() {
                return;
            }
            let sleep = self.round(&process);
            let is_blocking = matches!(sleep, Sleep::Until { .. });
            let timeout_ns = match sleep {
                Sleep::For(nanoseconds) => nanoseconds,
                Sleep::Until { nanoseconds } => nanoseconds,
            };
            if self.arm(&process, is_blocking).is_err() {
                return;
            }
            let now = io::clock::now_ns();
            process
                .wakes_at_ns
                .store(now.saturating_add(timeout_ns), Ordering::SeqCst);
            process.is_watching.store(is_blocking, Ordering::SeqCst);
            if !is_blocking && process.watched.load(Ordering::SeqCst) > 0 {
                // a completion queue was armed between the look and the store
                continue;
            }
            // whoever posted before the store did not see it: look once more
            if is_blocking && self.has_work_due(&process, now + timeout_ns) {
                continue;
            }
            drop(process);
            if self.poller.wait(&mut events, Some(timeout_ns)).is_err() {
                return;
            }
            let Some(process) = self.process.upgrade() else {
                return;
            };
            process.wakes_at_ns.store(0, Ordering::Relaxed);
            for ready in events.iter() {
                match ready.token {
                    BROKER => Self::hear_broker(&process),
                    WAKE => {
                        process.wake.drain();
                    }
                    _ => {}
                }
            }
        }
    }

    /// Serves if it is our turn, and says how to wait.
    fn round(&mut self, process: &Process) -> Sleep {
        let Some(core) = process.core() else {
            return Sleep::Until {
                nanoseconds: IDLE_NS,
            };
        };
        let watched = process.watched.load(Ordering::SeqCst) > 0;
        let mut last_packet = core.now();
        let mut found_any = false;
        loop {
            let now = core.now();
            let silence = now.since(core.shard.last_poll()).as_nanos() as u64;
            if silence < SERVICE_BOUND_NS && !watched {
                if found_any {
                    self.glance_ns = GLANCE_MIN_NS;
                } else {
                    self.glance_ns = (self.glance_ns * 2).min(GLANCE_MAX_NS);
                }
                return Sleep::For(self.glance_ns);
            }
            let Some(served) = core.serve() else {
                return Sleep::For(CONTENDED_NS);
            };
            if served.packets > 0 {
                (last_packet, found_any) = (now, true);
                continue;
            }
            if found_any && self.spins && now.since(last_packet).as_nanos() < u128::from(SPIN_NS) {
                std::hint::spin_loop();
                continue;
            }
            self.glance_ns = GLANCE_MIN_NS;
            let nanoseconds = served.deadline.map_or(IDLE_NS, |deadline| {
                deadline.since(core.now()).as_nanos() as u64
            });
            return Sleep::Until {
                nanoseconds: nanoseconds.min(IDLE_NS),
            };
        }
    }

    /// Whether a deadline before `wakes_at_ns` came up since it was asked for.
    fn has_work_due(&self, process: &Process, wakes_at_ns: u64) -> bool {
        let Some(core) = process.core() else {
            return false;
        };
        let Some(inner) = core.shard.try_lock() else {
            return true;
        };
        inner
            .next_deadline(core.now())
            .is_some_and(|deadline| deadline.as_nanos() + GLANCE_MIN_NS < wakes_at_ns)
    }

    /// Arms what the coming sleep listens to: the sockets only when it is our turn to serve.
    fn arm(&mut self, process: &Process, with_sockets: bool) -> Result<(), io::Errno> {
        self.poller
            .arm(process.broker.as_fd(), BROKER, Interest::READ)?;
        self.poller
            .arm(process.wake.as_fd(), WAKE, Interest::READ)?;
        let Some(core) = process.core() else {
            return Ok(());
        };
        if !with_sockets {
            return Ok(());
        }
        let inner = core.shard.lock();
        let Some(receive) = inner.network.receive_fd() else {
            return Ok(());
        };
        let steer = inner.steering_fd();
        if !self.has_sockets {
            self.poller.add_disarmed(receive, RECEIVE)?;
            if let Some(steer) = steer {
                self.poller.add_disarmed(steer, STEER)?;
            }
            self.has_sockets = true;
        }
        self.poller.arm(receive, RECEIVE, Interest::READ)?;
        if let Some(steer) = steer {
            self.poller.arm(steer, STEER, Interest::READ)?;
        }
        Ok(())
    }

    fn hear_broker(process: &Process) {
        match process.broker.events() {
            Ok(news) => {
                for event in news {
                    process.hear(&event);
                }
            }
            Err(_) => process.lose_broker(),
        }
    }
}

/// How the thread waits.
enum Sleep {
    /// The program serves itself: for so many nanoseconds, listening to broker and wakes.
    For(u64),
    /// It is our turn: so many nanoseconds at most, listening to the sockets too.
    Until {
        /// The bound.
        nanoseconds: u64,
    },
}
