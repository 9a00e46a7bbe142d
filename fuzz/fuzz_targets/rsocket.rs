//! Any bytes that a peer of an rsocket says are understood or an error, and are written again.
#![no_main]

#[path = "../../crates/wire/examples/fuzz_parsers/invariants.rs"]
#[allow(dead_code, reason = "each target uses its part")]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Err(violation) = invariants::check_rsocket(input, &mut Vec::new()) {
        panic!("{violation}");
    }
});
