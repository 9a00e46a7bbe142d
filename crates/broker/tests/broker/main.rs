//! The broker and its client over real sockets.

mod counters;
mod groups;
mod gsi;
mod inquiries;
mod leases;
mod life;
mod ports;
mod support;
