//! What became of a received packet, and what is counted.

use crate::iwarp;

/// What `handle_datagram` did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It belonged to a queue pair and was dealt with (executed, answered, or known already).
    Delivered,
    /// Its destination queue pair belongs to another slot.
    Foreign,
    /// It was dropped in silence.
    Dropped(DropReason),
}

/// Why a packet was dropped in silence. spec: IBA 9.6.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// No queue pair has this number.
    UnknownQp,
    /// The queue pair is of another transport.
    WrongTransport,
    /// The state of the queue pair does not take this packet.
    WrongState,
    /// The addresses are not those of the connection.
    WrongAddress,
    /// The partition key does not match.
    BadPKey,
    /// The queue key of a datagram does not match.
    BadQKey,
    /// A datagram for which no receive is posted.
    NoReceive,
    /// A response to nothing that is outstanding, or one that was answered already.
    StaleResponse,
    /// A response that cannot be used now: its predecessor is missing.
    ResponseGap,
    /// A request after a gap for which a NAK was sent already.
    OutOfSequence,
    /// A duplicate READ or atomic that no saved resource covers.
    UnknownDuplicate,
    /// A header that the standard reserves.
    Reserved,
}

/// What is counted for a queue pair; the names are those of rxe's hardware counters, also where
/// packets are FPDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets given to the burst.
    pub sent_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Requests that were executed before.
    pub duplicate_requests: u64,
    /// Requests after a gap.
    pub out_of_sequence_requests: u64,
    /// RNR NAKs received.
    pub received_rnr_naks: u64,
    /// RNR NAKs sent.
    pub sent_rnr_naks: u64,
    /// Sequence error NAKs received.
    pub received_sequence_naks: u64,
    /// Acknowledgements that were merged into a later one.
    pub deferred_acks: u64,
    /// Times that `retry_cnt` was used up.
    pub retry_exceeded: u64,
    /// Times that `rnr_retry` was used up.
    pub rnr_retry_exceeded: u64,
    /// Retries of the requester.
    pub completer_retries: u64,
    /// Work requests that failed.
    pub send_errors: u64,
    /// SENDs done.
    pub rdma_sends: u64,
    /// Messages received into a receive work request.
    pub rdma_receives: u64,
    /// What only queue pairs on streams have.
    pub iwarp: iwarp::Counters,
}

impl Counters {
    /// Adds the counts of another queue pair.
    pub fn add(&mut self, other: &Self) {
        let Self {
            sent_packets,
            received_packets,
            duplicate_requests,
            out_of_sequence_requests,
            received_rnr_naks,
            sent_rnr_naks,
            received_sequence_naks,
            deferred_acks,
            retry_exceeded,
            rnr_retry_exceeded,
            completer_retries,
            send_errors,
            rdma_sends,
            rdma_receives,
            iwarp,
        } = other;
        self.sent_packets += sent_packets;
        self.received_packets += received_packets;
        self.duplicate_requests += duplicate_requests;
        self.out_of_sequence_requests += out_of_sequence_requests;
        self.received_rnr_naks += received_rnr_naks;
        self.sent_rnr_naks += sent_rnr_naks;
        self.received_sequence_naks += received_sequence_naks;
        self.deferred_acks += deferred_acks;
        self.retry_exceeded += retry_exceeded;
        self.rnr_retry_exceeded += rnr_retry_exceeded;
        self.completer_retries += completer_retries;
        self.send_errors += send_errors;
        self.rdma_sends += rdma_sends;
        self.rdma_receives += rdma_receives;
        self.iwarp.add(iwarp);
    }
}
