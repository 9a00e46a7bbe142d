//! Whose turn it is: which sockets are looked at, and what comes after anything that happened.
//!
//! A program that polls looks at its few sockets directly; where there are many, or one is full,
//! the epoll says which are worth it. No stream has more than its share of a section, however much
//! its peer sends or asks for.

use std::time::Duration;

use engine::{Instant, QpIndex};
use io::poll::{Events, Interest, Trigger};

use crate::iwarp::pair::Gone;
use crate::iwarp::parting::Parting;
use crate::iwarp::streams::{Entry, Streams};
use crate::memory::MemoryTable;
use crate::shard::Server;

/// So many sockets are looked at without asking which of them have anything.
const DIRECT_MAX: usize = 4;
/// Sockets that one look at the epoll tells of.
const EVENTS: usize = 64;
/// Reads of one stream in a section, as long as each fills the buffer.
const READS_PER_SECTION: usize = 4;
/// When those that were not done are served again at the latest.
const AGAIN: Duration = Duration::from_micros(50);
/// Tokens of the epoll from here on are of connections without a queue pair.
const PARTING: u64 = 1 << 32;

impl Streams {
    /// When to serve again, whatever arrives.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let again = (!self.ready.is_empty() || !self.more.is_empty()).then(|| now.plus(AGAIN));
        let parting = self.parting.values().map(Parting::deadline).min();
        let earliest = self.deadlines.first().map(|(at, _)| *at);
        [again, parting, earliest].into_iter().flatten().min()
    }

    /// Sends what was posted, as far as there is room.
    pub fn transmit(&mut self, now: Instant, memory: &MemoryTable) {
        self.has_just_sent |= !self.ready.is_empty();
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            if let Some(entry) = self.entries.get_mut(&index) {
                entry.is_ready = false;
                self.after(index, now, memory);
            }
        }
    }

    /// Looks at the sockets, and sends what there is to be sent. Returns how many had something.
    pub fn serve(&mut self, now: Instant, memory: &MemoryTable, server: Server<'_>) -> usize {
        if self.lines.is_empty() && self.parting.is_empty() {
            return 0;
        }
        self.expire(now, memory);
        let is_simple = self.lines.len() <= DIRECT_MAX && self.full == 0;
        self.more.clear();
        let mut found = if is_simple && self.parting.is_empty() {
            self.look_at_each(now, memory)
        } else {
            self.look_at_some(now, memory)
        };
        for _ in 1..READS_PER_SECTION {
            if self.more.is_empty() || server.has_enough() {
                break;
            }
            for index in std::mem::take(&mut self.more) {
                found += self.visit(index, now, memory);
            }
        }
        self.has_just_sent &= found > 0 || !self.ready.is_empty();
        found
    }

    fn look_at_each(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut found = 0;
        let mut at = 0;
        while let Some(index) = self.lines.get(at).copied() {
            found += self.visit(index, now, memory);
            // it may be gone by now, and another one in its place
            at += usize::from(self.lines.get(at) == Some(&index));
        }
        found
    }

    fn look_at_some(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut events = Events::with_capacity(EVENTS);
        let looked = match &self.polled {
            Some(polled) => polled.poller.wait(&mut events, Some(0)),
            None => Ok(0),
        };
        if let Err(errno) = looked {
            tracing::warn!(%errno, "the streams cannot be looked at");
        }
        let mut found = 0;
        for ready in events.iter() {
            if ready.token >= PARTING {
                self.visit_parting(ready.token, now);
                continue;
            }
            let index = QpIndex(ready.token as u16); // as it was registered
            if ready.readable || ready.closed {
                found += self.visit(index, now, memory);
            } else {
                found += 1;
                self.after(index, now, memory);
            }
        }
        found
    }

    /// Reads from a stream once. Returns 1 if there was something.
    fn visit(&mut self, index: QpIndex, now: Instant, memory: &MemoryTable) -> usize {
        let Some(has_more) = self.read(index, now, memory) else {
            return 0;
        };
        self.after(index, now, memory);
        if has_more {
            self.more.push(index);
        }
        1
    }

    /// The same without what comes after; whether there may be more, if there was anything.
    fn read(&mut self, index: QpIndex, now: Instant, memory: &MemoryTable) -> Option<bool> {
        if let Some(other) = self.buffer.is_in_the_way(index)
            && let Some(other) = self.entries.get_mut(&other)
        {
            self.buffer.save(&mut other.pair.unread);
        }
        let pair = &mut self.entries.get_mut(&index)?.pair;
        self.buffer.load(index, &mut pair.unread);
        pair.receive(now, memory, &mut self.buffer)
    }

    /// What comes after anything that happened to a queue pair: sends, tells, ends.
    pub(super) fn after(&mut self, index: QpIndex, now: Instant, memory: &MemoryTable) {
        self.visits = self.visits.wrapping_add(1);
        let Some(entry) = self.entries.get_mut(&index) else {
            return;
        };
        let is_unfinished = entry.pair.send(now, memory, &mut self.work);
        if is_unfinished && !entry.is_ready {
            entry.is_ready = true;
            self.ready.push_back(index);
        }
        if entry.pair.is_broken() {
            // what the peer said before it went is still there to be read
            for _ in 0..READS_PER_SECTION {
                if self.read(index, now, memory) != Some(true) {
                    break;
                }
            }
            if let Some(pair) = self.pair(index) {
                pair.deliver();
            }
        }
        let gone = self.pair(index).and_then(|pair| pair.conclude(now));
        self.settle(index);
        if let Some(Gone::Parts(parting)) = gone {
            self.see_off(now, parting);
        }
    }

    /// Keeps what is known of a queue pair's socket and deadline up to date.
    pub(super) fn settle(&mut self, index: QpIndex) {
        let Some(entry) = self.entries.get_mut(&index) else {
            return;
        };
        let wanted = entry.wanted();
        let was_full = entry.watched.is_some_and(|interest| interest.writable);
        let is_full = wanted.is_some_and(|interest| interest.writable);
        match (was_full, is_full) {
            (false, true) => self.full += 1,
            (true, false) => self.full -= 1,
            _ => {}
        }
        match (entry.watched, wanted) {
            (None, Some(interest)) => {
                self.lines.push(index);
                if let (Some(polled), Some(stream)) = (&self.polled, entry.pair.stream()) {
                    let token = index.0.into();
                    // without a place in the epoll it is served by who polls, and by deadlines
                    let added = polled.poller.add(stream, token, interest, Trigger::Level);
                    warn_if_unwatched(added);
                }
            }
            (Some(_), None) => {
                // a socket that is closed, or has gone its own way, is no longer in it
                self.lines.retain(|line| *line != index);
                self.buffer.forget(index);
            }
            (Some(before), Some(interest)) if before != interest => {
                if let (Some(polled), Some(stream)) = (&self.polled, entry.pair.stream()) {
                    let token = index.0.into();
                    let changed = polled
                        .poller
                        .change(stream, token, interest, Trigger::Level);
                    warn_if_unwatched(changed);
                }
            }
            _ => {}
        }
        entry.watched = wanted;
        let deadline = entry.pair.next_deadline();
        if entry.armed != deadline {
            if let Some(at) = entry.armed {
                self.deadlines.remove(&(at, index));
            }
            self.deadlines.extend(deadline.map(|at| (at, index)));
            entry.armed = deadline;
        }
    }

    /// Does what is due.
    fn expire(&mut self, now: Instant, memory: &MemoryTable) {
        while let Some((at, index)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(entry) = self.entries.get_mut(&index) {
                entry.armed = None;
                entry.pair.handle_timeout(now);
                self.after(index, now, memory);
            }
        }
        if !self.parting.is_empty() {
            self.parting.retain(|_, parting| now < parting.deadline());
        }
    }

    /// A connection goes on without its queue pair, if it is not over at once.
    pub(super) fn see_off(&mut self, now: Instant, mut parting: Parting) {
        let Some(polled) = &self.polled else {
            return;
        };
        // it may still be in the epoll, under its old name
        let _ = polled.poller.remove(parting.fd());
        if parting.visit(now) {
            return;
        }
        self.partings += 1;
        let token = PARTING + self.partings;
        let interest = parting.interest();
        let added = polled
            .poller
            .add(parting.fd(), token, interest, Trigger::Level);
        warn_if_unwatched(added);
        self.parting.insert(token, parting);
    }

    fn visit_parting(&mut self, token: u64, now: Instant) {
        let (Some(polled), Some(parting)) = (&self.polled, self.parting.get_mut(&token)) else {
            return;
        };
        let before = parting.interest();
        if parting.visit(now) {
            self.parting.remove(&token);
        } else if parting.interest() != before {
            let (fd, interest) = (parting.fd(), parting.interest());
            let changed = polled.poller.change(fd, token, interest, Trigger::Level);
            warn_if_unwatched(changed);
        }
    }
}

impl Entry {
    /// What the socket is to be watched for, if there is one.
    fn wanted(&self) -> Option<Interest> {
        self.pair.stream().map(|_| Interest {
            readable: true,
            writable: self.pair.is_full(),
        })
    }
}

fn warn_if_unwatched(outcome: Result<(), io::Errno>) {
    if let Err(errno) = outcome {
        tracing::warn!(%errno, "a stream is not watched");
    }
}
