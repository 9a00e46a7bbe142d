//! The sockets behind the slots: the UDP group, and a steering socket for each slot in use.
//!
//! None of them is ever closed: closing a member of the group would shift the indices of others.
//! The broker keeps a descriptor of each, so packets of a process that was killed stay readable,
//! and are drained before the next one gets the slot.

use std::{
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use io::{Errno, fdpass::DatagramSocket, udp};

use super::port::describe_holders;
use crate::protocol::{SLOT_BYTE_OFFSET, SLOT_COUNT, steer_name, steer_prefix};

/// How often to look who has the port: that means looking at all processes.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Datagrams taken from a slot in one go; the next turn of the loop takes more.
const DRAIN_MAX: usize = 1024;

/// The UDP group and the steering sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    port: u16,
    steer_prefix: String,
    /// Bytes of receive memory to ask for, as `SO_RCVBUF` counts them.
    receive_buffer: usize,
    group: Option<udp::Group>,
    /// Slot 0, which the broker reads itself.
    own: Option<udp::ReceiveSocket>,
    /// Why there is no group, and when that was found out.
    problem: Option<(String, Instant)>,
    steering: Vec<Option<DatagramSocket>>,
    repairs: u64,
    buffer: Vec<u8>,
}

impl Sockets {
    pub(super) fn new(port: u16, instance: &str, receive_buffer: usize) -> Self {
        Self {
            port,
            receive_buffer,
            steer_prefix: steer_prefix(instance),
            group: None,
            own: None,
            problem: None,
            steering: (0..SLOT_COUNT).map(|_| None).collect(),
            repairs: 0,
            buffer: vec![0; udp::RECEIVE_BUFFER],
        }
    }

    pub(super) fn steer_prefix(&self) -> &str {
        &self.steer_prefix
    }

    pub(super) fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Why the port is not open.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_ref().map(|(text, _)| text.as_str())
    }

    pub(super) fn is_open(&self) -> bool {
        self.group.is_some()
    }

    /// Opens the group if it is not; `true` if that is done now. The group begins with a bind
    /// that shares the port with nobody, so sockets that outlived another broker are in the way.
    pub(super) fn open(&mut self) -> bool {
        if self.group.is_some() {
            return false;
        }
        match self.open_group() {
            Ok((group, own)) => {
                self.group = Some(group);
                self.own = Some(own);
                self.problem = None;
                true
            }
            Err(error) => {
                let now = Instant::now();
                let known = self
                    .problem
                    .as_ref()
                    .is_some_and(|(_, at)| now < *at + LOOK_PERIOD);
                if !known {
                    let text = match error {
                        udp::OpenError::Taken { port } => describe_holders(port),
                        other => other.to_string(),
                    };
                    self.problem = Some((text, now));
                }
                false
            }
        }
    }

    fn open_group(&self) -> Result<(udp::Group, udp::ReceiveSocket), udp::OpenError> {
        let group =
            udp::Group::open_with(self.port, SLOT_COUNT, SLOT_BYTE_OFFSET, self.receive_buffer)?;
        let own = group.receiver(0).map_err(|cause| udp::OpenError::Failed {
            attempt: "read slot 0",
            port: self.port,
            cause,
        })?;
        Ok((group, own))
    }

    /// Bytes of truesize that each socket was granted; 0 while the port is not open.
    pub(super) fn granted(&self) -> usize {
        self.group
            .as_ref()
            .map_or(0, udp::Group::granted_receive_buffer)
    }

    pub(super) fn receive(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.group.as_ref()?.socket(usize::from(slot))
    }

    /// Lets a slot receive what is sent to a multicast group and arrives at an interface.
    pub(super) fn join(&self, slot: u8, group: IpAddr, interface: u32) -> Result<(), Errno> {
        let sockets = self.group.as_ref().ok_or(Errno::BADF)?;
        sockets.join(usize::from(slot), group, interface)
    }

    /// Ends that.
    pub(super) fn leave(&self, slot: u8, group: IpAddr, interface: u32) {
        if let Some(sockets) = &self.group
            && let Err(errno) = sockets.leave(usize::from(slot), group, interface)
        {
            // an interface that is gone has taken its groups along
            tracing::debug!(%errno, slot, %group, interface, "cannot leave a group");
        }
    }

    /// The next datagram of slot 0; `None` when none waits.
    pub(super) fn receive_own(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<Option<udp::Received>, Errno> {
        match &mut self.own {
            Some(socket) => socket.receive(buffer),
            None => Ok(None),
        }
    }

    /// Throws away what waits at a slot; says how many datagrams that was.
    pub(super) fn drain(&mut self, slot: u8) -> Result<usize, Errno> {
        let mut drained = 0;
        if let Some(group) = &self.group {
            let mut socket = group.receiver(usize::from(slot))?;
            while drained < DRAIN_MAX && socket.receive(&mut self.buffer)?.is_some() {
                drained += 1;
            }
        }
        if let Some(steering) = &self.steering[usize::from(slot)] {
            while drained < DRAIN_MAX && steering.receive(&mut self.buffer)?.is_some() {
                drained += 1;
            }
        }
        Ok(drained)
    }

    /// The steering socket of a slot, made when it is first wanted.
    pub(super) fn steering(&mut self, slot: u8) -> Result<BorrowedFd<'_>, Errno> {
        let entry = &mut self.steering[usize::from(slot)];
        if entry.is_none() {
            let name = steer_name(&self.steer_prefix, slot);
            *entry = Some(DatagramSocket::bind(name.as_bytes())?);
        }
        entry.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Looks whether the kernel still steers by slot, and repairs that: a process that got a
    /// socket can detach the program. What arrived at slot 0 meanwhile is given to `other`.
    pub(super) fn check_steering(&mut self, other: impl FnMut(&udp::Received, &[u8])) {
        let Some(group) = &mut self.group else {
            return;
        };
        match group.probe(&mut self.buffer, other) {
            Ok(true) => {}
            Ok(false) => {
                self.repairs += 1;
                match group.reattach() {
                    Ok(()) => tracing::warn!("the steering program was gone and is back"),
                    Err(error) => tracing::error!(%error, "cannot repair the steering"),
                }
            }
            // lo is down, for example: then nothing arrives by that way either
            Err(errno) => tracing::debug!(%errno, "cannot probe the steering"),
        }
    }
}
