//! Interfaces and their addresses, as they are and as they change (`rtnetlink(7)`), and neighbours.

mod message;
mod monitor;
mod neighbour;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::raw::{self, Descriptor};
use message::{ADDRESS_HEADER, LINK_HEADER, Message};
pub use monitor::{Event, Monitor};
pub use neighbour::{Hop, Neighbours, Reach, solicit};

/// The kernel fills at most this much per datagram.
const BUFFER: usize = 32 << 10;
/// `struct sockaddr_nl`.
const NAME: usize = 12;
/// How often a listing that changed under way is asked for again before it is taken as it is.
const LISTING_ATTEMPTS: usize = 4;
/// Leave traffic statistics out of link messages: `RTEXT_FILTER_SKIP_STATS`.
const SKIP_STATISTICS: u32 = 1 << 3;
/// `IFLA_EXT_MASK`.
const IFLA_EXT_MASK: u16 = 29;
/// The listing changed while it was being made: `NLM_F_DUMP_INTR`.
const INTERRUPTED: u16 = 0x10;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number in this network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Ethernet address, where it has one (six bytes; zeros on `lo`).
    pub hardware_address: Option<[u8; 6]>,
    /// `IFF_*` of `netdevice(7)`.
    pub flags: u32,
    /// Whether it can carry traffic, in the words of RFC 2863.
    pub oper_state: OperState,
    /// The device sees its other end.
    pub carrier: bool,
    /// What [`interfaces`] found; empty in events.
    pub addresses: Vec<Address>,
}

impl Interface {
    /// The administrator has set it up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// It is up and can carry traffic now.
    pub fn is_running(&self) -> bool {
        self.flags & libc::IFF_RUNNING as u32 != 0
    }

    /// It leads back to this host.
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

/// Operational state (RFC 2863 §3.1.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not say; `lo` is always so.
    Unknown,
    /// The device is gone.
    NotPresent,
    /// No traffic: no carrier, or set down.
    Down,
    /// The layer below is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting for something outside, such as authentication.
    Dormant,
    /// Traffic.
    Up,
}

impl From<u8> for OperState {
    fn from(value: u8) -> Self {
        match value {
            1 => Self::NotPresent,
            2 => Self::Down,
            3 => Self::LowerLayerDown,
            4 => Self::Testing,
            5 => Self::Dormant,
            6 => Self::Up,
            _ => Self::Unknown,
        }
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub interface: u32,
    /// The local address.
    pub address: IpAddr,
    /// Length of the network's prefix in bits.
    pub prefix_length: u8,
    /// `RT_SCOPE_*` of `rtnetlink(7)`.
    pub scope: u8,
    /// `IFA_F_*` of `rtnetlink(7)`.
    pub flags: u32,
}

impl Address {
    /// Meaningful on its link only.
    pub fn is_link_scope(&self) -> bool {
        self.scope == libc::RT_SCOPE_LINK
    }

