//! What the broker knows of a link: an RDMA device on one network interface.
//!
//! Read first: the GID table of RoCE, IBA A17.4.2 and the glossary's *GID*. [`LinkInfo`] is what
//! clients get; [`GidTable`] holds the order in which addresses take their places.

use serde::{Deserialize, Serialize};
use wire::{Gid, Mtu};

use crate::iwarp::IwarpOptions;

/// Entries of a GID table, as the kernel's software device has.
pub const GID_TABLE_LENGTH: usize = 1024;

/// The protocol of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Soft-RoCE: RoCEv2 over UDP.
    Rxe,
    /// Soft-iWARP: MPA over TCP.
    Siw,
}

impl LinkKind {
    /// The word after `type` in `link add`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }

    /// The kind that `link add … type NAME` asks for.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "rxe" => Some(Self::Rxe),
            "siw" => Some(Self::Siw),
            _ => None,
        }
    }

    /// Entries of the GID table that programs see. Of Soft-iWARP the first is the MAC, as in the
    /// kernel, and alone.
    pub const fn gid_table_length(self) -> usize {
        match self {
            Self::Rxe => GID_TABLE_LENGTH,
            Self::Siw => 1,
        }
    }

    /// The largest path MTU on an interface of this MTU. TCP knows no path MTU of RDMA: Soft-iWARP
    /// says what would fit without any header.
    pub fn active_mtu(self, netdev_mtu: u32) -> Mtu {
        match self {
            Self::Rxe => Mtu::of_interface(netdev_mtu),
            Self::Siw => {
                let fits = |mtu: &Mtu| mtu.bytes() <= netdev_mtu;
                let largest = Mtu::ALL.into_iter().rev().find(fits);
                largest.unwrap_or(Mtu::B256)
            }
        }
    }

    /// Entry 0 of the table, made of the MAC.
    pub fn default_gid(self, mac: [u8; 6]) -> Gid {
        match self {
            Self::Rxe => Gid::link_local(mac),
            Self::Siw => {
                let mut bytes = [0; 16];
                bytes[..6].copy_from_slice(&mac);
                Gid(bytes)
            }
        }
    }
}

/// Logical state of the port; the numbers are those of verbs. spec: IBA 14.2.5.6
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortState {
    /// The interface is down or has no carrier.
    Down = 1,
    /// Traffic can flow.
    Active = 4,
}

/// Physical state of the port; the numbers are those of verbs. spec: IBA 14.2.5.6
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhysicalState {
    /// The interface is up, without carrier.
    Polling = 2,
    /// The interface is down.
    Disabled = 3,
    /// The interface is up and has a carrier.
    LinkUp = 5,
}

/// An address under which a link can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// Its place in the table; holes between indices are empty entries.
    pub index: u16,
    /// The address.
    #[serde(with = "gid_text")]
    pub gid: Gid,
    /// The interface that has the address.
    pub ifindex: u32,
    /// The name of that interface.
    pub netdev: String,
}

/// A link as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Device name, such as `rxe_lo`.
    pub name: String,
    /// Its protocol.
    pub kind: LinkKind,
    /// Number of the device: counts up over the life of the broker, never reused.
    pub index: u32,
    /// The interface below.
    pub netdev: String,
    /// Its index.
    pub netdev_index: u32,
    /// Its MAC; zero on `lo`, made from the name where there is none.
    pub mac: [u8; 6],
    /// Its MTU in bytes.
    pub netdev_mtu: u32,
    /// The largest path MTU of the device.
    #[serde(with = "mtu_code")]
    pub max_mtu: Mtu,
    /// The largest path MTU that fits the interface now.
    #[serde(with = "mtu_code")]
    pub active_mtu: Mtu,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Entry 0 and all addresses of the interface, by index. Programs see as much of it as
    /// [`LinkKind::gid_table_length`] says.
    pub gids: Vec<GidEntry>,
    /// Of a link of type `siw`: what its connections are like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iwarp: Option<IwarpOptions>,
}

impl LinkInfo {
    /// Logical state of the port.
    pub const fn port_state(&self) -> PortState {
        if self.up && self.carrier {
            PortState::Active
        } else {
            PortState::Down
        }
    }

