//! `libibverbs.so.1` and `librdmacm.so.1` on top of the [`softrdma`] device.
//!
//! This crate is layouts and conversions, no logic: each entry point checks its pointers and
//! ranges, converts, makes one safe call, and converts back. It is built as a static library;
//! `cargo xtask dist` links that with the C files of `shim/` and the version scripts of `maps/`,
//! because a `cdylib` cannot carry symbol versions.
//!
//! * [`abi`]: the C structures, compared with the installed headers by `cargo xtask abi`
//! * [`verbs`]: the entry points of libibverbs, by object
//! * [`rdmacm`]: what librdmacm jumps to
//! * [`rsocket`]: the steps of what librdmacm's rsockets do
//! * [`defaults`]: the answers of everything that is not implemented, one table

pub mod abi;
pub mod defaults;
pub mod errno;
pub mod guard;
mod log;
mod object;
pub mod rdmacm;
pub mod rsocket;
pub mod verbs;
