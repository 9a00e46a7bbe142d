//! From addresses to the link and the path between them.
//!
//! The kernel's routes choose the source: a connected UDP socket tells, without a packet. The link
//! is the first that has this address in its GID table, as in the kernel's connection management.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use broker::link::{LinkInfo, LinkKind};
use engine::Path;
use io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};
use wire::Gid;
use wire::mad::{Guid, PortSpace};

use super::record::Route;

/// Of routes; replies go with it too.
pub(super) const HOP_LIMIT: u8 = 64;

/// The address that the kernel sends from to `to`; `from` if that is given.
///
/// # Errors
/// There is no route, or `from` is no address of this host.
pub(super) fn source(from: Option<SocketAddr>, to: SocketAddr) -> Result<SocketAddr, Errno> {
    if let Some(mut from) = from.filter(|_| to.ip().is_multicast()) {
        // a group is reached by the own interface, and `lo` has no route to any
        from.set_port(0);
        return Ok(from);
    }
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mut from) = from {
        from.set_port(0);
        bind(&socket, &from)?;
    }
    connect(&socket, &to)?;
    let name: SocketAddr = getsockname(&socket)?
        .try_into()
        .map_err(|_| Errno::AFNOSUPPORT)?;
    let scope = scope(to);
    Ok(match name {
        SocketAddr::V6(v6) if v6.scope_id() == 0 && needs_scope(*v6.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        other => other,
    })
}

/// A destination that is nowhere in particular is this host.
pub(super) fn destination(to: SocketAddr) -> SocketAddr {
    let address = match to.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        // a socket of both families says it so
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::from(v4),
            None => return to,
        },
        IpAddr::V4(_) => return to,
    };
    SocketAddr::new(address, to.port())
}

/// Where requests for connections come as messages to QP 1.
pub(super) const ROCE: &[LinkKind] = &[LinkKind::Rxe];

/// The protocols that IDs of a port space can be of: those of the first row, or else of the next.
pub(super) fn kinds(space: PortSpace) -> &'static [&'static [LinkKind]] {
    match space {
        PortSpace::Tcp => &[&[LinkKind::Rxe, LinkKind::Siw]],
        // iWARP has no datagrams: it is their queue pair that cannot be had, as in the kernel
        PortSpace::Udp => &[ROCE, &[LinkKind::Siw]],
        // of InfiniBand
        PortSpace::IpOverIb | PortSpace::Ib => &[ROCE],
    }
}

/// The first of `links` that has the address and is of one of these kinds, and the address's place
/// in its GID table.
pub(super) fn link_of<'a>(
    links: &'a [LinkInfo],
    address: SocketAddr,
    kinds: &[LinkKind],
) -> Option<(&'a LinkInfo, u16)> {
    let gid = Gid::from_ip(address.ip());
    let scope = scope(address);
    links
        .iter()
        .filter(|link| kinds.contains(&link.kind))
        .find_map(|link| {
            let entry = link
                .addresses()
                .find(|entry| entry.gid == gid && (scope == 0 || entry.ifindex == scope))?;
            Some((link, entry.index))
        })
}

/// The way from `local` on `link`, whose GID at `gid_index` it is, to `remote`.
pub(super) fn route(
    link: &LinkInfo,
    gid_index: u16,
    local: SocketAddr,
    remote: SocketAddr,
    traffic_class: u8,
) -> Route {
    Route {
        link: link.name.clone(),
        kind: link.kind,
        has_atomics: link.iwarp.is_none_or(|options| options.rfc7306),
        gid_index,
        guid: Guid(u64::from_be_bytes(link.node_guid())),
        mtu: link.active_mtu,
        path: Path {
            local: local.ip(),
            remote: remote.ip(),
            interface: scope(local).max(scope(remote)),
            traffic_class,
            hop_limit: HOP_LIMIT,
            flow_label: flow_label(local.port(), remote.port()),
        },
    }
}

/// The flow label of a connection between two ports, as Linux makes it: NICs take the UDP source
/// port from it.
pub(super) fn flow_label(source: u16, destination: u16) -> u32 {
    (u32::from(source) * 31 + u32::from(destination)) & 0xf_ffff
}

/// The interface of an address that means something on one only.
pub(super) fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if needs_scope(*v6.ip()) => v6.scope_id(),
        _ => 0,
    }
}

fn needs_scope(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local() || address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("a literal of this test")
    }

    #[test]
    fn the_source_of_the_own_host_is_the_destination() {
        for to in ["127.0.0.1:1", "[::1]:1"] {
            let to = address(to);
            let source = source(None, to).expect("there is always a way to oneself");
            assert_eq!(source.ip(), to.ip());
        }
    }

    #[test]
    fn a_group_is_reached_from_wherever_one_is() {
        let from = address("127.0.0.1:5");
        let source = source(Some(from), address("239.77.1.1:1"));
        assert_eq!(source, Ok(address("127.0.0.1:0")));
    }

    #[test]
    fn a_source_that_is_not_here_is_refused() {
        let from = address("192.0.2.1:0");
        assert_eq!(
            source(Some(from), address("127.0.0.1:1")),
            Err(Errno::ADDRNOTAVAIL)
        );
    }

    #[test]
    fn nowhere_in_particular_is_here() {
        assert_eq!(destination(address("0.0.0.0:7")), address("127.0.0.1:7"));
        assert_eq!(destination(address("[::]:7")), address("[::1]:7"));
        assert_eq!(
            destination(address("[::ffff:10.0.0.1]:7")),
            address("10.0.0.1:7")
        );
        assert_eq!(destination(address("[fe80::1]:7")), address("[fe80::1]:7"));
    }

    #[test]
    fn the_flow_label_is_that_of_linux() {
        // of the REQ in a capture of rping between two kernels
        assert_eq!(flow_label(0xd245, 7174), 0x99261);
    }
}
