//! One entry of the memory table: a region that one thread writes and any number read without a
//! lock.
//!
//! The idea is a sequence lock in safe Rust: the version is odd while the entry is invalid or being
//! written, each field is an atomic, and a reader believes what it read if the version was even and
//! the same before and after. The version is also the generation that grants carry: it never
//! repeats within 2^32 registrations and deregistrations of one entry.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use engine::{Access, AccessError, Grant, MemoryRange, PdId, Scope};
use wire::MemoryKey;

/// Why memory cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Unknown rights, or remote write or atomic rights without local ones. spec: IBA 10.6.3.1
    #[error("the access rights are unknown or need LOCAL_WRITE as well")]
    InvalidAccess,
    /// Rights that exist and are not supported: ZERO_BASED, ON_DEMAND, FLUSH_PERSISTENT.
    #[error("the access rights are not supported")]
    Unsupported,
    /// The range, or the one that peers address, goes over the end of the address space.
    #[error("the address range wraps")]
    RangeWraps,
    /// Part of the range is not mapped, or not with the rights that are needed.
    #[error("the range is not mapped with the rights that were asked for")]
    NotMapped,
    /// As many regions as there are keys for.
    #[error("no free memory key")]
    TableFull,
}

impl RegisterError {
    /// The errno value that C programs expect.
    pub const fn errno(self) -> i32 {
        match self {
            Self::InvalidAccess | Self::RangeWraps => libc::EINVAL,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::NotMapped => libc::EFAULT,
            Self::TableFull => libc::ENOMEM,
        }
    }
}

/// Bits 20 to 29: rights that a device may ignore, `IBV_ACCESS_OPTIONAL_RANGE`.
const OPTIONAL: u32 = 0x3ff0_0000;

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) key: MemoryKey,
    pub(super) pd: PdId,
    /// First byte, in this process.
    pub(super) address: u64,
    pub(super) length: u64,
    /// First byte, as work requests and peers address it.
    pub(super) iova: u64,
    pub(super) access: Access,
}

impl Region {
    /// Checks what can be checked without looking at the memory.
    pub(super) fn validate(&self) -> Result<(), RegisterError> {
        let known = Access::all().bits() & !OPTIONAL;
        if self.access.bits() & !(known | OPTIONAL) != 0 {
            return Err(RegisterError::InvalidAccess);
        }
        // spec: IBA 10.6.3.1: remote write and atomic rights imply local write
        if self
            .access
            .intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !self.access.contains(Access::LOCAL_WRITE)
        {
            return Err(RegisterError::InvalidAccess);
        }
        // Nothing tells whether memory is persistent, so that is not promised.
        if self
            .access
            .intersects(Access::ZERO_BASED | Access::ON_DEMAND | Access::FLUSH_PERSISTENT)
        {
            return Err(RegisterError::Unsupported);
        }
        let fits = |start: u64| start.checked_add(self.length).is_some();
        if fits(self.address) && fits(self.iova) {
            Ok(())
        } else {
            Err(RegisterError::RangeWraps)
        }
    }

    /// Whether the device will ever write to it.
    pub(super) const fn is_written(&self) -> bool {
        // remote rights imply this one
        self.access.contains(Access::LOCAL_WRITE)
    }
}

/// A place for a region. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Entry {
    version: AtomicU64,
    /// Protection domain ‖ key.
    owner: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    iova: AtomicU64,
    access: AtomicU64,
}

/// Versions of entries start here: odd, so invalid.
const FIRST_VERSION: u64 = 1;

/// Even versions.
#[inline]
const fn is_valid(version: u64) -> bool {
    version.is_multiple_of(2)
}

impl Entry {
    pub(super) fn new() -> Self {
        Self {
            version: AtomicU64::new(FIRST_VERSION),
            ..Self::default()
        }
    }

    /// Fills an invalid entry and makes it valid. One writer at a time.
    pub(super) fn set(&self, region: &Region) {
        let version = self.version.load(Ordering::Relaxed);
        debug_assert!(!is_valid(version), "only invalid entries are written");
        // A reader who sees a field of this writing also sees the odd version before it.
        fence(Ordering::Release);
        let owner = u64::from(region.pd.0) << 32 | u64::from(region.key.0);
        self.owner.store(owner, Ordering::Relaxed);
        self.address.store(region.address, Ordering::Relaxed);
        self.length.store(region.length, Ordering::Relaxed);
        self.iova.store(region.iova, Ordering::Relaxed);
        self.access
            .store(u64::from(region.access.bits()), Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Release);
    }

    /// Makes a valid entry invalid: every grant and span of it is worth nothing from here on, once
    /// those who compared the version before are done.
    pub(super) fn invalidate(&self) {
        let version = self.version.load(Ordering::Relaxed);
        debug_assert!(is_valid(version), "only valid entries are invalidated");
        self.version
            .store(version.wrapping_add(1), Ordering::SeqCst);
    }

    /// Whether the entry is still what it was when a grant was made.
    #[inline]
    pub(super) fn is_generation(&self, generation: u32) -> bool {
        self.version.load(Ordering::Acquire) as u32 == generation
    }

    /// The region that is here, if one is.
    pub(super) fn current(&self) -> Option<Region> {
        let key = MemoryKey(self.owner.load(Ordering::Relaxed) as u32);
        self.get(key).map(|(region, _)| region)
    }

    /// The region of `key`, or `None` if that is not what is here.
    #[inline]
    pub(super) fn get(&self, key: MemoryKey) -> Option<(Region, u32)> {
        let version = self.version.load(Ordering::Acquire);
        let owner = self.owner.load(Ordering::Relaxed);
        if !is_valid(version) || owner as u32 != key.0 {
            return None;
        }
        let region = Region {
            key,
            pd: PdId((owner >> 32) as u32),
            address: self.address.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            iova: self.iova.load(Ordering::Relaxed),
            access: Access::from_bits_retain(self.access.load(Ordering::Relaxed) as u32),
        };
        // A change in between has passed through an invalid state: then the key is unknown now.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some((region, version as u32))
    }
}

impl Region {
    /// The checks of one access, and the proof of them. spec: IBA 10.6.3.1, 9.7.4.1.5
    #[inline]
    pub(super) fn grant(
        &self,
        generation: u32,
        scope: Scope,
        range: MemoryRange,
        need: Access,
    ) -> Result<Grant, AccessError> {
        if self.pd != scope.pd {
            return Err(AccessError::WrongScope);
        }
        if !self.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        // Neither subtraction can wrap in the accepted case, and registration saw to it that
        // address + length does not.
        let offset = range.address.wrapping_sub(self.iova);
        if range.address < self.iova || offset > self.length || range.length > self.length - offset
        {
            return Err(AccessError::OutOfBounds);
        }
        Ok(Grant::from_check(
            self.key.0 >> 8,
            generation,
            self.address + offset,
            range.length,
        ))
    }
}
