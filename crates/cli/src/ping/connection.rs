//! One end of a connection with its buffers: each call waits until it is done.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use softrdma::cm::{CmEvent, EventChannel, EventKind, Id, Request};
use softrdma::{
    Access, CompletionChannel, CompletionOpcode, CompletionQueue, Device, Error, ProtectionDomain,
    QueuePair, QueuePairOptions, Region, State, Status, WorkCompletion,
};

use super::info::BufferInfo;
use super::{no_stream, unexpected};

/// Work requests of a round that can be under way.
const DEPTH: u32 = 16;

/// Where events come from: those of connections, and later those of completions.
pub(super) struct Watch {
    events: Arc<EventChannel>,
}

impl Watch {
    pub(super) fn new() -> Result<Self> {
        let events = EventChannel::new().context("make an event channel")?;
        Ok(Self {
            events: Arc::new(events),
        })
    }

    pub(super) fn events(&self) -> &Arc<EventChannel> {
        &self.events
    }

    /// The event that comes next.
    fn try_next(&self) -> Option<CmEvent> {
        let event = self.events.try_next()?;
        self.events.acknowledge(event.cookie, 1);
        Some(event.kind)
    }

    /// Waits for a request of a client. What becomes of one that was not taken is passed by.
    pub(super) fn request(&self) -> Result<Id> {
        loop {
            match self.try_next() {
                Some(CmEvent {
                    request: Some(id), ..
                }) => return Ok(id),
                Some(_) => {}
                None => wait(&[&self.events])?,
            }
        }
    }

    /// Waits for an event, which has to be of this kind.
    pub(super) fn expect(&self, kind: EventKind) -> Result<CmEvent> {
        self.expect_or(kind, |event| unexpected(event, None))
    }

    /// The same, with words of its own for another kind.
    fn expect_or(
        &self,
        kind: EventKind,
        explain: impl Fn(&CmEvent) -> anyhow::Error,
    ) -> Result<CmEvent> {
        loop {
            match self.try_next() {
                Some(event) if event.kind == kind => return Ok(event),
                Some(event) => return Err(explain(&event)),
                None => wait(&[&self.events])?,
            }
        }
    }
}

/// See the module. The order of the fields is that in which they may be destroyed.
pub(super) struct Connection {
    id: Id,
    qp: QueuePair,
    /// What is told to the other end.
    outgoing: Region,
    /// What it tells.
    incoming: Region,
    /// Where a server READs from.
    source: Region,
    /// Where a text is READ to, and WRITTEN to.
    text: Region,
    cq: CompletionQueue,
    channel: Arc<CompletionChannel>,
    _pd: ProtectionDomain,
    pub(super) watch: Watch,
    size: u32,
    /// What completed and was not waited for yet.
    done: RefCell<VecDeque<WorkCompletion>>,
    /// The peer has closed the connection: nothing more will come.
    is_closed: Cell<bool>,
}

impl Connection {
    /// A queue pair in INIT for an ID that has a device, and buffers for texts of `size` bytes that
    /// the peer has these rights on.
    pub(super) fn new(watch: Watch, id: Id, size: u32, rights: Access) -> Result<Self> {
        let link = id.link().context("the connection has no device")?;
        let device = Device::open(&link)?;
        let pd = device.protection_domain()?;
        let channel = device.completion_channel()?;
        let cq = device.completion_queue_on(2 * DEPTH, Some(&channel), 0)?;
        let options = QueuePairOptions::rc(&cq)
            .send_depth(DEPTH)
            .receive_depth(DEPTH);
        let qp = pd.queue_pair(options)?;
        let buffer = |length: usize, rights| pd.register(vec![0; length], rights);
        let connection = Self {
            outgoing: buffer(BufferInfo::LENGTH, Access::LOCAL_WRITE)?,
            incoming: buffer(BufferInfo::LENGTH, Access::LOCAL_WRITE)?,
            source: buffer(size as usize, rights)?,
            text: buffer(size as usize, rights)?,
            id,
            qp,
            cq,
            channel,
            _pd: pd,
            watch,
            size,
            done: RefCell::default(),
            is_closed: Cell::default(),
        };
        connection.step(State::Init)?;
        connection.post_receive()?;
        Ok(connection)
    }

    /// Takes the queue pair one step, as connection management has agreed.
    fn step(&self, state: State) -> Result<()> {
        let (attributes, address, mask) = self.id.step(state)?;
        Ok(self.qp.modify(&attributes, &address, mask)?)
    }

