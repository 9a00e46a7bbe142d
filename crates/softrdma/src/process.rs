//! The one device of a process, whichever links it opens. Globals live here and nowhere else.
//!
//! A forked child does not have its parent's object: handles that it inherits answer
//! [`Error::Forked`], and it makes one of its own when it opens a device.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};

use broker::client::{Client, ConnectOptions};
use broker::link::{LinkInfo, LinkKind};
use io::fork::{ClosedInChild, PerProcess};
use tap::{FaultPlan, Tap};
use wire::MemoryKey;

use crate::cm::Connections;
use crate::completion_queue::CompletionQueue;
use crate::courtesy::Courtesy;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::iwarp::{Reception, Reports};
use crate::lane::{Attendant, Lane, Place};
use crate::lanes::Lanes;
use crate::memory::MemoryTable;
use crate::progress;
use crate::registry::Registry;

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
    /// The data path, from the first queue pair on.
    pub(crate) lanes: Lanes,
    /// Who is connected, or asks to be.
    pub(crate) connections: Connections,
    /// Who listens for connections of iWARP.
    pub(crate) reception: Arc<Reception>,
    /// What happens to those of connection management.
    pub(crate) stream_reports: Arc<Reports>,
    /// What can be listed of the rest.
    pub(crate) registry: Registry,
    /// Of the thread that listens to the broker, and serves the first lane when there is one.
    pub(crate) attendant: Arc<Attendant>,
    /// Of its pollers.
    pub(crate) courtesy: Courtesy,
    contexts: Mutex<Vec<Weak<Context>>>,
    is_dead: AtomicBool,
    /// The broker's descriptors must not hold its port in a child that outlives this process.
    _inherited: ClosedInChild,
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
        let attendant = Arc::new(Attendant::new().map_err(system("make an eventfd"))?);
        let process = Arc::new(Self {
            generation: io::fork::generation(),
            _inherited: ClosedInChild::new(broker.as_fd()),
            broker,
            memory: Arc::new(MemoryTable::default()),
            // here, and not in a thread that may be bound to one processor
            lanes: Lanes::new(io::thread::cores()),
            connections: Connections::default(),
            reception: Arc::default(),
            stream_reports: Arc::new(Reports::for_thread(&attendant)),
            registry: Registry::default(),
            attendant: Arc::clone(&attendant),
            courtesy: Courtesy::default(),
            contexts: Mutex::default(),
            is_dead: AtomicBool::new(false),
        });
        progress::start(&process, 0, attendant).map_err(system("start the background thread"))?;
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

    /// A place for a queue pair that completes to these queues.
    ///
    /// # Errors
    /// [`Error::Call`] when no slot can be leased, and there is none yet.
    pub(crate) fn place(self: &Arc<Self>, queues: [&CompletionQueue; 2]) -> Result<Place> {
        let place = self.lanes.place(queues, |index| self.make_lane(index))?;
        if self.is_dead() {
            // the broker died in between, when there was perhaps no lane to close yet
            place.close();
            return Err(Error::DeviceFatal);
        }
        Ok(place)
    }

    /// The lane of connection management, leased if there is none.
    ///
    /// # Errors
    /// [`Error::Call`] when no slot can be leased.
    pub(crate) fn first_lane(self: &Arc<Self>) -> Result<&Arc<Lane>> {
        let lane = self.lanes.first(|index| self.make_lane(index))?;
        if self.is_dead() {
            lane.close();
            return Err(Error::DeviceFatal);
        }
        Ok(lane)
    }

    fn make_lane(self: &Arc<Self>, index: usize) -> Result<Lane> {
        let tap = Tap::new(fault_plan()?);
        if index == 0 {
            wire::icrc::choose_faster(io::clock::now_ns);
            return Lane::lease(&self.broker, &self.memory, tap, Arc::clone(&self.attendant));
        }
        let attendant = Arc::new(Attendant::new().map_err(system("make an eventfd"))?);
        let lane = Lane::lease(&self.broker, &self.memory, tap, Arc::clone(&attendant))?;
        if let Err(errno) = progress::start(self, index, attendant) {
            let slot = lane.slot;
            drop(lane);
            self.broker.release_slot(slot).map_err(Error::Call)?;
            return Err(system("start a background thread")(errno));
        }
        Ok(lane)
    }

    /// Makes a key unusable. When this returns no packet can use the memory any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that is not registered.
    pub(crate) fn deregister(&self, key: MemoryKey) -> Result<()> {
        self.memory
            .deregister(key)
            .map_err(|_| Error::Invalid("no region has this key"))?;
        for lane in self.lanes.all() {
            lane.core.outlast_spans();
        }
        Ok(())
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

    /// The broker died: sockets are closed at once, for a new one must find the port empty, and
    /// whatever waits learns of it.
    pub(crate) fn lose_broker(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        report("the broker ended, and with it the devices of this process: start it again");
        for lane in self.lanes.all() {
            lane.close();
            lane.attendant.wake.wake();
        }
        self.reception.close();
        for context in self.contexts() {
            context.report_fatal();
        }
        self.connections.lose_device();
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

/// Tells, once, that faults do not meet what this link sends, if that is so.
pub(crate) fn look_for_vain_faults(link: &LinkInfo) {
    static TOLD: Once = Once::new();
    if link.kind != LinkKind::Siw || TOLD.is_completed() {
        return;
    }
    let plan = std::env::var_os(FAULTS_VARIABLE).unwrap_or_default();
    if let Some(text) = vain_faults(&plan.to_string_lossy(), link) {
        TOLD.call_once(|| report(&text));
    }
}

fn vain_faults(plan: &str, link: &LinkInfo) -> Option<String> {
    let is_vain = link.kind == LinkKind::Siw && !plan.trim().is_empty();
    is_vain.then(|| {
        format!(
            "{FAULTS_VARIABLE} is not for iWARP, whose packets the kernel's TCP sends: {} meets \
             no faults, devices of type rxe do. `tc qdisc add dev {} root netem loss 1%` has the \
             kernel lose packets",
            link.name, link.netdev
        )
    })
}

/// Says something that the person in front of the program should read: to the log, and by the way
/// that [`report_by`] set.
pub(crate) fn report(text: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::link_for_test as link;

    #[test]
    fn a_plan_that_iwarp_does_not_follow_is_told_with_its_link() {
        let siw = link("siw0", LinkKind::Siw, &["192.0.2.1"]);
        let text = vain_faults("loss=1%", &siw).expect("it is vain");
        assert!(text.contains("siw0") && text.contains("dev eth0"), "{text}");
        assert!(vain_faults(" ", &siw).is_none(), "there is no plan");
        let rxe = link("rxe0", LinkKind::Rxe, &["192.0.2.1"]);
        assert!(vain_faults("loss=1%", &rxe).is_none(), "it has faults");
    }
}
