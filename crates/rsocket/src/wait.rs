//! Waiting for rsockets. Nothing here waits: the caller sleeps on the descriptors that it is given.
//!
//! A thread that is going to sleep is a [`Waiter`] with a bell of its own. It watches rsockets:
//! each rings for it when something changes that the waiter would not see by itself. For what comes
//! over the network there is the descriptor of the rsocket; but another thread may take that, as
//! whoever takes completions takes them for all.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use io::poll::Wake;

use crate::Socket;
use crate::endpoint::{Readiness, lock};
use crate::error::Result;
use crate::service::Service;

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Bytes, a connection, or the end.
    Read,
    /// Room, or the end.
    Write,
    /// A connection, or that it cannot be made.
    Connect,
    /// All that was sent has arrived, or never will.
    Drain,
}

/// A thread that is going to sleep. Dropping it ends its watching.
pub struct Waiter {
    service: Arc<Service>,
    bell: Arc<Wake>,
    watched: Mutex<Vec<Socket>>,
}

impl Waiter {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) when no descriptor is left.
    pub fn new() -> Result<Self> {
        let service = Service::current()?;
        Ok(Self {
            bell: service.take_bell()?,
            service,
            watched: Mutex::default(),
        })
    }

    /// Readable when something changed that the descriptors of the rsockets do not show.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Before each look at the rsockets and the sleep that follows.
    pub fn begin(&self) {
        self.bell.drain();
    }

    /// Watches an rsocket from now on, and says what it is ready for. If that is not enough, its
    /// descriptor is readable, or the bell rings, when there may be more.
    ///
    /// # Errors
    /// Those of the device.
    pub fn watch(&self, socket: &Socket, read: bool, write: bool) -> Result<Readiness> {
        self.begin_watching(socket)?;
        Ok(socket.readiness(read, write))
    }

    /// The same for a thread that waits for one thing; whether it is there.
    ///
    /// # Errors
    /// Those of the device.
    pub fn watch_for(&self, socket: &Socket, purpose: Purpose) -> Result<bool> {
        self.begin_watching(socket)?;
        let is_over = |readiness: Readiness| readiness.hung_up || readiness.failed;
        Ok(match purpose {
            Purpose::Read => {
                let readiness = socket.readiness(true, false);
                readiness.readable || is_over(readiness)
            }
            Purpose::Write => {
                let readiness = socket.readiness(false, true);
                readiness.writable || is_over(readiness)
            }
            Purpose::Connect => !socket.is_connecting(),
            Purpose::Drain => socket.is_drained(),
        })
    }

    /// Whether this is a descriptor of an rsocket that it watches. If it is none that the process
    /// knows, the rsocket was closed meanwhile: its descriptor is open as long as it is watched.
    pub fn watches(&self, descriptor: RawFd) -> bool {
        let watched = lock(&self.watched);
        watched
            .iter()
            .any(|socket| socket.descriptor() == descriptor)
    }

    fn begin_watching(&self, socket: &Socket) -> Result<()> {
        let mut watched = lock(&self.watched);
        if !watched.iter().any(|known| known.is(socket)) {
            socket.waiters().add(&self.bell);
            watched.push(socket.clone());
        }
        drop(watched);
        socket.arm()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        for socket in lock(&self.watched).drain(..) {
            socket.waiters().remove(&self.bell);
        }
        self.service.give_back_bell(Arc::clone(&self.bell));
    }
}

/// Who waits for an rsocket.
#[derive(Debug, Default)]
pub struct Waiters {
    /// How many, so that who has nobody to ring for takes no lock.
    count: AtomicUsize,
    bells: Mutex<Vec<Arc<Wake>>>,
}

impl Waiters {
    fn add(&self, bell: &Arc<Wake>) {
        lock(&self.bells).push(Arc::clone(bell));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn remove(&self, bell: &Arc<Wake>) {
        lock(&self.bells).retain(|other| !Arc::ptr_eq(other, bell));
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Something changed.
    pub fn ring(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            for bell in lock(&self.bells).iter() {
                bell.wake();
            }
        }
    }
}
