//! A queue pair on a stream: verbs, the phases of a connection, and its end.

use std::collections::VecDeque;

use wire::iwarp::{Deframer, Terminate, TerminateCode};

use super::burst::Source;
use super::event::{Ending, Event};
use super::options::{Agreement, CLOSE_TIMEOUT, REPLY_TIMEOUT, Role, Rtr};
use super::reminder::Reminder;
use super::requester::Requester;
use super::responder::Responder;
use super::terminate::{self, Refusal, Told};
use crate::access::PdId;
use crate::completion::{CompletionOpcode, WorkCompletion};
use crate::event::AsyncEvent;
use crate::host::{CompletionSink, Host};
use crate::outcome::Counters;
use crate::path::PathIndex;
use crate::qp::flush::{self, Cause};
use crate::qp::send_queue::WqeNumber;
use crate::qp::{Attributes, Capabilities, Common, PostError, SendRequest, State, Transport};
use crate::shard::{Posted, QpView};
use crate::time::Instant;

/// What a queue pair is made of.
pub struct Options<H: Host> {
    /// Its number; means nothing on the wire.
    pub qpn: wire::Qpn,
    /// Its protection domain.
    pub pd: PdId,
    /// Its sizes.
    pub capabilities: Capabilities,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
    /// Completions of sends.
    pub send_cq: H::Completions,
    /// Completions of receives.
    pub receive_cq: H::Completions,
    /// Receives.
    pub receives: H::Receives,
    /// Whether atomics and immediate data are sent and taken. spec: RFC 7306
    pub extensions: bool,
}

/// A queue pair; see the [module](super).
pub struct QueuePair<H: Host> {
    pub(super) common: Common<H>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) allows_extensions: bool,
    pub(super) phase: Phase,
    events: VecDeque<Event>,
}

/// Where a connection is.
pub(super) enum Phase {
    /// There is none yet.
    Idle,
    /// Segments go both ways.
    Streaming(Stream),
    /// The last thing that we send waits for its turn: then the sending half is shut down. A peer
    /// that does not read is waited for until the deadline.
    Terminating {
        terminate: Box<Terminate>,
        deadline: Instant,
    },
    /// We send nothing more and wait for the end of what the peer sends, which is taken as far as
    /// there is a stream: the program closed the connection, and nothing was wrong.
    Lingering {
        stream: Option<Stream>,
        deadline: Instant,
    },
    /// It is over.
    Over,
}

/// A stream of FPDUs in both directions.
pub(super) struct Stream {
    pub deframer: Deframer,
    pub opening: Opening,
    pub reminder: Reminder,
    pub closing: Option<Closing>,
    /// The last bytes were the beginning of an FPDU.
    pub is_amid_fpdu: bool,
}

/// Whether we may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The RTR message goes first.
    Sends(Rtr),
    /// Nothing before the peer's first FPDU, which is expected by the deadline if it is an RTR
    /// message. spec: RFC 5044 7.1, RFC 6581 4
    Hears {
        deadline: Option<Instant>,
        /// Until when we wait if it is none, should we wait no longer than that.
        patience: Option<Instant>,
    },
    /// We may.
    Open,
}

impl Opening {
    /// An FPDU of the peer is here: from the first one on we may send, be it only to say what is
    /// wrong with it. Whether it is the one that was awaited. spec: RFC 5044 7.1
    pub fn hear(&mut self) -> bool {
        let Self::Hears { deadline, .. } = *self else {
            return false;
        };
        *self = Self::Open;
        deadline.is_some()
    }
}

/// The program has closed the connection: what was posted before goes out, and what is owed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    /// Work requests from here on are flushed.
    pub end: WqeNumber,
    pub deadline: Instant,
}

