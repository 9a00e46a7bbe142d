//! iWARP alone: two hosts, one connection, a stream that comes in pieces of any size and that may
//! be damaged, cut, forged or silent from some byte on.
//!
//! Each host has a plan of work requests. Checkers look at memory and completions, as programs do:
//!
//! - what was written is what the peer's work requests wrote, in their order, up to some byte; all
//!   that was written before a Send is there when the Send is told;
//! - messages arrive whole, in order, each once; READs bring what was there; atomics are done once;
//! - completions come in order, one for each work request that has one; nothing succeeds after an
//!   error;
//! - no byte changes outside of what was granted;
//! - where nothing goes wrong everything succeeds; where something does, both ends learn of it and
//!   nothing is left.
//!
//! Damage that no CRC covers may write wrong bytes, but only where any may be written.

mod host;
mod mischief;
mod plan;

use engine::Instant;
use engine::iwarp::{Ending, Event};

use crate::replay::Trace;
use crate::rng::Rng;
use crate::world::Summary;

use host::Host;
use mischief::{Kind, Mischief, Wire};
use plan::Scenario;

/// Steps after which a run is not getting anywhere.
const STEPS_MAX: u64 = 2_000_000;

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    World::new(Rng::from_seed(seed), trace).run()
}

struct World {
    rng: Rng,
    now: Instant,
    scenario: Scenario,
    /// The first one connects.
    hosts: [Host; 2],
    /// What each host sends.
    wires: [Wire; 2],
    trace: Trace,
    steps: u64,
    summary: Summary,
}

impl World {
    fn new(mut rng: Rng, trace: Trace) -> Self {
        let scenario = Scenario::random(&mut rng);
        let now = Instant::default();
        trace.note(now, || format!("{scenario:?}"));
        let mut hosts = [0, 1].map(|number| Host::new(number, &scenario, &mut rng));
        let mut wires = [0, 1].map(|number| Wire::new(scenario.mischief_of(number)));
        hosts[0].connect(now, &scenario, &mut wires[0]);
        hosts[1].listen(now, &scenario);
        Self {
            rng,
            now,
            scenario,
            hosts,
            wires,
            trace,
            steps: 0,
            summary: Summary::default(),
        }
    }

    fn run(mut self) -> Result<Summary, String> {
        loop {
            while self.step()? {}
            if self.hosts.iter().all(Host::is_over) {
                break;
            }
            self.rest()?;
        }
        for number in 0..2 {
            self.check_end(number)
                .map_err(|problem| format!("host {number}: {problem}"))?;
        }
        self.summary.events = self.steps;
        Ok(self.summary)
    }

