//! The `softrdma` command.
#![forbid(unsafe_code)]

fn main() {}