impl<H: Host> QueuePair<H> {
    /// A queue pair without a connection.
    pub fn new(options: Options<H>) -> Self {
        let requester = Requester::new(&options.capabilities, options.extensions);
        Self {
            common: Common {
                qpn: options.qpn,
                state: State::Reset,
                attributes: Attributes::default(),
                capabilities: options.capabilities,
                pd: options.pd,
                signal_all: options.signal_all,
                path: PathIndex(0), // of datagrams
                send_cq: options.send_cq,
                receive_cq: options.receive_cq,
                receives: options.receives,
                events: Vec::new(),
                counters: Counters::default(),
            },
            requester,
            responder: Responder::new(),
            allows_extensions: options.extensions,
            phase: Phase::Idle,
            events: VecDeque::new(),
        }
    }

    /// Its state, as verbs name it.
    pub fn state(&self) -> State {
        self.common.state
    }

    /// What was set.
    pub fn attributes(&self) -> &Attributes {
        &self.common.attributes
    }

    /// The same, to set it: of iWARP's only the access rights mean something.
    pub fn attributes_mut(&mut self) -> &mut Attributes {
        &mut self.common.attributes
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.common.counters
    }

    /// What only streams have, to count what comes before there is one.
    pub fn counters_mut(&mut self) -> &mut super::Counters {
        &mut self.common.counters.iwarp
    }

    /// What is known about it.
    pub fn view(&self) -> QpView {
        let common = &self.common;
        let mut attributes = common.attributes;
        attributes.state = common.state;
        QpView {
            qpn: common.qpn,
            transport: Transport::Rc,
            pd: common.pd,
            state: common.state,
            is_draining: common.state == State::SendQueueDrained
                && matches!(self.phase, Phase::Streaming(_)),
            attributes,
            capabilities: common.capabilities,
            counters: common.counters,
        }
    }

    /// Sends that were queued and have left the queue again.
    pub fn sends_completed(&self) -> u64 {
        self.requester.queue.head().0
    }

    /// Whether an answer of the peer is awaited.
    pub fn awaits_answer(&self) -> bool {
        !self.requester.awaited.is_empty()
    }

    /// The program says a state below RTS, or the error state. There is no table: whatever is not
    /// connected may go to any, and ERR is for good. False if the state needs a connection, or if
    /// there is one that it would leave open.
    pub fn set_state(&mut self, now: Instant, to: State) -> bool {
        match (self.common.state, to) {
            (State::Error, _) => true,
            (_, State::Error) => {
                self.abort();
                true
            }
            (
                State::Reset | State::Init | State::ReadyToReceive,
                State::Reset | State::Init | State::ReadyToReceive,
            ) => {
                self.common.state = to;
                true
            }
            (State::ReadyToSend, State::ReadyToSend) => true,
            (State::ReadyToSend, State::SendQueueDrained) => {
                self.disconnect(now);
                true
            }
            _ => false,
        }
    }

    /// The stream is there: the start frames have been exchanged. ULPDUs of ours have at most
    /// `mulpdu` bytes. False if the queue pair has had a connection already.
    pub fn start(&mut self, now: Instant, agreement: &Agreement, mulpdu: usize) -> bool {
        if !matches!(self.phase, Phase::Idle) || self.common.state == State::Error {
            return false;
        }
        let depths = agreement.depths;
        self.requester.start(depths.ord, mulpdu);
        self.responder.answers.start(depths.ird, mulpdu);
        let opening = match (agreement.role, agreement.rtr) {
            (Role::Active, Some(rtr)) => Opening::Sends(rtr),
            (Role::Active, None) => Opening::Open,
            (Role::Passive, rtr) => {
                self.responder.awaits_rtr_send = rtr == Some(Rtr::Send);
                let deadline = rtr.map(|_| now.plus(REPLY_TIMEOUT));
                Opening::Hears {
                    deadline,
                    patience: None,
                }
            }
        };
        let is_awaited = matches!(
            opening,
            Opening::Hears {
                deadline: Some(_),
                ..
            }
        );
        self.phase = Phase::Streaming(Stream {
            deframer: Deframer::new(agreement.has_crc, agreement.receives_markers),
            opening,
            reminder: Reminder::Silence,
            closing: None,
            is_amid_fpdu: false,
        });
        self.common.state = State::ReadyToSend;
        if !is_awaited {
            self.events.push_back(Event::Established);
        }
        true
    }

