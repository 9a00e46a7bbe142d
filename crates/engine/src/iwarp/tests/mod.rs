//! Two queue pairs and the bytes between them.

mod closing;
mod extensions;
mod refusals;
mod set_up;
mod transfers;

use core::time::Duration;

use smallvec::smallvec;
use wire::iwarp::{Framer, Revision, Segment, fpdu};
use wire::{MemoryKey, Qpn};

use super::{Agreement, Depths, Ending, Event, Options, QueuePair, Role, Rtr, Source, StreamBurst};
use crate::access::{Access, PdId, Sge};
use crate::completion::{CompletionOpcode, Status};
use crate::host::ReceiveWqe;
use crate::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use crate::qp::{Capabilities, Operation, Payload, RemoteMemory, SendFlags, SendRequest, State};
use crate::time::Instant;

const PD: PdId = PdId(1);
/// Where every region starts, in its owner's address space.
const BASE: u64 = 0x1000;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// One end of a connection: the queue pair, what it uses, and what its driver keeps.
struct End {
    qp: QueuePair<ModelHost>,
    memory: ModelMemory,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    receives: ReceiveQueue,
    framer: Framer,
    /// Bytes of the peer that were not used up.
    inbox: Vec<u8>,
    events: Vec<Event>,
}

/// What a pair is made with.
#[derive(Clone, Copy)]
struct Setting {
    has_crc: bool,
    has_markers: bool,
    depths: Depths,
    rtr: Option<Rtr>,
    mulpdu: usize,
    extensions: bool,
    /// Bytes that arrive at once.
    fragment: usize,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            has_crc: true,
            has_markers: false,
            depths: Depths { ird: 4, ord: 4 },
            rtr: None,
            mulpdu: 1442,
            extensions: false,
            fragment: usize::MAX,
        }
    }
}

