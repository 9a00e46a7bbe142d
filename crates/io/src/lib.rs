//! UDP at full use of the kernel, descriptors, netlink; knows nothing of RDMA.
