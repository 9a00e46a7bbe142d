//! From an address vector to the addresses of an IP header. spec: IBA A17.4, 11.2.2.1
//!
//! Index 0 of a GID table is made of the MAC, also where the interface has no such address (`lo`
//! never has). On this host such a GID stands for the link's first real address; towards another
//! host no socket could use it.

use std::net::IpAddr;

use broker::link::LinkInfo;
use engine::Path;
use wire::Gid;

use crate::error::{Error, Result};

/// What routes give; the value of a program is replaced by it, as the kernel does for unicast.
const HOP_LIMIT: u8 = 64;

/// Where packets of a connection go, as a program says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Our place in the link's GID table.
    pub source_index: u8,
    /// The peer.
    pub dest: Gid,
    /// DSCP and ECN bits of the IP header.
    pub traffic_class: u8,
    /// Of packets to a group; others carry 64 whatever it is.
    pub hop_limit: u8,
    /// 20 bits, IPv6 only.
    pub flow_label: u32,
    /// Kept for `query`.
    pub service_level: u8,
    /// Kept for `query`.
    pub port: u8,
}

/// A link, and which of its addresses sockets can use.
#[derive(Clone, Debug)]
pub struct LinkAddresses {
    /// The link.
    pub link: LinkInfo,
    /// Whether index 0 is a real address of the interface.
    pub default_is_real: bool,
}

impl LinkAddresses {
    /// What stands for GID 0 on this host: itself, or the first real address.
    fn socket_address(&self, gid: Gid) -> Option<(IpAddr, u32)> {
        let is_synthetic =
            !self.default_is_real && self.link.gid(0).is_some_and(|entry| entry.gid == gid);
        let entry = self.link.gids.iter().find(|entry| {
            if is_synthetic {
                entry.index != 0
            } else {
                entry.gid == gid
            }
        })?;
        let address = entry.gid.ip();
        Some((
            address,
            if needs_interface(address) {
                entry.ifindex
            } else {
                0
            },
        ))
    }
}

/// The path of `vector` from `own`, where that alone says it. `None` where more has to be known:
/// what a default GID stands for, or on which interface an address means something; or where there
/// is none.
pub fn resolve_plain(vector: &AddressVector, own: &LinkInfo) -> Option<Path> {
    let source = own.gid(u16::from(vector.source_index))?;
    let (local, remote) = (source.gid.ip(), vector.dest.ip());
    let is_plain = source.index != 0
        && !vector.dest.is_zero()
        && !needs_interface(remote)
        && local.is_ipv4() == remote.is_ipv4();
    is_plain.then(|| path(vector, local, remote, 0))
}

/// The path of `vector` from `own`; `others` are all links of this host.
///
/// # Errors
/// [`Error::EmptyGid`] if the index names nothing, [`Error::SyntheticGid`] if no socket can use an
/// address, [`Error::Invalid`] for two addresses of different kind.
pub fn resolve(
    vector: &AddressVector,
    own: &LinkAddresses,
    others: &[LinkAddresses],
) -> Result<Path> {
    let index = u16::from(vector.source_index);
    let source = own.link.gid(index).ok_or(Error::EmptyGid(index))?;
    let is_synthetic = index == 0 && !own.default_is_real;
    if vector.dest.is_zero() {
        return Err(Error::Invalid("the destination GID is zero"));
    }
    // a peer that is a link of this host, by whatever name
    let here = others
        .iter()
        .find_map(|link| link.socket_address(vector.dest));
    let (mut remote, interface) = match here {
        Some(address) => address,
        None => (vector.dest.ip(), 0),
    };
    let mut local = source.gid.ip();
    if is_synthetic && remote.is_multicast() {
        // a group is no address of anybody: any own one of its kind will do
        let real = own
            .link
            .gids
            .iter()
            .find(|entry| entry.index != 0 && entry.gid.ip().is_ipv4() == remote.is_ipv4());
        local = real
            .ok_or(Error::SyntheticGid { gid: source.gid })?
            .gid
            .ip();
    } else if is_synthetic {
        if here.is_none() {
            return Err(Error::SyntheticGid { gid: source.gid });
        }
        let (address, _) = own
            .socket_address(source.gid)
            .ok_or(Error::SyntheticGid { gid: source.gid })?;
        local = address;
    }
    if local.is_ipv4() != remote.is_ipv4() {
        // a real link-local and a synthetic one, say: the peer's addresses of our kind will do
        let same_kind = here.and_then(|_| {
            others
                .iter()
                .filter(|link| link.socket_address(vector.dest).is_some())
                .flat_map(|link| &link.link.gids)
                .find(|entry| entry.index != 0 && entry.gid.ip().is_ipv4() == local.is_ipv4())
        });
        remote = same_kind
            .ok_or(Error::Invalid(
                "source and destination GID are of different address families",
            ))?
            .gid
            .ip();
    }
    let interface = if needs_interface(remote) {
        source.ifindex.max(interface)
    } else {
        0
    };
    Ok(path(vector, local, remote, interface))
}