    /// Who accepted waits for the peer's first FPDU until `until`, and sends then without having
    /// heard anything. The RFC lets nobody do so; but programs whose accepting side speaks first
    /// work over siw, which does not wait at all. It means nothing where an RTR message was agreed
    /// on.
    pub fn hear_until(&mut self, until: Instant) {
        // spec-exception: RFC 5044 7.1 because the other end would wait for ever as well
        if let Phase::Streaming(stream) = &mut self.phase
            && let Opening::Hears {
                deadline: None,
                patience,
            } = &mut stream.opening
        {
            *patience = Some(until);
        }
    }

    /// Appends a work request.
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<Posted, PostError> {
        match self.common.state {
            State::ReadyToSend | State::SendQueueDrained => {
                self.requester.post(request).map(|()| Posted::Queued)
            }
            State::Error | State::SendQueueError => {
                self.requester.check(request)?;
                flush::flush_send(&self.common, request);
                Ok(Posted::Flushed)
            }
            State::Reset | State::Init | State::ReadyToReceive => Err(PostError::WrongState),
        }
    }

    /// Flushes receives that were posted in the error state; to be called after each such post.
    pub fn flush_receives(&mut self) {
        if self.common.state == State::Error {
            flush::flush_receives(&self.common);
        }
    }

    /// The program closes the connection: what it posted before is done first, and the peer gets
    /// what it asked for. [`Event::Disconnected`] tells when it is over.
    pub fn disconnect(&mut self, now: Instant) {
        let Phase::Streaming(stream) = &mut self.phase else {
            return;
        };
        if stream.closing.is_some() {
            return;
        }
        stream.closing = Some(Closing {
            end: self.requester.queue.end(),
            deadline: now.plus(CLOSE_TIMEOUT),
        });
        self.common.state = State::SendQueueDrained;
        self.finish_if_drained(now);
    }

    /// The program asks for the error state: the connection ends at once.
    pub fn abort(&mut self) {
        self.end(Cause::Modify, None, Ending::Local);
    }

