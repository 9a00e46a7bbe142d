//! The memory table of a process: from a key to a region in a few nanoseconds, without a lock.
//!
//! A key is the index of an entry ‖ a byte that differs from registration to registration; L_Key
//! and R_Key are the same number. Entries live in chunks that are only ever added, so a reader
//! needs nothing but atomic loads. Registering and deregistering take one mutex.
//!
//! A deregistered index waits behind [`QUARANTINE`] others before it is used again: a peer that
//! still has the old key must not hit somebody else's memory.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use engine::{Access, AccessError, AtomicOperation, Grant, Memory, MemoryRange, PdId, Scope, Span};
use wire::MemoryKey;

use super::copy::{Fault, ProgramMemory};
use super::mapping;
use super::program_bytes::{ProgramBytes, ProgramBytesMut};
use super::region::{Entry, Region, RegisterError};

/// Regions that can exist at a time: indices 1 to 0x7ffff, `max_mr` of the device.
pub const REGIONS_MAX: u32 = 0x7_ffff;

/// Entries of a chunk: 64 KiB.
const CHUNK: usize = 1024;
const CHUNKS: usize = (REGIONS_MAX as usize + 1) / CHUNK;

/// Indices that must be free before the one that waits longest is used again, as long as there are
/// fresh ones.
const QUARANTINE: usize = 1024;

type Chunk = Box<[Entry; CHUNK]>;

/// All regions of a process. Shared by its shards.
#[derive(Debug)]
pub struct MemoryTable {
    chunks: Box<[OnceLock<Chunk>; CHUNKS]>,
    writer: Mutex<Writer>,
}

/// A region that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// L_Key and R_Key.
    pub key: MemoryKey,
}

/// A region as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// L_Key and R_Key.
    pub key: MemoryKey,
    /// Its protection domain.
    pub pd: PdId,
    /// Bytes.
    pub length: u64,
}

/// What only the holder of the lock changes.
#[derive(Debug)]
struct Writer {
    /// The smallest index that was never used.
    fresh: u32,
    /// Free indices with the last byte of their old key, oldest first.
    free: VecDeque<(u32, u8)>,
    registered: u32,
    random: u64,
}

impl Default for MemoryTable {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTable {
    /// A table without regions.
    pub fn new() -> Self {
        Self {
            chunks: Box::new([const { OnceLock::new() }; CHUNKS]),
            writer: Mutex::new(Writer {
                fresh: 1,
                free: VecDeque::new(),
                registered: 0,
                random: RandomState::new().build_hasher().finish(),
            }),
        }
    }

    /// Registers `length` bytes at `address`, which work requests and peers name from `iova` on.
    /// Looks at once whether all of it is mapped with the rights needed, without touching it:
    /// writable if `access` has LOCAL_WRITE, readable otherwise. Nothing is pinned and no limit on
    /// locked memory applies. A length of 0 is a region that grants only empty ranges.
    ///
    /// # Errors
    /// See [`RegisterError`]; nothing was registered then.
    ///
    /// # Safety
    /// Until the region is deregistered and each shard was passed through once after that, the
    /// device reads, and with LOCAL_WRITE writes, these bytes at any time as if another thread did.
    /// Unmapping or protecting them meanwhile is allowed; mapping something else there that is not
    /// meant to be written is not.
    pub unsafe fn register(
        &self,
        pd: PdId,
        address: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let mut region = Region {
            key: MemoryKey(0),
            pd,
            address,
            length,
            iova,
            access,
        };
        region.validate()?;
        // Installs the handler, so that the first access of a shard does not have to.
        let memory = ProgramMemory::access();
        if !mapping::is_mapped(memory, address, length, region.is_written()) {
            return Err(RegisterError::NotMapped);
        }
        let mut writer = self.writer();
        region.key = writer.take_key()?;
        let index = region.key.0 >> 8;
        let chunk = self.chunks[index as usize / CHUNK].get_or_init(new_chunk);
        chunk[index as usize % CHUNK].set(&region);
        Ok(Registration { key: region.key })
    }

