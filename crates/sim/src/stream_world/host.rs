//! A host of the stream world: its program, its queue pair, and what drives that.

use core::mem;

use engine::iwarp::{
    Agreement, Asked, AwaitingReply, AwaitingRequest, Depths, Ending, Event, Options, Progress,
    QueuePair, StartError, StreamBurst,
};
use engine::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use engine::qp::{Capabilities, Operation, Payload, RemoteMemory, SendFlags, SendRequest, State};
use engine::{Access, CompletionOpcode, Instant, PdId, ReceiveWqe, Sge, Status, WorkCompletion};
use wire::iwarp::{Framer, fpdu};
use wire::{MemoryKey, Qpn};

use super::is_trustworthy;
use super::mischief::{Kind, Wire};
use super::plan::{GAP, REGION, Scenario, Work, WorkKind};
use crate::checker::grants::BLANK;
use crate::rng::Rng;

const PD: PdId = PdId(1);
/// Where every region starts.
const BASE: u64 = 0x10_0000;

/// The regions of a host.
#[derive(Clone, Copy, Debug)]
struct Keys {
    /// What is sent; the peer may read it.
    source: MemoryKey,
    /// The peer may write here.
    target: MemoryKey,
    /// What READs and atomics bring.
    results: MemoryKey,
    /// Where messages are received.
    inbox: MemoryKey,
    /// What the peer adds to.
    counter: MemoryKey,
    /// For nobody.
    private: MemoryKey,
}

/// Where the connection is.
enum Start {
    Asking(AwaitingReply),
    Listening(AwaitingRequest),
    Deciding(Asked),
    /// The queue pair has it.
    Streaming,
    /// There will be none.
    Failed,
}

pub(super) struct Host {
    number: usize,
    rng: Rng,
    qp: QueuePair<ModelHost>,
    start: Start,
    memory: ModelMemory,
    keys: Keys,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    framer: Framer,
    has_crc: bool,
    /// The last burst is not yet taken as a whole, as if the socket had been full.
    is_leaving: bool,
    /// Bytes of the peer that were not used up.
    unread: Vec<u8>,
    is_closed: bool,
    has_disconnected: bool,
    ending: Option<Ending>,
    /// FPDUs sent.
    segments: u64,
    /// Work requests posted, and those whose fate is known.
    posted: usize,
    settled: usize,
    has_failed: bool,
    /// Receives posted, and completed with success.
    receives: usize,
    received: usize,
    /// Writes of the peer that must be here: a message behind them is.
    writes_known: usize,
}

impl Host {
    pub fn new(number: usize, scenario: &Scenario, rng: &mut Rng) -> Self {
        let memory = ModelMemory::default();
        let (send_cq, receive_cq) = (CompletionQueue::new(200), CompletionQueue::new(200));
        let receives = ReceiveQueue::new(200);
        let peer_plan = &scenario.plans[1 - number];
        let mut rng = rng.fork();
        let blank = |length: u32| vec![BLANK; length as usize];
        let local = Access::LOCAL_WRITE;
        let region = |bytes, access| memory.register(PD, BASE, bytes, access);
        let results_length = results_of(&scenario.plans[number]);
        let inbox_length: u32 = peer_plan.iter().map(|work| work.length + GAP).sum();
        let keys = Keys {
            source: region(rng.bytes(REGION as usize), Access::REMOTE_READ),
            target: region(blank(REGION), local | Access::REMOTE_WRITE),
            results: region(blank(results_length + GAP), local),
            inbox: region(blank(inbox_length + GAP), local),
            counter: region(vec![0; 8], local | Access::REMOTE_ATOMIC),
            private: region(blank(64), local),
        };
        let mut posted = 0;
        let mut at = 0;
        let messages: Vec<&Work> = peer_plan
            .iter()
            .filter(|work| work.takes_receive())
            .collect();
        let wanted = messages.len() - usize::from(scenario.is_rude && !messages.is_empty());
        for work in &messages[..wanted] {
            let sge = Sge {
                address: BASE + u64::from(at),
                length: work.length,
                key: keys.inbox,
            };
            let wqe = ReceiveWqe {
                id: posted as u64,
                sges: [sge].into_iter().collect(),
            };
            receives.post(wqe).expect("there is room for all");
            at += work.length + GAP;
            posted += 1;
        }
        let mut qp = QueuePair::new(Options {
            qpn: Qpn::truncated(number as u32 + 1),
            pd: PD,
            capabilities: Capabilities {
                send_wr_max: scenario.send_depth,
                receive_wr_max: 200,
                send_sge_max: 2,
                receive_sge_max: 1,
                inline_max: 80,
            },
            signal_all: scenario.signal_all,
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            receives,
            extensions: scenario.links[number].extensions,
        });
        qp.attributes_mut().access =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        Self {
            number,
            rng,
            qp,
            start: Start::Failed,
            memory,
            keys,
            send_cq,
            receive_cq,
            framer: Framer::new(false, false),
            has_crc: true,
            is_leaving: false,
            unread: Vec::new(),
            is_closed: false,
            has_disconnected: false,
            ending: None,
            segments: 0,
            posted: 0,
            settled: 0,
            has_failed: false,
            receives: posted,
            received: 0,
            writes_known: 0,
        }
    }

