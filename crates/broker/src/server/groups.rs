//! Multicast groups that slots have joined.
//!
//! The kernel gives a packet to a group to every socket that joined it, whatever the steering
//! program says, so the socket of a slot joins itself. It outlives the process that has the slot:
//! what that process joined has to be known here, to be left with the slot.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use io::Errno;

use super::{
    Server,
    requests::{malformed, system},
    slots::Owner,
};
use crate::protocol::{Refusal, Reply};

/// A group's address, and the index of the interface.
pub(super) type Group = (IpAddr, u32);

/// Groups of a slot. The kernel bounds those of a socket too, by default below this for IPv4.
const GROUPS_OF_SLOT_MAX: usize = 8192;

/// Which slots have joined what; no set is empty.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: HashMap<u8, HashSet<Group>>,
}

impl Server {
    pub(super) fn join_group(
        &mut self,
        owner: Owner,
        slot: u8,
        group: Group,
    ) -> Result<Reply, Refusal> {
        self.check_owner(owner, slot)?;
        let (address, interface) = group;
        if !address.is_multicast() || interface == 0 {
            return Err(malformed("that is no multicast group on an interface"));
        }
        let joined = self.groups.joined.entry(slot).or_default();
        if joined.contains(&group) {
            return Ok(Reply::Done);
        }
        let result = if joined.len() < GROUPS_OF_SLOT_MAX {
            self.sockets.join(slot, address, interface)
        } else {
            Err(Errno::NOMEM)
        };
        match result {
            Ok(()) => {
                joined.insert(group);
                Ok(Reply::Done)
            }
            Err(errno) => {
                if joined.is_empty() {
                    self.groups.joined.remove(&slot);
                }
                // too many for the socket: verbs know one word for that
                let errno = match errno {
                    Errno::NOBUFS => Errno::NOMEM,
                    other => other,
                };
                Err(system("join a multicast group")(errno))
            }
        }
    }

    pub(super) fn leave_group(
        &mut self,
        owner: Owner,
        slot: u8,
        group: Group,
    ) -> Result<Reply, Refusal> {
        self.check_owner(owner, slot)?;
        if let Some(joined) = self.groups.joined.get_mut(&slot)
            && joined.remove(&group)
        {
            if joined.is_empty() {
                self.groups.joined.remove(&slot);
            }
            self.sockets.leave(slot, group.0, group.1);
        }
        Ok(Reply::Done)
    }

    /// The slot is given back.
    pub(super) fn leave_groups(&mut self, slot: u8) {
        for (address, interface) in self.groups.joined.remove(&slot).unwrap_or_default() {
            self.sockets.leave(slot, address, interface);
        }
    }

    fn check_owner(&self, owner: Owner, slot: u8) -> Result<(), Refusal> {
        if self.slots.owner(slot) == Some(owner) {
            Ok(())
        } else {
            Err(Refusal::NotYourSlot { slot })
        }
    }
}
