//! The one point every packet passes: counters and the seeded fault plan; sans-IO.
#![forbid(unsafe_code)]
