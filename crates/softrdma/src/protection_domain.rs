//! Protection domains and the memory registered in them. spec: IBA 10.2.3, 10.6
//!
//! Registering foreign memory is the one unsafe promise of this API; posting is safe.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use engine::qp::RemoteMemory;
use engine::{Access, Memory, MemoryRange, PdId, Scope, Sge};
use serde::{Deserialize, Serialize};
use wire::{MemoryKey, Qpn};

use crate::address::AddressVector;
use crate::address_handle::AddressHandle;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::memory::{MemoryTable, ProgramBytes, ProgramBytesMut};
use crate::queue_pair::{QueuePair, QueuePairOptions};
use crate::registry::Domain;
use crate::srq::SharedReceiveQueue;

/// What keys and queue pairs belong to: they work together only within one.
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) context: Arc<Context>,
    pub(crate) id: PdId,
}

impl ProtectionDomain {
    pub(crate) fn new(context: Arc<Context>, id: PdId) -> Self {
        let inner = Arc::new(PdInner { context, id });
        let domain = Domain {
            context: inner.context.number,
            inner: Arc::downgrade(&inner),
        };
        inner.context.process.registry.domains.put(id.0, domain);
        Self(inner)
    }

    /// Whether regions or queue pairs still belong to it: then C's `dealloc` answers EBUSY.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Registers bytes that the region owns until it gives them back.
    ///
    /// # Errors
    /// As [`Self::register_raw`].
    pub fn register(&self, bytes: Vec<u8>, access: Access) -> Result<Region> {
        let bytes = std::mem::ManuallyDrop::new(bytes);
        let (address, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
        // SAFETY: the region owns the bytes, gives no reference to them and deregisters them
        // before it gives them back or frees them.
        let raw = unsafe { self.register_raw(address, length, address, access) };
        match raw {
            Ok(raw) => Ok(Region {
                raw: Some(raw),
                bytes,
            }),
            Err(error) => {
                drop(std::mem::ManuallyDrop::into_inner(bytes));
                Err(error)
            }
        }
    }

    /// Registers `length` bytes at `address`, which work requests and peers name from `iova` on.
    ///
    /// # Errors
    /// [`Error::Register`] tells what is wrong with rights or range.
    ///
    /// # Safety
    /// Until the region is dropped, the device and peers that have its key read these bytes and,
    /// with write rights, change them at any time, as another thread would. Unmapping or protecting
    /// them meanwhile is allowed: work on them then fails.
    pub unsafe fn register_raw(
        &self,
        address: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        let process = &self.0.context.process;
        self.0.context.check()?;
        // SAFETY: the caller's promise.
        let registered = unsafe {
            process
                .memory
                .register(self.0.id, address, length, iova, access)
        };
        let registration = registered.map_err(Error::Register)?;
        Ok(MemoryRegion {
            pd: Arc::clone(&self.0),
            key: registration.key,
            iova,
            length,
        })
    }

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's limits, [`Error::Broker`] when no slot can
    /// be leased, [`Error::NoTransport`] for anything but connections on iWARP.
    pub fn queue_pair(&self, options: QueuePairOptions<'_>) -> Result<QueuePair> {
        QueuePair::new(self, options)
    }

    /// Makes a shared receive queue for at least `wr_max` receives of up to `sge_max` elements.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes beyond the device's limits.
    pub fn shared_receive_queue(&self, wr_max: u32, sge_max: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self, wr_max, sge_max)
    }

    /// Makes an address for datagrams.
    ///
    /// # Errors
    /// [`Error::EmptyGid`], [`Error::SyntheticGid`], [`Error::Invalid`] for a port that is not
    /// there.
    pub fn address_handle(&self, address: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(self, address)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let process = &self.context.process;
        // a child must not touch its parent's lock
        if io::fork::generation() == process.generation() {
            process.registry.domains.remove(self.id.0);
        }
    }
}

/// Registered memory of somebody else; dropping it deregisters.
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    key: MemoryKey,
    iova: u64,
    length: u64,
}

