//! The data path of a stream: a queue pair, its buffers, and the flow between them.
//!
//! Three locks, in this order: a program's thread that sends holds `sending`, one that receives
//! holds `receiving`, and both hold `flow` for short, never while they copy. Whoever holds `flow`
//! may take completions, for itself and for others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softrdma::cm::Id;
use softrdma::{
    Access, Capabilities, CompletionChannel, CompletionOpcode, CompletionQueue, Device, Operation,
    Payload, ProgramBytes, ProgramBytesMut, ProtectionDomain, QueuePair, QueuePairOptions, Region,
    RemoteMemory, SendFlags, SendRequest, State, Status, Transport, WorkCompletion,
};
use wire::MemoryKey;
use wire::rsocket::{ConnectionData, Mapping, Message, TARGETS, Target};

use crate::credit::{CONTROLS, ReceiveWindow, SendWindow};
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::wait::Waiters;

/// The first message of a long send, and the longest: the first leaves soon, while the program's
/// bytes are still being copied, and the others are long enough for full packets.
const STEP_FIRST: usize = 16 << 10;
const STEP_MAX: usize = 128 << 10;

/// Completions taken at once.
const BATCH: usize = 32;

/// RNR timer code 12, 0.64 ms: the answer to a peer that sends faster than this side looks. What
/// `rdma_cm` sets, 655 ms, is a long pause for a stream.
const RNR_TIMER: u8 = 12;

/// Retries, for both kinds, as librdmacm asks for them: 7 RNR retries are without end.
pub const RETRIES: u8 = 7;

/// What a work request was, in the upper half of its number; the lower half has the bytes of the
/// send buffer that it holds.
mod number {
    pub const DATA: u64 = 0;
    pub const CONTROL: u64 = 1 << 32;
    pub const RECEIVE: u64 = 2 << 32;
    pub const KIND: u64 = !0 << 32;
}

/// The queue pair of a stream and all that belongs to it.
pub struct Endpoint {
    pair: QueuePair,
    queue: CompletionQueue,
    channel: Arc<CompletionChannel>,
    waiters: Arc<Waiters>,
    pub(crate) domain: ProtectionDomain,
    send_buffer: Region,
    receive_buffer: Region,
    /// The target list, and the iomap behind it: the peer writes both.
    lists: Region,
    iomap: u16,
    inline_max: usize,
    mtu: u32,
    credits: u16,
    pub(crate) sending: Mutex<()>,
    receiving: Mutex<()>,
    flow: Mutex<Flow>,
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order: what came can be read to its end.
    Closed,
    /// Not in order.
    Broken(&'static str),
}

/// What is in flight, and what the peer has said.
pub struct Flow {
    /// `None` until there is a connection.
    peer: Option<ConnectionData>,
    send: SendWindow,
    receive: ReceiveWindow,
    send_slots: u32,
    /// Sends that are not done.
    outstanding: u32,
    /// Control messages that may be sent.
    controls: u32,
    /// The entry of the own target list that comes next.
    next_target: usize,
    /// Whether the peer may have written there.
    has_news: bool,
    /// The entry of the peer's target list that comes next.
    peer_target: u32,
    /// Whether the peer knows that the connection is established.
    is_established: bool,
    readable: bool,
    writable: bool,
    end: Option<End>,
    /// Changes with every completion.
    activity: u64,
}

impl Endpoint {
    /// Makes the queue pair of `id` in INIT, with its receives posted.
    pub fn new(
        device: &Device,
        domain: &ProtectionDomain,
        channel: &Arc<CompletionChannel>,
        waiters: &Arc<Waiters>,
        id: &Id,
        settings: &Settings,
    ) -> Result<Self> {
        let receives = u32::from(settings.receive_queue) + CONTROLS;
        let sends = u32::from(settings.send_queue);
        let queue = device.completion_queue_on(sends + receives, Some(channel), 0)?;
        let most = device.attributes().max_inline;
        let pair = domain.queue_pair(QueuePairOptions {
            transport: Transport::Rc,
            send_cq: &queue,
            receive_cq: &queue,
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: sends,
                receive_wr_max: receives,
                send_sge_max: 1,
                receive_sge_max: 0,
                inline_max: u32::from(settings.inline)
                    .max(Mapping::LENGTH as u32)
                    .min(most),
            },
            signal_all: true,
        })?;
        let half = (settings.receive_buffer / 2).max(1);
        let list_length =
            TARGETS as usize * Target::LENGTH + usize::from(settings.iomap) * Mapping::LENGTH;
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let zeros = |length: usize| vec![0; length];
        let endpoint = Self {
            send_buffer: domain
                .register(zeros(settings.send_buffer as usize), Access::LOCAL_WRITE)?,
            receive_buffer: domain.register(zeros(2 * half as usize), write)?,
            lists: domain.register(zeros(list_length), write)?,
            iomap: settings.iomap,
            inline_max: usize::from(settings.inline).min(pair.capabilities().inline_max as usize),
            mtu: device.active_mtu().bytes(),
            credits: settings.receive_queue,
            channel: Arc::clone(channel),
            waiters: Arc::clone(waiters),
            domain: domain.clone(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            flow: Mutex::new(Flow {
                peer: None,
                send: SendWindow::new(0, 0, 0, Target::default()),
                receive: ReceiveWindow::new(half as usize, settings.receive_queue),
                send_slots: sends.saturating_sub(CONTROLS).max(1),
                outstanding: 0,
                controls: CONTROLS,
                next_target: 1,
                has_news: false,
                peer_target: 1,
                is_established: false,
                readable: false,
                writable: false,
                end: None,
                activity: 0,
            }),
            pair,
            queue,
        };
        endpoint.step(id, State::Init)?;
        for _ in 0..receives {
            endpoint.pair.post_receive(number::RECEIVE, &[])?;
        }
        Ok(endpoint)
    }

