//! Memory as programs of a simulated host see it.

use engine::access::{Access, AccessError, PdId, Scope};
use engine::model::ModelMemory;
use engine::{Memory, MemoryRange};
use wire::{MemoryKey, Qpn};

/// Protection domain of everything in a simulation.
pub const PD: PdId = PdId(1);

/// Registered memory of a host. A handle: it is cloned.
pub trait Ground {
    /// Registers `bytes`, which are named from `base` on.
    fn register(&self, base: u64, bytes: Vec<u8>, access: Access) -> MemoryKey;

    /// A key of 8 bytes that can be invalidated.
    fn register_fast(&self, access: Access) -> MemoryKey;

    /// The bytes of a region, also after its registration has ended.
    fn read(&self, key: MemoryKey, offset: usize, length: usize) -> Vec<u8>;

    /// Ends a registration.
    fn deregister(&self, key: MemoryKey);

    /// Takes the mapping away from `offset` on.
    fn unmap_from(&self, key: MemoryKey, offset: usize);

    /// Whether a key of [`register_fast`](Self::register_fast) was invalidated.
    fn is_invalid(&self, key: MemoryKey) -> bool;
}

impl Ground for ModelMemory {
    fn register(&self, base: u64, bytes: Vec<u8>, access: Access) -> MemoryKey {
        Self::register(self, PD, base, bytes, access)
    }

    fn register_fast(&self, access: Access) -> MemoryKey {
        Self::register_fast(self, PD, 0, vec![0; 8], access)
    }

    fn read(&self, key: MemoryKey, offset: usize, length: usize) -> Vec<u8> {
        Self::read(self, key, offset, length)
    }

    fn deregister(&self, key: MemoryKey) {
        Self::deregister(self, key);
    }

    fn unmap_from(&self, key: MemoryKey, offset: usize) {
        Self::unmap_from(self, key, offset);
    }

    fn is_invalid(&self, key: MemoryKey) -> bool {
        let scope = Scope {
            pd: PD,
            qpn: Qpn::default(),
        };
        let range = MemoryRange {
            address: 0,
            length: 1,
        };
        self.check(key, scope, range, Access::empty()) == Err(AccessError::UnknownKey)
    }
}
