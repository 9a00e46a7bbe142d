//! libibverbs.so.1 and librdmacm.so.1 on top of softrdma.
