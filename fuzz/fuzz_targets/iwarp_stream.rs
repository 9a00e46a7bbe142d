//! Any bytes are what one end of an iWARP connection sends, up to the first error.
#![no_main]

#[path = "../../crates/wire/examples/fuzz_parsers/invariants.rs"]
#[allow(dead_code, reason = "each target uses its part")]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, stream)) = input.split_first() else {
        return;
    };
    if let Err(violation) = invariants::check_iwarp(choice.into(), stream, &mut Vec::new()) {
        panic!("{violation}");
    }
});
