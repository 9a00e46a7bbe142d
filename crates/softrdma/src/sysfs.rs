//! What the kernel's files say of a device: those below `/sys/class/infiniband/NAME`.
//!
//! There is no such folder for a device of ours. Programs ask the library for its files
//! (`ibv_read_sysfs_file`), or look there themselves and are shown a folder that was made up
//! (`softrdma run --sysfs`); both read the one table of this module. Names and texts are those of
//! the kernel's `rdma_rxe` and `siw`; counters are left out, for they would stand still.

use broker::link::{LinkInfo, LinkKind, PhysicalState, PortState};

/// The folder of the GID table.
const GIDS: &str = "ports/1/gids/";
/// The folders of what belongs to each entry of it.
const GID_TYPES: &str = "ports/1/gid_attrs/types/";
const GID_NETDEVS: &str = "ports/1/gid_attrs/ndevs/";

/// The text of one file, without its line end; `None` if there is none of this name.
pub fn read(link: &LinkInfo, file: &str) -> Option<String> {
    let place = |folder| file.strip_prefix(folder)?.parse::<u16>().ok();
    let of_entry = |index| link.gid(index);
    if let Some(index) = place(GIDS) {
        return (usize::from(index) < link.kind.gid_table_length()).then(|| gid(link, index));
    }
    if let Some(index) = place(GID_TYPES) {
        return of_entry(index).map(|_| gid_type(link).into());
    }
    if let Some(index) = place(GID_NETDEVS) {
        return of_entry(index).map(|entry| entry.netdev.clone());
    }
    let mut named = named(link).into_iter();
    named.find(|(name, _)| *name == file).map(|(_, text)| text)
}

/// All files with their texts, by their names from the device's folder on. Of an empty entry of
/// the GID table there is the GID, zero, and nothing else.
pub fn files(link: &LinkInfo) -> Vec<(String, String)> {
    let mut files: Vec<_> = named(link)
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text))
        .collect();
    let indices = 0..u16::try_from(link.kind.gid_table_length()).unwrap_or(u16::MAX);
    files.extend(indices.map(|index| (format!("{GIDS}{index}"), gid(link, index))));
    for entry in link.gid_table() {
        files.push((format!("{GID_TYPES}{}", entry.index), gid_type(link).into()));
        let netdev = entry.netdev.clone();
        files.push((format!("{GID_NETDEVS}{}", entry.index), netdev));
    }
    files
}

/// Those that have a name of their own.
fn named(link: &LinkInfo) -> Vec<(&'static str, String)> {
    let guid = groups(&link.node_guid());
    let (node_type, description, capabilities) = match link.kind {
        LinkKind::Rxe => ("1: CA", "rxe", "0x00010000"),
        LinkKind::Siw => ("4: RNIC", "Software iWARP stack", "0x00090000"),
    };
    let state = match link.port_state() {
        PortState::Active => "4: ACTIVE",
        PortState::Down => "1: DOWN",
    };
    let physical_state = match link.physical_state() {
        PhysicalState::LinkUp => "5: LinkUp",
        PhysicalState::Polling => "2: Polling",
        PhysicalState::Disabled => "3: Disabled",
    };
    let mut named = vec![
        ("fw_ver", String::new()),
        ("node_desc", description.into()),
        ("node_guid", guid.clone()),
        ("node_type", node_type.into()),
        ("parent", link.netdev.clone()),
        ("sys_image_guid", guid),
        ("ports/1/cap_mask", capabilities.into()),
        ("ports/1/lid", "0x0".into()),
        ("ports/1/lid_mask_count", "0".into()),
        ("ports/1/link_layer", "Ethernet".into()),
        ("ports/1/phys_state", physical_state.into()),
        ("ports/1/rate", "2.5 Gb/sec (1X SDR)".into()),
        ("ports/1/sm_lid", "0x0".into()),
        ("ports/1/sm_sl", "0".into()),
        ("ports/1/state", state.into()),
    ];
    if link.kind == LinkKind::Rxe {
        named.push(("ports/1/pkeys/0", "0xffff".into()));
    }
    named
}

fn gid(link: &LinkInfo, index: u16) -> String {
    groups(&link.gid(index).map_or([0; 16], |entry| entry.gid.0))
}

fn gid_type(link: &LinkInfo) -> &'static str {
    match link.kind {
        LinkKind::Rxe => "RoCE v2",
        LinkKind::Siw => "IB/RoCE v1",
    }
}

/// Bytes in groups of two, as the kernel writes GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| {
        pair.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use broker::link::{GID_TABLE_LENGTH, GidEntry};
    use wire::{Gid, Mtu};

    use super::*;

    /// A device that the kernel was asked about, with its addresses and a hole between them.
    fn link() -> LinkInfo {
        let entry = |index, text: &str| GidEntry {
            index,
            gid: Gid(text.parse::<std::net::Ipv6Addr>().expect("a GID").octets()),
            ifindex: 2,
            netdev: "eth0".into(),
        };
        LinkInfo {
            name: "rxe0".into(),
            kind: LinkKind::Rxe,
            index: 0,
            netdev: "eth0".into(),
            netdev_index: 2,
            mac: [0x52, 0x54, 0, 0x77, 0, 2],
            netdev_mtu: 1500,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B1024,
            up: true,
            carrier: true,
            gids: vec![
                entry(0, "fe80::5054:ff:fe77:2"),
                entry(2, "::ffff:10.77.0.2"),
            ],
            iwarp: None,
        }
    }

    #[test]
    fn the_texts_are_the_kernels() {
        let link = link();
        for (file, text) in [
            ("fw_ver", ""),
            ("node_desc", "rxe"),
            ("node_guid", "5054:00ff:fe77:0002"),
            ("parent", "eth0"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:5054:00ff:fe77:0002"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:0a4d:0002"),
            ("ports/1/gid_attrs/ndevs/2", "eth0"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/state", "4: ACTIVE"),
        ] {
            assert_eq!(read(&link, file).as_deref(), Some(text), "{file}");
        }
        for file in [
            "",
            "ports/1/gids/1024",
            "ports/1/gid_attrs/types/1",
            "ports/2/state",
            "hca_type",
        ] {
            assert_eq!(read(&link, file), None, "{file}");
        }
    }

    #[test]
    fn what_is_listed_can_be_read_and_says_the_same() {
        let link = link();
        let files = files(&link);
        assert_eq!(files.len(), 16 + GID_TABLE_LENGTH + 2 * link.gids.len());
        for (file, text) in files {
            assert_eq!(read(&link, &file), Some(text), "{file}");
        }
    }

    #[test]
    fn a_link_of_the_other_kind_is_another_node() {
        let other = LinkInfo {
            kind: LinkKind::Siw,
            ..link()
        };
        assert_eq!(read(&other, "node_type").as_deref(), Some("4: RNIC"));
        assert_eq!(
            read(&other, "ports/1/gid_attrs/types/0").as_deref(),
            Some("IB/RoCE v1")
        );
        for file in ["ports/1/gids/1", "ports/1/pkeys/0"] {
            assert_eq!(read(&other, file), None, "{file}");
        }
        assert_eq!(files(&other).len(), 15 + 3);
    }

    #[test]
    fn a_port_that_is_down_says_so() {
        let down = LinkInfo {
            up: false,
            ..link()
        };
        assert_eq!(read(&down, "ports/1/state").as_deref(), Some("1: DOWN"));
        assert_eq!(
            read(&down, "ports/1/phys_state").as_deref(),
            Some("3: Disabled")
        );
    }
}
