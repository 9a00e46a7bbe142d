//! One of the two hosts: a machine, and what its program keeps about it.

use engine::access::{Access, Sge};
use engine::qp::{AttributeMask, Attributes, State};
use engine::{Instant, Path, ReceiveWqe};
use wire::{Psn, Qpn};

use crate::checker::grants::Canvas;
use crate::checker::order::ReceiveOrder;
use crate::ground::Ground;
use crate::machine::Machine;
use crate::network;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::workload::GUARD;
use crate::world::lane::Place;

/// One host.
pub struct Host<M> {
    /// Its queue pairs and its memory.
    pub machine: M,
    /// Its receive queues, by connection; a shared one is there once.
    pub receives: Vec<Receives>,
    /// Memory of receives.
    pub slots: Slots,
    /// Receives that wait may have lost their memory.
    pub receives_are_unmapped: bool,
    /// Whether it is planned to look at what arrived.
    pub is_serving: bool,
    /// The earliest planned call of a timer.
    pub wakes_at: Option<Instant>,
    receive_depth: usize,
    number: usize,
}

/// A receive queue and how many receives are still to be posted to it.
#[derive(Default)]
pub struct Receives {
    /// What was posted and completed.
    pub order: ReceiveOrder,
    /// How many are still to be posted.
    pub left: usize,
}

/// Memory of receives: one region for each.
pub struct Slots {
    slots: Vec<Slot>,
    length: u32,
}

struct Slot {
    place: Place,
    canvas: Canvas,
    /// Where the message goes: parts in order.
    parts: [(u32, u32); 2],
    is_complete: bool,
}

impl<M: Machine> Host<M> {
    /// A host that is not connected.
    pub fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        let queues = if scenario.shares_receives {
            1
        } else {
            scenario.connections
        };
        let receives = || Receives {
            order: ReceiveOrder::new(scenario.shares_receives),
            left: 0,
        };
        Self {
            machine: M::new(rng, scenario, number),
            receives: core::iter::repeat_with(receives).take(queues).collect(),
            slots: Slots {
                slots: Vec::new(),
                length: scenario.receive_length,
            },
            receives_are_unmapped: false,
            is_serving: false,
            wakes_at: None,
            receive_depth: scenario.receive_depth,
            number,
        }
    }

    /// The receive queue of a connection.
    pub fn receives_of(&mut self, connection: usize) -> &mut Receives {
        let last = self.receives.len() - 1;
        &mut self.receives[connection.min(last)]
    }

    /// Whether the program has seen all completions there are, and all receives of a connection
    /// that ended are complete.
    pub fn is_told(&mut self, connection: usize) -> bool {
        let order = &self.receives_of(connection).order;
        let is_flushed = order.is_shared() || order.waiting() == 0;
        is_flushed && self.machine.is_polled()
    }

    /// Posts a receive to the queue of a connection; false if it was full.
    pub fn post_receive(&mut self, rng: &mut Rng, connection: usize) -> bool {
        if self.receives_of(connection).order.waiting() >= self.receive_depth {
            return false;
        }
        let wqe = self.slots.next(rng, self.machine.ground());
        let id = wqe.id;
        if !self.machine.post_receive(connection, wqe) {
            self.slots.slots.pop();
            return false;
        }
        let receives = self.receives_of(connection);
        receives.left -= 1;
        receives.order.post(id);
        true
    }

    /// Which connection a queue pair belongs to.
    pub fn connection_of(&self, qpn: Qpn, connections: usize) -> Option<usize> {
        (0..connections).find(|&connection| self.machine.qpn(connection) == qpn)
    }

    /// Makes the queue pair of a connection anew, as another one or by RESET.
    pub fn renew(
        &mut self,
        now: Instant,
        connection: usize,
        as_another: bool,
    ) -> Result<(), String> {
        if as_another {
            self.machine.replace(connection);
            return Ok(());
        }
        self.modify(now, connection, State::Reset, AttributeMask::empty())
    }

    /// RESET to RTS.
    pub fn connect(
        &mut self,
        now: Instant,
        scenario: &Scenario,
        connection: usize,
        dest_qpn: Qpn,
        psns: [Psn; 2],
    ) -> Result<(), String> {
        let [sq_psn, rq_psn] = psns;
        let mut attributes = Attributes {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port: 1,
            path: Path {
                local: network::address(scenario.is_v6, self.number).ip(),
                remote: network::address(scenario.is_v6, 1 - self.number).ip(),
                ..Attributes::default().path
            },
            path_mtu: scenario.mtu,
            timeout: scenario.timeout,
            retry_count: 7,
            rnr_retry: scenario.rnr_retry,
            min_rnr_timer: scenario.min_rnr_timer,
            max_rd_atomic: scenario.rd_atomic,
            max_dest_rd_atomic: scenario.dest_rd_atomic,
            dest_qpn,
            sq_psn,
            rq_psn,
            ..Attributes::default()
        };
        use AttributeMask as Mask;
        let steps = [
            (
                State::Init,
                Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS,
            ),
            (
                State::ReadyToReceive,
                Mask::ADDRESS_VECTOR
                    | Mask::PATH_MTU
                    | Mask::DEST_QPN
                    | Mask::RQ_PSN
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::MIN_RNR_TIMER,
            ),
            (
                State::ReadyToSend,
                Mask::TIMEOUT
                    | Mask::RETRY_COUNT
                    | Mask::RNR_RETRY
                    | Mask::SQ_PSN
                    | Mask::MAX_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            attributes.state = state;
            self.machine
                .modify(now, connection, &attributes, mask | Mask::STATE)?;
        }
        Ok(())
    }

    /// Moves a queue pair to another state.
    pub fn modify(
        &mut self,
        now: Instant,
        connection: usize,
        state: State,
        mask: AttributeMask,
    ) -> Result<(), String> {
        let attributes = Attributes {
            state,
            sqd_async_notify: true,
            ..Attributes::default()
        };
        let mask = mask | AttributeMask::STATE;
        self.machine.modify(now, connection, &attributes, mask)
    }
}