    /// Makes the key and all grants of it invalid. Accesses that were checked before may still be
    /// going on: the caller then passes once through the lock of each shard, and after that the
    /// device does not touch the memory any more.
    ///
    /// # Errors
    /// [`AccessError::UnknownKey`] if no region has this key.
    pub fn deregister(&self, key: MemoryKey) -> Result<(), AccessError> {
        let mut writer = self.writer();
        let entry = self.entry(key.0 >> 8).ok_or(AccessError::UnknownKey)?;
        entry.get(key).ok_or(AccessError::UnknownKey)?;
        entry.invalidate();
        writer.give_back(key);
        Ok(())
    }

    /// How many regions are registered.
    pub fn registered(&self) -> u32 {
        self.writer().registered
    }

    /// The region whose key has this index, if there is one.
    pub fn listed(&self, index: u32) -> Option<Listed> {
        let region = self.entry(index)?.current()?;
        Some(Listed {
            key: region.key,
            pd: region.pd,
            length: region.length,
        })
    }

    /// Above the index of every region that was ever registered.
    pub fn indices_end(&self) -> u32 {
        self.writer().fresh
    }

    /// Copies the bytes of `span` to `into`, which has its length, after comparing the generation.
    ///
    /// # Errors
    /// `UnknownKey` if the region was deregistered, `Fault` if its memory is gone.
    pub fn gather(&self, span: &Span, into: &mut [u8]) -> Result<(), AccessError> {
        self.gather_by(ProgramMemory::access(), span, into)
    }

    /// [`gather`](Self::gather) by a way that was asked for once for many spans.
    #[inline]
    pub(crate) fn gather_by(
        &self,
        memory: ProgramMemory,
        span: &Span,
        into: &mut [u8],
    ) -> Result<(), AccessError> {
        if into.len() != span.length() as usize {
            return Err(AccessError::OutOfBounds);
        }
        self.compare(span.entry(), span.generation())?;
        memory.read(span.address(), into).map_err(fault)
    }

    /// The same behind what is in `into`.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); nothing was appended.
    pub(crate) fn append(&self, span: &Span, into: &mut Vec<u8>) -> Result<(), AccessError> {
        let address = self.locate(span)?;
        self.append_program(address, span.length() as usize, into)
    }

    /// Where the bytes of `span` are in this process, after comparing the generation: for a kernel
    /// that copies them within the lock section in which the span was made.
    ///
    /// # Errors
    /// `UnknownKey` if the region was deregistered.
    pub(crate) fn locate(&self, span: &Span) -> Result<u64, AccessError> {
        self.compare(span.entry(), span.generation())?;
        Ok(span.address())
    }

    /// Copies memory of the program behind what is in `into`: such as [`locate`](Self::locate) has
    /// found.
    ///
    /// # Errors
    /// `Fault` if it is not mapped or not readable; nothing was appended.
    pub(crate) fn append_program(
        &self,
        address: u64,
        length: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), AccessError> {
        let memory = ProgramMemory::access();
        memory.append(address, length, into).map_err(fault)
    }

    /// Copies memory of the program that needs no key: inline data at the time of posting.
    ///
    /// # Errors
    /// `Fault` if it is not mapped or not readable.
    pub fn copy_in(&self, address: u64, into: &mut [u8]) -> Result<(), AccessError> {
        ProgramMemory::access().read(address, into).map_err(fault)
    }

    /// Copies memory of the program to the front of a granted range.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); `OutOfBounds` if the range is shorter.
    pub fn fill(&self, grant: &Grant, from: ProgramBytes<'_>) -> Result<(), AccessError> {
        if from.length() as u64 > grant.length() {
            return Err(AccessError::OutOfBounds);
        }
        self.compare(grant.entry(), grant.generation())?;
        // SAFETY: the range is inside a registered region, whose owner gave it to be written.
        unsafe { ProgramMemory::access().copy(grant.address(), from.address(), from.length()) }
            .map_err(fault)
    }

    /// Copies the front of a granted range to memory of the program.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn drain(&self, grant: &Grant, to: ProgramBytesMut<'_>) -> Result<(), AccessError> {
        if to.length() as u64 > grant.length() {
            return Err(AccessError::OutOfBounds);
        }
        self.compare(grant.entry(), grant.generation())?;
        // SAFETY: who made `to` gave it to be written.
        unsafe { ProgramMemory::access().copy(to.address(), grant.address(), to.length()) }
            .map_err(fault)
    }

