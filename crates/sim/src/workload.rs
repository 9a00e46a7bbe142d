//! What a seed stands for: a scenario, and for each direction of each connection a plan of work
//! requests with everything that must come of them.

use core::time::Duration;

use engine::Instant;
use engine::qp::SendFlags;
use engine::rc::window::WindowConfig;
use tap::FaultPlan;
use tap::fault::{Probability, Span};
use wire::{Mtu, Psn};

use crate::oracle::{Oracle, Written};
use crate::rng::Rng;

/// Bytes before and behind what may be written of a target, and at its end.
pub const GUARD: u32 = 64;

/// Words for atomics of each lane.
const WORDS: u32 = 4;

/// Everything about a run but the plans.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Path MTU of all connections.
    pub mtu: Mtu,
    /// Over IPv6.
    pub is_v6: bool,
    /// Queue pairs on each host.
    pub connections: usize,
    /// One shared receive queue a host.
    pub shares_receives: bool,
    /// Bounds in flight.
    pub window: WindowConfig,
    /// Floor of timeouts.
    pub timeout_min: Duration,
    /// Timeout code.
    pub timeout: u8,
    /// Code for how long a peer waits whose receive is missing.
    pub min_rnr_timer: u8,
    /// Tries after RNR NAKs; 7 is without end.
    pub rnr_retry: u8,
    /// READs and atomics in flight at the requester.
    pub rd_atomic: u8,
    /// READs and atomics that the responder remembers.
    pub dest_rd_atomic: u8,
    /// Depth of send queues.
    pub send_depth: u32,
    /// Depth of receive queues.
    pub receive_depth: usize,
    /// Packets of a burst.
    pub burst: usize,
    /// From sending to arriving.
    pub delay: Duration,
    /// Up to this much more.
    pub jitter: Duration,
    /// What goes wrong until the network heals.
    pub faults: Option<FaultPlan>,
    /// How much later copies of packets arrive at most.
    pub lag: Duration,
    /// Bytes of a receive buffer in truesize.
    pub buffer: usize,
    /// How long a host lets its receive buffer wait at most.
    pub service: Duration,
    /// How long a program does something else at most.
    pub pace: Duration,
    /// When the network heals.
    pub heals_at: Instant,
    /// So much goes wrong that a connection may use up its retries.
    pub is_harsh: bool,
    /// Bytes of a receive.
    pub receive_length: u32,
    /// First PSNs of both hosts.
    pub first_psns: [Psn; 2],
    /// Programs drain send queues now and then.
    pub drains: bool,
    /// How often a connection that ended is made anew.
    pub revivals: u64,
    /// Keys are invalidated.
    pub invalidates: bool,
    /// What happens to memory, when, and to which lane.
    pub calamity: Option<(Instant, usize, Calamity)>,
}

/// Something that a program does to its memory while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calamity {
    /// The target's registration ends.
    TargetDeregistered,
    /// The target's mapping is gone from the middle on.
    TargetUnmapped,
    /// The registration of what is sent ends.
    SourceDeregistered,
    /// The mapping of what is sent is gone from the middle on.
    SourceUnmapped,
    /// The registration of where results go ends.
    SinkDeregistered,
    /// The mapping of the receives that wait is gone.
    ReceivesUnmapped,
}

