//! The one point every packet passes: counters and the seeded fault plan; sans-IO.
//!
//! All packets pass [`Tap::outgoing`] or [`Tap::incoming`] *finished*: identification and ICRC are
//! in place. So a count is a count of what is on the wire, and a corrupted bit is one that the
//! receiver can detect. What the tap decides is a [`Verdict`]; the caller carries it out, because
//! only the caller owns the packet: one that is damaged or delayed leaves its run as an owned copy,
//! and waits in a [`Delayed`] queue. The device and the simulator use the same plan.
//!
//! | what | where |
//! |---|---|
//! | counters with rxe's names, a reason for every silent drop | [`counter`] |
//! | what a fault plan says, and how it is written | [`fault`] |
//! | packets that wait | [`delayed`] |
//!
//! Capture records belong here too when they come: at the top of [`Tap::outgoing`] and
//! [`Tap::incoming`], *before* the verdict for what was to be sent and for what arrived, so that a
//! capture shows the packet as its sender meant it, with the verdict in the record.
#![forbid(unsafe_code)]

pub mod counter;
pub mod delayed;
pub mod fault;

pub use counter::{Counters, DropReason, Drops};
pub use delayed::Delayed;
pub use fault::{Direction, FaultPlan, Injector, PlanError};

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on as it is.
    Pass,
    /// It is lost. The tap has counted it.
    Drop,
    /// It goes on twice.
    Duplicate,
    /// It goes on with one bit inverted, which the ICRC covers.
    Corrupt {
        /// Which bit: `bit / 8` is the byte of the packet, `bit % 8` the power of two in it.
        bit: usize,
    },
    /// It goes on later.
    Delay {
        /// When, on the clock of the `now_ns` that was given.
        until_ns: u64,
    },
}

/// The tap of one shard.
#[derive(Debug, Default)]
pub struct Tap {
    counters: Counters,
    drops: Drops,
    /// Boxed: almost always absent, and then a single branch.
    faults: Option<Box<Faults>>,
}

/// A plan at work: the two directions decide independently of each other.
#[derive(Debug)]
struct Faults {
    plan: FaultPlan,
    outgoing: Option<Injector>,
    incoming: Option<Injector>,
}

impl Tap {
    /// A tap that counts, and does what `plan` says if there is one.
    pub fn new(plan: Option<FaultPlan>) -> Self {
        let faults = plan.map(|plan| {
            Box::new(Faults {
                outgoing: Injector::for_direction(&plan, Direction::Tx),
                incoming: Injector::for_direction(&plan, Direction::Rx),
                plan,
            })
        });
        Self {
            counters: Counters::default(),
            drops: Drops::default(),
            faults,
        }
    }

    /// Whether packets may meet faults; if so each has to be asked for alone.
    #[inline]
    pub fn has_plan(&self) -> bool {
        self.faults.is_some()
    }

    /// The plan at work.
    pub fn plan(&self) -> Option<&FaultPlan> {
        self.faults.as_ref().map(|faults| &faults.plan)
    }

    /// What becomes of a finished packet, BTH to ICRC, that is about to leave at `now_ns`.
    #[inline]
    pub fn outgoing(&mut self, now_ns: u64, packet: &[u8]) -> Verdict {
        match &mut self.faults {
            None => Verdict::Pass,
            Some(faults) => {
                let verdict = decide(&mut faults.outgoing, now_ns, packet);
                self.count_fault(verdict);
                verdict
            }
        }
    }

    /// What becomes of a packet, BTH to ICRC, that arrived at `now_ns` and was not looked at yet.
    #[inline]
    pub fn incoming(&mut self, now_ns: u64, packet: &[u8]) -> Verdict {
        match &mut self.faults {
            None => Verdict::Pass,
            Some(faults) => {
                let verdict = decide(&mut faults.incoming, now_ns, packet);
                self.count_fault(verdict);
                verdict
            }
        }
    }

    /// Counts packets that left.
    #[inline]
    pub fn sent(&mut self, packets: usize) {
        self.counters.sent_pkts += packets as u64;
    }

    /// Counts a packet that arrived, was right and was for us.
    #[inline]
    pub fn received(&mut self) {
        self.counters.rcvd_pkts += 1;
    }

    /// Counts a packet that was dropped in silence.
    #[inline]
    pub fn dropped(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Counts a packet that arrived here and is for another process: passed on to it, or dropped.
    pub fn foreign(&mut self, was_passed_on: bool) {
        if was_passed_on {
            self.counters.foreign_passed_on += 1;
        } else {
            self.drops.count(DropReason::ForeignSlot);
        }
    }

    /// Everything that is counted but drops.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Drops by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    #[cold]
    fn count_fault(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Pass => {}
            Verdict::Drop => self.drops.count(DropReason::FaultInjected),
            Verdict::Duplicate => self.counters.fault_duplicated += 1,
            Verdict::Corrupt { .. } => self.counters.fault_corrupted += 1,
            Verdict::Delay { .. } => self.counters.fault_delayed += 1,
        }
    }
}

#[cold]
fn decide(injector: &mut Option<Injector>, now_ns: u64, packet: &[u8]) -> Verdict {
    match injector {
        Some(injector) => injector.decide(now_ns, packet.len()),
        None => Verdict::Pass,
    }
}

#[cfg(test)]
mod tests;