    fn writer(&self) -> std::sync::MutexGuard<'_, Writer> {
        // no code that can panic runs between two consistent states of the writer
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&Entry> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// Whether a grant or span still stands.
    #[inline]
    fn compare(&self, entry: u32, generation: u32) -> Result<(), AccessError> {
        match self.entry(entry) {
            Some(entry) if entry.is_generation(generation) => Ok(()),
            _ => Err(AccessError::UnknownKey),
        }
    }
}

impl Memory for MemoryTable {
    #[inline]
    fn check(
        &self,
        key: MemoryKey,
        scope: Scope,
        range: MemoryRange,
        need: Access,
    ) -> Result<Grant, AccessError> {
        let entry = self.entry(key.0 >> 8).ok_or(AccessError::UnknownKey)?;
        let (region, generation) = entry.get(key).ok_or(AccessError::UnknownKey)?;
        region.grant(generation, scope, range, need)
    }

    #[inline]
    fn place(
        &self,
        grant: &Grant,
        offset: u32,
        bytes: &[u8],
        is_last: bool,
    ) -> Result<(), AccessError> {
        let offset = u64::from(offset);
        if offset + bytes.len() as u64 > grant.length() {
            return Err(AccessError::OutOfBounds);
        }
        self.compare(grant.entry(), grant.generation())?;
        let memory = ProgramMemory::access();
        let to = grant.address() + offset;
        // Messages become visible in their order, this one not before the one before it.
        fence(Ordering::Release);
        // SAFETY: the range is inside a region that is registered at this moment; who registered
        // it promised that the device may write there.
        let result = unsafe {
            if is_last {
                memory.write_last(to, bytes)
            } else {
                memory.write(to, bytes)
            }
        };
        result.map_err(fault)
    }

    fn atomic(&self, grant: &Grant, operation: AtomicOperation) -> Result<u64, AccessError> {
        if grant.length() < 8 {
            return Err(AccessError::OutOfBounds);
        }
        // The engine checked the address that the peer used; with an `iova` of another alignment
        // the real one can still be wrong.
        if !grant.address().is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        self.compare(grant.entry(), grant.generation())?;
        let memory = ProgramMemory::access();
        // SAFETY: as in `place`.
        let result = unsafe {
            match operation {
                AtomicOperation::CompareSwap { compare, swap } => {
                    memory.compare_swap(grant.address(), compare, swap)
                }
                AtomicOperation::FetchAdd { add } => memory.fetch_add(grant.address(), add),
            }
        };
        result.map_err(fault)
    }

    fn invalidate(&self, key: MemoryKey, scope: Scope) -> Result<(), AccessError> {
        let entry = self.entry(key.0 >> 8).ok_or(AccessError::UnknownKey)?;
        let (region, _) = entry.get(key).ok_or(AccessError::UnknownKey)?;
        if region.pd != scope.pd {
            return Err(AccessError::WrongScope);
        }
        // spec: IBA 10.6.7.2: only fast-registered regions and windows of type 2
        Err(AccessError::NotPermitted)
    }
}

impl Writer {
    /// A key that nobody has: an index, and a byte that its last key did not have.
    fn take_key(&mut self) -> Result<MemoryKey, RegisterError> {
        let fresh_left = self.fresh <= REGIONS_MAX;
        let (index, old_byte) = if self.free.len() > QUARANTINE || !fresh_left {
            self.free.pop_front().ok_or(RegisterError::TableFull)?
        } else {
            self.fresh += 1;
            (self.fresh - 1, 0)
        };
        self.registered += 1;
        let byte = old_byte.wrapping_add(1 + (self.random() % 255) as u8);
        Ok(MemoryKey(index << 8 | u32::from(byte)))
    }

    fn give_back(&mut self, key: MemoryKey) {
        self.registered -= 1;
        self.free.push_back((key.0 >> 8, key.0 as u8));
    }

    /// SplitMix64: keys need to differ, not to be secret (8 bits could not be).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn new_chunk() -> Chunk {
    let entries: Box<[Entry]> = (0..CHUNK).map(|_| Entry::new()).collect();
    // the iterator above has CHUNK elements
    entries
        .try_into()
        .unwrap_or_else(|_| unreachable!("CHUNK entries"))
}

fn fault(_: Fault) -> AccessError {
    AccessError::Fault
}

#[cfg(test)]
mod tests;
