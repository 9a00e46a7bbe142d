//! Whether a range is mapped with the rights needed, without touching a page of it: regions of
//! hundreds of gigabytes are as quick as small ones.
//!
//! The kernel tells in one of three ways, asked in this order:
//! 1. `PROCMAP_QUERY` on `/proc/self/maps` (Linux 6.11): one call for each mapping in the range;
//! 2. the text of `/proc/self/maps`, read up to the end of the range;
//! 3. without `/proc` (a bare chroot): `msync(MS_ASYNC)`, which does nothing but fail on holes. It
//!    knows nothing of rights: a wrong one is then found when the memory is used.
//!
//! The first two also work in a process that dropped its privileges: a process may always read its
//! own map.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::copy::ProgramMemory;

/// Whether all of the range is mapped, and writable or readable.
pub(super) fn is_mapped(memory: ProgramMemory, address: u64, length: u64, writable: bool) -> bool {
    if length == 0 {
        return true;
    }
    let range = Needed {
        start: address,
        end: address + length,
        writable,
    };
    match range.first_missing() {
        None => true,
        // A stack grows when its next page is touched, so the part of it that was never used is a
        // hole until then.
        Some(missing) => memory.read(missing, &mut [0]).is_ok() && range.first_missing().is_none(),
    }
}

/// A range that must be mapped.
#[derive(Clone, Copy, Debug)]
struct Needed {
    start: u64,
    end: u64,
    writable: bool,
}

/// A mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

impl Needed {
    /// The first address that is not as needed.
    fn first_missing(self) -> Option<u64> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // The system call itself: programs preload wrappers around `open`.
        let Ok(maps) = rustix::fs::open("/proc/self/maps", flags, Mode::empty()) else {
            return self.missing_by_msync();
        };
        self.missing_by_query(&maps)
            .unwrap_or_else(|| self.missing_in_text(maps))
    }

    /// Goes on in the range over one mapping: breaks with an answer or gives the address that is
    /// to be covered next.
    fn advance(self, at: u64, mapping: Mapping) -> ControlFlow<Option<u64>, u64> {
        let has_rights = if self.writable {
            mapping.writable
        } else {
            mapping.readable
        };
        if mapping.start > at || mapping.end <= at || !has_rights {
            ControlFlow::Break(Some(at))
        } else if mapping.end >= self.end {
            ControlFlow::Break(None)
        } else {
            ControlFlow::Continue(mapping.end)
        }
    }

    /// `None` if this kernel cannot be asked so.
    fn missing_by_query(self, maps: &OwnedFd) -> Option<Option<u64>> {
        let mut at = self.start;
        loop {
            match query(maps, at) {
                Query::Mapping(mapping) => match self.advance(at, mapping) {
                    ControlFlow::Break(answer) => return Some(answer),
                    ControlFlow::Continue(next) => at = next,
                },
                Query::Hole => return Some(Some(at)),
                Query::Unsupported => return None,
            }
        }
    }

    fn missing_in_text(self, maps: OwnedFd) -> Option<u64> {
        let mut at = self.start;
        for line in BufReader::with_capacity(64 << 10, File::from(maps)).split(b'\n') {
            let Some(mapping) = line.ok().and_then(|line| parse(&line)) else {
                break;
            };
            if mapping.end <= at {
                continue;
            }
            match self.advance(at, mapping) {
                ControlFlow::Break(answer) => return answer,
                ControlFlow::Continue(next) => at = next,
            }
        }
        Some(at)
    }

    fn missing_by_msync(self) -> Option<u64> {
        let page = rustix::param::page_size() as u64;
        let start = self.start & !(page - 1);
        // The kernel rounds up without looking: what is too long must not become short.
        let Ok(length) = isize::try_from(self.end - start) else {
            return Some(self.start);
        };
        // SAFETY: MS_ASYNC has no effect on memory or files; it only fails where a hole is.
        let result = unsafe {
            rustix::mm::msync(
                start as usize as *mut _,
                length as usize,
                rustix::mm::MsyncFlags::ASYNC,
            )
        };
        result.err().map(|_| self.start)
    }
}

/// A line of the map: `start-end rwxp offset device inode name`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let line = std::str::from_utf8(line.get(..line.iter().position(|byte| *byte == b' ')? + 5)?);
    let (range, rights) = line.ok()?.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: rights.starts_with('r'),
        writable: rights[1..].starts_with('w'),
    })
}

enum Query {
    Mapping(Mapping),
    Hole,
    Unsupported,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_sizes: [u32; 2],
    name_addresses: [u64; 2],
}

const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;

/// `_IOWR('f', 17, struct procmap_query)`, in the encoding of all architectures but the oldest.
const PROCMAP_QUERY: libc::c_ulong = 3 << 30
    | (size_of::<ProcmapQuery>() as libc::c_ulong) << 16
    | (b'f' as libc::c_ulong) << 8
    | 17;

/// The mapping that covers `address`.
fn query(maps: &OwnedFd, address: u64) -> Query {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_addr: address,
        ..ProcmapQuery::default()
    };
    // SAFETY: the kernel reads and writes `size` bytes of `query`, no more.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            maps.as_raw_fd(),
            PROCMAP_QUERY,
            &raw mut query,
        )
    };
    if result == 0 {
        return Query::Mapping(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            readable: query.vma_flags & VMA_READABLE != 0,
            writable: query.vma_flags & VMA_WRITABLE != 0,
        });
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Query::Hole,
        _ => Query::Unsupported,
    }
}

#[cfg(test)]
mod tests;
