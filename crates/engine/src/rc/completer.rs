//! What answers do to the requester: acknowledgements, READ and atomic answers, NAKs.
//!
//! Read first: IBA 9.7.5.1 (acknowledgements), 9.7.6 (NAKs), 9.7.5.1.2 (coalescing). The idea: an
//! answer at a position acknowledges every SEND and WRITE before it, but no READ or atomic: these
//! are complete only by their own answers, so one that is passed by was lost.

use wire::{Aeth, NakCode, Opcode, Packet, Place, RnrTimer, Syndrome};

use crate::access::{Access, MemoryRange};
use crate::completion::Status;
use crate::host::{Host, Memory};
use crate::outcome::{DropReason, Outcome};
use crate::qp::Operation;
use crate::qp::flush::Cause;
use crate::qp::position::Position;
use crate::qp::send_queue::SendWqe;
use crate::qp::sge_cursor::SgeCursor;
use crate::rc::requester::{Requester, Turn};
use crate::rc::retry::Timer;
use crate::rc::segment::Exchange;

/// How far an acknowledgement went.
struct Acknowledged {
    /// Something new was acknowledged.
    progressed: bool,
    /// It stopped in front of a READ or atomic whose answer should have come before.
    answer_missing: bool,
}

impl Requester {
    /// Takes a response. An error ends the connection.
    pub fn handle_response<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Cause> {
        let position = self
            .numbering
            .position(packet.bth().psn, self.at.acked)
            .filter(|position| *position < self.at.transmitted);
        let Some(position) = position else {
            return Ok(Outcome::Dropped(DropReason::StaleResponse));
        };
        if position < self.at.acked {
            return self.handle_stale(position, packet);
        }
        match packet.opcode() {
            Opcode::RC_ACKNOWLEDGE => match packet.aeth() {
                Some(aeth) => self.handle_acknowledge(turn, position, aeth),
                None => Ok(Outcome::Dropped(DropReason::Reserved)),
            },
            _ => self.handle_answer(turn, position, packet),
        }
    }

