//! Two engines, a network that damages packets until it heals, and programs that do everything that
//! reliable connections can do.
//!
//! First the network has faults and nothing may go wrong. Then it heals and everything must finish.
//! Packets are real: each is sealed with its ICRC, and what the network corrupts the ICRC finds.

mod host;
mod lane;

use core::time::Duration;

use engine::access::Access;
use engine::qp::{PostError, State};
use engine::{AsyncEvent, Status, WorkCompletion};
use wire::Packet;

use crate::checker::atomics::SharedCounter;
use crate::checker::liveness::Deadline;
use crate::clock::Agenda;
use crate::model_world::host::Host;
use crate::model_world::lane::{Lane, Place};
use crate::network::{Arrival, Link};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::workload::Scenario;

/// How long late packets may still arrive after everything has finished.
const AFTERMATH: Duration = Duration::from_millis(200);

/// Events between two looks at the engine's own invariants.
const INVARIANTS_EVERY: u64 = 64;

/// What a run was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events that happened.
    pub events: u64,
    /// Packets that were sent.
    pub packets: u64,
    /// Work requests that succeeded.
    pub completed: u64,
    /// Connections that ended because of a planned flaw.
    pub flawed: u64,
    /// Connections that used up their retries.
    pub exhausted: u64,
    /// Times that a requester went back.
    pub retries: u64,
    /// RNR NAKs.
    pub not_ready: u64,
}

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    World::new(seed, trace).run()
}

enum Event {
    Arrives { host: usize, arrival: Arrival },
    Serves { host: usize },
    Wakes { host: usize },
    Works { host: usize },
    Heals,
    Kills { connection: usize },
}

/// Both queue pairs of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// One of its plans has a flaw.
    is_flawed: bool,
    /// It used up its retries.
    is_exhausted: bool,
    /// Something failed, and the programs will end it.
    is_doomed: bool,
    /// The programs have ended it.
    is_dead: bool,
}

struct World {
    rng: Rng,
    scenario: Scenario,
    agenda: Agenda<Event>,
    hosts: [Host; 2],
    /// From host 0 and from host 1.
    links: [Link; 2],
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    /// For additions by host 0 and by host 1, with the place of the word at the other.
    counters: [(SharedCounter, Place); 2],
    summary: Summary,
    trace: Trace,
}

