//! `ibv_copy_*_kern`: between the structures of programs and those of the kernel's interface.
//! Only a librdmacm that talks to the kernel calls these.

use core::ffi::c_int;

use crate::abi::kern::{ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr};
use crate::abi::rdma_cma::ibv_sa_path_rec;
use crate::abi::verbs::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

fn address(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: the caller's promise; reads and writes are of plain data.
    unsafe { to.write(address(&from.read())) }
}

/// `ibv_copy_qp_attr_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: the caller's promise; plain data.
    let from = unsafe { from.read() };
    let attributes = ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: the caller's promise; plain data.
    unsafe { to.write(attributes) }
}

/// `ibv_copy_path_rec_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: the caller's promise; plain data.
    let from = unsafe { from.read() };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as c_int,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as c_int,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller's promise; plain data.
    unsafe { to.write(path) }
}

/// `ibv_copy_path_rec_to_kern`.
///
/// # Safety
/// Both pointers are valid for their structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller's promise; plain data, and every bit pattern is a GID.
    let (from, dgid, sgid) = unsafe { (from.read(), (*from).dgid.raw, (*from).sgid.raw) };
    let path = ib_user_path_rec {
        dgid,
        sgid,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller's promise; plain data.
    unsafe { to.write(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_round_trip() {
        let bytes: [u8; size_of::<ib_user_path_rec>()] = core::array::from_fn(|i| i as u8);
        // SAFETY: plain data of exactly that size.
        let mut kernel: ib_user_path_rec = unsafe { core::mem::transmute(bytes) };
        kernel.mtu = 3;
        // SAFETY: an all-zero record is valid plain data.
        let mut path: ibv_sa_path_rec = unsafe { core::mem::zeroed() };
        let mut back = kernel;
        back.rate = 0;
        // SAFETY: all three are locals.
        unsafe {
            ibv_copy_path_rec_from_kern(&mut path, &kernel);
            ibv_copy_path_rec_to_kern(&mut back, &path);
        }
        let plain = |record: &ib_user_path_rec| {
            // SAFETY: the record has no padding.
            unsafe { core::mem::transmute::<_, [u8; size_of::<ib_user_path_rec>()]>(*record) }
        };
        assert_eq!(plain(&back), plain(&kernel));
        assert_eq!((path.hop_limit, path.mtu), (kernel.hop_limit, 3));
    }
}
