//! What programs have counted, where the broker finds it even when they were killed: a page of
//! shared memory for each slot, which the broker makes and only the slot's holder has.
//!
//! A page has a place for each link that the slot's queue pairs use. Counts only go up; who writes
//! them twice, or late, changes nothing. What a count means is the business of who writes and of
//! who reads. The broker adds them up by link, and keeps the sums of slots that were given back.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use io::{Descriptor, Errno, shared::SharedWords};
use serde::{Deserialize, Serialize};

/// First word of a page of this layout.
const LAYOUT: u64 = u64::from_be_bytes(*b"srcount1");

/// Counts of a link.
pub const COUNTS: usize = 63;
/// Words of a place: the link, then its counts.
const PLACE: usize = 1 + COUNTS;
/// Links that one slot can count for; what it does on more of them is not counted.
const PLACES: usize = 16;
/// Words before the first place: a cache line.
const HEAD: usize = 8;
/// Words of a page.
const PAGE: usize = HEAD + PLACES * PLACE;

/// What was counted for one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounts {
    /// The name of the link.
    pub link: String,
    /// How often its port went down, which only the broker sees.
    pub downed: u64,
    /// What programs counted, in the order in which they write it.
    pub counts: Vec<u64>,
}

/// A mapping of a page.
#[derive(Debug)]
pub struct CounterPage {
    words: SharedWords,
}

impl CounterPage {
    /// Makes an empty page, and the descriptor that shares it.
    ///
    /// # Errors
    /// As [`SharedWords::create`].
    pub fn create() -> Result<(Self, Descriptor), Errno> {
        let (words, file) = SharedWords::create("softrdma-counters", PAGE)?;
        words.words()[0].store(LAYOUT, Ordering::Release);
        Ok((Self { words }, file))
    }

    /// Maps the page of a broker.
    ///
    /// # Errors
    /// `EINVAL` for anything else, and what mapping it reports.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let words = SharedWords::open(file, PAGE)?;
        if words.words()[0].load(Ordering::Acquire) == LAYOUT {
            Ok(Self { words })
        } else {
            Err(Errno::INVAL)
        }
    }

    /// The program: what it has counted for the link with this [`LinkInfo::index`] up to now, from
    /// the first count on.
    ///
    /// [`LinkInfo::index`]: crate::link::LinkInfo::index
    pub fn raise(&self, link: u32, counts: impl IntoIterator<Item = u64>) {
        let claim = u64::from(link) + 1;
        let is_its = |place: &&[AtomicU64]| {
            let owner = place[0].compare_exchange(0, claim, Ordering::AcqRel, Ordering::Acquire);
            owner.is_ok() || owner == Err(claim)
        };
        let Some(place) = self.places().find(is_its) else {
            return;
        };
        for (word, count) in place[1..].iter().zip(counts) {
            word.fetch_max(count, Ordering::Relaxed);
        }
    }

    /// The broker: links and their counts. What somebody wrote there by force are numbers too.
    pub(crate) fn read(&self) -> impl Iterator<Item = (u32, [u64; COUNTS])> {
        self.places().filter_map(|place| {
            let link = place[0].load(Ordering::Acquire).checked_sub(1)?;
            let mut counts = [0; COUNTS];
            for (count, word) in counts.iter_mut().zip(&place[1..]) {
                *count = word.load(Ordering::Relaxed);
            }
            Some((u32::try_from(link).ok()?, counts))
        })
    }

    fn places(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.words.words()[HEAD..].chunks_exact(PLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> (CounterPage, CounterPage) {
        let (broker, file) = CounterPage::create().expect("memfd exists");
        let program = CounterPage::open(&file).expect("made just now");
        (broker, program)
    }

    fn first_counts(page: &CounterPage) -> Vec<(u32, [u64; 2])> {
        page.read()
            .map(|(link, counts)| (link, [counts[0], counts[1]]))
            .collect()
    }

    #[test]
    fn each_link_has_its_own_counts_which_only_go_up() {
        let (broker, program) = page();
        assert_eq!(first_counts(&broker), []);
        program.raise(7, [5, 6]);
        program.raise(0, [1, 2]);
        program.raise(7, [4, 9]);
        assert_eq!(first_counts(&broker), [(7, [5, 9]), (0, [1, 2])]);
    }

    #[test]
    fn more_links_and_more_counts_than_there_is_room_for_are_left_out() {
        let (broker, program) = page();
        for link in 0..100 {
            program.raise(link, (0..1000).map(|_| 3));
        }
        let all: Vec<_> = broker.read().collect();
        assert_eq!(all.len(), PLACES);
        assert!(all.iter().all(|(_, counts)| *counts == [3; COUNTS]));
    }

    #[test]
    fn what_somebody_wrote_there_by_force_is_a_number_too() {
        let (broker, program) = page();
        for word in program.words.words() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(broker.read().count(), 0, "no link has such an index");
    }

    #[test]
    fn other_files_are_refused() {
        let (_words, file) = SharedWords::create("softrdma-test", PAGE).expect("memfd exists");
        assert_eq!(CounterPage::open(&file).err(), Some(Errno::INVAL));
    }
}
