//! Memory that several processes share: words that all of them change by atomic operations.
//!
//! Made as an anonymous file (`memfd_create(2)`) that is passed by descriptor. It is sealed against
//! shrinking, so touching it can never end in SIGBUS, and against growing. What another process
//! writes there is a number to judge, never something to rely on.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::raw::Descriptor;

/// The seals that [`SharedWords::open`] insists on.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A mapping of shared words, zero at first.
#[derive(Debug)]
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to this object alone, is unmapped only when it is dropped, and is
// accessed as atomics only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes `count` words; the descriptor is for whoever shall share them.
    ///
    /// # Errors
    /// `ENOSYS` without memfd, `ENOMEM`, `EMFILE`, `EINVAL` for no words at all.
    pub fn create(name: &str, count: usize) -> Result<(Self, Descriptor), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // not executable where the kernel knows the word (Linux 6.3)
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))?;
        let file = Descriptor::from(file);
        ftruncate(&file, (count * size_of::<u64>()) as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        Ok((Self::open(&file, count)?, file))
    }

    /// Maps `count` words that another process made. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// `EINVAL` for a file that is smaller or not sealed, and what `mmap` reports.
    pub fn open(file: impl AsFd, count: usize) -> Result<Self, Errno> {
        let file = file.as_fd();
        let length = count.checked_mul(size_of::<u64>()).ok_or(Errno::INVAL)?;
        let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS));
        let is_long = usize::try_from(fstat(file)?.st_size).is_ok_and(|size| size >= length);
        if length == 0 || !is_sealed || !is_long {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, count })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, page alignment and a seal against shrinking, so
        // all of it can be touched for as long as `self` lives. Other processes change it under
        // us, which is what atomics are for; none of them can make a `u64` invalid.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: `open` made this mapping with this length, and the borrow of `words` is over.
        // An error would mean that it is gone already, which harms nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_one_mapping_stores_the_other_sees() {
        let (one, file) = SharedWords::create("softrdma-test", 1000).expect("memfd exists");
        let other = SharedWords::open(&file, 1000).expect("made just now");
        drop(file);
        assert!(one.words().iter().all(|word| word.load(Relaxed) == 0));
        one.words()[999].store(7, Relaxed);
        assert_eq!(other.words()[999].load(Relaxed), 7);
        drop(one);
        assert_eq!(other.words()[999].load(Relaxed), 7);
    }

    #[test]
    fn a_file_that_could_shrink_or_is_too_short_is_refused() {
        let (_words, file) = SharedWords::create("softrdma-test", 10).expect("memfd exists");
        assert_eq!(ftruncate(&file, 8), Err(Errno::PERM));
        assert_eq!(SharedWords::open(&file, 11).err(), Some(Errno::INVAL));
        assert_eq!(SharedWords::open(&file, 0).err(), Some(Errno::INVAL));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("softrdma-test", flags).expect("memfd exists");
        ftruncate(&open, 80).expect("not sealed");
        assert_eq!(SharedWords::open(&open, 10).err(), Some(Errno::INVAL));
        let null = std::fs::File::open("/dev/null").expect("it exists");
        assert_eq!(SharedWords::open(&null, 1).err(), Some(Errno::INVAL));
    }
}
