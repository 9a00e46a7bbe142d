//! When to send again, and when to give up.
//!
//! Read first: IBA 9.7.5.2, 9.7.6 (requester timers and retries). A retry always goes back to the
//! oldest packet that is not acknowledged. Each loss is retried once; only an answer that
//! acknowledges something new, or the timer, allows the next retry.

use core::time::Duration;

use wire::RnrTimer;

use crate::completion::Status;
use crate::qp::Attributes;
use crate::time::Instant;

/// `rnr_retry` of a requester that waits for ever. There is no such value of `retry_cnt`: there 7
/// means seven. spec: IBA 9.7.5.2.8
const RNR_RETRY_INFINITE: u8 = 7;

/// The timers of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Nothing was acknowledged for the whole timeout.
    Acknowledgement,
    /// The wait that an RNR NAK asked for is over.
    ReceiverNotReady,
}

impl Timer {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Acknowledgement, Self::ReceiverNotReady];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is known to be lost.
    Flowing,
    /// Went back; no progress since.
    Retrying,
    /// The peer has no receive posted: nothing is sent until then.
    Waiting { until: Instant },
}

/// Retries and timers of one requester.
#[derive(Debug)]
pub struct Retry {
    phase: Phase,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Timeouts since the last progress.
    timeouts: u8,
    /// When the oldest packet in flight counts as lost.
    deadline: Option<Instant>,
    /// No acknowledgement timeout is shorter. spec: IBA 9.7.6.1.3 (an implementation may round up)
    timeout_min: Duration,
}

impl Retry {
    /// Nothing is in flight.
    pub const fn new(timeout_min: Duration) -> Self {
        Self {
            phase: Phase::Flowing,
            retries_left: 0,
            rnr_retries_left: 0,
            timeouts: 0,
            deadline: None,
            timeout_min,
        }
    }

    /// A connection begins.
    pub fn start(&mut self, attributes: &Attributes) {
        self.stop();
        self.reload(attributes);
    }

    /// No timer runs any more.
    pub fn stop(&mut self) {
        self.phase = Phase::Flowing;
        self.deadline = None;
    }

    /// Something new was acknowledged; more is in flight or not.
    pub fn progress(&mut self, now: Instant, attributes: &Attributes, in_flight: bool) {
        self.phase = Phase::Flowing;
        self.reload(attributes);
        self.deadline = None;
        if in_flight {
            self.sent(now, attributes);
        }
    }

    /// A packet leaves: the timer runs from the first one in flight, not from the last.
    pub fn sent(&mut self, now: Instant, attributes: &Attributes) {
        if self.deadline.is_none() {
            self.deadline = self.timeout(attributes).map(|timeout| now.plus(timeout));
        }
    }

    /// Whether requests must not be sent now.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// When a timer fires.
    pub fn deadline(&self, timer: Timer) -> Option<Instant> {
        match (timer, self.phase) {
            (Timer::ReceiverNotReady, Phase::Waiting { until }) => Some(until),
            (Timer::ReceiverNotReady, _) => None,
            (Timer::Acknowledgement, _) => self.deadline,
        }
    }

    /// A NAK or a gap in the answers says that something is lost. `Ok(true)` is to go back;
    /// `Ok(false)` is that it was done already, or that an RNR wait will do it.
    pub fn lost(&mut self, progressed: bool) -> Result<bool, Status> {
        if self.phase != Phase::Flowing {
            return Ok(false);
        }
        if !progressed {
            self.spend()?;
        }
        self.went_back();
        Ok(true)
    }

    /// The acknowledgement timer fired: go back.
    pub fn timed_out(&mut self) -> Result<(), Status> {
        self.spend()?;
        self.timeouts = self.timeouts.saturating_add(1);
        self.went_back();
        Ok(())
    }

    /// The peer was not ready. `Ok(true)` is to go back and wait.
    pub fn not_ready(
        &mut self,
        now: Instant,
        attributes: &Attributes,
        timer: RnrTimer,
    ) -> Result<bool, Status> {
        if self.is_waiting() {
            return Ok(false);
        }
        if attributes.rnr_retry < RNR_RETRY_INFINITE {
            self.rnr_retries_left = self
                .rnr_retries_left
                .checked_sub(1)
                .ok_or(Status::RnrRetryExceeded)?;
        }
        self.deadline = None;
        self.phase = Phase::Waiting {
            until: now.plus(Duration::from_nanos(timer.nanoseconds())),
        };
        Ok(true)
    }

    /// The RNR wait is over. What was in flight behind the refused packet drew a sequence NAK that
    /// may still be under way: it is no news.
    pub fn wait_over(&mut self) {
        self.phase = Phase::Retrying;
    }

    fn went_back(&mut self) {
        self.phase = Phase::Retrying;
        self.deadline = None;
    }

    fn spend(&mut self) -> Result<(), Status> {
        self.retries_left = self
            .retries_left
            .checked_sub(1)
            .ok_or(Status::RetryExceeded)?;
        Ok(())
    }

    fn reload(&mut self, attributes: &Attributes) {
        self.retries_left = attributes.retry_count;
        self.rnr_retries_left = attributes.rnr_retry;
        self.timeouts = 0;
    }

    /// `None` is to wait for ever. The standard lets a loss be detected between T and 4T: the first
    /// time after T, so that a lost packet costs little, then after 2T and 4T, so that a peer
    /// process that waits for a core is not given up. spec: IBA 9.7.6.1.3
    fn timeout(&self, attributes: &Attributes) -> Option<Duration> {
        if attributes.timeout == 0 {
            return None;
        }
        let timeout = Duration::from_nanos(4096_u64 << attributes.timeout.min(31));
        Some(timeout.max(self.timeout_min) * (1 << self.timeouts.min(2)))
    }
}
