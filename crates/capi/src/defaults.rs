//! The answers of everything that is not implemented: one table.
//!
//! Each function is exported under its name and ignores its arguments, which every C calling
//! convention in question allows; the return value fits the widest type of its group. A function
//! leaves this table by being written elsewhere: the linker refuses two of one name, and
//! `--no-undefined-version` refuses a name of the maps that is nowhere.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{ENOSYS, EOPNOTSUPP};

use crate::errno::Errno;

/// `answer(errno) { names }`, where `answer` is
/// * `errno`: the error number is returned, and also in `errno`;
/// * `null`: NULL, with `errno`;
/// * `minus_one`: −1 in any integer width, with `errno`;
/// * `zero()`: 0, the documented answer of a device that does not have the feature;
/// * `nothing()`: no value.
macro_rules! defaults {
    ($($answer:ident $errno:tt { $($name:ident),* $(,)? })*) => {
        $($(defaults!(@ $answer $errno $name);)*)*
    };
    (@ errno($errno:ident) $name:ident) => {
        #[doc = concat!("Not implemented: returns `", stringify!($errno), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            missing(stringify!($name));
            Errno($errno).set()
        }
    };
    (@ null($errno:ident) $name:ident) => {
        #[doc = concat!("Not implemented: NULL with `", stringify!($errno), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            missing(stringify!($name));
            Errno($errno).set();
            ptr::null_mut()
        }
    };
    (@ minus_one($errno:ident) $name:ident) => {
        #[doc = concat!("Not implemented: −1 with `", stringify!($errno), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> isize {
            missing(stringify!($name));
            Errno($errno).set();
            -1
        }
    };
    (@ zero() $name:ident) => {
        #[doc = "Not implemented: 0, which says so."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            0
        }
    };
    (@ nothing() $name:ident) => {
        #[doc = "Not implemented; nothing to return."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    };
}

/// Notes what a program asked for in vain; it may be the first call that it makes.
fn missing(name: &str) {
    crate::log::start();
    tracing::info!("{name} is not in this version");
}

// Verbs that later releases of this library, or none, will offer.
defaults! {
    null(EOPNOTSUPP) {
        ibv_alloc_buf, ibv_alloc_dmah, ibv_create_comp_cntr, ibv_import_device, ibv_import_dm,
        ibv_import_mr, ibv_import_pd, ibv_reg_buf_mr, ibv_reg_dmabuf_mr, ibv_reg_mr_ex,
    }
    errno(EOPNOTSUPP) {
        ibv_dealloc_dmah, ibv_destroy_comp_cntr,
        ibv_free_buf, ibv_inc_comp_cntr, ibv_inc_err_comp_cntr,
        ibv_qp_attach_comp_cntr, ibv_query_ece, ibv_query_port_speed,
        ibv_resolve_eth_l2_from_gid,
        ibv_read_comp_cntr, ibv_read_err_comp_cntr, ibv_set_comp_cntr, ibv_set_ece,
        ibv_set_err_comp_cntr, _ibv_query_comp_cntr_caps,
    }
    minus_one(EOPNOTSUPP) { ibv_dm_export_dmabuf_fd, ibv_export_buf_dmabuf_fd }
    zero() { ibv_query_qp_data_in_order }
    nothing() { ibv_register_driver, ibv_unimport_dm, ibv_unimport_mr, ibv_unimport_pd }
}

// What the vendor libraries of release 44 are linked to. On a device that is not theirs they
// register a driver and perhaps log; the rest is never reached.
defaults! {
    null(EOPNOTSUPP) { _verbs_init_and_alloc_context, verbs_open_device }
    errno(EOPNOTSUPP) {
        execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd,
        ibv_cmd_attach_mcast, ibv_cmd_close_xrcd, ibv_cmd_create_ah, ibv_cmd_create_counters,
        ibv_cmd_create_cq, ibv_cmd_create_cq_ex, ibv_cmd_create_flow,
        ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex,
        ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq,
        ibv_cmd_create_srq_ex, ibv_cmd_create_wq, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd,
        ibv_cmd_dereg_mr, ibv_cmd_destroy_ah, ibv_cmd_destroy_counters, ibv_cmd_destroy_cq,
        ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp,
        ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_srq, ibv_cmd_destroy_wq,
        ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, ibv_cmd_modify_cq,
        ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex,
        ibv_cmd_modify_srq, ibv_cmd_modify_wq, ibv_cmd_open_qp, ibv_cmd_open_xrcd,
        ibv_cmd_poll_cq, ibv_cmd_post_recv, ibv_cmd_post_send, ibv_cmd_post_srq_recv,
        ibv_cmd_query_context, ibv_cmd_query_device, ibv_cmd_query_device_any, ibv_cmd_query_mr,
        ibv_cmd_query_port, ibv_cmd_query_qp, ibv_cmd_query_srq, ibv_cmd_read_counters,
        ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr, ibv_cmd_req_notify_cq,
        ibv_cmd_rereg_mr, ibv_cmd_resize_cq,
    }
    minus_one(EOPNOTSUPP) { ibv_read_ibdev_sysfs_file }
    zero() { __ioctl_final_num_attrs }
    nothing() {
        __verbs_log, verbs_init_cq, verbs_register_driver_34, verbs_set_ops, verbs_uninit_context,
    }
}

// Epoll of the connection manager's sockets. ENOSYS is also what the kernel's answers without its
// CM.
defaults! {
    minus_one(ENOSYS) {
        softrdma_repoll_create, softrdma_repoll_ctl, softrdma_repoll_wait,
    }
}