    /// When to call [`Self::handle_timeout`].
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Streaming(stream) => {
                let closing = stream.closing.map(|closing| closing.deadline);
                let hearing = match stream.opening {
                    Opening::Hears { deadline, patience } => deadline.or(patience),
                    _ => None,
                };
                let reminding = stream.reminder.deadline();
                closing.into_iter().chain(hearing).chain(reminding).min()
            }
            Phase::Terminating { deadline, .. } | Phase::Lingering { deadline, .. } => {
                Some(*deadline)
            }
            Phase::Idle | Phase::Over => None,
        }
    }

    /// Gives up what is late.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Phase::Streaming(stream) = &mut self.phase {
            if let Opening::Hears { patience, .. } = stream.opening
                && patience.is_some_and(|until| until <= now)
            {
                stream.opening = Opening::Open;
            }
            let sent = self.common.counters.sent_packets;
            stream.reminder.look(now, sent);
        }
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            // the program has been told already, unless it closed the connection itself
            Phase::Terminating { .. } | Phase::Lingering { .. } => {
                self.close(Ending::TimedOut, Event::Close);
            }
            _ => self.end(Cause::Fault, None, Ending::TimedOut),
        }
    }

    /// The peer has shut down its sending half: nothing more will come.
    pub fn handle_end(&mut self) {
        match &self.phase {
            Phase::Streaming(stream) if stream.is_amid_fpdu => self.handle_lost(),
            Phase::Streaming(stream) => {
                let ending = match stream.closing {
                    Some(_) => Ending::Closed,
                    None => Ending::PeerClosed,
                };
                self.close(ending, Event::Close);
            }
            Phase::Lingering { .. } => self.close(Ending::Closed, Event::Close),
            Phase::Terminating { .. } => self.over(Event::Close),
            Phase::Idle | Phase::Over => {}
        }
    }

    /// The connection is gone: reset, timed out, or the socket failed.
    pub fn handle_lost(&mut self) {
        self.close(Ending::Lost, Event::Abort);
    }

    /// What was polled last has left the program's memory.
    pub fn burst_left(&mut self, now: Instant) {
        // of a connection that is over everything was flushed
        if matches!(self.phase, Phase::Streaming(_)) {
            if self.requester.burst_left(&mut self.common).is_err() {
                self.overrun(now);
            }
            self.finish_if_drained(now);
        }
    }

    /// A ULPDU of the last burst could not be gathered, and nothing from it on leaves.
    pub fn transmit_failed(&mut self, now: Instant, source: Source) {
        if !matches!(self.phase, Phase::Streaming(_)) {
            return;
        }
        let index = self.common.index();
        let cause = match source {
            Source::Request(number) => self.requester.transmit_failed(&mut self.common, number),
            Source::Answer | Source::Own => Cause::Fault,
        };
        if cause == Cause::Fault {
            self.tell(match source {
                Source::Answer => AsyncEvent::AccessError(index),
                _ => AsyncEvent::Fatal(index),
            });
        }
        self.fail(now, cause);
    }

    /// What to do next.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.common.events.first().copied() {
            self.common.events.remove(0);
            return Some(Event::Async(event));
        }
        self.events.pop_front()
    }

    /// Panics if it contradicts itself; for tests and simulation.
    pub fn assert_invariants(&self) {
        self.requester.assert_invariants();
        let state = self.common.state;
        let fits = match &self.phase {
            Phase::Idle => matches!(state, State::Reset | State::Init | State::ReadyToReceive),
            Phase::Streaming(stream) if stream.closing.is_none() => state == State::ReadyToSend,
            Phase::Streaming(_) => state == State::SendQueueDrained,
            Phase::Lingering { stream, .. } if stream.is_some() => state == State::SendQueueDrained,
            Phase::Lingering { .. } | Phase::Terminating { .. } | Phase::Over => {
                state == State::Error
            }
        };
        assert!(fits, "the state is {state}");
    }

    pub(super) fn tell(&mut self, event: AsyncEvent) {
        self.common.events.push(event);
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The peer's first FPDU was the RTR message, or one that stands for it.
    pub(super) fn established(&mut self) {
        if matches!(self.phase, Phase::Streaming(_)) {
            self.events.push_back(Event::Established);
        }
    }

    /// A segment of the peer is an error: its program learns it from a Terminate, ours from a
    /// completion or an event.
    pub(super) fn refuse(&mut self, now: Instant, refusal: Refusal, terminate: Terminate) {
        let index = self.common.index();
        let mut cause = Cause::Fault;
        match refusal.told {
            Told::Receive(status) => match self.responder.take_receive() {
                Some(receive) => {
                    let (id, kind) = (receive.id, CompletionOpcode::Receive);
                    let completion = WorkCompletion::error(id, kind, status, self.common.qpn);
                    // an overrun changes nothing any more: it is over
                    let _ = self.common.receive_cq.push(completion, true);
                }
                None => self.tell(AsyncEvent::RequestError(index)),
            },
            // the oldest work request would be blamed, which may be one that has not left
            Told::Answer(status) if self.requester.is_answer_next() => cause = Cause::Send(status),
            Told::Answer(_) => {}
            Told::Request => self.tell(AsyncEvent::RequestError(index)),
            Told::Access => self.tell(AsyncEvent::AccessError(index)),
            Told::Fatal => self.tell(AsyncEvent::Fatal(index)),
        }
        let ending = Ending::Refused(refusal.code);
        self.end(cause, Some((now, terminate)), ending);
    }

    /// The peer's Terminate is here.
    pub(super) fn terminated(&mut self, code: TerminateCode) {
        self.close(Ending::PeerTerminated(code), Event::Close);
    }

    /// We cannot go on, through no fault of the peer.
    pub(super) fn fail(&mut self, now: Instant, cause: Cause) {
        let code = TerminateCode::LOCAL_CATASTROPHIC;
        let terminate = terminate::about(code, None);
        self.end(cause, Some((now, terminate)), Ending::Local);
    }

    /// A completion was lost. spec: IBA 11.6.3.3
    fn overrun(&mut self, now: Instant) {
        self.tell(AsyncEvent::Fatal(self.common.index()));
        self.fail(now, Cause::Fault);
    }

    /// Everything that was to be sent before the end is sent, and complete.
    pub(super) fn finish_if_drained(&mut self, now: Instant) {
        let Phase::Streaming(stream) = &self.phase else {
            return;
        };
        let is_open = !matches!(stream.opening, Opening::Sends(_));
        let is_drained = stream.closing.is_some_and(|closing| {
            self.requester.is_drained_to(closing.end) && self.responder.answers.is_empty()
        });
        if !(is_open && is_drained) {
            return;
        }
        let phase = core::mem::replace(&mut self.phase, Phase::Over);
        if let Phase::Streaming(stream) = phase {
            self.phase = Phase::Lingering {
                stream: Some(stream),
                deadline: now.plus(CLOSE_TIMEOUT),
            };
            self.push(Event::Finish);
        }
    }

    /// Ends the connection with an error of either end. A Terminate, if there is one for what
    /// happened now, is sent if we may still send.
    fn end(&mut self, cause: Cause, terminate: Option<(Instant, Terminate)>, ending: Ending) {
        let may_send = match &self.phase {
            Phase::Streaming(stream) => !matches!(stream.opening, Opening::Hears { .. }),
            Phase::Idle => false,
            Phase::Lingering { stream, .. } => {
                if stream.is_none() {
                    return;
                }
                false
            }
            Phase::Terminating { .. } | Phase::Over => return,
        };
        let had_stream = !matches!(self.phase, Phase::Idle);
        self.flush(cause);
        if had_stream {
            self.disconnected(ending);
        }
        match terminate.filter(|_| may_send) {
            Some((now, terminate)) => {
                self.phase = Phase::Terminating {
                    terminate: Box::new(terminate),
                    deadline: now.plus(CLOSE_TIMEOUT),
                };
            }
            // what is complete is on its way to the peer still
            None if had_stream => self.over(Event::Close),
            None => self.phase = Phase::Over,
        }
    }

    /// The connection is over, and there is nothing to tell the peer.
    fn close(&mut self, ending: Ending, how: Event) {
        match &self.phase {
            Phase::Streaming(_)
            | Phase::Lingering {
                stream: Some(_), ..
            } => {
                self.flush(Cause::Fault);
                self.disconnected(ending);
                self.over(how);
            }
            Phase::Lingering { stream: None, .. } | Phase::Terminating { .. } => self.over(how),
            Phase::Idle | Phase::Over => {}
        }
    }

    /// The one time that the program is told, and that it counts.
    fn disconnected(&mut self, ending: Ending) {
        self.common.counters.iwarp.end(ending);
        self.push(Event::Disconnected(ending));
    }

    /// The Terminate is in the burst.
    pub(super) fn linger(&mut self, now: Instant) {
        self.phase = Phase::Lingering {
            stream: None,
            deadline: now.plus(CLOSE_TIMEOUT),
        };
        self.push(Event::Finish);
    }

    fn over(&mut self, how: Event) {
        self.phase = Phase::Over;
        self.push(how);
    }

    /// To the error state: everything gets its completion.
    fn flush(&mut self, cause: Cause) {
        let half_received = self.responder.take_receive();
        let sends = &mut self.requester.queue;
        flush::enter_error(&mut self.common, sends, half_received, cause);
        self.requester.stop();
        self.responder.answers.clear();
    }
}
