//! System calls that rustix has no safe form for, and the descriptor type.
//!
//! `libc::syscall` reaches the kernel without passing libc's `sendmsg`, `recvmsg`, `setsockopt`
//! and `close`, which are the functions that preloaded libraries replace.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// An owned file descriptor that is closed by the system call itself.
///
/// The standard library's [`OwnedFd`] closes through libc's `close`, which a preloaded library may
/// have replaced. The two convert into each other without cost.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned, and nothing uses the inner `OwnedFd` (whose own drop
        // never runs) after this.
        unsafe { rustix::io::close(self.0.as_raw_fd()) }
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl From<Descriptor> for OwnedFd {
    fn from(descriptor: Descriptor) -> Self {
        let raw = ManuallyDrop::new(descriptor).0.as_raw_fd();
        // SAFETY: ownership moves: the `Descriptor` was taken by value and its drop was suppressed.
        unsafe { OwnedFd::from_raw_fd(raw) }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl IntoRawFd for Descriptor {
    fn into_raw_fd(self) -> RawFd {
        ManuallyDrop::new(self).0.as_raw_fd()
    }
}

impl Descriptor {
    /// A second descriptor of the same open file, `CLOEXEC`.
    pub fn duplicate(&self) -> Result<Self, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self, 0).map(Self::from)
    }

    /// Takes over a descriptor number that `SCM_RIGHTS` brought.
    ///
    /// # Safety
    /// The kernel installed `raw` for this process and nobody else has taken it over.
    pub(crate) unsafe fn from_received(raw: RawFd) -> Self {
        // SAFETY: the caller's promise.
        Self::from(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

/// `select()` cannot name descriptors from here on, so a program that uses it keeps the ones below.
const SELECT_LIMIT: u64 = 1024;

/// Moves a descriptor to a high number where the soft limit allows, so that the low ones stay with
/// the program; otherwise to the upper half of what is allowed. Never fails: where there is no room
/// the descriptor stays as it is.
pub fn move_high(descriptor: Descriptor) -> Descriptor {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let minimum = if limit >= 2 * SELECT_LIMIT {
        SELECT_LIMIT
    } else {
        limit / 2
    };
    if descriptor.as_raw_fd() as u64 >= minimum {
        return descriptor;
    }
    // `minimum` is at most 1024, so the cast cannot wrap.
    match rustix::io::fcntl_dupfd_cloexec(&descriptor, minimum as RawFd) {
        Ok(high) => high.into(),
        Err(_) => descriptor,
    }
}

/// Sets an option whose value is a C `int`.
pub(crate) fn set_int(fd: impl AsFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Sets an option whose value is a plain structure given as its bytes.
pub(crate) fn set_bytes(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads `value.len()` bytes from `value` and keeps nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd.as_fd().as_raw_fd(),
            level,
            name,
            value.as_ptr(),
            value.len() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Reads an option into `value`; returns how many bytes the kernel wrote.
pub(crate) fn read_bytes(
    fd: impl AsFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value` and the new length to `length`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr(),
            &raw mut length,
        )
    };
    check(result).map(|_| length as usize)
}

/// One classic BPF instruction, laid out as the kernel's `sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) k: u32,
}

/// Gives a `SO_REUSEPORT` group its steering program.
pub(crate) fn attach_reuseport_program(
    fd: impl AsFd,
    program: &[Instruction],
) -> Result<(), Errno> {
    let header = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `Instruction` has the layout of `sock_filter`; the kernel reads `len` of them during
    // the call and keeps its own copy.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            &raw const header,
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// `sendmsg` with an optional destination and control messages; repeats after a signal.
pub(crate) fn send_message(
    fd: impl AsFd,
    name: &[u8],
    payload: &[IoSlice<'_>],
    control: &[u8],
    flags: i32,
) -> Result<usize, Errno> {
    let message = libc::msghdr {
        msg_name: null_if_empty(name),
        msg_namelen: name.len() as libc::socklen_t,
        msg_iov: payload.as_ptr().cast_mut().cast(),
        msg_iovlen: payload.len() as _,
        msg_control: null_if_empty(control),
        msg_controllen: control.len() as _,
        msg_flags: 0,
    };
    // SAFETY: all pointers of `message` come from live slices with their own lengths, and `sendmsg`
    // only reads through them. `IoSlice` has the layout of `iovec`.
    unsafe { send_raw(fd, &message, flags) }
}

/// `sendmsg` of a message that is there as the kernel wants it; repeats after a signal.
///
/// # Safety
/// The array of pieces and all that the message points to beside them are valid for the call. What
/// the pieces point to is read by the kernel alone, which says `EFAULT` where it cannot.
pub(crate) unsafe fn send_raw(
    fd: impl AsFd,
    message: &libc::msghdr,
    flags: i32,
) -> Result<usize, Errno> {
    loop {
        // SAFETY: the caller's promise; the kernel writes nothing.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                fd.as_fd().as_raw_fd(),
                std::ptr::from_ref(message),
                flags | libc::MSG_NOSIGNAL,
            )
        };
        match check(result) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// What `recvmsg` filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) length: usize,
    pub(crate) name_length: usize,
    pub(crate) control_length: usize,
    pub(crate) flags: i32,
}

/// `recvmsg` into the given buffers; repeats after a signal unless the call may block.
pub(crate) fn receive_message(
    fd: impl AsFd,
    name: &mut [u8],
    payload: &mut [IoSliceMut<'_>],
    control: &mut [u8],
    flags: i32,
) -> Result<ReceivedMessage, Errno> {
    let mut message = libc::msghdr {
        msg_name: name.as_mut_ptr().cast(),
        msg_namelen: name.len() as libc::socklen_t,
        msg_iov: payload.as_mut_ptr().cast(),
        msg_iovlen: payload.len() as _,
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: control.len() as _,
        msg_flags: 0,
    };
    loop {
        // SAFETY: all pointers of `message` come from live, exclusively borrowed slices with their
        // own lengths; the kernel writes no further. `IoSliceMut` has the layout of `iovec`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                fd.as_fd().as_raw_fd(),
                &raw mut message,
                flags,
            )
        };
        match check(result) {
            Err(Errno::INTR) if flags & libc::MSG_DONTWAIT != 0 => {}
            Err(errno) => return Err(errno),
            Ok(length) => {
                return Ok(ReceivedMessage {
                    length,
                    // The kernel reports the full size of a name that it had to cut.
                    name_length: (message.msg_namelen as usize).min(name.len()),
                    // `size_t` in glibc, `socklen_t` in musl.
                    #[allow(clippy::unnecessary_cast)]
                    control_length: (message.msg_controllen as usize).min(control.len()),
                    flags: message.msg_flags,
                });
            }
        }
    }
}

fn null_if_empty(bytes: &[u8]) -> *mut libc::c_void {
    if bytes.is_empty() {
        std::ptr::null_mut()
    } else {
        bytes.as_ptr().cast_mut().cast()
    }
}

/// `epoll_pwait2(2)`, whose timeout is exact, into the spare room of `events`. Says how many came.
pub fn epoll_pwait2(
    epoll: &Descriptor,
    events: &mut Vec<epoll::Event>,
    timeout_ns: u64,
) -> Result<usize, Errno> {
    const NS_PER_SECOND: u64 = 1_000_000_000;
    // 2^64 ns are 584 years: both parts fit.
    let timeout = Timespec {
        tv_sec: (timeout_ns / NS_PER_SECOND) as i64,
        tv_nsec: (timeout_ns % NS_PER_SECOND) as i64,
    };
    let spare = events.spare_capacity_mut();
    let room = libc::c_int::try_from(spare.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, the kernel writes at most `room` events, which have the
    // layout of rustix's type, to the spare capacity, and reads a `__kernel_timespec`, which is
    // rustix's `Timespec` (two 64-bit fields). No signal mask is given.
    let count = check(unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            spare.as_mut_ptr(),
            room,
            std::ptr::from_ref(&timeout),
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    })?;
    // SAFETY: the kernel has written so many.
    unsafe { events.set_len(events.len() + count) };
    Ok(count)
}

/// The result of `libc::syscall`: a non-negative number, or −1 with `errno`.
fn check(result: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
