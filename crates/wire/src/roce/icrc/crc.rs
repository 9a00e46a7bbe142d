//! CRC-32 of Ethernet: long runs by `crc32fast`, short ones by tables.
//!
//! A state here is the plain register: all ones to start, not inverted at the end. `crc32fast` goes
//! byte by byte through what is shorter than 64 bytes; headers and small messages are most packets, so
//! those take 16, 4 and 1 bytes a step from tables of our own.

/// The polynomial, lowest power in the highest bit.
pub(super) const POLYNOMIAL: u32 = 0xedb8_8320;

/// From here on the vector code of `crc32fast` is faster.
const BULK_LENGTH: usize = 128;

/// `TABLES[n][b]`: what byte `b` does to the state after `n` more bytes.
static TABLES: [[u32; 256]; 16] = tables();

/// The state after `bytes`.
#[inline]
pub(super) fn update(state: u32, bytes: &[u8]) -> u32 {
    if bytes.len() >= BULK_LENGTH {
        // crc32fast inverts the register at either end
        let mut hasher = crc32fast::Hasher::new_with_initial(!state);
        hasher.update(bytes);
        !hasher.finalize()
    } else {
        update_short(state, bytes)
    }
}

/// The state after a BTH.
#[inline]
pub(super) fn update_bth(state: u32, bth: &[u8; 12]) -> u32 {
    step(state, bth)
}

fn update_short(mut state: u32, mut bytes: &[u8]) -> u32 {
    while let Some((chunk, rest)) = bytes.split_first_chunk::<16>() {
        state = step(state, chunk);
        bytes = rest;
    }
    while let Some((chunk, rest)) = bytes.split_first_chunk::<4>() {
        state = step(state, chunk);
        bytes = rest;
    }
    for &byte in bytes {
        state = step(state, &[byte]);
    }
    state
}

/// The state after `N` bytes, 1 or 4 to 16, all looked up at once.
#[inline(always)]
fn step<const N: usize>(state: u32, bytes: &[u8; N]) -> u32 {
    let before = state.to_le_bytes();
    // what is left of the register if fewer bytes than it has were shifted in
    let mut after = if N < 4 { state >> (8 * N as u32) } else { 0 };
    for (index, &byte) in bytes.iter().enumerate() {
        let byte = if index < 4 {
            byte ^ before[index]
        } else {
            byte
        };
        after ^= TABLES[N - 1 - index][usize::from(byte)];
    }
    after
}

const fn tables() -> [[u32; 256]; 16] {
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        tables[0][byte] = shift_byte(byte as u32);
        byte += 1;
    }
    let mut n = 1;
    while n < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// The state one zero byte later.
pub(super) const fn shift_byte(mut state: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        state = (state >> 1) ^ if state & 1 != 0 { POLYNOMIAL } else { 0 };
        bit += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_crc32fast_at_every_length_and_split() {
        let bytes: Vec<u8> = (0..300_u32).map(|i| (i * 7 + i / 3) as u8).collect();
        for length in 0..bytes.len() {
            let expected = crc32fast::hash(&bytes[..length]);
            assert_eq!(!update(!0, &bytes[..length]), expected, "{length} bytes");
            let split = length / 3;
            let first = update(!0, &bytes[..split]);
            assert_eq!(!update(first, &bytes[split..length]), expected);
        }
        let bth: [u8; 12] = core::array::from_fn(|i| bytes[i]);
        assert_eq!(!update_bth(!0, &bth), crc32fast::hash(&bth));
    }

    #[test]
    fn eight_bytes_of_ones_leave_the_documented_state() {
        // roce.md §4: the constant that replaces the local routing header
        assert_eq!(update(!0, &[0xff; 8]), 0xdebb_20e3);
    }
}
