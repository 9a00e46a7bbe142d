//! What is no data: room, the ends of both directions, entries of the iomap, signs of life.

use softrdma::{Operation, Payload, RemoteMemory};
use wire::MemoryKey;
use wire::rsocket::{Mapping, Message, TARGETS, Target};

use super::{End, Endpoint, Flow, number, remote};
use crate::credit::SendWindow;
use crate::error::{Error, Result};

impl Endpoint {
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

    /// Takes over the next piece of the peer's buffer, if the peer has written one.
    pub(super) fn take_target(&self, flow: &mut Flow) {
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

    pub(super) fn announce_or_break(&self, flow: &mut Flow) {
        if let Err(error) = self.announce(flow) {
            tracing::debug!(%error, "a stream cannot tell its peer of room");
            flow.finish(End::Broken("nothing can be sent to the peer"));
        }
    }

    /// Tells the peer what it may send now, if that is worth a message.
    pub(super) fn announce(&self, flow: &mut Flow) -> Result<()> {
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

/// The memory of a WRITE without bytes.
fn nowhere() -> RemoteMemory {
    RemoteMemory {
        address: 0,
        key: MemoryKey(0),
    }
}
