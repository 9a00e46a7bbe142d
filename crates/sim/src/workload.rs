//! The plans of a run: for each direction of each connection some work requests, with everything
//! that must come of them.

use engine::qp::SendFlags;

use crate::oracle::{Oracle, Written};
use crate::rng::Rng;
use crate::scenario::Scenario;

/// Bytes before and behind what may be written of a target, and at its end.
pub const GUARD: u32 = 64;

/// Words for atomics of each lane.
const WORDS: u32 = 4;

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
