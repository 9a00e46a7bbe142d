//! Who makes progress when the program does not: a background thread for each lane. That of the
//! first lane is there before it, and listens to the broker too.
//!
//! Programs that poll serve themselves. The thread looks at the stamp that polls leave: while it is
//! fresh the thread only glances now and then, for an armed epoll would make every *send* to this
//! socket pay for a wake-up. When nobody polled for [`SERVICE_BOUND_NS`] it serves, spins a little
//! while packets come, then blocks in a one-shot epoll until a packet, a deadline or a wake.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use broker::News;
use engine::Instant;
use io::poll::{Events, Interest, Poller};

use crate::core::Core;
use crate::hold::{RETURN_NS, SERVICE_BOUND_NS};
use crate::lane::Attendant;
use crate::network::UdpNetwork;
use crate::pace::Pace;
use crate::process::Process;
use crate::shard::Server;
use crate::spins::Spins;

/// While the program polls by itself the thread looks again after this, growing to the maximum.
const GLANCE_MIN_NS: u64 = SERVICE_BOUND_NS;
/// Longest time between two looks at a program that polls: a silence is noticed within it.
const GLANCE_MAX_NS: u64 = 1_000_000;
/// The same for a program that turned to something else a moment ago, as it will again.
const GLANCE_ALERT_NS: u64 = 200_000;
/// How long such a moment is.
const ALERT_NS: u64 = 100_000_000;
/// How long an acknowledgement waits for the answer of a program that will be back.
const COMPANY_NS: u64 = 15_000;
/// After the last packet the thread stays awake for this, where a core is free.
const SPIN_NS: u64 = 60_000;
/// A spinning thread that was away for so long shares its core with somebody who computes.
const CROWDED_GAP_NS: u64 = 30_000;
/// It does not spin for this long then.
const CROWDED_NS: u64 = 2_000_000;
/// Somebody else had the lock: look again after this.
const CONTENDED_NS: u64 = SERVICE_BOUND_NS;
/// While packets keep coming, the thread looks this often whether the broker has news.
const NEWS_NS: u64 = 10_000_000;
/// How long what was counted waits at most to be written where others can read it.
const PUBLISH_NS: u64 = 100_000_000;
/// With nothing to do at all, the thread looks whether the process still needs it.
const IDLE_NS: u64 = 1_000_000_000;

const BROKER: u64 = 0;
const WAKE: u64 = 1;
const RECEIVE: u64 = 2;
const STEER: u64 = 3;
const STREAMS: u64 = 4;
const CALLS: u64 = 5;
const TOKENS: usize = 6;

/// Starts the thread of a lane, which is there or will be: all signals blocked (the program's
/// handlers run on its own threads), all cores allowed (a pinned program would put it on the core
/// that spins), minimal timer slack.
///
/// # Errors
/// No descriptor or no thread to be had.
pub fn start(
    process: &Arc<Process>,
    lane: usize,
    attendant: Arc<Attendant>,
) -> Result<(), io::Errno> {
    let poller = Poller::new()?;
    let weak = Arc::downgrade(process);
    io::thread::spawn_quiet("softrdma", move || {
        Thread {
            process: weak,
            lane,
            attendant,
            armed: Armed::new(poller),
            glance_ns: GLANCE_MIN_NS,
            published: 0,
            publish_at: Instant::from_nanos(0),
            took_over: Instant::from_nanos(0),
            crowded_until: Instant::from_nanos(0),
            spins: Spins::default(),
            has_calls: false,
            has_cores: io::thread::cores() > 1,
        }
        .run();
    })
}

struct Thread {
    process: Weak<Process>,
    /// Which one it serves, from the time on when there is one.
    lane: usize,
    attendant: Arc<Attendant>,
    armed: Armed,
    glance_ns: u64,
    /// What was counted when that was written.
    published: u64,
    /// When it may be written again.
    publish_at: Instant,
    /// When it last found work that the program had left.
    took_over: Instant,
    /// Somebody else needs the core until then.
    crowded_until: Instant,
    spins: Spins,
    /// Somebody asks for a connection of iWARP.
    has_calls: bool,
    has_cores: bool,
}

