//! How a queue pair ends: every work request still gets its completion, in one order.
//!
//! Read first: IBA 10.3.1 (error state), 11.6.2. The work request that failed comes first with its
//! own status, then receives, then sends; all but the first are flushed, signalled or not. The
//! ones before the failed one are complete already.

use crate::completion::{CompletionOpcode, Overrun, Status, WorkCompletion};
use crate::event::AsyncEvent;
use crate::host::{CompletionSink, Host, ReceiveSource, ReceiveWqe};
use crate::qp::send_queue::{SendQueue, completion_opcode};
use crate::qp::transition::{Event, next_state};
use crate::qp::{Common, SendRequest, State, Transport};

/// Why a queue pair goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program asked for it.
    Modify,
    /// The oldest send work request failed.
    Send(Status),
    /// The responder refused a request, or a completion was lost.
    Fault,
}

/// Moves a queue pair to the error state and completes all that it holds. `half_received` is the
/// receive of a message that did not arrive as a whole.
pub fn enter_error<H: Host>(
    common: &mut Common<H>,
    sends: &mut SendQueue,
    half_received: Option<ReceiveWqe>,
    cause: Cause,
) {
    if common.state == State::Error {
        return;
    }
    common.state = State::Error;
    if cause != Cause::Modify {
        common.events.push(AsyncEvent::StateChanged {
            qp: common.index(),
            state: State::Error,
        });
    }
    if let Cause::Send(status) = cause {
        end_oldest(common, sends, status);
    }
    if let Some(wqe) = half_received {
        push_flushed_receive(common, wqe.id);
    }
    flush_receives(common);
    if common.receives.is_shared() {
        // spec: IBA 11.6.3.1: the shared queue itself is not flushed
        common
            .events
            .push(AsyncEvent::LastWqeReached(common.index()));
    }
    flush_sends(common, sends);
}

/// The oldest send of an unreliable queue pair failed: that ends its send queue and nothing else,
/// or all of it where the send queue is not running. spec: IBA 10.3.1.5
pub fn fail_send<H: Host>(common: &mut Common<H>, sends: &mut SendQueue, status: Status) {
    let next = next_state(Transport::Ud, common.state, Event::SendError);
    if next != Some(State::SendQueueError) {
        return enter_error(common, sends, None, Cause::Send(status));
    }
    common.state = State::SendQueueError;
    common.events.push(AsyncEvent::StateChanged {
        qp: common.index(),
        state: State::SendQueueError,
    });
    end_oldest(common, sends, status);
    flush_sends(common, sends);
}

/// Flushes the receives that were posted to a queue pair in the error state.
pub fn flush_receives<H: Host>(common: &Common<H>) {
    if common.receives.is_shared() {
        return;
    }
    while let Some(wqe) = common.receives.take() {
        push_flushed_receive(common, wqe.id);
    }
}

/// Completes a send that was posted to a queue pair in the error state.
pub fn flush_send<H: Host>(common: &Common<H>, request: &SendRequest<'_>) {
    let opcode = completion_opcode(&request.operation);
    let _ = push_send_error(common, request.id, opcode, Status::Flushed);
}

/// Completes the oldest send with what it failed with.
fn end_oldest<H: Host>(common: &mut Common<H>, sends: &mut SendQueue, status: Status) {
    if let Some(wqe) = sends.pop() {
        common.counters.send_errors += 1;
        // an overrun changes nothing any more: the state is ERR or SQE already
        let _ = push_send_error(common, wqe.id, wqe.completion_opcode(), status);
    }
}

fn flush_sends<H: Host>(common: &Common<H>, sends: &mut SendQueue) {
    while let Some(wqe) = sends.pop() {
        let _ = push_send_error(common, wqe.id, wqe.completion_opcode(), Status::Flushed);
    }
}

fn push_send_error<H: Host>(
    common: &Common<H>,
    id: u64,
    opcode: CompletionOpcode,
    status: Status,
) -> Result<(), Overrun> {
    let completion = WorkCompletion::error(id, opcode, status, common.qpn);
    common.send_cq.push(completion, true)
}

fn push_flushed_receive<H: Host>(common: &Common<H>, id: u64) {
    let opcode = CompletionOpcode::Receive;
    let completion = WorkCompletion::error(id, opcode, Status::Flushed, common.qpn);
    // the queue remembers its overrun itself; the others are flushed all the same
    let _ = common.receive_cq.push(completion, true);
}
