//! The one device of a process, whichever links it opens. Globals live here and nowhere else.
//!
//! A forked child does not have its parent's object: handles that it inherits answer
//! [`Error::Forked`], and it makes one of its own when it opens a device.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use broker::client::{Client, ConnectOptions};
use engine::Instant;
use engine::qp::{AttributeMask, Attributes, State};
use io::fork::{ClosedInChild, PerProcess};
use io::poll::Wake;
use io::udp::ReceiveSocket;
use tap::{FaultPlan, Tap};

use crate::core::{Clock, Core};
use crate::credit::SlotCredit;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::memory::MemoryTable;
use crate::network::UdpNetwork;
use crate::progress;
use crate::steer::Steering;

/// The variable that holds a fault plan.
pub const FAULTS_VARIABLE: &str = "SOFTRDMA_FAULTS";

static REPORTER: OnceLock<fn(&str)> = OnceLock::new();
static CURRENT: PerProcess<Process> = PerProcess::new();

/// Everything that the links of this process share.
pub struct Process {
    generation: u64,
    /// The connection to the broker, with its events.
    pub(crate) broker: Client,
    /// All registered memory.
    pub(crate) memory: Arc<MemoryTable>,
    /// Wakes the background thread.
    pub(crate) wake: Wake,
    /// When the background thread looks again by itself, in nanoseconds of the clock.
    pub(crate) wakes_at_ns: AtomicU64,
    /// Whether the thread is, or will be before it sleeps, listening to the sockets.
    pub(crate) is_watching: AtomicBool,
    /// Completion queues that wait to raise an event: the thread watches the socket for them.
    pub(crate) watched: AtomicU32,
    /// The data path, from the first queue pair on.
    core: OnceLock<Core<UdpNetwork>>,
    making_core: Mutex<()>,
    contexts: Mutex<Vec<Weak<Context>>>,
    is_dead: AtomicBool,
    /// The broker's descriptors must not hold its port in a child that outlives this process.
    _inherited: ClosedInChild,
    inherited_sockets: Mutex<Vec<ClosedInChild>>,
}

impl Process {
    /// The object of this process; made, with the connection to the broker, when there is none or
    /// the one that is there lost its broker.
    pub(crate) fn current() -> Result<Arc<Self>> {
        CURRENT.get_or_make(|process| !process.is_dead(), Self::start)
    }

    fn start() -> Result<Arc<Self>> {
        let options = ConnectOptions {
            subscribe: true,
            library: own_library(),
            ..Default::default()
        };
        let broker = Client::connect(&options)?;
        // before there is a thread, if the program has none: see `Wake::new`
        let wake = Wake::new().map_err(system("make an eventfd"))?;
        let process = Arc::new(Self {
            generation: io::fork::generation(),
            _inherited: ClosedInChild::new(broker.as_fd()),
            broker,
            memory: Arc::new(MemoryTable::default()),
            wake,
            wakes_at_ns: AtomicU64::new(0),
            is_watching: AtomicBool::new(false),
            watched: AtomicU32::new(0),
            core: OnceLock::new(),
            making_core: Mutex::new(()),
            contexts: Mutex::default(),
            is_dead: AtomicBool::new(false),
            inherited_sockets: Mutex::default(),
        });
        progress::start(&process).map_err(system("start the background thread"))?;
        Ok(process)
    }

    /// In which generation of forks it was made.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a handle may be used: not in a child, not after the broker died.
    pub(crate) fn check(&self) -> Result<()> {
        if self.generation != io::fork::generation() {
            return Err(Error::Forked);
        }
        if self.is_dead() {
            Err(Error::DeviceFatal)
        } else {
            Ok(())
        }
    }

    /// Whether the broker is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// The data path if there is one.
    pub(crate) fn core(&self) -> Option<&Core<UdpNetwork>> {
        self.core.get()
    }

