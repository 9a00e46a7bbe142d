//! A link opened by this process: what C calls a context.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use broker::client::{Client, ConnectOptions};
use broker::link::{GidEntry, LinkInfo, LinkKind};
use broker::protocol::{Changes, Event};
use engine::{Path, PdId};
use tap::DropReason;
use wire::PKey;

use crate::address::{AddressVector, LinkAddresses, resolve, resolve_plain};
use crate::attributes::{DeviceAttributes, PortAttributes};
use crate::choice;
use crate::completion_channel::CompletionChannel;
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::event_queue::{EventKind, EventQueue};
use crate::process::{Process, report};
use crate::protection_domain::ProtectionDomain;

/// The links that programs of this network namespace can open, oldest first, or those that
/// [`choice::VARIABLE`] names. None without a running broker: whoever lists devices does not start
/// one.
///
/// # Errors
/// A broker is there and cannot be talked to.
pub fn devices() -> Result<Vec<LinkInfo>> {
    let options = ConnectOptions {
        start: false,
        ..ConnectOptions::default()
    };
    match Client::connect(&options) {
        Ok(client) => client.links().map(choice::listed).map_err(Error::Call),
        Err(broker::client::ConnectError::NotRunning) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// An open link. Clones are the same device.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<Context>);

/// What an open link is to the rest of the crate.
pub struct Context {
    pub(crate) process: Arc<Process>,
    /// Its number in the registry.
    pub(crate) number: u32,
    pub(crate) kind: LinkKind,
    link: RwLock<LinkInfo>,
    pub(crate) events: Arc<EventQueue>,
    /// The link was deleted, perhaps with its interface. One of the same name is another.
    is_gone: AtomicBool,
    /// Serialises `open`'s and `drop`'s talk with the broker about this link.
    in_use: Mutex<bool>,
}

impl Device {
    /// Opens the link called `name`; starts the broker if none runs.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Broker`].
    pub fn open(name: &str) -> Result<Self> {
        let process = Process::current()?;
        let link = process
            .broker
            .link(name)
            .map_err(|error| match error.errno() {
                libc::ENODEV => Error::NoDevice(name.to_owned()),
                _ => Error::Call(error),
            })?;
        process.broker.begin_use(name).map_err(Error::Call)?;
        let events = Arc::new(EventQueue::new().map_err(|errno| Error::System {
            attempt: "make an eventfd for asynchronous events",
            errno,
        })?);
        let context = Arc::new(Context {
            process: Arc::clone(&process),
            number: process.registry.contexts.add(link.name.as_str().into()),
            kind: link.kind,
            link: RwLock::new(link),
            events,
            is_gone: AtomicBool::new(false),
            in_use: Mutex::new(true),
        });
        process.add_context(&context);
        Ok(Self(context))
    }

    /// The link as the broker told last.
    pub fn link(&self) -> LinkInfo {
        self.0.link()
    }

    /// Its protocol.
    pub fn kind(&self) -> LinkKind {
        self.0.kind
    }

    /// Identity and limits.
    pub fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes::of(&self.0.link())
    }

    /// The port as it is now.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::DeviceFatal`], [`Error::LinkGone`].
    pub fn port(&self) -> Result<PortAttributes> {
        let mut port = PortAttributes::of(&self.0.refresh()?);
        let lanes = self.0.process.lanes.all();
        let (mut pkeys, mut qkeys) = (0, 0);
        for lane in lanes {
            let inner = lane.core.shard.lock();
            pkeys += inner.tap().drops().of(DropReason::BadPKey);
            qkeys += inner.tap().drops().of(DropReason::BadQKey);
        }
        let counter = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        if self.kind() == LinkKind::Rxe {
            port.bad_pkey_counter = counter(pkeys);
            port.qkey_violation_counter = counter(qkeys);
        }
        Ok(port)
    }

    /// The entry of the GID table at `index`; `None` for an empty one.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table, and as [`Self::port`].
    pub fn gid(&self, index: u32) -> Result<Option<GidEntry>> {
        let index = u16::try_from(index)
            .ok()
            .filter(|index| usize::from(*index) < self.kind().gid_table_length())
            .ok_or(Error::Invalid("the GID index is beyond the table"))?;
        Ok(self.0.refresh()?.gid(index).cloned())
    }

    /// All valid entries of the GID table.
    ///
    /// # Errors
    /// As [`Self::port`].
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        Ok(self.0.refresh()?.gid_table().to_vec())
    }

    /// The entry of the P_Key table at `index`: only 0 is one, and iWARP has none.
    pub fn pkey(&self, index: u32) -> Option<PKey> {
        (index == 0 && self.kind() == LinkKind::Rxe).then_some(PKey::DEFAULT)
    }

    /// Processors that completion queues can name as their vector.
    pub fn completion_vectors(&self) -> u32 {
        u32::try_from(io::thread::cores()).unwrap_or(1)
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// As [`Self::port`].
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        self.0.check()?;
        Ok(ProtectionDomain::new(Arc::clone(&self.0), self.0.next_pd()))
    }

    /// Makes a channel for completion events.
    ///
    /// # Errors
    /// [`Error::System`] without a free descriptor.
    pub fn completion_channel(&self) -> Result<Arc<CompletionChannel>> {
        self.0.check()?;
        let channel = CompletionChannel::new().map_err(|errno| Error::System {
            attempt: "make an eventfd for a completion channel",
            errno,
        })?;
        Ok(Arc::new(channel))
    }

    /// Makes a completion queue for at least `size` completions.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0 or above the device's limit.
    pub fn completion_queue(&self, size: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.0, size, None, 0)
    }

    /// The same with a channel for its events and the number of a completion vector.
    ///
    /// # Errors
    /// As [`Self::completion_queue`], and for a vector that is not there.
    pub fn completion_queue_on(
        &self,
        size: u32,
        channel: Option<&Arc<CompletionChannel>>,
        vector: u32,
    ) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.0, size, channel, vector)
    }

    /// Whether it can be used: not after the broker died or the link was deleted, nor in a child of
    /// the process.
    pub fn is_usable(&self) -> bool {
        self.0.check().is_ok()
    }

    /// Asynchronous events of this device.
    pub fn events(&self) -> &Arc<EventQueue> {
        &self.0.events
    }

    /// The largest payload of a packet on this link now.
    pub fn active_mtu(&self) -> wire::Mtu {
        self.0.link().active_mtu
    }
}

