//! `sockaddr_in` and `sockaddr_in6` as bytes, both ways; an IPv4 address may travel inside IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the larger of the two, `sockaddr_in6`.
pub(crate) const MAX_LENGTH: usize = 28;

const IPV4_LENGTH: usize = 16;

/// A socket address in the kernel's form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded {
    bytes: [u8; MAX_LENGTH],
    length: usize,
}

impl Encoded {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Encodes for a socket of the address's own family.
pub(crate) fn encode(address: SocketAddr) -> Encoded {
    let mut bytes = [0; MAX_LENGTH];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let length = match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            IPV4_LENGTH
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            MAX_LENGTH
        }
    };
    Encoded { bytes, length }
}

/// Decodes what the kernel wrote; a mapped IPv4 address comes out as IPv4.
pub(crate) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(octets), port).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(match unmapped(Ipv6Addr::from(octets)) {
                IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
                IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
            })
        }
        _ => None,
    }
}

/// `::ffff:a.b.c.d` as IPv4, anything else unchanged.
pub(crate) fn unmapped(address: Ipv6Addr) -> IpAddr {
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["10.1.2.3:4791", "[fe80::1%7]:9", "[2001:db8::2]:65535"] {
            let address: SocketAddr = text.parse().expect("a literal");
            assert_eq!(decode(encode(address).as_bytes()), Some(address), "{text}");
        }
    }

    #[test]
    fn a_mapped_address_is_reported_as_ipv4() {
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:80".parse().expect("a literal");
        let plain: SocketAddr = "192.0.2.7:80".parse().expect("a literal");
        assert_eq!(decode(encode(mapped).as_bytes()), Some(plain));
    }

    #[test]
    fn short_or_foreign_bytes_are_no_address() {
        let encoded = encode("[::1]:1".parse().expect("a literal"));
        for length in 0..encoded.as_bytes().len() {
            assert_eq!(
                decode(&encoded.as_bytes()[..length]),
                None,
                "{length} bytes"
            );
        }
        assert_eq!(
            decode(&(libc::AF_UNIX as u16).to_ne_bytes().repeat(14)),
            None
        );
    }
}
