//! A fault inside the leaf copy routine becomes an error of that copy; every other one goes where
//! it went before we came.
//!
//! The handler for SIGSEGV and SIGBUS is installed before the first access to program memory (the
//! first registration), never in a constructor. It runs on the alternate stack where the thread has
//! one, as runtimes with small stacks demand.
//!
//! It can be lost in two ways: the program (a JVM, Go, a sanitizer) installs its own, or a thread
//! blocks the signals, and a fault with its signal blocked kills whatever handler there is. Both
//! are asked of the kernel at the first access of a thread and then once per tick of the coarse
//! clock (1 to 4 ms): three system calls then, a few nanoseconds otherwise. Where the answer is bad
//! the thread copies through the kernel until the next tick. A handler that a program installs
//! *and* a mapping that it removes within one tick are not covered, unless that handler passes
//! unknown faults on to ours, as handlers should. We never take the place back: the program's
//! choice stands.

use std::cell::Cell;

/// How to touch program memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// By the leaf routine: a fault in it reaches our handler.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code)
    )]
    Direct,
    /// By `process_vm_readv` and `process_vm_writev`.
    Kernel,
}

#[derive(Clone, Copy)]
struct Checked {
    /// The tick in which the kernel was asked; 0 is never.
    tick: u64,
    method: Method,
}

thread_local! {
    static CHECKED: Cell<Checked> =
        const { Cell::new(Checked { tick: 0, method: Method::Kernel }) };
}

