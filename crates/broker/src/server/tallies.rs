//! What was counted for each link: by slots that are in use, in their pages, and by those before.

use std::collections::BTreeMap;

use io::Descriptor;

use crate::counters::{COUNTS, CounterPage, LinkCounts};
use crate::link::LinkInfo;

/// Pages of slots, and the sums of what is over.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    pages: BTreeMap<u8, CounterPage>,
    /// By the index of the link, which no other one ever has.
    past: BTreeMap<u32, Past>,
}

/// What is over, of one link.
#[derive(Clone, Debug)]
struct Past {
    downed: u64,
    counts: [u64; COUNTS],
}

impl Default for Past {
    fn default() -> Self {
        Self {
            downed: 0,
            counts: [0; COUNTS],
        }
    }
}

impl Past {
    fn add(&mut self, counts: &[u64; COUNTS]) {
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            *sum = sum.saturating_add(*count);
        }
    }
}

impl Tallies {
    /// A page for the new holder of a slot: what it is to map. It does without where there is none.
    pub(super) fn open(&mut self, slot: u8) -> Option<Descriptor> {
        let (page, file) = CounterPage::create()
            .inspect_err(|errno| tracing::warn!(%errno, slot, "no counters for a slot"))
            .ok()?;
        self.pages.insert(slot, page);
        Some(file)
    }

    /// The holder of a slot is gone; what it counted for these links stays.
    pub(super) fn close<'a>(&mut self, slot: u8, links: impl Iterator<Item = &'a LinkInfo>) {
        let Some(page) = self.pages.remove(&slot) else {
            return;
        };
        let known: Vec<u32> = links.map(|link| link.index).collect();
        for (link, counts) in page.read().filter(|(link, _)| known.contains(link)) {
            self.past.entry(link).or_default().add(&counts);
        }
    }

    /// The port of a link went down.
    pub(super) fn count_down(&mut self, link: &LinkInfo) {
        self.past.entry(link.index).or_default().downed += 1;
    }

    /// Forgets links that are gone.
    pub(super) fn retain<'a>(&mut self, links: impl Iterator<Item = &'a LinkInfo>) {
        let known: Vec<u32> = links.map(|link| link.index).collect();
        self.past.retain(|link, _| known.contains(link));
    }

    /// All that was counted for a link.
    pub(super) fn of(&self, link: &LinkInfo) -> LinkCounts {
        let mut sum = self.past.get(&link.index).cloned().unwrap_or_default();
        let pages = self.pages.values().flat_map(CounterPage::read);
        for (_, counts) in pages.filter(|(index, _)| *index == link.index) {
            sum.add(&counts);
        }
        LinkCounts {
            link: link.name.clone(),
            downed: sum.downed,
            counts: sum.counts.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::Mtu;

    use super::*;
    use crate::link::LinkKind;

    fn link(index: u32) -> LinkInfo {
        LinkInfo {
            name: format!("rxe{index}"),
            kind: LinkKind::Rxe,
            index,
            netdev: "lo".into(),
            netdev_index: 1,
            mac: [0; 6],
            netdev_mtu: 65_536,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B4096,
            up: true,
            carrier: true,
            gids: Vec::new(),
            iwarp: None,
        }
    }

    #[test]
    fn counts_outlive_their_slot_and_end_with_their_link() {
        let (one, other) = (link(3), link(4));
        let mut tallies = Tallies::default();
        let open = |tallies: &mut Tallies, slot| {
            let file = tallies.open(slot).expect("memfd exists");
            CounterPage::open(&file).expect("made just now")
        };
        let first = open(&mut tallies, 1);
        let second = open(&mut tallies, 2);
        first.raise(3, [10, 1]);
        first.raise(9, [7, 7]);
        second.raise(3, [100, 1]);
        second.raise(4, [1000, 1]);
        let sent = |tallies: &Tallies, link: &LinkInfo| tallies.of(link).counts[0];
        assert_eq!((sent(&tallies, &one), sent(&tallies, &other)), (110, 1000));

        tallies.close(1, [&one, &other].into_iter());
        assert_eq!((sent(&tallies, &one), sent(&tallies, &other)), (110, 1000));
        let third = open(&mut tallies, 1);
        third.raise(3, [5]);
        first.raise(3, [99, 99]); // it is nobody's any more
        assert_eq!(sent(&tallies, &one), 115);
        assert_eq!(tallies.past.len(), 1, "what is no link is not kept");

        tallies.count_down(&one);
        tallies.count_down(&one);
        assert_eq!(tallies.of(&one).downed, 2);
        tallies.retain([&other].into_iter());
        assert_eq!(tallies.of(&one).downed, 0);
    }

    #[test]
    fn numbers_without_bounds_end_at_the_greatest() {
        let mut tallies = Tallies::default();
        for slot in [1, 2] {
            let file = tallies.open(slot).expect("memfd exists");
            let page = CounterPage::open(&file).expect("made just now");
            page.raise(3, [u64::MAX - 1]);
        }
        assert_eq!(tallies.of(&link(3)).counts[0], u64::MAX);
    }
}
