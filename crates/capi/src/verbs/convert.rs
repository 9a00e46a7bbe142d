//! Between C's structures and those of the device: values only, no pointers followed but a list of
//! scatter/gather elements.

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;

use smallvec::SmallVec;
use softrdma::{
    AddressVector, AttributeMask, Attributes, Capabilities, CompletionOpcode, Gid, LinkKind,
    MemoryKey, Mtu, Operation, Psn, QKey, QpView, Qpn, RemoteMemory, SendFlags, Sge, State, Status,
    WorkCompletion,
};

use super::{gid, memory};
use crate::abi::constants::{
    IBV_MIG_MIGRATED, IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
};
use crate::abi::verbs::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::errno::Errno;

/// A place for a completion.
pub const NO_COMPLETION: WorkCompletion =
    WorkCompletion::success(0, CompletionOpcode::Send, 0, Qpn::truncated(0));

/// Elements of one work request; most have one.
pub type Sges = SmallVec<[Sge; 4]>;

/// Elements that the longest list of this device has.
const SGES_MAX: usize = softrdma::attributes::MAX_SGE as usize;

/// A completion as C has it. Without success only the first four fields and `qp_num` are told.
pub fn completion(from: &WorkCompletion) -> ibv_wc {
    let succeeded = from.status == Status::Success;
    let mut flags = 0;
    let mut data = 0;
    if succeeded {
        if from.has_grh {
            flags |= IBV_WC_GRH;
        }
        if let Some(immediate) = from.immediate {
            flags |= IBV_WC_WITH_IMM;
            data = u32::from_ne_bytes(immediate);
        }
        if let Some(key) = from.invalidated {
            flags |= IBV_WC_WITH_INV;
            data = key.0;
        }
    }
    ibv_wc {
        wr_id: from.id,
        status: from.status as c_uint,
        opcode: from.opcode as c_uint,
        vendor_err: from.vendor_error,
        byte_len: if succeeded { from.length } else { 0 },
        imm_data: data,
        qp_num: from.qpn.get(),
        src_qp: from.source_qpn.get(),
        wc_flags: flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// A list of scatter/gather elements; EINVAL for more than any work request may have.
///
/// # Safety
/// `list` is NULL or valid for `count` elements.
pub unsafe fn sges(list: *const ibv_sge, count: c_int, into: &mut Sges) -> Result<(), Errno> {
    into.clear();
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    if count > SGES_MAX || (count > 0 && list.is_null()) {
        return Err(Errno::INVALID);
    }
    into.extend((0..count).map(|place| {
        // SAFETY: the caller's promise.
        sge(&unsafe { list.add(place).read() })
    }));
    Ok(())
}

/// One scatter/gather element.
pub fn sge(from: &ibv_sge) -> Sge {
    Sge {
        address: from.addr,
        length: from.length,
        key: MemoryKey(from.lkey),
    }
}

/// What a send work request asks for; EINVAL for an opcode that this device does not know.
pub fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    // The union's members are plain numbers: reading the wrong one of a malformed request gives
    // wrong numbers, which the device checks like any others.
    // SAFETY: any bytes are valid numbers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = RemoteMemory {
        address: rdma.remote_addr,
        key: MemoryKey(rdma.rkey),
    };
    let target = RemoteMemory {
        address: atomic.remote_addr,
        key: MemoryKey(atomic.rkey),
    };
    // as it lies in memory: immediate data is in network byte order
    let immediate = wr.imm_data.to_ne_bytes();
    let invalidated = MemoryKey(wr.imm_data);
    Ok(match wr.opcode {
        IBV_WR_SEND => Operation::Send,
        IBV_WR_SEND_WITH_IMM => Operation::SendImmediate(immediate),
        IBV_WR_SEND_WITH_INV => Operation::SendInvalidate(invalidated),
        IBV_WR_RDMA_WRITE => Operation::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => Operation::WriteImmediate(remote, immediate),
        IBV_WR_RDMA_READ => Operation::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote: target,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
            remote: target,
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate(invalidated),
        _ => return Err(Errno::INVALID),
    })
}

/// Flags of a send work request. Inline data is decided by [`carries_inline`]; checksum offload is
/// a hint for datagrams.
pub fn send_flags(flags: c_uint) -> SendFlags {
    SendFlags::from_bits_truncate(flags).difference(SendFlags::INLINE)
}

/// Whether the operation carries a payload that can be copied when it is posted.
pub fn carries_inline(operation: &Operation) -> bool {
    match operation {
        Operation::Send
        | Operation::SendImmediate(_)
        | Operation::SendInvalidate(_)
        | Operation::Write(_)
        | Operation::WriteImmediate(..) => true,
        Operation::Read(_)
        | Operation::CompareSwap { .. }
        | Operation::FetchAdd { .. }
        | Operation::LocalInvalidate(_) => false,
    }
}

/// Sizes of a queue pair.
pub fn capabilities(from: &ibv_qp_cap) -> Capabilities {
    Capabilities {
        send_wr_max: from.max_send_wr,
        receive_wr_max: from.max_recv_wr,
        send_sge_max: from.max_send_sge,
        receive_sge_max: from.max_recv_sge,
        inline_max: from.max_inline_data,
    }
}

/// Sizes of a queue pair as C has them.
pub fn cap(from: &Capabilities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.send_wr_max,
        max_recv_wr: from.receive_wr_max,
        max_send_sge: from.send_sge_max,
        max_recv_sge: from.receive_sge_max,
        max_inline_data: from.inline_max,
    }
}

