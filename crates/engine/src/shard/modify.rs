//! What changes when `modify` moves a queue pair to another state.
//!
//! Read first: IBA 10.3.1 (states), 11.2.5.2 (modify). Which moves exist and which attributes they
//! take is [`transition`](crate::qp::transition)'s table.

use crate::burst::QpIndex;
use crate::host::{Credit, Host, ReceiveSource};
use crate::qp::flush::Cause;
use crate::qp::transition::check_modify;
use crate::qp::{AttributeMask, Attributes, ModifyError, State};
use crate::rc::Rc;
use crate::rc::window::{Buffer, DestinationIndex};
use crate::shard::Shard;
use crate::shard::machine::Machine;
use crate::shard::places::QueuePair;
use crate::time::Instant;

impl<H: Host> Shard<H> {
    /// Sets attributes and moves to another state; all or nothing. Gives the state it is in then.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        index: QpIndex,
        attributes: &Attributes,
        mask: AttributeMask,
        memory: &H::Memory,
    ) -> Result<State, ModifyError> {
        let Some(qp) = self.places.get_mut(index) else {
            return Err(ModifyError::NoQueuePair);
        };
        let from = qp.common.state;
        let to = check_modify(qp.machine.transport(), from, attributes, mask)?;
        let drains = from == State::SendQueueDrained && !qp.machine.is_drained();
        if drains && !matches!(to, State::Reset | State::Error) {
            // spec: IBA 10.3.1.5: nothing is changed before the queue is drained
            return Err(ModifyError::Transition { from, to });
        }
        match to {
            State::Reset => self.reset(index),
            State::Error => self.fail(now, index, memory),
            _ => {
                merge(&mut qp.common.attributes, attributes, mask);
                qp.common.state = to;
                self.enter(index, from, to, mask);
            }
        }
        self.after(index);
        Ok(to)
    }

    /// A queue pair as it was made; completions and receives of it are forgotten.
    fn reset(&mut self, index: QpIndex) {
        self.leave(index);
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        qp.machine.reset();
        qp.common.state = State::Reset;
        qp.common.attributes = Attributes::default();
        if !qp.common.receives.is_shared() {
            while qp.common.receives.take().is_some() {}
        }
    }

    fn fail(&mut self, now: Instant, index: QpIndex, memory: &H::Memory) {
        self.with_turn(index, now, memory, |machine, turn| {
            machine.fail(turn, Cause::Modify);
        });
    }

    fn enter(&mut self, index: QpIndex, from: State, to: State, mask: AttributeMask) {
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        if matches!(qp.machine, Machine::Rc(_)) {
            let moves = from == State::Init && to == State::ReadyToReceive
                || mask.contains(AttributeMask::ADDRESS_VECTOR);
            if moves {
                self.leave(index);
                self.connect(index);
            }
        }
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        let QueuePair {
            common, machine, ..
        } = qp;
        let notify =
            mask.contains(AttributeMask::SQD_ASYNC_NOTIFY) && common.attributes.sqd_async_notify;
        match machine {
            Machine::Rc(rc) => enter_rc(rc, &common.attributes, (from, to), mask, notify),
            Machine::Ud(ud) => match (from, to) {
                (State::ReadyToReceive, State::ReadyToSend) => ud.start(common.attributes.sq_psn),
                (State::ReadyToSend, State::SendQueueDrained) => ud.drain(common, notify),
                _ => {}
            },
        }
    }

    /// Takes a path and an account for what is in flight.
    fn connect(&mut self, index: QpIndex) {
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        let path = self
            .paths
            .acquire(qp.common.attributes.path, |path| self.credit.reaches(path));
        qp.common.path = path;
        let slot = qp.common.attributes.dest_qpn.slot();
        let buffer = if self.paths.is_reached(path) {
            Buffer::Here(slot)
        } else {
            Buffer::There(path, slot)
        };
        qp.destination = Some(self.destinations.acquire(buffer));
    }

    /// Gives both back.
    pub(super) fn leave(&mut self, index: QpIndex) {
        let Some(qp) = self.places.get_mut(index) else {
            return;
        };
        let Some(destination) = qp.destination.take() else {
            return;
        };
        self.destinations.give_up(destination, qp.machine.stop());
        qp.waits_for = None;
        let woken_by = qp.woken_by.take();
        qp.count_in_flight(&mut self.in_flight);
        let path = qp.common.path;
        self.end_turn(woken_by);
        self.settle(destination);
        self.settle(DestinationIndex::OWN);
        self.destinations.release(destination);
        self.paths.release(path);
    }
}

/// What a connection does at a transition.
fn enter_rc(
    rc: &mut Rc,
    attributes: &Attributes,
    transition: (State, State),
    mask: AttributeMask,
    notify: bool,
) {
    match transition {
        (State::Init, State::ReadyToReceive) => {
            rc.responder
                .start(attributes.rq_psn, attributes.max_dest_rd_atomic);
        }
        (State::ReadyToReceive, State::ReadyToSend) => rc.requester.start(attributes),
        (State::ReadyToSend, State::SendQueueDrained) => rc.requester.drain(notify),
        (State::SendQueueDrained, _) if mask.contains(AttributeMask::MAX_DEST_RD_ATOMIC) => {
            rc.responder
                .set_max_dest_rd_atomic(attributes.max_dest_rd_atomic);
        }
        _ => {}
    }
}

/// Sets the attributes that the mask names.
fn merge(to: &mut Attributes, from: &Attributes, mask: AttributeMask) {
    macro_rules! take {
        ($($bit:ident => $field:ident),* $(,)?) => { $(
            if mask.contains(AttributeMask::$bit) {
                to.$field = from.$field;
            }
        )* };
    }
    take! {
        STATE => state,
        SQD_ASYNC_NOTIFY => sqd_async_notify,
        ACCESS_FLAGS => access,
        PKEY_INDEX => pkey_index,
        PORT => port,
        ADDRESS_VECTOR => path,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_COUNT => retry_count,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        MAX_RD_ATOMIC => max_rd_atomic,
        MIN_RNR_TIMER => min_rnr_timer,
        SQ_PSN => sq_psn,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        DEST_QPN => dest_qpn,
        QKEY => qkey,
    }
}
