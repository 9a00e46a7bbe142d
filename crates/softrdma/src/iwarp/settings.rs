//! How the connections of a link are, and what they are asked for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use broker::iwarp::Crc;
use broker::link::{LinkInfo, LinkKind};
use engine::iwarp::{CrcPolicy, Depths, LinkOptions, StartError};
use wire::Gid;
use wire::iwarp::{Revision, fpdu};

/// How the connections of a link are; the default is that of siw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What is said in the start frames.
    pub options: LinkOptions,
    /// How long a ULPDU becomes.
    pub segment: Segment,
    /// The index of the link for which callers are counted, if it is one of ours.
    pub link: Option<u32>,
}

/// The longest ULPDU that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segment {
    /// As long as fits a TCP segment. spec: RFC 5044 4.5
    #[default]
    Mulpdu,
    /// So many bytes, however TCP cuts them.
    Bytes(u16),
}

/// How long TCP may take to reach a peer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait after each refusal, in milliseconds, before TCP is tried again: a peer that
/// said elsewhere that it listens may be about to (record 0034).
pub(super) const REFUSED_PAUSES_MS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// No ULPDU is cut shorter. spec: RFC 5044 4.5
const ULPDU_MIN: usize = 128;

impl Settings {
    /// Those of a link.
    pub(crate) fn of(link: &LinkInfo) -> Self {
        let own = link.iwarp.unwrap_or_default();
        Self {
            options: LinkOptions {
                crc: match own.crc {
                    Crc::Off => CrcPolicy::Off,
                    Crc::On => CrcPolicy::On,
                    Crc::Required => CrcPolicy::Required,
                },
                markers: own.markers,
                revision: if own.mpa == 1 {
                    Revision::One
                } else {
                    Revision::Two
                },
                peer_to_peer: own.peer_to_peer,
                extensions: own.rfc7306,
            },
            segment: own.segment.map_or(Segment::Mulpdu, Segment::Bytes),
            link: Some(link.index),
        }
    }

    /// The longest ULPDU on a connection with TCP segments of this size.
    pub(super) fn ulpdu_max(&self, segment_size: usize, has_markers: bool) -> usize {
        let most = match self.segment {
            Segment::Mulpdu => fpdu::mulpdu(segment_size, has_markers),
            Segment::Bytes(bytes) => bytes.into(),
        };
        most.clamp(ULPDU_MIN, fpdu::ULPDU_MAX)
    }
}

/// How the connections of a listener are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms {
    /// All alike.
    Same(Settings),
    /// Each like those of the link that has its address.
    OfLink,
}

impl Terms {
    /// Of a connection to `local`, where these links are.
    pub(super) fn at(&self, local: SocketAddr, links: &[LinkInfo]) -> Settings {
        match self {
            Self::Same(settings) => *settings,
            // a connection without a link is refused by who takes it
            Self::OfLink => link_at(links, local).map_or_else(Settings::default, Settings::of),
        }
    }
}

/// The link of iWARP that has the address. All of 127.0.0.0/8 is that of the loopback interface.
pub(crate) fn link_at(links: &[LinkInfo], local: SocketAddr) -> Option<&LinkInfo> {
    let gid = Gid::from_ip(local.ip());
    let scope = match local {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    };
    let is_loopback = |address: IpAddr| address.is_ipv4() && address.is_loopback();
    let fits = |link: &&LinkInfo| {
        link.addresses().any(|entry| {
            (entry.gid == gid && (scope == 0 || entry.ifindex == scope))
                || (is_loopback(local.ip()) && is_loopback(entry.gid.ip()))
        })
    };
    let of_iwarp = links.iter().filter(|link| link.kind == LinkKind::Siw);
    of_iwarp.into_iter().find(fits)
}

/// Whom to ask for a connection, and what to say.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The own end; port 0 is any port.
    pub local: Option<SocketAddr>,
    /// The peer.
    pub remote: SocketAddr,
    /// For the peer's program.
    pub private_data: &'a [u8],
    /// READs and atomics.
    pub depths: Depths,
    /// TOS or traffic class of all packets.
    pub traffic_class: u8,
    /// Whether to wait until TCP has reached the peer. Otherwise a report says if it has not.
    pub waits: bool,
}

