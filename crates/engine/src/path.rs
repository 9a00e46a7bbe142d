//! Where packets of a queue pair go, and what was seen of a packet on its way in.

use std::net::IpAddr;

/// Addresses and fields of the IP header; what an address vector becomes. spec: IBA A17.4
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Interface index, for link-local and multicast addresses; 0 is any.
    pub interface: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit; never 0.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Index in the shard's table of paths. Queue pairs to the same place share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathIndex(pub u32);

/// What the IP header of a received packet said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMeta {
    /// Who sent it.
    pub source: IpAddr,
    /// To which of our addresses.
    pub destination: IpAddr,
    /// On which interface it came; 0 is unknown.
    pub interface: u32,
    /// TOS or traffic class, the ECN bits included.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}
