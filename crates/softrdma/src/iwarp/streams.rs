//! The streams of a shard: its queue pairs of iWARP, and what programs and peers do with them.
//! Everything here happens within the shard's lock section. Whose turn it is: `turns.rs`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Once};

use engine::iwarp::{AwaitingReply, Depths, Options, QueuePair, StartError};
use engine::qp::{PostError, SendRequest, State};
use engine::{Access, Counters, Instant, Posted, QpIndex, QpView};
use io::Errno;
use io::fork::ClosedInChild;
use io::poll::{Interest, Poller};
use io::tcp::{Receiving, Stream};

use crate::error::{Error, Result};
use crate::front::{Front, SendQueues};
use crate::iwarp::listening::Incoming;
use crate::iwarp::outgoing::Workspace;
use crate::iwarp::pair::{Line, Pair, Teller};
use crate::iwarp::parting::Parting;
use crate::iwarp::read_buffer::ReadBuffer;
use crate::iwarp::settings::{Settings, errno};
use crate::memory::MemoryTable;
use crate::process::report;
use crate::shard::DeviceHost;

/// See the module.
pub(crate) struct Streams {
    pub(super) entries: HashMap<QpIndex, Box<Entry>>,
    /// Those with a connection.
    pub(super) lines: Vec<QpIndex>,
    /// From the first connection on.
    pub(super) polled: Option<Polled>,
    /// Connections that their queue pairs have left, by token.
    pub(super) parting: HashMap<u64, Parting>,
    pub(super) partings: u64,
    pub(super) buffer: ReadBuffer,
    pub(super) work: Workspace,
    /// Those that may have something to send.
    pub(super) ready: VecDeque<QpIndex>,
    /// Those that may have more to read.
    pub(super) more: Vec<QpIndex>,
    /// Sockets without room for what waits.
    pub(super) full: usize,
    /// Something has left since the last look that found nothing.
    pub(super) has_just_sent: bool,
    pub(super) deadlines: BTreeSet<(Instant, QpIndex)>,
    /// Changes when something was sent or received.
    pub(super) visits: u64,
}

/// A queue pair and what is kept for it.
pub(super) struct Entry {
    pub pair: Pair,
    /// What its socket is watched for, if it has one.
    pub watched: Option<Interest>,
    /// Its place in `deadlines`.
    pub armed: Option<Instant>,
    /// Whether it is in `ready`.
    pub is_ready: bool,
}

/// The epoll of all sockets. It is level-triggered and nobody sleeps in it: the background thread
/// listens to it as a whole, when it is its turn to serve.
pub(super) struct Polled {
    /// Dropped before the epoll is.
    _inherited: ClosedInChild,
    pub poller: Poller,
}

/// Who asks for a connection.
pub struct Asking {
    /// The stream, which may still be about to reach the peer.
    pub stream: Stream,
    /// Of the link.
    pub settings: Settings,
    /// READs and atomics.
    pub depths: Depths,
    /// For the peer's program.
    pub private_data: Vec<u8>,
    /// Who is told what comes of it.
    pub to: Teller,
}

/// Who accepts a connection.
pub struct Accepting {
    /// Who asked.
    pub incoming: Incoming,
    /// READs and atomics.
    pub depths: Depths,
    /// For the peer's program.
    pub private_data: Vec<u8>,
    /// Who is told what comes of it.
    pub to: Teller,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            lines: Vec::new(),
            polled: None,
            parting: HashMap::new(),
            partings: 0,
            buffer: ReadBuffer::default(),
            work: Workspace::new(),
            ready: VecDeque::new(),
            more: Vec::new(),
            full: 0,
            has_just_sent: false,
            deadlines: BTreeSet::new(),
            visits: 0,
        }
    }
}

impl Streams {
    /// Adds a queue pair, in RESET and without a connection.
    pub fn add(&mut self, options: Options<DeviceHost>, front: &Arc<Front>) {
        let mut qp = QueuePair::new(options);
        // the regions say what is allowed, unless the program restricts it here
        qp.attributes_mut().access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let entry = Entry {
            pair: Pair::new(qp, front),
            watched: None,
            armed: None,
            is_ready: false,
        };
        self.entries.insert(front.index(), Box::new(entry));
    }

