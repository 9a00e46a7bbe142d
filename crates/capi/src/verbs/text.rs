//! Names of enumerators and conversions of rates: pure functions, no device.

use core::ffi::{CStr, c_char, c_int, c_uint};

/// `ibv_wc_status_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const TEXT: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    TEXT.get(status as usize)
        .copied()
        .unwrap_or(c"unknown")
        .as_ptr()
}

/// `ibv_node_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    let name = match node_type {
        1 => c"InfiniBand channel adapter",
        2 => c"InfiniBand switch",
        3 => c"InfiniBand router",
        4 => c"iWARP NIC",
        5 => c"usNIC",
        6 => c"usNIC UDP",
        7 => c"unspecified",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// `ibv_port_state_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    let name = match state {
        0 => c"no state change (NOP)",
        1 => c"down",
        2 => c"init",
        3 => c"armed",
        4 => c"active",
        5 => c"active defer",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// `ibv_event_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const TEXT: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    TEXT.get(event as usize)
        .copied()
        .unwrap_or(c"unknown")
        .as_ptr()
}

/// `enum ibv_rate`: enumerator, multiple of 2.5 Gbit/s where it has one, Mbit/s.
const RATES: [(c_uint, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (3, Some(4), 10_000),
    (4, Some(12), 30_000),
    (5, Some(2), 5_000),
    (6, Some(8), 20_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult`: −1 for a rate that is no multiple of 2.5 Gbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|row| row.0 == rate)
        .and_then(|row| row.1)
        .unwrap_or(-1)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` for a multiple without a rate.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    RATES
        .iter()
        .find(|row| row.1 == Some(multiple))
        .map_or(0, |row| row.0)
}

/// `ibv_rate_to_mbps`: −1 for what is no rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|row| row.0 == rate)
        .map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`: exact values only, else `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES
        .iter()
        .find(|row| row.2 == mbps)
        .map_or(0, |row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_back() {
        for (rate, multiple, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), rate);
            assert_eq!(ibv_rate_to_mult(rate), multiple.unwrap_or(-1));
            if let Some(multiple) = multiple {
                assert_eq!(mult_to_ibv_rate(multiple), rate);
            }
        }
        for unknown in [0, 1, 25, u32::MAX] {
            assert_eq!(
                (ibv_rate_to_mbps(unknown), ibv_rate_to_mult(unknown)),
                (-1, -1)
            );
        }
        assert_eq!((mult_to_ibv_rate(3), mbps_to_ibv_rate(2_501)), (0, 0));
        assert_eq!((mult_to_ibv_rate(-1), mbps_to_ibv_rate(-1)), (0, 0));
    }

    #[test]
    fn every_value_has_a_text() {
        let text = |pointer| {
            // SAFETY: all these functions return literals.
            unsafe { CStr::from_ptr(pointer) }
                .to_str()
                .unwrap_or_default()
        };
        assert_eq!(
            text(ibv_wc_status_str(12)),
            "transport retry counter exceeded"
        );
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        for outside in [
            ibv_wc_status_str(24),
            ibv_event_type_str(20),
            ibv_port_state_str(6),
        ] {
            assert_eq!(text(outside), "unknown");
        }
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
    }
}
