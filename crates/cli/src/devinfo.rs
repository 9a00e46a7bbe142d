//! `devices` and `devinfo`: what `ibv_devices` and `ibv_devinfo` print, for machines without them.

use std::{
    fmt::{Display, Write},
    process::ExitCode,
};

use broker::{LinkInfo, LinkKind, PhysicalState, PortState};
use softrdma::attributes::{DeviceAttributes, PortAttributes};
use softrdma::choice::visible;
use wire::Mtu;

use crate::connect::{Failure, links};

/// Show attributes of devices, as ibv_devinfo does.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this device
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Only this port; 0 means all
    #[arg(
        short = 'i',
        long = "ib-port",
        value_name = "PORT",
        default_value_t = 0
    )]
    port: u8,
    /// All attributes
    #[arg(short, long)]
    verbose: bool,
    /// Only the names of devices
    #[arg(short, long)]
    list: bool,
}

/// A text for standard error, and the exit code.
type Failed = (String, u8);

pub(crate) fn list_devices() -> ExitCode {
    finish(
        links()
            .map(|links| devices(&visible(links)))
            .map_err(|failure| report(&failure)),
    )
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let output = match links() {
        Ok(links) => info(&visible(links), arguments),
        Err(failure) => Err(report(&failure)),
    };
    finish(output)
}

fn report(failure: &Failure) -> Failed {
    (format!("softrdma: {failure}\n"), 1)
}

fn finish(output: Result<String, Failed>) -> ExitCode {
    match output {
        Ok(text) => crate::print(&text),
        Err((text, code)) => {
            crate::print_error(&text);
            ExitCode::from(code)
        }
    }
}

fn devices(links: &[LinkInfo]) -> String {
    let mut text = String::from(
        "    device          \t   node GUID\n    ------          \t----------------\n",
    );
    for link in links {
        let guid = u64::from_be_bytes(link.node_guid());
        // writing to a String cannot fail, here and below
        let _ = writeln!(text, "    {:<16}\t{guid:016x}", link.name);
    }
    text
}

fn info(links: &[LinkInfo], arguments: &Arguments) -> Result<String, Failed> {
    if arguments.list {
        let count = links.len();
        let mut text = format!("{count} HCA{} found:\n", if count == 1 { "" } else { "s" });
        for link in links {
            let _ = writeln!(text, "\t{}", link.name);
        }
        return Ok(text + "\n");
    }
    let shown: Vec<&LinkInfo> = match &arguments.device {
        None if links.is_empty() => return Err(("No IB devices found\n".into(), 255)),
        None => links.iter().collect(),
        Some(name) => match links.iter().find(|link| link.name == *name) {
            Some(link) => vec![link],
            None => return Err((format!("IB device '{name}' wasn't found\n"), 255)),
        },
    };
    if arguments.port > 1 {
        return Err(("Invalid port requested for device\n".into(), 4));
    }
    let described = shown.iter().map(|link| {
        let (device, port) = (DeviceAttributes::of(link), PortAttributes::of(link));
        describe(link, &device, &port, arguments.verbose)
    });
    Ok(described.collect())
}

/// The text of one device.
fn describe(
    link: &LinkInfo,
    device: &DeviceAttributes,
    port: &PortAttributes,
    verbose: bool,
) -> String {
    let mut page = Page(format!("hca_id:\t{}\n", link.name));
    let transport = match link.kind {
        LinkKind::Rxe => "InfiniBand (0)",
        LinkKind::Siw => "iWARP (1)",
    };
    page.device("transport", transport);
    page.device("fw_ver", device.firmware_version);
    page.device("node_guid", guid(device.node_guid));
    page.device("sys_image_guid", guid(device.system_image_guid));
    page.device("vendor_id", format_args!("0x{:04x}", device.vendor_id));
    page.device("vendor_part_id", device.vendor_part_id);
    page.device("hw_ver", format_args!("0x{:X}", device.hardware_version));
    page.device("phys_port_cnt", device.port_count);
    if verbose {
        page.limits(device);
    }
    page.0 += "\t\tport:\t1\n";
    page.port_state(port);
    if verbose {
        page.port_details(port, link.kind);
        // of iWARP the tool shows neither its GID nor the physical state
        let gids = link.gid_table().iter();
        for entry in gids.filter(|_| link.kind == LinkKind::Rxe) {
            page.port(
                &format!("GID[{:3}]", entry.index),
                format_args!("{}, RoCE v2", entry.gid),
            );
        }
    }
    page.0 + "\n"
}