    /// Takes a queue pair away, and gives what it counted. What was posted is sent as far as it may
    /// leave now, and vanishes without completions; the peer sees an orderly end.
    pub fn destroy(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &MemoryTable,
    ) -> Option<Counters> {
        self.pair(index)?.take_leave();
        self.after(index, now, memory);
        let parting = self.pair(index)?.part(now);
        self.settle(index);
        if let Some(parting) = parting {
            self.see_off(now, parting);
        }
        let entry = self.entries.remove(&index)?;
        Some(*entry.pair.qp.counters())
    }

    /// Everything about a queue pair.
    pub fn query(&self, index: QpIndex) -> Option<QpView> {
        self.entries.get(&index).map(|entry| entry.pair.qp.view())
    }

    /// What a queue pair has counted.
    pub fn counters_of(&self, index: QpIndex) -> Option<Counters> {
        let entry = self.entries.get(&index)?;
        Some(*entry.pair.qp.counters())
    }

    /// Flushes the receives that were posted in the error state.
    pub fn flush_receives(&mut self, index: QpIndex) {
        if let Some(pair) = self.pair(index) {
            pair.qp.flush_receives();
        }
    }

    /// The program says which state it wants, or what the peer may do. False if the state cannot be
    /// had so; then nothing was changed.
    pub fn modify(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &MemoryTable,
        (state, access): (Option<State>, Option<Access>),
    ) -> bool {
        let Some(pair) = self.pair(index) else {
            return false;
        };
        if state.is_some_and(|state| !pair.qp.set_state(now, state)) {
            return false;
        }
        if let Some(access) = access {
            pair.qp.attributes_mut().access = access;
        }
        self.after(index, now, memory);
        true
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair has, or had, one, or for too much private data;
    /// [`Error::System`] without a free descriptor.
    pub fn ask(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &MemoryTable,
        asking: Asking,
    ) -> Result<()> {
        let pair = self.prepare(index)?;
        let mut request = Vec::new();
        let options = asking.settings.options;
        let awaiting = AwaitingReply::start(
            now,
            options,
            asking.depths,
            &asking.private_data,
            &mut request,
        );
        // nothing else can be wrong with it
        let awaiting = awaiting.map_err(|_| TOO_LONG)?;
        let line = Line::new(asking.stream, asking.settings).asking(now, awaiting);
        pair.ask(line, &request, asking.to);
        self.after(index, now, memory);
        Ok(())
    }

    /// TCP did not reach the peer that a queue pair was to ask.
    pub fn count_unreached(&mut self, index: QpIndex) {
        if let Some(pair) = self.pair(index) {
            pair.qp.counters_mut().connect_err += 1;
            self.visits = self.visits.wrapping_add(1);
        }
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As [`Self::ask`]; and [`Error::Tcp`] for what has become of the peer meanwhile.
    pub fn accept(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &MemoryTable,
        accepting: Accepting,
    ) -> Result<()> {
        let pair = self.prepare(index)?;
        let peer = accepting.incoming.remote;
        let parts = accepting.incoming.into_parts();
        let (stream, asked, settings) = parts.ok_or(HAS_CONNECTION)?;
        match stream.receive(&mut [0]) {
            Receiving::Nothing => {}
            Receiving::Received(_) => {
                pair.qp.counters_mut().request_err += 1;
                return Err(refused(&StartError::TooEarly, peer));
            }
            Receiving::End | Receiving::Lost(_) => {
                pair.qp.counters_mut().conn_lost += 1;
                return Err(refused(&StartError::Ended, peer));
            }
        }
        let mut reply = Vec::new();
        let agreement = asked
            .accept(accepting.depths, &accepting.private_data, &mut reply)
            .map_err(|error| refused(&error, peer))?;
        let line = Line::new(stream, settings);
        if !pair.accept(now, line, agreement, &reply, accepting.to) {
            return Err(HAS_CONNECTION);
        }
        self.after(index, now, memory);
        Ok(())
    }

    /// Closes the connection of a queue pair, if it has one.
    pub fn disconnect(&mut self, index: QpIndex, now: Instant, memory: &MemoryTable) {
        if let Some(pair) = self.pair(index) {
            pair.disconnect(now);
            self.after(index, now, memory);
        }
    }

    /// Nobody manages the connection that `manager` was told of any more, if the queue pair has it.
    pub fn abandon(
        &mut self,
        index: QpIndex,
        now: Instant,
        memory: &MemoryTable,
        manager: &Teller,
    ) {
        if self.pair(index).is_some_and(|pair| pair.tells(manager)) {
            // what was posted leaves as far as there is room
            self.after(index, now, memory);
            if let Some(pair) = self.pair(index) {
                pair.abandon(now);
            }
            self.after(index, now, memory);
        }
    }

    /// Readable when a stream has something to do; `None` before the first one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.polled.as_ref().map(|polled| polled.poller.as_fd())
    }

    /// How many queue pairs there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether something waits for room in a socket, or left a moment ago: then what is posted may
    /// wait for company, as the next look at the sockets sends it.
    pub fn is_in_flight(&self) -> bool {
        self.full > 0 || self.has_just_sent
    }

    /// Whether something waits for room in a socket.
    #[cfg(test)]
    pub fn is_full(&self) -> bool {
        self.full > 0
    }

    /// Bytes of memory that streams have for what is on its way in or out.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.entries.values().map(|entry| entry.pair.kept()).sum()
    }

