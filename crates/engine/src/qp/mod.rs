//! The half of a queue pair that all transports share.

pub mod attributes;
pub mod flush;
pub mod position;
pub mod scatter;
pub mod send_queue;
pub mod sge_cursor;
pub mod state;
pub mod transition;
pub mod work_request;

use wire::Qpn;

pub use attributes::{AttributeMask, Attributes, Capabilities, ModifyError};
pub use state::{State, Transport};
pub use work_request::{
    Addressee, Operation, Payload, PostError, RemoteMemory, SendFlags, SendRequest,
};

use crate::access::{PdId, Scope};
use crate::burst::QpIndex;
use crate::completion::{Overrun, WorkCompletion};
use crate::event::AsyncEvent;
use crate::host::{CompletionSink, Host};
use crate::outcome::Counters;
use crate::path::PathIndex;
use crate::qp::send_queue::SendWqe;

/// What requester and responder of one queue pair have in common.
pub struct Common<H: Host> {
    /// Its number.
    pub qpn: Qpn,
    /// Its state.
    pub state: State,
    /// What `modify` set so far.
    pub attributes: Attributes,
    /// Its sizes.
    pub capabilities: Capabilities,
    /// Its protection domain.
    pub pd: PdId,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
    /// Where `attributes.path` stands in the shard's table, from RTR on.
    pub path: PathIndex,
    /// Completions of sends.
    pub send_cq: H::Completions,
    /// Completions of receives.
    pub receive_cq: H::Completions,
    /// Receives.
    pub receives: H::Receives,
    /// Events that the shard has not given out yet.
    pub events: Vec<AsyncEvent>,
    /// What is counted.
    pub counters: Counters,
}

impl<H: Host> Common<H> {
    /// Its index in the shard.
    pub fn index(&self) -> QpIndex {
        QpIndex(self.qpn.index())
    }

    /// On whose behalf memory is used.
    pub fn scope(&self) -> Scope {
        Scope {
            pd: self.pd,
            qpn: self.qpn,
        }
    }

    /// Completes a send with success, if it is to be told.
    pub fn complete_send(&mut self, wqe: &SendWqe) -> Result<(), Overrun> {
        if wqe.operation.is_send() {
            self.counters.rdma_sends += 1;
        }
        if !(self.signal_all || wqe.flags.contains(SendFlags::SIGNALED)) {
            return Ok(());
        }
        let opcode = wqe.completion_opcode();
        let completion = WorkCompletion::success(wqe.id, opcode, wqe.length, self.qpn);
        self.send_cq.push(completion, false)
    }

    /// Bytes of payload in a full packet.
    pub fn mtu(&self) -> u32 {
        self.attributes.path_mtu.bytes()
    }
}
