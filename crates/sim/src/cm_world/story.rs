//! What a program was told of one connection, and whether that makes sense.

use engine::cm::CmEventKind;
use wire::mad::{RejectReason, SidrStatus};

use super::plan::Asks;

/// Who asked, who was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Active,
    Passive,
}

/// Something that a program is told after the connection has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Response,
    Established,
    Resolved(SidrStatus),
    Rejected(RejectReason),
    Unreachable,
    Disconnected,
    TimeWaitExit,
}

/// What the program has done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// It has the connection.
    Stays,
    /// It has left it.
    Left,
    /// It has forgotten the request.
    Forgot,
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub struct Story {
    pub plan: usize,
    pub side: Side,
    asks: Asks,
    told: Vec<Told>,
    presence: Presence,
}

impl Story {
    pub fn new(plan: usize, side: Side, asks: Asks) -> Self {
        Self {
            plan,
            side,
            asks,
            told: Vec::new(),
            presence: Presence::Stays,
        }
    }

    /// The next thing, if it can be the next.
    pub fn tell(&mut self, kind: &CmEventKind) -> Result<(), String> {
        let told = match kind {
            CmEventKind::ConnectResponse(_) => Told::Response,
            CmEventKind::Established { .. } => Told::Established,
            CmEventKind::SidrResponse(response) => Told::Resolved(response.status),
            CmEventKind::Rejected(rejection) => Told::Rejected(rejection.reason),
            CmEventKind::Unreachable => Told::Unreachable,
            CmEventKind::Disconnected { has_timed_out } => {
                if *has_timed_out {
                    return Err("a DREQ was not answered".to_owned());
                }
                Told::Disconnected
            }
            CmEventKind::TimeWaitExit => Told::TimeWaitExit,
            CmEventKind::ConnectRequest(_) | CmEventKind::SidrRequest(_) => {
                return Err("told of a request twice".to_owned());
            }
        };
        let is_first = self.told.is_empty();
        let is_right = match (told, self.side, self.asks) {
            _ if self.has_left() => false,
            (Told::Response, Side::Active, Asks::Connection) => is_first,
            (Told::Established, Side::Passive, Asks::Connection) => is_first,
            (Told::Resolved(_), Side::Active, Asks::QueuePair) => is_first,
            (Told::Disconnected, Side::Active, Asks::Connection) => !is_first && !self.has_ended(),
            (Told::Disconnected, Side::Passive, Asks::Connection) => !self.has_ended(),
            (Told::Rejected(_), _, Asks::Connection) => !self.has_ended(),
            (Told::Unreachable, Side::Active, _) => is_first,
            (Told::Unreachable, Side::Passive, Asks::Connection) => is_first,
            (Told::TimeWaitExit, _, Asks::Connection) => matches!(
                self.told.last(),
                Some(Told::Disconnected | Told::Rejected(_))
            ),
            _ => false,
        };
        if !is_right {
            return Err(format!("told {told:?} after {:?}", self.told));
        }
        self.told.push(told);
        Ok(())
    }

    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// Whether it has been told of the end.
    pub fn has_ended(&self) -> bool {
        self.told.iter().any(|told| {
            matches!(
                told,
                Told::Rejected(_) | Told::Unreachable | Told::Disconnected
            )
        })
    }

    pub fn leave(&mut self) {
        self.presence = Presence::Left;
    }

    pub fn forget(&mut self) {
        self.presence = Presence::Forgot;
    }

    /// Whether the program no longer has the connection.
    pub fn has_left(&self) -> bool {
        self.presence != Presence::Stays
    }

    /// Whether the program had no room for the request.
    pub fn has_forgotten(&self) -> bool {
        self.presence == Presence::Forgot
    }
}
