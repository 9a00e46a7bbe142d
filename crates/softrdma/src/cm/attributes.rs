//! What the queue pair of a connection has to be set to on its way to RTS. spec: IBA 12.7, 11.2.5.2

use engine::Access;
use engine::qp::{AttributeMask, Attributes, State, Transport};
use wire::{Gid, Psn};

use super::record::{Record, Route};
use crate::address::AddressVector;
use crate::error::{Error, Result};

/// A step of a queue pair.
pub type Step = (Attributes, AddressVector, AttributeMask);

/// The attributes of the step to `state`, as far as they are known of this ID.
///
/// # Errors
/// [`Error::Invalid`] before the peer has told what it is about, and for other states.
pub(super) fn step(record: &mut Record, state: State) -> Result<Step> {
    use AttributeMask as Mask;
    if record.transport == Transport::Ud {
        return datagram_step(record, state);
    }
    if record.is_stream() {
        return stream_step(record, state);
    }
    let not_yet = Error::Invalid("the connection is not that far");
    let mut attributes = Attributes {
        state,
        port: 1,
        ..Attributes::default()
    };
    let mut address = AddressVector::default();
    let mask = match state {
        State::Init => {
            attributes.access = access(record);
            Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS
        }
        State::ReadyToReceive => {
            let agreed = record.agreed.ok_or(not_yet)?;
            let route = record.route.as_ref().ok_or(Error::Invalid("no route"))?;
            attributes.path_mtu = agreed.mtu;
            attributes.dest_qpn = agreed.remote.qpn;
            attributes.rq_psn = record.starting_psn;
            attributes.max_dest_rd_atomic = agreed.remote.responder_resources;
            // 655 ms, as the kernel has it: programs that want another one set it
            attributes.min_rnr_timer = 0;
            address = address_vector(route)?;
            Mask::ADDRESS_VECTOR
                | Mask::PATH_MTU
                | Mask::DEST_QPN
                | Mask::RQ_PSN
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::MIN_RNR_TIMER
        }
        State::ReadyToSend => {
            let agreed = record.agreed.ok_or(not_yet)?;
            attributes.timeout = agreed.ack_timeout.get() as u8; // 5 bits
            attributes.retry_count = agreed.retry_count.get() as u8; // 3 bits
            attributes.rnr_retry = agreed.remote.rnr_retry_count.get() as u8; // 3 bits
            attributes.sq_psn = agreed.remote.starting_psn;
            attributes.max_rd_atomic = agreed.remote.initiator_depth;
            Mask::TIMEOUT | Mask::RETRY_COUNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_RD_ATOMIC
        }
        State::Error => Mask::empty(),
        _ => return Err(NO_STEP),
    };
    Ok((attributes, address, Mask::STATE | mask))
}

const NO_STEP: Error = Error::Invalid("no step of a connection");

/// The same of a datagram queue pair, which waits for nobody: RTS is reached at once.
fn datagram_step(record: &mut Record, state: State) -> Result<Step> {
    use AttributeMask as Mask;
    let mut attributes = Attributes {
        state,
        port: 1,
        ..Attributes::default()
    };
    let mask = match state {
        State::Init => {
            attributes.qkey = record.own_qkey()?;
            Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY
        }
        State::ReadyToReceive | State::Error => Mask::empty(),
        State::ReadyToSend => {
            attributes.sq_psn = Psn::default();
            Mask::SQ_PSN
        }
        _ => return Err(NO_STEP),
    };
    Ok((attributes, AddressVector::default(), Mask::STATE | mask))
}

/// The peer of a route, as queue pairs and address handles have it.
pub(super) fn address_vector(route: &Route) -> Result<AddressVector> {
    Ok(AddressVector {
        source_index: u8::try_from(route.gid_index)
            .map_err(|_| Error::Invalid("the GID index does not fit"))?,
        dest: Gid::from_ip(route.path.remote),
        traffic_class: route.path.traffic_class,
        hop_limit: route.path.hop_limit,
        flow_label: route.path.flow_label,
        service_level: 0,
        port: 1,
    })
}

/// The same on iWARP, where connecting and accepting move the queue pair: there is nothing to set
/// but the rights, which the kernel gives for all connections.
fn stream_step(record: &Record, state: State) -> Result<Step> {
    use AttributeMask as Mask;
    let mut attributes = Attributes {
        state,
        port: 1,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        ..Attributes::default()
    };
    if record.route.as_ref().is_some_and(|route| route.has_atomics) {
        attributes.access |= Access::REMOTE_ATOMIC;
    }
    let mask = match state {
        State::Init | State::ReadyToReceive => Mask::STATE | Mask::PORT | Mask::ACCESS_FLAGS,
        State::ReadyToSend => Mask::PORT,
        State::Error => Mask::STATE,
        _ => return Err(NO_STEP),
    };
    Ok((attributes, AddressVector::default(), mask))
}

/// WRITEs always; READs and atomics if the program will hold any.
fn access(record: &Record) -> Access {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let holds = |resources: u8| resources > 0;
    if record
        .agreed
        .is_some_and(|agreed| holds(agreed.remote.responder_resources))
    {
        writes | Access::REMOTE_READ | Access::REMOTE_ATOMIC
    } else {
        writes
    }
}
