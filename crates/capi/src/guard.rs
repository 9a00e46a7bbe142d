//! What stands around every entry point: its way of saying success and failure, and a stop for
//! panics, which must not unwind into C.
//!
//! A panic is a bug of ours after which the device cannot be trusted: every open context gets
//! `IBV_EVENT_DEVICE_FATAL`, and the function fails with EIO in its own convention.

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;
use crate::verbs::context;

/// How a C function answers.
pub trait Convention {
    /// What the Rust side yields.
    type Success;
    /// What C gets.
    type Answer;

    /// The answer of a success.
    fn success(value: Self::Success) -> Self::Answer;
    /// The answer of a failure.
    fn failure(errno: Errno) -> Self::Answer;
}

/// 0, or the error number, which `errno` has as well.
pub struct Status;

impl Convention for Status {
    type Success = ();
    type Answer = c_int;

    fn success((): ()) -> c_int {
        0
    }

    fn failure(errno: Errno) -> c_int {
        errno.set()
    }
}

/// A pointer, or NULL with `errno`.
pub struct Pointer<T>(PhantomData<T>);

impl<T> Convention for Pointer<T> {
    type Success = *mut T;
    type Answer = *mut T;

    fn success(value: *mut T) -> *mut T {
        value
    }

    fn failure(errno: Errno) -> *mut T {
        errno.set();
        ptr::null_mut()
    }
}

/// A number that is not negative, or −1 with `errno`.
pub struct Number;

impl Convention for Number {
    type Success = c_int;
    type Answer = c_int;

    fn success(value: c_int) -> c_int {
        value
    }

    fn failure(errno: Errno) -> c_int {
        errno.set();
        -1
    }
}

/// A number of bytes, or −1 with `errno`.
pub struct Size;

impl Convention for Size {
    type Success = isize;
    type Answer = isize;

    fn success(value: isize) -> isize {
        value
    }

    fn failure(errno: Errno) -> isize {
        errno.set();
        -1
    }
}

/// A number that is not negative, or the negated error number.
pub struct Count;

impl Convention for Count {
    type Success = isize;
    type Answer = isize;

    fn success(value: isize) -> isize {
        value
    }

    fn failure(errno: Errno) -> isize {
        -(errno.set() as isize)
    }
}

/// Runs the body of an entry point.
pub fn guard<C: Convention>(body: impl FnOnce() -> Result<C::Success, Errno>) -> C::Answer {
    answer::<C>(caught(body))
}

/// The same where each nanosecond counts, and nothing is a cancellation point.
pub fn guard_quickly<C: Convention>(body: impl FnOnce() -> Result<C::Success, Errno>) -> C::Answer {
    answer::<C>(caught_quickly(body))
}

fn answer<C: Convention>(outcome: Result<C::Success, Errno>) -> C::Answer {
    match outcome {
        Ok(value) => C::success(value),
        Err(errno) => C::failure(errno),
    }
}

/// The result of `body`, with a panic as EIO. A thread that is cancelled meanwhile ends later:
/// glibc would unwind it from any call that may block, such as `close`, which Rust does not
/// survive.
pub fn caught<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let _stays = Uncancelled::begin();
    caught_quickly(body)
}

/// The same where each nanosecond counts, and nothing is a cancellation point.
pub fn caught_quickly<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // Nothing is looked at after a panic but what a poisoned lock protects anyway.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!("a bug in the library: the device is given up");
        context::report_fatal();
        Err(Errno(libc::EIO))
    })
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As in `pthread.h` of Linux, whichever C library.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// The calling thread is not cancelled while this lives.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    fn begin() -> Self {
        let mut before = 0;
        // SAFETY: the state is a known one, the other pointer is to an integer of ours.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is the one that was; NULL asks for nothing.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default()
    }

    #[test]
    fn each_convention_says_failure_its_own_way() {
        let fails = || Err(Errno(libc::EBUSY));
        assert_eq!(guard::<Status>(fails), libc::EBUSY);
        assert_eq!(errno(), libc::EBUSY);
        assert!(guard::<Pointer<u8>>(|| Err(Errno(libc::ENOMEM))).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        assert_eq!(guard::<Number>(|| Err(Errno(libc::ENOENT))), -1);
        assert_eq!(errno(), libc::ENOENT);
        assert_eq!(
            guard::<Count>(|| Err(Errno(libc::EINVAL))),
            -(libc::EINVAL as isize)
        );
    }

    #[test]
    fn success_leaves_errno_alone() {
        Errno(libc::ERANGE).set();
        assert_eq!(guard::<Status>(|| Ok(())), 0);
        assert_eq!(guard::<Number>(|| Ok(7)), 7);
        assert_eq!(errno(), libc::ERANGE);
    }

    #[test]
    fn a_panic_is_an_error_of_its_function() {
        let answer = guard::<Status>(|| panic!("a bug, on purpose"));
        assert_eq!(answer, libc::EIO);
        let answer = guard::<Pointer<u8>>(|| panic!("a bug, on purpose"));
        assert!(answer.is_null());
    }
}
