//! A queue pair and its stream: what arrives goes to the engine, what the engine has leaves.

use std::sync::Arc;
use std::time::Duration;

use engine::iwarp::{Agreement, AwaitingReply, Ending, Event, Progress, QueuePair, StartError};
use engine::qp::{Operation, State};
use engine::{AsyncEvent, Instant};
use io::Errno;
use io::tcp::{Receiving, Stream};

use crate::front::Front;
use crate::iwarp::outgoing::{Flushed, Outgoing, Workspace};
use crate::iwarp::parting::Parting;
use crate::iwarp::read_buffer::ReadBuffer;
use crate::iwarp::report::{ReportKind, Reports};
use crate::iwarp::settings::{CONNECT_TIMEOUT, Settings};
use crate::memory::MemoryTable;
use crate::shard::DeviceHost;

/// Bursts of one queue pair before others have their turn: about what a socket holds.
const BURSTS_PER_VISIT: usize = 8;

/// How long who accepted waits for the other end to speak first.
const PATIENCE: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Pair {
    pub qp: QueuePair<DeviceHost>,
    front: Arc<Front>,
    line: Option<Line>,
    outgoing: Outgoing,
    /// The beginning of an FPDU, unless it is in the buffer that all share.
    pub unread: Vec<u8>,
    teller: Option<Teller>,
    /// A burst is on its way, whose work requests are complete when it has left.
    is_leaving: bool,
    /// The connection was agreed to have no READs of ours in flight.
    has_no_reads: bool,
}

/// A TCP connection.
pub(super) struct Line {
    stream: Stream,
    settings: Settings,
    /// Of who asked, before the reply.
    opening: Option<Opening>,
    /// What the program is told once both ends may send.
    agreed: Option<Agreement>,
    /// Sending has failed: what is here is read, and that is the end.
    is_broken: bool,
    end: Option<End>,
}

/// How far a connection is that was asked for.
enum Opening {
    /// TCP looks for the peer, for so long at most; the request waits in the queue.
    Reaching {
        asking: AwaitingReply,
        until: Instant,
    },
    /// The request may leave.
    Asking(AwaitingReply),
}

/// How a connection goes once everything before has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finish,
    Close,
    Abort,
}

/// Whom to tell, and by which number.
#[derive(Clone, Debug)]
pub struct Teller {
    /// Where reports go.
    pub reports: Arc<Reports>,
    /// What they carry.
    pub token: u64,
}

/// What became of a connection that is no longer the queue pair's.
pub(super) enum Gone {
    /// It ends in order.
    Parts(Parting),
    /// It was reset.
    Reset,
}

impl Line {
    pub fn new(stream: Stream, settings: Settings) -> Self {
        Self {
            stream,
            settings,
            opening: None,
            agreed: None,
            is_broken: false,
            end: None,
        }
    }

    /// The same, waiting for TCP and then for a reply.
    pub fn asking(self, now: Instant, asking: AwaitingReply) -> Self {
        let until = now.plus(CONNECT_TIMEOUT);
        Self {
            opening: Some(Opening::Reaching { asking, until }),
            ..self
        }
    }

    fn is_reaching(&self) -> bool {
        matches!(self.opening, Some(Opening::Reaching { .. }))
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Opening {
    fn deadline(&self) -> Instant {
        match self {
            Self::Reaching { until, .. } => *until,
            Self::Asking(asking) => asking.deadline(),
        }
    }

    /// TCP has reached the peer.
    fn reached(self, now: Instant) -> Self {
        match self {
            Self::Reaching { asking, .. } => Self::Asking(asking.leaves(now)),
            asking @ Self::Asking(_) => asking,
        }
    }
}

impl Pair {
    pub fn new(qp: QueuePair<DeviceHost>, front: &Arc<Front>) -> Self {
        Self {
            qp,
            front: Arc::clone(front),
            line: None,
            outgoing: Outgoing::new(),
            unread: Vec::new(),
            teller: None,
            is_leaving: false,
            has_no_reads: false,
        }
    }

    /// Whether an operation fails when its turn comes, whatever its memory.
    pub fn will_refuse(&self, operation: &Operation) -> bool {
        self.has_no_reads && operation.is_answered()
    }

    pub fn stream(&self) -> Option<&Stream> {
        self.line.as_ref().map(Line::stream)
    }

    /// Whether it may have a connection.
    pub fn may_connect(&self) -> bool {
        let state = self.qp.state();
        self.line.is_none() && matches!(state, State::Reset | State::Init | State::ReadyToReceive)
    }

    /// Bytes of memory that it has for what is on its way in or out.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.outgoing.kept() + self.unread.capacity()
    }

    /// Whether the socket has no room for what waits.
    pub fn is_full(&self) -> bool {
        self.line.is_some() && !self.outgoing.is_empty()
    }

    /// Whether sending has failed.
    pub fn is_broken(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.is_broken)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let line = self.line.as_ref()?;
        match &line.opening {
            Some(opening) => Some(opening.deadline()),
            None => self.qp.next_deadline(),
        }
    }

