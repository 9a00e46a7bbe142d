//! A place of its own for each test: network, processes and mounts that vanish with it.
//!
//! A [`Sandbox`] runs xtask itself again inside new namespaces. Ports and devices of two sandboxes
//! never meet, and whatever a test leaves behind (a broker, a virtual interface, a file in `/run`)
//! goes when its first process does, also after `kill -9`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{Local, Running};

/// Where a sandbox keeps its programs and files; a memory file system that only it sees.
pub const FOLDER: &str = "/run";

/// Who runs in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The administrator of the sandbox: root, or root of a user namespace if we are not root.
    Root,
    /// An ordinary user without any rights.
    User,
    /// An ordinary user in namespaces of its own, by `unshare -Urn`.
    UserNamespace,
}

/// What goes into a sandbox.
pub struct Sandbox {
    /// The assembled libraries and programs; they appear as `/run/dist`.
    pub dist: PathBuf,
    /// Other programs, which appear in `/run`.
    pub programs: Vec<PathBuf>,
}

// $1 dist, $2 program files, one a line, $3... the command
const PREPARE: &str = r#"set -e
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/netns
mkdir -m 1777 /run/out
[ ! -e "$1" ] || cp -a "$1" /run/dist
printf '%s\n' "$2" | while read -r file; do cp "$file" /run/; done
chmod -R a+rX /run
shift 2
cd /
"$@" # not exec: the first process of a namespace has to collect orphans, a shell does
exit $?"#;

impl Sandbox {
    /// Why this machine has no sandboxes, if it has none.
    pub fn missing() -> Option<String> {
        let argv = [&Self::unshare()[..], &["ip", "link", "set", "lo", "up"]].concat();
        let outcome =
            Local::start(&std::env::temp_dir(), &argv, &[]).and_then(|mut try_out| try_out.wait());
        match outcome {
            Ok(ended) if ended.code == 0 => None,
            Ok(ended) => Some(format!(
                "no namespaces for us here: {}",
                ended.output.trim()
            )),
            Err(error) => Some(format!("no namespaces for us here: {error:#}")),
        }
    }

    fn unshare() -> Vec<&'static str> {
        // whoever ends xtask ends the sandbox, and --kill-child all that is in it
        let mut argv = vec!["setpriv", "--pdeathsig", "KILL", "unshare"];
        if !is_root() {
            argv.push("--map-root-user");
        }
        argv.extend([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        argv
    }

    /// Runs `xtask ARGUMENTS` inside, as `who`.
    pub fn start(&self, who: Who, arguments: &[&str]) -> Result<Local> {
        let xtask = std::env::current_exe().context("where is xtask?")?;
        let name = xtask.file_name().context("xtask without a name")?;
        let inside = Path::new(FOLDER).join(name).display().to_string();
        let mut files: Vec<String> = self
            .programs
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        files.push(xtask.display().to_string());

        let mut argv = Self::unshare();
        let (dist, files) = (self.dist.display().to_string(), files.join("\n"));
        argv.extend(["bash", "-c", PREPARE, "sandbox", &dist, &files]);
        argv.extend(who.prefix());
        argv.push(&inside);
        argv.extend(arguments);
        Local::start(&std::env::temp_dir(), &argv, &[])
    }
}

impl Who {
    /// What goes before a command line, so that root starts it as this.
    pub fn prefix(self) -> Vec<&'static str> {
        let user = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ];
        let namespace = [
            "unshare",
            "-Urn",
            "bash",
            "-c",
            r#"ip link set lo up && exec "$@""#,
            "unshare",
        ];
        match self {
            Who::Root => Vec::new(),
            Who::User => user.to_vec(),
            Who::UserNamespace => [&user[..], &namespace[..]].concat(),
        }
    }

    /// Why this cannot be had here, or nothing.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Who::User | Who::UserNamespace if !is_root() => Some("needs root, to become a user"),
            _ => None,
        }
    }
}

/// Whether we are root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
