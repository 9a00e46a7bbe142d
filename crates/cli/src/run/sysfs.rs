//! `--sysfs`: `/sys/class/infiniband` and `/dev/infiniband` for programs that look there.
//!
//! Most programs ask the library. Some read the kernel's files, which a device of ours does not
//! have: `ibstatus`, NCCL, rdma-core's tests. They are shown files that are made up, in one of two
//! ways: in a mount namespace that only they see ([`Place::Mounted`]), or, where namespaces are
//! forbidden, by a library that changes the paths of their calls ([`Place::Redirected`]).
//!
//! The files say what is true when the program starts. They are written one by one, complete, so
//! that a second `run` in the same place brings them up to date under those who read.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use softrdma::LinkInfo;

use super::{namespace, program::Verdict};

/// What tells programs under `run`, and the library that changes paths, where the files are: the
/// name of the mount namespace that shows them, or a folder.
pub(super) const VARIABLE: &str = "SOFTRDMA_SYSFS";

/// The library that changes paths.
pub(super) const REDIRECTOR: &str = "libsoftrdma-paths.so";

/// The ABI version of uverbs that libraries of the last years speak.
const UVERBS_ABI: &str = "6\n";
/// That of the kernel's software devices.
const DEVICE_ABI: &str = "2\n";

/// The ending of a file that is not whole yet.
const PART: &str = "part";

/// Whether, and how, a program is shown the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Wish {
    /// If its file shows that it looks there
    #[default]
    Auto,
    /// In a namespace of its own; by changed paths where that is forbidden
    Always,
    /// By changed paths
    Redirect,
    /// Not at all
    Never,
}

impl Wish {
    /// What it comes to for this program.
    pub(super) fn of(self, verdict: &Verdict) -> Self {
        match self {
            Self::Auto if verdict.reads_sysfs => Self::Always,
            Self::Auto => Self::Never,
            other => other,
        }
    }
}

/// Where a program finds the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At the kernel's own places, in the mount namespace of this name.
    Mounted(String),
    /// Below this folder.
    Redirected(PathBuf),
}

/// Makes the files that `links` are to have, as wished; from here on this process sees them.
/// `owner` is the user whose broker it is.
pub(super) fn show(wish: Wish, links: &[LinkInfo], owner: u32) -> Result<Option<Place>, String> {
    let redirected = || redirect(links).map(Some);
    match wish {
        Wish::Never | Wish::Auto => Ok(None), // `of` has decided
        Wish::Redirect => redirected(),
        Wish::Always => {
            if is_here() {
                write_mounted(links).map_err(|error| format!("cannot renew them: {error}"))?;
                return Ok(None);
            }
            match stranger(owner).map_or_else(try_out, Err) {
                Ok(()) => mount(links).map(Some),
                Err(reason) => {
                    crate::complain(format_args!(
                        "no namespace for /sys/class/infiniband ({reason}): a library changes the \
                         program's paths instead, which static programs and system calls of its \
                         own escape"
                    ));
                    redirected()
                }
            }
        }
    }
}

/// Whether a `run` above this one has shown the files already, in the same namespace.
fn is_here() -> bool {
    let named = env::var_os(VARIABLE);
    named.is_some_and(|name| namespace::mounts().is_ok_and(|own| name == *own))
}

/// Why the library would not take the broker for its own in a user namespace, if it would not:
/// there every user but one has the same number.
fn stranger(owner: u32) -> Option<String> {
    let user = rustix::process::geteuid();
    let unknown = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let unknown = unknown.ok().and_then(|text| text.trim().parse().ok());
    if user.is_root() {
        None // who needs no user namespace
    } else if user.as_raw() != owner {
        Some(format!("the broker is that of uid {owner}"))
    } else if unknown == Some(owner) {
        Some(format!("in it uid {owner} stands for everybody else"))
    } else {
        None
    }
}

/// Tries in a child whether it can be done: half a namespace could not be left again.
fn try_out() -> Result<(), String> {
    let child = env::current_exe()
        .and_then(|own| {
            Command::new(own)
                .args(["run", "--try-sysfs", "--", "-"])
                .output()
        })
        .map_err(|error| error.to_string())?;
    if child.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&child.stderr);
    Err(text.trim().trim_start_matches("softrdma: ").to_owned())
}