    /// Physical state of the port.
    pub const fn physical_state(&self) -> PhysicalState {
        match (self.up, self.carrier, self.kind) {
            (true, true, _) => PhysicalState::LinkUp,
            (true, false, LinkKind::Rxe) => PhysicalState::Polling,
            // the kernel's siw knows no third state
            (true, false, LinkKind::Siw) | (false, ..) => PhysicalState::Disabled,
        }
    }

    /// The node GUID: EUI-64 of the MAC, most significant byte first. spec: RFC 4291 appendix A
    pub const fn node_guid(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.mac;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// The entry at `index` of the GID table, if it is in use.
    pub fn gid(&self, index: u16) -> Option<&GidEntry> {
        let table = self.gid_table();
        let at = table
            .binary_search_by_key(&index, |entry| entry.index)
            .ok()?;
        table.get(at)
    }

    /// The valid entries of the GID table, as programs see it.
    pub fn gid_table(&self) -> &[GidEntry] {
        let length = self.kind.gid_table_length();
        let end = self
            .gids
            .partition_point(|entry| usize::from(entry.index) < length);
        &self.gids[..end]
    }

    /// What `address` is found by: the entries that are addresses. Entry 0 of Soft-iWARP is none.
    pub fn addresses(&self) -> impl Iterator<Item = &GidEntry> {
        let is_address = |entry: &&GidEntry| self.kind == LinkKind::Rxe || entry.index != 0;
        self.gids.iter().filter(is_address)
    }
}

/// The MAC that stands for an interface without one: locally administered, made from the name,
/// so that the device's GUID survives a restart of the broker.
pub fn mac_of_name(netdev: &str) -> [u8; 6] {
    // FNV-1a: any stable spread of names over 40 bits does
    let hash = netdev
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let [.., a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// An address wanted in a table, with its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address as a GID.
    pub gid: Gid,
    /// The interface that has it.
    pub ifindex: u32,
    /// The name of that interface.
    pub netdev: String,
}

/// The order of GIDs: 0 is the link-local one of the MAC, always; then IPv4, then IPv6; what
/// comes later takes the first free place, what goes leaves a hole.
#[derive(Debug, Default)]
pub struct GidTable {
    entries: Vec<Option<Address>>,
}

impl GidTable {
    /// Makes the table hold exactly the default GID and `addresses`; entries that stay keep
    /// their places. Addresses that no longer fit (more than 1,023) are left out.
    /// Returns whether anything changed.
    pub fn update(&mut self, default: &Address, addresses: &[Address]) -> bool {
        let mut changed = false;
        if self.entries.is_empty() {
            self.entries.push(None);
        }
        if self.entries[0].as_ref() != Some(default) {
            self.entries[0] = Some(default.clone());
            changed = true;
        }
        // the interface's own EUI-64 address is entry 0 already
        let wanted = |address: &Address| address != default;
        for entry in &mut self.entries[1..] {
            let stays = entry
                .as_ref()
                .is_some_and(|held| wanted(held) && addresses.contains(held));
            if entry.is_some() && !stays {
                *entry = None;
                changed = true;
            }
        }
        let is_v4 = |address: &Address| address.gid.ip().is_ipv4();
        let (v4, v6): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| is_v4(address));
        for address in v4.into_iter().chain(v6).filter(|address| wanted(address)) {
            let known = self.entries.iter().flatten().any(|held| held == address);
            if !known {
                changed |= self.insert(address.clone());
            }
        }
        changed
    }

    fn insert(&mut self, address: Address) -> bool {
        let hole = self.entries.iter().position(Option::is_none);
        match hole.unwrap_or(self.entries.len()) {
            GID_TABLE_LENGTH.. => return false,
            end if end == self.entries.len() => self.entries.push(Some(address)),
            hole => self.entries[hole] = Some(address),
        }
        true
    }

    /// The valid entries by index.
    pub fn entries(&self) -> Vec<GidEntry> {
        (0_u16..)
            .zip(&self.entries)
            .filter_map(|(index, entry)| {
                let Address {
                    gid,
                    ifindex,
                    netdev,
                } = entry.as_ref()?;
                Some(GidEntry {
                    index,
                    gid: *gid,
                    ifindex: *ifindex,
                    netdev: netdev.clone(),
                })
            })
            .collect()
    }
}

/// GIDs travel as IPv6 text.
mod gid_text {
    use std::net::Ipv6Addr;

    use serde::{Deserialize, Deserializer, Serializer};
    use wire::Gid;

