//! Checkers that look at a run from outside: they know what programs know, and nothing of the
//! engine.

pub mod atomics;
pub mod grants;
pub mod liveness;
pub mod order;
pub mod visibility;
