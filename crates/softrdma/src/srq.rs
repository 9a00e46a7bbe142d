//! Shared receive queues of programs. spec: IBA 10.2.9, 11.2.3

use std::sync::Arc;

use engine::{ReceiveWqe, Sge};

use crate::device::Context;
use crate::error::{Error, Result};
use crate::protection_domain::{PdInner, ProtectionDomain};
use crate::shared_receive_queue::{SharedReceiveAttributes, SharedReceiveQueue as Queue};

/// Receives that several queue pairs take from. Which of them takes a receive is known when it
/// completes.
pub struct SharedReceiveQueue {
    pd: Arc<PdInner>,
    queue: Arc<Queue>,
    /// Its number in the registry.
    number: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, wr_max: u32, sge_max: u32) -> Result<Self> {
        let context = &pd.0.context;
        context.check()?;
        let queue = Queue::new(wr_max, sge_max, Arc::clone(&context.events))?;
        let number = context.process.registry.shared_receives.add(pd.0.id.0);
        queue.set_number(number);
        Ok(Self {
            number,
            pd: Arc::clone(&pd.0),
            queue: Arc::new(queue),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Its sizes as they are now; what was granted is at least what was asked for.
    pub fn attributes(&self) -> SharedReceiveAttributes {
        self.queue.attributes()
    }

    /// Sets what events carry to name this queue.
    pub fn set_cookie(&self, cookie: u64) {
        self.queue.set_cookie(cookie);
    }

    /// Posts one receive work request.
    ///
    /// # Errors
    /// [`Error::ReceiveQueueFull`], [`Error::Post`], [`Error::Forked`].
    pub fn post(&self, id: u64, sges: &[Sge]) -> Result<()> {
        self.check_not_forked()?;
        self.queue.post(ReceiveWqe {
            id,
            sges: sges.into(),
        })
    }

    /// Changes what is given: the size, to at least `wr_max`; the limit, below which an event tells
    /// once that fewer receives wait.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that do not fit each other or what waits; [`Error::Forked`].
    pub fn modify(&self, wr_max: Option<u32>, limit: Option<u32>) -> Result<()> {
        self.check_not_forked()?;
        self.queue.modify(wr_max, limit)
    }

    /// Ends its events: waits until those given are acknowledged. C's `destroy` calls it.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it.
    pub fn close(&self) -> Result<()> {
        self.check_not_forked()?;
        self.queue.close()
    }

    /// A child of `fork` must not touch what other threads of its parent were at work on.
    fn check_not_forked(&self) -> Result<()> {
        if io::fork::generation() != self.context().process.generation() {
            return Err(Error::Forked);
        }
        Ok(())
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // a child must not touch its parent's lock
        if self.check_not_forked().is_ok() {
            let registry = &self.context().process.registry;
            registry.shared_receives.remove(self.number);
        }
    }
}
