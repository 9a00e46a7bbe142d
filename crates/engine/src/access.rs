//! Keys, rights and the values that prove that they were checked.
//!
//! Sections to read first: IBA 10.6 (memory management). The one idea: only
//! [`Memory::check`](crate::Memory::check) makes a [`Grant`], and only a grant lets anyone place
//! bytes or gather them.

use wire::{MemoryKey, Qpn};

bitflags::bitflags! {
    /// Rights of a region, a window or a queue pair; the values of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write on behalf of its own program.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// The region is of huge pages.
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible in any order: a permission that is never used here.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Number of a protection domain. spec: IBA 10.2.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// Bytes from `address` on, in the address space that the key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First byte.
    pub address: u64,
    /// How many bytes; `address + length` may overflow and is then out of bounds.
    pub length: u64,
}

/// On whose behalf memory is used: keys belong to a protection domain, type 2 windows also to one
/// queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair itself.
    pub qpn: Qpn,
}

/// Why memory cannot be used: one answer for every transport, mapped to each protocol's codes in
/// one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// No valid region or window has this key.
    UnknownKey,
    /// The key belongs to another protection domain or queue pair.
    WrongScope,
    /// The range is not inside the region.
    OutOfBounds,
    /// The region does not have the right that is needed.
    NotPermitted,
    /// The program's mapping is gone, too short or protected: the copy itself failed.
    Fault,
    /// An atomic operation on an address that is not a multiple of 8.
    Misaligned,
}

/// A scatter/gather element as the program posted it; its key is checked at each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte.
    pub address: u64,
    /// How many bytes; 0 is 0 bytes.
    pub length: u32,
    /// L_Key of the region.
    pub key: MemoryKey,
}

/// Proof that a range was checked. It may be stored between packets: holding one promises nothing,
/// as `place` and `atomic` compare the generation of the region again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    entry: u32,
    generation: u32,
    address: u64,
    length: u64,
}

impl Grant {
    /// For implementations of [`Memory::check`](crate::Memory::check) alone: `entry` and
    /// `generation` name the region at the time of the check, `address` is opaque to the engine.
    pub const fn from_check(entry: u32, generation: u32, address: u64, length: u64) -> Self {
        Self {
            entry,
            generation,
            address,
            length,
        }
    }

    /// Which entry of the memory table.
    pub const fn entry(&self) -> u32 {
        self.entry
    }

    /// The entry's generation when the check was made.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Where the range starts, in the host's own terms.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes granted.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The part of the grant from `offset`, for sending; `None` if it is not inside.
    pub fn span(&self, offset: u64, length: u32) -> Option<Span> {
        if offset.checked_add(u64::from(length))? > self.length {
            return None;
        }
        Some(Span {
            entry: self.entry,
            generation: self.generation,
            address: self.address.wrapping_add(offset),
            length,
        })
    }
}

/// Bytes to gather into a packet. Lives in a [`Burst`](crate::Burst), never across a lock section
/// and never in a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    entry: u32,
    generation: u32,
    address: u64,
    length: u32,
}

impl Span {
    /// Which entry of the memory table.
    pub const fn entry(&self) -> u32 {
        self.entry
    }

    /// The entry's generation when the check was made.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Where the bytes are, in the host's own terms.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub const fn length(&self) -> u32 {
        self.length
    }
}

/// An atomic operation on 8 naturally aligned bytes in host order. spec: IBA 9.4.5
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Write `swap` if the value is `compare`.
    CompareSwap {
        /// What the value must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}