impl World {
    fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::from_seed(seed);
        let scenario = Scenario::random(&mut rng);
        trace.note(Default::default(), || format!("{scenario:?}"));
        let mut hosts = [0, 1].map(|number| Host::new(&mut rng, &scenario, number));
        let counters = [0, 1].map(|number: usize| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
            let memory = &hosts[1 - number].memory;
            let place = Place::register(&mut rng, memory, vec![0; 8], access);
            (SharedCounter::default(), place)
        });
        let mut lanes = Vec::new();
        let mut connections = vec![Connection::default(); scenario.connections];
        for (connection, state) in connections.iter_mut().enumerate() {
            for from in 0..2 {
                let (here, there) = (&hosts[from].memory, &hosts[1 - from].memory);
                let shared = counters[from].1;
                let ends = (from, connection);
                let lane = Lane::new(&mut rng, &scenario, ends, here, there, shared);
                let receives = lane.plan.messages.len() + usize::from(lane.plan.flawed.is_some());
                hosts[1 - from].receives_of(connection).left += receives;
                state.is_flawed |= lane.plan.flawed.is_some();
                lanes.push(lane);
            }
        }
        for host in &mut hosts {
            host.make_slots(&mut rng);
        }
        let [a, b] = scenario.first_psns;
        for connection in 0..scenario.connections {
            let [here, there] = [0, 1].map(|host: usize| hosts[host].qpns[connection]);
            hosts[0].connect(&scenario, connection, there, [a, b]);
            hosts[1].connect(&scenario, connection, here, [b, a]);
        }
        let links =
            [0, 1].map(|_| Link::new(scenario.delay, scenario.jitter, scenario.faults, rng.fork()));
        let mut agenda = Agenda::new();
        agenda.at(scenario.heals_at, Event::Heals);
        for host in 0..2 {
            agenda.after(rng.duration(scenario.pace), Event::Works { host });
        }
        Self {
            rng,
            scenario,
            agenda,
            hosts,
            links,
            lanes,
            connections,
            counters,
            summary: Summary::default(),
            trace,
        }
    }

    fn run(mut self) -> Result<Summary, String> {
        let deadline = Deadline::after(self.scenario.heals_at);
        let mut ends_at = None;
        while let Some(event) = self.agenda.take() {
            let now = self.agenda.now();
            if ends_at.is_some_and(|end| now > end) {
                break;
            }
            self.handle(event)
                .map_err(|text| format!("at {}: {text}", self.trace.time(now)))?;
            for lane in &mut self.lanes {
                lane.watch(&self.hosts[lane.to()].memory)?;
            }
            if self.agenda.count().is_multiple_of(INVARIANTS_EVERY) {
                for host in &self.hosts {
                    host.shard.assert_invariants();
                }
            }
            if ends_at.is_none() && self.is_finished() {
                ends_at = Some(now.plus(AFTERMATH));
                self.trace.note(now, || "finished".into());
            }
            if ends_at.is_none() {
                deadline
                    .check(now, self.agenda.count())
                    .map_err(|text| format!("{text}\n{}", self.describe()))?;
            }
        }
        if ends_at.is_none() {
            return Err(format!("nothing happens any more\n{}", self.describe()));
        }
        self.finish()
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrives { host, arrival } => {
                self.arrives(host, arrival);
                Ok(())
            }
            Event::Serves { host } => self.serve(host),
            Event::Wakes { host } => {
                let now = self.agenda.now();
                let Host { shard, memory, .. } = &mut self.hosts[host];
                shard.handle_timeout(now, memory);
                self.hosts[host].wakes_at = None;
                self.drive(host)
            }
            Event::Works { host } => self.work(host),
            Event::Heals => {
                let now = self.agenda.now();
                self.trace.note(now, || "the network heals".into());
                self.links.iter_mut().for_each(Link::heal);
                Ok(())
            }
            Event::Kills { connection } => {
                let now = self.agenda.now();
                self.trace
                    .note(now, || format!("connection {connection} is ended"));
                self.connections[connection].is_dead = true;
                for host in 0..2 {
                    self.hosts[host].kill(now, connection)?;
                    self.drive(host)?;
                }
                Ok(())
            }
        }
    }

    fn arrives(&mut self, number: usize, arrival: Arrival) {
        let host = &mut self.hosts[number];
        if !host.buffer.push(arrival.bytes) {
            self.trace
                .note(arrival.at, || format!("host {number}: receive buffer full"));
        } else if !host.is_serving {
            host.is_serving = true;
            let delay = self.rng.duration(self.scenario.service);
            self.agenda.after(delay, Event::Serves { host: number });
        }
    }

    /// The host looks at its receive buffer.
    fn serve(&mut self, number: usize) -> Result<(), String> {
        let now = self.agenda.now();
        self.hosts[number].is_serving = false;
        while let Some(bytes) = self.hosts[number].buffer.pop() {
            let host = &mut self.hosts[number];
            if !host.verify(&bytes) {
                continue;
            }
            // the ICRC is right: what came is what the peer's engine sent
            let packet = Packet::parse(&bytes)
                .map_err(|error| format!("host {}: {error}: {bytes:02x?}", 1 - number))?;
            let meta = host.meta();
            let outcome = host
                .shard
                .handle_datagram(now, &packet, &meta, &host.memory);
            self.trace
                .packet(now, number, "<", &packet, || format!("{outcome:?}"));
            for lane in &mut self.lanes {
                if lane.to() == number {
                    lane.watch(&self.hosts[number].memory)?;
                }
            }
        }
        self.drive(number)
    }

    /// The program of a host: polls, posts, and comes back later.
    fn work(&mut self, number: usize) -> Result<(), String> {
        let polled = self.rng.range(1, 64);
        for _ in 0..polled {
            let host = &self.hosts[number];
            let Some(completion) = host.send_cq.poll().or_else(|| host.receive_cq.poll()) else {
                break;
            };
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
            let host = &mut self.hosts[number];
            let index = host.index(lane.connection);
            for _ in 0..self.rng.below(6) {
                let shared_add = lane.next_is_shared_add();
                match lane.post_next(|request| host.shard.post_send(index, request)) {
                    Some(Ok(())) if shared_add => self.counters[number].0.post(),
                    Some(Ok(())) => {}
                    Some(Err(PostError::QueueFull)) | None => break,
                    Some(Err(error)) => return Err(format!("post: {error:?}")),
                }
            }
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
        let Some(connection) = host.connection_of(completion.qpn) else {
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
        let found = lane.send_completed(step, completion, &self.hosts[number].memory)?;
        if let Some(found) = found {
            self.counters[number].0.complete(found)?;
        }
        if completion.status == Status::Success {
            self.summary.completed += 1;
        } else if !had_failed {
            let state = &mut self.connections[connection];
            let is_explained = match completion.status {
                Status::Flushed => state.is_dead || state.is_doomed,
                Status::RetryExceeded => {
                    state.is_exhausted |= !state.is_flawed;
                    self.scenario.is_harsh || state.is_flawed
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
            let data = host.slots.take(&host.memory, completion.id, length);
            return lane.receive_completed(completion, &data, &host.memory);
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

    /// Sends what the engine has to send, takes its events, plans its timers.
    fn drive(&mut self, number: usize) -> Result<(), String> {
        let now = self.agenda.now();
        loop {
            let host = &mut self.hosts[number];
            host.burst.clear();
            host.shard.poll_transmit(now, &host.memory, &mut host.burst);
            if host.burst.is_empty() {
                break;
            }
            if host.burst.packets().len() > self.scenario.burst {
                return Err("a burst beyond its bound".into());
            }
            self.transmit(number);
        }
        while let Some(event) = self.hosts[number].shard.poll_event() {
            self.trace.note(now, || format!("host {number}: {event:?}"));
            if let AsyncEvent::StateChanged { qp, state } = event {
                let ended = (0..self.scenario.connections)
                    .find(|&connection| self.hosts[number].index(connection) == qp);
                match ended {
                    Some(connection) if state == State::Error => self.doom(connection),
                    _ => return Err(format!("an event about nobody: {event:?}")),
                }
            }
        }
        let host = &mut self.hosts[number];
        if let Some(at) = host.shard.next_deadline()
            && host.wakes_at.is_none_or(|planned| at < planned)
        {
            host.wakes_at = Some(at);
            self.agenda.at(at, Event::Wakes { host: number });
        }
        Ok(())
    }

    /// Seals the packets of the burst and gives them to the network.
    fn transmit(&mut self, number: usize) {
        let now = self.agenda.now();
        let host = &self.hosts[number];
        let mut failed = Vec::new();
        for packet in host.burst.packets() {
            let Some(bytes) = host.seal(packet) else {
                failed.push(packet.origin);
                continue;
            };
            self.summary.packets += 1;
            if let Ok(packet) = Packet::parse(&bytes) {
                self.trace.packet(now, number, ">", &packet, String::new);
            }
            self.links[number].send(now, bytes, |arrival| {
                let at = arrival.at;
                let host = 1 - number;
                self.agenda.at(at, Event::Arrives { host, arrival });
            });
        }
        let Host { shard, memory, .. } = &mut self.hosts[number];
        for origin in failed {
            shard.transmit_failed(now, origin, memory);
        }
    }

    /// Something failed: the programs end the connection a little later.
    fn doom(&mut self, connection: usize) {
        let state = &mut self.connections[connection];
        if !state.is_doomed {
            state.is_doomed = true;
            let delay = self.rng.duration(Duration::from_millis(20));
            self.agenda.after(delay, Event::Kills { connection });
        }
    }

    fn is_finished(&self) -> bool {
        self.lanes.iter().all(|lane| {
            let is_dead = self.connections[lane.connection].is_dead;
            lane.is_complete() && (is_dead || lane.received == lane.plan.messages.len())
        }) && self
            .hosts
            .iter()
            .all(|host| host.send_cq.is_empty() && host.receive_cq.is_empty())
    }

    fn describe(&self) -> String {
        let lines: Vec<_> = self.lanes.iter().map(Lane::describe).collect();
        lines.join("\n")
    }

    fn finish(mut self) -> Result<Summary, String> {
        for lane in &mut self.lanes {
            let (from, connection) = (lane.from, lane.connection);
            let (here, there) = (&self.hosts[from].memory, &self.hosts[1 - from].memory);
            lane.finish(here, there).map_err(|text| {
                format!("at the end, connection {connection} from host {from}: {text}")
            })?;
        }
        for (number, (counter, place)) in self.counters.iter().enumerate() {
            let value = self.hosts[1 - number].memory.read_u64(place.key, 0);
            counter.finish(value)?;
        }
        for host in &self.hosts {
            host.slots.finish(&host.memory)?;
            let counters = host.shard.counters();
            self.summary.retries += counters.completer_retries;
            self.summary.not_ready += counters.sent_rnr_naks;
        }
        for state in &self.connections {
            self.summary.flawed += u64::from(state.is_doomed && state.is_flawed);
            self.summary.exhausted += u64::from(state.is_exhausted);
        }
        self.summary.events = self.agenda.count();
        Ok(self.summary)
    }
}
