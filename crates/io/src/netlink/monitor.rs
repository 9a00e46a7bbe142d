//! Changes of interfaces and addresses, as the kernel announces them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::message::{self, Message};
use super::{Address, BUFFER, Interface, open, read};
use crate::raw::Descriptor;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interface is new or something about it changed (its addresses excepted).
    Link(Interface),
    /// An interface is gone from this namespace.
    LinkGone(Interface),
    /// An address is new or its flags changed.
    Address(Address),
    /// An address is gone.
    AddressGone(Address),
    /// Events were lost: list everything anew.
    Overrun,
}

/// Hears changes from its making on. To miss nothing, make it first and list afterwards.
#[derive(Debug)]
pub struct Monitor {
    socket: Descriptor,
    buffer: Box<[u8]>,
    /// Events of the datagram that was read last.
    pending: VecDeque<Event>,
}

impl Monitor {
    /// Begins to listen.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            socket: open(GROUPS)?,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            pending: VecDeque::new(),
        })
    }

    /// The next event; `None` when nothing has happened. Never blocks. Call it until `None` after
    /// the descriptor became readable.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn next_event(&mut self) -> Result<Option<Event>, Errno> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            match read(&self.socket, &mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(Some(bytes)) => {
                    self.pending
                        .extend(message::messages(bytes).filter_map(|m| event_of(&m)));
                }
                // Not from the kernel: says nothing.
                Ok(None) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NOBUFS) => return Ok(Some(Event::Overrun)),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn event_of(message: &Message<'_>) -> Option<Event> {
    match message.kind {
        libc::RTM_NEWLINK => message::parse_link(message.body).map(Event::Link),
        libc::RTM_DELLINK => message::parse_link(message.body).map(Event::LinkGone),
        libc::RTM_NEWADDR => message::parse_address(message.body).map(Event::Address),
        libc::RTM_DELADDR => message::parse_address(message.body).map(Event::AddressGone),
        _ => None,
    }
}
