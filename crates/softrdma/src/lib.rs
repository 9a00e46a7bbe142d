//! RDMA verbs on ordinary sockets: the device in a process and the safe Rust API.
