//! The handler as part of a process that has its own plans for these signals. Each test in a child,
//! as dispositions belong to the whole process.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::memory::copy::{Fault, ProgramMemory};
use crate::memory::tests::{Pages, full_name, in_child, signal_of};

/// Longer than any tick of the coarse clock.
const TICK: Duration = Duration::from_millis(30);

/// An address that faults when it is read, and is not null.
const NOWHERE: usize = 0x10;

fn exit(code: i32) -> ! {
    // SAFETY: ends the child at once; async-signal-safe.
    unsafe { libc::_exit(code) }
}

/// A fault that has nothing to do with us.
fn fault_elsewhere() {
    // SAFETY: none: this is the crash that the child is made for.
    unsafe { (NOWHERE as *const u8).read_volatile() };
}

fn set_action(signal: c_int, handler: usize, flags: c_int, also_blocked: &[c_int]) {
    // SAFETY: a valid action whose handler is async-signal-safe and has the signature of `flags`.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        for signal in also_blocked {
            libc::sigaddset(&raw mut action.sa_mask, *signal);
        }
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
    }
}

/// Makes the first access of this process, which installs the handler, and one that faults.
fn use_memory() {
    let memory = ProgramMemory::access();
    assert_eq!(method(), Method::Direct);
    assert_eq!(memory.read(NOWHERE as u64, &mut [0; 8]), Err(Fault));
}

fn blocked_signals() -> libc::sigset_t {
    // SAFETY: only asks.
    unsafe {
        let mut mask = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask);
        mask
    }
}

fn is_in(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a valid set.
    unsafe { libc::sigismember(set, signal) == 1 }
}

extern "C" fn exits_with_info(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: valid in a handler.
    let address = unsafe { (*info).si_addr() } as usize;
    exit(if address == NOWHERE && !context.is_null() {
        41
    } else {
        40
    });
}

extern "C" fn exits_if_masked(signal: c_int) {
    let mask = blocked_signals();
    let as_asked =
        is_in(&mask, libc::SIGUSR1) && is_in(&mask, signal) && !is_in(&mask, libc::SIGBUS);
    exit(if as_asked { 42 } else { 40 });
}

extern "C" fn exits_if_not_deferred(signal: c_int) {
    exit(if is_in(&blocked_signals(), signal) {
        40
    } else {
        43
    });
}

extern "C" fn exits(_: c_int) {
    exit(44);
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn counts(_: c_int) {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn another_fault_reaches_the_handler_before_us() {
    let name = full_name(
        module_path!(),
        "another_fault_reaches_the_handler_before_us",
    );
    let status = in_child(&name, || {
        set_action(
            libc::SIGSEGV,
            exits_with_info as *const () as usize,
            libc::SA_SIGINFO,
            &[],
        );
        use_memory();
        fault_elsewhere();
    });
    assert_eq!(status.code(), Some(41));
}

#[test]
fn a_simple_handler_runs_with_the_mask_it_asked_for() {
    let name = full_name(
        module_path!(),
        "a_simple_handler_runs_with_the_mask_it_asked_for",
    );
    let status = in_child(&name, || {
        let handler = exits_if_masked as *const () as usize;
        set_action(libc::SIGSEGV, handler, 0, &[libc::SIGUSR1]);
        use_memory();
        fault_elsewhere();
    });
    assert_eq!(status.code(), Some(42));
}

#[test]
fn a_handler_that_wants_no_deferring_has_none() {
    let name = full_name(module_path!(), "a_handler_that_wants_no_deferring_has_none");
    let status = in_child(&name, || {
        let handler = exits_if_not_deferred as *const () as usize;
        set_action(libc::SIGSEGV, handler, libc::SA_NODEFER, &[]);
        use_memory();
        fault_elsewhere();
    });
    assert_eq!(status.code(), Some(43));
}

#[test]
fn a_one_shot_handler_is_called_once() {
    let name = full_name(module_path!(), "a_one_shot_handler_is_called_once");
    let status = in_child(&name, || {
        set_action(
            libc::SIGBUS,
            counts as *const () as usize,
            libc::SA_RESETHAND,
            &[],
        );
        use_memory();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGBUS) };
    });
    assert_eq!(signal_of(status), Some(libc::SIGBUS));
}

#[test]
fn the_default_is_death_by_the_same_signal() {
    let name = full_name(module_path!(), "the_default_is_death_by_the_same_signal");
    let status = in_child(&name, || {
        set_action(libc::SIGSEGV, libc::SIG_DFL, 0, &[]);
        use_memory();
        fault_elsewhere();
    });
    assert_eq!(signal_of(status), Some(libc::SIGSEGV));
}

