//! `dev show`.

use std::collections::VecDeque;

use broker::{LinkInfo, LinkKind};
use softrdma::attributes::DeviceAttributes;

use super::{
    Ended, OutputOptions, abbreviates, failed,
    format::{Entry, Field, Value, render},
};
use crate::{connect::links, devinfo::guid};

pub(super) const HELP: &str = "\
Usage: softrdma dev show [DEV]
";

pub(super) fn run(options: OutputOptions, mut words: VecDeque<String>) -> Ended {
    let Some(command) = words.pop_front() else {
        return show(options, None);
    };
    match command.as_str() {
        word if abbreviates(word, "show") || abbreviates(word, "list") => {
            show(options, words.pop_front())
        }
        word if abbreviates(word, "help") => Ended::Output(HELP.into()),
        word => Ended::Usage(format!("Unknown dev command '{word}'.\n")),
    }
}

fn show(options: OutputOptions, wanted: Option<String>) -> Ended {
    let links = match links() {
        Ok(links) => links,
        Err(failure) => return failed(&failure, None),
    };
    let shown: Vec<&LinkInfo> = match wanted {
        None => links.iter().collect(),
        Some(wanted) => match links.iter().find(|link| link.name == wanted) {
            Some(link) => vec![link],
            None => return Ended::Failed(format!("Wrong device name - {wanted}\n")),
        },
    };
    let entries: Vec<Entry> = shown
        .iter()
        .map(|link| {
            entry(
                link,
                DeviceAttributes::of(link).capabilities.bits(),
                options,
            )
        })
        .collect();
    Ended::Output(render(&entries, options))
}

fn entry(link: &LinkInfo, capabilities: u64, options: OutputOptions) -> Entry {
    let (node_type, protocol) = match link.kind {
        LinkKind::Rxe => ("ca", "roce"),
        LinkKind::Siw => ("rnic", "iw"),
    };
    let field = |name, value, in_text| Field {
        name,
        value,
        in_text,
    };
    let guid = guid(link.node_guid());
    let mut fields = vec![
        field("ifindex", Value::Number(link.index.into()), false),
        field("ifname", Value::Text(link.name.clone()), false),
        field("node_type", Value::Text(node_type.into()), true),
        field("protocol", Value::Text(protocol.into()), true),
        field("node_guid", Value::Text(guid.clone()), true),
        field("sys_image_guid", Value::Text(guid), true),
    ];
    if options.details {
        fields.push(field("adaptive-moderation", Value::Switch(false), true));
        fields.push(field(
            "caps",
            Value::List(capability_names(capabilities)),
            true,
        ));
    }
    Entry {
        head: format!("{}: {}: ", link.index, link.name),
        fields,
    }
}

/// iproute2's names of the kernel's capability bits, 0 first (one has a slip of the pen); higher
/// ones are unknown to it.
const CAPABILITY_NAMES: [&str; 32] = [
    "RESIZE_MAX_WR",
    "BAD_PKEY_CNTR",
    "BAD_QKEY_CNTR",
    "RAW_MULTI",
    "AUTO_PATH_MIG",
    "CHANGE_PHY_PORT",
    "UD_AV_PORT_ENFORCE_PORT_ENFORCE",
    "CURR_QP_STATE_MOD",
    "SHUTDOWN_PORT",
    "INIT_TYPE",
    "PORT_ACTIVE_EVENT",
    "SYS_IMAGE_GUID",
    "RC_RNR_NAK_GEN",
    "SRQ_RESIZE",
    "N_NOTIFY_CQ",
    "LOCAL_DMA_LKEY",
    "RESERVED",
    "MEM_WINDOW",
    "UD_IP_CSUM",
    "UD_TSO",
    "XRC",
    "MEM_MGT_EXTENSIONS",
    "BLOCK_MULTICAST_LOOPBACK",
    "MEM_WINDOW_TYPE_2A",
    "MEM_WINDOW_TYPE_2B",
    "RC_IP_CSUM",
    "RAW_IP_CSUM",
    "CROSS_CHANNEL",
    "UNKNOWN",
    "MANAGED_FLOW_STEERING",
    "SIGNATURE_HANDOVER",
    "ON_DEMAND_PAGING",
];

fn capability_names(bits: u64) -> Vec<&'static str> {
    (0..64)
        .filter(|bit| bits >> bit & 1 == 1)
        .map(|bit: usize| CAPABILITY_NAMES.get(bit).copied().unwrap_or("UNKNOWN"))
        .collect()
}

#[cfg(test)]
mod tests {
    use wire::Mtu;

    use super::*;
    use crate::rdma::reference_output;

    /// What the kernel's devices have.
    const RXE_CAPABILITIES: u64 = 0x1c0_0122_3c76;
    const SIW_CAPABILITIES: u64 = 0x20_0000;

    fn link(index: u32, name: &str, kind: LinkKind) -> LinkInfo {
        LinkInfo {
            name: name.into(),
            kind,
            index,
            netdev: "eth0".into(),
            netdev_index: 2,
            mac: [0x52, 0x54, 0, 0x77, 0, 2],
            netdev_mtu: 1500,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B1024,
            up: true,
            carrier: true,
            gids: Vec::new(),
            iwarp: None,
        }
    }

    #[test]
    fn listings_are_those_of_iproute2() {
        let reference = include_str!("../../testdata/rdma-dev.txt");
        for (command, details, json, pretty, count) in [
            ("rdma dev show", false, false, false, 2),
            ("rdma -d dev show", true, false, false, 2),
            ("rdma -j dev show", false, true, false, 2),
            ("rdma -j -p dev show", false, true, true, 2),
            ("rdma -d -j -p dev show", true, true, true, 2),
            ("rdma dev show rxe0", false, false, false, 1),
        ] {
            let options = OutputOptions {
                details,
                json,
                pretty,
            };
            let entries = [
                entry(&link(4, "rxe0", LinkKind::Rxe), RXE_CAPABILITIES, options),
                entry(&link(5, "siw0", LinkKind::Siw), SIW_CAPABILITIES, options),
            ];
            let shown = render(&entries[..count], options);
            assert_eq!(shown, reference_output(reference, command, 0), "{command}");
        }
    }
}