impl Thread {
    fn run(mut self) {
        let mut events = Events::with_capacity(8);
        while let Some(process) = self.process.upgrade() {
            if process.is_dead() {
                return;
            }
            let sleep = self.round(&process);
            let sleep = self.publish(&process, sleep);
            let is_blocking = matches!(sleep, Sleep::Until(_));
            let timeout_ns = sleep.nanoseconds();
            if self.arm(&process, is_blocking).is_err() {
                return;
            }
            let wakes_at = io::clock::now_ns().saturating_add(timeout_ns);
            self.attendant.wakes_at_ns.store(wakes_at, Ordering::SeqCst);
            self.attendant
                .is_watching
                .store(is_blocking, Ordering::SeqCst);
            let core = self.core(&process);
            if let Some(core) = core {
                core.shard.hold.set_tended(!is_blocking);
            }
            // who came between the look and the stores relied on what they replaced: look again
            let is_missed = match sleep {
                Sleep::Until(_) => {
                    core.is_some_and(|core| has_work_due(core, wakes_at))
                        || self.has_connections_due(&process, wakes_at)
                }
                Sleep::Glance(_) => self.attendant.watched.load(Ordering::SeqCst) > 0,
                Sleep::Briefly(_) => false,
            };
            if is_missed {
                continue;
            }
            drop(process);
            if self.armed.wait(&mut events, timeout_ns).is_err() {
                return;
            }
            let Some(process) = self.process.upgrade() else {
                return;
            };
            self.attendant.wakes_at_ns.store(0, Ordering::Relaxed);
            for ready in events.iter() {
                match ready.token {
                    BROKER => Self::hear_broker(&process),
                    WAKE => {
                        self.attendant.wake.drain();
                    }
                    CALLS => self.has_calls = true,
                    RECEIVE | STEER => {
                        if let Some(core) = self.core(&process) {
                            core.shard.expect_steered();
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn core<'a>(&self, process: &'a Process) -> Option<&'a Core<UdpNetwork>> {
        process.lanes.get(self.lane).map(|lane| &lane.core)
    }

    /// Serves if it is our turn, and says how to wait.
    fn round(&mut self, process: &Arc<Process>) -> Sleep {
        let Some(core) = self.core(process) else {
            self.serve_connections(process);
            return self.idle_sleep(process, None, Instant::from_nanos(io::clock::now_ns()));
        };
        let is_watched = self.attendant.watched.load(Ordering::SeqCst) > 0;
        let pace = core.pace();
        let mut last_packet = None;
        let mut has_spun = false;
        let mut last_look = core.now();
        let news_at = last_look.as_nanos() + NEWS_NS;
        loop {
            self.serve_connections(process);
            let now = core.now();
            let silence = core.shard.silence_ns(now);
            if silence < pace.stretch(SERVICE_BOUND_NS) && !is_watched {
                return Sleep::Glance(self.next_glance(now, pace));
            }
            let is_behind = silence < pace.stretch(RETURN_NS) && !is_watched;
            let server = if is_behind {
                Server::Behind
            } else {
                Server::Anybody
            };
            let Some(served) = core.serve(server) else {
                return Sleep::Briefly(pace.stretch(CONTENDED_NS));
            };
            if served.packets > 0 {
                // the section itself may have been long
                last_look = core.now();
                last_packet = Some(last_look);
                if std::mem::take(&mut has_spun) {
                    self.spins.succeed();
                }
                (self.took_over, self.glance_ns) = (last_look, GLANCE_MIN_NS);
                if core.shard.hold.owes() {
                    return Sleep::Briefly(pace.stretch(COMPANY_NS));
                }
                if last_look.as_nanos() > news_at {
                    return Sleep::Briefly(0);
                }
                continue;
            }
            if self.may_spin(now, last_look, last_packet, pace) {
                last_look = now;
                has_spun = true;
                std::hint::spin_loop();
                continue;
            }
            if has_spun {
                self.spins.fail();
            } else if last_packet.is_some() {
                self.spins.sleep();
            }
            return self.idle_sleep(process, served.deadline, core.now());
        }
    }

    /// There is nothing to do before this deadline, and those of connections.
    fn idle_sleep(&self, process: &Process, served: Option<Instant>, now: Instant) -> Sleep {
        let (connections, callers) = if self.lane == 0 {
            let connections = process.connections.next_deadline();
            (connections, process.reception.next_deadline())
        } else {
            (None, None)
        };
        let deadline = [served, connections, callers].into_iter().flatten().min();
        let until = deadline.map_or(IDLE_NS, |deadline| nanoseconds(deadline.since(now)));
        Sleep::Until(until.min(IDLE_NS))
    }

    /// Writes what was counted, if that has changed and the last time is long ago; sees to it that
    /// the thread is awake in time otherwise.
    fn publish(&mut self, process: &Arc<Process>, sleep: Sleep) -> Sleep {
        let of_callers = match self.lane {
            0 => process.reception.counted_mark(),
            _ => 0,
        };
        let lane = process.lanes.get(self.lane);
        let of_queue_pairs = lane.map_or(0, |lane| lane.core.shard.counted_mark());
        let mark = of_queue_pairs.wrapping_add(of_callers);
        if mark == self.published {
            return sleep;
        }
        // who listens may have no queue pair yet, and nothing but callers to count
        let Some(lane) = lane.or_else(|| process.first_lane().ok()) else {
            self.published = mark;
            return sleep;
        };
        let now = lane.core.now();
        if now < self.publish_at {
            return sleep.at_most(nanoseconds(self.publish_at.since(now)));
        }
        lane.publish(process);
        self.published = mark;
        // with very many queue pairs it takes a while, of which little is to be
        let cost = nanoseconds(lane.core.now().since(now));
        let pause = PUBLISH_NS.max(cost.saturating_mul(100));
        self.publish_at = Instant::from_nanos(now.as_nanos().saturating_add(pause));
        sleep
    }

    /// Connection management is the first lane's.
    fn serve_connections(&mut self, process: &Arc<Process>) {
        if self.lane != 0 {
            return;
        }
        let reception = &process.reception;
        let now = Instant::from_nanos(io::clock::now_ns());
        let is_due = |deadline: Instant| deadline <= now;
        if std::mem::take(&mut self.has_calls) || reception.next_deadline().is_some_and(is_due) {
            reception.serve(now);
        }
        process.serve_connections();
    }

    /// Whether somebody asked for an earlier deadline since it was looked at.
    fn has_connections_due(&self, process: &Process, wakes_at_ns: u64) -> bool {
        let deadline = process.connections.next_deadline();
        self.lane == 0
            && deadline.is_some_and(|deadline| deadline.as_nanos() + GLANCE_MIN_NS < wakes_at_ns)
    }

    /// How long to leave a program alone that polls.
    fn next_glance(&mut self, now: Instant, pace: Pace) -> u64 {
        let is_alert = nanoseconds(now.since(self.took_over)) < ALERT_NS;
        let bound = if is_alert {
            GLANCE_ALERT_NS
        } else {
            GLANCE_MAX_NS
        };
        // no more often than it would find the program silent
        let least = pace.stretch(GLANCE_MIN_NS);
        let glance_ns = self.glance_ns.min(bound).max(least);
        self.glance_ns = glance_ns * 2;
        glance_ns
    }

    /// Whether to look at the socket again without sleeping.
    fn may_spin(
        &mut self,
        now: Instant,
        last_look: Instant,
        last_packet: Option<Instant>,
        pace: Pace,
    ) -> bool {
        if nanoseconds(now.since(last_look)) > pace.stretch(CROWDED_GAP_NS) {
            self.crowded_until = Instant::from_nanos(now.as_nanos() + CROWDED_NS);
        }
        let is_recent = |packet: Instant| {
            nanoseconds(now.since(packet)) < pace.stretch(SPIN_NS) && self.has_cores
        };
        now >= self.crowded_until && self.spins.may_spin() && last_packet.is_some_and(is_recent)
    }

    /// Arms what the coming sleep listens to: the sockets only when it is our turn to serve.
    fn arm(&mut self, process: &Process, with_sockets: bool) -> Result<(), io::Errno> {
        if self.lane == 0 {
            self.armed.arm(process.broker.as_fd(), BROKER)?;
            if let Some(calls) = process.reception.fd() {
                self.armed.arm(calls, CALLS)?;
            }
        }
        self.armed.arm(self.attendant.wake.as_fd(), WAKE)?;
        let Some(core) = self.core(process) else {
            return Ok(());
        };
        let with_streams = with_sockets && core.shard.has_streams();
        if self.armed.has(RECEIVE) == with_sockets
            && self.armed.has(STEER) == with_sockets
            && self.armed.has(STREAMS) == with_streams
        {
            return Ok(());
        }
        let inner = core.shard.lock();
        let Some(receive) = inner.network.receive_fd() else {
            return Ok(());
        };
        let sockets = [
            (Some(receive), RECEIVE),
            (inner.steering_fd(), STEER),
            (inner.streams.fd(), STREAMS),
        ];
        for (fd, token) in sockets {
            match fd {
                Some(fd) if with_sockets => self.armed.arm(fd, token)?,
                // a program that polls takes packets before we are awake, and we would sleep on
                Some(fd) => self.armed.disarm(fd, token)?,
                None => {}
            }
        }
        Ok(())
    }

    fn hear_broker(process: &Arc<Process>) {
        match process.broker.news() {
            Ok(news) => {
                for news in news {
                    match news {
                        News::Link(event) => process.hear(&event),
                        News::Question { inquiry, question } => {
                            // who asked does without an answer that the broker does not read
                            let _ = process.broker.report(inquiry, process.report(question));
                        }
                    }
                }
            }
            Err(_) => process.lose_broker(),
        }
    }
}

/// Whether something waits to be sent, or a deadline before `wakes_at_ns` came up since it was
/// asked for.
fn has_work_due(core: &Core<UdpNetwork>, wakes_at_ns: u64) -> bool {
    if core.shard.has_pending() {
        return true;
    }
    let Some(inner) = core.shard.try_lock() else {
        return true;
    };
    inner
        .next_deadline(core.now())
        .is_some_and(|deadline| deadline.as_nanos() + GLANCE_MIN_NS < wakes_at_ns)
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    duration.as_nanos() as u64
}

/// How the thread waits, for so many nanoseconds at most.
enum Sleep {
    /// The program serves itself: listening to broker and wakes.
    Glance(u64),
    /// Something is left for a moment: the same, whoever waits for an event meanwhile.
    Briefly(u64),
    /// It is our turn: listening to the sockets too.
    Until(u64),
}

impl Sleep {
    /// The same, not longer than this.
    fn at_most(self, bound: u64) -> Self {
        match self {
            Self::Glance(nanoseconds) => Self::Glance(nanoseconds.min(bound)),
            Self::Briefly(nanoseconds) => Self::Briefly(nanoseconds.min(bound)),
            Self::Until(nanoseconds) => Self::Until(nanoseconds.min(bound)),
        }
    }

    fn nanoseconds(&self) -> u64 {
        match *self {
            Self::Glance(nanoseconds) | Self::Briefly(nanoseconds) | Self::Until(nanoseconds) => {
                nanoseconds
            }
        }
    }
}

/// The descriptors of the thread, and which of them are armed: arming is a system call.
struct Armed {
    poller: Poller,
    is_known: [bool; TOKENS],
    is_armed: [bool; TOKENS],
}

impl Armed {
    fn new(poller: Poller) -> Self {
        Self {
            poller,
            is_known: [false; TOKENS],
            is_armed: [false; TOKENS],
        }
    }

    fn has(&self, token: u64) -> bool {
        self.is_armed[token as usize]
    }

    /// Arms a descriptor, which is always the same for a token, if it is not armed.
    fn arm(&mut self, fd: BorrowedFd<'_>, token: u64) -> Result<(), io::Errno> {
        let index = token as usize;
        if !self.is_known[index] {
            self.poller.add_disarmed(fd, token)?;
            self.is_known[index] = true;
        }
        if !self.is_armed[index] {
            self.poller.arm(fd, token, Interest::READ)?;
            self.is_armed[index] = true;
        }
        Ok(())
    }

    fn disarm(&mut self, fd: BorrowedFd<'_>, token: u64) -> Result<(), io::Errno> {
        let is_armed = &mut self.is_armed[token as usize];
        if *is_armed {
            self.poller.disarm(fd, token)?;
            *is_armed = false;
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Events, timeout_ns: u64) -> Result<(), io::Errno> {
        self.poller.wait(events, Some(timeout_ns))?;
        for ready in events.iter() {
            self.is_armed[ready.token as usize] = false;
        }
        Ok(())
    }
}
