//! Sending again, and the times of connection management.
//!
//! Fields of time on the wire are exponents of 4.096 µs; Linux and we take 2^(n - 8) ms instead,
//! which is close and never less than a millisecond.

use core::time::Duration;

use wire::mad::Bits;

use super::connection::{Context, MadBytes, Ownership};
use crate::time::Instant;

/// How long the time of an exponent of 4.096 µs is here.
pub fn duration(exponent: Bits<5>) -> Duration {
    Duration::from_millis(1 << exponent.get().saturating_sub(8))
}

/// The acknowledgement timeout, as an exponent of 4.096 µs, of a path on which packets live for
/// `packet_life` to a peer that takes `ack_delay`: twice the former and the latter, rounded to a
/// power of two.
pub fn ack_timeout(packet_life: Bits<5>, ack_delay: Bits<5>) -> Bits<5> {
    let (there_and_back, delay) = (packet_life.get() + 1, ack_delay.get());
    let (most, least) = (there_and_back.max(delay), there_and_back.min(delay));
    Bits::saturating(most + u32::from(least + 1 >= most))
}

/// How often and after which wait a side sends its messages again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Before each repetition, and before giving up.
    pub wait: Duration,
    /// Repetitions.
    pub retries: u8,
}

/// A message that is sent until it is answered.
#[derive(Debug)]
pub(super) struct Resend {
    mad: MadBytes,
    wait: Duration,
    retries_left: u8,
    at: Instant,
    patience: Patience,
}

/// Who said how long an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// The schedule.
    Own,
    /// An MRA of the peer; a second one changes nothing.
    Asked,
}

/// What a time that was up came to.
pub(super) enum Expired {
    /// It was sent again.
    Again(Resend),
    /// It was sent often enough.
    GivenUp,
}

impl Resend {
    /// From a message that was sent now.
    pub fn new(cx: &Context<'_>, mad: MadBytes) -> Self {
        let Schedule { wait, retries } = cx.common.schedule;
        Self {
            mad,
            wait,
            retries_left: retries,
            at: cx.now.plus(wait),
            patience: Patience::Own,
        }
    }

    /// When it is to be looked at.
    pub fn deadline(&self) -> Instant {
        self.at
    }

    /// The time is up.
    pub fn expire(mut self, cx: &mut Context<'_>) -> Expired {
        let Some(left) = self.retries_left.checked_sub(1) else {
            return Expired::GivenUp;
        };
        self.retries_left = left;
        self.at = cx.now.plus(self.wait);
        cx.send_again(&self.mad);
        Expired::Again(self)
    }

    /// The peer has asked for `service_time`; false if it had asked before.
    pub fn extend(&mut self, cx: &Context<'_>, service_time: Duration) -> bool {
        if self.patience == Patience::Asked {
            return false;
        }
        self.patience = Patience::Asked;
        self.wait = service_time + cx.common.time_wait;
        self.at = cx.now.plus(self.wait);
        true
    }
}

/// How long an answer is remembered that is never sent on a timer: it is given again when the peer
/// repeats what it answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    /// Until then, whoever has the connection.
    Until(Instant),
    /// That time is over, but the program has the connection still.
    WhileOwned,
}

impl Kept {
    /// From now on, for as long as the peer takes to repeat itself three times.
    pub fn new(cx: &Context<'_>) -> Self {
        const REPETITIONS: u32 = 3;
        Self::Until(cx.now.plus(REPETITIONS * cx.common.schedule.wait))
    }

    /// When it is to be looked at.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(at) => Some(at),
            Self::WhileOwned => None,
        }
    }

    /// The time is up. `None` if it is forgotten.
    pub fn expire(self, cx: &Context<'_>) -> Option<Self> {
        match cx.common.ownership {
            Ownership::Program => Some(Self::WhileOwned),
            Ownership::Nobody => None,
        }
    }

    /// The program leaves the connection. `None` if it is forgotten.
    pub fn leave(self) -> Option<Self> {
        match self {
            Self::Until(_) => Some(self),
            Self::WhileOwned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_milliseconds() {
        let times = [(0, 1), (8, 1), (9, 2), (16, 256), (17, 512), (20, 4096)];
        for (exponent, milliseconds) in times {
            let time = duration(Bits::truncated(exponent));
            assert_eq!(time, Duration::from_millis(milliseconds), "{exponent}");
        }
    }

    #[test]
    fn the_ack_timeout_adds_the_delay_if_it_counts() {
        let timeout = |life, delay| {
            let timeout = ack_timeout(Bits::truncated(life), Bits::truncated(delay));
            timeout.get()
        };
        // cm.md §5: 17 with a delay below 16, 18 with 16
        assert_eq!([0, 15, 16].map(|delay| timeout(16, delay)), [17, 17, 18]);
        assert_eq!(
            [17, 18, 19, 20].map(|delay| timeout(16, delay)),
            [18, 19, 19, 20]
        );
        assert_eq!(timeout(31, 31), 31);
    }
}