/// The 8 bytes of a GUID, in groups of two.
pub(crate) fn guid(bytes: [u8; 8]) -> String {
    let [a, b, c, d, e, f, g, h] = bytes;
    format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}")
}

/// `ibv_devinfo`'s names of the capability bits.
const CAPABILITY_NAMES: [(u32, &str); 22] = [
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
];

/// What our devices have nothing of, as `ibv_devinfo -v` prints it.
const NOTHING_ON_DEMAND: &str = "\
\tgeneral_odp_caps:
\trc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tuc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tud_odp_caps:
\t\t\t\t\tNO SUPPORT
\txrc_odp_caps:
\t\t\t\t\tNO SUPPORT
\tcompletion_timestamp_mask not supported
\tcore clock not supported
";

/// The same, further down.
const NO_OFFLOADS: &str = "\
\ttso_caps:
\t\tmax_tso:\t\t\t0
\trss_caps:
\t\tmax_rwq_indirection_tables:\t\t\t0
\t\tmax_rwq_indirection_table_size:\t\t\t0
\t\trx_hash_function:\t\t\t\t0x0
\t\trx_hash_fields_mask:\t\t\t\t0x0
\tmax_wq_type_rq:\t\t\t0
\tpacket_pacing_caps:
\t\tqp_rate_limit_min:\t0kbps
\t\tqp_rate_limit_max:\t0kbps
\ttag matching not supported
";

/// A text under construction.
struct Page(String);

impl Page {
    /// A line of the device: values stand in column 40.
    fn device(&mut self, name: &str, value: impl Display) {
        self.line(8, 40, name, value);
    }

    /// A line of the port: values stand in column 48.
    fn port(&mut self, name: &str, value: impl Display) {
        self.line(24, 48, name, value);
    }

    fn line(&mut self, indent: usize, column: usize, name: &str, value: impl Display) {
        let end = indent + name.len() + 1;
        let before = "\t".repeat(indent / 8);
        let between = "\t".repeat(column.saturating_sub(end).div_ceil(8));
        // writing to a String cannot fail
        let _ = writeln!(self.0, "{before}{name}:{between}{value}");
    }

    fn limits(&mut self, device: &DeviceAttributes) {
        let capabilities = device.capabilities.bits();
        self.device("max_mr_size", format_args!("0x{:x}", device.max_mr_size));
        self.device(
            "page_size_cap",
            format_args!("0x{:x}", device.page_size_cap),
        );
        self.device("max_qp", device.max_qp);
        self.device("max_qp_wr", device.max_qp_wr);
        self.device(
            "device_cap_flags",
            format_args!("0x{:08x}", capabilities & 0xffff_ffff),
        );
        for (_, name) in CAPABILITY_NAMES
            .iter()
            .filter(|(bit, _)| capabilities >> bit & 1 == 1)
        {
            self.0 += &format!("\t\t\t\t\t{name}\n");
        }
        self.device("max_sge", device.max_sge);
        self.device("max_sge_rd", device.max_sge_rd);
        self.device("max_cq", device.max_cq);
        self.device("max_cqe", device.max_cqe);
        self.device("max_mr", device.max_mr);
        self.device("max_pd", device.max_pd);
        self.device("max_qp_rd_atom", device.max_qp_rd_atom);
        self.device("max_ee_rd_atom", 0);
        self.device("max_res_rd_atom", device.max_res_rd_atom);
        self.device("max_qp_init_rd_atom", device.max_qp_init_rd_atom);
        self.device("max_ee_init_rd_atom", 0);
        let atomics = if device.has_atomics {
            "ATOMIC_HCA (1)"
        } else {
            "ATOMIC_NONE (0)"
        };
        self.device("atomic_cap", atomics);
        for name in ABSENT {
            self.device(name, 0);
        }
        self.device("max_mcast_grp", device.max_mcast_grp);
        self.device("max_mcast_qp_attach", device.max_mcast_qp_attach);
        self.device(
            "max_total_mcast_qp_attach",
            device.max_total_mcast_qp_attach,
        );
        self.device("max_ah", device.max_ah);
        self.device("max_fmr", 0);
        self.device("max_srq", device.max_srq);
        self.device("max_srq_wr", device.max_srq_wr);
        self.device("max_srq_sge", device.max_srq_sge);
        self.device("max_pkeys", device.max_pkeys);
        self.device("local_ca_ack_delay", device.local_ca_ack_delay);
        self.0 += NOTHING_ON_DEMAND;
        self.device("device_cap_flags_ex", format_args!("0x{capabilities:X}"));
        let unknown = capabilities & !0xffff_ffff;
        if unknown != 0 {
            self.0 += &format!("\t\t\t\t\tUnknown flags: 0x{unknown:X}\n");
        }
        self.0 += NO_OFFLOADS;
        let vectors = std::thread::available_parallelism().map_or(1, usize::from);
        self.device("num_comp_vectors", vectors);
    }

