//! `rsetsockopt`, `rgetsockopt`, `rfcntl`: which option is what.

use core::ffi::{c_int, c_void};

use libc::{O_NONBLOCK, O_RDWR, linger, socklen_t};
use rsocket::{Datagram, Family, Flag, Settings, Socket, Stream};

use crate::errno::Errno;
use crate::guard::{Number, guard};

/// The level of options that only rsockets have, and its options.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// The option that is on or off, of those that are.
fn flag(level: c_int, name: c_int) -> Option<Flag> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Flag::ReuseAddress,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => Flag::KeepAlive,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => Flag::OutOfBandInline,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Flag::NoDelay,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Flag::V6Only,
        _ => return None,
    })
}

/// What sets and gives a size of an rsocket.
type Setter = fn(&mut Settings, u32);
type Getter = fn(&Settings) -> u32;

fn size(level: c_int, name: c_int) -> Option<(Setter, Getter)> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            (Settings::set_send_buffer, |settings| settings.send_buffer)
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => (Settings::set_receive_buffer, |settings| {
            settings.receive_buffer
        }),
        (SOL_RDMA, RDMA_SQSIZE) => (Settings::set_send_queue, |settings| {
            settings.send_queue.into()
        }),
        (SOL_RDMA, RDMA_RQSIZE) => (Settings::set_receive_queue, |settings| {
            settings.receive_queue.into()
        }),
        (SOL_RDMA, RDMA_INLINE) => (Settings::set_inline, |settings| settings.inline.into()),
        (SOL_RDMA, RDMA_IOMAPSIZE) => (Settings::set_iomap, |settings| settings.iomap.into()),
        _ => return None,
    })
}

/// `rsetsockopt`
///
/// # Safety
/// `value` is NULL or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        if value.is_null() || (length as usize) < size_of::<c_int>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's promise, and enough bytes.
        let number = unsafe { value.cast::<c_int>().read_unaligned() };
        match &socket {
            Socket::Stream(stream) => set(stream, level, name, number)?,
            // SAFETY: the caller's promise.
            Socket::Datagram(datagram) => unsafe {
                set_datagram(datagram, level, name, value, length)?;
            },
        }
        Ok(0)
    })
}

fn set(stream: &Stream, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    if let Some(flag) = flag(level, name) {
        return Ok(stream.set_flag(flag, value != 0)?);
    }
    if let Some((set, _)) = size(level, name) {
        // sizes that are in use already stay, and nobody is told, as with the kernel's sockets
        let is_refused = level == SOL_RDMA && stream.has_begun();
        if is_refused {
            return Err(Errno::INVALID);
        }
        stream.set_settings(|settings| set(settings, value.max(0) as u32));
        return Ok(());
    }
    match (level, name) {
        // its first member says whether it is on
        (libc::SOL_SOCKET, libc::SO_LINGER) => stream.set_flag(Flag::NoLinger, value == 0)?,
        (libc::IPPROTO_IP, libc::IP_TOS) => stream.set_traffic_class(value as u8)?,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = u32::try_from(value).ok().filter(|seconds| *seconds > 0);
            stream.set_keep_idle(seconds.ok_or(Errno::INVALID)?);
        }
        // a reliable connection repeats in its own way
        (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => {}
        _ => return Err(Errno::unsupported("an option of rsockets")),
    }
    Ok(())
}

/// Options of datagram sockets are those of their UDP socket, but for sizes.
///
/// # Safety
/// As [`softrdma_rsetsockopt`], with at least the bytes of a number.
unsafe fn set_datagram(
    datagram: &Datagram,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    if level != SOL_RDMA {
        // SAFETY: the caller's promise.
        unsafe {
            udp_option(
                datagram,
                libc::SYS_setsockopt,
                level,
                name,
                value,
                length as usize,
            )?
        };
    }
    // SAFETY: the caller's promise.
    let number = unsafe { value.cast::<c_int>().read_unaligned() };
    match size(level, name) {
        Some((set, _)) => datagram.set_settings(|settings| set(settings, number.max(0) as u32)),
        None if level == SOL_RDMA => return Err(Errno::unsupported("an option of rsockets")),
        None => {}
    }
    Ok(())
}

