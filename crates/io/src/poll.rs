//! Waiting: epoll, eventfd, pidfd, and exact timers.
//!
//! One thing to know: while a descriptor is armed in an epoll that a thread waits on, every
//! datagram that arrives wakes that thread, at the cost of the *sender* on the same host. So a
//! socket that is being polled by its program must not be armed; arming is [`Trigger::OneShot`],
//! once per sleep.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::raw::{self, Descriptor, move_high};

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Something to read, or the other side is gone.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self {
        readable: true,
        writable: false,
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        readable: false,
        writable: true,
    };
    /// Nothing: stays registered, reports only errors and hang-up.
    pub const NONE: Self = Self {
        readable: false,
        writable: false,
    };
}

/// When a ready descriptor is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is ready.
    Level,
    /// Each time it becomes ready.
    Edge,
    /// Once; then it sleeps until [`Poller::arm`].
    OneShot,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Poller {
    epoll: Descriptor,
}

/// A ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number it was registered with.
    pub token: u64,
    /// Something to read.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// The other side is gone, or the descriptor is in error.
    pub closed: bool,
}

/// Room for what one wait reports; reused.
pub struct Events(Vec<epoll::Event>);

impl Events {
    /// Room for `capacity` descriptors, at least one; more that are ready come with the next wait.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity.max(1)))
    }

    /// What the last wait reported.
    pub fn iter(&self) -> impl Iterator<Item = Ready> {
        self.0.iter().map(|event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: flags.contains(EventFlags::OUT),
                closed: flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
            }
        })
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Poller {
    /// A new, empty one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?.into(),
        })
    }

    /// Registers a descriptor under `token`. With [`Trigger::OneShot`] it is armed at once.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for what cannot be polled, `ENOSPC`.
    pub fn add(
        &self,
        fd: impl AsFd,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            flags(interest, trigger),
        )
    }

    /// Registers a descriptor without arming it: nothing is reported before [`Poller::arm`].
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn add_disarmed(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.add(&fd, token, Interest::NONE, Trigger::OneShot)?;
        self.disarm(fd, token)
    }

    /// Arms a registered descriptor for one report. If it is ready already, it is reported at once.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn arm(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        self.change(fd, token, interest, Trigger::OneShot)
    }

    /// Takes back the arming of a registered descriptor.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn disarm(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.change(fd, token, Interest::NONE, Trigger::OneShot)
    }

    /// Changes what is waited for.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn change(
        &self,
        fd: impl AsFd,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> Result<(), Errno> {
        epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            flags(interest, trigger),
        )
    }

    /// Forgets a descriptor. Do this before closing it: a duplicate in another process keeps a
    /// closed one registered.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, fd)
    }

    /// Waits until something is ready, the timeout passes (`None`: for ever) or a signal is
    /// handled, and says how many are ready. Exact to the thread's timer slack; to a millisecond,
    /// rounded up, before Linux 5.11.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn wait(&self, events: &mut Events, timeout_ns: Option<u64>) -> Result<usize, Errno> {
        /// Set when the kernel, or a filter of system calls, does not know `epoll_pwait2`.
        static COARSE: AtomicBool = AtomicBool::new(false);

        events.0.clear();
        let Some(timeout_ns) = timeout_ns else {
            let spare = rustix::buffer::spare_capacity(&mut events.0);
            return or_interrupted(epoll::wait(&self.epoll, spare, None));
        };
        if !COARSE.load(Ordering::Relaxed) {
            // rustix rounds to milliseconds unless it may rely on Linux 5.11
            match raw::epoll_pwait2(&self.epoll, &mut events.0, timeout_ns) {
                Err(Errno::NOSYS | Errno::PERM) => COARSE.store(true, Ordering::Relaxed),
                other => return or_interrupted(other),
            }
        }
        let rounded = timespec(timeout_ns.div_ceil(NS_PER_MS).saturating_mul(NS_PER_MS));
        let spare = rustix::buffer::spare_capacity(&mut events.0);
        or_interrupted(epoll::wait(&self.epoll, spare, Some(&rounded)))
    }
}

/// A signal that was handled ends a wait with nothing.
fn or_interrupted(result: Result<usize, Errno>) -> Result<usize, Errno> {
    match result {
        Err(Errno::INTR) => Ok(0),
        other => other,
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn flags(interest: Interest, trigger: Trigger) -> EventFlags {
    let mut flags = match trigger {
        Trigger::Level => EventFlags::empty(),
        Trigger::Edge => EventFlags::ET,
        Trigger::OneShot => EventFlags::ONESHOT,
    };
    if interest.readable {
        flags |= EventFlags::IN | EventFlags::RDHUP;
    }
    if interest.writable {
        flags |= EventFlags::OUT;
    }
    flags
}

fn timespec(ns: u64) -> Timespec {
    // 2^64 ns are 584 years: both parts fit the kernel's signed fields.
    Timespec {
        tv_sec: (ns / NS_PER_SECOND) as i64,
        tv_nsec: (ns % NS_PER_SECOND) as i64,
    }
}

/// Waits for one descriptor to become readable (or closed); false when the timeout passed first. A
/// signal does not end the wait, and restarts the timeout.
///
/// # Errors
/// Only those of wrong use.
pub fn wait_readable(fd: impl AsFd, timeout_ns: Option<u64>) -> Result<bool, Errno> {
    let timeout = timeout_ns.map(timespec);
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))
        .map(|ready| ready > 0)
}