    /// Something that can happen; false if nothing can.
    fn step(&mut self) -> Result<bool, String> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err("it does not come to an end".to_owned());
        }
        let first = self.rng.below(4);
        for turn in 0..4 {
            let (number, carries) = match (first + turn) % 4 {
                0 => (0, true),
                1 => (1, true),
                2 => (0, false),
                _ => (1, false),
            };
            let happened = if carries {
                self.carry(number)?
            } else {
                self.act(number)?
            };
            if happened {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Nothing happens but that time passes.
    fn rest(&mut self) -> Result<(), String> {
        let deadlines = self.hosts.iter().filter_map(Host::next_deadline);
        if let Some(deadline) = deadlines.min() {
            self.now = self.now.max(deadline);
            for number in 0..2 {
                self.hosts[number].handle_timeout(self.now);
                self.settle(number)?;
            }
            return Ok(());
        }
        if self.scenario.mischief.is_none() {
            return Err("it stands still".to_owned());
        }
        // the keep-alive of TCP
        for number in 0..2 {
            self.lose(number)?;
        }
        Ok(())
    }

    /// Carries some of what a host sent to the other one.
    fn carry(&mut self, from: usize) -> Result<bool, String> {
        let to = 1 - from;
        let Some(carried) = self.wires[from].take(&mut self.rng) else {
            return Ok(false);
        };
        let now = self.now;
        self.trace.note(now, || format!("host {to} < {carried}"));
        match carried {
            mischief::Carried::Bytes(bytes) => {
                if self.hosts[to].is_closed() {
                    // nobody is there: TCP says so
                    self.lose(from)?;
                } else {
                    let wire = &mut self.wires[to];
                    self.hosts[to].receive(now, &bytes, wire, &self.scenario);
                }
            }
            mischief::Carried::End => self.hosts[to].handle_end(),
            mischief::Carried::Cut => {
                self.lose(0)?;
                self.lose(1)?;
            }
        }
        self.settle(to)?;
        Ok(true)
    }

    /// A program does something, or its queue pair sends.
    fn act(&mut self, number: usize) -> Result<bool, String> {
        let may_close = self.hosts.iter().all(|host| host.is_done(&self.scenario));
        let (now, wire) = (self.now, &mut self.wires[number]);
        let happened = self.hosts[number].act(now, wire, may_close, &self.scenario);
        self.settle(number)?;
        Ok(happened)
    }

    /// TCP has lost the connection.
    fn lose(&mut self, number: usize) -> Result<(), String> {
        self.hosts[number].handle_lost();
        self.settle(number)
    }

    /// Looks at what a host was told and does what its queue pair asks for.
    fn settle(&mut self, number: usize) -> Result<(), String> {
        let now = self.now;
        let told = |problem: String| format!("host {number}: {problem}");
        while let Some(event) = self.hosts[number].poll_event() {
            self.trace
                .note(now, || format!("host {number} is told {event:?}"));
            match event {
                Event::Finish => self.wires[number].end(),
                Event::Close => {
                    self.wires[number].end();
                    self.hosts[number].close();
                }
                Event::Abort => {
                    self.hosts[number].close();
                    self.wires[number].cut();
                    self.wires[1 - number].cut();
                }
                Event::Disconnected(ending) => self.note_ending(ending),
                Event::Established | Event::Async(_) => {}
            }
        }
        let [first, second] = &mut self.hosts;
        let (host, peer) = if number == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let completed = host.look(peer, &self.scenario).map_err(told)?;
        self.summary.completed += completed;
        self.summary.packets = self.hosts.iter().map(Host::segments).sum();
        Ok(())
    }

    fn note_ending(&mut self, ending: Ending) {
        match ending {
            Ending::Closed | Ending::PeerClosed => {}
            Ending::TimedOut | Ending::Lost => self.summary.exhausted += 1,
            _ => self.summary.flawed += 1,
        }
    }

    fn check_end(&self, number: usize) -> Result<(), String> {
        let (host, peer) = (&self.hosts[number], &self.hosts[1 - number]);
        host.check_end(peer, &self.scenario)?;
        if host.next_deadline().is_some() {
            return Err("a timer still runs".to_owned());
        }
        let is_harmless = self.scenario.mischief.is_none() && !self.scenario.is_rude;
        if is_harmless && !self.scenario.rejects {
            host.check_success()?;
        }
        Ok(())
    }
}

/// Damage that a checksum sees, or none at all.
fn is_trustworthy(mischief: Option<&Mischief>, has_crc: bool) -> bool {
    mischief.is_none_or(|mischief| match mischief.kind {
        Kind::Flip | Kind::Leave | Kind::Insert => has_crc,
        Kind::Forge => false,
        Kind::Cut | Kind::End | Kind::Silence => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds() {
        let mut completed = 0;
        let mut flawed = 0;
        for seed in 0..300 {
            let summary = run(seed, Trace::Off).unwrap_or_else(|text| panic!("{seed}: {text}"));
            completed += summary.completed;
            flawed += summary.flawed;
        }
        assert!(completed > 3000, "{completed}");
        assert!(flawed > 50, "{flawed}");
    }
}
