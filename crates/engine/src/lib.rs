//! Queue pair state machines; no I/O, no clock, no threads.
#![forbid(unsafe_code)]