    fn port_state(&mut self, port: &PortAttributes) {
        let mtu = |mtu: Mtu| format!("{} ({})", mtu.bytes(), mtu as u8);
        self.port(
            "state",
            match port.state {
                PortState::Active => "PORT_ACTIVE (4)",
                PortState::Down => "PORT_DOWN (1)",
            },
        );
        self.port("max_mtu", mtu(port.max_mtu));
        self.port("active_mtu", mtu(port.active_mtu));
        self.port("sm_lid", 0);
        self.port("port_lid", 0);
        self.port("port_lmc", "0x00");
        self.port("link_layer", "Ethernet");
    }

    fn port_details(&mut self, port: &PortAttributes, kind: LinkKind) {
        self.port("max_msg_sz", format_args!("0x{:x}", port.max_message_size));
        self.port(
            "port_cap_flags",
            format_args!("0x{:08x}", port.port_cap_flags),
        );
        self.port("port_cap_flags2", "0x0000");
        match port.max_vl_count {
            0 => self.port("max_vl_num", "invalid value (0)"),
            count => self.port("max_vl_num", format_args!("{count} ({count})")),
        }
        self.port(
            "bad_pkey_cntr",
            format_args!("0x{:x}", port.bad_pkey_counter),
        );
        self.port(
            "qkey_viol_cntr",
            format_args!("0x{:x}", port.qkey_violation_counter),
        );
        self.port("sm_sl", 0);
        self.port("pkey_tbl_len", port.pkey_table_length);
        self.port("gid_tbl_len", port.gid_table_length);
        self.port("subnet_timeout", 0);
        self.port("init_type_reply", 0);
        let (width, speed) = (port.active_width, port.active_speed);
        self.port(
            "active_width",
            format_args!("{} ({width})", width_name(width)),
        );
        self.port(
            "active_speed",
            format_args!("{} ({speed})", speed_name(speed)),
        );
        if kind == LinkKind::Siw {
            return;
        }
        self.port(
            "phys_state",
            match port.physical_state {
                PhysicalState::LinkUp => "LINK_UP (5)",
                PhysicalState::Polling => "POLLING (2)",
                PhysicalState::Disabled => "DISABLED (3)",
            },
        );
    }
}

/// Limits of what our devices do not have.
const ABSENT: [&str; 5] = [
    "max_ee",
    "max_rdd",
    "max_mw",
    "max_raw_ipv6_qp",
    "max_raw_ethy_qp",
];

fn width_name(code: u8) -> &'static str {
    match code {
        1 => "1X",
        2 => "4X",
        4 => "8X",
        8 => "12X",
        16 => "2X",
        _ => "invalid width",
    }
}

fn speed_name(code: u8) -> &'static str {
    match code {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        _ => "invalid speed",
    }
}

#[cfg(test)]
mod tests {
    use broker::GidEntry;
    use softrdma::attributes::DeviceCapabilities;
    use wire::Gid;

    use super::*;
    use crate::rdma::reference_output;

    const REFERENCE: &str = include_str!("../testdata/ibv.txt");

    fn link() -> LinkInfo {
        let entry = |index, text: &str| GidEntry {
            index,
            gid: Gid::from_ip(text.parse().expect("a literal of this test")),
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
            gids: vec![entry(0, "fe80::5054:ff:fe77:2"), entry(1, "10.77.0.2")],
            iwarp: None,
        }
    }

    /// The part of a reference output about the first device.
    fn first_device(output: &str) -> String {
        let end = output.find("\n\n").expect("an empty line ends it");
        output[..end + 2].to_owned()
    }

