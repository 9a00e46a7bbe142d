//! The links and how they follow their interfaces. Pure state: the broker feeds it snapshots of
//! what rtnetlink tells and passes the events on.

use std::net::IpAddr;

use wire::{Gid, Mtu};

use super::ports::is_link_local;
use crate::{
    iwarp::IwarpOptions,
    link::{Address, GidTable, LinkInfo, LinkKind, mac_of_name},
    protocol::{Changes, Event, Refusal},
};

/// One byte less than the kernel's `IB_DEVICE_NAME_MAX`, which counts the terminator.
const NAME_LENGTH_MAX: usize = 63;

/// An interface as rtnetlink shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    /// `None` where the link layer has no 6-byte address.
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    pub(super) carrier: bool,
}

/// All interfaces and their addresses at one moment, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) interfaces: Vec<Interface>,
    /// Interface index and address as a GID.
    pub(super) addresses: Vec<(u32, Gid)>,
}

impl Snapshot {
    /// How things are now. An address that was found to be a duplicate is nobody's.
    pub(super) fn read() -> Result<Self, io::Errno> {
        let mut snapshot = Self::default();
        for found in io::netlink::interfaces()? {
            snapshot.interfaces.push(Interface {
                index: found.index,
                mac: found.hardware_address,
                mtu: found.mtu,
                up: found.is_up(),
                carrier: found.carrier,
                name: found.name,
            });
            let usable = found
                .addresses
                .iter()
                .filter(|a| a.flags & libc::IFA_F_DADFAILED == 0);
            snapshot
                .addresses
                .extend(usable.map(|a| (a.interface, Gid::from_ip(a.address))));
        }
        Ok(snapshot)
    }

    fn by_index(&self, index: u32) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.index == index)
    }

    fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }

    fn addresses_of(&self, interface: &Interface) -> Vec<Address> {
        self.addresses
            .iter()
            .filter(|(index, _)| *index == interface.index)
            .map(|(_, gid)| address(interface, *gid))
            .collect()
    }
}

fn address(interface: &Interface, gid: Gid) -> Address {
    Address {
        gid,
        ifindex: interface.index,
        netdev: interface.name.clone(),
    }
}

#[derive(Debug)]
struct Link {
    info: LinkInfo,
    table: GidTable,
    /// Made on somebody's explicit wish: keeps the broker running.
    keep: bool,
}

impl Link {
    /// Brings the link up to date; says what differs.
    fn follow(&mut self, interface: &Interface, snapshot: &Snapshot) -> Changes {
        let mac = interface
            .mac
            .unwrap_or_else(|| mac_of_name(&interface.name));
        self.table.update(
            &address(interface, self.info.kind.default_gid(mac)),
            &snapshot.addresses_of(interface),
        );
        let new = LinkInfo {
            netdev: interface.name.clone(),
            netdev_index: interface.index,
            mac,
            netdev_mtu: interface.mtu,
            active_mtu: self.info.kind.active_mtu(interface.mtu),
            up: interface.up,
            carrier: interface.carrier,
            gids: self.table.entries(),
            ..self.info.clone()
        };
        let changes = Changes::between(&self.info, &new);
        self.info = new;
        changes
    }
}

/// All links of this broker.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: Vec<Link>,
    next_index: u32,
    snapshot: Snapshot,
}

impl Links {
    /// Names, oldest first.
    pub(super) fn names(&self) -> Vec<String> {
        self.links
            .iter()
            .map(|link| link.info.name.clone())
            .collect()
    }

