//! Who takes packets on the first stretch of their way, and whether the kernel knows where that is:
//! the neighbours of ARP (RFC 826) and of neighbour discovery (RFC 4861). See `rtnetlink(7)`.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::sockopt::{set_ip_ttl, set_ipv6_unicast_hops};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with,
};

use super::message::{self, LINK_HEADER, Message, push_attribute};
use super::{error_of, open, read};
use crate::raw::{self, Descriptor};

/// One answer, with all the attributes that the kernel knows.
const BUFFER: usize = 8 << 10;
/// Nobody listens there, and nothing is asked of those who do: `discard`, RFC 863.
const DISCARD: u16 = 9;
/// States in which the kernel sends to a neighbour without asking for it first: its `NUD_VALID`.
const KNOWN: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE;
/// Interfaces whose packets have one way to go.
const WITHOUT_NEIGHBOURS: i32 = libc::IFF_NOARP | libc::IFF_POINTOPOINT | libc::IFF_LOOPBACK;

/// Where packets leave this host, and who takes them there: the destination or a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index of the interface.
    pub interface: u32,
    /// On its network.
    pub neighbour: IpAddr,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Packets go there; or the interface needs no such knowledge.
    Known,
    /// It is being asked for.
    Sought,
    /// Nothing: nobody asked, or nobody answered.
    Unknown,
}

/// Asks the kernel about routes and neighbours.
#[derive(Debug)]
pub struct Neighbours {
    socket: Descriptor,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Neighbours {
    /// Ready to ask.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            socket: open(0)?,
            sequence: 0,
            buffer: vec![0; BUFFER].into_boxed_slice(),
        })
    }

    /// Who takes packets from `from`, an address of this host, to `to`; an `interface` other than 0
    /// is the only one to look at. `None` where nobody in particular does: this host itself,
    /// groups.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`, `EACCES`, `EINVAL` where there is no way; `EPROTO`.
    pub fn next_hop(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        interface: u32,
    ) -> Result<Option<Hop>, Errno> {
        let mut body = route_request(from, to);
        if interface != 0 {
            push_attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
        }
        self.ask(libc::RTM_GETROUTE, &body, |answer| {
            (answer.kind == libc::RTM_NEWROUTE)
                .then(|| message::parse_hop(answer.body, to))
                .flatten()
        })
    }

    /// What the kernel knows of who takes packets there.
    ///
    /// # Errors
    /// `ENODEV` without such an interface; `EPROTO`.
    pub fn reach(&mut self, hop: &Hop) -> Result<Reach, Errno> {
        let found = self.ask(libc::RTM_GETNEIGH, &neighbour_request(hop), |answer| {
            (answer.kind == libc::RTM_NEWNEIGH)
                .then(|| message::neighbour_state(answer.body))
                .flatten()
        });
        match found {
            Ok(state) if state & KNOWN != 0 => Ok(Reach::Known),
            Ok(libc::NUD_INCOMPLETE) => Ok(Reach::Sought),
            Ok(_) | Err(Errno::NOENT) => Ok(if self.has_neighbours(hop.interface)? {
                Reach::Unknown
            } else {
                Reach::Known
            }),
            Err(errno) => Err(errno),
        }
    }

    /// Whether packets that leave there have to be addressed to one of several.
    fn has_neighbours(&mut self, interface: u32) -> Result<bool, Errno> {
        let mut body = vec![0; LINK_HEADER];
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let found = self.ask(libc::RTM_GETLINK, &body, |answer| {
            (answer.kind == libc::RTM_NEWLINK)
                .then(|| message::parse_link(answer.body))
                .flatten()
        })?;
        Ok(found.flags & WITHOUT_NEIGHBOURS as u32 == 0)
    }

    /// Asks for one thing.
    fn ask<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        parse: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<T, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message::request(kind, libc::NLM_F_REQUEST as u16, self.sequence, body);
        raw::send_message(&self.socket, &[], &[IoSlice::new(&request)], &[], 0)?;
        loop {
            // the answer was made while we sent; if it is not there it was lost
            let Some(bytes) = read(&self.socket, &mut self.buffer, libc::MSG_DONTWAIT)? else {
                continue;
            };
            let mut messages = message::messages(bytes);
            let answer = messages.find(|message| message.sequence == self.sequence);
            return match answer {
                Some(answer) if i32::from(answer.kind) == libc::NLMSG_ERROR => {
                    Err(error_of(answer.body))
                }
                Some(answer) => parse(&answer).ok_or(Errno::PROTO),
                None => continue, // of a request whose answer was not waited for
            };
        }
    }
}

/// Has the kernel ask for who takes packets from `from` to `to`, by one: an empty datagram to the
/// `discard` port that no router passes on.
///
/// # Errors
/// `EMFILE`, `ENFILE`, or what the kernel says of the way.
pub fn solicit(from: SocketAddr, to: SocketAddr) -> Result<(), Errno> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let socket = Descriptor::from(socket);
    let with_port = |mut address: SocketAddr, port| {
        address.set_port(port);
        address
    };
    bind(&socket, &with_port(from, 0))?;
    connect(&socket, &with_port(to, DISCARD))?;
    match to {
        SocketAddr::V4(_) => set_ip_ttl(&socket, 1)?,
        SocketAddr::V6(_) => set_ipv6_unicast_hops(&socket, Some(1))?,
    }
    send(&socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `struct rtmsg` with source and destination.
fn route_request(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let (to, from) = (octets(to), octets(from));
    let bits = |address: &[u8]| address.len() as u8 * 8;
    let mut body = vec![family_of(&to), bits(&to), bits(&from), 0, 0, 0, 0, 0];
    body.extend([0; 4]);
    push_attribute(&mut body, libc::RTA_DST, &to);
    push_attribute(&mut body, libc::RTA_SRC, &from);
    body
}

/// `struct ndmsg` with an address.
fn neighbour_request(hop: &Hop) -> Vec<u8> {
    let neighbour = octets(hop.neighbour);
    let mut body = vec![family_of(&neighbour), 0, 0, 0];
    body.extend(hop.interface.to_ne_bytes());
    body.extend([0; 4]);
    push_attribute(&mut body, libc::NDA_DST, &neighbour);
    body
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn family_of(octets: &[u8]) -> u8 {
    let family = if octets.len() == 4 {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    family as u8
}
