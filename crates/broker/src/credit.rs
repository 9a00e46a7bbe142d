//! The credit table: what the processes of a host have in flight towards each other's receive
//! buffers. Read first: `docs/decisions/0005-credit.md`.
//!
//! One row for each slot that receives: the bytes that its socket was granted, the set of senders
//! that have something in flight towards it, and how much each of them has. The broker writes the
//! first when a slot is leased and the other two when a sender is gone; otherwise each sender
//! writes its own entries and nobody else's, so that nothing can be left over of a process that was
//! killed.
//!
//! Nobody trusts what is in it with more than its own speed: every sum is bounded, and a sender
//! may always have a little in flight whatever others claim.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use io::{Descriptor, Errno, shared::SharedWords};

use crate::protocol::SLOT_COUNT;

/// First word of a table of this layout.
const LAYOUT: u64 = u64::from_be_bytes(*b"srcredt1");

/// Words of a cache line: rows begin on one.
const LINE: usize = 8;
/// Words of the set of senders.
const SET: usize = SLOT_COUNT / 64;
/// Words of a row: the grant and the set in a line of their own, then one word for each sender.
const ROW: usize = LINE + SLOT_COUNT;
/// Words of a table.
const TABLE: usize = LINE + SLOT_COUNT * ROW;

/// How much of a receive buffer senders may fill together: the kernel gives back what was read in
/// quarters of the buffer, and acknowledgements come on top.
const USABLE_PERCENT: u64 = 60;

/// No sender has more in flight; what an entry claims beyond it is not believed.
const ENTRY_MAX: u64 = 1 << 24;

/// A mapping of the table.
#[derive(Debug)]
pub struct CreditTable {
    words: SharedWords,
}

/// What a sender sees of a receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes of truesize that the receiver's socket was granted; 0 if nobody has the slot.
    pub granted: u64,
    /// Other senders with something in flight.
    pub others: u32,
    /// What they have in flight together, in bytes of truesize.
    pub others_in_flight: u64,
}

impl Occupancy {
    /// What a sender may have in flight itself, in bytes of truesize: all that is free of the
    /// usable part, but not more than its fair share, so that whoever came first gives way; and an
    /// eighth of that in any case, for the rest may be claimed by a process that was stopped.
    pub fn allowance(&self) -> u64 {
        let usable = self.granted / 100 * USABLE_PERCENT;
        let fair = usable / (u64::from(self.others) + 1);
        let free = usable.saturating_sub(self.others_in_flight);
        free.clamp(fair / 8, fair)
    }
}

impl CreditTable {
    /// Makes an empty table, and the descriptor that shares it.
    ///
    /// # Errors
    /// As [`SharedWords::create`].
    pub fn create() -> Result<(Self, Descriptor), Errno> {
        let (words, file) = SharedWords::create("softrdma-credit", TABLE)?;
        words.words()[0].store(LAYOUT, Ordering::Release);
        Ok((Self { words }, file))
    }

