//! For tests: a network namespace of one's own, and a device that shows what leaves the host.

use std::ffi::CString;
use std::process::Command;

use crate::poll::wait_readable;
use crate::raw::Descriptor;

/// Hang guard.
const GUARD_NS: u64 = 30_000_000_000;

/// Runs `test` on a thread in a new network namespace, which ends with it. Prints why and skips
/// when this process may not make one. False if the test failed.
pub(crate) fn in_new_network(what: &str, test: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes no pointers, and changes this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = std::io::Error::last_os_error();
                println!("skipped {what}: no network namespace: {error}");
                return;
            }
            test();
        });
        thread.join().is_ok()
    })
}

/// Runs `ip` with these arguments in the namespace of the calling thread; prints why not.
pub(crate) fn ip(arguments: &str) -> bool {
    match Command::new("ip").args(arguments.split(' ')).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            println!("skipped: ip {arguments}: {}", reason.trim());
            false
        }
        Err(error) => {
            println!("skipped: ip {arguments}: {error}");
            false
        }
    }
}

/// A TUN device: what is routed to it can be read, as the IP packets that a wire would carry.
pub(crate) struct Tun(Descriptor);

impl Tun {
    /// Makes the device in the namespace of the calling thread; prints why not.
    pub(crate) fn open(name: &str) -> Option<Self> {
        use rustix::fs::{Mode, OFlags, open};
        let device = match open(
            "/dev/net/tun",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(fd) => Descriptor::from(fd),
            Err(errno) => {
                println!("skipped: /dev/net/tun: {errno}");
                return None;
            }
        };
        let name = CString::new(name).expect("a literal");
        // SAFETY: an all-zero `ifreq` is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
        use std::os::fd::AsRawFd;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if made != 0 {
            println!("skipped: TUNSETIFF: {}", std::io::Error::last_os_error());
            return None;
        }
        Some(Self(device))
    }

    /// The next packet.
    pub(crate) fn read(&self) -> Vec<u8> {
        assert_eq!(
            wait_readable(&self.0, Some(GUARD_NS)),
            Ok(true),
            "no packet"
        );
        let mut packet = vec![0; 1 << 16];
        let length = rustix::io::read(&self.0, &mut packet[..]).expect("readable");
        packet.truncate(length);
        packet
    }
}