    /// All of them, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &LinkInfo> {
        self.links.iter().map(|link| &link.info)
    }

    pub(super) fn get(&self, name: &str) -> Result<&LinkInfo, Refusal> {
        self.links
            .iter()
            .map(|link| &link.info)
            .find(|info| info.name == name)
            .ok_or_else(|| Refusal::NoSuchLink { name: name.into() })
    }

    /// Whether a link of RoCE has this address: only then QP 1 is there. All of 127.0.0.0/8 is that
    /// of the loopback interface.
    pub(super) fn have(&self, address: IpAddr) -> bool {
        let gid = Gid::from_ip(address);
        let is_loopback = address.is_ipv4() && address.is_loopback();
        let of_roce = |link: &&Link| link.info.kind == LinkKind::Rxe;
        self.links.iter().filter(of_roce).any(|link| {
            link.info
                .gids
                .iter()
                .any(|entry| entry.gid == gid || (is_loopback && entry.gid.ip().is_loopback()))
        })
    }

    /// Whether an interface has this address; `scope` matters to link-local ones.
    pub(super) fn is_local(&self, address: IpAddr, scope: u32) -> bool {
        let gid = Gid::from_ip(address);
        self.snapshot
            .addresses
            .iter()
            .any(|(index, own)| *own == gid && (!is_link_local(address) || *index == scope))
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether a link keeps the broker running.
    pub(super) fn keep(&self) -> bool {
        self.links.iter().any(|link| link.keep)
    }

    /// Adds a link; checks come in the kernel's order, so that the same mistake gives the same
    /// error.
    pub(super) fn add(
        &mut self,
        name: &str,
        kind: &str,
        netdev: &str,
        keep: bool,
        iwarp: Option<IwarpOptions>,
    ) -> Result<LinkInfo, Refusal> {
        check_name(name)?;
        let interface = self
            .snapshot
            .by_name(netdev)
            .ok_or_else(|| Refusal::NoSuchNetdev {
                netdev: netdev.into(),
            })?;
        let kind =
            LinkKind::from_name(kind).ok_or_else(|| Refusal::UnknownKind { kind: kind.into() })?;
        let iwarp = match (kind, iwarp) {
            (LinkKind::Rxe, None) => None,
            (LinkKind::Rxe, Some(_)) => {
                let detail = "links of type rxe have no options".into();
                return Err(Refusal::InvalidOption { detail });
            }
            (LinkKind::Siw, given) => {
                let options = given.unwrap_or_default();
                options.check().map_err(|error| Refusal::InvalidOption {
                    detail: error.to_string(),
                })?;
                Some(options)
            }
        };
        let on_netdev =
            |link: &&Link| link.info.kind == kind && link.info.netdev_index == interface.index;
        if let Some(link) = self.links.iter().find(on_netdev) {
            return Err(Refusal::NetdevInUse {
                netdev: netdev.into(),
                kind: kind.name().into(),
                link: link.info.name.clone(),
            });
        }
        if self.get(name).is_ok() {
            return Err(Refusal::NameInUse { name: name.into() });
        }
        let mut link = Link {
            info: LinkInfo {
                name: name.into(),
                kind,
                index: self.next_index,
                netdev: netdev.into(),
                netdev_index: interface.index,
                mac: [0; 6],
                netdev_mtu: interface.mtu,
                max_mtu: Mtu::B4096,
                active_mtu: Mtu::B256,
                up: false,
                carrier: false,
                gids: Vec::new(),
                iwarp,
            },
            table: GidTable::default(),
            keep,
        };
        link.follow(interface, &self.snapshot);
        self.next_index += 1;
        let info = link.info.clone();
        self.links.push(link);
        Ok(info)
    }

    pub(super) fn delete(&mut self, name: &str) -> Result<Event, Refusal> {
        self.get(name)?;
        self.links.retain(|link| link.info.name != name);
        Ok(Event::Removed { name: name.into() })
    }

    /// Follows the interfaces: links whose interface is gone go with it, as in the kernel.
    pub(super) fn refresh(&mut self, snapshot: Snapshot) -> Vec<Event> {
        if snapshot == self.snapshot {
            return Vec::new();
        }
        self.snapshot = snapshot;
        let mut events = Vec::new();
        self.links.retain_mut(|link| {
            let Some(interface) = self.snapshot.by_index(link.info.netdev_index) else {
                events.push(Event::Removed {
                    name: link.info.name.clone(),
                });
                return false;
            };
            let changes = link.follow(interface, &self.snapshot);
            if changes.any() {
                events.push(Event::Changed {
                    link: link.info.clone(),
                    changes,
                });
            }
            true
        });
        events
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let invalid = |reason: &str| {
        Err(Refusal::InvalidName {
            name: name.into(),
            reason: reason.into(),
        })
    };
    match name {
        "" => invalid("it is empty"),
        _ if name.len() > NAME_LENGTH_MAX => invalid("it is longer than 63 bytes"),
        // the kernel would take it for a pattern of names
        _ if name.contains('%') => invalid("it contains %"),
        // it becomes a file name in /sys/class/infiniband
        _ if name.contains('/') || name == "." || name == ".." => invalid("it is not a file name"),
        _ if name.chars().any(char::is_whitespace) => invalid("it contains white space"),
        _ if name.chars().any(char::is_control) => invalid("it contains a control character"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::PortState;

    fn gid(text: &str) -> Gid {
        Gid::from_ip(text.parse().expect("a literal of this test"))
    }

    fn interface(index: u32, name: &str, mac: Option<[u8; 6]>, mtu: u32) -> Interface {
        Interface {
            index,
            name: name.into(),
            mac,
            mtu,
            up: true,
            carrier: true,
        }
    }

    fn host() -> Snapshot {
        Snapshot {
            interfaces: vec![
                interface(1, "lo", Some([0; 6]), 65536),
                interface(2, "eth0", Some([0x52, 0x54, 0, 0x77, 0, 2]), 1500),
                interface(3, "tun0", None, 1420),
            ],
            addresses: vec![
                (1, gid("127.0.0.1")),
                (2, gid("10.77.0.2")),
                (1, gid("::1")),
                (2, gid("fe80::5054:ff:fe77:2")),
            ],
        }
    }

    fn links() -> Links {
        let mut links = Links::default();
        links.refresh(host());
        links
    }

    #[test]
    fn loopback_has_the_gids_of_the_kernels_device() {
        let info = links()
            .add("rxe_lo", "rxe", "lo", true, None)
            .expect("a good request");
        let gids: Vec<String> = info
            .gids
            .iter()
            .map(|entry| entry.gid.to_string())
            .collect();
        assert_eq!(gids, ["fe80::200:ff:fe00:0", "::ffff:127.0.0.1", "::1"]);
        assert_eq!(info.active_mtu, Mtu::B4096);
        assert_eq!(info.node_guid(), [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
    }

    #[test]
    fn an_interface_without_mac_gets_a_stable_guid() {
        let one = links()
            .add("rxe0", "rxe", "tun0", true, None)
            .expect("a good request");
        let two = links()
            .add("rxe0", "rxe", "tun0", true, None)
            .expect("a good request");
        assert_eq!(one.node_guid(), two.node_guid());
        assert_eq!(one.gids.len(), 1);
    }

    #[test]
    fn a_link_of_the_other_kind_shows_the_mac_and_knows_the_addresses() {
        let mut links = links();
        links
            .add("rxe0", "rxe", "eth0", true, None)
            .expect("an interface has one of each kind");
        let mut wished = IwarpOptions::default();
        wished.set("crc", "on").expect("there is this option");
        let info = links
            .add("siw0", "siw", "eth0", true, Some(wished))
            .expect("a good request");
        let shown: Vec<Gid> = info.gid_table().iter().map(|entry| entry.gid).collect();
        assert_eq!(shown, [gid("5254:77:2::")]);
        assert_eq!(info.gid(1), None);
        let known: Vec<Gid> = info.addresses().map(|entry| entry.gid).collect();
        assert_eq!(known, [gid("10.77.0.2"), gid("fe80::5054:ff:fe77:2")]);
        assert_eq!(info.iwarp, Some(wished));
        assert_eq!(info.active_mtu, Mtu::B1024);
        let lo = links.add("siw_lo", "siw", "lo", true, None);
        assert_eq!(lo.expect("good").iwarp, Some(IwarpOptions::default()));
    }

    #[test]
    fn only_roce_has_a_queue_pair_1() {
        let mut links = links();
        let address = "10.77.0.2".parse().expect("a literal of this test");
        links.add("siw0", "siw", "eth0", true, None).expect("good");
        assert!(!links.have(address));
        links.add("rxe0", "rxe", "eth0", true, None).expect("good");
        assert!(links.have(address));
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        let both = IwarpOptions {
            mpa: 1,
            peer_to_peer: true,
            ..IwarpOptions::default()
        };
        for (kind, options) in [("siw", both), ("rxe", IwarpOptions::default())] {
            let refused = links().add("a", kind, "lo", true, Some(options));
            assert_eq!(refused.expect_err("a mistake").errno(), libc::EINVAL);
        }
    }

    #[test]
    fn mistakes_give_the_kernels_errors() {
        let mut links = links();
        links
            .add("rxe0", "rxe", "eth0", true, None)
            .expect("a good request");
        let long = "x".repeat(64);
        for (name, kind, netdev, errno) in [
            ("rxe0", "rxe", "lo", libc::ENFILE),
            ("rxe9", "rxe", "eth0", libc::EEXIST),
            ("rxe0", "rxe", "eth0", libc::EEXIST),
            ("rxe9", "rxe", "missing0", libc::ENODEV),
            ("rxe9", "nosuchtype", "lo", libc::EINVAL),
            ("rxe9", "nosuchtype", "missing0", libc::ENODEV),
            ("rxe%d", "rxe", "lo", libc::EINVAL),
            (long.as_str(), "rxe", "lo", libc::EINVAL),
            ("../up", "rxe", "lo", libc::EINVAL),
        ] {
            let refusal = links
                .add(name, kind, netdev, true, None)
                .expect_err("a mistake");
            assert_eq!(refusal.errno(), errno, "{name} {kind} {netdev}: {refusal}");
        }
        assert_eq!(
            links.delete("missing0").expect_err("a mistake").errno(),
            libc::ENODEV
        );
    }

    #[test]
    fn numbers_of_devices_are_not_reused() {
        let mut links = links();
        assert_eq!(
            links
                .add("a", "rxe", "lo", false, None)
                .expect("good")
                .index,
            0
        );
        links.delete("a").expect("it is there");
        assert_eq!(
            links
                .add("a", "rxe", "lo", false, None)
                .expect("good")
                .index,
            1
        );
        assert!(!links.keep());
        links.add("b", "rxe", "eth0", true, None).expect("good");
        assert!(links.keep());
    }

    #[test]
    fn links_follow_their_interfaces() {
        let mut links = links();
        links
            .add("rxe0", "rxe", "eth0", true, None)
            .expect("a good request");
        let mut now = host();
        assert_eq!(links.refresh(now.clone()), []);

        now.interfaces[1].carrier = false;
        now.interfaces[1].mtu = 9000;
        now.addresses.push((2, gid("10.77.0.3")));
        let events = links.refresh(now.clone());
        let [Event::Changed { link, changes }] = &events[..] else {
            panic!("one change expected: {events:?}");
        };
        assert_eq!(link.port_state(), PortState::Down);
        assert_eq!(link.active_mtu, Mtu::B4096);
        assert_eq!(link.gid(2).map(|entry| entry.gid), Some(gid("10.77.0.3")));
        assert!(changes.port_state && changes.mtu && changes.gids && !changes.identity);

        now.interfaces[1].name = "wan".into();
        let events = links.refresh(now.clone());
        assert!(matches!(&events[..], [Event::Changed { changes, .. }] if changes.identity));

        now.interfaces.remove(1);
        assert_eq!(
            links.refresh(now),
            [Event::Removed {
                name: "rxe0".into()
            }]
        );
        assert_eq!(links.len(), 0);
    }
}