    /// Maps the table of a broker.
    ///
    /// # Errors
    /// `EINVAL` for anything else, and what mapping it reports.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let words = SharedWords::open(file, TABLE)?;
        if words.words()[0].load(Ordering::Acquire) == LAYOUT {
            Ok(Self { words })
        } else {
            Err(Errno::INVAL)
        }
    }

    /// The broker: what the socket of `slot` was granted, in bytes of truesize.
    pub fn grant(&self, slot: u8, bytes: u64) {
        self.granted(slot).store(bytes, Ordering::Relaxed);
    }

    /// The broker: `sender` is gone, and with it what it had in flight.
    pub fn reclaim(&self, sender: u8) {
        for slot in 0..=u8::MAX {
            self.note(slot, sender, 0);
        }
    }

    /// A sender: what it has in flight towards `slot` from now on.
    pub fn note(&self, slot: u8, sender: u8, bytes: u64) {
        self.entry(slot, sender).store(bytes, Ordering::Relaxed);
        let (word, bit) = self.membership(slot, sender);
        let is_member = word.load(Ordering::Relaxed) & bit != 0;
        if bytes > 0 && !is_member {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if bytes == 0 && is_member {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// A sender: how full the buffer of `slot` is because of others.
    pub fn look(&self, slot: u8, sender: u8) -> Occupancy {
        let mut occupancy = Occupancy {
            granted: self.granted(slot).load(Ordering::Relaxed),
            ..Occupancy::default()
        };
        for index in 0..SET {
            let mut members = self.set_word(slot, index).load(Ordering::Relaxed);
            while members != 0 {
                let member = (index * 64) as u32 + members.trailing_zeros();
                members &= members - 1;
                let member = member as u8; // there are 4 words of 64 bits
                if member != sender {
                    let claim = self.entry(slot, member).load(Ordering::Relaxed);
                    occupancy.others += 1;
                    occupancy.others_in_flight += claim.min(ENTRY_MAX);
                }
            }
        }
        occupancy
    }

    fn granted(&self, slot: u8) -> &AtomicU64 {
        self.word(slot, 0)
    }

    fn set_word(&self, slot: u8, index: usize) -> &AtomicU64 {
        self.word(slot, 1 + index)
    }

    /// The word and the bit that tell whether `sender` is in the set.
    fn membership(&self, slot: u8, sender: u8) -> (&AtomicU64, u64) {
        let sender = usize::from(sender);
        (self.set_word(slot, sender / 64), 1 << (sender % 64))
    }

    fn entry(&self, slot: u8, sender: u8) -> &AtomicU64 {
        self.word(slot, LINE + usize::from(sender))
    }

    fn word(&self, slot: u8, offset: usize) -> &AtomicU64 {
        &self.words.words()[LINE + usize::from(slot) * ROW + offset]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> CreditTable {
        CreditTable::create().expect("memfd exists").0
    }

    #[test]
    fn senders_see_each_other_and_not_themselves() {
        let table = table();
        table.grant(9, 425_984);
        for (sender, bytes) in [(1, 1000), (63, 20), (64, 300), (255, 4)] {
            table.note(9, sender, bytes);
        }
        let seen = |sender| table.look(9, sender);
        assert_eq!(
            seen(1),
            Occupancy {
                granted: 425_984,
                others: 3,
                others_in_flight: 324
            }
        );
        assert_eq!(seen(2).others_in_flight, 1324);
        table.note(9, 64, 0);
        table.note(9, 1, 2000);
        assert_eq!((seen(255).others, seen(255).others_in_flight), (2, 2020));
        assert_eq!(table.look(8, 1), Occupancy::default());
    }

    #[test]
    fn nothing_is_left_of_a_sender_that_is_gone() {
        let table = table();
        for slot in 0..=u8::MAX {
            table.note(slot, 70, 5000);
            table.note(slot, 71, 1);
        }
        table.reclaim(70);
        for slot in 0..=u8::MAX {
            let seen = table.look(slot, 0);
            assert_eq!((seen.others, seen.others_in_flight), (1, 1));
        }
    }

    #[test]
    fn what_somebody_wrote_there_by_force_stays_within_bounds() {
        let table = table();
        for word in &table.words.words()[LINE..] {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let seen = table.look(3, 3);
        assert_eq!((seen.others, seen.others_in_flight), (255, 255 * ENTRY_MAX));
    }

    #[test]
    fn senders_share_what_was_granted_whoever_came_first() {
        let seen = |others, others_in_flight| {
            Occupancy {
                granted: 100_000,
                others,
                others_in_flight,
            }
            .allowance()
        };
        assert_eq!(seen(0, 0), 60_000);
        assert_eq!(seen(1, 0), 30_000);
        assert_eq!(seen(1, 40_000), 20_000);
        assert_eq!(seen(1, 60_000), 3_750, "the other one may never wake up");
        assert_eq!(seen(19, 57_000), 3_000);
        assert_eq!(Occupancy::default().allowance(), 0);
    }

    /// Senders that start one after another while the receiver sleeps: the worst that can happen.
    #[test]
    fn twenty_that_start_at_once_do_not_overrun_a_default_buffer() {
        let table = table();
        table.grant(1, 425_984);
        let mut sum = 0;
        for sender in 2..22 {
            let allowance = table.look(1, sender).allowance();
            table.note(1, sender, allowance);
            sum += allowance;
        }
        assert!(sum < 425_984 / 5 * 4, "{sum} bytes");
    }

    #[test]
    fn another_mapping_shows_the_same_and_other_files_are_refused() {
        let (one, file) = CreditTable::create().expect("memfd exists");
        let other = CreditTable::open(&file).expect("made just now");
        one.note(5, 6, 77);
        assert_eq!(other.look(5, 1).others_in_flight, 77);
        let (_words, file) = SharedWords::create("softrdma-test", TABLE).expect("memfd exists");
        assert_eq!(CreditTable::open(&file).err(), Some(Errno::INVAL));
    }
}
