//! What a device and its port say of themselves. Identity is that of the kernel's rxe and siw, so
//! that programs which look for it find it; limits are ours and true.
//!
//! Read first: IBA 11.2.1.2 (query HCA).

use broker::link::{LinkInfo, LinkKind, PhysicalState, PortState};
use engine::multicast::{GROUPS_MAX, MEMBERS_MAX};
use wire::Mtu;

use crate::completion_queue::COMPLETIONS_MAX;

bitflags::bitflags! {
    /// What a device can do; the low 32 bits are `enum ibv_device_cap_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceCapabilities: u64 {
        /// Packets with a wrong P_Key are counted.
        const BAD_PKEY_COUNTER = 1 << 1;
        /// Packets with a wrong Q_Key are counted.
        const BAD_QKEY_COUNTER = 1 << 2;
        /// An event tells when the port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// All ports of a system have the same system image GUID.
        const SYSTEM_IMAGE_GUID = 1 << 11;
        /// RNR NAKs are sent.
        const RC_RNR_NAK_GENERATION = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
    }
}

/// Attributes of a device. Sizes are counts unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of `struct ibv_device_attr`
pub struct DeviceAttributes {
    pub firmware_version: &'static str,
    pub node_guid: [u8; 8],
    pub system_image_guid: [u8; 8],
    /// Bytes.
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hardware_version: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub capabilities: DeviceCapabilities,
    pub has_atomics: bool,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub port_count: u8,
    /// Bytes of inline data that `create_qp` accepts.
    pub max_inline: u32,
}

/// Queue pairs of one process: one slot of 65,536 numbers, of which 0xffffff is multicast's.
pub const MAX_QP: u32 = 65_535;
/// Outstanding work requests of one queue.
pub const MAX_QP_WR: u32 = 1 << 20;
/// Scatter/gather elements of one work request.
pub const MAX_SGE: u32 = 32;
/// Completions that a queue can hold. More than the kernel's device has: one queue for 256 queue
/// pairs with the depths that perftest asks for would not fit 32,767.
pub const MAX_CQE: u32 = COMPLETIONS_MAX;
/// READs and atomics in flight on one queue pair, in each direction.
pub const MAX_RD_ATOMIC: u32 = 128;
/// Address handles, as the kernel's device has them; nothing here counts them.
pub const MAX_AH: u32 = 32_767;
/// Shared receive queues, as the kernel's device has them; nothing here counts them.
pub const MAX_SRQ: u32 = 917_503;
/// Outstanding receives of one shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 20;
/// Elements of one receive of a shared receive queue.
pub const MAX_SRQ_SGE: u32 = 27;
/// Bytes of inline data.
pub const MAX_INLINE: u32 = 512;
/// Bytes of one message. spec: IBA 9.7.1 (C9-92)
pub const MAX_MESSAGE: u32 = 1 << 31;

impl DeviceAttributes {
    /// The attributes of a link.
    pub fn of(link: &LinkInfo) -> Self {
        match link.kind {
            LinkKind::Rxe => Self::of_roce(link),
            LinkKind::Siw => Self::of_iwarp(link),
        }
    }

    /// Connections only: no datagrams, groups, address handles or P_Keys.
    fn of_iwarp(link: &LinkInfo) -> Self {
        Self {
            page_size_cap: 4096,
            vendor_id: 0x0062_6d74,
            vendor_part_id: link.index,
            capabilities: DeviceCapabilities::PORT_ACTIVE_EVENT | DeviceCapabilities::SRQ_RESIZE,
            has_atomics: link.iwarp.is_some_and(|options| options.rfc7306),
            // a Read Request names one sink. spec: RFC 5040 4.4
            max_sge_rd: 1,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_ah: 0,
            max_pkeys: 0,
            local_ca_ack_delay: 0,
            ..Self::of_roce(link)
        }
    }

    fn of_roce(link: &LinkInfo) -> Self {
        Self {
            firmware_version: "0.0.0",
            node_guid: link.node_guid(),
            system_image_guid: link.node_guid(),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0x00ff_ffff,
            vendor_part_id: 0,
            hardware_version: 0,
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            capabilities: DeviceCapabilities::all(),
            has_atomics: true,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: 1 << 20,
            max_cqe: MAX_CQE,
            max_mr: 524_287,
            max_pd: 1 << 20,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_res_rd_atom: MAX_QP * MAX_RD_ATOMIC,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            max_mcast_grp: GROUPS_MAX as u32,
            max_mcast_qp_attach: MEMBERS_MAX as u32,
            max_total_mcast_qp_attach: (GROUPS_MAX * MEMBERS_MAX) as u32,
            max_ah: MAX_AH,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: MAX_SRQ_SGE,
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            port_count: 1,
            max_inline: MAX_INLINE,
        }
    }
}

/// `IBV_PORT_CM_SUP`
const CM_SUPPORT: u32 = 1 << 16;
/// `IBV_PORT_DEVICE_MGMT_SUP`: what the kernel's siw says of itself.
const DEVICE_MANAGEMENT: u32 = 1 << 19;

/// Attributes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of `struct ibv_port_attr`
pub struct PortAttributes {
    pub state: PortState,
    pub physical_state: PhysicalState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_table_length: u16,
    pub port_cap_flags: u32,
    /// Bytes.
    pub max_message_size: u32,
    pub pkey_table_length: u16,
    pub max_vl_count: u8,
    pub bad_pkey_counter: u32,
    pub qkey_violation_counter: u32,
    /// Code of `ibv_port_attr::active_width`.
    pub active_width: u8,
    /// Code of `ibv_port_attr::active_speed`.
    pub active_speed: u8,
}

impl PortAttributes {
    /// The attributes of a link's port.
    pub fn of(link: &LinkInfo) -> Self {
        let is_roce = link.kind == LinkKind::Rxe;
        Self {
            state: link.port_state(),
            physical_state: link.physical_state(),
            max_mtu: link.max_mtu,
            active_mtu: link.active_mtu,
            gid_table_length: link.kind.gid_table_length() as u16, // 1024 at most
            port_cap_flags: if is_roce {
                CM_SUPPORT
            } else {
                CM_SUPPORT | DEVICE_MANAGEMENT
            },
            max_message_size: MAX_MESSAGE,
            pkey_table_length: is_roce.into(),
            max_vl_count: is_roce.into(),
            bad_pkey_counter: 0,
            qkey_violation_counter: 0,
            // what an interface of unknown speed has: 1X, 2.5 Gbit/s
            active_width: 1,
            active_speed: 1,
        }
    }
}
