//! `ibv_query_device`, `ibv_query_port` and their extended forms.

use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr;

use softrdma::{Device, PortAttributes};

use super::context;
use super::device::write_text;
use crate::abi::constants::{IBV_ATOMIC_HCA, IBV_ATOMIC_NONE, IBV_LINK_LAYER_ETHERNET};
use crate::abi::verbs::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input,
};
use crate::errno::Errno;
use crate::guard::{Status, guard};

/// Bytes of `ibv_port_attr` that the exported `ibv_query_port` fills; the inline one of the header
/// calls the slot, with its own size.
const LEGACY_PORT_ATTR: usize = 48;

/// The only port.
pub const PORT: u8 = 1;

/// Copies as much of `from` as the caller's structure has, and zeroes the rest of that.
///
/// # Safety
/// `to` is valid for `size` bytes.
unsafe fn fill<T: Copy>(to: *mut T, size: usize, from: &T) {
    // SAFETY: the caller's promise; `from` has its own size.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping(
            ptr::from_ref(from).cast::<u8>(),
            to.cast::<u8>(),
            size.min(size_of::<T>()),
        );
    }
}

/// A limit as C has it.
fn limit(count: u32) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn device_attributes(device: &Device) -> ibv_device_attr {
    let from = device.attributes();
    // SAFETY: plain numbers; what is not set below is 0, as on a device without the feature.
    let mut to: ibv_device_attr = unsafe { zeroed() };
    write_text(&mut to.fw_ver, from.firmware_version);
    to.node_guid = u64::from_ne_bytes(from.node_guid);
    to.sys_image_guid = u64::from_ne_bytes(from.system_image_guid);
    to.max_mr_size = from.max_mr_size;
    to.page_size_cap = from.page_size_cap;
    to.vendor_id = from.vendor_id;
    to.vendor_part_id = from.vendor_part_id;
    to.hw_ver = from.hardware_version;
    to.max_qp = limit(from.max_qp);
    to.max_qp_wr = limit(from.max_qp_wr);
    to.device_cap_flags = from.capabilities.bits() as u32;
    to.max_sge = limit(from.max_sge);
    to.max_sge_rd = limit(from.max_sge_rd);
    to.max_cq = limit(from.max_cq);
    to.max_cqe = limit(from.max_cqe);
    to.max_mr = limit(from.max_mr);
    to.max_pd = limit(from.max_pd);
    to.max_qp_rd_atom = limit(from.max_qp_rd_atom);
    to.max_res_rd_atom = limit(from.max_res_rd_atom);
    to.max_qp_init_rd_atom = limit(from.max_qp_init_rd_atom);
    to.atomic_cap = if from.has_atomics {
        IBV_ATOMIC_HCA
    } else {
        IBV_ATOMIC_NONE
    };
    to.max_mcast_grp = limit(from.max_mcast_grp);
    to.max_mcast_qp_attach = limit(from.max_mcast_qp_attach);
    to.max_total_mcast_qp_attach = limit(from.max_total_mcast_qp_attach);
    to.max_ah = limit(from.max_ah);
    to.max_srq = limit(from.max_srq);
    to.max_srq_wr = limit(from.max_srq_wr);
    to.max_srq_sge = limit(from.max_srq_sge);
    to.max_pkeys = from.max_pkeys;
    to.local_ca_ack_delay = from.local_ca_ack_delay;
    to.phys_port_cnt = from.port_count;
    to
}

/// `ibv_query_device`.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid for its structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { attributes.write(device_attributes(device)) };
        Ok(())
    })
}

/// The slot behind `ibv_query_device_ex`.
///
/// # Safety
/// `context` is NULL or open; `input` is NULL or valid; `attributes` is NULL or valid for `size`
/// bytes.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        // SAFETY: the caller's promise; no extension of the input is known.
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
            return Err(Errno::INVALID);
        }
        if attributes.is_null() || size < size_of::<ibv_device_attr>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: plain numbers; 0 is a device without the feature.
        let mut extended: ibv_device_attr_ex = unsafe { zeroed() };
        extended.orig_attr = device_attributes(device);
        extended.device_cap_flags_ex = device.attributes().capabilities.bits();
        extended.phys_port_cnt_ex = u32::from(device.attributes().port_count);
        // SAFETY: the caller's promise.
        unsafe { fill(attributes, size, &extended) };
        Ok(())
    })
}

fn port_attributes(from: &PortAttributes) -> ibv_port_attr {
    // SAFETY: plain numbers; LIDs and the like are 0 on Ethernet.
    let mut to: ibv_port_attr = unsafe { zeroed() };
    to.state = from.state as u32;
    to.max_mtu = from.max_mtu as u32;
    to.active_mtu = from.active_mtu as u32;
    to.gid_tbl_len = c_int::from(from.gid_table_length);
    to.port_cap_flags = from.port_cap_flags;
    to.max_msg_sz = from.max_message_size;
    to.bad_pkey_cntr = from.bad_pkey_counter;
    to.qkey_viol_cntr = from.qkey_violation_counter;
    to.pkey_tbl_len = from.pkey_table_length;
    to.max_vl_num = from.max_vl_count;
    to.active_width = from.active_width;
    to.active_speed = from.active_speed;
    to.active_speed_ex = u32::from(from.active_speed);
    to.phys_state = from.physical_state as u8;
    to.link_layer = IBV_LINK_LAYER_ETHERNET;
    to
}

/// The slot behind `ibv_query_port`.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid for `size` bytes.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    guard::<Status>(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::device(context)? };
        if port != PORT || attributes.is_null() {
            return Err(Errno::INVALID);
        }
        let now = device.port()?;
        // SAFETY: the caller's promise.
        unsafe { fill(attributes, size, &port_attributes(&now)) };
        Ok(())
    })
}

/// `ibv_query_port` of programs that were built before the slot.
///
/// # Safety
/// `context` is NULL or open; `attributes` is NULL or valid for the structure of then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(context, port, attributes, LEGACY_PORT_ATTR) }
}