    #[test]
    fn identity_and_port_are_those_of_the_kernels_device() {
        let arguments = Arguments {
            device: None,
            port: 1,
            verbose: false,
            list: false,
        };
        let expected = first_device(&reference_output(REFERENCE, "ibv_devinfo", 0));
        assert_eq!(info(&[link()], &arguments).expect("it is there"), expected);
    }

    #[test]
    fn all_lines_have_the_form_of_ibv_devinfo() {
        // the kernel's values, so that every line can be compared
        let device = DeviceAttributes {
            max_qp: 1_048_560,
            capabilities: DeviceCapabilities::from_bits_retain(0x1c0_0122_3c76),
            max_res_rd_atom: 258_048,
            max_pkeys: 64,
            max_cqe: 32_767,
            ..DeviceAttributes::of(&link())
        };
        let output = describe(&link(), &device, &PortAttributes::of(&link()), true);
        let expected = first_device(&reference_output(REFERENCE, "ibv_devinfo -v", 0));
        let name = |line: &str| line.trim_start().split(':').next().map(str::to_owned);
        let skipped = |line: &&str| {
            let name = name(line).unwrap_or_default();
            name != "num_comp_vectors" && !ABSENT.contains(&name.as_str())
        };
        let (ours, theirs): (Vec<&str>, Vec<&str>) = (
            output.lines().filter(skipped).collect(),
            expected.lines().filter(skipped).collect(),
        );
        assert_eq!(ours, theirs);
        let names = |text: &str| text.lines().map(name).collect::<Vec<_>>();
        assert_eq!(names(&output), names(&expected));
    }

    #[test]
    fn a_device_of_iwarp_is_described_as_the_tool_does() {
        let link = LinkInfo {
            name: "siw0".into(),
            kind: LinkKind::Siw,
            index: 3,
            ..link()
        };
        // the kernel's values, so that every line can be compared
        let device = DeviceAttributes {
            max_qp: 102_400,
            max_qp_wr: 32_768,
            capabilities: DeviceCapabilities::from_bits_retain(0x20_0000),
            max_sge: 6,
            max_cq: 102_400,
            max_cqe: 3_276_800,
            max_mr: 1_024_000,
            max_pd: 102_400,
            max_res_rd_atom: 13_107_200,
            max_srq: 102_400,
            max_srq_wr: 327_680,
            max_srq_sge: 6,
            ..DeviceAttributes::of(&link)
        };
        let port = PortAttributes {
            max_message_size: u32::MAX,
            ..PortAttributes::of(&link)
        };
        let output = describe(&link, &device, &port, true);
        let expected = reference_output(REFERENCE, "ibv_devinfo -d siw0 -v", 0);
        let lines = |text: &str| -> Vec<String> {
            let of_this_machine = |line: &&str| !line.contains("num_comp_vectors");
            text.trim_end()
                .lines()
                .filter(of_this_machine)
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(lines(&output), lines(&expected));
    }

    #[test]
    fn lists_are_those_of_the_tools() {
        let mut siw = link();
        siw.name = "siw0".into();
        let links = [link(), siw];
        assert_eq!(
            devices(&links),
            reference_output(REFERENCE, "ibv_devices", 0)
        );
        let arguments = Arguments {
            device: None,
            port: 0,
            verbose: false,
            list: true,
        };
        let expected = reference_output(REFERENCE, "ibv_devinfo -l", 0);
        assert_eq!(info(&links, &arguments).expect("no failure"), expected);
    }

    #[test]
    fn failures_are_those_of_ibv_devinfo() {
        let arguments = |device: &str, port| Arguments {
            device: Some(device.into()),
            port,
            verbose: false,
            list: false,
        };
        for (command, arguments) in [
            ("ibv_devinfo -d rxe0 -i 2", arguments("rxe0", 2)),
            ("ibv_devinfo -d missing0", arguments("missing0", 0)),
        ] {
            let (text, code) = info(&[link()], &arguments).expect_err("it fails");
            let expected = reference_output(REFERENCE, command, 0);
            assert_eq!(format!("{text}[exit code {code}]\n"), expected);
        }
        let all = Arguments {
            device: None,
            port: 0,
            verbose: false,
            list: false,
        };
        let expected = include_str!("../testdata/rdma-empty.txt");
        let (text, code) = info(&[], &all).expect_err("there is none");
        let expected = reference_output(expected, "ibv_devinfo", 0);
        assert_eq!(format!("{text}[exit code {code}]\n"), expected);
    }
}
