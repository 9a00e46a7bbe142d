//! What happens to connections, for who manages them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::iwarp::{Depths, Ending, StartError};
use io::Errno;

use crate::iwarp::Incoming;
use crate::lane::Attendant;

/// Something that happened.
#[derive(Debug)]
pub struct Report {
    /// The number that was given with the connection, or with the listener.
    pub token: u64,
    /// What.
    pub kind: ReportKind,
}

/// What happened.
#[derive(Debug)]
pub enum ReportKind {
    /// A peer asks a listener for a connection.
    Requested(Incoming),
    /// Both ends may send.
    Established {
        /// What both ends agreed on.
        depths: Depths,
        /// What the reply said, from our view.
        replied: Depths,
        /// Of the reply, for who asked.
        private_data: Vec<u8>,
    },
    /// TCP cannot reach the peer, and says why.
    Unreached(Errno),
    /// The peer says no.
    Rejected {
        /// Why, as its program says.
        private_data: Vec<u8>,
    },
    /// There is no connection.
    Failed(StartError),
    /// The connection is over.
    Disconnected(Ending),
}

/// Reports that wait to be taken, oldest first. A leaf of the lock order.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: Mutex<VecDeque<Report>>,
    arrived: Condvar,
    /// Who takes them, if that is a background thread.
    reader: Option<Arc<Attendant>>,
}

impl Reports {
    /// For a thread that is woken.
    pub(crate) fn for_thread(reader: &Arc<Attendant>) -> Self {
        Self {
            reader: Some(Arc::clone(reader)),
            ..Self::default()
        }
    }

    pub(crate) fn push(&self, token: u64, kind: ReportKind) {
        self.lock().push_back(Report { token, kind });
        self.arrived.notify_one();
        if let Some(reader) = &self.reader {
            reader.wake.wake();
        }
    }

    /// The oldest one.
    pub fn take(&self) -> Option<Report> {
        self.lock().pop_front()
    }

    /// The oldest one, waiting for it so long at most.
    pub fn wait(&self, timeout: Duration) -> Option<Report> {
        let deadline = Instant::now() + timeout;
        let mut waiting = self.lock();
        loop {
            if let Some(report) = waiting.pop_front() {
                return Some(report);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return None;
            }
            let waited = self.arrived.wait_timeout(waiting, rest);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Report>> {
        // nothing between two consistent states can panic
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
