//! rtnetlink messages as bytes (`netlink(7)`, `rtnetlink(7)`): whatever does not parse is nothing.

use std::net::IpAddr;

use super::neighbour::Hop;
use super::{Address, Interface, OperState};

/// `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// `struct ifinfomsg`.
pub(super) const LINK_HEADER: usize = 16;
/// `struct ifaddrmsg`.
pub(super) const ADDRESS_HEADER: usize = 8;
/// `struct rtmsg`, `struct ndmsg`.
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;

/// Messages and attributes begin at multiples of this.
const ALIGN: usize = 4;
/// `struct rtattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// The upper two bits of an attribute's type are flags.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// `IFLA_CARRIER`, `IFA_FLAGS`, `RTA_VIA` of the kernel's `linux/if_link.h`, `linux/if_addr.h` and
/// `linux/rtnetlink.h`.
const IFLA_CARRIER: u16 = 33;
const IFA_FLAGS: u16 = 8;
const RTA_VIA: u16 = 18;

/// One message of a netlink datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) body: &'a [u8],
}

/// Walks over the messages of a datagram; stops at the first whose length is impossible.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..length)?;
        let body = message.get(HEADER..)?;
        bytes = bytes
            .get(length.next_multiple_of(ALIGN)..)
            .unwrap_or_default();
        Some(Message {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            body,
        })
    })
}

/// Walks over attributes (type, value); stops at the first whose length is impossible.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & ATTRIBUTE_TYPE;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes
            .get(length.next_multiple_of(ALIGN)..)
            .unwrap_or_default();
        Some((kind, value))
    })
}

/// A request with the given body.
pub(super) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = HEADER + body.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&(length as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0u32.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Puts an attribute behind the body of a request.
pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(ALIGN), 0);
}

/// The body of `RTM_NEWLINK` or `RTM_DELLINK`. Messages about a link's membership in a bridge have
/// the same type and another family; they say nothing about the link itself.
pub(super) fn parse_link(body: &[u8]) -> Option<Interface> {
    let (header, rest) = body.split_at_checked(LINK_HEADER)?;
    if i32::from(header[0]) != libc::AF_UNSPEC {
        return None;
    }
    let mut interface = Interface {
        index: u32_at(header, 4)?,
        name: String::new(),
        mtu: 0,
        hardware_address: None,
        flags: u32_at(header, 8)?,
        oper_state: OperState::Unknown,
        carrier: false,
        addresses: Vec::new(),
    };
    for (kind, value) in attributes(rest) {
        match kind {
            libc::IFLA_IFNAME => {
                let end = value
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(value.len());
                interface.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            libc::IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            libc::IFLA_ADDRESS => interface.hardware_address = value.try_into().ok(),
            libc::IFLA_OPERSTATE => interface.oper_state = OperState::from(*value.first()?),
            IFLA_CARRIER => interface.carrier = *value.first()? != 0,
            _ => {}
        }
    }
    (interface.index != 0 && !interface.name.is_empty()).then_some(interface)
}

/// The body of `RTM_NEWADDR` or `RTM_DELADDR`.
pub(super) fn parse_address(body: &[u8]) -> Option<Address> {
    let (header, rest) = body.split_at_checked(ADDRESS_HEADER)?;
    let [family, prefix_length, flags, scope, ..] = *header else {
        return None;
    };
    let mut flags = u32::from(flags);
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(rest) {
        match kind {
            libc::IFA_LOCAL => local = ip(family, value),
            libc::IFA_ADDRESS => address = ip(family, value),
            // The full set; the header has room for eight of them.
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(Address {
        interface: u32_at(header, 4)?,
        // On a point-to-point link IFA_ADDRESS is the other end.
        address: local.or(address)?,
        prefix_length,
        scope,
        flags,
    })
}

/// The body of `RTM_NEWROUTE` for packets to `to`: who takes them. The inner `None` is nobody in
/// particular.
pub(super) fn parse_hop(body: &[u8], to: IpAddr) -> Option<Option<Hop>> {
    let (header, rest) = body.split_at_checked(ROUTE_HEADER)?;
    let [family, _, _, _, _, _, _, kind, ..] = *header else {
        return None;
    };
    if kind != libc::RTN_UNICAST {
        return Some(None);
    }
    let (mut interface, mut neighbour) = (None, to);
    for (kind, value) in attributes(rest) {
        match kind {
            libc::RTA_OIF => interface = u32_at(value, 0),
            libc::RTA_GATEWAY => neighbour = ip(family, value)?,
            // a gateway of the other family
            RTA_VIA => neighbour = ip(u16_at(value, 0)? as u8, value.get(2..)?)?,
            _ => {}
        }
    }
    let interface = interface?;
    Some(Some(Hop {
        interface,
        neighbour,
    }))
}

/// The state in the body of `RTM_NEWNEIGH`: `NUD_*` of `rtnetlink(7)`.
pub(super) fn neighbour_state(body: &[u8]) -> Option<u16> {
    u16_at(body.get(..NEIGHBOUR_HEADER)?, 8)
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        libc::AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes
        .get(offset..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes
        .get(offset..)?
        .first_chunk()
        .map(|bytes| u16::from_ne_bytes(*bytes))
}
