//! A mount namespace in which folders of the kernel have more in them than the kernel gives.
//!
//! Root makes just that. Anybody else makes a user namespace around it, where the same user goes on
//! with the same rights: none. Mounts that come outside still appear; what is mounted here nobody
//! else sees, and it ends with the last program inside.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    },
    process::{getegid, geteuid},
};

/// The name of this process's mount namespace.
pub(super) fn mounts() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/mnt")?.display().to_string())
}

/// Enters a new one.
pub(super) fn enter() -> Result<(), String> {
    match ::io::namespace::own_mounts() {
        Ok(()) => {}
        Err(Errno::PERM) => as_user()?,
        Err(errno) => return Err(format!("unshare: {}", io::Error::from(errno))),
    }
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|errno| format!("/: {}", io::Error::from(errno)))
}

fn as_user() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    ::io::namespace::own_user_and_mounts()
        .map_err(|errno| format!("no user namespaces: {}", io::Error::from(errno)))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Lets `folder` have new, empty folders of these names, in place of those it may have, and all
/// else that it has now.
pub(super) fn compose(folder: &Path, names: &[&str]) -> Result<(), String> {
    let told = |error: io::Error| format!("{}: {error}", folder.display());
    if names.iter().all(|name| folder.join(name).is_dir()) {
        for name in names {
            empty(&folder.join(name)).map_err(told)?;
        }
        return Ok(());
    }
    // Nothing can be made in sysfs, and nobody but root makes anything in /dev: so the folder is
    // covered by a new one, into which what is below is mounted again.
    let below = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(folder)
        .map_err(told)?;
    let entries: Vec<_> = fs::read_dir(folder).map_err(told)?.flatten().collect();
    empty(folder).map_err(told)?;
    for entry in entries {
        let name = entry.file_name();
        if names.iter().all(|new| name != *new) {
            let to = folder.join(&name);
            // one that has gone meanwhile, or cannot be had, is one less
            if let Err(error) = again(&through(&below, &name.into()), &to) {
                tracing::debug!(%error, path = %to.display(), "cannot be mounted again");
            }
        }
    }
    for name in names {
        let mut made = fs::DirBuilder::new();
        made.mode(0o755).create(folder.join(name)).map_err(told)?;
    }
    Ok(())
}

/// Covers a folder with an empty one.
fn empty(folder: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("softrdma", folder, "tmpfs", flags, c"mode=0755")?)
}

/// The path of an entry of a folder that is covered.
fn through(folder: &File, name: &PathBuf) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(folder.as_raw_fd().to_string())
        .join(name)
}

/// Makes `to` be what `from` is.
fn again(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
        return Ok(mount_bind_recursive(from, to)?);
    }
    File::create_new(to)?;
    Ok(mount_bind(from, to)?)
}
