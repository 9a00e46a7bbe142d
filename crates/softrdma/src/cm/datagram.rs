//! Connection management of datagram queue pairs: one question, one answer, no connection.
//!
//! Read first: IBA 12.11. The answer names a queue pair and its key; where it is follows from the
//! path. The kernel's rdma_cm is the model: the side that asks has the answer as "established", the
//! side that answers is told nothing more, and a refusal is "unreachable".

use engine::cm::{SidrAnswer, SidrRequest, SidrResponse};
use wire::mad::{Padded, PortSpace, SidrStatus};
use wire::{QKey, Qpn};

use super::attributes::address_vector;
use super::connection::{Called, Request, TOO_LONG};
use super::event::{ConnectionParameters, DatagramPeer, Event, EventKind};
use super::record::{Record, State};
use crate::error::{Error, Result};

/// `RDMA_UDP_QKEY`: the key of datagram queue pairs whose program names none.
const DEFAULT_QKEY: QKey = QKey(0x0123_4567);

impl Record {
    /// The key of the own queue pair.
    ///
    /// # Errors
    /// [`Error::NoMulticastGroup`] for IPoIB's port space, whose key is that of a group which
    /// exists on InfiniBand only.
    pub(super) fn own_qkey(&mut self) -> Result<QKey> {
        if let Some(key) = self.qkey {
            return Ok(key);
        }
        match self.space {
            PortSpace::IpOverIb => Err(Error::NoMulticastGroup),
            PortSpace::Tcp | PortSpace::Udp | PortSpace::Ib => {
                self.qkey = Some(DEFAULT_QKEY);
                Ok(DEFAULT_QKEY)
            }
        }
    }
}

/// The message that asks.
pub(super) fn question(called: &Called, request: &Request) -> Result<SidrRequest> {
    Ok(SidrRequest {
        private_data: called.private_data(&request.private_data)?,
        ..SidrRequest::new(called.route.path, called.service)
    })
}

/// The message that tells the own queue pair.
pub(super) fn answer(record: &mut Record, request: &Request) -> Result<SidrAnswer> {
    Ok(SidrAnswer {
        status: SidrStatus::Valid,
        qpn: Qpn::new(request.qpn).ok_or(Error::Invalid("a QPN has 24 bits"))?,
        qkey: record.own_qkey()?,
        private_data: Padded::new(&request.private_data).ok_or(TOO_LONG)?,
    })
}

/// The message that refuses.
pub(super) fn refusal(private_data: &[u8]) -> Result<SidrAnswer> {
    Ok(SidrAnswer {
        private_data: Padded::new(private_data).ok_or(TOO_LONG)?,
        ..SidrAnswer::refusal(SidrStatus::Rejected)
    })
}

/// What a program is told of the peer's answer.
pub(super) fn answered(record: &mut Record, response: &SidrResponse) -> Event {
    record.state = State::Connected;
    let mut event = Event::of(record, EventKind::Unreachable, 0);
    event.parameters = ConnectionParameters {
        private_data: response.private_data.bytes().to_vec(),
        ..ConnectionParameters::default()
    };
    if response.status != SidrStatus::Valid {
        event.status = response.status.code().into();
        return event;
    }
    let is_ours = record.qkey.is_none_or(|own| own == response.qkey);
    let address = record.route.as_ref().map(address_vector);
    match address {
        Some(Ok(address)) if is_ours => {
            record.qkey = Some(response.qkey);
            event.kind = EventKind::Established;
            event.datagram_peer = Some(DatagramPeer {
                address,
                qpn: response.qpn.get(),
                qkey: response.qkey,
            });
        }
        // a queue pair has one key, which both ends must have
        _ => (event.kind, event.status) = (EventKind::AddressError, -libc::EINVAL),
    }
    event
}