    /// The number of the queue pair.
    pub fn qpn(&self) -> u32 {
        self.pair.qpn().get()
    }

    /// Bytes of a packet.
    pub fn packet_length(&self) -> u32 {
        self.mtu
    }

    /// What the peer has to know.
    pub fn connection_data(&self) -> ConnectionData {
        let target = |region: &Region, length: u32| {
            let remote = region.remote();
            Target {
                address: remote.address,
                key: MemoryKey(remote.key),
                length,
            }
        };
        let half = (self.receive_buffer.remote().length / 2) as u32; // of a number of 32 bits
        ConnectionData {
            is_big_endian: cfg!(target_endian = "big"),
            credits: self.credits,
            iomap: Some(self.iomap),
            targets: target(&self.lists, TARGETS),
            buffer: target(&self.receive_buffer, half),
        }
    }

    /// Moves the queue pair as the connection says.
    pub fn step(&self, id: &Id, state: State) -> Result<()> {
        let (mut attributes, address, mask) = id.step(state)?;
        attributes.min_rnr_timer = RNR_TIMER;
        Ok(self.pair.modify(&attributes, &address, mask)?)
    }

    /// The peer is known: bytes may come.
    pub fn meet(&self, peer: ConnectionData) {
        let mut flow = self.flow();
        let size = self.send_buffer.remote().length as usize;
        flow.send = SendWindow::new(size, flow.send_slots, peer.credits, peer.buffer);
        flow.peer = Some(peer);
        flow.readable = true;
    }

    /// The connection is established: bytes may be sent too.
    pub fn open(&self) {
        let mut flow = self.flow();
        flow.is_established = true;
        flow.writable = flow.end.is_none();
        if let Err(error) = self.announce(&mut flow) {
            tracing::debug!(%error, "a new connection");
        }
    }

    /// What a program may do now; takes completions if it cannot do what it wants.
    pub fn readiness(&self, read: bool, write: bool) -> Readiness {
        let mut flow = self.flow();
        let is_ready = |flow: &Flow| {
            (!read || flow.has_something_to_read()) && (!write || flow.has_something_to_write())
        };
        if !is_ready(&flow) || !(read || write) {
            self.process(&mut flow);
        }
        flow.readiness()
    }

