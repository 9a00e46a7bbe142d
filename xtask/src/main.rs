//! Builds, checks, demos and measurements of softrdma.
#![forbid(unsafe_code)]

fn main() {}
