//! The side of a queue pair that programs touch without the shard's lock: its send ring, its
//! receive queue, a copy of its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use engine::qp::{Capabilities, Operation, Payload, PostError, SendRequest, State, Transport};
use engine::{AsyncEvent, Posted, QpIndex, ReceiveWqe};
use wire::{Mtu, Qpn};

use crate::attributes::MAX_MESSAGE;
use crate::completion_queue::CompletionQueueUse;
use crate::error::{Error, Result};
use crate::event_queue::{EventKind, EventQueue};
use crate::ring::SendRing;
use crate::send_list::SendList;
use crate::shard::DeviceHost;
use crate::shared_receive_queue::{Receives, SharedReceiveUse};

/// Where what was posted goes in the shard.
pub(crate) trait SendQueues {
    /// Appends a send to the queue pair's queue.
    fn post_send(
        &mut self,
        index: QpIndex,
        request: &SendRequest<'_>,
    ) -> std::result::Result<Posted, PostError>;

    /// Sends that were queued and have left the queue again.
    fn sends_completed(&self, index: QpIndex) -> u64;
}

impl SendQueues for engine::Shard<DeviceHost> {
    fn post_send(
        &mut self,
        index: QpIndex,
        request: &SendRequest<'_>,
    ) -> std::result::Result<Posted, PostError> {
        Self::post_send(self, index, request)
    }

    fn sends_completed(&self, index: QpIndex) -> u64 {
        Self::sends_completed(self, index)
    }
}

/// What carries the messages of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Packets of RoCE.
    Packets,
    /// A stream of iWARP.
    Stream {
        /// Whether it has atomics and immediate data. spec: RFC 7306
        has_extensions: bool,
    },
}

/// See the module.
pub struct Front {
    qpn: Qpn,
    /// Index of the link that it counts for.
    link: u32,
    transport: Transport,
    carrier: Carrier,
    /// Bytes of its longest message.
    message_max: u64,
    capabilities: Capabilities,
    state: AtomicU8,
    /// Whether the shard was told that the ring is not empty.
    pub(crate) announced: AtomicBool,
    sends: SendRing,
    receives: Receives,
    events: Arc<EventQueue>,
    /// What the program knows the queue pair by.
    cookie: AtomicU64,
    /// EBUSY of completion queues counts these.
    _queues: [CompletionQueueUse; 2],
    /// The same of a shared receive queue.
    _shared: Option<SharedReceiveUse>,
}

impl Front {
    /// A queue pair in RESET. `port_mtu` bounds its messages if they are datagrams.
    pub fn new(
        qpn: Qpn,
        link: u32,
        (transport, carrier, port_mtu): (Transport, Carrier, Mtu),
        capabilities: Capabilities,
        receives: Receives,
        events: Arc<EventQueue>,
        queues: [CompletionQueueUse; 2],
    ) -> Self {
        let shared = match &receives {
            Receives::Own(_) => None,
            Receives::Shared(queue) => Some(queue.attach()),
        };
        Self {
            qpn,
            link,
            transport,
            carrier,
            message_max: match transport {
                Transport::Ud => port_mtu.bytes().into(),
                Transport::Rc | Transport::Uc => MAX_MESSAGE.into(),
            },
            capabilities,
            state: AtomicU8::new(State::Reset as u8),
            announced: AtomicBool::new(false),
            sends: SendRing::new(capabilities.send_wr_max),
            receives,
            events,
            cookie: AtomicU64::new(0),
            _queues: queues,
            _shared: shared,
        }
    }

