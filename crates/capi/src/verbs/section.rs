//! What stands around a batch: from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort` the queue
//! pair is one thread's, and the first error spoils the whole.

use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, Ordering};

use super::batch::Batch;
use crate::errno::Errno;

/// The section of one queue pair. Its lock is held while the program runs between the two calls; it
/// comes before every other lock, and nothing waits for it but `ibv_wr_start`.
pub struct Section {
    /// A mutex of C, as it is locked in one call and unlocked in another; it knows its owner.
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Whose thread has the mutex has this.
    batch: UnsafeCell<Batch>,
    /// The first error number since the start, or 0. Outside of the section it is never 0, so that
    /// builders that were not started for do nothing.
    error: AtomicI32,
}

impl Default for Section {
    /// A section that nobody is in. It must not move once it was entered.
    fn default() -> Self {
        Self {
            mutex: UnsafeCell::new(libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP),
            batch: UnsafeCell::default(),
            error: AtomicI32::new(libc::EINVAL),
        }
    }
}

impl Section {
    /// Waits until nobody is inside, and enters. A thread that is inside already spoils what it has
    /// begun.
    pub fn enter(&self) {
        // SAFETY: initialised in `default`, and not moved since; it refuses its owner.
        if unsafe { libc::pthread_mutex_lock(self.mutex.get()) } == 0 {
            self.error.store(0, Ordering::Relaxed);
        } else {
            self.spoil(Errno::INVALID);
        }
    }

    /// Nothing of the section will be posted; the first reason is what counts.
    pub fn spoil(&self, errno: Errno) {
        let _ = self
            .error
            .compare_exchange(0, errno.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The first error, which outside of a section is EINVAL.
    pub fn check(&self) -> Result<(), Errno> {
        match self.error.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    /// Ends the section and gives its batch to `last`, if it was not spoilt.
    ///
    /// # Safety
    /// The thread is inside, or nobody is.
    pub unsafe fn leave<T>(
        &self,
        last: impl FnOnce(&Batch) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        /// Leaves also when `last` panics.
        struct Leaving<'a>(&'a Section);
        impl Drop for Leaving<'_> {
            fn drop(&mut self) {
                // SAFETY: the caller's promise; `last` has given its reference back.
                unsafe { (*self.0.batch.get()).clear() };
                self.0.error.store(libc::EINVAL, Ordering::Relaxed);
                // SAFETY: initialised in `default`; it refuses who does not have it.
                unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
            }
        }
        let leaving = Leaving(self);
        self.check()?;
        // SAFETY: the caller's promise.
        last(unsafe { &*leaving.0.batch.get() })
    }

    /// Runs one step of the section, unless it is spoilt; an error of the step spoils it.
    ///
    /// # Safety
    /// The thread is inside, or nobody is.
    pub unsafe fn step(&self, step: impl FnOnce(&mut Batch) -> Result<(), Errno>) {
        let outcome = self.check().and_then(|()| {
            // SAFETY: the caller's promise; and no step runs within another.
            step(unsafe { &mut *self.batch.get() })
        });
        if let Err(errno) = outcome {
            self.spoil(errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use softrdma::{Capabilities, MemoryKey, Operation, SendFlags};

    use super::*;

    const LIMITS: Capabilities = Capabilities {
        send_wr_max: 64,
        receive_wr_max: 0,
        send_sge_max: 1,
        receive_sge_max: 0,
        inline_max: 0,
    };

    // SAFETY: for the tests, as for programs, the mutex is what makes it so.
    unsafe impl Sync for Section {}

    /// Adds a request that needs no data.
    fn add(section: &Section, id: u64) {
        let step = |batch: &mut Batch| {
            let operation = Operation::LocalInvalidate(MemoryKey(1));
            batch.begin(id, operation, SendFlags::empty(), &LIMITS)
        };
        // SAFETY: each test is inside, or nobody is.
        unsafe { section.step(step) };
    }

    fn complete(section: &Section) -> Result<Vec<u64>, Errno> {
        let ids = |batch: &Batch| {
            let list = batch.finish()?;
            Ok(list.requests().map(|request| request.id).collect())
        };
        // SAFETY: each test is inside, or nobody is.
        unsafe { section.leave(ids) }
    }

    #[test]
    fn nothing_counts_outside() {
        let section = Section::default();
        assert_eq!(section.check(), Err(Errno::INVALID));
        add(&section, 1);
        assert_eq!(complete(&section), Err(Errno::INVALID));
        section.enter();
        add(&section, 2);
        assert_eq!(complete(&section), Ok(vec![2]));
        add(&section, 3);
        assert_eq!(complete(&section), Err(Errno::INVALID));
        section.enter();
        assert_eq!(complete(&section), Ok(vec![]));
    }

    #[test]
    fn the_first_error_spoils_all_and_is_the_answer() {
        let section = Section::default();
        section.enter();
        add(&section, 1);
        section.spoil(Errno(libc::EFAULT));
        add(&section, 2);
        section.spoil(Errno(libc::ENOMEM));
        assert_eq!(complete(&section), Err(Errno(libc::EFAULT)));
        section.enter();
        add(&section, 3);
        assert_eq!(
            complete(&section),
            Ok(vec![3]),
            "of what was spoilt nothing is left"
        );
    }

    #[test]
    fn entering_twice_is_an_error_and_no_dead_end() {
        let section = Section::default();
        section.enter();
        section.enter();
        assert_eq!(complete(&section), Err(Errno::INVALID));
        assert_eq!(complete(&section), Err(Errno::INVALID));
        section.enter();
        assert_eq!(complete(&section), Ok(vec![]));
    }

    #[test]
    fn a_panic_at_the_end_lets_the_next_in() {
        let section = Section::default();
        section.enter();
        add(&section, 1);
        let panics = std::panic::AssertUnwindSafe(|| {
            // SAFETY: inside.
            let _: Result<(), Errno> = unsafe { section.leave(|_| panic!("a bug, on purpose")) };
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        section.enter();
        assert_eq!(complete(&section), Ok(vec![]));
    }

    #[test]
    fn threads_take_turns() {
        const ROUNDS: u64 = 2_000;
        let section = Section::default();
        let completed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (section, completed) = (&section, &completed);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        section.enter();
                        let ids = [0, 1, 2].map(|place| (thread << 32) | (3 * round + place));
                        ids.iter().for_each(|id| add(section, *id));
                        assert_eq!(complete(section), Ok(ids.to_vec()));
                        completed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(completed.into_inner(), 4 * ROUNDS as usize);
    }
}
