//! One connected client.

use std::collections::{BTreeMap, VecDeque};

use io::{Descriptor, Errno, fdpass::Credentials};

use crate::{
    protocol::{Answer, Event, News, Refusal, Reply, encode},
    resource::Question,
    transport::Connection,
};

/// Longest program name kept, in characters; the kernel's own have 15.
const PROGRAM_LENGTH_MAX: usize = 64;

/// A connection and what is known of its process.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Connection,
    /// `None` until the greeting.
    pub(super) process: Option<Process>,
    /// As the broker's namespace numbers it; 0 if it is not visible here.
    pub(super) pid: i32,
    /// As the broker's user namespace numbers it.
    pub(super) uid: u32,
    /// If it subscribed: a number that no other subscriber has.
    ordinal: Option<u32>,
    /// At most one event for each link: later ones are merged into it.
    unsent: VecDeque<Event>,
    /// How often it opened which link.
    uses: BTreeMap<String, u32>,
}

/// The process behind a connection.
#[derive(Debug)]
pub(super) struct Process {
    /// Readable when the process has ended: a forked child may keep the connection open.
    pub(super) pidfd: Descriptor,
    pub(super) program: String,
    /// It knows what to do with the credit table.
    pub(super) takes_credit: bool,
}

impl Client {
    pub(super) fn new(connection: Connection, peer: Credentials) -> Self {
        Self {
            connection,
            process: None,
            pid: peer.pid,
            uid: peer.uid,
            ordinal: None,
            unsent: VecDeque::new(),
            uses: BTreeMap::new(),
        }
    }

    pub(super) fn program(&self) -> &str {
        self.process
            .as_ref()
            .map_or("?", |process| &process.program)
    }

    /// Whether it is to have the credit table with a lease.
    pub(super) fn takes_credit(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.takes_credit)
    }

    pub(super) fn subscribe(&mut self, ordinal: u32) {
        self.ordinal.get_or_insert(ordinal);
    }

    /// The number of a subscriber.
    pub(super) fn ordinal(&self) -> Option<u32> {
        self.ordinal
    }

    /// Asks a subscriber; `EAGAIN` if it has not read for long.
    pub(super) fn ask(&self, inquiry: u64, question: Question) -> Result<(), Errno> {
        self.connection
            .send(&encode(&News::Question { inquiry, question }), &[])
    }

    /// Counts a use of a link, or its end. An end without a beginning means nothing: the link may
    /// have gone with its interface.
    pub(super) fn count_use(&mut self, link: &str, using: bool) {
        let count = self.uses.entry(link.to_owned()).or_default();
        *count = if using {
            count.saturating_add(1)
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.uses.remove(link);
        }
    }

    pub(super) fn uses(&self, link: &str) -> bool {
        self.uses.contains_key(link)
    }

    /// A link is gone: whoever makes one of that name again starts without users.
    pub(super) fn forget_uses(&mut self, link: &str) {
        self.uses.remove(link);
    }

    /// Notes an event for a subscriber.
    pub(super) fn queue(&mut self, event: &Event) {
        if self.ordinal.is_none() {
            return;
        }
        merge(&mut self.unsent, event);
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what the connection takes now.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while let Some(event) = self.unsent.front() {
            match self
                .connection
                .send(&encode(&News::Link(event.clone())), &[])
            {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn answer(
        &self,
        id: u64,
        result: Result<Reply, Refusal>,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        self.connection
            .send(&encode(&Answer { id, result }), descriptors)
    }
}

/// Adds an event, keeping at most a removal and one state for each link.
fn merge(unsent: &mut VecDeque<Event>, event: &Event) {
    let last = unsent
        .iter_mut()
        .rev()
        .find(|queued| queued.link_name() == event.link_name());
    match (last, event) {
        (Some(Event::Added(old)), Event::Changed { link, .. }) => *old = link.clone(),
        (
            Some(Event::Changed {
                link: old,
                changes: all,
            }),
            Event::Changed { link, changes },
        ) => {
            *old = link.clone();
            *all = all.union(*changes);
        }
        (_, Event::Removed { name }) => {
            unsent.retain(|queued| queued.link_name() != name);
            unsent.push_back(event.clone());
        }
        _ => unsent.push_back(event.clone()),
    }
}

/// A program's name fit for messages: short, without control characters.
pub(super) fn clean_program_name(given: &str) -> String {
    given
        .chars()
        .filter(|c| !c.is_control())
        .take(PROGRAM_LENGTH_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use wire::Mtu;

    use super::*;
    use crate::{
        link::{LinkInfo, LinkKind},
        protocol::Changes,
    };

    fn link(mtu: u32) -> LinkInfo {
        LinkInfo {
            name: "rxe0".into(),
            kind: LinkKind::Rxe,
            index: 0,
            netdev: "eth0".into(),
            netdev_index: 2,
            mac: [0; 6],
            netdev_mtu: mtu,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::of_interface(mtu),
            up: true,
            carrier: true,
            gids: Vec::new(),
            iwarp: None,
        }
    }

    #[test]
    fn unread_events_are_merged_and_stay_bounded() {
        let mtu = Changes {
            mtu: true,
            ..Changes::default()
        };
        let gids = Changes {
            gids: true,
            ..Changes::default()
        };
        let mut unsent = VecDeque::new();
        merge(
            &mut unsent,
            &Event::Changed {
                link: link(1500),
                changes: mtu,
            },
        );
        merge(
            &mut unsent,
            &Event::Changed {
                link: link(9000),
                changes: gids,
            },
        );
        assert_eq!(
            unsent,
            [Event::Changed {
                link: link(9000),
                changes: mtu.union(gids)
            }],
            "the last state with all changes"
        );
        merge(
            &mut unsent,
            &Event::Removed {
                name: "rxe0".into(),
            },
        );
        merge(&mut unsent, &Event::Added(link(1500)));
        merge(
            &mut unsent,
            &Event::Changed {
                link: link(4200),
                changes: mtu,
            },
        );
        assert_eq!(
            unsent,
            [
                Event::Removed {
                    name: "rxe0".into()
                },
                Event::Added(link(4200))
            ]
        );
        for _ in 0..100 {
            merge(
                &mut unsent,
                &Event::Removed {
                    name: "rxe0".into(),
                },
            );
            merge(&mut unsent, &Event::Added(link(1500)));
        }
        assert_eq!(unsent.len(), 2);
    }

    #[test]
    fn names_of_programs_are_made_harmless() {
        assert_eq!(clean_program_name("rping\u{1b}[2J\n"), "rping[2J");
        assert_eq!(
            clean_program_name(&"x".repeat(1000)).len(),
            PROGRAM_LENGTH_MAX
        );
    }
}
