//! The paths that queue pairs of a shard use, each once.
//!
//! A connection holds its path as long as it has it. Paths of datagrams are looked up for each
//! packet, so the last ones stay in the table for a while.

use std::collections::{HashMap, VecDeque};

use crate::path::{Path, PathIndex};

#[derive(Debug)]
struct Entry {
    path: Path,
    /// Whether the buffers at its end are known by slot; asked for connections alone.
    is_reached: Option<bool>,
    references: u32,
}

/// Paths of datagrams that stay in the table although no packet needs them now.
const DATAGRAM_PATHS_MAX: usize = 1024;

/// Table of paths. An index is free for another path once no queue pair has it.
#[derive(Debug, Default)]
pub struct Paths {
    entries: Vec<Entry>,
    free: Vec<PathIndex>,
    by_path: HashMap<Path, PathIndex>,
    /// What datagrams made new, oldest first; each is one reference.
    of_datagrams: VecDeque<PathIndex>,
    /// The last datagram's: the next one often goes there too.
    latest: Option<PathIndex>,
}

impl Paths {
    /// The index of a path, for one more connection. `is_reached` is asked once for a path.
    pub fn acquire(&mut self, path: Path, is_reached: impl FnOnce(&Path) -> bool) -> PathIndex {
        let index = self.refer(path);
        let entry = &mut self.entries[index.0 as usize];
        entry.is_reached.get_or_insert_with(|| is_reached(&path));
        index
    }

    /// The index of a path, for a datagram: it is valid until [`trim`](Self::trim).
    pub fn of_datagram(&mut self, path: &Path) -> PathIndex {
        if let Some(latest) = self.latest
            && self.get(latest) == Some(path)
        {
            return latest;
        }
        let index = match self.by_path.get(path) {
            Some(index) => *index,
            None => {
                let index = self.refer(*path);
                self.of_datagrams.push_back(index);
                index
            }
        };
        self.latest = Some(index);
        index
    }

    /// Forgets paths of datagrams beyond the bound, oldest first. To be called while no burst with
    /// any of them is about.
    pub fn trim(&mut self) {
        while self.of_datagrams.len() > DATAGRAM_PATHS_MAX
            && let Some(oldest) = self.of_datagrams.pop_front()
        {
            self.release(oldest);
        }
    }

    /// One more reference to a path.
    fn refer(&mut self, path: Path) -> PathIndex {
        if let Some(&index) = self.by_path.get(&path) {
            self.entries[index.0 as usize].references += 1;
            return index;
        }
        let entry = Entry {
            path,
            is_reached: None,
            references: 1,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index.0 as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                PathIndex((self.entries.len() - 1) as u32)
            }
        };
        self.by_path.insert(path, index);
        index
    }

    /// One reference less.
    pub fn release(&mut self, index: PathIndex) {
        let entry = &mut self.entries[index.0 as usize];
        entry.references -= 1;
        if entry.references == 0 {
            self.by_path.remove(&entry.path);
            self.free.push(index);
        }
    }

    /// Whether the receive buffers at the end of a path are known by their slots.
    pub fn is_reached(&self, index: PathIndex) -> bool {
        self.entries[index.0 as usize].is_reached == Some(true)
    }

    /// The path.
    pub fn get(&self, index: PathIndex) -> Option<&Path> {
        self.entries
            .get(index.0 as usize)
            .filter(|entry| entry.references > 0)
            .map(|entry| &entry.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::Attributes;

    #[test]
    fn a_path_is_there_once_and_its_index_is_reused_when_nobody_has_it() {
        let path = Attributes::default().path;
        let other = Path {
            traffic_class: 4,
            ..path
        };
        let mut paths = Paths::default();
        let no = |_: &Path| false;
        let index = paths.acquire(path, |_| true);
        assert!(paths.is_reached(index));
        assert_eq!(paths.acquire(path, no), index);
        assert_ne!(paths.acquire(other, no), index);
        paths.release(index);
        assert_eq!(paths.get(index), Some(&path));
        paths.release(index);
        assert_eq!(paths.get(index), None);
        let third = Path {
            traffic_class: 8,
            ..path
        };
        assert_eq!(paths.acquire(third, no), index);
    }

    #[test]
    fn paths_of_datagrams_are_bounded_and_those_in_use_stay() {
        let path = |number: usize| Path {
            flow_label: number as u32,
            ..Attributes::default().path
        };
        let mut paths = Paths::default();
        let kept = paths.acquire(path(0), |_| true);
        assert_eq!(paths.of_datagram(&path(0)), kept);
        for number in 0..3 * DATAGRAM_PATHS_MAX {
            let index = paths.of_datagram(&path(number));
            assert_eq!(paths.of_datagram(&path(number)), index);
            assert_eq!(paths.get(index), Some(&path(number)));
            paths.trim();
        }
        assert!(paths.entries.len() <= DATAGRAM_PATHS_MAX + 2);
        assert_eq!(paths.get(kept), Some(&path(0)));
        let renewed = paths.acquire(path(3 * DATAGRAM_PATHS_MAX - 1), |_| true);
        assert!(paths.is_reached(renewed), "asked when a connection comes");
    }
}