    /// A timer fired.
    pub fn handle_timer<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        timer: Timer,
    ) -> Result<(), Cause> {
        match timer {
            Timer::ReceiverNotReady => self.retry.wait_over(),
            Timer::Acknowledgement => {
                if let Err(status) = self.retry.timed_out() {
                    turn.common.counters.retry_exceeded += 1;
                    return Err(Cause::Send(status));
                }
                self.go_back_for_loss(turn);
            }
        }
        Ok(())
    }

    /// Something before the oldest unacknowledged packet. Only one thing there is news: rdma_rxe
    /// refuses a READ that it cannot finish with the PSN of the request, not of the response.
    fn handle_stale(&self, position: Position, packet: &Packet<'_>) -> Result<Outcome, Cause> {
        if let Some(Aeth {
            syndrome: Syndrome::Nak(code),
            ..
        }) = packet.aeth()
            && let Some(status) = fatal(code)
            && let Some(wqe) = self.oldest_started()
            && matches!(wqe.operation, Operation::Read(_))
            && self
                .cut
                .read_request(wqe, self.at.acked)
                .contains(&position)
        {
            return Err(Cause::Send(status));
        }
        Ok(Outcome::Dropped(DropReason::StaleResponse))
    }

    fn handle_acknowledge<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        position: Position,
        aeth: Aeth,
    ) -> Result<Outcome, Cause> {
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let acknowledged = self.acknowledge_before(turn, position.plus(1))?;
                if acknowledged.answer_missing {
                    self.lost(turn, acknowledged.progressed)?;
                }
                Ok(Outcome::Delivered)
            }
            Syndrome::RnrNak { timer } => self.handle_rnr_nak(turn, position, timer),
            Syndrome::Nak(code) => self.handle_nak(turn, position, code),
            Syndrome::Reserved(_) => Ok(Outcome::Dropped(DropReason::Reserved)),
        }
    }

    fn handle_rnr_nak<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        position: Position,
        timer: RnrTimer,
    ) -> Result<Outcome, Cause> {
        turn.common.counters.received_rnr_naks += 1;
        let acknowledged = self.acknowledge_before(turn, position)?;
        if acknowledged.answer_missing {
            self.lost(turn, acknowledged.progressed)?;
            return Ok(Outcome::Delivered);
        }
        match self
            .retry
            .not_ready(turn.now, &turn.common.attributes, timer)
        {
            Ok(true) => self.go_back(turn),
            Ok(false) => {}
            Err(status) => {
                turn.common.counters.rnr_retry_exceeded += 1;
                return Err(Cause::Send(status));
            }
        }
        Ok(Outcome::Delivered)
    }

    fn handle_nak<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        position: Position,
        code: NakCode,
    ) -> Result<Outcome, Cause> {
        let acknowledged = self.acknowledge_before(turn, position)?;
        match fatal(code) {
            None => {
                turn.common.counters.received_sequence_naks += 1;
                self.lost(turn, acknowledged.progressed)?;
            }
            Some(status) => {
                let owner = self.oldest_started();
                if owner.is_some_and(|wqe| wqe.positions().contains(&position)) {
                    return Err(Cause::Send(status));
                }
                // an answer before it is missing: that READ is asked for again, and gets its own
                // result from a peer that still answers, or from the timer
                self.lost(turn, acknowledged.progressed)?;
            }
        }
        Ok(Outcome::Delivered)
    }

    /// A READ response or an atomic acknowledgement.
    fn handle_answer<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        position: Position,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Cause> {
        // spec: IBA 9.7.5.1.2: an answer acknowledges the SENDs and WRITEs before it
        let acknowledged = self.acknowledge_before(turn, position)?;
        if acknowledged.answer_missing {
            self.lost(turn, acknowledged.progressed)?;
            return Ok(Outcome::Dropped(DropReason::ResponseGap));
        }
        let Some(wqe) = self.oldest_started() else {
            return Ok(Outcome::Dropped(DropReason::StaleResponse));
        };
        let original;
        let bytes = match (&wqe.operation, packet.opcode()) {
            (
                Operation::CompareSwap { .. } | Operation::FetchAdd { .. },
                Opcode::RC_ATOMIC_ACKNOWLEDGE,
            ) if is_positive(packet) => {
                let value = packet.atomic_ack().unwrap_or_default().original; // never the default
                original = value.to_ne_bytes();
                &original[..]
            }
            (Operation::Read(_), opcode)
                if opcode.operation() == wire::Operation::ReadResponse
                    && is_positive(packet)
                    && self.fits(wqe, position, opcode.place(), packet.payload().len()) =>
            {
                packet.payload()
            }
            // spec: IBA 9.7.6.2: a response that does not fit its request
            _ => return Err(Cause::Send(Status::BadResponse)),
        };
        let is_last = position.plus(1) == wqe.end();
        let mut sink = self.answer.sink;
        place(turn, &mut sink, wqe, bytes, is_last)?;
        self.answer.sink = sink;
        self.answered(turn, position)?;
        Ok(Outcome::Delivered)
    }

    /// Whether a READ response of this place and length belongs at this position. A request that
    /// was repeated from its middle may be answered as a message of its own, as the standard has
    /// it, or by the rest of the first answer, as rdma_rxe does.
    fn fits(&self, wqe: &SendWqe, position: Position, place: Place, length: usize) -> bool {
        let request = self.cut.read_request(wqe, position);
        let starts = position == request.start;
        let may_start = starts || self.answer.resumed == Some(position);
        let ends = position.plus(1) == request.end;
        let placed = match place {
            Place::First => may_start && !ends,
            Place::Only => may_start && ends,
            Place::Middle => !starts && !ends,
            Place::Last => !starts && ends,
        };
        placed && length == self.cut.length_at(wqe, position) as usize
    }

    /// The answer at `position`, which is the oldest one missing, is placed.
    fn answered<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        position: Position,
    ) -> Result<(), Cause> {
        let Some(wqe) = self.oldest_started() else {
            return Ok(());
        };
        let (request_end, end) = (self.cut.read_request(wqe, position).end, wqe.end());
        let next = position.plus(1);
        if next == request_end && self.at.sent >= request_end {
            self.account.reads -= 1;
        }
        self.advance(turn, next);
        if next == end {
            self.complete_oldest(turn.common)?;
        }
        self.settle(turn);
        Ok(())
    }

    /// Acknowledges the SENDs and WRITEs before `to`, up to the first READ or atomic.
    fn acknowledge_before<H: Host>(
        &mut self,
        turn: &mut Turn<'_, H>,
        to: Position,
    ) -> Result<Acknowledged, Cause> {
        let mut acknowledged = Acknowledged {
            progressed: false,
            answer_missing: false,
        };
        while self.at.acked < to
            && let Some(wqe) = self.oldest_started()
        {
            if Exchange::of(&wqe.operation) == Exchange::Answered {
                acknowledged.answer_missing = true;
                break;
            }
            let end = wqe.end();
            self.advance(turn, end.min(to));
            if self.at.acked == end {
                self.complete_oldest(turn.common)?;
            }
            acknowledged.progressed = true;
        }
        if acknowledged.progressed {
            self.settle(turn);
        }
        Ok(acknowledged)
    }

    /// Moves `acked` inside the oldest work request and releases what was in flight.
    fn advance<H: Host>(&mut self, turn: &mut Turn<'_, H>, to: Position) {
        turn.acknowledge(self.account.ledger.release_before(to));
        self.at.acked = to;
    }

    /// After progress: the timer starts again, and what was acknowledged is not sent again.
    fn settle<H: Host>(&mut self, turn: &mut Turn<'_, H>) {
        if self.at.sent < self.at.acked {
            self.at.sent = self.at.acked;
            self.locate();
        }
        let in_flight = self.in_flight() > 0;
        self.retry
            .progress(turn.now, &turn.common.attributes, in_flight);
    }

    /// Something is lost: goes back, unless that was done for this loss already.
    fn lost<H: Host>(&mut self, turn: &mut Turn<'_, H>, progressed: bool) -> Result<(), Cause> {
        match self.retry.lost(progressed) {
            Ok(true) => self.go_back_for_loss(turn),
            Ok(false) => {}
            Err(status) => {
                turn.common.counters.retry_exceeded += 1;
                return Err(Cause::Send(status));
            }
        }
        Ok(())
    }

    fn oldest_started(&self) -> Option<&SendWqe> {
        let head = self.queue.head();
        if head < self.started {
            self.queue.get(head)
        } else {
            None
        }
    }
}

