//! What `librdmacm.so.1` jumps to, under names of our own (`softrdma_<name>`).
//!
//! Connection management itself is [`softrdma::cm`]. Here are C's structures, and what librdmacm
//! does with the queue pair of an ID on the program's thread: it is moved when the event that says
//! so is fetched. Functions answer −1 with `errno`.

pub(crate) mod address;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod endpoint;
mod event;
pub mod id;
pub mod info;
pub mod multicast;
pub mod option;
pub mod pair;
pub mod srq;
