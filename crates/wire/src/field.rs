//! Field values as types: a number that was not checked is not a [`Psn`].
//!
//! Read first: IBA 9.2 (BTH) and 9.3 (extension headers); `docs/glossary.md` of this project.
//! Serial numbers have no `<`: use [`Psn::distance_from`].

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 24-bit number; the upper 8 bits of the `u32` are always zero.
const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, modulo 2^24. spec: IBA 9.7.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// A PSN from a 24-bit number; `None` above 0xff_ffff.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= MASK_24 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// A PSN from the low 24 bits of `value`, as verbs and random generators give them.
    pub const fn truncated(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, 0 to 0xff_ffff.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `count` packets later; wraps at 2^24.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK_24)
    }

    /// The PSN `count` packets earlier; wraps at 2^24.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & MASK_24)
    }

    /// How many packets `self` is after `other` (positive) or before it (negative),
    /// from -2^23 to 2^23 - 1. spec: IBA 9.7.2
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

/// Message sequence number of the responder: completed requests, 24 bits. spec: IBA 9.7.7.1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// An MSN from the low 24 bits of `value`.
    pub const fn truncated(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, 0 to 0xff_ffff.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The MSN after one more completed message.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & MASK_24)
    }
}

/// Queue pair number: 24 bits. In this project slot (8 bits) ‖ index (16 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, where connection management arrives.
    pub const GSI: Self = Self(1);
    /// The destination of every multicast packet; never allocated.
    pub const MULTICAST: Self = Self(MASK_24);

    /// A QPN from a 24-bit number; `None` above 0xff_ffff.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= MASK_24 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// A QPN from the low 24 bits of `value`.
    pub const fn truncated(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number of slot `slot` and index `index`.
    pub const fn from_parts(slot: u8, index: u16) -> Self {
        Self(((slot as u32) << 16) | index as u32)
    }

    /// The number, 0 to 0xff_ffff.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The top 8 bits: on our hosts, who gets the packet.
    pub const fn slot(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// The low 16 bits: on our hosts, which queue pair of the slot.
    pub const fn index(self) -> u16 {
        self.0 as u16
    }
}

/// An L_Key, an R_Key or an STag: 24 bits of index ‖ 8 bits chosen at each registration.
/// spec: IBA 10.6.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryKey(pub u32);

/// Queue key of unreliable datagrams. spec: IBA 10.2.5
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

/// Partition key: bit 15 full membership, 14:0 the key. spec: IBA 10.9
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The only key that RoCE uses.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two keys may talk: low 15 bits equal and not zero, one of them a full member.
    /// spec: IBA 10.9.3
    pub const fn matches(self, other: Self) -> bool {
        let (a, b) = (self.0, other.0);
        a & 0x7fff != 0 && a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A 128-bit GID; in RoCEv2 an IPv6 address or an IPv4-mapped one. spec: IBA A17.4
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an address: IPv4 as `::ffff:a.b.c.d`.
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The address of a GID: IPv4 if it is IPv4-mapped.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The GID 0 of RoCE: fe80::/64 and the EUI-64 of the MAC. spec: RFC 4291 appendix A
    pub fn link_local(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ])
    }

    /// An empty table entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether this is a group: ff00::/8, or IPv4-mapped 224.0.0.0/4.
    pub fn is_multicast(self) -> bool {
        match self.ip() {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(v4))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

macro_rules! display_hex {
    ($($name:ident $width:literal),*) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("0x{:0", $width, "x}"), self.0)
            }
        }
    )* };
}
display_hex!(Psn 6, Msn 6, Qpn 6, MemoryKey 8, QKey 8, PKey 4);

/// Path MTU: bounds the payload of a packet. spec: IBA 9.7, table of `ibv_mtu`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes
    B256 = 1,
    /// 512 bytes
    B512 = 2,
    /// 1024 bytes
    B1024 = 3,
    /// 2048 bytes
    B2048 = 4,
    /// 4096 bytes
    B4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// The verbs and wire encoding, 1 to 5; `None` for anything else.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Bytes of payload.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// The largest that fits an interface: at most its MTU less 80, at least 256.
    /// The 80 is the kernel's allowance for the deepest chain of headers.
    pub fn of_interface(interface_mtu: u32) -> Self {
        let room = interface_mtu.saturating_sub(80);
        Self::ALL
            .into_iter()
            .rev()
            .find(|mtu| mtu.bytes() <= room)
            .unwrap_or(Self::B256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_measures_distance_both_ways() {
        let last = Psn::truncated(0xff_ffff);
        assert_eq!(last.plus(1), Psn::default());
        assert_eq!(Psn::default().minus(1), last);
        assert_eq!(Psn::default().distance_from(last), 1);
        assert_eq!(last.distance_from(Psn::default()), -1);
        assert_eq!(
            Psn::truncated(0x80_0000).distance_from(Psn::default()),
            -(1 << 23)
        );
        assert_eq!(Psn::new(0x100_0000), None);
    }

    #[test]
    fn interface_mtu_leaves_80_bytes_for_headers() {
        // roce.md §1: the kernel's table
        for (interface, code) in [
            (576, 1),
            (1500, 3),
            (2127, 3),
            (2128, 4),
            (4175, 4),
            (4176, 5),
            (9000, 5),
            (65536, 5),
        ] {
            assert_eq!(
                Mtu::of_interface(interface) as u8,
                code,
                "interface MTU {interface}"
            );
        }
    }

    #[test]
    fn link_local_gid_of_a_mac() {
        let gid = Gid::link_local([0x52, 0x54, 0x00, 0x77, 0x00, 0x02]);
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe77:2");
    }

    #[test]
    fn pkey_needs_one_full_member() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }
}
