//! What programs do: they post, poll, drain, end connections and make them anew, and do to their
//! memory what they should not.

use core::time::Duration;

use engine::qp::{AttributeMask, State};
use engine::{Status, WorkCompletion};

use crate::machine::Machine;
use crate::scenario::Calamity;
use crate::world::lane::Lane;
use crate::world::{Connection, Drain, Event, World};

impl<M: Machine> World<M> {
    /// The program of a host: polls, posts, and comes back later.
    pub(super) fn work(&mut self, number: usize) -> Result<(), String> {
        let polled = self.rng.range(1, 64);
        for _ in 0..polled {
            let now = self.agenda.now();
            let Some(completion) = self.hosts[number].machine.poll(now) else {
                break;
            };
            self.listen(number)?; // polling may have moved the queue pairs
            self.completed(number, &completion)?;
        }
        for connection in 0..self.scenario.connections {
            let host = &mut self.hosts[number];
            for _ in 0..self.rng.below(6) {
                if host.receives_of(connection).left == 0
                    || !host.post_receive(&mut self.rng, connection)
                {
                    break;
                }
            }
        }
        for lane in &mut self.lanes {
            if lane.from != number {
                continue;
            }
            let (machine, connection) = (&mut self.hosts[number].machine, lane.connection);
            for _ in 0..self.rng.below(6) {
                let now = self.agenda.now();
                let shared_add = lane.next_is_shared_add();
                match lane.post_next(|request| machine.post_send(now, connection, request)) {
                    Some(Ok(true)) if shared_add => self.counters[number].0.post(),
                    Some(Ok(true)) => {}
                    Some(Ok(false)) | None => break,
                    Some(Err(text)) => return Err(format!("post: {text}")),
                }
            }
        }
        if self.scenario.drains && self.rng.chance(20) {
            let connection = self.rng.below(self.scenario.connections as u64) as usize;
            self.drain(number, connection)?;
        }
        self.drive(number)?;
        if !self.is_finished() {
            let pause = self.rng.duration(self.scenario.pace);
            self.agenda.after(pause, Event::Works { host: number });
        }
        Ok(())
    }

    fn completed(&mut self, number: usize, completion: &WorkCompletion) -> Result<(), String> {
        let now = self.agenda.now();
        self.trace
            .note(now, || format!("host {number} polls {completion:?}"));
        let host = &self.hosts[number];
        let Some(connection) = host.connection_of(completion.qpn, self.scenario.connections) else {
            return Err(format!("a completion of nobody: {completion:?}"));
        };
        let told = if completion.is_receive {
            self.receive_completed(number, connection, completion)
        } else {
            self.send_completed(number, connection, completion)
        };
        told.map_err(|text| format!("host {number}, connection {connection}: {text}"))
    }

    fn send_completed(
        &mut self,
        number: usize,
        connection: usize,
        completion: &WorkCompletion,
    ) -> Result<(), String> {
        let step = (completion.id & 0xffff_ffff) as usize;
        if completion.id >> 32 != connection as u64 {
            return Err(format!("a completion of another queue: {completion:?}"));
        }
        let lane = &mut self.lanes[2 * connection + number];
        let had_failed = lane.order.failed().is_some();
        let found = lane.send_completed(step, completion, self.hosts[number].machine.ground())?;
        if let Some(found) = found {
            self.counters[number].0.complete(found)?;
        }
        if completion.status == Status::Success {
            self.summary.completed += 1;
        } else if !had_failed {
            let state = &mut self.connections[connection];
            let is_explained = match completion.status {
                Status::Flushed => state.is_dead || state.is_doomed,
                // a peer that has failed is silent
                Status::RetryExceeded => {
                    state.is_exhausted |= !state.is_flawed;
                    self.scenario.is_harsh || state.is_flawed || state.is_doomed
                }
                Status::RnrRetryExceeded => {
                    state.is_exhausted = true;
                    self.scenario.rnr_retry < 7
                }
                status => lane.explains_failure(step, status),
            };
            if !is_explained {
                return Err(format!("send {step} failed with {:?}", completion.status));
            }
            self.doom(connection);
        }
        Ok(())
    }

    fn receive_completed(
        &mut self,
        number: usize,
        connection: usize,
        completion: &WorkCompletion,
    ) -> Result<(), String> {
        let host = &mut self.hosts[number];
        host.receives_of(connection).order.complete(completion.id)?;
        let lane = &mut self.lanes[2 * connection + 1 - number];
        if completion.status == Status::Success {
            let length = match lane.plan.messages.get(lane.received) {
                Some(message) if message.data.is_some() => completion.length as usize,
                _ => 0,
            };
            let ground = host.machine.ground();
            let data = host.slots.take(ground, completion.id, length);
            return lane.receive_completed(completion, &data, ground);
        }
        host.slots.loosen(completion.id);
        let state = self.connections[connection];
        let is_explained = match completion.status {
            Status::Flushed => state.is_dead || state.is_doomed,
            status => lane.explains_failed_receive(status),
        };
        if !is_explained {
            return Err(format!("receive failed with {:?}", completion.status));
        }
        self.doom(connection);
        Ok(())
    }