impl Scenario {
    /// What a seed's generator makes up.
    pub fn random(rng: &mut Rng) -> Self {
        let mtu = rng.pick(&Mtu::ALL);
        let is_harsh = rng.chance(200);
        let is_lossless = !is_harsh && rng.chance(100);
        let delay = Duration::from_nanos(rng.range(500, 200_000));
        let worst = if is_harsh { 160 } else { 25 };
        let lag_ms = rng.pick(&[1, 10, 100]);
        let lag = rng.duration(Duration::from_millis(lag_ms));
        let faults = (!is_lossless).then(|| FaultPlan {
            loss: per_mille(rng.below(worst)),
            duplicate: per_mille(rng.below(worst * 2)),
            reorder: per_mille(rng.below(worst * 2)),
            corrupt: per_mille(rng.below(worst)),
            hold: Span::new(0, lag.as_nanos() as u64).unwrap_or(FaultPlan::HOLD),
            seed: rng.bits(),
            ..FaultPlan::NONE
        });
        let service = rng.pick(&[1, 20, 300]);
        let window = WindowConfig {
            bytes: rng.pick(&[1, 8 << 10, 64 << 10, 128 << 10]),
            packet_overhead: rng.pick(&[0, 100, 832]),
            read_chunk: mtu.bytes() * rng.pick(&[1, 2, 16]),
        };
        let rd_atomic = rng.pick(&[1, 1, 2, 4, 16]);
        let connections = rng.pick(&[1, 1, 2, 3]);
        let calamity = rng.chance(80).then(|| {
            let kind = rng.pick(&[
                Calamity::TargetDeregistered,
                Calamity::TargetUnmapped,
                Calamity::SourceDeregistered,
                Calamity::SourceUnmapped,
                Calamity::SinkDeregistered,
                Calamity::ReceivesUnmapped,
            ]);
            let at = Instant::from_nanos(rng.below(10_000_000));
            (at, rng.below(2 * connections as u64) as usize, kind)
        });
        let near_wrap = |rng: &mut Rng| {
            let before = if rng.chance(700) { 200 } else { 1 << 24 };
            Psn::default().minus(rng.below(before) as u32)
        };
        Self {
            mtu,
            is_v6: rng.chance(300),
            connections,
            shares_receives: rng.chance(300),
            window,
            timeout_min: Duration::from_micros(rng.pick(&[1000, 4000, 20_000])),
            timeout: rng.range(1, 16) as u8,
            min_rnr_timer: rng.range(1, 20) as u8,
            rnr_retry: if rng.chance(900) {
                7
            } else {
                rng.below(7) as u8
            },
            rd_atomic,
            dest_rd_atomic: rd_atomic + rng.below(3) as u8,
            send_depth: rng.pick(&[1, 2, 8, 64]),
            receive_depth: rng.pick(&[1, 2, 8, 64]),
            burst: rng.pick(&[1, 2, 7, 64]),
            delay,
            jitter: rng.duration(delay),
            faults,
            lag,
            buffer: rng.pick(&[416 << 10, 1 << 20, 8 << 20]),
            service: rng.duration(Duration::from_micros(service)),
            pace: Duration::from_micros(rng.range(1, 500)),
            heals_at: Instant::from_nanos(rng.range(1, 60) * 1_000_000),
            is_harsh,
            receive_length: mtu.bytes() * rng.range(1, 4) as u32 + rng.below(5) as u32,
            first_psns: [near_wrap(rng), near_wrap(rng)],
            drains: rng.chance(200),
            revivals: rng.below(3),
            invalidates: true,
            calamity,
        }
    }
}

fn per_mille(count: u64) -> Probability {
    let parts = count as u32 * (Probability::CERTAIN / 1000);
    Probability::from_parts(parts).unwrap_or(Probability::NEVER) // `count` is below 1000
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SEND, perhaps with immediate data.
    Send(Option<[u8; 4]>),
    /// SEND with Invalidate of the lane's next key.
    SendInvalidate,
    /// WRITE to an offset of the target, perhaps with immediate data.
    Write(u32, Option<[u8; 4]>),
    /// READ from an offset of the target.
    Read(u32),
    /// COMPARE SWAP at an offset of the target.
    CompareSwap {
        /// Where.
        at: u32,
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// FETCH ADD at an offset of the target.
    FetchAdd {
        /// Where.
        at: u32,
        /// What is added.
        add: u64,
    },
    /// FETCH ADD of 1 to the word that all lanes of one host add to.
    SharedAdd,
    /// Local invalidation of the lane's next key.
    Invalidate,
}

/// What is wrong with a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The R_Key is not the target's.
    RemoteKey,
    /// The range ends behind the target.
    OutOfBounds,
    /// The SEND is longer than the receive.
    TooLong,
    /// An L_Key is not the source's.
    LocalKey,
}

