//! What a program learns about a work request that it posted. spec: IBA 11.4.2.1

use wire::{MemoryKey, Qpn};

/// How a work request ended; the values of `enum ibv_wc_status`. spec: IBA 11.6.2
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// It was done.
    Success = 0,
    /// A receive buffer or the result of a READ was too small.
    LocalLength = 1,
    /// The queue pair could not do it.
    LocalQpOperation = 2,
    /// A scatter/gather element is not covered by its key, or the memory behind it is gone.
    LocalProtection = 4,
    /// The queue pair went to the error state before this was done.
    Flushed = 5,
    /// A memory window could not be bound.
    MemoryWindowBind = 6,
    /// A response that does not fit its request.
    BadResponse = 7,
    /// The target of a WRITE with immediate is protected.
    LocalAccess = 8,
    /// The peer says: invalid request.
    RemoteInvalidRequest = 9,
    /// The peer says: remote access error.
    RemoteAccess = 10,
    /// The peer says: it could not complete the operation.
    RemoteOperational = 11,
    /// The peer did not answer `retry_cnt` retries.
    RetryExceeded = 12,
    /// The peer had no receive posted for `rnr_retry` retries.
    RnrRetryExceeded = 13,
    /// Something else.
    General = 21,
}

/// What was completed; the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CompletionOpcode {
    /// SEND, with or without immediate or invalidate
    Send = 0,
    /// RDMA WRITE, with or without immediate
    RdmaWrite = 1,
    /// RDMA READ
    RdmaRead = 2,
    /// COMPARE and SWAP
    CompareSwap = 3,
    /// FETCH and ADD
    FetchAdd = 4,
    /// Binding of a memory window
    BindWindow = 5,
    /// Local invalidation of a key
    LocalInvalidate = 6,
    /// A received SEND
    Receive = 128,
    /// A received WRITE with immediate
    ReceiveRdmaWithImmediate = 129,
}

/// One completion. With a status other than success only `id`, `status`, `qpn` and
/// `vendor_error` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The program's number of the work request.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: CompletionOpcode,
    /// Reserved for finer reasons; 0 where there is none.
    pub vendor_error: u32,
    /// Bytes transferred.
    pub length: u32,
    /// Immediate data in wire order.
    pub immediate: Option<[u8; 4]>,
    /// The key that a SEND with Invalidate made unusable.
    pub invalidated: Option<MemoryKey>,
    /// The queue pair it was posted to.
    pub qpn: Qpn,
    /// The sender, of unreliable datagrams.
    pub source_qpn: Qpn,
    /// Whether this is a receive.
    pub is_receive: bool,
    /// Whether it came with a GRH: all receives of RoCE say so, those of iWARP do not.
    pub has_grh: bool,
}

impl WorkCompletion {
    /// A successful completion without immediate data.
    pub const fn success(id: u64, opcode: CompletionOpcode, length: u32, qpn: Qpn) -> Self {
        let is_receive = matches!(
            opcode,
            CompletionOpcode::Receive | CompletionOpcode::ReceiveRdmaWithImmediate
        );
        Self {
            id,
            status: Status::Success,
            opcode,
            vendor_error: 0,
            length,
            immediate: None,
            invalidated: None,
            qpn,
            source_qpn: Qpn::truncated(0),
            is_receive,
            has_grh: is_receive,
        }
    }

    /// A completion with an error.
    pub const fn error(id: u64, opcode: CompletionOpcode, status: Status, qpn: Qpn) -> Self {
        let mut completion = Self::success(id, opcode, 0, qpn);
        completion.status = status;
        completion
    }
}

/// The completion queue was full: the completion is lost and the queue is in error.
/// spec: IBA 10.8.2, 11.6.3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;
