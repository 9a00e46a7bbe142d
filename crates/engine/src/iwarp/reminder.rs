//! A word to a peer that says nothing: it may not have looked.
//!
//! Linux's siw tells whom it accepts before it listens to the stream. What comes in between lies in
//! its socket until something else does; TCP has delivered it and sends nothing again, so both ends
//! would wait for ever. An RDMA Write of no bytes changes nothing at a peer, and makes it look.
//! Whoever has answered once is never reminded.

use core::time::Duration;

use crate::time::Instant;

/// When we look whether the peer has answered, counted from what we said first.
const LOOKS: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
];

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reminder {
    /// Neither end has said anything.
    Silence,
    /// We have spoken, and wait for the first word of the peer.
    Waiting {
        /// When that was.
        since: Instant,
        /// The next one of [`LOOKS`].
        next: usize,
        /// Segments that had left at the last look: more would be a reminder themselves.
        sent: u64,
        /// It is time for one.
        is_due: bool,
    },
    /// The peer has spoken, or been reminded often enough.
    Needless,
}

impl Reminder {
    /// The peer has said something.
    pub fn heard(&mut self) {
        *self = Self::Needless;
    }

    /// We have: `sent` segments up to now.
    pub fn spoke(&mut self, now: Instant, sent: u64) {
        if matches!(self, Self::Silence) {
            *self = Self::Waiting {
                since: now,
                next: 0,
                sent,
                is_due: false,
            };
        }
    }

    /// When to [`Self::look`].
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Waiting { since, next, .. } => LOOKS.get(*next).map(|after| since.plus(*after)),
            _ => None,
        }
    }

    /// Finds out whether the peer is to be reminded, if it is time.
    pub fn look(&mut self, now: Instant, sent_by_now: u64) {
        let Self::Waiting {
            since,
            next,
            sent,
            is_due,
        } = self
        else {
            return;
        };
        let looks = LOOKS.iter().take_while(|after| since.plus(**after) <= now);
        let passed = looks.count();
        if passed > *next {
            *next = passed;
            *is_due = *sent == sent_by_now;
            *sent = sent_by_now;
        }
    }

    /// Whether a reminder is to leave now; once.
    pub fn take(&mut self) -> bool {
        let Self::Waiting { is_due, sent, .. } = self else {
            return false;
        };
        *sent += u64::from(*is_due); // not one for the next look
        core::mem::take(is_due)
    }
}
