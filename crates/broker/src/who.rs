//! Who may talk to whom: user ids, as seen from this user namespace.
//!
//! A user namespace shows every user that it does not map as the overflow uid, 65534. Such a peer
//! may be anybody, so it is told apart from the real user 65534 of the initial namespace, and
//! never accepted. Process ids play no part: they are 0 across pid namespaces.

use std::fs;

/// The lines of `/proc/self/uid_map`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap(Vec<Range>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    inside: u32,
    outside: u32,
    length: u32,
}

impl IdMap {
    /// The map of this process; the initial one where `/proc` cannot be read.
    pub fn of_this_process() -> Self {
        fs::read_to_string("/proc/self/uid_map").map_or_else(
            |_| {
                Self(vec![Range {
                    inside: 0,
                    outside: 0,
                    length: u32::MAX,
                }])
            },
            |text| Self::parse(&text),
        )
    }

    /// Reads the kernel's format: inside, outside, length; lines that are not are left out.
    pub fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse::<u32>);
            let mut next = || numbers.next()?.ok();
            Some(Range {
                inside: next()?,
                outside: next()?,
                length: next()?,
            })
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// Whether this is the map of the initial namespace: everything, unchanged.
    fn is_initial(&self) -> bool {
        self.0
            == [Range {
                inside: 0,
                outside: 0,
                length: u32::MAX,
            }]
    }

    /// The uid that the parent namespace knows `uid` by; `None` if it is not mapped.
    pub fn outside(&self, uid: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let offset = uid.checked_sub(range.inside)?;
            (offset < range.length).then(|| range.outside.wrapping_add(offset))
        })
    }
}

/// What somebody at the other end of a unix socket is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The same user.
    Own,
    /// The superuser of this user namespace.
    Root,
    /// Another user of this namespace.
    Stranger,
    /// A user whom this namespace does not map: could be anybody.
    Outsider,
}

/// Decides by the peer's uid as `SO_PEERCRED` shows it here.
pub fn judge(peer: u32, own: u32, map: &IdMap, overflow: u32) -> Peer {
    let unknown = map.outside(peer).is_none() || (peer == overflow && !map.is_initial());
    match peer {
        _ if unknown => Peer::Outsider,
        _ if peer == own => Peer::Own,
        0 => Peer::Root,
        _ => Peer::Stranger,
    }
}

/// The uid that stands for users without a mapping.
pub fn overflow_uid() -> u32 {
    fs::read_to_string("/proc/sys/kernel/overflowuid")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65534)
}

/// `uid 1000 (alice)`, the name where `/etc/passwd` has it.
pub fn describe_uid(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    match name_of_uid(&passwd, uid) {
        Some(name) => format!("uid {uid} ({name})"),
        None => format!("uid {uid}"),
    }
}

fn name_of_uid(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        (id == uid).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERFLOW: u32 = 65534;

    #[test]
    fn the_initial_namespace_knows_everybody() {
        let map = IdMap::parse("         0          0 4294967295\n");
        assert_eq!(judge(1000, 1000, &map, OVERFLOW), Peer::Own);
        assert_eq!(judge(0, 1000, &map, OVERFLOW), Peer::Root);
        assert_eq!(judge(1001, 1000, &map, OVERFLOW), Peer::Stranger);
        assert_eq!(judge(OVERFLOW, OVERFLOW, &map, OVERFLOW), Peer::Own);
    }

    #[test]
    fn in_a_mapped_namespace_everybody_else_is_an_outsider() {
        let map = IdMap::parse("0 1000 1\n");
        assert_eq!(map.outside(0), Some(1000));
        assert_eq!(judge(0, 0, &map, OVERFLOW), Peer::Own);
        assert_eq!(judge(OVERFLOW, 0, &map, OVERFLOW), Peer::Outsider);
    }

    #[test]
    fn without_a_map_nobody_is_own() {
        let map = IdMap::parse("");
        assert_eq!(map.outside(OVERFLOW), None);
        assert_eq!(judge(OVERFLOW, OVERFLOW, &map, OVERFLOW), Peer::Outsider);
    }

    #[test]
    fn a_container_that_maps_the_overflow_uid_still_cannot_trust_it() {
        let map = IdMap::parse("0 1000 1\n1 100000 65535\n");
        assert_eq!(map.outside(OVERFLOW), Some(165_533));
        assert_eq!(judge(OVERFLOW, OVERFLOW, &map, OVERFLOW), Peer::Outsider);
        assert_eq!(judge(5, 0, &map, OVERFLOW), Peer::Stranger);
    }

    #[test]
    fn names_come_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(name_of_uid(passwd, 1000), Some("alice"));
        assert_eq!(name_of_uid(passwd, 5), None);
    }
}
