//! Seeded simulation of engines and devices with outside checkers.
#![forbid(unsafe_code)]