/// Shows the files to this process and those that it starts, in a namespace.
pub(super) fn mount(links: &[LinkInfo]) -> Result<Place, String> {
    namespace::enter()?;
    namespace::compose(Path::new("/sys/class"), &["infiniband", "infiniband_verbs"])?;
    namespace::compose(Path::new("/dev"), &["infiniband"])?;
    write_mounted(links).map_err(|error| format!("cannot write the files: {error}"))?;
    let name = namespace::mounts().map_err(|error| format!("cannot name the mounts: {error}"))?;
    Ok(Place::Mounted(name))
}

fn write_mounted(links: &[LinkInfo]) -> io::Result<()> {
    write(links, Path::new("/sys/class"), Path::new("/dev"))
}

/// Shows the files in a folder, one for each user and network namespace, which the next `run`
/// brings up to date.
fn redirect(links: &[LinkInfo]) -> Result<Place, String> {
    let base = env::var_os("XDG_RUNTIME_DIR").map_or_else(env::temp_dir, PathBuf::from);
    let user = rustix::process::geteuid().as_raw();
    let fail = |folder: &Path, error| format!("{}: {error}", folder.display());
    let own = base.join(format!("softrdma-{user}"));
    private_folder(&own, user).map_err(|error| fail(&own, error))?;
    let network = fs::metadata("/proc/self/ns/net").map_or(0, |network| network.ino());
    let folder = own.join(format!("sysfs-{network}"));
    let (class, dev) = (folder.join("sys/class"), folder.join("dev"));
    write(links, &class, &dev).map_err(|error| fail(&folder, error))?;
    Ok(Place::Redirected(folder))
}

/// A folder that nobody else can have prepared, in a place where everybody may make some.
fn private_folder(path: &Path, user: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it is there, but not ours alone",
    ))
}

/// Makes the folders below `class` and `dev` say of `links` what the kernel's would, and nothing
/// else.
fn write(links: &[LinkInfo], class: &Path, dev: &Path) -> io::Result<()> {
    let (devices, verbs) = (class.join("infiniband"), class.join("infiniband_verbs"));
    let nodes = dev.join("infiniband");
    for folder in [&devices, &verbs, &nodes] {
        fs::create_dir_all(folder)?;
    }
    for link in links {
        let device = devices.join(&link.name);
        for (file, text) in softrdma::sysfs::files(link) {
            put(&device.join(file), &format!("{text}\n"))?;
        }
        let net = device.join("device/net");
        fs::create_dir_all(&net)?;
        keep_only(&net, [link.netdev.clone()])?;
        point(
            &net.join(&link.netdev),
            &format!("/sys/class/net/{}", link.netdev),
        )?;

        let node = node(link);
        put(&verbs.join(&node).join("abi_version"), DEVICE_ABI)?;
        put(
            &verbs.join(&node).join("ibdev"),
            &format!("{}\n", link.name),
        )?;
        put(&nodes.join(&node), "")?;
    }
    put(&verbs.join("abi_version"), UVERBS_ABI)?;
    put(&nodes.join("rdma_cm"), "")?;

    keep_only(&devices, links.iter().map(|link| link.name.clone()))?;
    let nodes_of = || links.iter().map(node);
    keep_only(&verbs, nodes_of().chain(["abi_version".into()]))?;
    keep_only(&nodes, nodes_of().chain(["rdma_cm".into()]))
}

/// The name of a link's character device, as `ibv_device` has it too.
fn node(link: &LinkInfo) -> String {
    format!("uverbs{}", link.index)
}

/// Writes a file as a whole, unless it says so already: somebody may be reading it.
fn put(file: &Path, whole: &str) -> io::Result<()> {
    if fs::read_to_string(file).is_ok_and(|found| found == whole) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.{PART}", std::process::id()));
    fs::write(&part, whole)?;
    fs::rename(part, file)
}

fn point(link: &Path, to: &str) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|found| found == Path::new(to)) {
        return Ok(());
    }
    symlink(to, link)
}

/// Takes away what is of links that are no more.
fn keep_only(folder: &Path, names: impl IntoIterator<Item = String>) -> io::Result<()> {
    let names: BTreeSet<OsString> = names.into_iter().map(OsString::from).collect();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        // what somebody else is just writing is theirs to place
        let is_part = path.extension().is_some_and(|ending| ending == PART);
        if is_part || names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
