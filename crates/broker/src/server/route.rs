//! Who is to have a message of connection management, and the four answers that the broker gives
//! itself.
//!
//! Read first: IBA 12.6 (messages), A11 (addresses in the private data).

use std::net::IpAddr;

use wire::{
    Mad,
    mad::{
        Answered, CmaHeader, CommId, Drep, Dreq, Guid, Message, Rej, RejectReason, Req, ServiceId,
        SidrRep, SidrReq, SidrStatus,
    },
};

/// A connection as its requester names it: its device and its communication ID.
pub(super) type Requester = (Guid, CommId);

/// Who is asked for, and at which of this host's addresses, as far as the message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) service: ServiceId,
    pub(super) destination: Option<IpAddr>,
}

impl Called {
    fn new(service: ServiceId, private_data: &[u8]) -> Self {
        let addresses = CmaHeader::parse(private_data).ok();
        Self {
            service,
            destination: addresses.map(|addresses| addresses.destination),
        }
    }
}

/// Who is to have a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Who listens, or who got the same request before.
    Connect(Called, Requester),
    /// Who listens.
    Resolve(Called),
    /// The holder of this ID.
    Peer(CommId),
    /// The holder of this ID; answered whether or not there is one.
    Disconnect(CommId),
    /// Who got the request that the requester has given up, knowing no ID of the other side.
    Abandon(Requester),
}

impl Way {
    pub(super) fn of(message: &Message) -> Self {
        match message {
            Message::Req(Req {
                local_id,
                local_guid,
                service,
                private_data,
                ..
            }) => Self::Connect(
                Called::new(*service, private_data.bytes()),
                (*local_guid, *local_id),
            ),
            Message::SidrReq(request) => {
                Self::Resolve(Called::new(request.service, request.private_data.bytes()))
            }
            Message::Rej(reject) => match reject.guid() {
                Some(guid) if reject.remote_id == CommId(0) => {
                    Self::Abandon((guid, reject.local_id))
                }
                _ => Self::Peer(reject.remote_id),
            },
            Message::Dreq(request) => Self::Disconnect(request.remote_id),
            Message::SidrRep(answer) => Self::Peer(answer.request_id),
            Message::Mra(message) => Self::Peer(message.remote_id),
            Message::Rep(message) => Self::Peer(message.remote_id),
            Message::Rtu(message) => Self::Peer(message.remote_id),
            Message::Drep(message) => Self::Peer(message.remote_id),
            Message::Lap(message) => Self::Peer(message.remote_id),
            Message::Apr(message) => Self::Peer(message.remote_id),
        }
    }
}

/// Why there is nobody for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nobody listens on the port.
    NoListener,
    /// Somebody does, at other addresses.
    OtherAddress,
}

/// What the broker says to a request that nobody here has an ear for; `None` where nothing is to be
/// said. There is no ID of this side.
pub(super) fn refusal(request: &Mad, absence: Absence) -> Option<Mad> {
    let message = match &request.message {
        Message::Req(Req { local_id, .. }) => Rej {
            remote_id: *local_id,
            // the kernel's listener says in this way that it is not at this address
            reason: match absence {
                Absence::NoListener => RejectReason::InvalidServiceId,
                Absence::OtherAddress => RejectReason::Consumer,
            },
            ..Rej::default()
        }
        .into(),
        Message::SidrReq(SidrReq {
            request_id,
            service,
            ..
        }) => SidrRep {
            request_id: *request_id,
            status: match absence {
                Absence::NoListener => SidrStatus::Unsupported,
                Absence::OtherAddress => SidrStatus::Rejected,
            },
            service: *service,
            ..SidrRep::default()
        }
        .into(),
        _ => return None,
    };
    Some(answer(request, message))
}

/// What the broker says to a DREQ for a connection that nobody has any more: without an answer its
/// sender would repeat it for more than a minute.
pub(super) fn release(request: &Mad) -> Option<Mad> {
    let Message::Dreq(Dreq {
        local_id,
        remote_id,
        ..
    }) = request.message
    else {
        return None;
    };
    let message = Drep {
        local_id: remote_id,
        remote_id: local_id,
        ..Drep::default()
    };
    Some(answer(request, message.into()))
}

/// What the broker says to a peer that goes on making a connection with somebody who is gone: to a
/// REP or an RTU. Linux says nothing, and its peer waits for a minute, or for ever. `None` where
/// nothing is to be said.
pub(super) fn disown(message: &Mad) -> Option<Mad> {
    let (local_id, remote_id, answers) = match &message.message {
        Message::Rep(rep) => (rep.remote_id, rep.local_id, Answered::Rep),
        Message::Rtu(rtu) => (rtu.remote_id, rtu.local_id, Answered::Other),
        _ => return None,
    };
    let refusal = Rej {
        local_id,
        remote_id,
        answers,
        // spec: IBA 12.6.7.2
        reason: RejectReason::InvalidCommId,
        ..Rej::default()
    };
    Some(answer(message, refusal.into()))
}

fn answer(request: &Mad, message: Message) -> Mad {
    Mad {
        transaction: request.transaction,
        modifier: 0,
        message,
    }
}

#[cfg(test)]
mod tests;