    /// Something failed: the programs end the connection a little later.
    pub(super) fn doom(&mut self, connection: usize) {
        let state = &mut self.connections[connection];
        if !state.is_doomed {
            state.is_doomed = true;
            let delay = self.rng.duration(Duration::from_millis(20));
            self.agenda.after(delay, Event::Kills { connection });
        }
    }

    /// RTS to SQD, if the queue pair is there.
    fn drain(&mut self, number: usize, connection: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let host = &mut self.hosts[number];
        if host.machine.state(connection) != Some(State::ReadyToSend) {
            return Ok(());
        }
        let mask = AttributeMask::SQD_ASYNC_NOTIFY;
        host.modify(now, connection, State::SendQueueDrained, mask)
            .map_err(|error| format!("to SQD: {error}"))?;
        self.drains[number][connection] = Drain::Draining;
        self.trace.note(now, || {
            format!("host {number} drains connection {connection}")
        });
        Ok(())
    }

    /// SQD to RTS, if the queue pair is still there.
    pub(super) fn resume(&mut self, number: usize, connection: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let host = &mut self.hosts[number];
        if self.drains[number][connection] != Drain::Drained
            || host.machine.state(connection) != Some(State::SendQueueDrained)
        {
            return Ok(());
        }
        self.drains[number][connection] = Drain::Flowing;
        host.modify(now, connection, State::ReadyToSend, AttributeMask::empty())
            .map_err(|error| format!("from SQD to RTS: {error}"))?;
        self.drive(number)
    }

    /// The queue pair says that all it had started is done.
    pub(super) fn drained(&mut self, number: usize, connection: usize) -> Result<(), String> {
        if self.drains[number][connection] != Drain::Draining {
            return Err(format!(
                "connection {connection} is drained and was not asked"
            ));
        }
        self.drains[number][connection] = Drain::Drained;
        let pause = self.rng.duration(Duration::from_millis(3));
        let event = Event::Resumes {
            host: number,
            connection,
        };
        self.agenda.after(pause, event);
        Ok(())
    }

    /// Both sides end a connection.
    pub(super) fn kill(&mut self, connection: usize) -> Result<(), String> {
        let now = self.agenda.now();
        self.trace
            .note(now, || format!("connection {connection} is ended"));
        self.connections[connection].is_dead = true;
        for number in 0..2 {
            self.hosts[number]
                .modify(now, connection, State::Error, AttributeMask::empty())
                .map_err(|error| format!("to the error state: {error}"))?;
            self.drive(number)?;
        }
        if self.revivals_left > 0 {
            self.revivals_left -= 1;
            self.connections[connection].revives = true;
            let pause = self.rng.duration(Duration::from_millis(30));
            self.agenda.after(pause, Event::Revives { connection });
        }
        Ok(())
    }

    /// Both sides make a connection anew, once all of the old one is told; late packets of it may
    /// still arrive.
    pub(super) fn revive(&mut self, connection: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let lanes = &self.lanes[2 * connection..2 * connection + 2];
        let are_told = lanes.iter().all(Lane::is_complete)
            && self.hosts.iter_mut().all(|host| host.is_told(connection));
        if !are_told {
            self.agenda
                .after(Duration::from_millis(1), Event::Revives { connection });
            return Ok(());
        }
        self.trace
            .note(now, || format!("connection {connection} is made anew"));
        let as_another = self.rng.chance(500);
        for number in 0..2 {
            self.hosts[number].renew(now, connection, as_another)?;
            self.drains[number][connection] = Drain::Flowing;
        }
        self.connections[connection] = Connection::default();
        self.plan(connection);
        self.connect(connection)
    }

    /// Something happens to the memory of a lane.
    pub(super) fn suffer(&mut self, lane: usize, calamity: Calamity) {
        let now = self.agenda.now();
        self.trace
            .note(now, || format!("{calamity:?} of lane {lane}"));
        let concerned = if calamity == Calamity::ReceivesUnmapped {
            let number = self.lanes[lane].to();
            let host = &mut self.hosts[number];
            host.slots.unmap(host.machine.ground());
            host.receives_are_unmapped = true;
            (0..self.lanes.len())
                .filter(|&other| self.lanes[other].to() == number)
                .collect()
        } else {
            vec![lane]
        };
        for lane in concerned {
            let lane = &mut self.lanes[lane];
            let (here, there) = (&self.hosts[lane.from], &self.hosts[lane.to()]);
            lane.suffer(calamity, here.machine.ground(), there.machine.ground());
            self.connections[lane.connection].is_flawed = true;
        }
    }
}