    /// Asks for an event at the next completion.
    pub fn arm(&self) -> Result<()> {
        while let Some(event) = self.channel.events.try_next() {
            self.channel.events.acknowledge(event.cookie, 1);
        }
        Ok(self.queue.request_notify(false)?)
    }

    /// Sends as much as there is room for now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none; [`Error::Reset`] when nothing can be sent any more.
    pub fn send(&self, from: ProgramBytes<'_>) -> Result<usize> {
        let _turn = lock(&self.sending);
        let mut done = 0;
        let mut step = STEP_FIRST;
        while done < from.length() {
            let left = from.part(done, step);
            match self.send_message(left) {
                Ok(length) => done += length,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            step = (2 * step).min(STEP_MAX);
        }
        Ok(done)
    }

    /// One data message of as many bytes as fit.
    fn send_message(&self, from: ProgramBytes<'_>) -> Result<usize> {
        let mut flow = self.flow();
        self.prepare(&mut flow, SendWindow::is_open)?;
        let (target, length) = flow.send.target(from.length());
        drop(flow);
        let operation = |length: usize| {
            let immediate = Message::Data(length as u32).to_immediate();
            Operation::WriteImmediate(remote(&target, 0), immediate)
        };
        self.post_copied(from.part(0, length), operation, |flow, length| {
            flow.send.commit_data(length as u32);
        })
    }

    /// Makes sure that something may be sent.
    pub(crate) fn prepare(
        &self,
        flow: &mut Flow,
        is_open: impl Fn(&SendWindow) -> bool,
    ) -> Result<()> {
        if !is_open(&flow.send) {
            self.process(flow);
        }
        if !flow.writable {
            return Err(flow.not_writable());
        }
        if is_open(&flow.send) {
            Ok(())
        } else {
            Err(Error::WouldBlock)
        }
    }

    /// Posts a work request with a copy of the first bytes of `from`: as many as there is room for.
    /// The caller has its turn to send, and made sure that there is room for something.
    pub(crate) fn post_copied(
        &self,
        from: ProgramBytes<'_>,
        operation: impl Fn(usize) -> Operation,
        commit: impl Fn(&mut Flow, usize),
    ) -> Result<usize> {
        if from.length() <= self.inline_max {
            let mut bytes = [0; INLINE_MAX];
            // at most as much as the device has, which is no more
            let bytes = &mut bytes[..from.length().min(INLINE_MAX)];
            from.read(bytes)?;
            let mut flow = self.flow();
            self.post(operation(bytes.len()), number::DATA, Payload::Inline(bytes))?;
            flow.commit_slot(0);
            commit(&mut flow, bytes.len());
            drop(flow);
            self.pair.flush_sends();
            return Ok(bytes.len());
        }
        let (at, length) = self.flow().send.room(from.length());
        let from = from.part(0, length);
        self.send_buffer.fill(at, from)?;
        let sge = self.send_buffer.slice(at..at + length)?;
        let number = number::DATA | length as u64;
        let mut flow = self.flow();
        self.post(operation(length), number, Payload::Sges(&[sge]))?;
        flow.commit_slot(length);
        commit(&mut flow, length);
        drop(flow);
        self.pair.flush_sends();
        Ok(length)
    }

    fn post(&self, operation: Operation, id: u64, payload: Payload<'_>) -> Result<()> {
        Ok(self.pair.queue_send(&SendRequest {
            id,
            operation,
            flags: SendFlags::SIGNALED,
            payload,
            to: None,
        })?)
    }

    /// Takes bytes that have come; 0 at their end.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none, [`Error::Reset`] if the connection broke.
    pub fn receive(&self, mut to: ProgramBytesMut<'_>, peek: bool) -> Result<usize> {
        let _turn = lock(&self.receiving);
        let mut done = 0;
        while done < to.length() {
            let mut flow = self.flow();
            if flow.receive.readable() == 0 && done == 0 {
                self.process(&mut flow);
                if flow.receive.readable() == 0 {
                    return flow.nothing_to_read();
                }
            }
            let after = if peek { done } else { 0 };
            let (at, length) = flow.receive.piece(after, to.length() - done);
            drop(flow);
            if length == 0 {
                break;
            }
            self.receive_buffer.drain(at, to.part(done, length))?;
            done += length;
            if !peek {
                let mut flow = self.flow();
                flow.receive.consume(length);
                self.announce_or_break(&mut flow);
            }
        }
        Ok(done)
    }

    /// Says to the peer that no more will be sent, or also that no more will be received.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if too much is in flight to say it now.
    pub fn shut_down(&self, read: bool, write: bool) -> Result<()> {
        let mut flow = self.flow();
        if flow.peer.is_none() || flow.end.is_some() {
            return Ok(());
        }
        let stays_readable = flow.readable && !read;
        let stays_writable = flow.writable && !write;
        let message = match (stays_readable, stays_writable) {
            (true, true) => return Ok(()),
            // nothing says that this side does not listen any more
            (false, true) => None,
            (true, false) => flow.writable.then_some(Message::Shutdown),
            (false, false) => (flow.readable || flow.writable).then_some(Message::Disconnect),
        };
        if let Some(message) = message {
            if flow.controls == 0 {
                self.process(&mut flow);
            }
            if flow.controls == 0 && flow.end.is_none() {
                return Err(Error::WouldBlock);
            }
            if flow.end.is_none() {
                let operation = Operation::WriteImmediate(nowhere(), message.to_immediate());
                self.post_control(&mut flow, operation, &[])?;
            }
        }
        flow.readable = stays_readable;
        flow.writable = stays_writable;
        Ok(())
    }

    /// Whether all that was sent has arrived, or never will.
    pub fn is_drained(&self) -> bool {
        let mut flow = self.flow();
        if flow.outstanding > 0 {
            self.process(&mut flow);
        }
        flow.outstanding == 0 || flow.end.is_some()
    }

    /// Whether neither side sends any more.
    pub fn is_over(&self) -> bool {
        let flow = self.flow();
        flow.end.is_some() || !(flow.readable || flow.writable)
    }

    /// The connection came to its end.
    pub fn end(&self, end: End) {
        let mut flow = self.flow();
        // what came before is still in the completion queue
        self.process(&mut flow);
        flow.finish(end);
    }

    /// Asks the peer's queue pair for a sign of life. Nothing else would tell a stream that only
    /// receives that its peer is gone.
    pub fn probe(&self, last_activity: &mut u64) {
        let mut flow = self.flow();
        if flow.activity == *last_activity && flow.outstanding == 0 && flow.controls > 0 {
            self.process(&mut flow);
            if flow.end.is_none() && flow.peer.is_some() {
                let written = Operation::Write(nowhere());
                if let Err(error) = self.post_control(&mut flow, written, &[]) {
                    tracing::debug!(%error, "a sign of life cannot be asked for");
                }
            }
        } else if flow.outstanding > 0 {
            self.process(&mut flow);
        }
        *last_activity = flow.activity;
    }

    /// An entry of the iomap as the peer left it.
    pub(crate) fn mapping(&self, index: u16) -> Result<Mapping> {
        let mut bytes = [0; Mapping::LENGTH];
        let at = TARGETS as usize * Target::LENGTH + usize::from(index) * Mapping::LENGTH;
        self.lists.copy_out(at, &mut bytes)?;
        Ok(Mapping::from_own_bytes(bytes))
    }

    /// Entries of the own iomap.
    pub(crate) fn mappings(&self) -> u16 {
        self.iomap
    }

    /// Writes an entry of the peer's iomap. The caller has its turn to send.
    pub(crate) fn send_mapping(&self, index: u16, mapping: Mapping) -> Result<()> {
        let mut flow = self.flow();
        self.prepare(&mut flow, SendWindow::is_open)?;
        let peer = flow.peer.ok_or(Error::NotConnected)?;
        let list = u64::from(peer.targets.length) * Target::LENGTH as u64;
        let at = list + u64::from(index) * Mapping::LENGTH as u64;
        let immediate = Message::Iomap(index).to_immediate();
        let operation = Operation::WriteImmediate(remote(&peer.targets, at), immediate);
        let bytes = mapping.to_bytes(peer.is_big_endian);
        self.post(operation, number::DATA, Payload::Inline(&bytes))?;
        flow.commit_slot(0);
        flow.send.commit_message();
        drop(flow);
        self.pair.flush_sends();
        Ok(())
    }

    /// The peer's iomap has so many entries.
    pub(crate) fn peer_mappings(&self) -> u16 {
        self.flow().peer.and_then(|peer| peer.iomap).unwrap_or(0)
    }

    pub(crate) fn flow(&self) -> MutexGuard<'_, Flow> {
        lock(&self.flow)
    }

