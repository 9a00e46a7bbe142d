//! Memory of the model: regions and windows over vectors of bytes.

use std::cell::RefCell;
use std::rc::Rc;

use wire::{MemoryKey, Qpn};

use crate::access::{Access, AccessError, AtomicOperation, Grant, MemoryRange, PdId, Scope, Span};
use crate::host::Memory;

/// A table of regions and windows; a clone is another handle to the same table.
#[derive(Clone, Debug, Default)]
pub struct ModelMemory {
    table: Rc<RefCell<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    storages: Vec<Storage>,
}

/// The bytes of a region. From `mapped` on the program's mapping is gone.
#[derive(Debug)]
struct Storage {
    bytes: Vec<u8>,
    mapped: usize,
}

#[derive(Debug)]
struct Entry {
    /// Low 8 bits of the key.
    tag: u8,
    generation: u32,
    is_valid: bool,
    kind: Kind,
    pd: PdId,
    access: Access,
    /// Address of the first byte.
    base: u64,
    length: u64,
    /// Which storage, and where in it the entry starts.
    storage: usize,
    offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Region,
    FastRegistered,
    /// A type 2 window: only this queue pair may use it.
    Window(Qpn),
}

impl ModelMemory {
    /// Registers `bytes` as a region that starts at `base`.
    pub fn register(&self, pd: PdId, base: u64, bytes: Vec<u8>, access: Access) -> MemoryKey {
        self.add_region(Kind::Region, pd, base, bytes, access)
    }

    /// The same, as fast registration does it: the key can be invalidated.
    pub fn register_fast(&self, pd: PdId, base: u64, bytes: Vec<u8>, access: Access) -> MemoryKey {
        self.add_region(Kind::FastRegistered, pd, base, bytes, access)
    }

    /// Binds a type 2 window of `qpn` to `range` of a region. Panics if the range is not inside:
    /// this is for tests, where that is a mistake of the test.
    pub fn bind_window(
        &self,
        qpn: Qpn,
        region: MemoryKey,
        range: MemoryRange,
        access: Access,
    ) -> MemoryKey {
        let mut table = self.table.borrow_mut();
        let parent = &table.entries[index_of(region)];
        let inside = range.address - parent.base;
        assert!(inside + range.length <= parent.length, "window in region");
        let entry = Entry {
            tag: 0x5a,
            generation: 0,
            is_valid: true,
            kind: Kind::Window(qpn),
            pd: parent.pd,
            access,
            base: range.address,
            length: range.length,
            storage: parent.storage,
            offset: parent.offset + inside as usize,
        };
        table.add(entry)
    }

    /// Ends a registration: its key is unknown from now on and its grants are dead.
    pub fn deregister(&self, key: MemoryKey) {
        self.table.borrow_mut().entries[index_of(key)].retire();
    }

    /// Takes the mapping away from the region's byte `offset` on: copies there fault.
    pub fn unmap_from(&self, key: MemoryKey, offset: usize) {
        let mut table = self.table.borrow_mut();
        let storage = table.entries[index_of(key)].storage;
        table.storages[storage].mapped = offset;
    }

    /// The program's view: the bytes of a region.
    pub fn read(&self, key: MemoryKey, offset: usize, length: usize) -> Vec<u8> {
        let table = self.table.borrow();
        let storage = &table.storages[table.entries[index_of(key)].storage];
        storage.bytes[offset..offset + length].to_vec()
    }

    /// The program writes into its region.
    pub fn write(&self, key: MemoryKey, offset: usize, bytes: &[u8]) {
        let mut table = self.table.borrow_mut();
        let storage = table.entries[index_of(key)].storage;
        table.storages[storage].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The 8 bytes at `offset` of a region as a number in host order.
    pub fn read_u64(&self, key: MemoryKey, offset: usize) -> u64 {
        let table = self.table.borrow();
        let storage = &table.storages[table.entries[index_of(key)].storage];
        storage.word(offset)
    }

    /// Copies what a span names, as sealing a packet does.
    pub fn gather(&self, span: &Span) -> Result<Vec<u8>, AccessError> {
        let table = self.table.borrow();
        table.entry(span.entry(), span.generation())?;
        let storage = table.storage_of(span.entry());
        let range = storage.mapped_range(span.address(), u64::from(span.length()))?;
        Ok(storage.bytes[range].to_vec())
    }

    fn add_region(
        &self,
        kind: Kind,
        pd: PdId,
        base: u64,
        bytes: Vec<u8>,
        access: Access,
    ) -> MemoryKey {
        let mut table = self.table.borrow_mut();
        let length = bytes.len();
        table.storages.push(Storage {
            bytes,
            mapped: length,
        });
        let entry = Entry {
            tag: 0xa5,
            generation: 0,
            is_valid: true,
            kind,
            pd,
            access,
            base,
            length: length as u64,
            storage: table.storages.len() - 1,
            offset: 0,
        };
        table.add(entry)
    }
}

impl Memory for ModelMemory {
    fn check(
        &self,
        key: MemoryKey,
        scope: Scope,
        range: MemoryRange,
        need: Access,
    ) -> Result<Grant, AccessError> {
        let table = self.table.borrow();
        let (index, entry) = table.find(key)?;
        entry.check_scope(scope)?;
        if !entry.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        let inside = range
            .address
            .checked_sub(entry.base)
            .filter(|inside| {
                inside
                    .checked_add(range.length)
                    .is_some_and(|end| end <= entry.length)
            })
            .ok_or(AccessError::OutOfBounds)?;
        let address = entry.offset as u64 + inside;
        Ok(Grant::from_check(
            index,
            entry.generation,
            address,
            range.length,
        ))
    }

