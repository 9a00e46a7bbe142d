//! Bytes of the program: into the peer's buffer, and out of the own one.

use softrdma::{Operation, Payload, ProgramBytes, ProgramBytesMut};
use wire::rsocket::Message;

use super::{Endpoint, Flow, lock, number, remote};
use crate::credit::SendWindow;
use crate::error::{Error, Result};

/// The first message of a long send, and the longest: the first leaves soon, while the program's
/// bytes are still being copied, and the others are long enough for full packets.
const STEP_FIRST: usize = 16 << 10;
const STEP_MAX: usize = 128 << 10;

/// The most inline data of the device.
const INLINE_MAX: usize = 512;

impl Endpoint {
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
}
