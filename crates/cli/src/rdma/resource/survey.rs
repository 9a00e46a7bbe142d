//! Asks all processes what they have, several at once: one that is stopped takes a second to be
//! given up.

use std::sync::{Mutex, PoisonError};

use broker::{
    CallError, Client, Refusal,
    resource::{Kind, Object, Process, Question},
};

use crate::connect::{Failure, connect};

/// Processes that are asked at once.
const ASKERS_MAX: usize = 32;

/// Reports that are taken of one process about one kind: more than all that it can have.
const REPORTS_MAX: usize = 1 << 14;

/// An object and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) process: Process,
    pub(super) object: Object,
}

/// What all processes answered.
#[derive(Debug, Default)]
pub(in crate::rdma) struct Survey {
    /// In the order in which processes came, and of their own numbers.
    pub(super) found: Vec<Found>,
    silent: Vec<Process>,
}

/// What one process answered.
enum Answer {
    Has(Vec<Object>),
    Silent,
    /// It ended meanwhile, and what it had is gone.
    Ended,
}

impl Survey {
    /// Asks for objects of these kinds.
    pub(in crate::rdma) fn take(kinds: &[Kind]) -> Result<Self, Failure> {
        let Some(client) = connect()? else {
            return Ok(Self::default());
        };
        let processes = client.processes()?;
        let askers = processes.len().min(ASKERS_MAX);
        let left = Mutex::new(processes.into_iter());
        let answers = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..askers)
                .map(|_| scope.spawn(|| ask_all(&left, &answers, kinds)))
                .collect();
            asking.into_iter().try_for_each(|asker| {
                // a panic is passed on
                asker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        answers.sort_by_key(|(process, _): &(Process, Answer)| process.key);
        let mut survey = Self::default();
        for (process, answer) in answers {
            match answer {
                Answer::Has(objects) => {
                    let found = objects.into_iter().map(|object| Found {
                        process: process.clone(),
                        object,
                    });
                    survey.found.extend(found);
                }
                Answer::Silent => survey.silent.push(process),
                Answer::Ended => {}
            }
        }
        Ok(survey)
    }

    /// Who did not answer, and what that means, for standard error.
    pub(in crate::rdma) fn remark(&self, meaning: &str) -> String {
        let line = |process: &Process| {
            format!(
                "softrdma: pid {} {} did not answer: {meaning}\n",
                process.pid, process.program
            )
        };
        self.silent.iter().map(line).collect()
    }
}

/// Asks one process after the other, as long as some are left.
fn ask_all(
    left: &Mutex<std::vec::IntoIter<Process>>,
    answers: &Mutex<Vec<(Process, Answer)>>,
    kinds: &[Kind],
) -> Result<(), Failure> {
    let Some(client) = connect()? else {
        // the broker has just ended, and with it the devices
        return Ok(());
    };
    loop {
        let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(process) = next else {
            return Ok(());
        };
        let answer = ask(&client, &process, kinds)?;
        answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((process, answer));
    }
}

fn ask(client: &Client, process: &Process, kinds: &[Kind]) -> Result<Answer, Failure> {
    let mut objects = Vec::new();
    for kind in kinds {
        let mut from = 0;
        for _ in 0..REPORTS_MAX {
            let question = Question { kind: *kind, from };
            let report = match client.inquire(process.key, question) {
                Ok(report) => report,
                Err(CallError::Refused(Refusal::NoAnswer { .. })) => return Ok(Answer::Silent),
                Err(CallError::Refused(Refusal::NoSuchProcess)) => return Ok(Answer::Ended),
                Err(error) => return Err(error.into()),
            };
            objects.extend(report.objects);
            match report.next {
                // it never goes back
                Some(next) if next > from => from = next,
                _ => break,
            }
        }
    }
    Ok(Answer::Has(objects))
}