/// A call about the options of a UDP socket, past the wrappers that a program may have preloaded.
///
/// # Safety
/// `value` and `length` are what that call wants.
unsafe fn udp_option(
    datagram: &Datagram,
    call: libc::c_long,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: the caller's promise.
    let result =
        unsafe { libc::syscall(call, datagram.udp().as_raw_fd(), level, name, value, length) };
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(())
    }
}

/// `rgetsockopt`
///
/// # Safety
/// `length` is NULL or valid; `value` is NULL or valid for as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrdma_rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        if value.is_null() || length.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        let put = |bytes: &[u8]| unsafe {
            let room = bytes.len().min(length.read() as usize);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
            length.write(room as socklen_t);
        };
        let stream = match &socket {
            Socket::Stream(stream) => stream,
            Socket::Datagram(datagram) => {
                if let Some((_, get)) = size(level, name) {
                    put(&get(&datagram.settings()).to_ne_bytes());
                } else {
                    // SAFETY: the caller's promise.
                    unsafe {
                        udp_option(
                            datagram,
                            libc::SYS_getsockopt,
                            level,
                            name,
                            value,
                            length as usize,
                        )?;
                    }
                }
                return Ok(0);
            }
        };
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
            put(&tcp_info(stream));
        } else if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let on = !stream.options().is_on(Flag::NoLinger);
            put(&c_int::from(on).to_ne_bytes());
            // SAFETY: the caller's promise.
            if unsafe { length.read() } as usize >= size_of::<c_int>() {
                let whole = [c_int::from(on).to_ne_bytes(), [0; size_of::<c_int>()]].concat();
                debug_assert_eq!(whole.len(), size_of::<linger>());
                put(&whole);
            }
        } else {
            put(&get(stream, level, name)?.to_ne_bytes());
        }
        Ok(0)
    })
}

fn get(stream: &Stream, level: c_int, name: c_int) -> Result<c_int, Errno> {
    if let Some(flag) = flag(level, name) {
        return Ok(c_int::from(stream.options().is_on(flag)));
    }
    if let Some((_, get)) = size(level, name) {
        return Ok(get(&stream.settings()) as c_int);
    }
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => stream.take_error().unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => match stream.family() {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        },
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => c_int::from(stream.is_listening()),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => stream.options().traffic_class() as c_int,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => stream.options().keep_idle_seconds() as c_int,
        // what librdmacm answers, too
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => stream.packet_length() as c_int,
        _ => return Err(Errno::unsupported("an option of rsockets")),
    })
}

/// As much of `struct tcp_info` as rsockets have: the state, and the length of the send queue.
fn tcp_info(stream: &Stream) -> Vec<u8> {
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;
    let mut bytes = vec![0; size_of::<libc::tcp_info>()];
    bytes[0] = if stream.is_open() { ESTABLISHED } else { CLOSE };
    let at = core::mem::offset_of!(libc::tcp_info, tcpi_snd_cwnd);
    let window = u32::from(stream.settings().send_queue);
    bytes[at..at + 4].copy_from_slice(&window.to_ne_bytes());
    bytes
}

/// What `rfcntl` does with its one argument.
#[unsafe(no_mangle)]
pub extern "C" fn softrdma_rs_fcntl(socket: c_int, command: c_int, argument: c_int) -> c_int {
    guard::<Number>(|| {
        let socket = rsocket::socket(socket)?;
        match command {
            libc::F_GETFL => Ok(O_RDWR
                | if socket.is_nonblocking() {
                    O_NONBLOCK
                } else {
                    0
                }),
            libc::F_SETFL => {
                socket.set_nonblocking(argument & O_NONBLOCK != 0);
                Ok(0)
            }
            // programs that are started from here never have it
            libc::F_GETFD => Ok(libc::FD_CLOEXEC),
            libc::F_SETFD => Ok(0),
            _ => Err(Errno::unsupported("this command of rfcntl")),
        }
    })
}