#[test]
fn the_default_holds_for_signals_that_were_sent() {
    let name = full_name(
        module_path!(),
        "the_default_holds_for_signals_that_were_sent",
    );
    let status = in_child(&name, || {
        set_action(libc::SIGBUS, libc::SIG_DFL, 0, &[]);
        use_memory();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    });
    assert_eq!(signal_of(status), Some(libc::SIGBUS));
}

#[test]
fn ignored_signals_are_ignored_but_faults_are_not() {
    let name = full_name(
        module_path!(),
        "ignored_signals_are_ignored_but_faults_are_not",
    );
    let status = in_child(&name, || {
        set_action(libc::SIGSEGV, libc::SIG_IGN, 0, &[]);
        set_action(libc::SIGBUS, libc::SIG_IGN, 0, &[]);
        use_memory();
        // SAFETY: sends signals to this thread.
        unsafe {
            libc::raise(libc::SIGBUS);
            libc::raise(libc::SIGSEGV);
        }
        use_memory();
        fault_elsewhere();
    });
    assert_eq!(signal_of(status), Some(libc::SIGSEGV));
}

/// Where the handler cannot help, everything still works and faults are answers.
fn use_memory_through_the_kernel() {
    assert_eq!(method(), Method::Kernel);
    let memory = ProgramMemory::access();
    let pages = Pages::anonymous(1);
    // SAFETY: pages of this test.
    unsafe {
        assert_eq!(memory.write(pages.address(), &7_u64.to_ne_bytes()), Ok(()));
        assert_eq!(memory.fetch_add(pages.address(), 1), Ok(7));
        assert_eq!(memory.compare_swap(pages.address(), 8, 9), Ok(8));
    }
    let mut word = [0; 8];
    assert_eq!(memory.read(pages.address(), &mut word), Ok(()));
    assert_eq!(u64::from_ne_bytes(word), 9);
    assert_eq!(memory.read(NOWHERE as u64, &mut word), Err(Fault));
}

#[test]
fn a_displaced_handler_is_noticed() {
    let name = full_name(module_path!(), "a_displaced_handler_is_noticed");
    let status = in_child(&name, || {
        use_memory();
        set_action(libc::SIGSEGV, exits as *const () as usize, 0, &[]);
        thread::sleep(TICK);
        use_memory_through_the_kernel();
        exit(45);
    });
    assert_eq!(status.code(), Some(45));
}

#[test]
fn a_thread_that_blocks_the_signals_copies_through_the_kernel() {
    let name = full_name(
        module_path!(),
        "a_thread_that_blocks_the_signals_copies_through_the_kernel",
    );
    let status = in_child(&name, || {
        use_memory();
        let block_all = || {
            // SAFETY: changes the mask of this thread alone.
            unsafe {
                let mut all = zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut());
            }
        };
        thread::spawn(move || {
            block_all();
            use_memory_through_the_kernel();
        })
        .join()
        .expect("it lives");
        block_all();
        thread::sleep(TICK);
        use_memory_through_the_kernel();
        exit(46);
    });
    assert_eq!(status.code(), Some(46));
}

/// What was there when [`passes_on`] was installed.
static PASS_TO: AtomicUsize = AtomicUsize::new(0);

extern "C" fn passes_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let next = PASS_TO.load(Ordering::Relaxed);
    // SAFETY: the address of the handler that was installed with SA_SIGINFO before.
    unsafe {
        let next: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            std::mem::transmute(next);
        next(signal, info, context);
    }
}

#[test]
fn a_handler_in_front_of_ours_may_pass_faults_on() {
    let name = full_name(
        module_path!(),
        "a_handler_in_front_of_ours_may_pass_faults_on",
    );
    let status = in_child(&name, || {
        use_memory();
        // found before the other handler comes, as by a thread within the same tick
        let memory = ProgramMemory::access();
        // SAFETY: only asks.
        let ours = unsafe {
            let mut action: libc::sigaction = zeroed();
            libc::sigaction(libc::SIGSEGV, null(), &raw mut action);
            action.sa_sigaction
        };
        PASS_TO.store(ours, Ordering::Relaxed);
        set_action(
            libc::SIGSEGV,
            passes_on as *const () as usize,
            libc::SA_SIGINFO,
            &[],
        );
        assert_eq!(memory.read(NOWHERE as u64, &mut [0; 8]), Err(Fault));
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
        exit(47);
    });
    assert_eq!(status.code(), Some(47));
}
