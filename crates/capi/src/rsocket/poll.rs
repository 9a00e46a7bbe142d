//! What `rpoll` and the calls that wait look at before they sleep.

use core::ffi::{c_int, c_short, c_void};
use std::os::fd::AsRawFd;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM, nfds_t, pollfd};
use rsocket::{Purpose, Readiness, Waiter};

use crate::errno::Errno;
use crate::guard::{Number, Pointer, caught, guard};

/// How long `rpoll` looks by itself before it sleeps, in nanoseconds.
const SPIN_NS: u128 = 50_000;

const READ: c_short = POLLIN | POLLRDNORM;
const WRITE: c_short = POLLOUT | POLLWRNORM;

fn events(readiness: Readiness, asked: c_short) -> c_short {
    let mut events = 0;
    for (is, says) in [
        (readiness.readable, READ & asked),
        (readiness.writable, WRITE & asked),
        (readiness.hung_up, POLLHUP),
        (readiness.failed, POLLERR),
    ] {
        if is {
            events |= says;
        }
    }
    events
}

/// The entries of a program.
///
/// # Safety
/// `fds` is valid for `count` entries.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise; a program does not change them while it polls.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
}

/// Looks at the rsockets among the entries, for a while if there is a timeout and nothing else to
/// look at. How many have something to say; how many are no rsockets comes to `others`.
///
/// # Safety
/// `fds` is valid for `count` entries, `others` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_check(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    others: *mut nfds_t,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let entries = unsafe { entries(fds, count) };
        let sockets: Vec<_> = entries
            .iter()
            .map(|entry| rsocket::socket(entry.fd).ok())
            .collect();
        let plain = sockets.iter().filter(|socket| socket.is_none()).count();
        // SAFETY: the caller's promise.
        unsafe { others.write(plain as nfds_t) };
        let start = std::time::Instant::now();
        loop {
            let mut ready = 0;
            for (entry, socket) in entries.iter_mut().zip(&sockets) {
                let asked = entry.events;
                entry.revents = socket.as_ref().map_or(0, |socket| {
                    events(
                        socket.readiness(asked & READ != 0, asked & WRITE != 0),
                        asked,
                    )
                });
                ready += c_int::from(entry.revents != 0);
            }
            let may_look_again = timeout_ms != 0 && plain == 0 && !sockets.is_empty();
            if ready > 0 || !may_look_again || start.elapsed().as_nanos() > SPIN_NS {
                return Ok(ready);
            }
        }
    })
}

/// A waiter, to be freed by `softrdma_rs_waiter_free`; NULL with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_waiter() -> *mut c_void {
    guard::<Pointer<c_void>>(|| Ok(Box::into_raw(Box::new(Waiter::new()?)).cast()))
}

/// Frees a waiter; `errno` stays as it was.
///
/// # Safety
/// `waiter` is from `softrdma_rs_waiter`, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_waiter_free(waiter: *mut c_void) {
    let errno = Errno::last();
    let _ = caught(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(waiter.cast::<Waiter>()) });
        Ok(())
    });
    errno.set();
}

/// Watches the rsockets among the entries, and says what each is ready for: how many there are.
/// What to sleep on comes to `to_sleep_on`, which has one entry more.
///
/// # Safety
/// `waiter` is a waiter; `fds` is valid for `count` entries, `to_sleep_on` for one more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_watch(
    waiter: *mut c_void,
    fds: *mut pollfd,
    count: nfds_t,
    to_sleep_on: *mut pollfd,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let (waiter, entries, to_sleep_on) = unsafe {
            let waiter = &*waiter.cast::<Waiter>();
            (waiter, entries(fds, count), entries(to_sleep_on, count + 1))
        };
        let mut ready = 0;
        waiter.begin();
        for (entry, sleep) in entries.iter_mut().zip(to_sleep_on.iter_mut()) {
            let asked = entry.events;
            entry.revents = 0;
            *sleep = *entry;
            if let Ok(socket) = rsocket::socket(entry.fd) {
                sleep.events = POLLIN;
                let readiness = waiter.watch(&socket, asked & READ != 0, asked & WRITE != 0)?;
                entry.revents = events(readiness, asked);
                ready += c_int::from(entry.revents != 0);
            } else if waiter.watches(entry.fd) {
                // another thread has closed it
                entry.revents = POLLNVAL;
                ready += 1;
            }
        }
        if let Some(last) = to_sleep_on.last_mut() {
            *last = bell(waiter);
        }
        Ok(ready)
    })
}

/// Takes over what the sleep told of entries that are no rsockets; how many have something to say.
///
/// # Safety
/// Both are valid for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_collect(
    fds: *mut pollfd,
    count: nfds_t,
    slept_on: *mut pollfd,
) -> c_int {
    guard::<Number>(|| {
        // SAFETY: the caller's promise.
        let (entries, slept_on) = unsafe { (entries(fds, count), entries(slept_on, count)) };
        let mut ready = 0;
        for (entry, slept) in entries.iter_mut().zip(slept_on) {
            if slept.revents != 0 && rsocket::socket(entry.fd).is_err() {
                entry.revents = slept.revents;
                ready += 1;
            }
        }
        Ok(ready)
    })
}

/// Watches one rsocket for one thing: 1 if it is there, 0 with what to sleep on if not.
///
/// # Safety
/// `waiter` is a waiter; `to_sleep_on` is valid for two entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rs_watch_for(
    waiter: *mut c_void,
    socket: c_int,
    purpose: c_int,
    to_sleep_on: *mut pollfd,
) -> c_int {
    guard::<Number>(|| {
        let purpose = match purpose {
            0 => Purpose::Read,
            1 => Purpose::Write,
            2 => Purpose::Connect,
            _ => Purpose::Drain,
        };
        let socket = rsocket::socket(socket)?;
        // SAFETY: the caller's promise.
        let (waiter, to_sleep_on) = unsafe { (&*waiter.cast::<Waiter>(), entries(to_sleep_on, 2)) };
        waiter.begin();
        to_sleep_on[0] = pollfd {
            fd: socket.descriptor(),
            events: POLLIN,
            revents: 0,
        };
        to_sleep_on[1] = bell(waiter);
        Ok(c_int::from(waiter.watch_for(&socket, purpose)?))
    })
}

fn bell(waiter: &Waiter) -> pollfd {
    pollfd {
        fd: waiter.bell().as_raw_fd(),
        events: POLLIN,
        revents: 0,
    }
}
