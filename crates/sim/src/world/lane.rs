//! One direction of one connection: its plan, its memory, and what became of it so far.

use engine::access::{Access, Sge};
use engine::qp::{Operation, Payload, RemoteMemory, SendFlags, SendRequest};
use engine::{Status, WorkCompletion};
use wire::MemoryKey;

use crate::checker::grants::Canvas;
use crate::checker::order::SendOrder;
use crate::checker::visibility::Publication;
use crate::ground::Ground;
use crate::rng::Rng;
use crate::scenario::{Calamity, Scenario};
use crate::workload::{Action, Flaw, GUARD, Message, Plan, Step};

/// A region and where it starts.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// L_Key and R_Key.
    pub key: MemoryKey,
    /// Address of the first byte.
    pub base: u64,
}

impl Place {
    /// Registers `bytes` at a random address that is a multiple of 8.
    pub fn register(rng: &mut Rng, memory: &dyn Ground, bytes: Vec<u8>, access: Access) -> Self {
        let base = rng.bits() & 0x7fff_ffff_ffff_fff8;
        Self {
            key: memory.register(base, bytes, access),
            base,
        }
    }

    fn at(&self, offset: u32) -> RemoteMemory {
        RemoteMemory {
            address: self.base + u64::from(offset),
            key: self.key,
        }
    }
}

/// One direction of one connection.
pub struct Lane {
    /// The host whose queue pair sends.
    pub from: usize,
    /// Which connection.
    pub connection: usize,
    /// What is to be done.
    pub plan: Plan,
    /// What was done.
    pub order: SendOrder,
    /// How many messages were received.
    pub received: usize,
    source: Place,
    sink: Place,
    sink_canvas: Canvas,
    target: Place,
    /// The word that all lanes of this host add to.
    shared: Place,
    /// Keys of the peer that SENDs invalidate, oldest first.
    remote_keys: Vec<MemoryKey>,
    /// Own keys that are invalidated, oldest first.
    local_keys: Vec<MemoryKey>,
    publication: Publication,
    /// What happened to the lane's memory.
    calamity: Option<Calamity>,
    /// What was in the target when nobody could write it any more, and from where on.
    frozen: Option<(usize, Vec<u8>)>,
}

impl Lane {
    /// A lane with its memory: `here` is the sender's, `there` the receiver's.
    pub fn new(
        rng: &mut Rng,
        scenario: &Scenario,
        (from, connection): (usize, usize),
        here: &dyn Ground,
        there: &dyn Ground,
        shared: Place,
    ) -> Self {
        let plan = Plan::random(rng, scenario);
        let source = Place::register(rng, here, plan.source.clone(), Access::empty());
        let sink_canvas = Canvas::blank(plan.sink_length as usize + 8);
        let sink = Place::register(rng, here, sink_canvas.bytes(), Access::LOCAL_WRITE);
        let remote = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let zeros = vec![0; plan.layout.total() as usize];
        let target = Place::register(rng, there, zeros, remote);
        let keys = |memory: &dyn Ground, action| {
            let steps = plan.steps.iter().filter(|step| step.action == action);
            steps.map(|_| memory.register_fast(remote)).collect()
        };
        Self {
            from,
            connection,
            order: SendOrder::default(),
            received: 0,
            source,
            sink,
            sink_canvas,
            target,
            shared,
            remote_keys: keys(there, Action::SendInvalidate),
            local_keys: keys(here, Action::Invalidate),
            publication: Publication::default(),
            calamity: None,
            frozen: None,
            plan,
        }
    }

    /// The receiving host.
    pub fn to(&self) -> usize {
        1 - self.from
    }

    /// Whether all that was planned is complete at the sender.
    pub fn is_complete(&self) -> bool {
        self.order.completed() == self.plan.steps.len()
    }

    /// Whether the next work request adds to the shared counter.
    pub fn next_is_shared_add(&self) -> bool {
        let next = self.plan.steps.get(self.order.posted());
        next.is_some_and(|step| step.action == Action::SharedAdd)
    }