/// What siw's error number of a connection that did not come about is.
pub const fn errno(error: &StartError) -> i32 {
    match error {
        StartError::Rejected(_)
        | StartError::Ended
        | StartError::NotAsked
        | StartError::Markers => libc::ECONNRESET,
        StartError::TimedOut => libc::ETIMEDOUT,
        StartError::Invalid(_)
        | StartError::TooEarly
        | StartError::TooManyReads
        | StartError::NoRtr => libc::EPROTO,
        StartError::PrivateData(_) => libc::EINVAL,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use broker::iwarp::IwarpOptions;
    use broker::link::GidEntry;
    use wire::Mtu;

    use super::*;

    /// A link with these entries of the GID table, on a network interface of index 7.
    pub fn link(name: &str, kind: LinkKind, addresses: &[&str]) -> LinkInfo {
        let entry = |(index, text): (u16, &&str)| GidEntry {
            index,
            gid: Gid::from_ip(text.parse().expect("a literal of this test")),
            ifindex: 7,
            netdev: "eth0".into(),
        };
        LinkInfo {
            name: name.into(),
            kind,
            index: 0,
            netdev: "eth0".into(),
            netdev_index: 7,
            mac: [0; 6],
            netdev_mtu: 1500,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B1024,
            up: true,
            carrier: true,
            gids: (0..).zip(addresses).map(entry).collect(),
            iwarp: None,
        }
    }

    fn found(local: &str) -> Option<String> {
        let links = [
            link("rxe0", LinkKind::Rxe, &["fe80::1", "10.0.0.1"]),
            link("siw_lo", LinkKind::Siw, &["::", "127.0.0.1", "::1"]),
            link("siw0", LinkKind::Siw, &["5254::", "10.0.0.1", "fe80::1"]),
        ];
        let local = local.parse().expect("a literal of this test");
        link_at(&links, local).map(|link| link.name.clone())
    }

    #[test]
    fn callers_reach_the_links_of_iwarp_only() {
        assert_eq!(found("10.0.0.1:1").as_deref(), Some("siw0"));
        assert_eq!(found("127.0.0.9:1").as_deref(), Some("siw_lo"));
        assert_eq!(found("[::1]:1").as_deref(), Some("siw_lo"));
        assert_eq!(found("[fe80::1%7]:1").as_deref(), Some("siw0"));
        assert_eq!(found("[fe80::1%8]:1"), None);
        // the first entry of these links is no address
        assert_eq!(found("[5254::]:1"), None);
        assert_eq!(found("10.0.0.2:1"), None);
    }

    #[test]
    fn who_calls_an_address_has_the_terms_of_its_link() {
        let strict = LinkInfo {
            iwarp: Some(IwarpOptions {
                crc: Crc::Required,
                ..IwarpOptions::default()
            }),
            ..link("siw0", LinkKind::Siw, &["::", "10.0.0.1"])
        };
        let links = [link("siw_lo", LinkKind::Siw, &["::", "127.0.0.1"]), strict];
        let crc_at = |terms: Terms, local: &str| {
            let local = local.parse().expect("a literal of this test");
            terms.at(local, &links).options.crc
        };
        assert_eq!(crc_at(Terms::OfLink, "127.0.0.1:1"), CrcPolicy::Off);
        assert_eq!(crc_at(Terms::OfLink, "10.0.0.1:1"), CrcPolicy::Required);
        assert_eq!(crc_at(Terms::OfLink, "10.0.0.2:1"), CrcPolicy::Off);
        let same = Terms::Same(Settings::of(&links[1]));
        assert_eq!(crc_at(same, "127.0.0.1:1"), CrcPolicy::Required);
    }

    #[test]
    fn ulpdus_fit_what_carries_them() {
        let settings = Settings::default();
        assert_eq!(settings.ulpdu_max(1460, false), 1454);
        assert_eq!(settings.ulpdu_max(1460, true), 1442);
        assert_eq!(settings.ulpdu_max(0, false), ULPDU_MIN);
        let long = Settings {
            segment: Segment::Bytes(u16::MAX),
            ..settings
        };
        assert_eq!(long.ulpdu_max(536, false), fpdu::ULPDU_MAX);
    }
}
