//! The data path of a stream: a queue pair, its buffers, and the flow between them.
//!
//! | module | what |
//! |---|---|
//! | `flow` | what is in flight and what the peer has said, without a device |
//! | `data` | bytes of the program |
//! | `control` | what is no data: room, ends, entries of the iomap, signs of life |
//! | `words` | how a message says what it was |
//!
//! Three locks, in this order: a program's thread that sends holds `sending`, one that receives
//! holds `receiving`, and both hold `flow` for short, never while they copy. Whoever holds `flow`
//! may take completions, for itself and for others.

mod control;
mod data;
mod flow;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io::Errno;
use softrdma::cm::Id;
use softrdma::{
    Access, Capabilities, CompletionChannel, CompletionOpcode, CompletionQueue, Device, LinkKind,
    ProtectionDomain, QueuePair, QueuePairOptions, Region, RemoteMemory, State, Status, Transport,
    WorkCompletion,
};
use wire::MemoryKey;
use wire::rsocket::{ConnectionData, Mapping, TARGETS, Target};

use self::flow::Flow;
pub use self::flow::{End, Readiness};
use self::words::Words;
use crate::credit::{CONTROLS, SendWindow};
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::wait::Waiters;

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
    /// A word behind a WRITE, which has its own number.
    pub const WORD: u64 = 3 << 32;
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
    words: Words,
    inline_max: usize,
    mtu: u32,
    credits: u16,
    pub(crate) sending: Mutex<()>,
    receiving: Mutex<()>,
    flow: Mutex<Flow>,
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
        let has_immediates = device.kind() == LinkKind::Rxe;
        let requests = if has_immediates { sends } else { 2 * sends };
        let queue = device.completion_queue_on(requests + receives, Some(channel), 0)?;
        let most = device.attributes().max_inline;
        let pair = domain.queue_pair(QueuePairOptions {
            transport: Transport::Rc,
            send_cq: &queue,
            receive_cq: &queue,
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: requests,
                receive_wr_max: receives,
                send_sge_max: 1,
                receive_sge_max: u32::from(!has_immediates),
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
        let endpoint = Self {
            send_buffer: domain
                .register(zeros(settings.send_buffer as usize)?, Access::LOCAL_WRITE)?,
            receive_buffer: domain.register(zeros(2 * half as usize)?, write)?,
            lists: domain.register(zeros(list_length)?, write)?,
            iomap: settings.iomap,
            words: if has_immediates {
                Words::IMMEDIATE
            } else {
                Words::in_messages(domain, receives)?
            },
            inline_max: usize::from(settings.inline).min(pair.capabilities().inline_max as usize),
            mtu: device.active_mtu().bytes(),
            credits: settings.receive_queue,
            channel: Arc::clone(channel),
            waiters: Arc::clone(waiters),
            domain: domain.clone(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            flow: Mutex::new(Flow::new(half as usize, settings)),
            pair,
            queue,
        };
        endpoint.step(id, State::Init)?;
        for place in 0..receives {
            endpoint.post_receive(place)?;
        }
        Ok(endpoint)
    }

    /// Whether the peer is known.
    pub fn has_met(&self) -> bool {
        self.flow().peer.is_some()
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

    pub(crate) fn flow(&self) -> MutexGuard<'_, Flow> {
        lock(&self.flow)
    }

    /// Takes completions, gives back receives, and tells the peer of new room.
    pub(crate) fn process(&self, flow: &mut Flow) {
        if flow.peer.is_none() {
            // over iWARP words may come before it is known who says them
            return;
        }
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
                    flow.hear(self.word(completion));
                    // a queue pair that is over takes none, which its own completion tells
                    let _ = self.post_receive(completion.id as u32);
                } else {
                    // the peer did what no rsocket does, or the connection is over already
                    flow.finish(End::Broken("the queue pair receives no more"));
                }
                return;
            }
            number::WORD if is_success => return,
            number::WORD => {
                flow.finish(End::Broken("the peer does not answer"));
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
}

/// A buffer, whose size the program says.
fn zeros(length: usize) -> Result<Vec<u8>> {
    io::memory::zeros(length).ok_or(Error::System {
        attempt: "make the buffers of a stream",
        errno: Errno::NOMEM,
    })
}

/// Where in the peer's memory, `offset` after the front of a target.
pub(crate) fn remote(target: &Target, offset: u64) -> RemoteMemory {
    RemoteMemory {
        address: target.address.wrapping_add(offset),
        key: target.key,
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing between two consistent states can panic
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