    /// Whether it is this one who is told what comes of the connection.
    pub fn tells(&self, whom: &Teller) -> bool {
        self.teller.as_ref().is_some_and(|teller| {
            teller.token == whom.token && Arc::ptr_eq(&teller.reports, &whom.reports)
        })
    }

    /// Nobody manages the connection any more: it ends with what has left, and nobody is told. One
    /// that the program has closed ends as it would have.
    pub fn abandon(&mut self, now: Instant) {
        self.teller = None;
        let line = self.line.as_ref();
        if line.is_some_and(|line| line.opening.is_some()) {
            self.disconnect(now);
        } else if self.qp.state() != State::SendQueueDrained {
            self.qp.abort();
            self.deliver();
        }
    }

    /// Asks, with `request`, once TCP has reached the peer.
    pub fn ask(&mut self, line: Line, request: &[u8], teller: Teller) {
        self.line = Some(line);
        self.teller = Some(teller);
        self.outgoing.push(request);
    }

    /// Begins with what was agreed, and answers with `reply`. False if the queue pair has had a
    /// connection.
    pub fn accept(
        &mut self,
        now: Instant,
        line: Line,
        agreement: Agreement,
        reply: &[u8],
        teller: Teller,
    ) -> bool {
        self.line = Some(line);
        self.teller = Some(teller);
        let has_begun = self.begin(now, agreement);
        if has_begun {
            self.qp.hear_until(now.plus(PATIENCE));
            self.outgoing.push(reply);
        } else {
            (self.line, self.teller) = (None, None);
        }
        has_begun
    }

    /// FPDUs may come from now on.
    fn begin(&mut self, now: Instant, agreement: Agreement) -> bool {
        let Some(line) = &mut self.line else {
            return false;
        };
        let segment_size = line.stream.segment_size().unwrap_or(0);
        let has_markers = agreement.sends_markers;
        let ulpdu_max = line.settings.ulpdu_max(segment_size, has_markers);
        if !self.qp.start(now, &agreement, ulpdu_max) {
            return false;
        }
        self.outgoing.start(agreement.has_crc, has_markers);
        self.has_no_reads = agreement.depths.ord == 0;
        line.agreed = Some(agreement);
        true
    }

    /// The program closes the connection, or no longer wants the one that it asked for.
    pub fn disconnect(&mut self, now: Instant) {
        match &mut self.line {
            Some(line) if line.opening.is_some() => {
                line.opening = None;
                line.end = Some(End::Abort);
            }
            _ => self.qp.disconnect(now),
        }
    }

    /// Takes what is here, up to the buffer's room; whether there may be more, and nothing if there
    /// was nothing.
    pub fn receive(
        &mut self,
        now: Instant,
        memory: &MemoryTable,
        buffer: &mut ReadBuffer,
    ) -> Option<bool> {
        let line = self.line.as_mut()?;
        let most = match &line.opening {
            // what is to be seen is whether it is there, which is looked at before sending
            Some(Opening::Reaching { .. }) => return Some(false),
            Some(Opening::Asking(asking)) => asking.missing(),
            None => usize::MAX,
        };
        let room = buffer.room();
        let end = room.len().min(most);
        match line.stream.receive(&mut room[..end]) {
            Receiving::Received(count) => {
                let is_more = buffer.fill(count) || line.opening.is_some();
                let used = match line.opening.take() {
                    Some(Opening::Asking(asking)) => {
                        self.hear_reply(now, asking, buffer.filled());
                        buffer.filled().len()
                    }
                    _ => self.qp.handle_stream(now, buffer.filled(), memory),
                };
                buffer.consume(used);
                Some(is_more)
            }
            Receiving::Nothing if line.is_broken => {
                self.lose();
                Some(false)
            }
            Receiving::Nothing => None,
            Receiving::End => {
                match line.opening.take() {
                    Some(_) => self.fail(StartError::Ended),
                    None => self.qp.handle_end(),
                }
                Some(false)
            }
            Receiving::Lost(errno) => {
                tracing::debug!(%errno, qpn = %self.front.qpn(), "a stream is lost");
                self.lose();
                Some(false)
            }
        }
    }

