//! A sealed packet verifies, its identification is recovered, and one wrong bit is seen.
#![no_main]

#[path = "../../crates/wire/examples/fuzz_parsers/invariants.rs"]
#[allow(dead_code, reason = "each target uses its part")]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, Vec<u8>)| {
    let (word, mut packet) = input;
    if let Err(violation) = invariants::check_icrc(word, &mut packet) {
        panic!("{violation}");
    }
});
