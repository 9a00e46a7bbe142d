//! A window that is learned from losses, for one destination and all queue pairs to it.
//!
//! The idea is TCP's (RFC 5681): it grows by what is acknowledged until the first loss, then by one
//! step for each window acknowledged; a loss halves it, once for all that was in flight then.

/// Least window: one packet of 4 KiB alone.
const FLOOR: u64 = 8 << 10;
/// What is added for each window that was acknowledged after the first loss.
const STEP: u64 = 8 << 10;

/// The window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    bytes: u64,
    max: u64,
    /// Up to here it grows fast.
    threshold: u64,
    /// What was in flight at the last loss and has not left since: losses of it are no news.
    recovering: u64,
}

impl Learned {
    /// Starts with `first` bytes and never grows beyond `max`.
    pub fn starting(first: u64, max: u64) -> Self {
        Self {
            bytes: first.min(max),
            max,
            threshold: max,
            recovering: 0,
        }
    }

    /// Bytes that may be in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `released` bytes of the `in_flight` ones were acknowledged. A window that was not used says
    /// nothing about a larger one.
    pub fn acknowledged(&mut self, in_flight: u64, released: u64) {
        let is_news = self.recovering == 0 && in_flight >= self.bytes / 2;
        self.gave_up(released);
        if is_news {
            let more = if self.bytes < self.threshold {
                released
            } else {
                released * STEP / self.bytes.max(1)
            };
            self.bytes = (self.bytes + more).min(self.max);
        }
    }

    /// `released` bytes are not in flight any more.
    pub fn gave_up(&mut self, released: u64) {
        self.recovering = self.recovering.saturating_sub(released);
    }

    /// Something of the `in_flight` bytes was lost.
    pub fn lost(&mut self, in_flight: u64) {
        if self.recovering > 0 {
            return;
        }
        self.recovering = in_flight;
        self.bytes = (self.bytes / 2).max(FLOOR).min(self.bytes);
        self.threshold = self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn it_doubles_up_to_the_first_loss_and_then_grows_by_steps() {
        let mut window = Learned::starting(64 * KIB, 512 * KIB);
        window.acknowledged(64 * KIB, 64 * KIB);
        assert_eq!(window.bytes(), 128 * KIB);
        window.lost(128 * KIB);
        assert_eq!(window.bytes(), 64 * KIB);
        window.acknowledged(128 * KIB, 128 * KIB);
        assert_eq!(window.bytes(), 64 * KIB, "from before the loss");
        window.acknowledged(64 * KIB, 64 * KIB);
        assert_eq!(window.bytes(), 72 * KIB);
        for _ in 0..1000 {
            let full = window.bytes();
            window.acknowledged(full, full);
        }
        assert_eq!(window.bytes(), 512 * KIB);
    }

    #[test]
    fn losses_of_one_flight_halve_it_once_and_never_to_nothing() {
        let mut window = Learned::starting(256 * KIB, 512 * KIB);
        // sixteen queue pairs had 8 KiB in flight each, and each learns of its own loss
        for left in (1..=16).rev() {
            window.lost(left * 8 * KIB);
            window.gave_up(8 * KIB);
        }
        assert_eq!(window.bytes(), 128 * KIB);
        for _ in 0..10 {
            window.lost(10);
            window.gave_up(10);
        }
        assert_eq!(window.bytes(), FLOOR);
        assert_eq!(Learned::starting(1, 1).bytes(), 1);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = Learned::starting(64 * KIB, 512 * KIB);
        for _ in 0..100 {
            window.acknowledged(KIB, KIB);
        }
        assert_eq!(window.bytes(), 64 * KIB);
    }
}