/// What `ibv_modify_qp` is to set. Only what the mask names is looked at; EINVAL for what cannot be
/// a value at all, the device checks the rest. Of iWARP's, as in the kernel, only those are looked
/// at that mean something there, and are what the mask returned names.
pub fn attributes(
    from: &ibv_qp_attr,
    mask: c_int,
    kind: LinkKind,
) -> Result<(Attributes, AddressVector, AttributeMask), Errno> {
    let mut mask = AttributeMask::from_bits(mask as u32).ok_or(Errno::INVALID)?;
    if kind == LinkKind::Siw {
        mask &= AttributeMask::STATE | AttributeMask::PORT | AttributeMask::ACCESS_FLAGS;
    }
    let mut to = Attributes::default();
    let mut address = AddressVector::default();
    for attribute in mask.iter() {
        match attribute {
            AttributeMask::STATE => to.state = state(from.qp_state)?,
            AttributeMask::CURRENT_STATE => to.current_state = state(from.cur_qp_state)?,
            AttributeMask::SQD_ASYNC_NOTIFY => to.sqd_async_notify = from.en_sqd_async_notify != 0,
            AttributeMask::ACCESS_FLAGS => to.access = memory::access(from.qp_access_flags)?,
            AttributeMask::PKEY_INDEX => to.pkey_index = from.pkey_index,
            AttributeMask::PORT => to.port = from.port_num,
            AttributeMask::QKEY => to.qkey = QKey(from.qkey),
            AttributeMask::ADDRESS_VECTOR => address = address_vector(&from.ah_attr)?,
            AttributeMask::PATH_MTU => {
                let code = u8::try_from(from.path_mtu).ok();
                to.path_mtu = code.and_then(Mtu::from_code).ok_or(Errno::INVALID)?;
            }
            AttributeMask::TIMEOUT => to.timeout = from.timeout,
            AttributeMask::RETRY_COUNT => to.retry_count = from.retry_cnt,
            AttributeMask::RNR_RETRY => to.rnr_retry = from.rnr_retry,
            AttributeMask::RQ_PSN => to.rq_psn = Psn::truncated(from.rq_psn),
            AttributeMask::SQ_PSN => to.sq_psn = Psn::truncated(from.sq_psn),
            AttributeMask::MAX_RD_ATOMIC => to.max_rd_atomic = from.max_rd_atomic,
            AttributeMask::MAX_DEST_RD_ATOMIC => to.max_dest_rd_atomic = from.max_dest_rd_atomic,
            AttributeMask::MIN_RNR_TIMER => to.min_rnr_timer = from.min_rnr_timer,
            AttributeMask::DEST_QPN => {
                to.dest_qpn = Qpn::new(from.dest_qp_num).ok_or(Errno::INVALID)?;
            }
            // alternate path, migration and resizing: the device refuses the transition with them
            _ => {}
        }
    }
    Ok((to, address, mask))
}

/// The state with a number of C.
pub fn state(value: c_uint) -> Result<State, Errno> {
    State::ALL
        .into_iter()
        .find(|state| *state as c_uint == value)
        .ok_or(Errno::INVALID)
}

/// Where packets go. RoCE has no address without a GRH.
pub fn address_vector(from: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    if from.is_global == 0 {
        return Err(gid::missing().into());
    }
    Ok(AddressVector {
        source_index: from.grh.sgid_index,
        // SAFETY: any 16 bytes are a GID.
        dest: Gid(unsafe { from.grh.dgid.raw }),
        traffic_class: from.grh.traffic_class,
        hop_limit: from.grh.hop_limit,
        flow_label: from.grh.flow_label,
        service_level: from.sl,
        port: from.port_num,
    })
}

/// The same as C has it.
pub fn ah_attr(from: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dest.0 },
            flow_label: from.flow_label,
            sgid_index: from.source_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: 0,
        sl: from.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: from.port,
    }
}

/// What a queue pair of a connection is to be set to: the attributes of one step, and its mask.
pub fn step(
    from: &Attributes,
    address: &AddressVector,
    mask: AttributeMask,
) -> (ibv_qp_attr, c_int) {
    (qp_attr(from, address), mask.bits() as c_int)
}

/// Everything that `ibv_query_qp` tells.
pub fn queried(view: &QpView, address: &AddressVector) -> ibv_qp_attr {
    let mut to = qp_attr(&view.attributes, address);
    to.qp_state = view.state as c_uint;
    to.cur_qp_state = view.state as c_uint;
    to.path_mig_state = IBV_MIG_MIGRATED;
    to.cap = cap(&view.capabilities);
    to.sq_draining = u8::from(view.is_draining);
    to
}

fn qp_attr(from: &Attributes, address: &AddressVector) -> ibv_qp_attr {
    // SAFETY: plain numbers; what no queue pair here has is 0.
    let mut to: ibv_qp_attr = unsafe { zeroed() };
    to.qp_state = from.state as c_uint;
    to.path_mtu = from.path_mtu as c_uint;
    to.qkey = from.qkey.0;
    to.rq_psn = from.rq_psn.get();
    to.sq_psn = from.sq_psn.get();
    to.dest_qp_num = from.dest_qpn.get();
    to.qp_access_flags = from.access.bits();
    to.ah_attr = ah_attr(address);
    to.pkey_index = from.pkey_index;
    to.en_sqd_async_notify = u8::from(from.sqd_async_notify);
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_count;
    to.rnr_retry = from.rnr_retry;
    to
}

#[cfg(test)]
#[path = "convert/tests.rs"]
mod tests;
