//! CRC-32 of Ethernet as a register that runs in both directions.
//!
//! A state here is the plain register: all ones to start, not inverted at the end. Running over
//! bytes is the work of `crc32fast`, which uses the instructions that the processor has for it, or
//! of the tables of `crc` where those are faster. Differences of states run by themselves, because
//! the CRC is linear: a difference `bytes` earlier or later is a product with a power of x modulo
//! the polynomial.

use core::sync::atomic::{AtomicBool, Ordering};

use crc::{CRC_32_ISO_HDLC, Crc, Table};

/// Sixteen bytes a step.
static TABLES: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// Whether tables are faster here. Either way the result is the same.
static PREFERS_TABLES: AtomicBool = AtomicBool::new(false);

/// Bytes that each is tried on, and how often.
const TRIAL: usize = 4096;
const TRIALS: usize = 3;

/// The polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1; the highest bit is the lowest power.
const ONE: u32 = 1 << 31;

/// The state after `bytes`.
#[inline]
pub(super) fn update(state: u32, bytes: &[u8]) -> u32 {
    if PREFERS_TABLES.load(Ordering::Relaxed) {
        update_by_tables(state, bytes)
    } else {
        update_by_instructions(state, bytes)
    }
}

/// Tries both ways and takes the faster one from now on, by the clock `now_ns`: an emulated
/// processor has the instructions, and takes four times as long for them as for tables.
pub fn choose_faster(mut now_ns: impl FnMut() -> u64) {
    let bytes = [0x5a; TRIAL];
    let mut time = |way: fn(u32, &[u8]) -> u32| {
        let trials = (0..TRIALS).map(|_| {
            let began = now_ns();
            core::hint::black_box(way(!0, core::hint::black_box(&bytes)));
            now_ns().saturating_sub(began)
        });
        trials.min()
    };
    let prefers_tables = time(update_by_tables) < time(update_by_instructions);
    PREFERS_TABLES.store(prefers_tables, Ordering::Relaxed);
}

fn update_by_tables(state: u32, bytes: &[u8]) -> u32 {
    // the crate takes the register in its unreflected form, and inverts it at the end
    let mut digest = TABLES.digest_with_initial(state.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

fn update_by_instructions(state: u32, bytes: &[u8]) -> u32 {
    // crc32fast inverts the register at either end
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    hasher.update(bytes);
    !hasher.finalize()
}

/// What a difference of states has become `bytes` bytes later.
pub(super) const fn shift(mut difference: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < 8 * bytes {
        difference = times_x(difference);
        bit += 1;
    }
    difference
}

/// What a difference of states was `bytes` bytes earlier, at most 65,535: times x^(-8·bytes).
#[inline]
pub(super) const fn unshift(difference: u32, bytes: usize) -> u32 {
    let near = multiply(difference, UNSHIFT_BY_1[bytes % 256]);
    match bytes / 256 % 256 {
        0 => near,
        far => multiply(near, UNSHIFT_BY_256[far]),
    }
}

/// `UNSHIFT_BY_1[n]`: x^(-8·n).
static UNSHIFT_BY_1: [u32; 256] = powers(unshift_byte(ONE));
/// `UNSHIFT_BY_256[n]`: x^(-8·256·n).
static UNSHIFT_BY_256: [u32; 256] = {
    let powers_of_byte = powers(unshift_byte(ONE));
    powers(multiply(powers_of_byte[255], powers_of_byte[1]))
};

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut n = 1;
    while n < 256 {
        powers[n] = multiply(powers[n - 1], base);
        n += 1;
    }
    powers
}

/// One byte earlier. Where the highest bit is set the polynomial was subtracted on the way: its own
/// highest bit is set, and a shifted register's never is.
const fn unshift_byte(mut difference: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        difference = if difference >> 31 != 0 {
            ((difference ^ POLYNOMIAL) << 1) | 1
        } else {
            difference << 1
        };
        bit += 1;
    }
    difference
}

/// The product of two polynomials modulo the CRC's.
#[inline]
const fn multiply(mut a: u32, b: u32) -> u32 {
    // From the lowest power of b (its highest bit) on; without branches, since the bits are random.
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= a & ((b >> bit) & 1).wrapping_neg();
        a = times_x(a);
    }
    product
}

#[inline]
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLYNOMIAL & (a & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_of_ones_leave_the_documented_state() {
        // what stands for the local routing header of native InfiniBand. spec: IBA 7.8.1
        assert_eq!(update(!0, &[0xff; 8]), 0xdebb_20e3);
    }

    #[test]
    fn both_ways_give_the_same() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 + i / 3) as u8).collect();
        for state in [0, !0, 0x1234_5678] {
            for length in [0, 1, 15, 16, 17, 255, 4096, 5000] {
                let bytes = &bytes[..length];
                assert_eq!(
                    update_by_tables(state, bytes),
                    update_by_instructions(state, bytes),
                    "{length} bytes"
                );
            }
        }
    }

    #[test]
    fn the_faster_way_is_taken() {
        for (tables, instructions) in [(1, 2), (2, 1)] {
            let mut readings = (0..2 * TRIALS).flat_map(|trial| {
                let took = if trial < TRIALS { tables } else { instructions };
                [0, took]
            });
            choose_faster(|| readings.next().expect("two for each trial"));
            assert_eq!(
                PREFERS_TABLES.load(Ordering::Relaxed),
                tables < instructions
            );
        }
    }

    #[test]
    fn a_difference_runs_as_the_register_does_over_any_bytes() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 + i / 3) as u8).collect();
        for difference in [1, 0x8000_0000, 0xdead_beef] {
            for length in [0, 1, 4, 255, 256, 257, 5000] {
                let one = update(0x1234_5678, &bytes[..length]);
                let other = update(0x1234_5678 ^ difference, &bytes[..length]);
                assert_eq!(one ^ other, shift(difference, length), "{length} bytes");
            }
        }
    }

    #[test]
    fn unshift_undoes_shift() {
        for difference in [1, 0x8000_0000, 0xdead_beef, 0xffff_ffff] {
            for bytes in [0, 1, 2, 24, 255, 256, 257, 1044, 4096, 65_535] {
                let later = shift(difference, bytes);
                assert_eq!(unshift(later, bytes), difference, "{bytes} bytes");
            }
        }
    }
}
