//! Which slot got the request of which requester, as far back as memory goes.
//!
//! Two things need it. A request that is repeated, because the reply to it was lost, belongs to who
//! got it first, though that one may have stopped to listen. And a requester that gives up before
//! it knows an ID of the other side can say no more than its own (IBA 12.6.7.2, reason 4).

use std::collections::{HashMap, VecDeque};

use super::{route::Requester, slots::Owner};

/// Requests remembered, oldest forgotten first: more than a minute's worth at two hundred a second.
const REMEMBERED_MAX: usize = 16_384;

/// Who got a request: a slot, as long as it is this client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recipient {
    pub(super) slot: u8,
    pub(super) owner: Owner,
}

/// The requests of late.
#[derive(Debug, Default)]
pub(super) struct Requesters {
    recipients: HashMap<Requester, Recipient>,
    /// In the order in which they came.
    order: VecDeque<Requester>,
}

impl Requesters {
    pub(super) fn recipient(&self, requester: Requester) -> Option<Recipient> {
        self.recipients.get(&requester).copied()
    }

    pub(super) fn remember(&mut self, requester: Requester, recipient: Recipient) {
        if self.recipients.insert(requester, recipient).is_some() {
            return;
        }
        self.order.push_back(requester);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.recipients.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::{CommId, Guid};

    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let requester = |n| (Guid(1), CommId(n));
        let recipient = |slot| Recipient { slot, owner: 9 };
        let mut requesters = Requesters::default();
        let all = REMEMBERED_MAX as u32;
        for n in 0..all {
            requesters.remember(requester(n), recipient(1));
        }
        requesters.remember(requester(0), recipient(2));
        assert_eq!(requesters.recipient(requester(0)), Some(recipient(2)));
        requesters.remember(requester(all), recipient(3));
        assert_eq!(requesters.recipient(requester(0)), None);
        assert_eq!(requesters.recipient(requester(1)), Some(recipient(1)));
        assert_eq!(requesters.recipient(requester(all)), Some(recipient(3)));
        assert_eq!(requesters.recipients.len(), REMEMBERED_MAX);
    }
}
