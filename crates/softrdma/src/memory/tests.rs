//! What the tests of this module share: pages that can be taken away, and children that may die.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Size of a page on every machine that these tests run on; checked by [`Pages`].
pub(crate) const PAGE: usize = 4096;

/// A mapping of this test alone. Its range stays reserved until it is dropped: what was unmapped is
/// without rights, as nothing else may slip in there, or a real hole in a test of its own process.
pub(crate) struct Pages {
    base: *mut libc::c_void,
    count: usize,
    file: Option<OwnedFd>,
}

// SAFETY: an address and a descriptor; the mapping belongs to no thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `count` private pages of zeros.
    pub(crate) fn anonymous(count: usize) -> Self {
        Self::map(count, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)
    }

    /// `count` shared pages of an unnamed file.
    pub(crate) fn file(count: usize) -> Self {
        let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("memory files exist");
        rustix::fs::ftruncate(&file, (count * PAGE) as u64).expect("it can grow");
        Self::map(count, libc::MAP_SHARED, Some(file))
    }

    /// Address space of `count` pages with rights but without memory behind it.
    pub(crate) fn sparse(count: usize) -> Self {
        Self::map(
            count,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            None,
        )
    }

    fn map(count: usize, flags: i32, file: Option<OwnedFd>) -> Self {
        use std::os::fd::AsRawFd;
        assert_eq!(rustix::param::page_size(), PAGE);
        let descriptor = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * PAGE,
                rights,
                flags,
                descriptor,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base, count, file }
    }

    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    pub(crate) fn length(&self) -> u64 {
        (self.count * PAGE) as u64
    }

    /// Takes away the pages from index `from` on, for good or until [`map_again`](Self::map_again).
    pub(crate) fn unmap_from(&self, from: usize) {
        let rest = (self.count - from) * PAGE;
        // SAFETY: pages of this mapping; no reference to them exists.
        let result = unsafe {
            libc::mmap(
                self.base.byte_add(from * PAGE),
                rest,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_ne!(result, libc::MAP_FAILED);
    }

    /// Makes a real hole of the pages from index `from` on. Something else may be mapped there at
    /// any time.
    pub(crate) fn punch_from(&mut self, from: usize) {
        // SAFETY: pages of this mapping, which is shorter from here on.
        let result =
            unsafe { libc::munmap(self.base.byte_add(from * PAGE), (self.count - from) * PAGE) };
        assert_eq!(result, 0);
        self.count = from;
    }

    /// Fresh pages everywhere.
    pub(crate) fn map_again(&self) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
    }

    pub(crate) fn protect(&self, rights: i32) {
        // SAFETY: pages of this mapping; no reference to them exists.
        let result = unsafe { libc::mprotect(self.base, self.count * PAGE, rights) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Cuts the file behind the mapping.
    pub(crate) fn truncate(&self, pages: usize) {
        let file = self.file.as_ref().expect("a file mapping");
        rustix::fs::ftruncate(file, (pages * PAGE) as u64).expect("it can shrink");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it.
        unsafe { libc::munmap(self.base, self.count * PAGE) };
    }
}

/// Set in the children that [`in_child`] starts.
const CHILD: &str = "SOFTRDMA_TEST_IN_CHILD";

/// Runs `body` in a process of its own, where it may change what the whole process shares or die.
/// `test` is the full name of the test that calls this, and only calls this.
pub(super) fn in_child(test: &str, body: fn()) -> ExitStatus {
    if std::env::var_os(CHILD).is_some_and(|name| name == *test) {
        body();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    // what a child that is meant to die writes to its stderr is no concern of who reads the tests
    let output = Command::new(std::env::current_exe().expect("this test program"))
        .args([test, "--exact", "--test-threads=1", "--nocapture"])
        .env(CHILD, test)
        .output()
        .expect("this program can be started again");
    if output.status.code() == Some(101) {
        panic!(
            "the child failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    output.status
}

/// How [`in_child`] ended.
pub(super) fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// The name of a test as the test program knows it, from `module_path!()` and the function.
pub(super) fn full_name(module: &str, function: &str) -> String {
    let (_crate, path) = module.split_once("::").expect("a module of a crate");
    format!("{path}::{function}")
}