    fn place(
        &self,
        grant: &Grant,
        offset: u32,
        bytes: &[u8],
        _is_last: bool, // one thread: nobody sees a half placed packet
    ) -> Result<(), AccessError> {
        let mut table = self.table.borrow_mut();
        table.entry(grant.entry(), grant.generation())?;
        let length = bytes.len() as u64;
        if u64::from(offset) + length > grant.length() {
            return Err(AccessError::OutOfBounds);
        }
        let index = table.entries[grant.entry() as usize].storage;
        let storage = &mut table.storages[index];
        let range = storage.mapped_range(grant.address() + u64::from(offset), length)?;
        storage.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&self, grant: &Grant, operation: AtomicOperation) -> Result<u64, AccessError> {
        let mut table = self.table.borrow_mut();
        table.entry(grant.entry(), grant.generation())?;
        if grant.length() != 8 {
            return Err(AccessError::OutOfBounds);
        }
        let index = table.entries[grant.entry() as usize].storage;
        let storage = &mut table.storages[index];
        let range = storage.mapped_range(grant.address(), 8)?;
        let before = storage.word(range.start);
        let after = match operation {
            AtomicOperation::CompareSwap { compare, swap } if before == compare => swap,
            AtomicOperation::CompareSwap { .. } => before,
            AtomicOperation::FetchAdd { add } => before.wrapping_add(add),
        };
        storage.bytes[range].copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&self, key: MemoryKey, scope: Scope) -> Result<(), AccessError> {
        let mut table = self.table.borrow_mut();
        let (index, entry) = table.find(key)?;
        entry.check_scope(scope)?;
        if entry.kind == Kind::Region {
            return Err(AccessError::NotPermitted);
        }
        table.entries[index as usize].retire();
        Ok(())
    }
}

impl Table {
    fn add(&mut self, entry: Entry) -> MemoryKey {
        let key = MemoryKey(((self.entries.len() as u32 + 1) << 8) | u32::from(entry.tag));
        self.entries.push(entry);
        key
    }

    fn find(&self, key: MemoryKey) -> Result<(u32, &Entry), AccessError> {
        let index = (key.0 >> 8).checked_sub(1).ok_or(AccessError::UnknownKey)?;
        match self.entries.get(index as usize) {
            Some(entry) if entry.is_valid && u32::from(entry.tag) == key.0 & 0xff => {
                Ok((index, entry))
            }
            _ => Err(AccessError::UnknownKey),
        }
    }

    /// The entry of a grant or span, if it is still the same registration.
    fn entry(&self, index: u32, generation: u32) -> Result<&Entry, AccessError> {
        self.entries
            .get(index as usize)
            .filter(|entry| entry.is_valid && entry.generation == generation)
            .ok_or(AccessError::UnknownKey)
    }

    fn storage_of(&self, index: u32) -> &Storage {
        &self.storages[self.entries[index as usize].storage]
    }
}

impl Entry {
    fn check_scope(&self, scope: Scope) -> Result<(), AccessError> {
        let is_other_qp = matches!(self.kind, Kind::Window(qpn) if qpn != scope.qpn);
        if self.pd != scope.pd || is_other_qp {
            return Err(AccessError::WrongScope);
        }
        Ok(())
    }

    fn retire(&mut self) {
        self.is_valid = false;
        self.generation += 1;
    }
}

impl Storage {
    fn mapped_range(
        &self,
        address: u64,
        length: u64,
    ) -> Result<core::ops::Range<usize>, AccessError> {
        let start = address as usize;
        let end = start + length as usize;
        if end > self.mapped {
            return Err(AccessError::Fault);
        }
        Ok(start..end)
    }

    fn word(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[offset..offset + 8]);
        u64::from_ne_bytes(word)
    }
}

