//! The entry points of `libibverbs.so.1`.

mod kern;
mod text;
