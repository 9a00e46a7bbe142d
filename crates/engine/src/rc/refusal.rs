//! Why the responder does not execute a request, and who learns what of it.
//!
//! Sections to read first: IBA tables 58 and 59, 11.6.2 (statuses), 11.6.3.1 (events). The one
//! idea: a refusal is one value; what the requester, the completion and the program are told are
//! three views of it.

use wire::{NakCode, Syndrome};

use crate::burst::QpIndex;
use crate::completion::Status;
use crate::event::AsyncEvent;

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted: the requester shall come again.
    NotReady,
    /// The request makes no sense here, or is not enabled.
    InvalidRequest,
    /// A SEND is longer than its receive.
    TooLong,
    /// The key, range or rights of the requester do not fit, or the mapping behind them is gone.
    RemoteAccess,
    /// An element of the receive is not covered by its key, or the mapping behind it is gone.
    LocalProtection,
    /// The key of a SEND with Invalidate cannot be invalidated; all else of it was done.
    CannotInvalidate,
    /// The completion queue is full.
    Overrun,
}

/// The high bits of an RNR NAK; the others are the timer code.
const RNR_NAK: u8 = 0x20;

impl Refusal {
    /// What the requester is told; `min_rnr_timer` is our code for how long it is to wait.
    /// spec: IBA 9.7.4, table 58
    pub fn syndrome(self, min_rnr_timer: u8) -> Syndrome {
        match self {
            Self::InvalidRequest | Self::TooLong => Syndrome::Nak(NakCode::InvalidRequest),
            Self::RemoteAccess => Syndrome::Nak(NakCode::RemoteAccess),
            Self::LocalProtection | Self::Overrun => Syndrome::Nak(NakCode::RemoteOperational),
            Self::NotReady => Syndrome::from_byte(RNR_NAK | (min_rnr_timer & 0x1f)),
            // as rdma_rxe does: the request itself was fine, and all its bytes arrived
            Self::CannotInvalidate => Syndrome::ACK,
        }
    }

    /// How the receive in hand completes. spec: IBA 11.6.2
    pub fn status(self) -> Status {
        match self {
            Self::InvalidRequest | Self::CannotInvalidate => Status::RemoteInvalidRequest,
            Self::TooLong => Status::LocalLength,
            Self::RemoteAccess => Status::LocalAccess,
            Self::LocalProtection => Status::LocalProtection,
            Self::NotReady | Self::Overrun => Status::General,
        }
    }

    /// What tells the program when there is no receive in hand. spec: IBA 11.6.3.1
    pub fn event(self, qp: QpIndex) -> AsyncEvent {
        match self {
            Self::InvalidRequest | Self::TooLong => AsyncEvent::RequestError(qp),
            Self::RemoteAccess => AsyncEvent::AccessError(qp),
            _ => AsyncEvent::Fatal(qp),
        }
    }
}
