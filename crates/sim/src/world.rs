//! Two hosts, a network that damages packets until it heals, and programs that do everything that
//! reliable connections can do.
//!
//! First the network has faults and nothing may go wrong. Then it heals and everything must finish.
//! Packets are real: each has its ICRC, and what the network corrupts the ICRC finds.

mod host;
mod lane;
mod program;

use core::time::Duration;

use engine::Instant;
use engine::access::Access;
use wire::{Packet, Psn};

use crate::checker::atomics::SharedCounter;
use crate::checker::liveness::Deadline;
use crate::clock::Agenda;
use crate::ground::Ground;
use crate::machine::{Happening, Machine};
use crate::network::{Arrival, Link};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::scenario::{Calamity, Scenario};
use crate::world::host::Host;
use crate::world::lane::{Lane, Place};

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

/// Runs one scenario to its end. An error says what rule was broken.
pub fn run<M: Machine>(rng: Rng, scenario: Scenario, trace: Trace) -> Result<Summary, String> {
    World::<M>::new(rng, scenario, trace)?.run()
}

enum Event {
    Arrives { host: usize, arrival: Arrival },
    Serves { host: usize },
    Wakes { host: usize },
    Works { host: usize },
    Heals,
    Kills { connection: usize },
    Revives { connection: usize },
    Resumes { host: usize, connection: usize },
    Suffers { lane: usize, calamity: Calamity },
}

/// Where a send queue that is drained stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Drain {
    /// It is not drained.
    #[default]
    Flowing,
    /// What was started is not complete.
    Draining,
    /// Nothing may leave.
    Drained,
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
    /// It will be made anew.
    revives: bool,
}

struct World<M> {
    rng: Rng,
    scenario: Scenario,
    agenda: Agenda<Event>,
    hosts: [Host<M>; 2],
    /// From host 0 and from host 1.
    links: [Link; 2],
    /// From host 0 and from host 1 for each connection.
    lanes: Vec<Lane>,
    /// Lanes of connections that were made anew.
    past: Vec<Lane>,
    connections: Vec<Connection>,
    /// By host and connection.
    drains: [Vec<Drain>; 2],
    revivals_left: u64,
    /// First PSNs of the connection that is made next.
    psns: [Psn; 2],
    /// For additions by host 0 and by host 1, with the place of the word at the other.
    counters: [(SharedCounter, Place); 2],
    summary: Summary,
    trace: Trace,
}