    /// Changes when there is something new to count.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    pub(super) fn pair(&mut self, index: QpIndex) -> Option<&mut Pair> {
        self.entries.get_mut(&index).map(|entry| &mut entry.pair)
    }

    /// The queue pair, if it may have a connection; then there is an epoll for it.
    fn prepare(&mut self, index: QpIndex) -> Result<&mut Pair> {
        if self.polled.is_none() {
            let poller = Poller::new().map_err(|errno| Error::System {
                attempt: "make an epoll for streams",
                errno,
            })?;
            self.polled = Some(Polled {
                _inherited: ClosedInChild::new(poller.as_fd()),
                poller,
            });
        }
        match self.pair(index) {
            Some(pair) if pair.may_connect() => Ok(pair),
            Some(_) => Err(HAS_CONNECTION),
            None => Err(Error::DeviceFatal),
        }
    }
}

impl SendQueues for Streams {
    fn post_send(
        &mut self,
        index: QpIndex,
        request: &SendRequest<'_>,
    ) -> std::result::Result<Posted, PostError> {
        let entry = self.entries.get_mut(&index);
        let entry = entry.ok_or(PostError::NoQueuePair)?;
        let posted = entry.pair.qp.post_send(request)?;
        if entry.pair.will_refuse(&request.operation) {
            tell_of_no_reads();
        }
        if !entry.is_ready && !entry.pair.is_full() {
            entry.is_ready = true;
            self.ready.push_back(index);
        }
        Ok(posted)
    }

    fn sends_completed(&self, index: QpIndex) -> u64 {
        let entry = self.entries.get(&index);
        entry.map_or(0, |entry| entry.pair.qp.sends_completed())
    }
}

/// Tells, once, why READs fail that a program posts: it may print no more than that they do.
fn tell_of_no_reads() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        report(
            "a READ or atomic fails, as none may be in flight on this connection: so its programs \
             have it, or the end that asked has `mpa 1`, whose requests say nothing of READs; \
             `softrdma -d link show` there lists `mpa`",
        );
    });
}

const HAS_CONNECTION: Error =
    Error::Invalid("the queue pair has had a connection, or is in the error state");

const TOO_LONG: Error =
    Error::Invalid("there is more private data than a start frame has room for");

/// Why there is no connection with `peer`, as a verb says it. That peers come and go is no fault of
/// the set-up.
pub(super) fn refused(error: &StartError, peer: SocketAddr) -> Error {
    match error {
        StartError::PrivateData(_) => TOO_LONG,
        error => Error::Tcp {
            address: peer,
            errno: Errno::from_raw_os_error(errno(error)),
        },
    }
}