    pub fn serialize<S: Serializer>(gid: &Gid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(gid)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Gid, D::Error> {
        Ok(Gid(Ipv6Addr::deserialize(from)?.octets()))
    }
}

/// Path MTUs travel as their verbs code.
mod mtu_code {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use wire::Mtu;

    pub fn serialize<S: Serializer>(mtu: &Mtu, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*mtu as u8)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mtu, D::Error> {
        let code = u8::deserialize(from)?;
        Mtu::from_code(code).ok_or_else(|| D::Error::custom(format!("path MTU code {code}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address {
            gid: Gid::from_ip(text.parse().expect("a literal of this test")),
            ifindex: 2,
            netdev: "eth0".into(),
        }
    }

    fn list(table: &GidTable) -> Vec<(u16, String)> {
        table
            .entries()
            .iter()
            .map(|entry| (entry.index, entry.gid.to_string()))
            .collect()
    }

    fn owned(expected: &[(u16, &str)]) -> Vec<(u16, String)> {
        expected
            .iter()
            .map(|(index, gid)| (*index, (*gid).to_owned()))
            .collect()
    }

    #[test]
    fn registration_takes_ipv4_first_whatever_the_order_of_addresses() {
        let default = address("fe80::5054:ff:fe77:2");
        let mut table = GidTable::default();
        let given = [
            address("2001:db8::1"),
            address("fe80::5054:ff:fe77:2"),
            address("10.77.0.2"),
            address("fe80::1234"),
            address("10.77.0.3"),
        ];
        assert!(table.update(&default, &given));
        assert_eq!(
            list(&table),
            owned(&[
                (0, "fe80::5054:ff:fe77:2"),
                (1, "::ffff:10.77.0.2"),
                (2, "::ffff:10.77.0.3"),
                (3, "2001:db8::1"),
                (4, "fe80::1234"),
            ])
        );
        assert!(!table.update(&default, &given));
    }

    #[test]
    fn a_removed_address_leaves_a_hole_and_the_next_one_fills_it() {
        let default = address("fe80::1");
        let mut table = GidTable::default();
        let (a, b, c) = (
            address("10.0.0.1"),
            address("10.0.0.2"),
            address("2001:db8::1"),
        );
        table.update(&default, &[a.clone(), b.clone(), c.clone()]);
        assert!(table.update(&default, &[a.clone(), c.clone()]));
        assert_eq!(
            list(&table),
            owned(&[(0, "fe80::1"), (1, "::ffff:10.0.0.1"), (3, "2001:db8::1")])
        );
        table.update(&default, &[a, c, address("2001:db8::2")]);
        assert_eq!(list(&table)[2], (2, "2001:db8::2".to_owned()));
    }

    #[test]
    fn the_default_gid_needs_no_address() {
        let mut table = GidTable::default();
        assert!(table.update(&address("fe80::1"), &[]));
        assert_eq!(list(&table), owned(&[(0, "fe80::1")]));
    }

    #[test]
    fn a_full_table_drops_the_rest() {
        let many: Vec<Address> = (0..2000_u32)
            .map(|n| Address {
                gid: Gid::from(std::net::Ipv4Addr::from(0x0a00_0000 + n)),
                ..address("::1")
            })
            .collect();
        let mut table = GidTable::default();
        table.update(&address("fe80::1"), &many);
        assert_eq!(table.entries().len(), GID_TABLE_LENGTH);
        assert!(!table.update(&address("fe80::1"), &many));
    }

    #[test]
    fn states_of_the_port_follow_the_interface() {
        let mut info = LinkInfo {
            name: "rxe_lo".into(),
            kind: LinkKind::Rxe,
            index: 0,
            netdev: "lo".into(),
            netdev_index: 1,
            mac: [0; 6],
            netdev_mtu: 65536,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B4096,
            up: true,
            carrier: true,
            gids: Vec::new(),
            iwarp: None,
        };
        assert_eq!(info.node_guid(), [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
        assert_eq!(info.port_state(), PortState::Active);
        info.carrier = false;
        assert_eq!(info.physical_state(), PhysicalState::Polling);
        info.up = false;
        assert_eq!(info.port_state(), PortState::Down);
        assert_eq!(info.physical_state(), PhysicalState::Disabled);
    }

    #[test]
    fn a_made_mac_is_local_and_unicast() {
        let mac = mac_of_name("tun0");
        assert_eq!(mac[0] & 3, 2);
        assert_ne!(mac, mac_of_name("tun1"));
    }
}
