//! What `librdmacm.so.1` jumps to, under names of our own (`softrdma_<name>`).

mod event;
