//! The paths that queue pairs of a shard use, each once.

use std::collections::HashMap;

use crate::path::{Path, PathIndex};

#[derive(Debug)]
struct Entry {
    path: Path,
    /// Whether the buffers at its end are known by slot.
    is_reached: bool,
    references: u32,
}

/// Table of paths. An index is free for another path once no queue pair has it.
#[derive(Debug, Default)]
pub struct Paths {
    entries: Vec<Entry>,
    free: Vec<PathIndex>,
    by_path: HashMap<Path, PathIndex>,
}

impl Paths {
    /// The index of a path, for one more queue pair. There are at most 2^16 queue pairs in a
    /// shard, so there are enough indices. `is_reached` is asked for a path that is new.
    pub fn acquire(&mut self, path: Path, is_reached: impl FnOnce(&Path) -> bool) -> PathIndex {
        if let Some(&index) = self.by_path.get(&path) {
            self.entries[usize::from(index.0)].references += 1;
            return index;
        }
        let entry = Entry {
            path,
            is_reached: is_reached(&path),
            references: 1,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[usize::from(index.0)] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                PathIndex((self.entries.len() - 1) as u16)
            }
        };
        self.by_path.insert(path, index);
        index
    }

    /// One queue pair less.
    pub fn release(&mut self, index: PathIndex) {
        let entry = &mut self.entries[usize::from(index.0)];
        entry.references -= 1;
        if entry.references == 0 {
            self.by_path.remove(&entry.path);
            self.free.push(index);
        }
    }

    /// Whether the receive buffers at the end of a path are known by their slots.
    pub fn is_reached(&self, index: PathIndex) -> bool {
        self.entries[usize::from(index.0)].is_reached
    }

    /// The path.
    pub fn get(&self, index: PathIndex) -> Option<&Path> {
        self.entries
            .get(usize::from(index.0))
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
}
