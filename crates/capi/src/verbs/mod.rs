//! The entry points of `libibverbs.so.1`, by object.
//!
//! Functions with the names of C are exported; those without the prefix are slots of the tables in
//! a context, which inline functions of the header call.

pub mod address;
pub mod batch;
pub mod context;
pub mod convert;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod domain;
pub mod event;
pub mod fork;
pub mod gid;
pub mod kern;
pub mod memory;
pub mod multicast;
pub mod post;
pub mod qp;
pub mod qp_ex;
pub mod query;
pub mod section;
pub mod srq;
pub mod sysfs;
pub mod text;
pub mod unsupported;