    /// Takes completions, gives back receives, and tells the peer of new room.
    pub(crate) fn process(&self, flow: &mut Flow) {
        let empty = WorkCompletion::success(0, CompletionOpcode::Send, 0, self.pair.qpn());
        let mut taken = [empty; BATCH];
        let before = flow.activity;
        loop {
            let count = self.queue.poll(&mut taken);
            for completion in &taken[..count] {
                self.take(flow, completion);
            }
            if count < BATCH {
                break;
            }
        }
        self.announce_or_break(flow);
        if flow.send.needs_target() && flow.has_news {
            self.take_target(flow);
        }
        if flow.activity != before {
            self.waiters.ring();
        }
    }

    fn take(&self, flow: &mut Flow, completion: &WorkCompletion) {
        flow.activity += 1;
        let is_success = completion.status == Status::Success;
        match completion.id & number::KIND {
            number::RECEIVE => {
                if is_success {
                    flow.hear(completion.immediate);
                    // a queue pair that is over takes none, which its own completion tells
                    let _ = self.pair.post_receive(number::RECEIVE, &[]);
                }
                return;
            }
            number::CONTROL => flow.controls += 1,
            _ => flow.send.complete(completion.id as u32 as usize),
        }
        flow.outstanding -= 1;
        if !is_success {
            tracing::debug!(status = ?completion.status, "a stream broke");
            flow.finish(End::Broken("the peer does not answer"));
        }
    }