fn path(vector: &AddressVector, local: IpAddr, remote: IpAddr, interface: u32) -> Path {
    Path {
        local,
        remote,
        interface,
        traffic_class: vector.traffic_class,
        hop_limit: hop_limit(vector, remote),
        flow_label: vector.flow_label & 0xf_ffff,
    }
}

/// How far a program wants its packets to a group to go is its own affair; 0 is nowhere.
fn hop_limit(vector: &AddressVector, remote: IpAddr) -> u8 {
    if remote.is_multicast() && vector.hop_limit > 0 {
        vector.hop_limit
    } else {
        HOP_LIMIT
    }
}

/// Link-local and multicast addresses mean something on one interface only.
fn needs_interface(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast(),
        IpAddr::V6(v6) => v6.is_multicast() || v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use broker::link::{GidEntry, LinkKind};
    use wire::Mtu;

    use super::*;

    fn link(name: &str, ifindex: u32, default_is_real: bool, gids: &[&str]) -> LinkAddresses {
        let gids = (0..).zip(gids).map(|(index, text)| GidEntry {
            index,
            gid: Gid::from_ip(text.parse().expect("a literal of this test")),
            ifindex,
            netdev: name.into(),
        });
        LinkAddresses {
            link: LinkInfo {
                name: name.into(),
                kind: LinkKind::Rxe,
                index: ifindex,
                netdev: name.into(),
                netdev_index: ifindex,
                mac: [0; 6],
                netdev_mtu: 1500,
                max_mtu: Mtu::B4096,
                active_mtu: Mtu::B1024,
                up: true,
                carrier: true,
                gids: gids.collect(),
                iwarp: None,
            },
            default_is_real,
        }
    }

    fn vector(source_index: u8, dest: &str) -> AddressVector {
        AddressVector {
            source_index,
            dest: Gid::from_ip(dest.parse().expect("a literal of this test")),
            ..AddressVector::default()
        }
    }

    fn lo() -> LinkAddresses {
        link(
            "rxe_lo",
            1,
            false,
            &["fe80::200:ff:fe00:0", "::ffff:127.0.0.1", "::1"],
        )
    }

    #[test]
    fn the_synthetic_gid_of_lo_stands_for_its_first_address_at_both_ends() {
        let path = resolve(&vector(0, "fe80::200:ff:fe00:0"), &lo(), &[lo()]).expect("on one host");
        assert_eq!(path.local.to_string(), "127.0.0.1");
        assert_eq!(path.remote, path.local);
        assert_eq!(path.interface, 0);
    }

    #[test]
    fn the_synthetic_gid_is_refused_towards_another_host() {
        let error = resolve(&vector(0, "fe80::5054:ff:fe77:2"), &lo(), &[lo()]);
        assert!(
            matches!(error, Err(Error::SyntheticGid { .. })),
            "{error:?}"
        );
    }

    #[test]
    fn a_real_link_local_address_keeps_its_interface() {
        let eth = link("rxe0", 7, true, &["fe80::1", "::ffff:10.0.0.1"]);
        let path =
            resolve(&vector(0, "fe80::2"), &eth, slice::from_ref(&eth)).expect("a neighbour");
        assert_eq!(
            (path.interface, path.remote.to_string()),
            (7, "fe80::2".into())
        );
        let path = resolve(&vector(1, "::ffff:10.0.0.2"), &eth, slice::from_ref(&eth))
            .expect("a neighbour");
        assert_eq!((path.interface, path.hop_limit), (0, 64));
    }

    #[test]
    fn what_one_link_says_is_what_all_of_them_say() {
        let own = link(
            "rxe0",
            7,
            true,
            &["fe80::1", "::ffff:10.0.0.1", "2001:db8::1", "fe80::9"],
        );
        let peers = [
            ("::ffff:10.0.0.2", [false, true, false, false]),
            ("2001:db8::2", [false, false, true, true]),
            // of those it depends on the interface, or on who has them
            ("fe80::200:ff:fe00:0", [false; 4]),
            ("ff0e::1", [false; 4]),
            ("::ffff:239.0.0.1", [false; 4]),
            ("::", [false; 4]),
        ];
        for (peer, is_plain) in peers {
            for (index, is_plain) in (0..).zip(is_plain) {
                let vector = vector(index, peer);
                let plain = resolve_plain(&vector, &own.link);
                assert_eq!(plain.is_some(), is_plain, "{index} to {peer}");
                if plain.is_some() {
                    let all = [lo(), own.clone()];
                    assert_eq!(
                        plain,
                        resolve(&vector, &own, &all).ok(),
                        "{index} to {peer}"
                    );
                }
            }
        }
        assert_eq!(resolve_plain(&vector(4, "2001:db8::2"), &own.link), None);
    }

    #[test]
    fn an_empty_index_and_mixed_families_are_refused() {
        let eth = link("rxe0", 7, true, &["fe80::1", "::ffff:10.0.0.1"]);
        assert!(matches!(
            resolve(&vector(9, "::ffff:10.0.0.2"), &eth, &[]),
            Err(Error::EmptyGid(9))
        ));
        assert!(matches!(
            resolve(&vector(1, "2001:db8::1"), &eth, &[]),
            Err(Error::Invalid(_))
        ));
    }
}