/// How this thread may touch program memory now.
#[inline]
pub(super) fn method() -> Method {
    let tick = io::clock::now_coarse_ns() | 1;
    CHECKED.with(|cell| {
        let checked = cell.get();
        if checked.tick == tick {
            return checked.method;
        }
        let method = ask();
        cell.set(Checked { tick, method });
        method
    })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ask() -> Method {
    Method::Kernel
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cold]
fn ask() -> Method {
    if handler::install() && handler::is_ours() && !handler::is_blocked() {
        Method::Direct
    } else {
        Method::Kernel
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod handler {
    use std::ffi::{c_int, c_void};
    use std::mem::{MaybeUninit, zeroed};
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::super::copy::leaf;

    const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// A memory error that nobody ran into yet: it is not about the instruction it interrupts.
    const BUS_MCEERR_AO: c_int = 5;

    /// Bytes of the kernel's signal set.
    const KERNEL_SIGSET: usize = 8;

    /// What was there before us, by position in [`SIGNALS`]. Leaked: a handler may be reading it.
    static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] =
        [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())];

    type SimpleHandler = extern "C" fn(c_int);
    type InfoHandler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    /// Puts the handler in its place, once in the life of the process. False if that was refused.
    pub(super) fn install() -> bool {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        *INSTALLED.get_or_init(|| {
            SIGNALS
                .iter()
                .zip(&PREVIOUS)
                .all(|(signal, previous)| install_one(*signal, previous))
        })
    }

    fn install_one(signal: c_int, previous: &AtomicPtr<libc::sigaction>) -> bool {
        // SAFETY: all zeros is a valid `sigaction`.
        let mut before: libc::sigaction = unsafe { zeroed() };
        // SAFETY: only asks; `before` is a live, writable `sigaction`.
        if unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) } != 0 {
            return false;
        }
        // Known before the first signal can come to us.
        previous.store(Box::into_raw(Box::new(before)), Ordering::Release);
        // SAFETY: all zeros is a valid `sigaction`: an empty mask, which is what we want.
        let mut ours: libc::sigaction = unsafe { zeroed() };
        ours.sa_sigaction = on_fault as *const () as usize;
        // NODEFER and the empty mask: while our handler runs the mask is that of the interrupted
        // code, and the chained handler gets exactly the one it asked for.
        ours.sa_flags = libc::SA_SIGINFO
            | libc::SA_ONSTACK
            | libc::SA_NODEFER
            | (before.sa_flags & libc::SA_RESTART);
        // SAFETY: `on_fault` has the signature that SA_SIGINFO asks for and is async-signal-safe.
        // libc's function and not the system call: it knows the trampoline for the return.
        if unsafe { libc::sigaction(signal, &raw const ours, &raw mut before) } != 0 {
            return false;
        }
        // Somebody may have come in between; the first box stays leaked, a handler may have it.
        previous.store(Box::into_raw(Box::new(before)), Ordering::Release);
        true
    }

    /// Whether the kernel would call us for both signals. Asks the kernel and not libc: programs
    /// preload wrappers that tell everybody what they want to hear.
    pub(super) fn is_ours() -> bool {
        SIGNALS.iter().all(|signal| {
            // The kernel's structure begins with the handler; it has flags, trampoline and mask.
            let mut action = MaybeUninit::<[usize; 8]>::zeroed();
            // SAFETY: only asks; the kernel writes at most 32 bytes of the 64.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    *signal,
                    std::ptr::null::<c_void>(),
                    action.as_mut_ptr(),
                    KERNEL_SIGSET,
                )
            };
            // SAFETY: every byte was initialised to zero.
            result == 0 && unsafe { action.assume_init() }[0] == on_fault as *const () as usize
        })
    }

    /// Whether this thread blocks one of the signals. A fault would then kill the process.
    pub(super) fn is_blocked() -> bool {
        let mut mask = 0_u64;
        // SAFETY: only asks; the kernel writes 8 bytes to `mask`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                std::ptr::null::<c_void>(),
                &raw mut mask,
                KERNEL_SIGSET,
            )
        };
        result != 0 || SIGNALS.iter().any(|signal| mask >> (signal - 1) & 1 != 0)
    }

    /// Async-signal-safe: no allocation, no lock.
    extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel, or a handler that passes the signal on, gives valid pointers.
        unsafe {
            if !(is_synchronous(signal, (*info).si_code) && redirect(context)) {
                chain(signal, info, context);
            }
        }
    }

    /// Whether the interrupted instruction caused the signal, and would again.
    fn is_synchronous(signal: c_int, code: c_int) -> bool {
        code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO)
    }

    /// If the interrupted code is the leaf routine: let it go on at its exit.
    ///
    /// # Safety
    /// `context` is the `ucontext_t` of a signal handler.
    unsafe fn redirect(context: *mut c_void) -> bool {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the caller's promise; the kernel restores the registers from here on return.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            {
                let pc = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
                if !leaf::code().contains(&(*pc as usize)) {
                    return false;
                }
                *pc = leaf::exit() as i64;
            }
            #[cfg(target_arch = "aarch64")]
            {
                let pc = &mut (*context).uc_mcontext.pc;
                if !leaf::code().contains(&(*pc as usize)) {
                    return false;
                }
                *pc = leaf::exit() as u64;
            }
        }
        true
    }

    /// Does what would have happened without us.
    ///
    /// # Safety
    /// The arguments are those of a signal handler.
    unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let slot = &PREVIOUS[usize::from(signal != libc::SIGSEGV)];
        // SAFETY: set before the handler was installed, and leaked.
        let previous = unsafe { *slot.load(Ordering::Acquire) };
        // SAFETY: the caller's promise.
        let synchronous = is_synchronous(signal, unsafe { (*info).si_code });
        match previous.sa_sigaction {
            libc::SIG_IGN if !synchronous => {}
            // A fault cannot be ignored: the kernel treats it as the default.
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: the caller's promise.
                unsafe { take_default(signal, info, synchronous) }
            }
            address => {
                if previous.sa_flags & libc::SA_RESETHAND != 0 {
                    slot.store(default_action(), Ordering::Release);
                }
                // SAFETY: `mask` is a copy of a valid set; the kernel restores the thread's mask
                // when our handler returns.
                unsafe {
                    let mut mask = previous.sa_mask;
                    if previous.sa_flags & libc::SA_NODEFER == 0 {
                        libc::sigaddset(&raw mut mask, signal);
                    }
                    libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, null_mut());
                }
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    // SAFETY: the flag says that the address is a function of three arguments.
                    let handler = unsafe { std::mem::transmute::<usize, InfoHandler>(address) };
                    handler(signal, info, context);
                } else {
                    // SAFETY: without the flag it is a function of one argument.
                    let handler = unsafe { std::mem::transmute::<usize, SimpleHandler>(address) };
                    handler(signal);
                }
            }
        }
    }

    /// The default action, with the core dump showing the instruction that faulted.
    ///
    /// # Safety
    /// `info` is that of a signal handler.
    unsafe fn take_default(signal: c_int, info: *mut libc::siginfo_t, synchronous: bool) {
        // SAFETY: a valid action; then the signal again as it came, to this thread.
        unsafe {
            libc::sigaction(signal, default_action(), null_mut());
            if !synchronous {
                libc::syscall(
                    libc::SYS_rt_tgsigqueueinfo,
                    libc::getpid(),
                    libc::syscall(libc::SYS_gettid),
                    signal,
                    info,
                );
            }
            // Otherwise the instruction runs again on return, and faults for the last time.
        }
    }

    /// `SIG_DFL`, no flags, empty mask.
    fn default_action() -> *mut libc::sigaction {
        struct Default(libc::sigaction);
        // SAFETY: plain data without a restorer in use; never written to.
        unsafe impl Sync for Default {}
        // SAFETY: all zeros is `SIG_DFL` with an empty mask.
        static DEFAULT: Default = Default(unsafe { zeroed() });
        (&raw const DEFAULT.0).cast_mut()
    }
}

#[cfg(test)]
mod tests;
