//! What is in flight and what the peer has said: the state of a stream's connection, without a
//! device.

use wire::rsocket::{ConnectionData, Message, Target};

use crate::credit::{CONTROLS, ReceiveWindow, SendWindow};
use crate::error::{Error, Result};
use crate::settings::Settings;

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
    pub(super) peer: Option<ConnectionData>,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    pub(super) send_slots: u32,
    /// Sends that are not done.
    pub(super) outstanding: u32,
    /// Control messages that may be sent.
    pub(super) controls: u32,
    /// The entry of the own target list that comes next.
    pub(super) next_target: usize,
    /// Whether the peer may have written there.
    pub(super) has_news: bool,
    /// The entry of the peer's target list that comes next.
    pub(super) peer_target: u32,
    /// Whether the peer knows that the connection is established.
    pub(super) is_established: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) end: Option<End>,
    /// Changes with every completion.
    pub(super) activity: u64,
}

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
    /// Nothing sent, nothing said.
    pub fn new(half: usize, settings: &Settings) -> Self {
        let sends = u32::from(settings.send_queue);
        Self {
            peer: None,
            send: SendWindow::new(0, 0, 0, Target::default()),
            receive: ReceiveWindow::new(half, settings.receive_queue),
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
        }
    }

    pub fn has_something_to_read(&self) -> bool {
        self.receive.readable() > 0 || (self.peer.is_some() && !self.readable)
    }

    pub fn has_something_to_write(&self) -> bool {
        self.writable && self.send.is_open()
    }

    pub fn readiness(&self) -> Readiness {
        Readiness {
            readable: self.has_something_to_read(),
            writable: self.has_something_to_write(),
            // what came before the end is read first: many programs stop at a hang-up
            hung_up: self.end == Some(End::Closed) && self.receive.readable() == 0,
            failed: matches!(self.end, Some(End::Broken(_))),
        }
    }

    pub fn not_writable(&self) -> Error {
        match self.end {
            Some(End::Broken(why)) => Error::Reset(why),
            _ if self.peer.is_none() => Error::NotConnected,
            _ if !self.is_established => Error::WouldBlock,
            _ => Error::Reset("nothing can be sent any more"),
        }
    }

    /// What a read of nothing is.
    pub fn nothing_to_read(&self) -> Result<usize> {
        match self.end {
            Some(End::Broken(why)) => Err(Error::Reset(why)),
            _ if self.readable => Err(Error::WouldBlock),
            _ if self.peer.is_none() => Err(Error::NotConnected),
            _ => Ok(0),
        }
    }

    /// A message of the peer.
    pub fn hear(&mut self, immediate: Option<[u8; 4]>) {
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

    pub fn commit_slot(&mut self, buffered: usize) {
        self.send.commit_slot(buffered);
        self.outstanding += 1;
    }

    pub fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.readable = false;
        self.writable = false;
    }
}

#[cfg(test)]
mod tests;
