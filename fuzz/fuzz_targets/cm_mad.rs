//! Any bytes are a management datagram or an error, and a datagram is emitted again.
#![no_main]

#[path = "../../crates/wire/examples/fuzz_parsers/invariants.rs"]
#[allow(dead_code, reason = "each target uses its part")]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Err(violation) = invariants::check_mad(input) {
        panic!("{violation}");
    }
});
