//! The frame around a packet: Ethernet, IPv4 or IPv6, UDP. For captures and tests; a UDP socket
//! writes these headers itself.
//!
//! Read first: IBA A17.3 (which values RoCEv2 wants), RFC 791, RFC 8200, RFC 768.

pub mod ethernet;
pub mod ipv4;
pub mod ipv6;
pub mod udp;

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

pub use ethernet::Ethernet;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use udp::Udp;

use crate::error::{Layer, ParseError};
use crate::roce::icrc::PseudoHeader;

/// The protocol number of UDP, in IPv4 and IPv6.
const UDP_PROTOCOL: u8 = 17;

/// An Ethernet frame that carries one whole UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Link addresses and VLAN.
    pub ethernet: Ethernet,
    /// Network addresses and what routers look at.
    pub ip: Ip,
    /// Ports.
    pub udp: Udp,
    /// What the datagram carries; for RoCEv2 BTH to ICRC.
    pub payload: &'a [u8],
}

/// The network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4
    V4(Ipv4),
    /// IPv6
    V6(Ipv6),
}

impl<'a> Frame<'a> {
    /// The frame in `bytes`, without its checksum sequence. Bytes after the datagram (Ethernet's
    /// padding of short frames) are ignored; other protocols and fragments are refused.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (ethernet, ethertype, packet) = Ethernet::parse(bytes)?;
        let (ip, datagram) = match ethertype {
            ipv4::ETHERTYPE => Ipv4::parse(packet).map(|(v4, rest)| (Ip::V4(v4), rest))?,
            ipv6::ETHERTYPE => Ipv6::parse(packet).map(|(v6, rest)| (Ip::V6(v6), rest))?,
            other => {
                let value = other.into();
                return Err(ParseError::unsupported(Layer::Ethernet, "type", value));
            }
        };
        let (udp, payload) = Udp::parse(datagram)?;
        Ok(Self {
            ethernet,
            ip,
            udp,
            payload,
        })
    }

    /// Appends the frame to `out`. Lengths and the IPv4 header checksum are computed; a payload
    /// longer than a datagram can be is refused.
    pub fn emit_into(&self, out: &mut Vec<u8>) -> Result<(), ParseError> {
        let datagram_length = Udp::LENGTH + self.payload.len();
        let (ethertype, length_max) = match self.ip {
            Ip::V4(_) => (ipv4::ETHERTYPE, usize::from(u16::MAX) - Ipv4::LENGTH),
            Ip::V6(_) => (ipv6::ETHERTYPE, usize::from(u16::MAX)),
        };
        if datagram_length > length_max {
            return Err(ParseError::too_long(
                Layer::Udp,
                "payload",
                length_max - Udp::LENGTH,
                self.payload.len(),
            ));
        }
        let datagram_length = datagram_length as u16; // at most length_max
        self.ethernet.emit_into(ethertype, out);
        match &self.ip {
            Ip::V4(v4) => out.extend_from_slice(&v4.to_bytes(datagram_length)),
            Ip::V6(v6) => out.extend_from_slice(&v6.to_bytes(datagram_length)),
        }
        out.extend_from_slice(&self.udp.to_bytes(datagram_length));
        out.extend_from_slice(self.payload);
        Ok(())
    }

    /// Address and port of the sender.
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.source(), self.udp.source_port)
    }

    /// Address and port of the receiver.
    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.destination(), self.udp.destination_port)
    }

    /// What the ICRC covers of this frame's IP and UDP headers, taking "don't fragment" as set.
    pub fn pseudo_header(&self) -> PseudoHeader {
        let (from, to) = (self.udp.source_port, self.udp.destination_port);
        match &self.ip {
            Ip::V4(v4) => PseudoHeader::v4(
                SocketAddrV4::new(v4.source, from),
                SocketAddrV4::new(v4.destination, to),
            ),
            Ip::V6(v6) => PseudoHeader::v6(
                SocketAddrV6::new(v6.source, from, 0, 0),
                SocketAddrV6::new(v6.destination, to, 0, 0),
            ),
        }
    }
}

impl Ip {
    /// Address of the sender.
    pub fn source(&self) -> IpAddr {
        match self {
            Self::V4(v4) => v4.source.into(),
            Self::V6(v6) => v6.source.into(),
        }
    }

    /// Address of the receiver.
    pub fn destination(&self) -> IpAddr {
        match self {
            Self::V4(v4) => v4.destination.into(),
            Self::V6(v6) => v6.destination.into(),
        }
    }

    /// Type of service or traffic class: DSCP in bits 7:2, ECN in bits 1:0.
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(v4) => v4.tos,
            Self::V6(v6) => v6.traffic_class,
        }
    }

    /// Time to live or hop limit.
    pub fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(v4) => v4.ttl,
            Self::V6(v6) => v6.hop_limit,
        }
    }

    /// The identification of IPv4; 0 for IPv6, which has none.
    pub fn identification(&self) -> u16 {
        match self {
            Self::V4(v4) => v4.identification,
            Self::V6(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests;
