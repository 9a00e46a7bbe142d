//! Asynchronous events about one queue pair. spec: IBA 11.6.3

use crate::burst::QpIndex;
use crate::qp::State;

/// Something that no completion tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The state changed without a verb: the queue pair met an error. Internal to the device.
    StateChanged {
        /// Which queue pair.
        qp: QpIndex,
        /// The state it is in now.
        state: State,
    },
    /// The first request arrived in RTR. spec: IBA 11.6.3.1
    CommunicationEstablished(QpIndex),
    /// All that was started before SQD is done.
    SendQueueDrained(QpIndex),
    /// The responder refused a request as invalid and no completion reports it.
    RequestError(QpIndex),
    /// The responder refused access and no completion reports it.
    AccessError(QpIndex),
    /// The queue pair cannot go on and no completion reports it.
    Fatal(QpIndex),
    /// No more receives will be taken from the shared receive queue for this queue pair.
    LastWqeReached(QpIndex),
}
