//! The header of the RDMA IP CM service in front of the consumer's private data: which addresses
//! and which port ask.
//!
//! Read first: IBA A11. The destination's port is in the service ID; only the source's is here. An
//! IPv4 address is 12 zero bytes and 4 bytes, *not* the IPv4-mapped form that GIDs have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{header, read_u16};
use crate::error::{Layer, ParseError};

const VERSION: usize = 0;
const FAMILY: usize = 1;
const SOURCE_PORT: core::ops::Range<usize> = 2..4;
const SOURCE: usize = 4;
const DESTINATION: usize = 20;

/// The first bytes of the private data of REQ and SIDR_REQ from `rdma_cm`. spec: IBA A11
///
/// Both addresses are of one family; [`CmaHeader::to_bytes`] writes the source's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmaHeader {
    /// Port of the side that asks.
    pub source_port: u16,
    /// Address of the side that asks.
    pub source: IpAddr,
    /// Address of the side that is asked.
    pub destination: IpAddr,
}

impl CmaHeader {
    /// Bytes on the wire.
    pub const LENGTH: usize = 36;

    /// The header at the front of private data. Refuses another version than 0 and other families
    /// than IPv4 and IPv6.
    pub fn parse(private_data: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; Self::LENGTH] = header(private_data, Layer::Cma)?;
        if bytes[VERSION] != 0 {
            let value = bytes[VERSION].into();
            return Err(ParseError::unsupported(Layer::Cma, "version", value));
        }
        let address = match bytes[FAMILY] >> 4 {
            4 => ipv4,
            6 => ipv6,
            family => {
                let value = family.into();
                return Err(ParseError::unsupported(Layer::Cma, "IP version", value));
            }
        };
        Ok(Self {
            source_port: read_u16(&bytes[SOURCE_PORT]),
            source: address(bytes, SOURCE),
            destination: address(bytes, DESTINATION),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[FAMILY] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        bytes[SOURCE_PORT].copy_from_slice(&self.source_port.to_be_bytes());
        for (start, address) in [(SOURCE, self.source), (DESTINATION, self.destination)] {
            match address {
                IpAddr::V4(v4) => bytes[start + 12..start + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[start..start + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }
}

fn ipv4(bytes: &[u8; CmaHeader::LENGTH], start: usize) -> IpAddr {
    let mut octets = [0; 4];
    octets.copy_from_slice(&bytes[start + 12..start + 16]);
    Ipv4Addr::from(octets).into()
}

fn ipv6(bytes: &[u8; CmaHeader::LENGTH], start: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[start..start + 16]);
    Ipv6Addr::from(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_not_mapped() {
        let cma = CmaHeader {
            source_port: 0x8abc,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        };
        let bytes = cma.to_bytes();
        assert_eq!(bytes[..4], [0, 0x40, 0x8a, 0xbc]);
        assert_eq!(bytes[4..20], [[0; 12].as_slice(), &[10, 0, 0, 1]].concat());
        assert_eq!(CmaHeader::parse(&bytes), Ok(cma));
        assert!(CmaHeader::parse(&bytes[..35]).is_err());
    }

    #[test]
    fn ipv6_survives_and_other_versions_do_not() {
        let cma = CmaHeader {
            source_port: 1,
            source: "2001:db8::1".parse().unwrap(),
            destination: "::ffff:10.0.0.2".parse().unwrap(),
        };
        let mut bytes = cma.to_bytes();
        assert_eq!(bytes[1], 0x60);
        assert_eq!(CmaHeader::parse(&bytes), Ok(cma));
        bytes[0] = 0x10;
        assert!(CmaHeader::parse(&bytes).is_err());
        bytes[..2].copy_from_slice(&[0, 0x50]);
        assert!(CmaHeader::parse(&bytes).is_err());
    }
}
