//! A queue pair for datagrams, and the slots that they are sent from and received into.
//!
//! What was received stays in its slot until the program has read it: nothing is dropped here, and
//! nothing copied twice. What comes when all slots are full is dropped by the queue pair, as by
//! any of its kind.

use std::net::SocketAddr;
use std::sync::Arc;

use softrdma::{
    Access, Addressee, Capabilities, CompletionChannel, CompletionOpcode, CompletionQueue,
    Operation, Payload, ProgramBytes, ProgramBytesMut, QueuePair, QueuePairOptions, Region,
    SendFlags, SendRequest, Status, Transport, WorkCompletion,
};
use wire::rsocket::DatagramHeader;
use wire::{QKey, Qpn};

use super::{SLOT, plain};
use crate::error::{Error, Result};
use crate::service::Service;
use crate::settings::Settings;

/// In front of a received datagram. spec: IBA 11.4.1.2
const GRH: usize = 40;

/// The Q_Key of datagrams of `rdma_cm`.
pub const QKEY: QKey = QKey(0x0123_4567);

/// Completions taken at once.
const BATCH: usize = 32;

/// A work request that was a receive.
const RECEIVE: u64 = 1 << 63;

/// An own address with its queue pair.
pub struct End {
    pub local: SocketAddr,
    pair: QueuePair,
    queue: CompletionQueue,
    sends: Region,
    /// Slots of `sends` that are free.
    free: Vec<u32>,
    receives: Region,
    /// Bytes of a datagram with its header.
    length_max: usize,
}

/// A datagram in the slot that it was received into.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    pub source: SocketAddr,
    slot: u32,
    /// Where its data begin in `receives`.
    start: usize,
    pub length: usize,
}

impl End {
    /// A queue pair of `local` that can send and receive.
    pub fn new(
        service: &Service,
        link: &str,
        channel: &Arc<CompletionChannel>,
        local: SocketAddr,
        settings: &Settings,
    ) -> Result<Self> {
        let (device, domain) = service.device(link)?;
        let (sends, receives) = (
            u32::from(settings.send_queue),
            u32::from(settings.receive_queue),
        );
        let queue = device.completion_queue_on(sends + receives, Some(channel), 0)?;
        let pair = domain.queue_pair(QueuePairOptions {
            transport: Transport::Ud,
            send_cq: &queue,
            receive_cq: &queue,
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: sends,
                receive_wr_max: receives,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 0,
            },
            signal_all: true,
        })?;
        pair.open(QKEY)?;
        let memory = |count: u32, size: usize| {
            domain.register(vec![0; count as usize * size], Access::LOCAL_WRITE)
        };
        let end = Self {
            local,
            sends: memory(sends, SLOT)?,
            free: (0..sends).rev().collect(),
            receives: memory(receives, GRH + SLOT)?,
            length_max: SLOT.min(device.active_mtu().bytes() as usize),
            pair,
            queue,
        };
        for slot in 0..receives {
            end.post_receive(slot)?;
        }
        // the first completion wakes who polls
        end.arm()?;
        Ok(end)
    }

    /// The number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.pair.qpn()
    }

    /// The most bytes of a datagram behind a header of so many.
    pub fn length_max(&self, header: usize) -> usize {
        self.length_max.saturating_sub(header)
    }

    /// Asks for an event at the next completion.
    pub fn arm(&self) -> Result<()> {
        Ok(self.queue.request_notify(false)?)
    }

    /// Whether a datagram can be sent.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Datagrams that can be sent before one of them has left.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if all slots are in use, [`Error::TooLong`].
    pub fn post(&mut self, to: &Addressee, from: ProgramBytes<'_>) -> Result<usize> {
        let mut header = Vec::with_capacity(32);
        DatagramHeader { source: self.local }.emit(&mut header);
        let most = self.length_max(header.len());
        if from.length() > most {
            return Err(Error::TooLong(most));
        }
        let slot = *self.free.last().ok_or(Error::WouldBlock)?;
        let start = slot as usize * SLOT;
        let data = start + header.len();
        self.sends.copy_in(start, &header)?;
        self.sends.fill(data, from)?;
        let sge = self.sends.slice(start..data + from.length())?;
        self.pair.post_send(&SendRequest {
            id: slot.into(),
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[sge]),
            to: Some(to),
        })?;
        self.free.pop();
        Ok(from.length())
    }

    /// Takes completions: tells `arrived` of each datagram that came. Whether there were any.
    pub fn process(&mut self, mut arrived: impl FnMut(Filled)) -> Result<bool> {
        let empty = WorkCompletion::success(0, CompletionOpcode::Send, 0, self.pair.qpn());
        let mut taken = [empty; BATCH];
        let mut was_any = false;
        loop {
            let count = self.queue.poll(&mut taken);
            was_any |= count > 0;
            for completion in &taken[..count] {
                let slot = completion.id as u32;
                if completion.id & RECEIVE == 0 {
                    self.free.push(slot);
                    continue;
                }
                match self.filled(slot, completion)? {
                    Some(filled) => arrived(filled),
                    None => self.post_receive(slot)?,
                }
            }
            if count < BATCH {
                return Ok(was_any);
            }
        }
    }

    /// What came into a slot, if it is of an rsocket: others can reach the queue pair as well.
    fn filled(&self, slot: u32, completion: &WorkCompletion) -> Result<Option<Filled>> {
        if completion.status != Status::Success {
            return Ok(None);
        }
        let length = (completion.length as usize).saturating_sub(GRH).min(SLOT);
        let start = slot as usize * (GRH + SLOT) + GRH;
        let mut front = [0; DatagramHeader::LENGTH_MAX];
        let front = &mut front[..length.min(DatagramHeader::LENGTH_MAX)];
        self.receives.copy_out(start, front)?;
        Ok(DatagramHeader::parse(front)
            .ok()
            .map(|(header, skip)| Filled {
                source: plain(header.source),
                slot,
                start: start + skip,
                length: length - skip,
            }))
    }

    /// Copies the front of a datagram to where the program wants it.
    pub fn read(&self, filled: &Filled, to: ProgramBytesMut<'_>) -> Result<()> {
        Ok(self.receives.drain(filled.start, to)?)
    }

    /// Gives a slot back, the datagram in which nobody wants any more.
    pub fn release(&self, filled: Filled) -> Result<()> {
        self.post_receive(filled.slot)
    }

    fn post_receive(&self, slot: u32) -> Result<()> {
        let start = slot as usize * (GRH + SLOT);
        let sge = self.receives.slice(start..start + GRH + SLOT)?;
        Ok(self.pair.post_receive(RECEIVE | u64::from(slot), &[sge])?)
    }
}