/// Where a key that this table gave out stands.
fn index_of(key: MemoryKey) -> usize {
    (key.0 >> 8) as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);
    const SCOPE: Scope = Scope {
        pd: PD,
        qpn: Qpn::truncated(7),
    };

    fn range(address: u64, length: u64) -> MemoryRange {
        MemoryRange { address, length }
    }

    #[test]
    fn a_check_gives_a_grant_only_inside_with_scope_and_right() {
        let memory = ModelMemory::default();
        let key = memory.register(PD, 0x1000, vec![0; 16], Access::REMOTE_READ);
        let need = Access::REMOTE_READ;
        let check = |range, scope, need| memory.check(key, scope, range, need).map(|g| g.length());
        assert_eq!(check(range(0x1000, 16), SCOPE, need), Ok(16));
        let outside = Err(AccessError::OutOfBounds);
        assert_eq!(check(range(0x1001, 16), SCOPE, need), outside);
        assert_eq!(check(range(0xfff, 1), SCOPE, need), outside);
        assert_eq!(check(range(0x1008, u64::MAX), SCOPE, need), outside);
        assert_eq!(
            check(range(0x1000, 1), SCOPE, Access::REMOTE_WRITE),
            Err(AccessError::NotPermitted)
        );
        let other = Scope {
            pd: PdId(2),
            ..SCOPE
        };
        assert_eq!(
            check(range(0x1000, 1), other, need),
            Err(AccessError::WrongScope)
        );
        let wrong_tag = MemoryKey(key.0 ^ 1);
        assert_eq!(
            memory.check(wrong_tag, SCOPE, range(0x1000, 1), need),
            Err(AccessError::UnknownKey)
        );
    }

    #[test]
    fn a_grant_is_dead_after_deregistration() {
        let memory = ModelMemory::default();
        let key = memory.register(PD, 0, vec![0; 16], Access::REMOTE_WRITE);
        let grant = memory
            .check(key, SCOPE, range(0, 16), Access::REMOTE_WRITE)
            .expect("inside");
        assert_eq!(memory.place(&grant, 3, &[1, 2], true), Ok(()));
        assert_eq!(memory.read(key, 0, 6), [0, 0, 0, 1, 2, 0]);
        memory.deregister(key);
        assert_eq!(
            memory.place(&grant, 0, &[9], true),
            Err(AccessError::UnknownKey)
        );
    }

    #[test]
    fn only_windows_and_fast_registrations_can_be_invalidated() {
        let memory = ModelMemory::default();
        let region = memory.register(PD, 0, vec![0; 16], Access::MW_BIND);
        let fast = memory.register_fast(PD, 0, vec![0; 16], Access::empty());
        let window = memory.bind_window(SCOPE.qpn, region, range(8, 8), Access::REMOTE_WRITE);
        assert_eq!(
            memory.invalidate(region, SCOPE),
            Err(AccessError::NotPermitted)
        );
        let other = Scope {
            qpn: Qpn::truncated(8),
            ..SCOPE
        };
        assert_eq!(
            memory.invalidate(window, other),
            Err(AccessError::WrongScope)
        );
        assert_eq!(memory.invalidate(window, SCOPE), Ok(()));
        assert_eq!(
            memory.invalidate(window, SCOPE),
            Err(AccessError::UnknownKey)
        );
        assert_eq!(memory.invalidate(fast, SCOPE), Ok(()));
    }

    #[test]
    fn what_is_unmapped_faults() {
        let memory = ModelMemory::default();
        let key = memory.register(PD, 0, vec![7; 16], Access::REMOTE_WRITE);
        memory.unmap_from(key, 8);
        let grant = memory
            .check(key, SCOPE, range(0, 16), Access::empty())
            .expect("inside");
        assert_eq!(memory.place(&grant, 0, &[1; 8], true), Ok(()));
        assert_eq!(
            memory.place(&grant, 4, &[1; 8], true),
            Err(AccessError::Fault)
        );
        let span = grant.span(8, 8).expect("inside");
        assert_eq!(memory.gather(&span), Err(AccessError::Fault));
    }

    #[test]
    fn atomics_give_the_value_before() {
        let memory = ModelMemory::default();
        let key = memory.register(PD, 0, vec![0; 8], Access::REMOTE_ATOMIC);
        let grant = memory
            .check(key, SCOPE, range(0, 8), Access::REMOTE_ATOMIC)
            .expect("inside");
        let add = AtomicOperation::FetchAdd { add: u64::MAX };
        assert_eq!(memory.atomic(&grant, add), Ok(0));
        assert_eq!(memory.atomic(&grant, add), Ok(u64::MAX));
        let swap = |compare| AtomicOperation::CompareSwap { compare, swap: 5 };
        assert_eq!(memory.atomic(&grant, swap(1)), Ok(u64::MAX - 1));
        assert_eq!(memory.read_u64(key, 0), u64::MAX - 1, "compare differs");
        assert_eq!(memory.atomic(&grant, swap(u64::MAX - 1)), Ok(u64::MAX - 1));
        assert_eq!(memory.read_u64(key, 0), 5);
    }
}