    /// The number of the shared receive queue that it takes from.
    pub(crate) fn shared_receives(&self) -> Option<u32> {
        self.receives.shared_number()
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Index of the link that it counts for.
    pub(crate) fn link(&self) -> u32 {
        self.link
    }

    /// Its index in the shard.
    pub fn index(&self) -> QpIndex {
        QpIndex(self.qpn.index())
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether a stream of iWARP carries its messages.
    pub fn is_stream(&self) -> bool {
        self.carrier != Carrier::Packets
    }

    /// Its sizes.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Its state as far as posting is concerned.
    pub fn state(&self) -> State {
        State::from_code(u32::from(self.state.load(Ordering::SeqCst))).unwrap_or(State::Error)
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Whether its asynchronous events go there.
    pub fn reports_to(&self, events: &Arc<EventQueue>) -> bool {
        Arc::ptr_eq(&self.events, events)
    }

    /// Sets what events carry to name this queue pair.
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Takes room for sends, all of them or none. When there seems to be none, `settle` finds out
    /// what is complete.
    pub(crate) fn reserve_sends(&self, count: usize, settle: impl FnOnce()) -> Result<()> {
        if self.sends.reserve(count).is_err() {
            settle();
            self.sends
                .reserve(count)
                .map_err(|_| Error::Post(PostError::QueueFull))?;
        }
        Ok(())
    }

    /// Leaves a send, for which there is room, to whoever has the shard's lock.
    pub(crate) fn queue_send(&self, request: &SendRequest<'_>) {
        self.sends.push(request);
    }

    /// Whether a send waits for whoever has the shard's lock.
    pub(crate) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// What can be said of a send without the engine. spec: IBA 11.4.1.1
    pub(crate) fn check_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.check(request).map_err(Error::Post)
    }

    fn check(&self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        match self.state() {
            State::Reset | State::Init | State::ReadyToReceive => {
                return Err(PostError::WrongState);
            }
            _ => {}
        }
        if !self.carrier.carries(&request.operation) {
            return Err(PostError::NotOfTransport);
        }
        if self.transport == Transport::Ud {
            let is_datagram = matches!(
                request.operation,
                Operation::Send | Operation::SendImmediate(_)
            );
            if !is_datagram {
                return Err(PostError::NotOfTransport);
            }
            if request.to.is_none() {
                return Err(PostError::NoAddressee);
            }
        }
        let brings_back = request.operation.is_answered();
        let length = match request.payload {
            Payload::Sges(sges) => {
                if sges.len() > self.capabilities.send_sge_max as usize {
                    return Err(PostError::TooManySges);
                }
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
            Payload::Inline(_) if brings_back => return Err(PostError::InlineNotAllowed),
            Payload::Inline(bytes) => {
                if bytes.len() > self.capabilities.inline_max as usize {
                    return Err(PostError::InlineTooLong);
                }
                bytes.len() as u64
            }
        };
        if length > self.message_max {
            return Err(PostError::MessageTooLong);
        }
        if let Operation::CompareSwap { remote, .. } | Operation::FetchAdd { remote, .. } =
            request.operation
            && (length < 8 || remote.address % 8 != 0)
        {
            return Err(PostError::BadAtomic);
        }
        Ok(())
    }

    /// Queues a receive.
    pub(crate) fn queue_receive(&self, wqe: ReceiveWqe) -> Result<()> {
        let Receives::Own(receives) = &self.receives else {
            return Err(Error::Invalid(
                "the receives of this queue pair are posted to its shared receive queue",
            ));
        };
        // siw takes receives before there is a connection
        if self.state() == State::Reset && !self.is_stream() {
            return Err(Error::Post(PostError::WrongState));
        }
        if wqe.sges.len() > self.capabilities.receive_sge_max as usize {
            return Err(Error::Post(PostError::TooManySges));
        }
        receives.post(wqe).map_err(|_| Error::ReceiveQueueFull)
    }

    /// Gives what was posted to the engine, in order. Within the shard's lock; `scratch` is kept
    /// for its memory.
    pub(crate) fn hand_over(&self, queues: &mut impl SendQueues, scratch: &mut SendList) {
        self.sends.drain(scratch);
        for request in scratch.requests() {
            self.post(queues, &request);
        }
        scratch.clear();
    }

    /// Gives one send, which was checked and for which there is room, to the engine.
    pub(crate) fn post(&self, queues: &mut impl SendQueues, request: &SendRequest<'_>) {
        match queues.post_send(self.index(), request) {
            Ok(Posted::Queued) => {}
            Ok(Posted::Flushed) => self.sends.release(1),
            Err(error) => {
                // the front made the same checks; a reset in between drops what was posted
                tracing::debug!(?error, qpn = %self.qpn, "a posted request met a reset");
                self.sends.release(1);
            }
        }
    }

    /// Tells the ring what is complete. Within the shard's lock.
    pub(crate) fn settle(&self, queues: &impl SendQueues) {
        self.sends.settle(queues.sends_completed(self.index()));
    }

    /// RESET: what was posted vanishes.
    pub(crate) fn clear(&self) {
        self.sends.clear();
        if let Receives::Own(receives) = &self.receives {
            receives.clear();
        }
    }

    /// Puts an asynchronous event into the context's queue.
    pub(crate) fn report(&self, event: AsyncEvent) {
        let cookie = self.cookie.load(Ordering::Relaxed);
        if let Some(kind) = EventKind::of(event) {
            self.events.push(kind, cookie);
        }
    }
}

impl Carrier {
    /// Whether it has such messages at all.
    fn carries(self, operation: &Operation) -> bool {
        match (self, operation) {
            (Self::Packets, _) => true,
            // immediate data goes with Writes alone
            (Self::Stream { .. }, Operation::SendImmediate(_)) => false,
            (
                Self::Stream { has_extensions },
                Operation::WriteImmediate(..)
                | Operation::CompareSwap { .. }
                | Operation::FetchAdd { .. },
            ) => has_extensions,
            (Self::Stream { .. }, _) => true,
        }
    }
}
