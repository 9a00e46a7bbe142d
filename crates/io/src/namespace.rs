//! Namespaces that a process makes for itself and for what it starts.

use rustix::{
    io::Errno,
    thread::{UnshareFlags, unshare_unsafe},
};

/// Gives the calling thread a mount namespace of its own, a copy of the one it was in.
///
/// # Errors
/// `EPERM` for who is not privileged.
pub fn own_mounts() -> Result<(), Errno> {
    unshare(UnshareFlags::NEWNS)
}

/// Gives the process a user namespace, in which it is privileged and has no user yet, and a mount
/// namespace that belongs to it.
///
/// # Errors
/// `EINVAL` when the process has several threads; `EPERM`, `ENOSPC` or `EUSERS` where such
/// namespaces are forbidden or all are taken.
pub fn own_user_and_mounts() -> Result<(), Errno> {
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
}

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: only a descriptor table that is unshared is unsafe, and that is not among the flags.
    unsafe { unshare_unsafe(flags) }
}
