//! The clock of timers: monotonic nanoseconds, read without a system call where there is a vDSO.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: the same in all processes of a host, so stamps may be shared.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The kernel never reports a negative monotonic time; 2^64 ns are 584 years of uptime.
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let mut last = now_ns();
        for _ in 0..1000 {
            let now = now_ns();
            assert!(now >= last);
            last = now;
        }
        assert!(last > 0);
    }
}
