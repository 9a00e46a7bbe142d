//! Who has what: a process is asked over the connection that brings it news, and its answer is
//! passed on to who wants to know. The broker keeps nothing of it.
//!
//! A process that is stopped, or that will not answer, costs who asked some seconds, and nobody
//! else anything.

use std::time::{Duration, Instant};

use super::{Server, requests::malformed, slots::Owner};
use crate::{
    protocol::{Refusal, Reply},
    resource::{Process, Question, Report},
};

/// How long a process has to answer: on a machine with too much to do its thread may not run for a
/// second, and that is no reason to call it stopped.
const ANSWER_WAIT: Duration = Duration::from_secs(4);

/// A question that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inquiry {
    id: u64,
    /// Who wants to know, and the number of its call: one at a time.
    asker: (Owner, u64),
    /// Who was asked.
    asked: Owner,
    until: Instant,
}

/// All questions that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    pending: Vec<Inquiry>,
    last_id: u64,
}

impl Inquiries {
    /// Notes a question; `None` if the asker waits for another answer.
    fn add(&mut self, asker: (Owner, u64), asked: Owner, now: Instant) -> Option<u64> {
        if self.pending.iter().any(|other| other.asker.0 == asker.0) {
            return None;
        }
        self.last_id += 1;
        self.pending.push(Inquiry {
            id: self.last_id,
            asker,
            asked,
            until: now + ANSWER_WAIT,
        });
        Some(self.last_id)
    }

    /// Takes a question that `is_over`.
    fn take(&mut self, is_over: impl Fn(&Inquiry) -> bool) -> Option<Inquiry> {
        let at = self.pending.iter().position(is_over)?;
        Some(self.pending.remove(at))
    }

    /// When the next one is given up.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pending.first().map(|inquiry| inquiry.until)
    }
}

impl Server {
    /// Gives a subscriber the smallest number that is free.
    pub(super) fn subscribe(&mut self, owner: Owner) {
        let taken: std::collections::BTreeSet<u32> = self
            .clients
            .values()
            .filter_map(super::clients::Client::ordinal)
            .collect();
        let free = (0..).find(|ordinal| !taken.contains(ordinal));
        if let (Some(client), Some(ordinal)) = (self.clients.get_mut(&owner), free) {
            client.subscribe(ordinal);
        }
    }

    /// Who can be asked.
    pub(super) fn processes(&self) -> Vec<Process> {
        self.clients
            .iter()
            .filter_map(|(owner, client)| {
                Some(Process {
                    key: *owner,
                    ordinal: client.ordinal()?,
                    pid: client.pid,
                    program: client.program().to_owned(),
                })
            })
            .collect()
    }

    /// Asks a process for somebody.
    pub(super) fn inquire(&mut self, asker: (Owner, u64), process: Owner, question: Question) {
        if self
            .clients
            .get(&process)
            .is_none_or(|client| client.ordinal().is_none())
        {
            return self.answer(asker.0, asker.1, Err(Refusal::NoSuchProcess));
        }
        let Some(id) = self.inquiries.add(asker, process, Instant::now()) else {
            let refusal = malformed("one question at a time");
            return self.answer(asker.0, asker.1, Err(refusal));
        };
        let asked = self
            .clients
            .get(&process)
            .map(|client| client.ask(id, question));
        if !matches!(asked, Some(Ok(()))) {
            // it reads nothing; its end will be noticed by itself
            self.give_up(|inquiry| inquiry.id == id);
        }
    }

    /// Passes an answer on. One that comes too late is for nobody.
    pub(super) fn take_report(&mut self, owner: Owner, inquiry: u64, report: Report) {
        if !report.is_sound() {
            return self.end_client(owner, "its report is without bounds");
        }
        let is_answered = |other: &Inquiry| other.id == inquiry && other.asked == owner;
        if let Some(Inquiry { asker, .. }) = self.inquiries.take(is_answered) {
            self.answer(asker.0, asker.1, Ok(Reply::Report(report)));
        }
    }

    /// Gives up questions that were not answered in time.
    pub(super) fn settle_inquiries(&mut self, now: Instant) {
        self.give_up(|inquiry| inquiry.until <= now);
    }

    fn give_up(&mut self, is_over: impl Fn(&Inquiry) -> bool) {
        while let Some(inquiry) = self.inquiries.take(&is_over) {
            let refusal = match self.clients.get(&inquiry.asked) {
                Some(client) => Refusal::NoAnswer {
                    pid: client.pid,
                    program: client.program().to_owned(),
                },
                None => Refusal::NoSuchProcess,
            };
            self.answer(inquiry.asker.0, inquiry.asker.1, Err(refusal));
        }
    }

    /// A client that is gone neither answers nor wants to know.
    pub(super) fn end_inquiries(&mut self, owner: Owner) {
        while self
            .inquiries
            .take(|other| other.asker.0 == owner)
            .is_some()
        {}
        self.give_up(|inquiry| inquiry.asked == owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_an_answer_asks_nothing_else() {
        let now = Instant::now();
        let mut inquiries = Inquiries::default();
        assert_eq!(inquiries.add((1, 5), 9, now), Some(1));
        assert_eq!(inquiries.add((1, 6), 8, now), None);
        assert_eq!(inquiries.add((2, 5), 9, now), Some(2));
        assert_eq!(inquiries.next_deadline(), Some(now + ANSWER_WAIT));
        let taken = inquiries.take(|inquiry| inquiry.asked == 9);
        assert_eq!(taken.map(|inquiry| inquiry.asker), Some((1, 5)));
        assert_eq!(inquiries.add((1, 7), 8, now), Some(3));
        assert!(inquiries.take(|inquiry| inquiry.id == 1).is_none());
    }
}