/// A bell between threads: an eventfd. Ringing many times before anybody looks is ringing once.
#[derive(Debug)]
pub struct Wake {
    eventfd: Descriptor,
}

impl Wake {
    /// A silent bell, at a high descriptor number. The first such number makes the process's table
    /// of descriptors grow, and in a process with threads the kernel waits for all processors then,
    /// seconds on a busy machine: so whoever makes one early, with no lock held, spares those who
    /// open sockets later within one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            eventfd: move_high(eventfd(0, flags)?.into()),
        })
    }

    /// Rings: the descriptor becomes readable.
    pub fn wake(&self) {
        // The one failure possible is EAGAIN, a counter at its maximum: it rings already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Silences the bell; says whether it rang.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        // The one failure possible is EAGAIN: it did not ring.
        rustix::io::read(&self.eventfd, &mut count).is_ok()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// A descriptor that becomes readable when the process ends. The number must be known to be still
/// that process's; [`crate::fdpass::Connection::peer_pidfd`] has no such gap.
///
/// # Errors
/// `ESRCH` when there is no such process, `EINVAL` for a pid that is not positive, `ENOSYS` before
/// Linux 5.3.
pub fn pidfd(pid: i32) -> Result<Descriptor, Errno> {
    let pid = Some(pid)
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or(Errno::INVAL)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).map(Descriptor::from)
}

/// Makes sleeps of the calling thread end as exactly as the kernel can, instead of up to 50 µs
/// late.
pub fn minimal_timer_slack() {
    // It cannot fail for one's own thread, and a late timer would be harmless. 0 would mean
    // "reset".
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_shot_reports_once_until_armed_again() {
        let poller = Poller::new().expect("a descriptor");
        let bell = Wake::new().expect("a descriptor");
        let mut events = Events::with_capacity(4);
        poller.add_disarmed(&bell, 7).expect("fresh");
        bell.wake();
        assert_eq!(poller.wait(&mut events, Some(0)), Ok(0), "not armed");

        poller.arm(&bell, 7, Interest::READ).expect("registered");
        assert_eq!(poller.wait(&mut events, None), Ok(1));
        let ready: Vec<_> = events.iter().collect();
        let expected = Ready {
            token: 7,
            readable: true,
            writable: false,
            closed: false,
        };
        assert_eq!(ready, [expected]);
        assert_eq!(
            poller.wait(&mut events, Some(1)),
            Ok(0),
            "fired and not armed again"
        );
        assert_eq!(events.iter().count(), 0);

        poller.arm(&bell, 7, Interest::READ).expect("registered");
        poller.disarm(&bell, 7).expect("registered");
        assert_eq!(poller.wait(&mut events, Some(1)), Ok(0), "taken back");

        poller
            .change(&bell, 7, Interest::READ, Trigger::Level)
            .expect("registered");
        assert_eq!(poller.wait(&mut events, Some(1)), Ok(1));
        assert_eq!(poller.wait(&mut events, Some(1)), Ok(1), "level-triggered");
        poller.remove(&bell).expect("registered");
        assert_eq!(poller.wait(&mut events, Some(1)), Ok(0));
        assert_eq!(poller.remove(&bell), Err(Errno::NOENT));
    }

    #[test]
    fn ringing_twice_is_ringing_once() {
        let bell = Wake::new().expect("a descriptor");
        assert!(!bell.drain());
        bell.wake();
        bell.wake();
        assert_eq!(wait_readable(&bell, None), Ok(true));
        assert!(bell.drain());
        assert!(!bell.drain());
        assert_eq!(wait_readable(&bell, Some(1)), Ok(false));
    }

    #[test]
    fn an_exact_wait_works_or_is_unknown() {
        let poller = Poller::new().expect("a descriptor");
        let wake = Wake::new().expect("a descriptor");
        poller
            .add(&wake, 7, Interest::READ, Trigger::Level)
            .expect("fresh");
        let mut events = Events::with_capacity(2);
        let quiet = raw::epoll_pwait2(&poller.epoll, &mut events.0, 1_000);
        assert!(matches!(quiet, Ok(0) | Err(Errno::NOSYS | Errno::PERM)));
        if quiet.is_ok() {
            wake.wake();
            let rung = raw::epoll_pwait2(&poller.epoll, &mut events.0, 1_000);
            assert_eq!(rung, Ok(1));
            assert_eq!(events.iter().next().map(|ready| ready.token), Some(7));
        }
    }

    #[test]
    fn a_timeout_of_nanoseconds_does_not_end_early() {
        let poller = Poller::new().expect("a descriptor");
        let mut events = Events::with_capacity(1);
        minimal_timer_slack();
        let timeout_ns = 1_234_567;
        let start = crate::clock::now_ns();
        assert_eq!(poller.wait(&mut events, Some(timeout_ns)), Ok(0));
        assert!(crate::clock::now_ns() - start >= timeout_ns);
    }

    #[test]
    fn a_pidfd_tells_the_end_of_a_process() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat exists");
        let watch = pidfd(child.id() as i32).expect("a child that was not waited for");
        assert_eq!(wait_readable(&watch, Some(0)), Ok(false));
        drop(child.stdin.take());
        assert_eq!(wait_readable(&watch, Some(30 * NS_PER_SECOND)), Ok(true));
        child.wait().expect("a child");
        assert_eq!(pidfd(0).err(), Some(Errno::INVAL));
        assert_eq!(pidfd(-1).err(), Some(Errno::INVAL));
    }
}
