//! Seeded simulation of engines and devices with outside checkers.
//!
//! A seed makes a scenario, plans of work requests and every fault of the network, in virtual time:
//! the same seed is the same run. First the network has faults and nothing may go wrong; then it
//! heals and everything must finish. Checkers look from outside, as programs do:
//!
//! | checker | rule |
//! |---|---|
//! | [`oracle`] | memory is what some order of execution that the standard allows leaves |
//! | [`checker::order`] | completions in order, exactly one for each work request that has one |
//! | [`checker::atomics`] | atomics exactly once |
//! | [`checker::grants`] | no byte outside of what was granted |
//! | [`checker::visibility`] | who sees the flag sees the data |
//! | [`checker::liveness`] | everything finishes once the network has healed |
//!
//! [`cm_world`] is the same for connection management, [`stream_world`] for iWARP, with rules of
//! their own.
#![forbid(unsafe_code)]

pub mod checker;
pub mod clock;
pub mod cm_world;
pub mod datagram_world;
pub mod device_world;
pub mod ground;
pub mod machine;
pub mod model_world;
pub mod network;
pub mod oracle;
pub mod replay;
pub mod rng;
pub mod scenario;
pub mod stream_world;
pub mod workload;
pub mod world;
