//! Attaching queue pairs to multicast groups. spec: IBA 10.5
//!
//! The shard knows who is attached and gives each its copy; the broker joins the group on the
//! socket of the lane, for as long as anybody there is. See `docs/decisions/0012-multicast.md`.

use std::sync::PoisonError;

use broker::client::Client;
use broker::link::LinkKind;
use engine::{AttachError, Group, Membership};
use wire::Gid;

use crate::error::{Error, Result};
use crate::front::Front;
use crate::lane::Lane;
use crate::queue_pair::QueuePair;

impl QueuePair {
    /// Attaches it to a group: what is sent to the group and arrives at the link's interface comes
    /// to this queue pair too. Once or twice is the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless it takes datagrams and `group` is one; [`Error::NoRoom`] when the
    /// group has as many members as it can have; [`Error::Call`] when the kernel does not let the
    /// socket join; [`Error::Unsupported`] on iWARP.
    pub fn attach(&self, group: Gid) -> Result<()> {
        self.process().check()?;
        if self.pd.context.kind == LinkKind::Siw {
            return Err(Error::Unsupported("a multicast group of iWARP"));
        }
        if !group.is_multicast() {
            return Err(Error::Invalid("the GID is not a multicast group"));
        }
        let group = self.group(group);
        let mut own = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.contains(&group) {
            self.place
                .join(&self.process().broker, &self.front, group)?;
            own.push(group);
        }
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not attached to the group.
    pub fn detach(&self, group: Gid) -> Result<()> {
        self.check_not_forked()?;
        let group = self.group(group);
        let mut own = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let at = own.iter().position(|attached| *attached == group);
        own.swap_remove(at.ok_or(Error::Invalid("it is not attached to this group"))?);
        self.place.leave(&self.process().broker, &self.front, group);
        Ok(())
    }

    /// Whether it is attached to a group: then C's `destroy` answers EBUSY.
    pub fn is_attached(&self) -> bool {
        if self.check_not_forked().is_err() {
            return false;
        }
        let own = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        !own.is_empty()
    }

    /// Leaves all groups, before the queue pair goes.
    pub(crate) fn detach_all(&self) {
        let mut own = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for group in own.drain(..) {
            self.place.leave(&self.process().broker, &self.front, group);
        }
    }

    fn group(&self, gid: Gid) -> Group {
        Group {
            address: gid.ip(),
            interface: self.pd.context.link().netdev_index,
        }
    }
}

impl Lane {
    /// Attaches a queue pair of this lane; the first one joins.
    fn join(&self, broker: &Client, front: &Front, group: Group) -> Result<()> {
        let _one_at_a_time = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = self.core.shard.lock().engine.attach(front.index(), group);
        let membership = attached.map_err(|error| match error {
            AttachError::NotDatagrams => Error::Invalid("only datagrams can be sent to a group"),
            AttachError::Full => Error::NoRoom("queue pair in a multicast group"),
            AttachError::NoQueuePair => Error::DeviceFatal,
        })?;
        if membership == Membership::OnlyOne
            && let Err(error) = broker.join_group(self.slot, group.address, group.interface)
        {
            self.core.shard.lock().engine.detach(front.index(), group);
            return Err(Error::Call(error));
        }
        Ok(())
    }

    /// Detaches it; the last one leaves.
    fn leave(&self, broker: &Client, front: &Front, group: Group) {
        let _one_at_a_time = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let membership = self.core.shard.lock().engine.detach(front.index(), group);
        if membership == Membership::OnlyOne
            && let Err(error) = broker.leave_group(self.slot, group.address, group.interface)
        {
            // a broker that is gone has left, and its sockets with it
            tracing::debug!(%error, ?group, "cannot leave a group");
        }
    }
}