    fn hear_reply(&mut self, now: Instant, asking: AwaitingReply, bytes: &[u8]) {
        let mut last_words = Vec::new();
        match asking.handle_bytes(bytes, &mut last_words) {
            Ok(Progress::Waiting(asking)) => {
                if let Some(line) = &mut self.line {
                    line.opening = Some(Opening::Asking(asking));
                }
            }
            Ok(Progress::Done(agreement)) => {
                if !self.begin(now, agreement) {
                    // the program has put it into the error state meanwhile
                    self.fail(StartError::Ended);
                }
            }
            Err(error) => {
                self.outgoing.push(&last_words);
                self.qp.counters_mut().sent_terminates += u64::from(!last_words.is_empty());
                self.fail(error);
            }
        }
    }

    /// There will be no connection.
    fn fail(&mut self, error: StartError) {
        tracing::debug!(?error, qpn = %self.front.qpn(), "no connection");
        // unless it is the peer's wish, or that of a program that wants no queue pair any more
        let is_wanted = matches!(error, StartError::Rejected(_)) || self.qp.state() == State::Error;
        self.qp.counters_mut().connect_err += u64::from(!is_wanted);
        self.tell_last(match error {
            StartError::Rejected(private_data) => ReportKind::Rejected { private_data },
            error => ReportKind::Failed(error),
        });
        if let Some(line) = &mut self.line {
            line.end = Some(End::Close);
        }
    }

