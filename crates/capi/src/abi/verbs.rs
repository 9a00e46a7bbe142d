//! Structures of `infiniband/verbs.h` that this library reads, writes or allocates.
#![allow(non_snake_case, reason = "the names are C's")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t, timespec};

/// A slot that stays NULL: this library does not offer the operation, so its type does not matter.
pub type Unused = Option<unsafe extern "C" fn()>;

crate::abi::c_structures! {
    // Devices and ports

    union ibv_gid { raw: [u8; 16], global: ibv_gid_global }
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    struct ibv_device {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    struct ibv_query_device_ex_input { comp_mask: u32 }
    struct ibv_odp_caps { general_caps: u64, per_transport_caps: [u32; 3] }
    struct ibv_tso_caps { max_tso: u32, supported_qpts: u32 }
    struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
    struct ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
    struct ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }
    struct ibv_cq_moderation_caps { max_cq_count: u16, max_cq_period: u16 }
    struct ibv_pci_atomic_caps { fetch_add: u16, swap: u16, compare_swap: u16 }
    struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
    struct ibv_port_attr {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32,
    }
    struct ibv_values_ex { comp_mask: u32, raw_clock: timespec }

    // Protection domains and memory

    struct ibv_pd { context: *mut ibv_context, handle: u32 }
    struct ibv_td_init_attr { comp_mask: u32 }
    struct ibv_td { context: *mut ibv_context }
    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Unused,
        free: Unused,
        pd_context: *mut c_void,
    }
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }
    struct ibv_mw_bind { wr_id: u64, send_flags: c_uint, bind_info: ibv_mw_bind_info }
    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Unused,
        memcpy_from_dm: Unused,
        comp_mask: u32,
        handle: u32,
    }
    struct ibv_xrcd { context: *mut ibv_context }
    struct ibv_xrcd_init_attr { comp_mask: u32, fd: c_int, oflags: c_int }

    // Addresses

    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct ibv_ah { context: *mut ibv_context, pd: *mut ibv_pd, handle: u32 }

    // Completion queues

    struct ibv_comp_channel { context: *mut ibv_context, fd: c_int, refcnt: c_int }
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    struct ibv_poll_cq_attr { comp_mask: u32 }
    struct ibv_wc_tm_info { tag: u64, r#priv: u32 }
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_completion_ts: Unused,
        read_cvlan: Unused,
        read_flow_tag: Unused,
        read_tm_info: Unused,
        read_completion_wallclock_ns: Unused,
    }
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
    struct ibv_modify_cq_attr { attr_mask: u32, moderate: [u16; 2] }
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    // Shared receive queues

    struct ibv_srq_attr { max_wr: u32, max_sge: u32, srq_limit: u32 }
    struct ibv_srq_init_attr { srq_context: *mut c_void, attr: ibv_srq_attr }
    struct ibv_tm_cap { max_num_tags: u32, max_ops: u32 }
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    // Queue pairs

    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
    struct ibv_ece { vendor_id: u32, options: u32, comp_mask: u32 }
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        wr_bind_mw: Option<
            unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        >,
        wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<
            unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
        >,
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
        wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
    }

    // Work requests

    struct ibv_sge { addr: u64, length: u32, lkey: u32 }
    struct ibv_data_buf { addr: *mut c_void, length: usize }
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: send_wr_target,
        qp_type: send_wr_qp_type,
        bind_mw: send_wr_bind_mw;
        also wr.rdma.remote_addr, wr.rdma.rkey,
        wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey,
        wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey,
        qp_type.xrc.remote_srqn,
        bind_mw.mw, bind_mw.rkey, bind_mw.bind_info,
    }
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    // Events

    struct ibv_async_event {
        element: async_event_element,
        event_type: c_uint;
        also element.cq, element.qp, element.srq, element.port_num,
    }

    // Contexts

    struct ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Option<
            unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        >,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
        >,
        post_recv: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        >,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    /// Grows at its front: the distance of a slot from `context` never changes.
    struct verbs_context {
        free_buf: Unused,
        alloc_buf: Unused,
        dm_export_dmabuf_fd: Unused,
        reg_mr_ex: Unused,
        dealloc_dmah: Unused,
        alloc_dmah: Unused,
        query_port: Option<
            unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int,
        >,
        advise_mr: Option<
            unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int,
        >,
        alloc_null_mr: Unused,
        read_counters: Unused,
        attach_counters_point_flow: Unused,
        create_counters: Unused,
        destroy_counters: Unused,
        reg_dm_mr: Unused,
        alloc_dm: Unused,
        free_dm: Unused,
        modify_flow_action_esp: Unused,
        destroy_flow_action: Unused,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: Unused,
        alloc_parent_domain: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
        >,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td,
        >,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: Unused,
        destroy_rwq_ind_table: Unused,
        create_rwq_ind_table: Unused,
        destroy_wq: Unused,
        modify_wq: Unused,
        create_wq: Unused,
        query_rt_values: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int,
        >,
        create_cq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
        >,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const ibv_query_device_ex_input,
                *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Unused,
        ABI_placeholder2: Unused,
        ibv_create_flow: Unused,
        ABI_placeholder1: Unused,
        open_qp: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp,
        >,
        create_qp_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
        >,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
        >,
        open_xrcd: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
        >,
        close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}

// The members that have no tag in C.

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_global {
    pub subnet_prefix: u64,
    pub interface_id: u64,
}

/// `ibv_send_wr.wr`: which member is meant depends on the opcode and the QP type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union send_wr_target {
    pub rdma: send_wr_rdma,
    pub atomic: send_wr_atomic,
    pub ud: send_wr_ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union send_wr_qp_type {
    pub xrc: send_wr_xrc,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_xrc {
    pub remote_srqn: u32,
}

/// The larger member of the last union; the other, `tso`, is for raw packet QPs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// `ibv_async_event.element`: which member is meant depends on the event type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union async_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub port_num: c_int,
}
