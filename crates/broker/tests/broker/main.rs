//! The broker and its client over real sockets.

mod gsi;
mod leases;
mod life;
mod ports;
mod support;
