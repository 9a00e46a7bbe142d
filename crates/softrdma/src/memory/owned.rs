//! Registered memory that belongs to its registration: what a simulator uses, which has no process
//! object and forbids unsafe code.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use engine::{Access, PdId};
use wire::MemoryKey;

use crate::memory::{MemoryTable, RegisterError};

/// Bytes that the device may read and write, and nobody may borrow.
#[derive(Debug)]
pub struct OwnedRegion {
    table: Arc<MemoryTable>,
    key: MemoryKey,
    bytes: ManuallyDrop<Vec<u8>>,
}

impl OwnedRegion {
    /// Registers `bytes`, which work requests and peers name from `iova` on.
    ///
    /// # Errors
    /// As [`MemoryTable::register`].
    pub fn register(
        table: &Arc<MemoryTable>,
        pd: PdId,
        mut bytes: Vec<u8>,
        iova: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let (address, length) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
        // SAFETY: the region owns the bytes, gives no reference to them, and never frees them:
        // nobody tells it when the last access of a shard is over.
        let registration = unsafe { table.register(pd, address, length, iova, access) }?;
        Ok(Self {
            table: Arc::clone(table),
            key: registration.key,
            bytes: ManuallyDrop::new(bytes),
        })
    }

    /// L_Key and R_Key.
    pub fn key(&self) -> MemoryKey {
        self.key
    }

    /// A copy of `length` bytes from `offset` on, also after the registration has ended.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.bytes.len(), "inside the region");
        let mut copy = vec![0; length];
        let address = self.bytes.as_ptr() as u64 + offset as u64;
        self.table
            .copy_in(address, &mut copy)
            .expect("owned bytes are mapped");
        copy
    }
}