    /// Asks the other host.
    pub fn connect(&mut self, now: Instant, scenario: &Scenario, wire: &mut Wire) {
        let (link, depths) = (scenario.links[self.number], scenario.depths[self.number]);
        let mut out = Vec::new();
        let asking = AwaitingReply::start(now, link, depths, b"ask", &mut out);
        self.start = Start::Asking(asking.expect("three bytes of private data"));
        wire.write(&out, &mut self.rng);
    }

    /// Waits for the other host.
    pub fn listen(&mut self, now: Instant, scenario: &Scenario) {
        let link = scenario.links[self.number];
        self.start = Start::Listening(AwaitingRequest::start(now, link));
    }

    /// Bytes of the peer are here.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], wire: &mut Wire, scenario: &Scenario) {
        let mut out = Vec::new();
        let started = match mem::replace(&mut self.start, Start::Failed) {
            Start::Asking(asking) => asking.handle_bytes(bytes, &mut out).map(|step| match step {
                Progress::Waiting(asking) => Start::Asking(asking),
                Progress::Done(agreement) => {
                    self.begin(now, &agreement, scenario);
                    Start::Streaming
                }
            }),
            Start::Listening(waiting) => {
                waiting
                    .handle_bytes(bytes, &mut out)
                    .map(|step| match step {
                        Progress::Waiting(waiting) => Start::Listening(waiting),
                        Progress::Done(asked) => Start::Deciding(asked),
                    })
            }
            Start::Deciding(_) => Err(StartError::TooEarly),
            Start::Streaming => {
                self.unread.extend_from_slice(bytes);
                let used = self.qp.handle_stream(now, &self.unread, &self.memory);
                self.unread.drain(..used);
                assert!(self.unread.len() < fpdu::FPDU_MAX, "an FPDU is not taken");
                Ok(Start::Streaming)
            }
            Start::Failed => Ok(Start::Failed),
        };
        wire.write(&out, &mut self.rng);
        match started {
            Ok(start) => self.start = start,
            Err(_) => {
                wire.end();
                self.close();
            }
        }
    }

    fn begin(&mut self, now: Instant, agreement: &Agreement, scenario: &Scenario) {
        self.framer = Framer::new(agreement.has_crc, agreement.sends_markers);
        self.has_crc = agreement.has_crc;
        assert!(self.qp.start(now, agreement, scenario.mulpdu));
    }

    /// The program answers, posts or closes, or the queue pair sends; whether anything did.
    pub fn act(
        &mut self,
        now: Instant,
        wire: &mut Wire,
        may_close: bool,
        scenario: &Scenario,
    ) -> bool {
        match mem::replace(&mut self.start, Start::Failed) {
            Start::Deciding(asked) => {
                self.decide(now, &asked, wire, scenario);
                true
            }
            Start::Streaming => {
                self.start = Start::Streaming;
                let posts_first = self.rng.chance(500);
                (posts_first && self.post(scenario))
                    || self.transmit(now, wire, scenario)
                    || self.post(scenario)
                    || (may_close && self.disconnect(now, scenario))
            }
            other => {
                self.start = other;
                false
            }
        }
    }

    fn decide(&mut self, now: Instant, asked: &Asked, wire: &mut Wire, scenario: &Scenario) {
        let mut out = Vec::new();
        if scenario.rejects {
            let rejected = asked.reject(b"no", &mut out);
            rejected.expect("two bytes of private data");
            wire.write(&out, &mut self.rng);
            wire.end();
            return self.close();
        }
        let depths: Depths = scenario.depths[self.number];
        let agreement = asked.accept(depths, b"yes", &mut out);
        let agreement = agreement.expect("three bytes of private data");
        self.begin(now, &agreement, scenario);
        self.start = Start::Streaming;
        wire.write(&out, &mut self.rng);
    }

    /// Posts the next work request, if there is room for it.
    fn post(&mut self, scenario: &Scenario) -> bool {
        let plan = &scenario.plans[self.number];
        let Some(work) = plan.get(self.posted) else {
            return false;
        };
        if self.qp.state() != State::ReadyToSend {
            return false;
        }
        let local = if work.has_result() {
            (self.keys.results, work.target)
        } else {
            (self.keys.source, work.source)
        };
        let cut = self.rng.below(u64::from(work.length) + 1) as u32;
        let element = |from: u32, length: u32| Sge {
            address: BASE + u64::from(local.1 + from),
            length,
            key: local.0,
        };
        let elements = [element(0, cut), element(cut, work.length - cut)];
        let inline = self
            .memory
            .read(self.keys.source, work.source as usize, work.length as usize);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, work.is_signaled);
        flags.set(SendFlags::FENCE, work.is_fenced);
        flags.set(SendFlags::SOLICITED, work.is_solicited);
        let request = SendRequest {
            id: self.posted as u64,
            operation: operation(work),
            flags,
            payload: if work.is_inline {
                Payload::Inline(&inline)
            } else {
                Payload::Sges(&elements)
            },
            to: None,
        };
        let is_posted = self.qp.post_send(&request).is_ok(); // or there is no room
        self.posted += usize::from(is_posted);
        is_posted
    }

    /// Sends one burst, of which the peer may have much before the last of it has left.
    fn transmit(&mut self, now: Instant, wire: &mut Wire, scenario: &Scenario) -> bool {
        if mem::take(&mut self.is_leaving) {
            self.qp.burst_left(now);
            return true;
        }
        let mut burst = StreamBurst::with_bound(scenario.burst);
        self.qp.poll_transmit(now, &self.memory, &mut burst);
        let forged = scenario.mischief_of(self.number);
        let forged = forged.filter(|mischief| mischief.kind == Kind::Forge);
        let mut stream = Vec::new();
        for ulpdu in burst.ulpdus() {
            let start = stream.len();
            stream.extend_from_slice(burst.header(ulpdu));
            for span in burst.spans(ulpdu) {
                let bytes = self.memory.gather(span);
                stream.extend_from_slice(&bytes.expect("nothing is unmapped"));
            }
            if forged.is_some_and(|mischief| mischief.at == self.segments) {
                let header = (stream.len() - start - fpdu::LENGTH_FIELD).min(46) as u64;
                let bit = self.rng.below(8 * header) as usize;
                stream[start + fpdu::LENGTH_FIELD + bit / 8] ^= 1 << (bit % 8);
            }
            self.framer.seal(&mut stream, start);
            self.segments += 1;
        }
        wire.write(&stream, &mut self.rng);
        if !burst.is_empty() {
            self.is_leaving = self.rng.chance(300);
            if !self.is_leaving {
                self.qp.burst_left(now);
            }
        }
        !burst.is_empty()
    }

    fn disconnect(&mut self, now: Instant, scenario: &Scenario) -> bool {
        let is_ours = scenario.closer == self.number && !self.has_disconnected;
        if is_ours {
            self.has_disconnected = true;
            self.qp.disconnect(now);
        }
        is_ours
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        match mem::replace(&mut self.start, Start::Failed) {
            Start::Asking(asking) => match asking.handle_timeout(now) {
                Ok(asking) => self.start = Start::Asking(asking),
                Err(_) => self.close(),
            },
            Start::Listening(waiting) => match waiting.handle_timeout(now) {
                Ok(waiting) => self.start = Start::Listening(waiting),
                Err(_) => self.close(),
            },
            other => {
                self.start = other;
                self.qp.handle_timeout(now);
            }
        }
    }

    /// The peer has shut down its half.
    pub fn handle_end(&mut self) {
        match self.start {
            Start::Streaming => self.qp.handle_end(),
            _ => self.close(),
        }
    }

    /// TCP has lost the connection.
    pub fn handle_lost(&mut self) {
        match self.start {
            Start::Streaming => self.qp.handle_lost(),
            _ => self.close(),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.start {
            Start::Asking(asking) => Some(asking.deadline()),
            Start::Listening(waiting) => Some(waiting.deadline()),
            Start::Deciding(_) | Start::Failed => None,
            Start::Streaming => self.qp.next_deadline(),
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.qp.poll_event()?;
        if let Event::Disconnected(ending) = event {
            assert_eq!(self.ending, None, "the end is told once");
            self.ending = Some(ending);
        }
        Some(event)
    }

    /// The socket is closed.
    pub fn close(&mut self) {
        self.is_closed = true;
        if !matches!(self.start, Start::Streaming) {
            self.start = Start::Failed;
        }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Nothing of the connection is left.
    pub fn is_over(&self) -> bool {
        self.is_closed && (self.ending.is_some() || matches!(self.start, Start::Failed))
    }

    /// Everything of the plan is complete, and every message is here.
    pub fn is_done(&self, scenario: &Scenario) -> bool {
        let plan = &scenario.plans[self.number];
        self.settled == plan.len() && self.received == self.receives
    }

    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// Looks at completions and memory; how many work requests succeeded.
    pub fn look(&mut self, peer: &Self, scenario: &Scenario) -> Result<u64, String> {
        self.qp.assert_invariants();
        let mut completed = 0;
        for completion in self.send_cq.drain() {
            completed += self.look_at_send(&completion, peer, scenario)?;
        }
        let before = self.received;
        for completion in self.receive_cq.drain() {
            self.look_at_receive(&completion, peer, scenario)?;
        }
        if self.received > before {
            self.check_writes(peer, scenario)?;
        }
        Ok(completed)
    }

    /// A send is complete: it and those before it that are not told of.
    fn look_at_send(
        &mut self,
        completion: &WorkCompletion,
        peer: &Self,
        scenario: &Scenario,
    ) -> Result<u64, String> {
        let plan = &scenario.plans[self.number];
        let index = completion.id as usize;
        if index < self.settled || index >= self.posted {
            return Err(format!("work request {index} completes out of turn"));
        }
        for (number, work) in plan.iter().enumerate().take(index).skip(self.settled) {
            if work.is_signaled || scenario.signal_all || self.has_failed {
                return Err(format!("work request {number} did not complete"));
            }
            self.check_result(number, peer, scenario)?;
        }
        let done = (index - self.settled) as u64;
        self.settled = index + 1;
        if completion.status != Status::Success {
            if self.has_failed && completion.status != Status::Flushed {
                return Err(format!(
                    "{index} is {:?} behind an error",
                    completion.status
                ));
            }
            self.has_failed = true;
            return Ok(done);
        }
        if self.has_failed {
            return Err(format!("{index} succeeds behind an error"));
        }
        self.check_result(index, peer, scenario)?;
        Ok(done + 1)
    }

    /// What a READ or an atomic brought is right.
    fn check_result(&self, index: usize, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        let plan = &scenario.plans[self.number];
        let work = &plan[index];
        let (at, length) = (work.target as usize, work.length as usize);
        let expected = match work.kind {
            _ if !self.trusts(peer, scenario) => return Ok(()),
            WorkKind::Read => peer
                .memory
                .read(peer.keys.source, work.source as usize, length),
            WorkKind::Add(_) => sum_of(&plan[..index]).to_ne_bytes().to_vec(),
            _ => return Ok(()),
        };
        if self.memory.read(self.keys.results, at, length) == expected {
            return Ok(());
        }
        Err(format!("the result of {index} is wrong"))
    }

    /// A receive is complete: the next message of the peer is in it.
    fn look_at_receive(
        &mut self,
        completion: &WorkCompletion,
        peer: &Self,
        scenario: &Scenario,
    ) -> Result<(), String> {
        if completion.status != Status::Success {
            return Ok(());
        }
        let index = self.received;
        self.received += 1;
        if completion.id != index as u64 {
            let id = completion.id;
            return Err(format!("receive {id} completes, not {index}"));
        }
        if !self.trusts(peer, scenario) {
            return Ok(());
        }
        let plan = &scenario.plans[peer.number];
        let mut messages = plan.iter().enumerate();
        let mut messages = messages.by_ref().filter(|(_, work)| work.takes_receive());
        let (number, work) = messages.nth(index).ok_or("a message that nobody sent")?;
        let immediate = match work.kind {
            WorkKind::WriteImmediate(data) => Some(data),
            _ => None,
        };
        if (completion.length, completion.immediate) != (work.length, immediate) {
            return Err(format!("message {index} is told as {completion:?}"));
        }
        if work.kind == WorkKind::Send {
            if completion.opcode != CompletionOpcode::Receive {
                return Err(format!("message {index} is told as {completion:?}"));
            }
            let length = work.length as usize;
            let sent = peer
                .memory
                .read(peer.keys.source, work.source as usize, length);
            let at = inbox_offset(plan, index);
            if self.memory.read(self.keys.inbox, at, length) != sent {
                return Err(format!("message {index} has other bytes"));
            }
        }
        let before = plan.iter().take(number + 1).filter(|work| work.is_write());
        self.writes_known = before.count();
        Ok(())
    }

    /// The target is what the peer's writes left, in their order, up to some byte; those that are
    /// known to be here at least, those that were posted at most.
    fn check_writes(&self, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        if !self.trusts(peer, scenario) {
            return Ok(());
        }
        let length = REGION as usize;
        let found = self.memory.read(self.keys.target, 0, length);
        let source = peer.memory.read(peer.keys.source, 0, length);
        let mut state = vec![BLANK; length];
        let mut wrong = found.iter().filter(|&&byte| byte != BLANK).count();
        let posted = &scenario.plans[peer.number][..peer.posted];
        let mut done = 0;
        for work in posted.iter().filter(|work| work.is_write()) {
            if wrong == 0 && done >= self.writes_known {
                return Ok(());
            }
            for at in 0..work.length as usize {
                let place = work.target as usize + at;
                let was_wrong = state[place] != found[place];
                state[place] = source[work.source as usize + at];
                let is_wrong = state[place] != found[place];
                wrong = wrong + usize::from(is_wrong) - usize::from(was_wrong);
                let is_whole = at + 1 == work.length as usize;
                let count = done + usize::from(is_whole);
                if wrong == 0 && count >= self.writes_known {
                    return Ok(());
                }
            }
            done += 1;
        }
        if wrong == 0 && done >= self.writes_known {
            return Ok(());
        }
        Err(format!("{wrong} bytes are not what was written"))
    }

    /// What holds when all is over, however it went.
    pub fn check_end(&self, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        self.check_writes(peer, scenario)?;
        let plan = &scenario.plans[self.number];
        let is_told = |work: &Work| work.is_signaled || scenario.signal_all || self.has_failed;
        if plan[self.settled..self.posted].iter().any(is_told) {
            return Err("a work request has no completion".to_owned());
        }
        let same = |key, from: usize, length| {
            let bytes: Vec<u8> = self.memory.read(key, from, length);
            bytes.iter().all(|&byte| byte == BLANK)
        };
        let mut is_intact = same(self.keys.private, 0, 64);
        for work in plan.iter().filter(|work| work.has_result()) {
            let end = work.target + work.length;
            is_intact &= same(self.keys.results, end as usize, GAP as usize);
        }
        let theirs = &scenario.plans[peer.number];
        let messages = theirs.iter().filter(|work| work.takes_receive());
        for (index, work) in messages.enumerate() {
            let end = inbox_offset(theirs, index) + work.length as usize;
            is_intact &= same(self.keys.inbox, end, GAP as usize);
        }
        if !is_intact {
            return Err("bytes changed that nobody may change".to_owned());
        }
        self.check_counter(peer, scenario)
    }

    /// What the peer added is some of its atomics, each once: those that are complete at least.
    fn check_counter(&self, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        let theirs = &scenario.plans[peer.number];
        let found = self.memory.read_u64(self.keys.counter, 0);
        let completed = if peer.has_failed { 0 } else { peer.settled };
        let mut sums = (completed..=peer.posted).map(|count| sum_of(&theirs[..count]));
        if !self.trusts(peer, scenario) || sums.any(|sum| sum == found) {
            return Ok(());
        }
        Err("the counter is no sum of what was added".to_owned())
    }

    /// Nothing went wrong, so everything succeeded.
    pub fn check_success(&self) -> Result<(), String> {
        if self.has_failed {
            return Err("a work request failed".to_owned());
        }
        match self.ending {
            Some(Ending::Closed | Ending::PeerClosed) => Ok(()),
            ending => Err(format!("it ended as {ending:?}")),
        }
    }

    /// Whether what arrives is what was sent.
    fn trusts(&self, peer: &Self, scenario: &Scenario) -> bool {
        let has_crc = self.has_crc && peer.has_crc;
        is_trustworthy(scenario.mischief.as_ref(), has_crc)
    }
}

fn operation(work: &Work) -> Operation {
    // both hosts make their regions in the same order
    let remote = |key: u32, at: u32| RemoteMemory {
        address: BASE + u64::from(at),
        key: MemoryKey(key << 8 | 0xa5),
    };
    let (source, target, counter) = (1, 2, 5);
    match work.kind {
        WorkKind::Send => Operation::Send,
        WorkKind::Write => Operation::Write(remote(target, work.target)),
        WorkKind::WriteImmediate(data) => {
            Operation::WriteImmediate(remote(target, work.target), data)
        }
        WorkKind::Read => Operation::Read(remote(source, work.source)),
        WorkKind::Add(add) => Operation::FetchAdd {
            remote: remote(counter, 0),
            add,
        },
    }
}

fn sum_of(plan: &[Work]) -> u64 {
    plan.iter().fold(0, |sum: u64, work| match work.kind {
        WorkKind::Add(add) => sum.wrapping_add(add),
        _ => sum,
    })
}

/// Bytes of all results.
fn results_of(plan: &[Work]) -> u32 {
    let results = plan.iter().filter(|work| work.has_result());
    results.map(|work| work.length + GAP).sum()
}

/// Where message `index` of a plan is received.
fn inbox_offset(plan: &[Work], index: usize) -> usize {
    let messages = plan.iter().filter(|work| work.takes_receive());
    let before = messages.take(index).map(|work| work.length + GAP);
    before.sum::<u32>() as usize
}
