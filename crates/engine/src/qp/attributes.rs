//! What `modify` sets and `query` tells. spec: IBA 11.2.5.2

use wire::{Mtu, Psn, QKey, Qpn};

use crate::access::Access;
use crate::path::Path;
use crate::qp::State;

bitflags::bitflags! {
    /// Which attributes are meant; the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttributeMask: u32 {
        #[allow(missing_docs)] const STATE = 1;
        #[allow(missing_docs)] const CURRENT_STATE = 1 << 1;
        #[allow(missing_docs)] const SQD_ASYNC_NOTIFY = 1 << 2;
        #[allow(missing_docs)] const ACCESS_FLAGS = 1 << 3;
        #[allow(missing_docs)] const PKEY_INDEX = 1 << 4;
        #[allow(missing_docs)] const PORT = 1 << 5;
        #[allow(missing_docs)] const QKEY = 1 << 6;
        #[allow(missing_docs)] const ADDRESS_VECTOR = 1 << 7;
        #[allow(missing_docs)] const PATH_MTU = 1 << 8;
        #[allow(missing_docs)] const TIMEOUT = 1 << 9;
        #[allow(missing_docs)] const RETRY_COUNT = 1 << 10;
        #[allow(missing_docs)] const RNR_RETRY = 1 << 11;
        #[allow(missing_docs)] const RQ_PSN = 1 << 12;
        #[allow(missing_docs)] const MAX_RD_ATOMIC = 1 << 13;
        #[allow(missing_docs)] const ALTERNATE_PATH = 1 << 14;
        #[allow(missing_docs)] const MIN_RNR_TIMER = 1 << 15;
        #[allow(missing_docs)] const SQ_PSN = 1 << 16;
        #[allow(missing_docs)] const MAX_DEST_RD_ATOMIC = 1 << 17;
        #[allow(missing_docs)] const PATH_MIGRATION_STATE = 1 << 18;
        #[allow(missing_docs)] const CAPABILITIES = 1 << 19;
        #[allow(missing_docs)] const DEST_QPN = 1 << 20;
    }
}

/// Values for `modify`; only those that the mask names are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The state to go to.
    pub state: State,
    /// The state that the caller believes it is in.
    pub current_state: State,
    /// Whether to tell when the send queue is drained.
    pub sqd_async_notify: bool,
    /// What the peer may do.
    pub access: Access,
    /// Index in the P_Key table: 0 is the only one.
    pub pkey_index: u16,
    /// Physical port: 1 is the only one.
    pub port: u8,
    /// Where packets go.
    pub path: Path,
    /// Most payload of a packet.
    pub path_mtu: Mtu,
    /// Acknowledgement timeout, 0 to 31: 4.096 µs · 2^n, 0 is never.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is without end.
    pub rnr_retry: u8,
    /// First PSN of the peer.
    pub rq_psn: Psn,
    /// READs and atomics in flight from us, at most 128.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight from the peer, at most 128.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code in our RNR NAKs, 0 to 31.
    pub min_rnr_timer: u8,
    /// Our first PSN.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// What datagrams must carry to get in.
    pub qkey: QKey,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            state: State::Reset,
            current_state: State::Reset,
            sqd_async_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 0,
            path: Path {
                local: std::net::Ipv4Addr::UNSPECIFIED.into(),
                remote: std::net::Ipv4Addr::UNSPECIFIED.into(),
                interface: 0,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            },
            path_mtu: Mtu::B256,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            rq_psn: Psn::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            sq_psn: Psn::default(),
            dest_qpn: Qpn::default(),
            qkey: QKey::default(),
        }
    }
}

/// Sizes of a queue pair, fixed when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Send work requests outstanding.
    pub send_wr_max: u32,
    /// Receive work requests outstanding; without a meaning with a shared receive queue.
    pub receive_wr_max: u32,
    /// Elements of a send work request.
    pub send_sge_max: u32,
    /// Elements of a receive work request.
    pub receive_sge_max: u32,
    /// Bytes of inline data.
    pub inline_max: u32,
}

/// Why `modify` changed nothing. Every one is EINVAL to C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// There is no such transition, or `current_state` is not the state.
    Transition {
        /// The state it is in.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The transition needs these attributes too.
    Missing(AttributeMask),
    /// The transition does not take these attributes.
    NotAllowed(AttributeMask),
    /// The value of this attribute is out of range.
    Value(AttributeMask),
    /// No such queue pair.
    NoQueuePair,
}
