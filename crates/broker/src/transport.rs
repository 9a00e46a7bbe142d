//! Records over a unix connection: `io::fdpass` with a bounded buffer and a deadline.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use io::{
    Errno,
    fdpass::{self, Arrival, Credentials, Sent},
    poll::wait_readable,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::protocol::RECORD_LENGTH_MAX;

/// What a look at a connection found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A whole record.
    Record {
        bytes: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    },
    /// Nothing, yet.
    Nothing,
    /// The other end is gone.
    End,
}

/// Room for the longest record. Who receives often keeps it: to zero it anew each time takes longer
/// than all the rest.
#[derive(Debug)]
pub(crate) struct Room(Box<[u8]>);

impl Default for Room {
    fn default() -> Self {
        Self(vec![0; RECORD_LENGTH_MAX].into_boxed_slice())
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection(fdpass::Connection);

impl Connection {
    pub(crate) fn new(connection: fdpass::Connection) -> Self {
        Self(connection)
    }

    /// Connects to an abstract name.
    pub(crate) fn connect(name: &str) -> Result<Self, Errno> {
        fdpass::Connection::connect(name.as_bytes()).map(Self)
    }

    /// Another descriptor of the same connection.
    pub(crate) fn duplicate(&self) -> Result<Self, Errno> {
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&self.0, 0)?;
        Ok(Self(fdpass::Connection::from_fd(descriptor)))
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Result<Credentials, Errno> {
        self.0.peer()
    }

    /// A descriptor that tells the end of the process at the other end.
    pub(crate) fn peer_pidfd(&self) -> Result<io::Descriptor, Errno> {
        self.0.peer_pidfd()
    }

    /// Sends a record without waiting; `EAGAIN` if the other end does not read.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        match self.0.send(bytes, descriptors)? {
            Sent::Sent => Ok(()),
            Sent::WouldBlock => Err(Errno::AGAIN),
        }
    }

    /// Takes a record, if one is there.
    pub(crate) fn try_receive(&self, room: &mut Room) -> Result<Received, Errno> {
        match self.0.receive(&mut room.0)? {
            Arrival::Empty => Ok(Received::Nothing),
            Arrival::Closed => Ok(Received::End),
            // a record that fits has lost descriptors at most, for this process had no numbers for
            // them: whoever expects some counts them
            Arrival::Message(message) if message.truncated && message.length == room.0.len() => {
                Err(Errno::MSGSIZE)
            }
            Arrival::Message(message) => {
                let bytes = room.0[..message.length].to_vec();
                let descriptors = message.descriptors.into_iter().map(OwnedFd::from).collect();
                Ok(Received::Record { bytes, descriptors })
            }
        }
    }

    /// Waits for a record until `deadline`; [`Received::Nothing`] if that passed.
    pub(crate) fn receive(&self, deadline: Instant, room: &mut Room) -> Result<Received, Errno> {
        loop {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .as_nanos();
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            if !wait_readable(self, Some(left))? {
                return Ok(Received::Nothing);
            }
            match self.try_receive(room)? {
                Received::Nothing => {}
                other => return Ok(other),
            }
        }
    }

    /// Whether the other end is gone; takes nothing.
    pub(crate) fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(self, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match poll(&mut watched, Some(&now)) {
            Ok(_) => watched[0]
                .revents()
                .intersects(PollFlags::HUP | PollFlags::ERR),
            // interrupted: the next look tells
            Err(_) => false,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
