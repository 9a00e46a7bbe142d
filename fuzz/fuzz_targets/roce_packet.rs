//! Any bytes are a packet or an error, and a packet is emitted again; the same for frames.
#![no_main]

#[path = "../../crates/wire/examples/fuzz_parsers/invariants.rs"]
#[allow(dead_code, reason = "each target uses its part")]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let packet = invariants::check_packet(input, &mut Vec::new(), true);
    let frame = invariants::check_frame(input);
    if let Err(violation) = packet.and(frame) {
        panic!("{violation}");
    }
});
