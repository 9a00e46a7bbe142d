//! Multicast groups of a shard: which queue pairs get a copy of what is sent to one.
//!
//! Read first: IBA 10.5 (multicast), A17 (RoCEv2). A packet to a group is given
//! to one queue pair after the other, each of which looks at its Q_Key and takes a receive of its
//! own; one that has none misses it.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::burst::QpIndex;

/// Queue pairs that can be attached to a group in a shard.
pub const MEMBERS_MAX: usize = 56;

/// Groups of a shard.
pub const GROUPS_MAX: usize = 8192;

/// A group as its packets name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Its address.
    pub address: IpAddr,
    /// Index of the interface that its packets come by.
    pub interface: u32,
}

/// Why a queue pair was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// Only datagrams are sent to groups. spec: IBA 10.5
    NotDatagrams,
    /// The group has [`MEMBERS_MAX`] members, or there are [`GROUPS_MAX`] groups.
    Full,
    /// No such queue pair.
    NoQueuePair,
}

/// What became of the group when a queue pair was attached or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It was attached, or was not, before.
    Unchanged,
    /// It is the first of the group in this shard, or was the last one.
    OnlyOne,
    /// There are others.
    OneOfSeveral,
}

/// Who is attached to what; no list is empty.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: HashMap<Group, Vec<QpIndex>>,
}

impl Groups {
    pub(crate) fn attach(&mut self, group: Group, qp: QpIndex) -> Result<Membership, AttachError> {
        let count = self.members.len();
        let Some(members) = self.members.get_mut(&group) else {
            if count >= GROUPS_MAX {
                return Err(AttachError::Full);
            }
            self.members.insert(group, vec![qp]);
            return Ok(Membership::OnlyOne);
        };
        if members.contains(&qp) {
            return Ok(Membership::Unchanged);
        }
        if members.len() >= MEMBERS_MAX {
            return Err(AttachError::Full);
        }
        members.push(qp);
        Ok(Membership::OneOfSeveral)
    }

    pub(crate) fn detach(&mut self, group: Group, qp: QpIndex) -> Membership {
        let Some(members) = self.members.get_mut(&group) else {
            return Membership::Unchanged;
        };
        let before = members.len();
        members.retain(|member| *member != qp);
        if members.len() == before {
            Membership::Unchanged
        } else if members.is_empty() {
            self.members.remove(&group);
            Membership::OnlyOne
        } else {
            Membership::OneOfSeveral
        }
    }

    /// The member of a group at `place`, in the order of attaching.
    pub(crate) fn member(&self, group: &Group, place: usize) -> Option<QpIndex> {
        self.members.get(group)?.get(place).copied()
    }

    /// A queue pair is gone.
    pub(crate) fn forget(&mut self, qp: QpIndex) {
        self.members.retain(|_, members| {
            members.retain(|member| *member != qp);
            !members.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn group(number: u32) -> Group {
        Group {
            address: Ipv4Addr::from(0xe000_0000 + number).into(),
            interface: 1,
        }
    }

    #[test]
    fn the_first_and_the_last_of_a_group_are_told() {
        let mut groups = Groups::default();
        let (one, two) = (QpIndex(1), QpIndex(2));
        assert_eq!(groups.attach(group(1), one), Ok(Membership::OnlyOne));
        assert_eq!(groups.attach(group(1), one), Ok(Membership::Unchanged));
        assert_eq!(groups.attach(group(1), two), Ok(Membership::OneOfSeveral));
        assert_eq!(groups.attach(group(2), one), Ok(Membership::OnlyOne));
        assert_eq!(groups.member(&group(1), 1), Some(two));
        assert_eq!(groups.detach(group(1), one), Membership::OneOfSeveral);
        assert_eq!(groups.detach(group(1), one), Membership::Unchanged);
        assert_eq!(groups.member(&group(1), 0), Some(two));
        assert_eq!(groups.detach(group(1), two), Membership::OnlyOne);
        assert_eq!(groups.detach(group(1), two), Membership::Unchanged);
        groups.forget(one);
        assert_eq!(groups.member(&group(2), 0), None);
    }

    #[test]
    fn groups_and_their_members_are_bounded() {
        let mut groups = Groups::default();
        for number in 0..MEMBERS_MAX {
            assert!(groups.attach(group(0), QpIndex(number as u16)).is_ok());
        }
        assert_eq!(
            groups.attach(group(0), QpIndex(9999)),
            Err(AttachError::Full)
        );
        for number in 1..GROUPS_MAX {
            assert!(groups.attach(group(number as u32), QpIndex(0)).is_ok());
        }
        let one_more = group(GROUPS_MAX as u32);
        assert_eq!(groups.attach(one_more, QpIndex(0)), Err(AttachError::Full));
    }
}
