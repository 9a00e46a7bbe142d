//! IPv4 without options or fragments, carrying UDP. RFC 791.

use core::ops::Range;
use std::net::Ipv4Addr;

use super::UDP_PROTOCOL;
use crate::bytes::{header, read_u16, read_u32};
use crate::error::{Layer, ParseError, Reason};

/// The Ethernet type.
pub const ETHERTYPE: u16 = 0x0800;

const VERSION_AND_LENGTH: usize = 0;
const TOS: usize = 1;
const TOTAL_LENGTH: Range<usize> = 2..4;
const IDENTIFICATION: Range<usize> = 4..6;
const FLAGS_AND_OFFSET: Range<usize> = 6..8;
const TTL: usize = 8;
const PROTOCOL: usize = 9;
const CHECKSUM: Range<usize> = 10..12;
const SOURCE: Range<usize> = 12..16;
const DESTINATION: Range<usize> = 16..20;

/// Version 4, five words.
const PLAIN: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;

/// An IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// Address of the receiver.
    pub destination: Ipv4Addr,
    /// Type of service: DSCP in bits 7:2, ECN in bits 1:0.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Covered by the ICRC, so a sender must know it.
    pub identification: u16,
    /// "Don't fragment"; RoCEv2 always sets it.
    pub dont_fragment: bool,
}

impl Ipv4 {
    /// Bytes on the wire.
    pub const LENGTH: usize = 20;

    /// The header at the front of `bytes` and what it carries, up to its total length.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let unsupported = |field, value| Err(ParseError::unsupported(Layer::Ipv4, field, value));
        let fields: &[u8; Self::LENGTH] = header(bytes, Layer::Ipv4)?;
        if fields[VERSION_AND_LENGTH] != PLAIN {
            return unsupported("version and header length", fields[0].into());
        }
        if checksum(fields) != 0 {
            return Err(ParseError {
                layer: Layer::Ipv4,
                field: "header checksum",
                reason: Reason::Checksum,
            });
        }
        let flags = read_u16(&fields[FLAGS_AND_OFFSET]);
        if flags & !DONT_FRAGMENT != 0 {
            return unsupported("fragment", flags.into());
        }
        if fields[PROTOCOL] != UDP_PROTOCOL {
            return unsupported("protocol", fields[PROTOCOL].into());
        }
        let total = usize::from(read_u16(&fields[TOTAL_LENGTH]));
        let Some(payload) = bytes.get(Self::LENGTH..total) else {
            let found = bytes.len();
            return Err(match total < Self::LENGTH {
                true => ParseError::too_short(Layer::Ipv4, "total length", Self::LENGTH, total),
                false => ParseError::too_short(Layer::Ipv4, "packet", total, found),
            });
        };
        let ipv4 = Self {
            source: Ipv4Addr::from_bits(read_u32(&fields[SOURCE])),
            destination: Ipv4Addr::from_bits(read_u32(&fields[DESTINATION])),
            tos: fields[TOS],
            ttl: fields[TTL],
            identification: read_u16(&fields[IDENTIFICATION]),
            dont_fragment: flags & DONT_FRAGMENT != 0,
        };
        Ok((ipv4, payload))
    }

    /// The bytes of a header that carries `payload_length` bytes.
    pub fn to_bytes(&self, payload_length: u16) -> [u8; Self::LENGTH] {
        let total = payload_length.saturating_add(Self::LENGTH as u16);
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let mut bytes = [0; Self::LENGTH];
        bytes[VERSION_AND_LENGTH] = PLAIN;
        bytes[TOS] = self.tos;
        bytes[TOTAL_LENGTH].copy_from_slice(&total.to_be_bytes());
        bytes[IDENTIFICATION].copy_from_slice(&self.identification.to_be_bytes());
        bytes[FLAGS_AND_OFFSET].copy_from_slice(&flags.to_be_bytes());
        bytes[TTL] = self.ttl;
        bytes[PROTOCOL] = UDP_PROTOCOL;
        bytes[SOURCE].copy_from_slice(&self.source.octets());
        bytes[DESTINATION].copy_from_slice(&self.destination.octets());
        let checksum = checksum(&bytes);
        bytes[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

/// The header checksum; 0 over a header that contains a right one. RFC 1071
fn checksum(header: &[u8; Ipv4::LENGTH]) -> u16 {
    let words = header.chunks_exact(2).map(read_u16);
    let sum: u32 = words.map(u32::from).sum(); // ten words: the carries fit twice
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