    /// The data path, with a slot leased from the broker.
    pub(crate) fn core_or_make(&self) -> Result<&Core<UdpNetwork>> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let _making = self
            .making_core
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.core.get().is_none() {
            let core = self.make_core()?;
            // the mutex makes this the only one who sets it
            let _ = self.core.set(core);
            self.wake.wake();
            if self.is_dead() {
                // the broker died in between, when there were no sockets to close yet
                self.close_sockets();
                return Err(Error::DeviceFatal);
            }
        }
        self.core.get().ok_or(Error::DeviceFatal)
    }

    fn make_core(&self) -> Result<Core<UdpNetwork>> {
        let tap = Tap::new(fault_plan()?);
        let lease = self.broker.lease_slot().map_err(Error::Call)?;
        let guards = [&lease.receive, &lease.steer].map(|fd| ClosedInChild::new(fd.as_fd()));
        self.inherited_sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(guards);
        let slot = lease.slot;
        let names: Vec<String> = (0..=u8::MAX).map(|slot| lease.steer_name(slot)).collect();
        let name_of = Box::new(move |slot: u8| names[usize::from(slot)].clone());
        let steering = Steering::new(lease.steer, name_of);
        let network = UdpNetwork::new(ReceiveSocket::from_fd(lease.receive));
        let config = engine::Config {
            first_index: random() as u16,
            ..engine::Config::for_slot(slot)
        };
        Ok(Core::new(
            config,
            Arc::clone(&self.memory),
            SlotCredit::new(slot, lease.credit),
            network,
            tap,
            Some(steering),
            Clock::Monotonic,
        ))
    }

    pub(crate) fn add_context(&self, context: &Arc<Context>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|weak| weak.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes the thread look at the sockets before `deadline` at the latest.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && deadline.as_nanos() < self.wakes_at_ns.load(Ordering::Relaxed)
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

    /// Closes what was leased and ends every queue pair.
    fn close_sockets(&self) {
        let Some(core) = self.core() else { return };
        let now = core.now();
        let mut inner = core.shard.lock();
        // the numbers first: once closed they may be somebody else's
        self.inherited_sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        inner.network.close();
        let attributes = Attributes {
            state: State::Error,
            ..Attributes::default()
        };
        for (index, front) in inner.fronts.clone() {
            // a queue pair in RESET has nothing to flush and stays there
            let _ =
                inner
                    .engine
                    .modify_qp(now, index, &attributes, AttributeMask::STATE, &core.memory);
            front.set_state(State::Error);
        }
        inner.deliver_events();
    }

    /// The broker died: sockets are closed at once, for a new one must find the port empty, and
    /// whatever waits learns of it.
    pub(crate) fn lose_broker(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        report("the broker ended, and with it the devices of this process: start it again");
        self.close_sockets();
        for context in self.contexts() {
            context.report_fatal();
        }
    }
}

/// The plan of `SOFTRDMA_FAULTS`, if it is set.
fn fault_plan() -> Result<Option<FaultPlan>> {
    let Some(text) = std::env::var_os(FAULTS_VARIABLE) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    if text.trim().is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(plan) => {
            tracing::warn!(%text, "packets of this process meet faults");
            Ok(Some(plan))
        }
        Err(error) => Err(Error::Faults(error)),
    }
}

/// Says something that the person in front of the program should read: to the log, and by the way
/// that [`report_by`] set.
fn report(text: &str) {
    tracing::error!("{text}");
    if let Some(say) = REPORTER.get() {
        say(text);
    }
}

/// Sets how a person is told what no return value can tell, once; the C libraries write to standard
/// error.
pub fn report_by(say: fn(&str)) {
    // the first one stays
    let _ = REPORTER.set(say);
}

/// What must differ between processes and connections: first PSNs and QPNs.
pub(crate) fn random() -> u32 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(4) => u32::from_ne_bytes(bytes),
        // before the kernel's generator is ready; the time differs as well
        _ => io::clock::now_ns() as u32,
    }
}

/// The library that this code is in: the broker's program lies beside its folder.
fn own_library() -> Option<PathBuf> {
    // the mapping of this very function names the file
    let here = own_library as fn() -> Option<PathBuf> as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = &rest[rest.find('/')?..];
        (start..end).contains(&here).then(|| PathBuf::from(path))
    })
}

fn system(attempt: &'static str) -> impl Fn(io::Errno) -> Error {
    move |errno| Error::System { attempt, errno }
}