/// One work request of a plan.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it does.
    pub action: Action,
    /// Bytes of payload or result.
    pub length: u32,
    /// How.
    pub flags: SendFlags,
    /// Where its payload is in the source, or its result in the sink.
    pub pieces: Vec<(u32, u32)>,
    /// The value that an atomic must find.
    pub original: u64,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
}

impl Step {
    /// Whether its pieces are where a result goes.
    pub fn brings_back(&self) -> bool {
        brings_back(self.action)
    }
}

fn brings_back(action: Action) -> bool {
    matches!(
        action,
        Action::Read(_) | Action::CompareSwap { .. } | Action::FetchAdd { .. } | Action::SharedAdd
    )
}

/// What arrives in a receive.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which step sends it.
    pub step: usize,
    /// Bytes of the message.
    pub length: u32,
    /// What is in the receive; `None` for a WRITE with immediate, which leaves it alone.
    pub data: Option<Vec<u8>>,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Whether a key is invalidated.
    pub invalidates: bool,
}

/// Where things are in a target: guard, area, words, flag, data, guard.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes that WRITEs and READs use.
    pub area: u32,
    /// Bytes that are published with the flag.
    pub data: u32,
}

impl Layout {
    /// Offset of a word.
    pub fn word(&self, index: u32) -> u32 {
        GUARD + self.area + index * 8
    }

    /// Offset of the flag.
    pub fn flag(&self) -> u32 {
        self.word(WORDS)
    }

    /// Offset of the data.
    pub fn data(&self) -> u32 {
        self.flag() + 8
    }

    /// Bytes in all.
    pub fn total(&self) -> u32 {
        self.data() + self.data + GUARD
    }
}

/// The plan of one direction of one connection.
#[derive(Debug)]
pub struct Plan {
    /// Work requests in order.
    pub steps: Vec<Step>,
    /// What they send to receives, in order.
    pub messages: Vec<Message>,
    /// What they do to the target.
    pub oracle: Oracle,
    /// Where things are in the target.
    pub layout: Layout,
    /// The bytes that payloads are taken from.
    pub source: Vec<u8>,
    /// Bytes that results take.
    pub sink_length: u32,
    /// The step with a flaw, if there is one.
    pub flawed: Option<usize>,
}

impl Plan {
    /// A plan of some dozens of work requests.
    pub fn random(rng: &mut Rng, scenario: &Scenario) -> Self {
        Planner::new(rng, scenario).plan()
    }
}

struct Planner<'a> {
    rng: &'a mut Rng,
    scenario: &'a Scenario,
    layout: Layout,
    source: Vec<u8>,
    steps: Vec<Step>,
    messages: Vec<Message>,
    writes: Vec<Written>,
    words: [u64; WORDS as usize],
    version: u8,
    sink_length: u32,
    flawed: Option<usize>,
}

impl<'a> Planner<'a> {
    fn new(rng: &'a mut Rng, scenario: &'a Scenario) -> Self {
        let mtu = scenario.mtu.bytes();
        let layout = Layout {
            area: (mtu * rng.range(2, 5) as u32).next_multiple_of(8),
            data: rng.range(1, u64::from(mtu) * 2 + 1) as u32,
        };
        let source = rng.bytes((mtu * 6) as usize);
        Self {
            rng,
            scenario,
            layout,
            source,
            steps: Vec::new(),
            messages: Vec::new(),
            writes: Vec::new(),
            words: [0; WORDS as usize],
            version: 0,
            sink_length: 0,
            flawed: None,
        }
    }

    fn plan(mut self) -> Plan {
        let count = self.rng.range(1, 24) as usize;
        let flawed = self.rng.chance(60).then(|| self.rng.below(count as u64));
        for number in 0..count {
            self.add_random();
            if flawed == Some(number as u64) {
                self.spoil();
            }
        }
        if let Some(last) = self.steps.last_mut() {
            last.flags |= SendFlags::SIGNALED;
        }
        Plan {
            steps: self.steps,
            messages: self.messages,
            oracle: Oracle::new(self.layout.total() as usize, self.writes),
            layout: self.layout,
            source: self.source,
            sink_length: self.sink_length,
            flawed: self.flawed,
        }
    }