impl<M: Machine> World<M> {
    fn new(mut rng: Rng, scenario: Scenario, trace: Trace) -> Result<Self, String> {
        trace.note(Instant::default(), || format!("{scenario:?}"));
        let hosts = [0, 1].map(|number| Host::<M>::new(&mut rng, &scenario, number));
        let counters = [0, 1].map(|number: usize| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
            let ground = hosts[1 - number].machine.ground();
            let place = Place::register(&mut rng, ground, vec![0; 8], access);
            (SharedCounter::default(), place)
        });
        let links = [0, 1].map(|_| {
            let link = Link::new(scenario.delay, scenario.jitter, rng.fork());
            match &scenario.faults {
                Some(plan) => link.with_faults(plan, scenario.lag),
                None => link,
            }
        });
        let mut agenda = Agenda::new();
        agenda.at(scenario.heals_at, Event::Heals);
        for host in 0..2 {
            agenda.after(rng.duration(scenario.pace), Event::Works { host });
        }
        if let Some((at, lane, calamity)) = scenario.calamity {
            agenda.at(at, Event::Suffers { lane, calamity });
        }
        let mut world = Self {
            connections: vec![Connection::default(); scenario.connections],
            drains: [0, 1].map(|_| vec![Drain::default(); scenario.connections]),
            revivals_left: scenario.revivals,
            psns: scenario.first_psns,
            rng,
            scenario,
            agenda,
            hosts,
            links,
            lanes: Vec::new(),
            past: Vec::new(),
            counters,
            summary: Summary::default(),
            trace,
        };
        for connection in 0..world.scenario.connections {
            world.plan(connection);
            world.connect(connection)?;
        }
        Ok(world)
    }

    /// Makes the plans of a connection, and puts those of the one before aside.
    fn plan(&mut self, connection: usize) {
        for from in 0..2 {
            let [here, there] =
                [from, 1 - from].map(|host| self.hosts[host].machine.ground().clone());
            let shared = self.counters[from].1;
            let ends = (from, connection);
            let mut lane = Lane::new(&mut self.rng, &self.scenario, ends, &here, &there, shared);
            let receives = lane.plan.messages.len() + usize::from(lane.plan.flawed.is_some());
            self.hosts[1 - from].receives_of(connection).left += receives;
            let state = &mut self.connections[connection];
            state.is_flawed |= lane.plan.flawed.is_some();
            if self.hosts[1 - from].receives_are_unmapped {
                lane.suffer(Calamity::ReceivesUnmapped, &here, &there);
                state.is_flawed = true;
            }
            match self.lanes.get_mut(2 * connection + from) {
                Some(old) => self.past.push(core::mem::replace(old, lane)),
                None => self.lanes.push(lane),
            }
        }
    }

    fn connect(&mut self, connection: usize) -> Result<(), String> {
        let [a, b] = self.psns;
        let now = self.agenda.now();
        let [here, there] = [0, 1].map(|number: usize| self.hosts[number].machine.qpn(connection));
        let scenario = &self.scenario;
        self.hosts[0].connect(now, scenario, connection, there, [a, b])?;
        self.hosts[1].connect(now, scenario, connection, here, [b, a])?;
        // far enough that no late packet looks like one of the new connection
        self.psns = self
            .psns
            .map(|psn| psn.plus((1 << 21) + self.rng.below(1 << 20) as u32));
        Ok(())
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
                lane.watch(self.hosts[lane.to()].machine.ground())?;
            }
            if self.agenda.count().is_multiple_of(INVARIANTS_EVERY) {
                for host in &self.hosts {
                    host.machine.assert_invariants();
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
            Event::Serves { host } => {
                self.hosts[host].is_serving = false;
                self.drive(host)
            }
            Event::Wakes { host } => {
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
            Event::Kills { connection } => self.kill(connection),
            Event::Revives { connection } => self.revive(connection),
            Event::Resumes { host, connection } => self.resume(host, connection),
            Event::Suffers { lane, calamity } => {
                self.suffer(lane, calamity);
                Ok(())
            }
        }
    }

    fn arrives(&mut self, number: usize, arrival: Arrival) {
        let host = &mut self.hosts[number];
        if !host.machine.arrives(arrival.bytes) {
            self.trace
                .note(arrival.at, || format!("host {number}: receive buffer full"));
        } else if !host.is_serving {
            host.is_serving = true;
            let delay = self.rng.duration(self.scenario.service);
            self.agenda.after(delay, Event::Serves { host: number });
        }
    }

    /// The host takes its turn: what arrived, what is due, what must leave; then its events, and
    /// when it wants the next turn.
    fn drive(&mut self, number: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let lanes = &mut self.lanes;
        let mut look = |ground: &M::Ground| {
            let mut concerned = lanes.iter_mut().filter(|lane| lane.to() == number);
            concerned.try_for_each(|lane| lane.watch(ground))
        };
        let mut sent = Vec::new();
        self.hosts[number].machine.turn(now, &mut look, &mut sent)?;
        for bytes in sent {
            self.transmit(number, bytes)?;
        }
        self.listen(number)?;
        let host = &mut self.hosts[number];
        if let Some(at) = host.machine.wakes_at(now)
            && host.wakes_at.is_none_or(|planned| at < planned)
        {
            host.wakes_at = Some(at);
            self.agenda.at(at, Event::Wakes { host: number });
        }
        Ok(())
    }

    /// Takes what the queue pairs of a host tell.
    fn listen(&mut self, number: usize) -> Result<(), String> {
        let now = self.agenda.now();
        for happening in self.hosts[number].machine.happened() {
            self.trace
                .note(now, || format!("host {number}: {happening:?}"));
            match happening {
                Happening::Failed { connection } => self.doom(connection),
                Happening::Drained { connection } => self.drained(number, connection)?,
            }
        }
        Ok(())
    }

    /// Gives a packet to the network.
    fn transmit(&mut self, number: usize, bytes: Vec<u8>) -> Result<(), String> {
        let now = self.agenda.now();
        let packet = Packet::parse(&bytes).map_err(|error| format!("{error}: {bytes:02x?}"))?;
        let destination = packet.bth().destination;
        let connection =
            self.hosts[1 - number].connection_of(destination, self.scenario.connections);
        if !packet.opcode().is_response()
            && connection
                .is_some_and(|connection| self.drains[number][connection] == Drain::Drained)
        {
            return Err(format!("a request leaves a drained queue: {packet}"));
        }
        self.summary.packets += 1;
        self.trace.packet(now, number, ">", &packet, String::new);
        self.links[number].send(now, bytes, |arrival| {
            let at = arrival.at;
            let host = 1 - number;
            self.agenda.at(at, Event::Arrives { host, arrival });
        });
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.lanes.iter().all(|lane| {
            let state = self.connections[lane.connection];
            let has_ended = match (state.is_doomed, state.is_dead) {
                (false, false) => lane.received == lane.plan.messages.len(),
                (_, is_dead) => is_dead && !state.revives,
            };
            lane.is_complete() && has_ended
        }) && self.hosts.iter().all(|host| host.machine.is_polled())
    }

    fn describe(&self) -> String {
        let lines: Vec<_> = self.lanes.iter().map(Lane::describe).collect();
        lines.join("\n")
    }

    fn finish(mut self) -> Result<Summary, String> {
        for lane in self.past.iter_mut().chain(&mut self.lanes) {
            let (from, connection) = (lane.from, lane.connection);
            let [here, there] = [from, 1 - from].map(|host| self.hosts[host].machine.ground());
            lane.finish(here, there).map_err(|text| {
                format!("at the end, connection {connection} from host {from}: {text}")
            })?;
        }
        for (number, (counter, place)) in self.counters.iter().enumerate() {
            let ground = self.hosts[1 - number].machine.ground();
            let mut value = [0; 8];
            value.copy_from_slice(&ground.read(place.key, 0, 8));
            let value = u64::from_ne_bytes(value);
            counter.finish(value)?;
        }
        for host in &self.hosts {
            host.slots.finish(host.machine.ground())?;
            let tally = host.machine.tally();
            self.summary.retries += tally.retries;
            self.summary.not_ready += tally.not_ready;
        }
        self.check_needless_retries()?;
        for state in &self.connections {
            self.summary.flawed += u64::from(state.is_doomed && state.is_flawed);
            self.summary.exhausted += u64::from(state.is_exhausted);
        }
        self.summary.events = self.agenda.count();
        Ok(self.summary)
    }

    /// Where nothing is lost nothing is sent twice.
    fn check_needless_retries(&self) -> Result<(), String> {
        const PATIENT: Duration = Duration::from_millis(4);
        let Summary {
            retries, not_ready, ..
        } = self.summary;
        let is_calm = self.scenario.faults.is_none()
            && self.scenario.timeout_min >= PATIENT
            && self.scenario.calamity.is_none()
            && self
                .hosts
                .iter()
                .all(|host| host.machine.tally().overflowed == 0)
            && self.past.is_empty()
            && self.connections.iter().all(|state| !state.is_doomed);
        if is_calm && not_ready == 0 && retries > 0 {
            return Err(format!("{retries} retries without a loss"));
        }
        Ok(())
    }
}