impl MemoryRegion {
    /// L_Key and R_Key, which are the same number.
    pub fn key(&self) -> MemoryKey {
        self.key
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its first address, as work requests and peers name it.
    pub fn iova(&self) -> u64 {
        self.iova
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let process = &self.pd.context.process;
        if matches!(process.check(), Err(Error::Forked)) {
            // the parent's region: its table's lock may be held for ever in this child
            return;
        }
        // it was registered, so it is there
        let _ = process.deregister(self.key);
    }
}

/// Registered memory that belongs to the region. There is no `&[u8]` to it: peers may write it at
/// any time.
pub struct Region {
    /// `None` only while it is being dropped.
    raw: Option<MemoryRegion>,
    bytes: std::mem::ManuallyDrop<Vec<u8>>,
}

impl Region {
    fn raw(&self) -> &MemoryRegion {
        // ok: taken in `drop` and `deregister` alone, which nobody can see past
        self.raw.as_ref().expect("the region is registered")
    }

    /// What a peer needs to reach it, to be sent over any side channel.
    pub fn remote(&self) -> RemoteRegion {
        let raw = self.raw();
        RemoteRegion {
            address: raw.iova,
            length: raw.length,
            key: raw.key.0,
        }
    }

    /// Part of it, for a work request.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.bytes.len(),
        };
        let length = end
            .checked_sub(start)
            .and_then(|length| u32::try_from(length).ok());
        match length {
            Some(length) if end <= self.bytes.len() => {
                let raw = self.raw();
                Ok(Sge {
                    address: raw.iova + start as u64,
                    length,
                    key: raw.key,
                })
            }
            _ => Err(Error::Invalid("the slice is not inside the region")),
        }
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they do not fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let grant = self.check(offset, bytes.len())?;
        self.memory()
            .place(&grant, 0, bytes, true)
            .map_err(|_| Error::BadAddress)
    }

    /// Copies from the region at `offset` into `bytes`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not so much.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let grant = self.check(offset, bytes.len())?;
        let length = u32::try_from(bytes.len()).map_err(|_| Error::Invalid("over 4 GiB"))?;
        let span = grant
            .span(0, length)
            .ok_or(Error::Invalid("outside the region"))?;
        self.memory()
            .gather(&span, bytes)
            .map_err(|_| Error::BadAddress)
    }

    /// Copies bytes that a program gives for this call into the region at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they do not fit, [`Error::BadAddress`] if they cannot be read.
    pub fn fill(&self, offset: usize, from: ProgramBytes<'_>) -> Result<()> {
        let grant = self.check(offset, from.length())?;
        self.memory()
            .fill(&grant, from)
            .map_err(|_| Error::BadAddress)
    }

    /// Copies from the region at `offset` to memory that a program gives for this call.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not so much, [`Error::BadAddress`] if it cannot be written.
    pub fn drain(&self, offset: usize, to: ProgramBytesMut<'_>) -> Result<()> {
        let grant = self.check(offset, to.length())?;
        self.memory()
            .drain(&grant, to)
            .map_err(|_| Error::BadAddress)
    }

    /// Ends the registration and gives the bytes back.
    pub fn deregister(mut self) -> Vec<u8> {
        drop(self.raw.take());
        let bytes = std::mem::take(&mut *self.bytes);
        std::mem::forget(self);
        bytes
    }

    fn memory(&self) -> &MemoryTable {
        &self.raw().pd.context.process.memory
    }

    fn check(&self, offset: usize, length: usize) -> Result<engine::Grant> {
        let raw = self.raw();
        let scope = Scope {
            pd: raw.pd.id,
            qpn: Qpn::default(),
        };
        let range = MemoryRange {
            address: raw.iova.wrapping_add(offset as u64),
            length: length as u64,
        };
        self.memory()
            .check(raw.key, scope, range, Access::empty())
            .map_err(|_| Error::Invalid("the range is not inside the region"))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(self.raw.take());
        drop(std::mem::take(&mut *self.bytes));
    }
}

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// First byte, in the peer's address space.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// R_Key.
    pub key: u32,
}

impl RemoteRegion {
    /// The memory from `offset` on.
    pub fn at(&self, offset: u64) -> RemoteMemory {
        RemoteMemory {
            address: self.address.wrapping_add(offset),
            key: MemoryKey(self.key),
        }
    }
}