    /// Whether a socket can use it: not while duplicate address detection runs or after it failed.
    pub fn is_usable(&self) -> bool {
        let optimistic = self.flags & libc::IFA_F_OPTIMISTIC != 0;
        let tentative = self.flags & libc::IFA_F_TENTATIVE != 0;
        self.flags & libc::IFA_F_DADFAILED == 0 && (!tentative || optimistic)
    }
}

/// All interfaces with their addresses, in the order of their indices.
///
/// # Errors
/// `EMFILE`, `ENFILE`, or what the kernel answers; `EPROTO` when it cannot be understood.
pub fn interfaces() -> Result<Vec<Interface>, Errno> {
    let socket = open(0)?;
    let mut link_request = [0; LINK_HEADER + 8];
    link_request[LINK_HEADER..LINK_HEADER + 2].copy_from_slice(&8u16.to_ne_bytes());
    link_request[LINK_HEADER + 2..LINK_HEADER + 4].copy_from_slice(&IFLA_EXT_MASK.to_ne_bytes());
    link_request[LINK_HEADER + 4..].copy_from_slice(&SKIP_STATISTICS.to_ne_bytes());
    let links = list(&socket, libc::RTM_GETLINK, &link_request, |message| {
        (message.kind == libc::RTM_NEWLINK)
            .then(|| message::parse_link(message.body))
            .flatten()
    })?;
    let addresses = list(
        &socket,
        libc::RTM_GETADDR,
        &[0; ADDRESS_HEADER],
        |message| {
            (message.kind == libc::RTM_NEWADDR)
                .then(|| message::parse_address(message.body))
                .flatten()
        },
    )?;
    let mut interfaces: BTreeMap<u32, Interface> =
        links.into_iter().map(|link| (link.index, link)).collect();
    for address in addresses {
        // An interface that came between the two questions is in the next listing.
        if let Some(interface) = interfaces.get_mut(&address.interface) {
            interface.addresses.push(address);
        }
    }
    Ok(interfaces.into_values().collect())
}

/// The interface of that name; `None` when there is none.
///
/// # Errors
/// As [`interfaces`].
pub fn interface_by_name(name: &str) -> Result<Option<Interface>, Errno> {
    Ok(interfaces()?
        .into_iter()
        .find(|interface| interface.name == name))
}

/// A netlink socket that hears the given multicast groups (`RTMGRP_*`).
fn open(groups: u32) -> Result<Descriptor, Errno> {
    let socket = Descriptor::from(rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // protocol 0 is NETLINK_ROUTE
    )?);
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Reads one datagram of the kernel into `buffer`; `None` when it comes from somebody else.
fn read<'a>(
    socket: &Descriptor,
    buffer: &'a mut [u8],
    flags: i32,
) -> Result<Option<&'a [u8]>, Errno> {
    let mut name = [0; NAME];
    let received = rustix::io::retry_on_intr(|| {
        raw::receive_message(
            socket,
            &mut name,
            &mut [IoSliceMut::new(buffer)],
            &mut [],
            flags,
        )
    })?;
    let from_kernel =
        received.name_length == NAME && message::u32_at(&name, 4).is_some_and(|port| port == 0);
    // What follows a cut message is lost; the parsers stop there.
    Ok(from_kernel.then_some(&buffer[..received.length]))
}

/// Asks for a listing, and again if it changed under way.
fn list<T>(
    socket: &Descriptor,
    kind: u16,
    body: &[u8],
    parse: impl Fn(&Message<'_>) -> Option<T>,
) -> Result<Vec<T>, Errno> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut buffer = vec![0; BUFFER];
    let mut attempt = 0;
    loop {
        attempt += 1;
        let sequence = u32::from(kind) << 8 | attempt as u32;
        let request = message::request(kind, flags, sequence, body);
        raw::send_message(socket, &[], &[IoSlice::new(&request)], &[], 0)?;
        let (found, whole) = read_listing(socket, sequence, &mut buffer, &parse)?;
        if whole || attempt == LISTING_ATTEMPTS {
            return Ok(found);
        }
    }
}

/// Reads until the end of the listing with that number; false if it changed under way.
fn read_listing<T>(
    socket: &Descriptor,
    sequence: u32,
    buffer: &mut [u8],
    parse: impl Fn(&Message<'_>) -> Option<T>,
) -> Result<(Vec<T>, bool), Errno> {
    let mut found = Vec::new();
    let mut whole = true;
    loop {
        let Some(bytes) = read(socket, buffer, 0)? else {
            continue;
        };
        let mut understood = false;
        for message in message::messages(bytes).filter(|message| message.sequence == sequence) {
            understood = true;
            whole &= message.flags & INTERRUPTED == 0;
            match i32::from(message.kind) {
                libc::NLMSG_DONE => return Ok((found, whole)),
                libc::NLMSG_ERROR => return Err(error_of(message.body)),
                _ => found.extend(parse(&message)),
            }
        }
        // The kernel answers each request in order, so nothing else can be in the queue; and a
        // datagram that says nothing would let us wait for an end that has been lost.
        if !understood {
            return Err(Errno::PROTO);
        }
    }
}

/// The code in the body of an `NLMSG_ERROR`, a negative errno.
fn error_of(body: &[u8]) -> Errno {
    match message::u32_at(body, 0).map(|code| (code as i32).wrapping_neg()) {
        Some(code) if (1..4096).contains(&code) => Errno::from_raw_os_error(code),
        _ => Errno::PROTO,
    }
}
