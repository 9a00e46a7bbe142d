//! A [`Host`] of plain vectors, for transcripts and simulation.
//!
//! Everything here is a handle: a clone names the same memory or the same queue, so that a test
//! keeps one and gives the other to the engine.

pub mod credit;
pub mod memory;
pub mod queues;

pub use credit::ModelCredit;
pub use memory::ModelMemory;
pub use queues::{CompletionQueue, ReceiveQueue};

use crate::host::Host;

/// The host of the model.
#[derive(Debug)]
pub struct ModelHost;

impl Host for ModelHost {
    type Memory = ModelMemory;
    type Receives = ReceiveQueue;
    type Completions = CompletionQueue;
    type Credit = ModelCredit;
}
