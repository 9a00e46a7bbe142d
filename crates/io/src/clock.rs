//! The clock of timers: monotonic nanoseconds, read without a system call where there is a vDSO.
//!
//! Through libc, which knows when the vDSO is not there: valgrind takes it away and leaves an
//! address where it was.

/// Nanoseconds of `CLOCK_MONOTONIC`: the same in all processes of a host, so stamps may be shared.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock to a tick of the kernel, some milliseconds, for half the price.
pub fn now_coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the second argument is valid for a write. The call cannot fail for these clocks,
    // which every Linux has.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
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

    #[test]
    fn the_coarse_clock_is_the_same_clock() {
        let coarse = now_coarse_ns();
        let now = now_ns();
        assert!(coarse > 0 && coarse <= now);
    }
}