/// The status that a NAK ends a work request with; `None` if it is to be sent again.
fn fatal(code: NakCode) -> Option<Status> {
    match code {
        NakCode::SequenceError => None,
        NakCode::InvalidRequest => Some(Status::RemoteInvalidRequest),
        NakCode::RemoteAccess => Some(Status::RemoteAccess),
        // the last one exists in RD only
        NakCode::RemoteOperational | NakCode::InvalidRdRequest => Some(Status::RemoteOperational),
    }
}

/// Whether a response that carries an AETH is an acknowledgement.
fn is_positive(packet: &Packet<'_>) -> bool {
    packet
        .aeth()
        .is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}

/// Puts a part of an answer where the work request wants it.
fn place<H: Host>(
    turn: &Turn<'_, H>,
    sink: &mut SgeCursor,
    wqe: &SendWqe,
    bytes: &[u8],
    is_last: bool,
) -> Result<(), Cause> {
    let mut rest = bytes;
    sink.advance(&wqe.sges, bytes.len() as u32, |piece| {
        let (now, later) = rest
            .split_at_checked(piece.length as usize)
            .ok_or(Status::LocalLength)?;
        rest = later;
        let range = MemoryRange {
            address: piece.address,
            length: piece.length.into(),
        };
        turn.memory
            .check(piece.key, turn.common.scope(), range, Access::LOCAL_WRITE)
            .and_then(|grant| {
                turn.memory
                    .place(&grant, 0, now, is_last && later.is_empty())
            })
            .map_err(|_| Status::LocalProtection)
    })
    .map_err(Cause::Send)
}
