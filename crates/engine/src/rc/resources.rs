//! What the responder remembers of READs and atomics, to answer duplicates of them.
//!
//! Sections to read first: IBA 9.7.5 (duplicates). The one idea: the
//! requester has at most `max_dest_rd_atomic` of them outstanding, so a ring of that many,
//! replaced oldest first, holds every one whose duplicate can be meant in earnest.

use std::collections::VecDeque;

use wire::{AtomicEth, MemoryKey, Opcode, Psn, Reth};

/// Memory that a READ asks for, or the rest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// R_Key of the region or window.
    pub key: MemoryKey,
    /// First byte.
    pub address: u64,
    /// How many bytes.
    pub length: u32,
}

impl Source {
    /// What a READ request names.
    pub fn of(reth: Reth) -> Self {
        Self {
            key: reth.rkey,
            address: reth.va,
            length: reth.dma_length,
        }
    }

    /// How many responses carry it: one also when it is empty. spec: IBA 9.7.2
    pub fn packets(&self, mtu: u32) -> u32 {
        self.length.div_ceil(mtu).max(1)
    }
}

/// An executed READ or atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// A READ; it is read again for a duplicate.
    Read {
        /// PSN of the request and of the first response.
        first: Psn,
        /// What it asked for.
        source: Source,
    },
    /// An atomic; it is never executed again.
    Atomic {
        /// PSN of request and response.
        psn: Psn,
        /// Which operation.
        opcode: Opcode,
        /// Its word and operands.
        request: AtomicEth,
        /// What it found.
        original: u64,
    },
}

impl Resource {
    /// PSN of the request.
    pub fn psn(&self) -> Psn {
        match *self {
            Self::Read { first, .. } => first,
            Self::Atomic { psn, .. } => psn,
        }
    }
}

/// The ring.
#[derive(Debug, Default)]
pub(super) struct Resources {
    /// Oldest first; at most `capacity`.
    ring: VecDeque<Resource>,
    capacity: usize,
}

impl Resources {
    /// An empty ring for `max_dest_rd_atomic` entries.
    pub fn with_capacity(capacity: u8) -> Self {
        Self {
            ring: VecDeque::new(),
            capacity: capacity.into(),
        }
    }

    /// Changes how many are remembered. Entries beyond that are forgotten, the oldest first.
    pub fn resize(&mut self, capacity: u8) {
        self.capacity = capacity.into();
        while self.ring.len() > self.capacity {
            self.ring.pop_front();
        }
    }

    /// How many entries there can be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Remembers `resource`; gives the entry that had to go for it.
    pub fn save(&mut self, resource: Resource) -> Option<Resource> {
        let evicted = if self.ring.len() == self.capacity {
            self.ring.pop_front()
        } else {
            None
        };
        self.ring.push_back(resource);
        evicted
    }

    /// The READ that a duplicate request with `psn` asks a part of, named by its PSN. The key must
    /// be the same, and each response must carry exactly the bytes that it carried before.
    /// spec: IBA 9.7.5, C9-105
    pub fn covering_read(&self, psn: Psn, again: Source, mtu: u32) -> Option<Psn> {
        self.ring.iter().rev().find_map(|resource| match *resource {
            Resource::Read { first, source } => {
                let skipped = u64::try_from(psn.distance_from(first)).ok()? * u64::from(mtu);
                let is_inside = skipped + u64::from(again.length) <= u64::from(source.length)
                    && again.address == source.address.wrapping_add(skipped);
                let is_empty_tail = again.length == 0 && skipped > 0;
                (again.key == source.key && is_inside && !is_empty_tail).then_some(first)
            }
            Resource::Atomic { .. } => None,
        })
    }

    /// What an atomic that was executed found. spec: IBA 9.7.5
    pub fn original(&self, psn: Psn, opcode: Opcode, request: &AtomicEth) -> Option<u64> {
        self.ring.iter().rev().find_map(|resource| match resource {
            Resource::Atomic {
                psn: saved_psn,
                opcode: saved_opcode,
                request: saved_request,
                original,
            } if *saved_psn == psn && *saved_opcode == opcode && saved_request == request => {
                Some(*original)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 256;

    fn read_of(first: u32, address: u64, length: u32) -> (Resources, Psn, Source) {
        let source = Source {
            key: MemoryKey(0x100),
            address,
            length,
        };
        let first = Psn::truncated(first);
        let mut resources = Resources::with_capacity(1);
        resources.save(Resource::Read { first, source });
        (resources, first, source)
    }

    #[test]
    fn a_read_is_covered_from_each_of_its_packets_on_across_the_psn_wrap() {
        let (resources, first, source) = read_of(0xff_ffff, 0x1000, 1000);
        for packet in 0..4 {
            let skipped = packet * MTU;
            let rest = Source {
                address: source.address + u64::from(skipped),
                length: source.length - skipped,
                ..source
            };
            assert_eq!(
                resources.covering_read(first.plus(packet), rest, MTU),
                Some(first)
            );
            let longer = Source {
                length: rest.length + 1,
                ..rest
            };
            assert_eq!(
                resources.covering_read(first.plus(packet), longer, MTU),
                None
            );
            let moved = Source {
                address: rest.address + 4,
                length: 1,
                ..rest
            };
            assert_eq!(
                resources.covering_read(first.plus(packet), moved, MTU),
                None
            );
        }
        let behind = Source {
            address: source.address + 1024,
            length: 0,
            ..source
        };
        assert_eq!(resources.covering_read(first.plus(4), behind, MTU), None);
    }

    #[test]
    fn an_empty_read_is_covered_at_its_own_psn_only() {
        let (resources, first, source) = read_of(5, 0, 0);
        assert_eq!(resources.covering_read(first, source, MTU), Some(first));
        assert_eq!(resources.covering_read(first.plus(1), source, MTU), None);
    }

    #[test]
    fn the_oldest_goes_first() {
        let (mut resources, first, source) = read_of(5, 0, 10);
        let next = Resource::Read {
            first: first.plus(1),
            source,
        };
        assert_eq!(resources.save(next), Some(Resource::Read { first, source }));
        assert_eq!(resources.covering_read(first, source, MTU), None);
        assert_eq!(
            resources.covering_read(first.plus(1), source, MTU),
            Some(first.plus(1))
        );
    }
}