    /// Calls `post` with the next work request, if there is one; notes it if it was accepted.
    pub fn post_next(
        &mut self,
        post: impl FnOnce(&SendRequest<'_>) -> Result<bool, String>,
    ) -> Option<Result<bool, String>> {
        let number = self.order.posted();
        let step = self.plan.steps.get(number)?;
        let operation = self.operation(number, step);
        let inline;
        let sges: Vec<Sge>;
        let payload = if step.flags.contains(SendFlags::INLINE) {
            inline = self.inline(step);
            Payload::Inline(&inline)
        } else {
            sges = self.sges(step);
            Payload::Sges(&sges)
        };
        let posted = post(&SendRequest {
            id: (self.connection as u64) << 32 | number as u64,
            operation,
            flags: step.flags,
            payload,
            to: None,
        });
        if posted == Ok(true) {
            self.order.post(operation, step.length, step.flags);
        }
        Some(posted)
    }

    /// Takes the completion of a send. Gives what a shared addition had found.
    pub fn send_completed(
        &mut self,
        number: usize,
        completion: &WorkCompletion,
        memory: &dyn Ground,
    ) -> Result<Option<u64>, String> {
        self.order.complete(number, completion)?;
        let step = &self.plan.steps[number];
        let result = match step.action {
            _ if step.brings_back() => self.result(step, memory),
            Action::Invalidate if completion.status == Status::Success => {
                let key = self.local_keys[self.ordinal(number)];
                return assert_invalid(memory, key).map(|()| None);
            }
            _ => return Ok(None),
        };
        let Some(&(start, _)) = step.pieces.first() else {
            return Ok(None);
        };
        if completion.status != Status::Success {
            let range = start as usize..(start + step.length) as usize;
            self.sink_canvas.loosen(range);
            return Ok(None);
        }
        self.sink_canvas.paint(start as usize, &result);
        match step.action {
            Action::Read(at) => self.check_read(number, at, &result).map(|()| None),
            Action::SharedAdd => Ok(Some(word(&result))),
            _ if word(&result) != step.original => Err(format!(
                "atomic {number} found {:#x} instead of {:#x}",
                word(&result),
                step.original
            )),
            _ => Ok(None),
        }
    }

    /// Takes a successful receive; `data` is what its memory holds.
    pub fn receive_completed(
        &mut self,
        completion: &WorkCompletion,
        data: &[u8],
        memory: &dyn Ground,
    ) -> Result<(), String> {
        let number = self.received;
        let Some(message) = self.plan.messages.get(number) else {
            return Err(format!("message {number} was never sent"));
        };
        let invalidated = message
            .invalidates
            .then(|| self.remote_keys[self.ordinal(message.step)]);
        check_message(message, invalidated, completion, data)
            .map_err(|text| format!("message {number}: {text}"))?;
        if let Some(key) = invalidated {
            assert_invalid(memory, key)?;
        }
        self.received += 1;
        let step = message.step;
        if step >= self.order.posted() {
            return Err(format!("message {number} arrived before it was posted"));
        }
        // what was written before a message is there when the message is
        self.check_target(step, memory)
    }

    /// Something happens to the memory of the lane.
    pub fn suffer(&mut self, calamity: Calamity, here: &dyn Ground, there: &dyn Ground) {
        self.calamity = Some(calamity);
        let length = self.plan.oracle.length();
        let freeze_from = |start: usize| {
            let found = there.read(self.target.key, start, length - start);
            Some((start, found))
        };
        match calamity {
            Calamity::TargetDeregistered => {
                self.frozen = freeze_from(0);
                there.deregister(self.target.key);
            }
            Calamity::TargetUnmapped => {
                self.frozen = freeze_from(length / 2);
                there.unmap_from(self.target.key, length / 2);
            }
            Calamity::SourceDeregistered => here.deregister(self.source.key),
            Calamity::SourceUnmapped => {
                here.unmap_from(self.source.key, self.plan.source.len() / 2);
            }
            Calamity::SinkDeregistered => here.deregister(self.sink.key),
            Calamity::ReceivesUnmapped => {} // the receiving host's
        }
    }

    /// Looks at the flag and its data as a program does that polls memory.
    pub fn watch(&mut self, memory: &dyn Ground) -> Result<(), String> {
        let layout = self.plan.layout;
        let flag = memory.read(self.target.key, layout.flag() as usize, 8);
        let flag = u64::from_le_bytes(first_8(&flag));
        self.publication.look(flag, || {
            memory.read(
                self.target.key,
                layout.data() as usize,
                layout.data as usize,
            )
        })
    }

    /// Checks all memory of the lane at the end.
    pub fn finish(&mut self, here: &dyn Ground, there: &dyn Ground) -> Result<(), String> {
        let done = match self.order.failed() {
            Some((failed, _)) => failed,
            None => self.order.completed(),
        };
        // a failure may hide how far a signaled success was behind it, never before it
        self.check_target(done, there)?;
        if let Some((start, frozen)) = &self.frozen {
            let found = there.read(self.target.key, *start, frozen.len());
            if found != *frozen {
                return Err("the target changed after its memory was taken away".into());
            }
        }
        let sink = here.read(self.sink.key, 0, self.plan.sink_length as usize + 8);
        // the results of unsignaled work requests are seen only now
        let mut unseen = Vec::new();
        for (number, step) in self.plan.steps.iter().enumerate().take(done) {
            let is_atomic = matches!(
                step.action,
                Action::CompareSwap { .. } | Action::FetchAdd { .. }
            );
            if !step.flags.contains(SendFlags::SIGNALED) && step.brings_back() {
                unseen.push((number, is_atomic));
            }
        }
        for (number, is_atomic) in unseen {
            let step = &self.plan.steps[number];
            let start = step.pieces[0].0 as usize;
            let result = sink[start..start + step.length as usize].to_vec();
            if let Action::Read(at) = step.action {
                self.check_read(number, at, &result)?;
            }
            if is_atomic && word(&result) != step.original {
                return Err(format!("atomic {number} found {:#x}", word(&result)));
            }
            self.sink_canvas.paint(start, &result);
        }
        self.sink_canvas
            .check(&sink)
            .map_err(|text| format!("sink: {text}"))?;
        let source = here.read(self.source.key, 0, self.plan.source.len());
        if source != self.plan.source {
            return Err("the source changed".into());
        }
        Ok(())
    }

    /// Whether a first failure with this status is what the scenario explains.
    pub fn explains_failure(&self, number: usize, status: Status) -> bool {
        let step = &self.plan.steps[number];
        let by_flaw = step.flaw.map(|flaw| match flaw {
            Flaw::RemoteKey | Flaw::OutOfBounds => Status::RemoteAccess,
            Flaw::TooLong => Status::RemoteInvalidRequest,
            Flaw::LocalKey => Status::LocalProtection,
        });
        let brings_back = step.brings_back();
        let is_send = matches!(step.action, Action::Send(_) | Action::SendInvalidate);
        let is_local = step.action == Action::Invalidate;
        let by_calamity = match self.calamity {
            Some(Calamity::TargetDeregistered | Calamity::TargetUnmapped)
                if !is_send && !is_local =>
            {
                Some(Status::RemoteAccess)
            }
            Some(Calamity::SourceDeregistered | Calamity::SourceUnmapped)
                if !brings_back && !is_local =>
            {
                Some(Status::LocalProtection)
            }
            Some(Calamity::SinkDeregistered) if brings_back => Some(Status::LocalProtection),
            Some(Calamity::ReceivesUnmapped) if is_send => Some(Status::RemoteOperational),
            _ => None,
        };
        by_flaw == Some(status) || by_calamity == Some(status)
    }

    /// Whether a receive of this lane may fail with this status.
    pub fn explains_failed_receive(&self, status: Status) -> bool {
        if self.calamity == Some(Calamity::ReceivesUnmapped) && status == Status::LocalProtection {
            return true;
        }
        let is_shut = matches!(
            self.calamity,
            Some(Calamity::TargetDeregistered | Calamity::TargetUnmapped)
        );
        if is_shut && status == Status::LocalAccess {
            return true;
        }
        let Some(step) = self.plan.flawed.map(|number| &self.plan.steps[number]) else {
            return false;
        };
        match (step.flaw, step.action) {
            (Some(Flaw::TooLong), _) => status == Status::LocalLength,
            (Some(Flaw::RemoteKey | Flaw::OutOfBounds), Action::Write(_, Some(_))) => {
                status == Status::LocalAccess
            }
            _ => false,
        }
    }

    /// One line for somebody who looks for what is stuck.
    pub fn describe(&self) -> String {
        format!(
            "connection {} from host {}: {} of {} sends posted, {} complete, {} of {} messages \
             received, next {:?}",
            self.connection,
            self.from,
            self.order.posted(),
            self.plan.steps.len(),
            self.order.completed(),
            self.received,
            self.plan.messages.len(),
            self.plan.steps.get(self.order.completed()),
        )
    }

    fn operation(&self, number: usize, step: &Step) -> Operation {
        let remote = |at| {
            let mut remote = self.target.at(at);
            match step.flaw {
                Some(Flaw::RemoteKey) => remote.key.0 ^= 0x55,
                Some(Flaw::OutOfBounds) => {
                    remote.address = self.target.base + u64::from(self.plan.layout.total());
                    remote.address -= u64::from(step.length) - 1;
                }
                _ => {}
            }
            remote
        };
        match step.action {
            Action::Send(None) => Operation::Send,
            Action::Send(Some(immediate)) => Operation::SendImmediate(immediate),
            Action::SendInvalidate => {
                Operation::SendInvalidate(self.remote_keys[self.ordinal(number)])
            }
            Action::Write(at, None) => Operation::Write(remote(at)),
            Action::Write(at, Some(immediate)) => Operation::WriteImmediate(remote(at), immediate),
            Action::Read(at) => Operation::Read(remote(at)),
            Action::CompareSwap { at, compare, swap } => Operation::CompareSwap {
                remote: remote(at),
                compare,
                swap,
            },
            Action::FetchAdd { at, add } => Operation::FetchAdd {
                remote: remote(at),
                add,
            },
            Action::SharedAdd => Operation::FetchAdd {
                remote: self.shared.at(0),
                add: 1,
            },
            Action::Invalidate => Operation::LocalInvalidate(self.local_keys[self.ordinal(number)]),
        }
    }

    /// How many steps before this one do the same.
    fn ordinal(&self, number: usize) -> usize {
        let (before, this) = (&self.plan.steps[..number], &self.plan.steps[number]);
        before
            .iter()
            .filter(|step| step.action == this.action)
            .count()
    }

    fn sges(&self, step: &Step) -> Vec<Sge> {
        let place = if step.brings_back() {
            self.sink
        } else {
            self.source
        };
        let mut key = place.key;
        if step.flaw == Some(Flaw::LocalKey) {
            key.0 ^= 0x55;
        }
        step.pieces
            .iter()
            .map(|&(at, length)| Sge {
                address: place.base + u64::from(at),
                length,
                key,
            })
            .collect()
    }

    fn inline(&self, step: &Step) -> Vec<u8> {
        let bytes = step
            .pieces
            .iter()
            .flat_map(|&(at, length)| self.plan.source[at as usize..][..length as usize].iter());
        bytes.copied().collect()
    }

    fn result(&self, step: &Step, memory: &dyn Ground) -> Vec<u8> {
        let start = step.pieces.first().map_or(0, |&(start, _)| start);
        memory.read(self.sink.key, start as usize, step.length as usize)
    }

    /// A READ sees all before it, perhaps some of what was posted behind it, but nothing from the
    /// next fence on.
    fn check_read(&self, number: usize, at: u32, found: &[u8]) -> Result<(), String> {
        let behind = &self.plan.steps[number + 1..self.order.posted()];
        let fence = behind
            .iter()
            .position(|step| step.flags.contains(SendFlags::FENCE));
        let end = fence.map_or(self.order.posted(), |index| number + 1 + index);
        self.plan
            .oracle
            .explain(at as usize, found, number..end)
            .map_err(|byte| format!("READ {number} from {}: {byte:?}", at - GUARD))
    }

    fn check_target(&self, done: usize, memory: &dyn Ground) -> Result<(), String> {
        let found = memory.read(self.target.key, 0, self.plan.oracle.length());
        self.plan
            .oracle
            .explain(0, &found, done..self.order.posted())
            .map_err(|byte| format!("target with {done} steps done: {byte:?}"))
    }
}

fn check_message(
    message: &Message,
    invalidated: Option<MemoryKey>,
    completion: &WorkCompletion,
    data: &[u8],
) -> Result<(), String> {
    use engine::CompletionOpcode::{Receive, ReceiveRdmaWithImmediate};
    let opcode = match message.data {
        Some(_) => Receive,
        None => ReceiveRdmaWithImmediate,
    };
    let told = (
        completion.opcode,
        completion.length,
        completion.immediate,
        completion.invalidated,
    );
    let sent = (opcode, message.length, message.immediate, invalidated);
    if told != sent {
        return Err(format!("{completion:?} instead of {sent:?}"));
    }
    match &message.data {
        Some(sent) if data.get(..sent.len()) != Some(&sent[..]) => Err("other data".into()),
        _ => Ok(()),
    }
}

fn assert_invalid(memory: &dyn Ground, key: MemoryKey) -> Result<(), String> {
    if memory.is_invalid(key) {
        Ok(())
    } else {
        Err(format!("key {key} is still valid"))
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(first_8(bytes))
}

fn first_8(bytes: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    word
}