impl Context {
    pub(crate) fn link(&self) -> LinkInfo {
        self.known().clone()
    }

    fn known(&self) -> RwLockReadGuard<'_, LinkInfo> {
        self.link.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it can be used.
    pub(crate) fn check(&self) -> Result<()> {
        self.process.check()?;
        if self.is_gone() {
            return Err(Error::LinkGone);
        }
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// The link as it is now; the last known state if nobody has said yet that it was deleted.
    fn refresh(&self) -> Result<LinkInfo> {
        self.check()?;
        let name = self.link().name;
        if let Ok(now) = self.process.broker.link(&name) {
            *self.link.write().unwrap_or_else(PoisonError::into_inner) = now;
        }
        Ok(self.link())
    }

    fn next_pd(&self) -> PdId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PdId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Where packets go that are addressed with `vector`. The broker is asked only where what it
    /// told last does not say it: a program may connect many queue pairs at once.
    pub(crate) fn path(&self, vector: &AddressVector) -> Result<Path> {
        self.check()?;
        if let Some(path) = resolve_plain(vector, &self.known()) {
            return Ok(path);
        }
        let own = addresses(self.refresh()?);
        let others: Vec<_> = self
            .process
            .broker
            .links()
            .map_err(Error::Call)?
            .into_iter()
            .filter(|link| link.kind == LinkKind::Rxe)
            .map(addresses)
            .collect();
        resolve(vector, &own, &others)
    }

    /// The link was deleted: its queue pairs are in the error state from here on, and nothing new
    /// is made on it.
    fn lose_link(&self, name: &str) {
        self.is_gone.store(true, Ordering::Release);
        report(&format!(
            "the RDMA device {name} is gone, as its network interface or it was deleted"
        ));
        for lane in self.process.lanes.all() {
            lane.core
                .lose_queue_pairs(|front| front.reports_to(&self.events));
            lane.attendant.wake.wake();
        }
        self.report_fatal();
    }

    /// The device is lost.
    pub(crate) fn report_fatal(&self) {
        self.events.push(EventKind::DeviceFatal, 0);
    }

    /// Takes over news of this link.
    fn hear(&self, link: &LinkInfo, changes: Changes) {
        let mut known = self.link.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, link.clone());
        drop(known);
        let port = u64::from(1_u8);
        if changes.port_state {
            let is_active = link.port_state() == broker::link::PortState::Active;
            let kind = if is_active {
                EventKind::PortActive
            } else {
                EventKind::PortError
            };
            self.events.push(kind, port);
        }
        match self.kind {
            LinkKind::Rxe if changes.gids => self.events.push(EventKind::GidChange, port),
            LinkKind::Siw if before.mac != link.mac => {
                self.events.push(EventKind::LidChange, port);
            }
            LinkKind::Rxe | LinkKind::Siw => {}
        }
    }
}

impl Process {
    /// News from the broker.
    pub(crate) fn hear(self: &Arc<Self>, event: &Event) {
        for lane in self.lanes.all() {
            lane.core.shard.lock().network.forget_routes();
        }
        self.connections.hear(event, &self.reception);
        match event {
            Event::Added(link) => self.connections.listen_at(self, link),
            Event::Removed { name } => self.lose_link(name),
            Event::Changed { .. } => {}
        }
        for context in self.contexts() {
            if context.is_gone() || context.link().name != event.link_name() {
                continue;
            }
            match event {
                Event::Changed { link, changes } => context.hear(link, *changes),
                Event::Removed { name } => context.lose_link(name),
                Event::Added(_) => {}
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *in_use) && self.process.check().is_ok() {
            if !self.is_gone() {
                // a broker that cannot be told learns it from our end
                let _ = self.process.broker.end_use(&self.link().name);
            }
            self.process.registry.contexts.remove(self.number);
        }
    }
}

/// Which of the link's addresses sockets can use: its default GID is often none of them.
fn addresses(link: LinkInfo) -> LinkAddresses {
    let default = link.gid(0).map(|entry| entry.gid.ip());
    let default_is_real = default.is_some_and(|default| {
        io::netlink::interfaces().is_ok_and(|interfaces| {
            interfaces.iter().any(|interface| {
                interface.index == link.netdev_index
                    && interface
                        .addresses
                        .iter()
                        .any(|own| own.address == default && own.is_usable())
            })
        })
    });
    LinkAddresses {
        link,
        default_is_real,
    }
}