    fn add_random(&mut self) {
        match self.rng.below(20) {
            0..=3 => self.add_send(),
            4..=7 => self.add_write(),
            8..=11 => self.add_read(),
            12 | 13 => self.add_compare_swap(),
            14 | 15 => self.add_fetch_add(),
            16 => self.add(Action::SharedAdd, 8, 0),
            17 | 18 => self.publish(),
            _ if self.scenario.invalidates => self.add(Action::Invalidate, 0, 0),
            _ => self.add_read(),
        }
    }

    fn add_send(&mut self) {
        let length = self.length(self.scenario.receive_length);
        let (action, immediate) = match self.rng.below(4) {
            0 if self.scenario.invalidates => (Action::SendInvalidate, None),
            1 => {
                let immediate = self.immediate();
                (Action::Send(immediate), immediate)
            }
            _ => (Action::Send(None), None),
        };
        self.add(action, length, length);
        let step = self.steps.len() - 1;
        self.messages.push(Message {
            step,
            length,
            data: Some(self.payload(step)),
            immediate,
            invalidates: action == Action::SendInvalidate,
        });
    }

    fn add_write(&mut self) {
        let length = self.length(self.layout.area);
        let at = GUARD + self.rng.below(u64::from(self.layout.area - length) + 1) as u32;
        let immediate = if self.rng.chance(300) {
            self.immediate()
        } else {
            None
        };
        self.add(Action::Write(at, immediate), length, length);
        let step = self.steps.len() - 1;
        self.written(step, at);
        if immediate.is_some() {
            self.messages.push(Message {
                step,
                length,
                data: None,
                immediate,
                invalidates: false,
            });
        }
    }

    fn add_read(&mut self) {
        let length = self.length(self.layout.area);
        let at = GUARD + self.rng.below(u64::from(self.layout.area - length) + 1) as u32;
        self.add(Action::Read(at), length, 0);
    }

    fn add_compare_swap(&mut self) {
        let index = self.rng.below(u64::from(WORDS)) as u32;
        let before = self.words[index as usize];
        let swap = self.rng.bits();
        let (compare, after) = if self.rng.chance(700) {
            (before, swap)
        } else {
            (!before, before)
        };
        let at = self.layout.word(index);
        self.add(Action::CompareSwap { at, compare, swap }, 8, 0);
        self.atomic(index, before, after);
    }

    fn add_fetch_add(&mut self) {
        let index = self.rng.below(u64::from(WORDS)) as u32;
        let before = self.words[index as usize];
        let add = self.rng.bits();
        let at = self.layout.word(index);
        self.add(Action::FetchAdd { at, add }, 8, 0);
        self.atomic(index, before, before.wrapping_add(add));
    }

    fn atomic(&mut self, index: u32, before: u64, after: u64) {
        self.words[index as usize] = after;
        let step = self.steps.len() - 1;
        self.steps[step].original = before;
        self.writes.push(Written {
            step,
            offset: self.layout.word(index) as usize,
            data: after.to_ne_bytes().to_vec(),
        });
    }

    /// Data and flag by two WRITEs: whoever sees the flag must see the data.
    fn publish(&mut self) {
        self.version += 1;
        let version = self.version;
        let data_at = self.source.len() as u32;
        let length = self.layout.data;
        self.source
            .extend(core::iter::repeat_n(version, length as usize));
        let flag_at = self.source.len() as u32;
        self.source
            .extend_from_slice(&u64::from(version).to_le_bytes());
        for (at, from, length) in [
            (self.layout.data(), data_at, length),
            (self.layout.flag(), flag_at, 8),
        ] {
            self.add(Action::Write(at, None), length, 0);
            let step = self.steps.len() - 1;
            self.steps[step].pieces = vec![(from, length)];
            self.written(step, at);
        }
    }

