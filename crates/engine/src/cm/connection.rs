//! One connection: what it knows in every state, the states, and what a state may do.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::IpAddr;

use wire::Qpn;
use wire::mad::{
    Answered, Bits, CommId, Guid, Mad, Message, Padded, Rej, RejectReason, TransactionId,
};

use super::active::{RepReceived, ReqSent};
use super::event::{CmEvent, CmEventKind};
use super::options::Config;
use super::passive::{RepSent, ReqReceived};
use super::reject::{Refusal, Refused};
use super::release::{DreqReceived, DreqSent, Established, TimeWait};
use super::retry::Schedule;
use super::sidr::{SidrAnswered, SidrReceived, SidrSent};
use crate::path::{Path, PathMeta};
use crate::time::Instant;

/// A datagram as it was sent.
pub(super) type MadBytes = Box<[u8; Mad::LENGTH]>;

/// A datagram to send from queue pair 1 to queue pair 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub path: Path,
    /// The payload of the packet.
    pub mad: MadBytes,
}

/// What a connection is known by at the peer: communication IDs and queue pair numbers are of a
/// device, and a host can name only its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub guid: Guid,
    pub address: IpAddr,
}

/// What is known in every state.
#[derive(Debug)]
pub(super) struct Common {
    pub local_id: CommId,
    /// 0 until it is known.
    pub remote_id: CommId,
    pub local_guid: Guid,
    pub local_qpn: Qpn,
    pub remote_guid: Guid,
    pub remote_qpn: Qpn,
    /// Of the datagrams.
    pub path: Path,
    /// Of the exchange that sets up the connection.
    pub transaction: TransactionId,
    pub schedule: Schedule,
    /// How long packets of the connection may be under way.
    pub time_wait: Duration,
    /// Whether the program still has it: then it is told, and the record stays.
    pub ownership: Ownership,
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// The program's, until it destroys it.
    Program,
    /// Nobody's: the program has left it, and it goes away when the peer has been told.
    Nobody,
}

impl Common {
    /// A connection of which only the own side is known.
    pub fn new(local_id: CommId, path: Path, schedule: Schedule) -> Self {
        let path = Path {
            local: path.local.to_canonical(),
            remote: path.remote.to_canonical(),
            ..path
        };
        Self {
            local_id,
            remote_id: CommId(0),
            local_guid: Guid::default(),
            local_qpn: Qpn::default(),
            remote_guid: Guid::default(),
            remote_qpn: Qpn::default(),
            path,
            transaction: own_transaction(local_id),
            schedule,
            time_wait: Duration::ZERO,
            ownership: Ownership::Program,
        }
    }

    /// Who the peer is.
    pub fn peer(&self) -> Peer {
        Peer {
            guid: self.remote_guid,
            address: self.path.remote,
        }
    }
}

/// The exchanges that the owner of a communication ID begins. The upper half says that it is we,
/// the lower one which connection, as Linux has it; to the peer it means nothing.
pub(super) fn own_transaction(id: CommId) -> TransactionId {
    TransactionId(1 << 32 | u64::from(id.0))
}

/// The states. spec: IBA 12.9
#[derive(Debug)]
pub(super) enum State {
    /// Nothing is under way; the program may destroy it.
    Idle,
    ReqSent(ReqSent),
    RepReceived(RepReceived),
    ReqReceived(ReqReceived),
    RepSent(RepSent),
    Established(Established),
    DreqSent(DreqSent),
    DreqReceived(DreqReceived),
    TimeWait(TimeWait),
    Refused(Refused),
    SidrSent(SidrSent),
    SidrReceived(SidrReceived),
    SidrAnswered(SidrAnswered),
}

