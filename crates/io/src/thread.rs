//! Threads inside other people's programs.

use std::mem::MaybeUninit;

use rustix::io::Errno;

use crate::poll::minimal_timer_slack;

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts a thread that the program does not notice: no signal is delivered to it but those that
/// its own instructions cause (blocked, a fault would kill the process instead of reaching a
/// handler), it runs under the normal scheduler whatever the caller's class, on every processor
/// (not only where the caller is pinned), its timers have minimal slack, and its time slices are
/// short: since Linux 6.12 such a thread, once woken, need not wait for the end of the slice of one
/// that computes.
///
/// # Errors
/// `EAGAIN` when there are too many threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    // A thread inherits the mask of its creator, so nothing can arrive before it blocks by itself.
    let before = block_signals();
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            minimal_timer_slack();
            run_anywhere();
            run_in_short_slices();
            body();
        });
    restore_signals(&before);
    match started {
        // Nobody joins it: it ends with the process, or by itself.
        Ok(_handle) => Ok(()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
    }
}

fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are written by the calls before they are read, and both are ours.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
        ] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set came from `block_signals`; a null pointer asks for no old set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// Undoes what the calling thread inherited: a real-time class and a narrow affinity. Both are
/// improvements, so failing is nothing.
fn run_anywhere() {
    // SAFETY: plain structs of the kernel's, all zero is valid (priority 0, no processor).
    let (priority, mut set) = unsafe {
        (
            std::mem::zeroed::<libc::sched_param>(),
            std::mem::zeroed::<libc::cpu_set_t>(),
        )
    };
    // SAFETY: the calling thread (0) and pointers to the locals above; `CPU_SET` writes inside the
    // set for numbers below its size.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &priority);
        for processor in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(processor, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// `struct sched_attr` of `sched_setattr(2)`, version 0.
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for the shortest slices there are. An older kernel does not know of them, which is nothing.
fn run_in_short_slices() {
    /// The least that the kernel grants.
    const SLICE_NS: u64 = 100_000;
    let thread = 0;
    // SAFETY: plain calls about the calling thread; no memory is involved.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) };
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the calling thread (0) and a pointer to the local above, which says how long it is.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            thread,
            std::ptr::from_ref(&attributes),
            0,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_quiet_thread_blocks_signals_and_its_creator_does_not() {
        let (sender, receiver) = mpsc::channel();
        let blocked = || {
            let mut now = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: a null new set only asks; the old one is written before it is read.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr());
                libc::sigismember(now.as_ptr(), libc::SIGALRM) == 1
            }
        };
        let before = blocked();
        spawn_quiet("test", move || {
            sender.send(blocked()).expect("the test waits")
        })
        .expect("a thread");
        assert!(receiver.recv().expect("the thread answers"));
        assert_eq!(blocked(), before);
    }
}