    /// The connection is gone.
    fn lose(&mut self) {
        self.outgoing.clear();
        self.is_leaving = false;
        let opening = self.line.as_mut().and_then(|line| line.opening.take());
        match opening {
            Some(_) => self.fail(StartError::Ended),
            None => self.qp.handle_lost(),
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.reach(now) {
            self.handle_other_timeout(now);
        } else if self.next_deadline().is_some_and(|until| until <= now) {
            self.miss(Errno::TIMEDOUT);
        }
    }

    fn handle_other_timeout(&mut self, now: Instant) {
        let opening = self.line.as_mut().and_then(|line| line.opening.take());
        let Some(Opening::Asking(asking)) = opening else {
            self.qp.handle_timeout(now);
            return;
        };
        match asking.handle_timeout(now) {
            Ok(asking) => {
                if let Some(line) = &mut self.line {
                    line.opening = Some(Opening::Asking(asking));
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Whether TCP is not on its way to the peer: it has reached it, or never had to.
    fn reach(&mut self, now: Instant) -> bool {
        let Some(line) = self.line.as_mut().filter(|line| line.is_reaching()) else {
            return true;
        };
        match line.stream.is_connected() {
            Ok(true) => {
                line.opening = line.opening.take().map(|opening| opening.reached(now));
                true
            }
            Ok(false) => false,
            Err(errno) => {
                self.miss(errno);
                false
            }
        }
    }

    /// TCP does not reach the peer.
    fn miss(&mut self, errno: Errno) {
        tracing::debug!(%errno, qpn = %self.front.qpn(), "no connection of TCP");
        self.qp.counters_mut().connect_err += 1;
        self.tell_last(ReportKind::Unreached(errno));
        if let Some(line) = &mut self.line {
            line.opening = None;
            line.end = Some(End::Abort);
        }
    }

    /// Sends as far as the socket has room, and does and tells what comes of it. True if it is not
    /// done with what it could send.
    pub fn send(&mut self, now: Instant, memory: &MemoryTable, work: &mut Workspace) -> bool {
        if !self.reach(now) {
            self.deliver();
            return false;
        }
        for _ in 0..BURSTS_PER_VISIT {
            let has_left = self.flush(now, memory, work);
            self.deliver();
            if !has_left {
                return false;
            }
            work.burst.clear();
            self.qp.poll_transmit(now, memory, &mut work.burst);
            if work.burst.is_empty() {
                self.deliver();
                return false;
            }
            match self.outgoing.frame(work, memory) {
                Ok(()) => self.is_leaving = true,
                Err(source) => self.qp.transmit_failed(now, source),
            }
        }
        self.flush(now, memory, work);
        self.deliver();
        !self.is_full()
    }

    /// Sends what waits; whether nothing does any more and more may follow.
    fn flush(&mut self, now: Instant, memory: &MemoryTable, work: &mut Workspace) -> bool {
        let Some(line) = &mut self.line else {
            return true;
        };
        if line.is_broken {
            return false;
        }
        match self.outgoing.flush(&line.stream, work, memory) {
            Flushed::All => {
                if std::mem::take(&mut self.is_leaving) {
                    self.qp.burst_left(now);
                }
                true
            }
            Flushed::Full => false,
            Flushed::Fault { source, is_amid } => {
                self.is_leaving = false;
                self.qp.transmit_failed(now, source);
                if is_amid {
                    // no Terminate can stand in the middle of an FPDU
                    self.outgoing.clear();
                    self.qp.handle_lost();
                }
                true
            }
            Flushed::Lost => {
                self.is_leaving = false;
                line.is_broken = true;
                false
            }
        }
    }

    /// Does and tells what the engine says.
    pub fn deliver(&mut self) {
        // before anybody is told, who then posts at once
        let state = self.qp.state();
        if self.front.state() != state {
            self.front.set_state(state);
            // a receive may have been posted between the flush and this store
            self.qp.flush_receives();
        }
        while let Some(event) = self.qp.poll_event() {
            match event {
                Event::Established => {
                    let line = self.line.as_mut();
                    if let Some(agreed) = line.and_then(|line| line.agreed.take()) {
                        self.tell(ReportKind::Established {
                            depths: agreed.depths,
                            replied: agreed.replied,
                            private_data: agreed.private_data,
                        });
                    }
                }
                // the state was looked at above
                Event::Async(AsyncEvent::StateChanged { .. }) => {}
                Event::Async(event) => self.front.report(event),
                Event::Disconnected(ending) => self.tell_last(ReportKind::Disconnected(ending)),
                Event::Finish => self.end_with(End::Finish),
                Event::Close => self.end_with(End::Close),
                Event::Abort => self.end_with(End::Abort),
            }
        }
    }

    fn end_with(&mut self, end: End) {
        if let Some(line) = &mut self.line {
            line.end = Some(end);
        }
    }

    fn tell(&self, kind: ReportKind) {
        if let Some(teller) = &self.teller {
            teller.reports.push(teller.token, kind);
        }
    }

    /// The same, and nothing follows.
    fn tell_last(&mut self, kind: ReportKind) {
        self.tell(kind);
        self.teller = None;
    }

    /// The queue pair goes: who waits for the end of its connection, or for its beginning, is told.
    pub fn take_leave(&mut self) {
        self.tell_last(match &self.line {
            Some(line) if line.opening.is_some() => ReportKind::Failed(StartError::Ended),
            _ => ReportKind::Disconnected(Ending::Local),
        });
    }

    /// Ends the connection, or its half, if its time has come; what became of it if it is no longer
    /// the queue pair's.
    pub fn conclude(&mut self, now: Instant) -> Option<Gone> {
        let line = self.line.as_mut()?;
        match line.end? {
            End::Finish => {
                if self.outgoing.is_empty() {
                    line.stream.finish();
                    line.end = None;
                }
                None
            }
            End::Close => self.part(now).map(Gone::Parts),
            End::Abort => {
                self.outgoing.clear();
                self.unread.clear();
                self.line.take()?.stream.reset();
                Some(Gone::Reset)
            }
        }
    }

    /// The connection is to end in order, without the queue pair.
    pub fn part(&mut self, now: Instant) -> Option<Parting> {
        let line = self.line.take()?;
        self.unread.clear();
        let unsent = self.outgoing.take();
        // a connection that is not there has no end
        (!line.is_reaching()).then(|| Parting::new(now, line.stream, unsent))
    }
}
