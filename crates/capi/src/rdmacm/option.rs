//! Options of IDs.

use core::ffi::{c_int, c_void};

use softrdma::Transport;

use super::id::own;
use crate::abi::rdma_cma::rdma_cm_id;
use crate::errno::Errno;
use crate::guard::{Number, guard};

/// Options of `rdma_set_option`, level `RDMA_OPTION_ID`.
const OPTION_TOS: c_int = 0;
const OPTION_REUSEADDR: c_int = 1;
const OPTION_AFONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;
const LEVEL_ID: c_int = 0;
/// The most that an acknowledgement timeout can be: 5 bits.
const ACK_TIMEOUT_MAX: u8 = 31;

/// `rdma_set_option`.
///
/// # Safety
/// `id` is NULL or an ID; `value` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let part = unsafe { own(id)? };
        if level != LEVEL_ID || !(OPTION_TOS..=OPTION_ACK_TIMEOUT).contains(&option) {
            return Err(Errno(libc::ENOSYS));
        }
        let is_flag = matches!(option, OPTION_REUSEADDR | OPTION_AFONLY);
        let size = if is_flag { size_of::<c_int>() } else { 1 };
        if value.is_null() || length != size {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise: there are so many bytes.
        let (byte, flag) = unsafe {
            if is_flag {
                (0, value.cast::<c_int>().read_unaligned() != 0)
            } else {
                (value.cast::<u8>().read(), false)
            }
        };
        match option {
            OPTION_TOS => part
                .id
                .set_options(|options| options.traffic_class = byte)?,
            OPTION_REUSEADDR => part
                .id
                .set_address_options(|options| options.reuse_address = flag)?,
            OPTION_AFONLY => part
                .id
                .set_address_options(|options| options.family_only = flag)?,
            _ => {
                let is_connected = part.id.transport() == Some(Transport::Rc);
                if byte > ACK_TIMEOUT_MAX || !is_connected {
                    return Err(Errno::INVALID);
                }
                part.id.set_options(|options| options.ack_timeout = byte)?;
            }
        }
        Ok(0)
    })
}
