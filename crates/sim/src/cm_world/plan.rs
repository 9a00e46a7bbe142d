//! What the two programs of a connection do, and what must come of it.

use core::time::Duration;

use engine::cm::LocalQueuePair;
use wire::mad::{Bits, Guid, Padded, RejectReason, SidrStatus};
use wire::{Psn, Qpn};

use super::story::{Side, Story, Told};
use crate::rng::Rng;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A connection.
    Connection,
    /// A datagram queue pair.
    QueuePair,
}

/// What the active program does with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveTemper {
    /// It gets ready.
    Willing,
    /// It refuses.
    Rejects,
    /// It leaves, some time after it asked.
    Leaves(Duration),
}

/// What the passive program does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassiveTemper {
    /// It accepts.
    Willing,
    /// It has no room for the first, then it accepts.
    ForgetsFirst,
    /// It refuses.
    Rejects,
    /// It leaves.
    Leaves,
}

/// Who ends an established connection, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nobody.
    Never,
    /// This side closes.
    Closes(Side),
    /// Both sides close.
    BothClose,
    /// This side's program leaves.
    Leaves(Side),
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The active side's host.
    pub host: usize,
    pub begins_at: Duration,
    pub asks: Asks,
    pub active: ActiveTemper,
    pub passive: PassiveTemper,
    pub ending: Ending,
    /// How long an established connection lasts.
    pub lasts: Duration,
    /// How long programs take to do something.
    pub pace: Duration,
    /// The passive side sees data before the RTU.
    pub data_comes_first: bool,
}

impl Plan {
    pub fn random(rng: &mut Rng) -> Self {
        let asks = rng.pick(&[Asks::Connection, Asks::Connection, Asks::QueuePair]);
        let leaves = ActiveTemper::Leaves(rng.duration(Duration::from_secs(20)));
        let willing = ActiveTemper::Willing;
        let active = match asks {
            Asks::Connection => {
                rng.pick(&[willing, willing, willing, ActiveTemper::Rejects, leaves])
            }
            Asks::QueuePair => rng.pick(&[willing, willing, leaves]),
        };
        let slowest = rng.pick(&[0, 20, 5_000, 15_000]);
        Self {
            host: rng.below(2) as usize,
            begins_at: rng.duration(Duration::from_secs(25)),
            asks,
            active,
            passive: rng.pick(&[
                PassiveTemper::Willing,
                PassiveTemper::Willing,
                PassiveTemper::Willing,
                PassiveTemper::ForgetsFirst,
                PassiveTemper::Rejects,
                PassiveTemper::Leaves,
            ]),
            ending: rng.pick(&[
                Ending::Never,
                Ending::Closes(Side::Active),
                Ending::Closes(Side::Passive),
                Ending::BothClose,
                Ending::Leaves(Side::Active),
                Ending::Leaves(Side::Passive),
            ]),
            lasts: rng.duration(Duration::from_secs(10)),
            pace: rng.duration(Duration::from_millis(slowest)),
            data_comes_first: active == willing && rng.chance(200),
        }
    }

    /// Whether `side` closes what is established.
    pub fn closes(&self, side: Side) -> bool {
        self.ending == Ending::Closes(side) || self.ending == Ending::BothClose
    }

    /// Whether the passive program refuses in the end.
    fn is_refused(&self) -> bool {
        matches!(self.passive, PassiveTemper::Rejects | PassiveTemper::Leaves)
    }

    /// What must have come of the plan when nothing more happens. `stories` are its own.
    pub fn check(&self, stories: &[&Story]) -> Result<(), String> {
        let of = |side| stories.iter().filter(move |story| story.side == side);
        let mut actives = of(Side::Active);
        let (Some(active), None) = (actives.next(), actives.next()) else {
            return Err("not asked once".to_owned());
        };
        match (self.asks, self.active) {
            (_, ActiveTemper::Leaves(_)) => of(Side::Passive).try_for_each(|story| {
                let is_over = story.has_left() || story.has_ended();
                let is_right = is_over || self.asks == Asks::QueuePair;
                is_right
                    .then_some(())
                    .ok_or("nobody told the passive side".to_owned())
            }),
            (Asks::QueuePair, _) => {
                let status = if self.is_refused() {
                    SidrStatus::Rejected
                } else {
                    SidrStatus::Valid
                };
                expect(active, &[&[Told::Resolved(status)]])
            }
            (Asks::Connection, _) if self.is_refused() => {
                expect(active, &[&[Told::Rejected(RejectReason::Consumer)]])
            }
            (Asks::Connection, ActiveTemper::Rejects) => {
                let stayed = of(Side::Passive).filter(|story| !story.has_left());
                stayed.clone().try_for_each(|story| {
                    let refusal = Told::Rejected(RejectReason::Consumer);
                    expect(story, &[&[refusal], &[Told::Unreachable]])
                })
            }
            (Asks::Connection, ActiveTemper::Willing) => {
                let mut passives = of(Side::Passive).filter(|story| !story.has_forgotten());
                let (Some(passive), None) = (passives.next(), passives.next()) else {
                    return Err("not accepted once".to_owned());
                };
                self.check_connection(active, passive)
            }
        }
    }

    /// Two willing programs.
    fn check_connection(&self, active: &Story, passive: &Story) -> Result<(), String> {
        const ENDED: [Told; 2] = [Told::Disconnected, Told::TimeWaitExit];
        let response = Told::Response;
        let (first, second) = (ENDED[0], ENDED[1]);
        match self.ending {
            Ending::Never => {
                expect(active, &[&[response]])?;
                expect(passive, &[&[Told::Established]])
            }
            Ending::Leaves(Side::Active) => {
                let whole = [Told::Established, first, second];
                expect(active, &[&[response]])?;
                expect(passive, &[&whole, &ENDED])
            }
            Ending::Leaves(Side::Passive) => {
                expect(active, &[&[response, first, second]])?;
                expect(passive, &[&[Told::Established]])
            }
            Ending::Closes(_) | Ending::BothClose => {
                let whole = [Told::Established, first, second];
                expect(active, &[&[response, first, second]])?;
                // a DREQ may be the first thing to arrive after the REP
                expect(passive, &[&whole, &ENDED])
            }
        }
    }

    /// What a side offers.
    pub fn queue_pair(host: usize, number: usize) -> LocalQueuePair {
        LocalQueuePair {
            guid: Guid(0xa0 + host as u64),
            qpn: Qpn::from_parts(host as u8 + 1, number as u16 + 2),
            starting_psn: Psn::truncated(number as u32),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry_count: Bits::MAX,
            has_srq: false,
        }
    }
}

/// A story has to be one of these.
fn expect(story: &Story, right: &[&[Told]]) -> Result<(), String> {
    if right.contains(&story.told()) {
        return Ok(());
    }
    let (side, told) = (story.side, story.told());
    Err(format!(
        "the {side:?} program was told {told:?}, not {right:?}"
    ))
}

/// Private data from which the other side knows the plan.
pub fn mark<const N: usize>(number: usize) -> Padded<N> {
    Padded::new(&[b'p', number as u8 + 1]).unwrap_or_default() // two bytes do fit
}

/// The plan of private data.
pub fn marked(private_data: &[u8]) -> Result<usize, String> {
    match private_data {
        [b'p', number] if *number > 0 => Ok(usize::from(*number) - 1),
        _ => Err(format!("private data came as {private_data:02x?}")),
    }
}
