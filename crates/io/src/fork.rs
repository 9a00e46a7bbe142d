//! What must not survive `fork`: locks that another thread held, and descriptors.
//!
//! A child of `fork` has one thread, and copies of all memory. A mutex that another thread held at
//! that moment stays locked for ever. So the child touches no lock of its parent: objects are kept
//! in a [`PerProcess`] and are simply not there in the child, and descriptors that must not stay
//! open in it are [`ClosedInChild`].

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// Descriptors with higher numbers cannot be registered, and stay open in children. It is the
/// kernel's default limit on what a process may have.
const NUMBERS_MAX: usize = 1 << 20;
const BITS: usize = u64::BITS as usize;

static GENERATION: AtomicU64 = AtomicU64::new(1);
/// A bit for each number that is registered.
static REGISTERED: [AtomicU64; NUMBERS_MAX / BITS] =
    [const { AtomicU64::new(0) }; NUMBERS_MAX / BITS];
/// So many words of it have ever had a bit.
static WORDS: AtomicUsize = AtomicUsize::new(0);

/// A number that is another one in a forked child: 1 in the first process. The first call installs
/// the handler, so call it before anything that depends on it.
pub fn generation() -> u64 {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler is an `extern "C"` function that does nothing but atomics and
        // `close`.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Acquire)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let words = &REGISTERED[..WORDS.load(Ordering::Acquire)];
    for (index, word) in words.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::AcqRel);
        while bits != 0 {
            let number = index * BITS + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the child's copy of a descriptor whose owner lives in the parent; what is
            // left of the owner in the child's memory is never dropped (see `PerProcess`).
            unsafe { libc::syscall(libc::SYS_close, number) };
        }
    }
}

/// Has a descriptor closed in forked children while it lives. There is one for a descriptor, and it
/// is dropped before that is closed.
#[derive(Debug)]
pub struct ClosedInChild {
    number: usize,
    generation: u64,
}

impl ClosedInChild {
    /// Registers a descriptor.
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        let generation = generation();
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(NUMBERS_MAX);
        if let Some((word, bit)) = place(number) {
            WORDS.fetch_max(number / BITS + 1, Ordering::AcqRel);
            word.fetch_or(bit, Ordering::AcqRel);
        }
        Self { number, generation }
    }
}

impl Drop for ClosedInChild {
    fn drop(&mut self) {
        // in a child the number may be that of another descriptor by now
        if self.generation == generation()
            && let Some((word, bit)) = place(self.number)
        {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }
}

fn place(number: usize) -> Option<(&'static AtomicU64, u64)> {
    let word = REGISTERED.get(number / BITS)?;
    Some((word, 1 << (number % BITS)))
}

/// A value of this process that its forked children do not have. What a child inherits of it is
/// leaked there, not dropped.
#[derive(Debug)]
pub struct PerProcess<T> {
    cell: AtomicPtr<Cell<T>>,
}

#[derive(Debug)]
struct Cell<T> {
    generation: u64,
    value: Mutex<Option<Arc<T>>>,
}

impl<T> PerProcess<T> {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            cell: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The value, made by `make` if there is none or `is_usable` says no to the one that is there.
    ///
    /// # Errors
    /// What `make` returns.
    pub fn get_or_make<E>(
        &'static self,
        is_usable: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        // made and locked in this generation: no other process ever held it
        let mut value = self
            .own_cell()
            .value
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = value.as_ref().filter(|there| is_usable(there)) {
            return Ok(Arc::clone(there));
        }
        let made = make()?;
        *value = Some(Arc::clone(&made));
        Ok(made)
    }

    fn own_cell(&'static self) -> &'static Cell<T> {
        let now = generation();
        loop {
            let there = self.cell.load(Ordering::Acquire);
            // SAFETY: null or a leaked box, which is never freed.
            if let Some(cell) = unsafe { there.as_ref() }.filter(|cell| cell.generation == now) {
                return cell;
            }
            let fresh = Box::into_raw(Box::new(Cell {
                generation: now,
                value: Mutex::new(None),
            }));
            if self
                .cell
                .compare_exchange(there, fresh, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: made above and shown to nobody.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_value_is_made_once_and_again_when_it_cannot_be_used() {
        static CELL: PerProcess<u32> = PerProcess::new();
        let get = |usable: bool, new: u32| {
            CELL.get_or_make(|_| usable, || Ok::<_, Infallible>(Arc::new(new)))
        };
        assert_eq!(get(true, 1).map(|value| *value), Ok(1));
        assert_eq!(get(true, 2).map(|value| *value), Ok(1));
        assert_eq!(get(false, 3).map(|value| *value), Ok(3));
    }

    #[test]
    fn a_child_has_neither_value_nor_descriptor() {
        use std::os::fd::AsFd;
        static CELL: PerProcess<u32> = PerProcess::new();
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let guard = ClosedInChild::new(writer.as_fd());
        let made = CELL.get_or_make(|_| true, || Ok::<_, Infallible>(Arc::new(1)));
        assert_eq!(made.map(|value| *value), Ok(1));
        // SAFETY: the child does nothing but the few calls below and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let writer_is_closed = rustix::io::fcntl_getfd(&writer).is_err();
            let is_empty = CELL
                .get_or_make(|_| true, || Ok::<_, Infallible>(Arc::new(2)))
                .is_ok_and(|value| *value == 2);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!(writer_is_closed && is_empty))) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw the value or the descriptor");
        drop(guard);
        drop((reader, writer));
    }
}