    /// Takes over the next piece of the peer's buffer, if the peer has written one.
    fn take_target(&self, flow: &mut Flow) {
        let at = flow.next_target * Target::LENGTH;
        let mut bytes = [0; Target::LENGTH];
        // inside of the list
        if self.lists.copy_out(at, &mut bytes).is_err() {
            return;
        }
        let target = Target::from_own_bytes(bytes);
        if target.length == 0 {
            flow.has_news = false;
            return;
        }
        // the peer writes here again only after this piece is full
        let _ = self.lists.copy_in(at, &[0; Target::LENGTH]);
        flow.send.set_target(target);
        flow.next_target = (flow.next_target + 1) % TARGETS as usize;
    }

    fn announce_or_break(&self, flow: &mut Flow) {
        if let Err(error) = self.announce(flow) {
            tracing::debug!(%error, "a stream cannot tell its peer of room");
            flow.finish(End::Broken("nothing can be sent to the peer"));
        }
    }

    /// Tells the peer what it may send now, if that is worth a message.
    fn announce(&self, flow: &mut Flow) -> Result<()> {
        while flow.receive.is_due() && flow.controls > 0 && flow.end.is_none() {
            let Some(peer) = flow.peer else {
                return Ok(());
            };
            let announcement = flow.receive.announce();
            let immediate = Message::Credit(announcement.sequence).to_immediate();
            match announcement.target {
                Some(offset) => {
                    let buffer = self.receive_buffer.remote();
                    let target = Target {
                        address: buffer.address + offset as u64,
                        key: MemoryKey(buffer.key),
                        length: (buffer.length / 2) as u32,
                    };
                    let at = u64::from(flow.peer_target) * Target::LENGTH as u64;
                    let list = remote(&peer.targets, at);
                    let bytes = target.to_bytes(peer.is_big_endian);
                    let operation = Operation::WriteImmediate(list, immediate);
                    self.post_control(flow, operation, &bytes)?;
                    // a peer without a list gets what it deserves: a write to its first entry
                    flow.peer_target = (flow.peer_target + 1) % peer.targets.length.max(1);
                }
                None => {
                    let operation = Operation::WriteImmediate(nowhere(), immediate);
                    self.post_control(flow, operation, &[])?;
                }
            }
        }
        Ok(())
    }

