//! The broker and its client over real sockets.

mod leases;
mod life;
mod support;