impl State {
    /// When the state wants to be looked at.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::ReqSent(state) => Some(state.resend.deadline()),
            Self::RepSent(state) => Some(state.resend.deadline()),
            Self::DreqSent(state) => Some(state.resend.deadline()),
            Self::SidrSent(state) => Some(state.resend.deadline()),
            Self::TimeWait(state) => Some(state.until),
            Self::Refused(state) => state.kept.deadline(),
            Self::SidrAnswered(state) => state.kept.deadline(),
            Self::Idle
            | Self::RepReceived(_)
            | Self::ReqReceived(_)
            | Self::Established(_)
            | Self::DreqReceived(_)
            | Self::SidrReceived(_) => None,
        }
    }

    /// The time is up.
    pub fn expire(self, cx: &mut Context<'_>) -> Self {
        match self {
            Self::ReqSent(state) => state.expire(cx),
            Self::RepSent(state) => state.expire(cx),
            Self::DreqSent(state) => state.expire(cx),
            Self::SidrSent(state) => state.expire(cx),
            Self::TimeWait(_) => {
                cx.tell(CmEventKind::TimeWaitExit);
                Self::Idle
            }
            Self::Refused(state) => state.expire(cx),
            Self::SidrAnswered(state) => state.expire(cx),
            other => other,
        }
    }

    /// Whether the program has not answered a request yet.
    pub fn awaits_answer(&self) -> bool {
        matches!(self, Self::ReqReceived(_) | Self::SidrReceived(_))
    }
}

/// Where datagrams and events wait to be fetched.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub transmit: VecDeque<Outgoing>,
    pub events: VecDeque<CmEvent>,
}

impl Output {
    /// Puts a datagram into the queue.
    pub fn send(&mut self, path: Path, mad: Mad) -> MadBytes {
        let mad = Box::new(mad.to_bytes());
        self.transmit.push_back(Outgoing {
            path,
            mad: mad.clone(),
        });
        mad
    }
}

/// What a state has to work with.
pub(super) struct Context<'a> {
    pub now: Instant,
    pub config: &'a Config,
    pub common: &'a mut Common,
    pub out: &'a mut Output,
}

impl Context<'_> {
    /// Sends a message of the exchange that sets up the connection.
    pub fn send(&mut self, message: impl Into<Message>) -> MadBytes {
        self.send_in(self.common.transaction, message)
    }

    /// The same with the options of the device's enhancements.
    pub fn send_enhanced(&mut self, message: impl Into<Message>, options: u32) -> MadBytes {
        let mad = Mad {
            transaction: self.common.transaction,
            modifier: options,
            message: message.into(),
        };
        self.out.send(self.common.path, mad)
    }

    /// Sends a message of another exchange.
    pub fn send_in(&mut self, transaction: TransactionId, message: impl Into<Message>) -> MadBytes {
        let mad = Mad {
            transaction,
            modifier: 0,
            message: message.into(),
        };
        self.out.send(self.common.path, mad)
    }

    /// Sends what was sent before.
    pub fn send_again(&mut self, mad: &MadBytes) {
        self.out.transmit.push_back(Outgoing {
            path: self.common.path,
            mad: mad.clone(),
        });
    }

    /// Tells the program, if the connection is still its.
    pub fn tell(&mut self, kind: CmEventKind) {
        if self.common.ownership == Ownership::Program {
            let id = self.common.local_id;
            self.out.events.push_back(CmEvent { id, kind });
        }
    }

    /// The REJ of the program's refusal.
    pub fn refusal(&self, answers: Answered, refusal: &Refusal) -> Rej {
        Rej {
            local_id: self.common.local_id,
            remote_id: self.common.remote_id,
            answers,
            info_length: refusal.info_length,
            reason: refusal.reason,
            info: refusal.info,
            private_data: refusal.private_data,
        }
    }

    /// The REJ of a side that waits no longer: its GUID helps a peer that does not know its
    /// communication ID.
    pub fn given_up(&self) -> Rej {
        let guid = self.common.local_guid.0.to_be_bytes();
        self.refusal(
            Answered::Other,
            &Refusal {
                info_length: Bits::truncated(guid.len() as u32),
                info: Padded::new(&guid).unwrap_or_default(), // 8 bytes do fit
                ..Refusal::new(RejectReason::Timeout)
            },
        )
    }
}

/// Back to where a packet came from. Traffic class as received over IPv6, none over IPv4: the
/// answer's is made of the header in front of the datagram, which IPv4 does not fill.
pub(super) fn path_back(meta: &PathMeta) -> Path {
    const ECN: u8 = 0x03;
    const HOP_LIMIT: u8 = 64;
    let is_ipv6 = meta.source.to_canonical().is_ipv6();
    Path {
        local: meta.destination,
        remote: meta.source,
        interface: meta.interface,
        traffic_class: if is_ipv6 {
            meta.traffic_class & !ECN
        } else {
            0
        },
        hop_limit: HOP_LIMIT,
        flow_label: 0,
    }
}