    fn post_control(&self, flow: &mut Flow, operation: Operation, bytes: &[u8]) -> Result<()> {
        self.post(operation, number::CONTROL, Payload::Inline(bytes))?;
        flow.controls -= 1;
        flow.outstanding += 1;
        self.pair.flush_sends();
        Ok(())
    }
}

/// The most inline data of the device.
const INLINE_MAX: usize = 512;

/// What poll tells of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read would not wait.
    pub readable: bool,
    /// A write would not wait.
    pub writable: bool,
    /// The connection is over.
    pub hung_up: bool,
    /// It broke, or could not be made.
    pub failed: bool,
}

impl Flow {
    fn has_something_to_read(&self) -> bool {
        self.receive.readable() > 0 || (self.peer.is_some() && !self.readable)
    }

    fn has_something_to_write(&self) -> bool {
        self.writable && self.send.is_open()
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            readable: self.has_something_to_read(),
            writable: self.has_something_to_write(),
            // what came before the end is read first: many programs stop at a hang-up
            hung_up: self.end == Some(End::Closed) && self.receive.readable() == 0,
            failed: matches!(self.end, Some(End::Broken(_))),
        }
    }

    fn not_writable(&self) -> Error {
        match self.end {
            Some(End::Broken(why)) => Error::Reset(why),
            _ if self.peer.is_none() => Error::NotConnected,
            _ if !self.is_established => Error::WouldBlock,
            _ => Error::Reset("nothing can be sent any more"),
        }
    }

    /// What a read of nothing is.
    fn nothing_to_read(&self) -> Result<usize> {
        match self.end {
            Some(End::Broken(why)) => Err(Error::Reset(why)),
            _ if self.readable => Err(Error::WouldBlock),
            _ if self.peer.is_none() => Err(Error::NotConnected),
            _ => Ok(0),
        }
    }

    /// A message of the peer.
    fn hear(&mut self, immediate: Option<[u8; 4]>) {
        match immediate.and_then(Message::from_immediate) {
            Some(Message::Data(length)) => {
                if self.receive.receive(length).is_err() {
                    self.finish(End::Broken("the peer wrote more than there is room for"));
                }
            }
            Some(Message::Credit(sequence)) => {
                self.send.allow(sequence);
                self.has_news = true;
            }
            Some(Message::Iomap(_)) => self.receive.receive_message(),
            Some(Message::Disconnect) => self.finish(End::Closed),
            Some(Message::Shutdown) => {
                self.readable = false;
                if !self.writable {
                    self.finish(End::Closed);
                }
            }
            Some(Message::KeepAlive) => {}
            None => self.finish(End::Broken("the peer does not speak the protocol")),
        }
    }

    fn commit_slot(&mut self, buffered: usize) {
        self.send.commit_slot(buffered);
        self.outstanding += 1;
    }

    fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.readable = false;
        self.writable = false;
    }
}

/// Where in the peer's memory, `offset` after the front of a target.
pub(crate) fn remote(target: &Target, offset: u64) -> RemoteMemory {
    RemoteMemory {
        address: target.address.wrapping_add(offset),
        key: target.key,
    }
}

/// The memory of a WRITE without bytes.
fn nowhere() -> RemoteMemory {
    RemoteMemory {
        address: 0,
        key: MemoryKey(0),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing between two consistent states can panic
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
