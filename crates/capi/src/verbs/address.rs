//! Address handles, and address vectors made of what was received.

use core::ffi::c_int;
use core::mem::zeroed;

use softrdma::{AddressHandle, Addressee, QKey, Qpn};

use super::query::PORT;
use super::{convert, domain, gid};
use crate::abi::constants::IBV_WC_GRH;
use crate::abi::verbs::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};
use crate::errno::Errno;
use crate::guard::{Number, Pointer, Status, guard};
use crate::object::{self, Public};

impl Public for ibv_ah {
    type Whole = ibv_ah;
    type Private = AddressHandle;
}

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` is NULL or allocated; `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    guard::<Pointer<ibv_ah>>(|| {
        if attributes.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; plain data.
        unsafe { create(pd, &attributes.read()) }
    })
}

/// # Safety
/// `pd` is NULL or allocated.
unsafe fn create(pd: *mut ibv_pd, attributes: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller's promise.
    let (domain, context) = unsafe { (domain::domain(pd)?, domain::context_of(pd)) };
    let handle = domain.address_handle(&convert::address_vector(attributes)?)?;
    let public = ibv_ah {
        context,
        pd,
        handle: domain::next_handle(),
    };
    Ok(object::publish(public, handle))
}

/// `ibv_create_ah_from_wc`: the way back to who sent a datagram.
///
/// # Safety
/// `pd` is NULL or allocated; `wc` and `grh` as for [`ibv_init_ah_from_wc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    guard::<Pointer<ibv_ah>>(|| {
        // SAFETY: the caller's promise.
        unsafe { create(pd, &way_back(domain::context_of(pd), port, wc, grh)?) }
    })
}

/// `ibv_destroy_ah`. What was posted with it still goes its way.
///
/// # Safety
/// `ah` is NULL or made by this library, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's promise.
    guard::<Status>(|| unsafe { object::withdraw(ah, || ()) })
}

/// To whom a work request goes; EINVAL without an address handle, or for a QPN of over 24 bits.
///
/// # Safety
/// `ah` is NULL or made by this library.
pub unsafe fn addressee(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Addressee, Errno> {
    // SAFETY: the caller's promise.
    let handle = unsafe { object::private(ah)? };
    let qpn = Qpn::new(qpn).ok_or(Errno::INVALID)?;
    Ok(handle.addressee(qpn, QKey(qkey)))
}

/// What the first 40 bytes of a received datagram say of its way.
struct Route {
    source: [u8; 16],
    destination: [u8; 16],
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

/// `ibv_init_ah_from_wc`: the way back to who sent a datagram. −1 with `errno`.
///
/// # Safety
/// `context` is NULL or open; `wc` and `to` are NULL or valid; `grh` is NULL or valid for 40 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    to: *mut ibv_ah_attr,
) -> c_int {
    guard::<Number>(|| {
        if to.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { to.write(way_back(context, port, wc, grh)?) };
        Ok(0)
    })
}

/// # Safety
/// As for [`ibv_init_ah_from_wc`].
unsafe fn way_back(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    if wc.is_null() || port != PORT {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise; plain data.
    let wc = unsafe { wc.read() };
    // SAFETY: plain numbers, zero is a valid start.
    let mut address: ibv_ah_attr = unsafe { zeroed() };
    address.dlid = wc.slid;
    address.sl = wc.sl;
    address.src_path_bits = wc.dlid_path_bits;
    address.port_num = port;
    if wc.wc_flags & IBV_WC_GRH != 0 {
        if grh.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise; a GRH may be at any address of a receive buffer.
        let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        let route = route(&header);
        address.is_global = 1;
        address.grh = ibv_global_route {
            dgid: ibv_gid { raw: route.source },
            flow_label: route.flow_label,
            // SAFETY: the caller's promise.
            sgid_index: unsafe { gid::index_of(context, route.destination)? },
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        };
    }
    Ok(address)
}

/// Over IPv4 the header is in the last 20 of the 40 bytes and the first 20 are anything; a valid
/// checksum tells it. spec: IBA A17.4.5.2
fn route(grh: &[u8; 40]) -> Route {
    let v4 = &grh[20..];
    if v4[0] == 0x45 && checksum(v4) == 0xffff {
        let mapped = |address: &[u8]| {
            let mut gid = [0; 16];
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(address);
            gid
        };
        return Route {
            source: mapped(&v4[12..16]),
            destination: mapped(&v4[16..20]),
            flow_label: 0,
            hop_limit: v4[8],
            traffic_class: v4[1],
        };
    }
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    let gid = |from: usize| core::array::from_fn(|byte| grh[from + byte]);
    Route {
        source: gid(8),
        destination: gid(24),
        flow_label: word & 0xf_ffff,
        hop_limit: grh[7],
        traffic_class: (word >> 20) as u8,
    }
}

/// The ones' complement sum of a header, 0xffff if its checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.77.0.1 to 10.77.0.2, TTL 64, TOS 0x20, as a receive buffer has it.
    const V4: [u8; 20] = [
        0x45, 0x20, 0, 0x54, 0, 0, 0x40, 0, 0x40, 0x11, 0x25, 0xdd, 10, 77, 0, 1, 10, 77, 0, 2,
    ];

    #[test]
    fn an_ipv4_header_gives_mapped_gids() {
        let mut grh = [0x66; 40];
        grh[20..].copy_from_slice(&V4);
        let route = route(&grh);
        assert_eq!(route.source[10..], [0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(route.destination[10..], [0xff, 0xff, 10, 77, 0, 2]);
        assert_eq!(
            (route.hop_limit, route.traffic_class, route.flow_label),
            (64, 0x20, 0)
        );
    }

    #[test]
    fn a_wrong_checksum_is_no_ipv4_header() {
        let mut grh = [0; 40];
        grh[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 60, 0x1b, 7]);
        grh[20..].copy_from_slice(&V4);
        grh[38] ^= 1;
        let route = route(&grh);
        assert_eq!(route.source, grh[8..24]);
        assert_eq!(route.destination, grh[24..40]);
        assert_eq!(
            (route.hop_limit, route.traffic_class, route.flow_label),
            (7, 0xab, 0x12345)
        );
    }
}
