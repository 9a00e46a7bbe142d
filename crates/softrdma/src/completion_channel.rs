//! Where a program waits for completions: a descriptor that is readable while an event of one of
//! the attached completion queues is queued. How it works: [`event_queue`](crate::event_queue).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use io::Errno;

use crate::event_queue::Events;

/// Events of any number of completion queues, in order. An event has no content but the cookie of
/// its queue.
#[derive(Debug)]
pub struct CompletionChannel {
    /// Pushed by completion queues; popped, acknowledged by the program.
    pub events: Events<()>,
    attached: AtomicU32,
}

impl CompletionChannel {
    /// A channel without completion queues.
    ///
    /// # Errors
    /// No descriptor is left: `EMFILE`, `ENFILE`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            events: Events::new()?,
            attached: AtomicU32::new(0),
        })
    }

    /// How many completion queues use it; with any it cannot be destroyed.
    pub fn attached(&self) -> u32 {
        self.attached.load(Ordering::Acquire)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// The use of a channel by one completion queue.
#[derive(Debug)]
pub(crate) struct Attachment(Arc<CompletionChannel>);

impl Attachment {
    pub(crate) fn new(channel: Arc<CompletionChannel>) -> Self {
        channel.attached.fetch_add(1, Ordering::AcqRel);
        Self(channel)
    }

    pub(crate) fn channel(&self) -> &Arc<CompletionChannel> {
        &self.0
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::AcqRel);
    }
}