impl Slots {
    /// The next slot as a receive: its parts in a random order.
    fn next(&mut self, rng: &mut Rng, memory: &dyn Ground) -> ReceiveWqe {
        let cut = rng.below(u64::from(self.length) + 1) as u32;
        let mut parts = [(0, cut), (cut, self.length - cut)];
        if rng.chance(500) {
            parts.reverse();
        }
        let canvas = Canvas::blank(self.length as usize + GUARD as usize);
        let place = Place::register(rng, memory, canvas.bytes(), Access::LOCAL_WRITE);
        let id = self.slots.len() as u64;
        let sges = parts
            .iter()
            .map(|&(at, length)| Sge {
                address: place.base + u64::from(at),
                length,
                key: place.key,
            })
            .collect();
        self.slots.push(Slot {
            place,
            canvas,
            parts,
            is_complete: false,
        });
        ReceiveWqe { id, sges }
    }

    /// The first `length` bytes of the message in a slot, which are right from now on.
    pub fn take(&mut self, memory: &dyn Ground, id: u64, length: usize) -> Vec<u8> {
        let slot = &mut self.slots[id as usize];
        slot.is_complete = true;
        let mut message = Vec::with_capacity(length);
        for &(at, part) in &slot.parts {
            let part = (part as usize).min(length - message.len());
            let bytes = memory.read(slot.place.key, at as usize, part);
            slot.canvas.paint(at as usize, &bytes);
            message.extend_from_slice(&bytes);
        }
        message
    }

    /// A receive failed: its slot may hold a part of a message.
    pub fn loosen(&mut self, id: u64) {
        let slot = &mut self.slots[id as usize];
        slot.is_complete = true;
        slot.canvas.loosen(0..self.length as usize);
    }

    /// Takes the memory of all slots away that wait.
    pub fn unmap(&mut self, memory: &dyn Ground) {
        for slot in self.slots.iter().filter(|slot| !slot.is_complete) {
            memory.unmap_from(slot.place.key, 0);
        }
    }

    /// Checks that nothing else is in the slots.
    pub fn finish(&self, memory: &dyn Ground) -> Result<(), String> {
        for (id, slot) in self.slots.iter().enumerate() {
            let found = memory.read(slot.place.key, 0, slot.canvas.length());
            slot.canvas
                .check(&found)
                .map_err(|text| format!("receive {id}: {text}"))?;
        }
        Ok(())
    }
}