    /// Adds a step; `payload` bytes of the source are its payload.
    fn add(&mut self, action: Action, length: u32, payload: u32) {
        let mut flags = SendFlags::empty();
        for (flag, per_mille) in [
            (SendFlags::SIGNALED, 500),
            (SendFlags::FENCE, 150),
            (SendFlags::SOLICITED, 200),
        ] {
            flags.set(flag, self.rng.chance(per_mille));
        }
        let is_small = payload > 0 && length <= INLINE_MAX;
        flags.set(SendFlags::INLINE, is_small && self.rng.chance(400));
        let pieces = if brings_back(action) {
            let start = self.sink_length + 8; // room between results
            self.sink_length = start + length;
            self.split(start, length)
        } else {
            let room = self.source.len() as u64 - u64::from(payload);
            let start = self.rng.below(room + 1) as u32;
            self.split(start, payload)
        };
        self.steps.push(Step {
            action,
            length,
            flags,
            pieces,
            original: 0,
            flaw: None,
        });
    }

    /// One to three pieces that are `length` bytes from `start` on together.
    fn split(&mut self, start: u32, length: u32) -> Vec<(u32, u32)> {
        let mut pieces = Vec::new();
        let (mut at, mut left) = (start, length);
        for _ in 0..self.rng.below(3) {
            let piece = self.rng.below(u64::from(left) + 1) as u32;
            pieces.push((at, piece));
            at += piece;
            left -= piece;
        }
        pieces.push((at, left));
        pieces
    }

    fn payload(&self, step: usize) -> Vec<u8> {
        self.steps[step]
            .pieces
            .iter()
            .flat_map(|&(at, length)| &self.source[at as usize..][..length as usize])
            .copied()
            .collect()
    }

    fn written(&mut self, step: usize, at: u32) {
        let data = self.payload(step);
        self.writes.push(Written {
            step,
            offset: at as usize,
            data,
        });
    }

    fn immediate(&mut self) -> Option<[u8; 4]> {
        Some((self.rng.bits() as u32).to_ne_bytes())
    }

    /// A length that likes the edges of packets.
    fn length(&mut self, most: u32) -> u32 {
        let mtu = u64::from(self.scenario.mtu.bytes());
        let length = match self.rng.below(6) {
            0 => self.rng.below(9),
            1 => mtu * self.rng.below(4),
            2 => mtu * self.rng.range(1, 3) - 1,
            3 => mtu * self.rng.range(1, 3) + 1,
            _ => self.rng.below(u64::from(most) + 1),
        };
        length.min(u64::from(most)) as u32
    }

    /// Gives the last step a flaw, if it can have one.
    fn spoil(&mut self) {
        let number = self.steps.len() - 1;
        let step = &mut self.steps[number];
        let is_empty = step.length == 0;
        let flaw = match step.action {
            Action::Write(..) | Action::Read(_) if !is_empty => {
                if self.rng.chance(500) {
                    Flaw::RemoteKey
                } else {
                    Flaw::OutOfBounds
                }
            }
            Action::CompareSwap { .. } | Action::FetchAdd { .. } => Flaw::RemoteKey,
            Action::Send(_) if is_empty || self.rng.chance(500) => Flaw::TooLong,
            Action::Send(_) if !step.flags.contains(SendFlags::INLINE) => Flaw::LocalKey,
            _ => return,
        };
        if flaw == Flaw::TooLong {
            let length = self.scenario.receive_length + 1;
            step.flags.remove(SendFlags::INLINE);
            step.length = length;
            step.pieces = vec![(0, length)];
        }
        step.flaw = Some(flaw);
        self.flawed = Some(number);
        // it does nothing to the target, and what it sends is not received
        self.writes.retain(|written| written.step != number);
        self.messages.retain(|message| message.step != number);
    }
}

/// Bytes of inline data that queue pairs take.
pub const INLINE_MAX: u32 = 64;
