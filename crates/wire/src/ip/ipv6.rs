//! IPv6 without extension headers, carrying UDP. RFC 8200.

use core::ops::Range;
use std::net::Ipv6Addr;

use super::UDP_PROTOCOL;
use crate::bytes::{header, read_u16, read_u32};
use crate::error::{Layer, ParseError};

/// The Ethernet type.
pub const ETHERTYPE: u16 = 0x86dd;

const VERSION_CLASS_FLOW: Range<usize> = 0..4;
const PAYLOAD_LENGTH: Range<usize> = 4..6;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
const SOURCE: Range<usize> = 8..24;
const DESTINATION: Range<usize> = 24..40;

const FLOW_LABEL: u32 = 0x000f_ffff;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Address of the sender.
    pub source: Ipv6Addr,
    /// Address of the receiver.
    pub destination: Ipv6Addr,
    /// DSCP in bits 7:2, ECN in bits 1:0.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// How many routers it may pass.
    pub hop_limit: u8,
}

impl Ipv6 {
    /// Bytes on the wire.
    pub const LENGTH: usize = 40;

    /// The header at the front of `bytes` and what it carries, up to its payload length.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let unsupported = |field, value| Err(ParseError::unsupported(Layer::Ipv6, field, value));
        let fields: &[u8; Self::LENGTH] = header(bytes, Layer::Ipv6)?;
        let first = read_u32(&fields[VERSION_CLASS_FLOW]);
        if first >> 28 != 6 {
            return unsupported("version", first >> 28);
        }
        if fields[NEXT_HEADER] != UDP_PROTOCOL {
            return unsupported("next header", fields[NEXT_HEADER].into());
        }
        let length = usize::from(read_u16(&fields[PAYLOAD_LENGTH]));
        let rest = &bytes[Self::LENGTH..];
        let Some(payload) = rest.get(..length) else {
            let found = rest.len();
            return Err(ParseError::too_short(Layer::Ipv6, "packet", length, found));
        };
        let ipv6 = Self {
            source: address(&fields[SOURCE]),
            destination: address(&fields[DESTINATION]),
            traffic_class: (first >> 20) as u8,
            flow_label: first & FLOW_LABEL,
            hop_limit: fields[HOP_LIMIT],
        };
        Ok((ipv6, payload))
    }

    /// The bytes of a header that carries `payload_length` bytes.
    pub fn to_bytes(&self, payload_length: u16) -> [u8; Self::LENGTH] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL;
        let mut bytes = [0; Self::LENGTH];
        bytes[VERSION_CLASS_FLOW].copy_from_slice(&first.to_be_bytes());
        bytes[PAYLOAD_LENGTH].copy_from_slice(&payload_length.to_be_bytes());
        bytes[NEXT_HEADER] = UDP_PROTOCOL;
        bytes[HOP_LIMIT] = self.hop_limit;
        bytes[SOURCE].copy_from_slice(&self.source.octets());
        bytes[DESTINATION].copy_from_slice(&self.destination.octets());
        bytes
    }
}

fn address(field: &[u8]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(field);
    Ipv6Addr::from(octets)
}