    /// To RTS: rights as they are known now, the peer, then sending.
    fn become_ready(&self) -> Result<()> {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            self.step(state)?;
        }
        Ok(())
    }

    /// What is said of the queue pair.
    fn request(&self) -> Request {
        Request {
            qpn: self.qp.qpn().get(),
            responder_resources: Some(1),
            initiator_depth: Some(1),
            retry_count: 7,
            rnr_retry_count: 7,
            ..Request::default()
        }
    }

    /// Accepts the request that the ID is of.
    pub(super) fn accept(&self) -> Result<()> {
        let request = self.request();
        self.id.prepare_accept(&request)?;
        self.become_ready()?;
        Ok(self.id.accept(&request)?)
    }

    /// Connects, and waits until that is done.
    pub(super) fn connect(&self) -> Result<()> {
        self.id
            .connect(&self.request())
            .map_err(|error| match error {
                Error::Tcp { errno, .. } => {
                    no_stream(-errno.raw_os_error()).unwrap_or_else(|| errno.into())
                }
                error => error.into(),
            })?;
        if self.id.is_stream() {
            self.watch.expect_or(EventKind::Established, |event| {
                let reason = no_stream(event.status);
                reason.unwrap_or_else(|| unexpected(event, self.id.remote()))
            })?;
            return Ok(());
        }
        self.watch.expect(EventKind::ConnectResponse)?;
        self.become_ready()?;
        Ok(self.id.establish()?)
    }

    /// Ends the connection, whoever began with that.
    pub(super) fn disconnect(&self) -> Result<()> {
        if !self.id.is_stream() {
            self.step(State::Error)?;
        }
        Ok(self.id.disconnect()?)
    }

    /// What the peer may READ.
    pub(super) fn source(&self) -> BufferInfo {
        self.info(&self.source)
    }

    /// Where the peer may WRITE to.
    pub(super) fn sink(&self) -> BufferInfo {
        self.info(&self.text)
    }

    fn info(&self, region: &Region) -> BufferInfo {
        let remote = region.remote();
        BufferInfo {
            address: remote.address,
            key: remote.key,
            length: self.size,
        }
    }

    pub(super) fn set_source(&self, text: &[u8]) -> Result<()> {
        Ok(self.source.copy_in(0, text)?)
    }

    /// What was READ or WRITTEN.
    pub(super) fn text(&self, length: u32) -> Result<Vec<u8>> {
        let mut text = vec![0; length as usize];
        self.text.copy_out(0, &mut text)?;
        Ok(text)
    }

    fn post_receive(&self) -> Result<()> {
        Ok(self.qp.post_receive(0, &[self.incoming.slice(..)?])?)
    }

    /// What the peer tells; `None` if it left.
    pub(super) fn receive(&self) -> Result<Option<BufferInfo>> {
        let Some(done) = self.complete(|done| done.is_receive)? else {
            return Ok(None);
        };
        ensure!(
            done.length as usize == BufferInfo::LENGTH,
            "a message of {} bytes: the other end is no rping",
            done.length
        );
        let mut bytes = [0; BufferInfo::LENGTH];
        self.incoming.copy_out(0, &mut bytes)?;
        // before the peer is told anything, so that it is there when it answers
        self.post_receive()?;
        Ok(Some(BufferInfo::from_bytes(bytes)))
    }

    /// Tells the peer.
    pub(super) fn send(&self, info: BufferInfo) -> Result<()> {
        self.outgoing.copy_in(0, &info.to_bytes())?;
        let mut batch = self.qp.batch();
        batch.send(self.outgoing.slice(..)?).signaled();
        batch.post()?;
        self.sent(CompletionOpcode::Send)
    }

    /// READs a text of the peer.
    pub(super) fn read(&self, from: BufferInfo, length: u32) -> Result<()> {
        let mut batch = self.qp.batch();
        batch
            .read(self.text.slice(..length as usize)?, from.remote().at(0))
            .signaled();
        batch.post()?;
        self.sent(CompletionOpcode::RdmaRead)
    }

    /// WRITEs the text to the peer.
    pub(super) fn write(&self, to: BufferInfo, length: u32) -> Result<()> {
        let mut batch = self.qp.batch();
        batch
            .write(self.text.slice(..length as usize)?, to.remote().at(0))
            .signaled();
        batch.post()?;
        self.sent(CompletionOpcode::RdmaWrite)
    }

    fn sent(&self, opcode: CompletionOpcode) -> Result<()> {
        match self.complete(|done| !done.is_receive && done.opcode == opcode)? {
            Some(_) => Ok(()),
            None => bail!("the other end left during a {opcode:?}"),
        }
    }

    /// Waits for a completion; `None` if the connection ends before it comes.
    fn complete(&self, is_it: impl Fn(&WorkCompletion) -> bool) -> Result<Option<WorkCompletion>> {
        loop {
            if let Some(done) = self.take(&is_it)? {
                return Ok(Some(done));
            }
            while let Some(event) = self.channel.events.try_next() {
                self.channel.events.acknowledge(event.cookie, 1);
            }
            self.cq.request_notify(false)?;
            // what came before that raises no event
            if let Some(done) = self.take(&is_it)? {
                return Ok(Some(done));
            }
            if self.is_closed.get() {
                return Ok(None);
            }
            match self.watch.try_next() {
                // the last of it may have come meanwhile
                Some(event) if event.kind == EventKind::Disconnected => self.is_closed.set(true),
                // it says what the message that was received has said already
                Some(event) if event.kind == EventKind::Established => {}
                Some(event) => return Err(unexpected(&event, self.id.remote())),
                None => wait(&[&self.watch.events, &self.channel.events])?,
            }
        }
    }

    fn take(&self, is_it: impl Fn(&WorkCompletion) -> bool) -> Result<Option<WorkCompletion>> {
        let mut done = self.done.borrow_mut();
        for completion in self.cq.wait(Duration::ZERO) {
            match completion.result() {
                // over iWARP the queue pair may know of the end before connection management does
                Err(error) if error.status == Status::Flushed => {}
                result => done.push_back(result?),
            }
        }
        let at = done.iter().position(is_it);
        Ok(at.and_then(|at| done.remove(at)))
    }
}

/// Waits until one of these has an event.
fn wait(channels: &[&dyn AsFd]) -> Result<()> {
    let mut watched: Vec<PollFd<'_>> = channels
        .iter()
        .map(|channel| PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN))
        .collect();
    match poll(&mut watched, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("wait for events"),
    }
}