impl End {
    fn new(role: Role, setting: &Setting) -> Self {
        let (send_cq, receive_cq) = (CompletionQueue::new(64), CompletionQueue::new(64));
        let receives = ReceiveQueue::new(16);
        let mut qp = QueuePair::new(Options {
            qpn: Qpn::truncated(1),
            pd: PD,
            capabilities: Capabilities {
                send_wr_max: 16,
                receive_wr_max: 16,
                send_sge_max: 4,
                receive_sge_max: 4,
                inline_max: 80,
            },
            signal_all: true,
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            receives: receives.clone(),
            extensions: setting.extensions,
        });
        qp.attributes_mut().access = ALL;
        let agreement = Agreement {
            role,
            revision: Revision::Two,
            has_crc: setting.has_crc,
            sends_markers: setting.has_markers,
            receives_markers: setting.has_markers,
            depths: setting.depths,
            replied: setting.depths,
            rtr: setting.rtr,
            private_data: Vec::new(),
        };
        assert!(qp.start(Instant::default(), &agreement, setting.mulpdu));
        Self {
            qp,
            memory: ModelMemory::default(),
            send_cq,
            receive_cq,
            receives,
            framer: Framer::new(setting.has_crc, setting.has_markers),
            inbox: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A region of `bytes`.
    fn region(&self, bytes: &[u8]) -> MemoryKey {
        self.memory.register(PD, BASE, bytes.to_vec(), ALL)
    }

    fn post_receive(&self, id: u64, key: MemoryKey, length: u32) {
        let sges = smallvec![sge(key, 0, length)];
        self.receives.post(ReceiveWqe { id, sges }).unwrap();
    }

    fn post(&mut self, id: u64, operation: Operation, sges: &[Sge]) {
        self.post_with(id, operation, SendFlags::empty(), sges);
    }

    fn post_with(&mut self, id: u64, operation: Operation, flags: SendFlags, sges: &[Sge]) {
        let request = SendRequest {
            id,
            operation,
            flags,
            payload: Payload::Sges(sges),
            to: None,
        };
        self.qp.post_send(&request).unwrap();
    }

    /// What it sends now, as bytes of the stream; `lines` gets the segments.
    fn transmit(&mut self, lines: &mut Vec<String>) -> Vec<u8> {
        let mut stream = Vec::new();
        loop {
            let mut burst = StreamBurst::with_bound(8000);
            self.qp.poll_transmit(NOW, &self.memory, &mut burst);
            self.qp.assert_invariants();
            if burst.is_empty() {
                break;
            }
            if let Some(source) = self.frame(&burst, &mut stream, lines) {
                self.qp.transmit_failed(NOW, source);
            } else {
                self.qp.burst_left(NOW);
            }
            self.qp.assert_invariants();
        }
        while let Some(event) = self.qp.poll_event() {
            self.events.push(event);
        }
        stream
    }

    /// Copies and frames a burst, up to a ULPDU whose memory is gone.
    fn frame(
        &mut self,
        burst: &StreamBurst,
        stream: &mut Vec<u8>,
        lines: &mut Vec<String>,
    ) -> Option<Source> {
        for ulpdu in burst.ulpdus() {
            let start = stream.len();
            stream.extend_from_slice(burst.header(ulpdu));
            for span in burst.spans(ulpdu) {
                match self.memory.gather(span) {
                    Ok(bytes) => stream.extend_from_slice(&bytes),
                    Err(_) => {
                        stream.truncate(start);
                        return Some(ulpdu.source);
                    }
                }
            }
            let bytes = &stream[start + fpdu::LENGTH_FIELD..];
            assert_eq!(bytes.len(), usize::from(ulpdu.length));
            lines.push(Segment::parse(bytes).unwrap().to_string());
            self.framer.seal(stream, start);
        }
        None
    }

    /// Takes bytes in pieces of `fragment`.
    fn receive(&mut self, bytes: &[u8], fragment: usize) {
        for piece in bytes.chunks(fragment.min(bytes.len()).max(1)) {
            self.inbox.extend_from_slice(piece);
            let used = self.qp.handle_stream(NOW, &self.inbox, &self.memory);
            self.inbox.drain(..used);
            self.qp.assert_invariants();
        }
    }

    /// Completions of sends: which, and how.
    fn sent(&self) -> Vec<(u64, Status)> {
        let all = self.send_cq.drain();
        all.iter().map(|one| (one.id, one.status)).collect()
    }

    /// Completions of receives: which, how, and how long.
    fn received(&self) -> Vec<(u64, Status, u32)> {
        let all = self.receive_cq.drain();
        all.iter()
            .map(|one| (one.id, one.status, one.length))
            .collect()
    }

    /// What it has counted that is not 0.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        let counters = self.qp.counters().iwarp;
        counters.iter().filter(|(_, count)| *count > 0).collect()
    }

    /// The events since the last time.
    fn told(&mut self) -> Vec<Event> {
        while let Some(event) = self.qp.poll_event() {
            self.events.push(event);
        }
        core::mem::take(&mut self.events)
    }
}

const NOW: Instant = Instant::from_nanos(1_000);

/// Two ends; the first one connected.
struct Pair {
    active: End,
    passive: End,
    setting: Setting,
    /// What was sent: `>` by the active end.
    lines: Vec<String>,
}

impl Pair {
    fn new(setting: Setting) -> Self {
        let mut pair = Self {
            active: End::new(Role::Active, &setting),
            passive: End::new(Role::Passive, &setting),
            setting,
            lines: Vec::new(),
        };
        pair.active.told();
        pair.passive.told();
        pair
    }

    /// A pair of which both ends may send.
    fn open(setting: Setting) -> Self {
        let mut pair = Self::new(setting);
        // a Write of no bytes is nothing but the first FPDU
        let nowhere = Operation::Write(RemoteMemory::default());
        pair.active.post(0, nowhere, &[]);
        pair.settle();
        assert_eq!(pair.active.sent(), [(0, Status::Success)]);
        pair.lines.clear();
        pair
    }

    /// Carries bytes to and fro until nothing is left.
    fn settle(&mut self) {
        loop {
            let mut lines = Vec::new();
            let there = self.active.transmit(&mut lines);
            self.lines
                .extend(lines.drain(..).map(|line| format!("> {line}")));
            self.passive.receive(&there, self.setting.fragment);
            let back = self.passive.transmit(&mut lines);
            self.lines
                .extend(lines.drain(..).map(|line| format!("< {line}")));
            self.active.receive(&back, self.setting.fragment);
            if there.is_empty() && back.is_empty() {
                return;
            }
        }
    }

    /// Bytes that somebody who is no queue pair sends to the passive end.
    fn forge(&mut self, ulpdu: &[u8]) {
        let mut stream = (ulpdu.len() as u16).to_be_bytes().to_vec();
        stream.extend_from_slice(ulpdu);
        self.active.framer.seal(&mut stream, 0);
        self.passive.receive(&stream, self.setting.fragment);
    }
}

fn sge(key: MemoryKey, offset: u64, length: u32) -> Sge {
    Sge {
        address: BASE + offset,
        length,
        key,
    }
}

fn remote(key: MemoryKey, offset: u64) -> RemoteMemory {
    RemoteMemory {
        address: BASE + offset,
        key,
    }
}

/// Bytes that are all different for a while.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}
