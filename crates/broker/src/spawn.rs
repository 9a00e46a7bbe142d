//! Finding and starting the broker program.
//!
//! It starts as `ssh-agent` does: when it is needed and none runs. The starting program is
//! somebody else's, so nothing of it may stay behind in the broker: not its standard output (a CI
//! step must not hang on it), not its other descriptors, its session, its environment or its
//! working directory. The program starts `softrdma broker`; that process makes a session of its
//! own, starts the real broker ([`detach`]) and ends, so that the broker's parent is init.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, getuid, setrlimit, setsid};

/// Names the broker program, before all other places.
pub const PROGRAM_VARIABLE: &str = "SOFTRDMA_BIN";

/// What the broker keeps of the environment: its own logging, nothing of the program's.
const KEPT_VARIABLES: [&str; 2] = ["SOFTRDMA_LOG", "SOFTRDMA_LOG_FILE"];

/// The places where the program may be, best first. Variables count for nothing in a program
/// that runs with somebody else's rights.
pub(crate) fn candidates(library: Option<&Path>) -> Vec<PathBuf> {
    let from_variable = trusted_variable(PROGRAM_VARIABLE).map(PathBuf::from);
    let beside_library = library.and_then(|file| {
        let folder = file.parent()?;
        Some(folder.parent()?.join("bin").join("softrdma"))
    });
    from_variable.into_iter().chain(beside_library).collect()
}

/// A variable of the environment, unless this is a setuid program.
pub(crate) fn trusted_variable(name: &str) -> Option<String> {
    (getuid() == geteuid())
        .then(|| env::var(name).ok())
        .flatten()
}

/// Starts `program broker ARGUMENTS` and returns when it has left our process group.
pub(crate) fn start(program: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Result<()> {
    let mut child = command(program).arg("broker").args(arguments).spawn()?;
    match child.wait() {
        Ok(status) if !status.success() => Err(io::Error::other(format!(
            "{} broker: {status}",
            program.display()
        ))),
        // the program may reap all its children itself, or ignore SIGCHLD: then nobody knows
        _ => Ok(()),
    }
}

/// Run by the process that `start` made: leaves the session, and starts this program again with
/// `arguments` and no descriptors of ours. The caller ends after that.
pub fn detach(arguments: &[impl AsRef<OsStr>]) -> io::Result<()> {
    // fails only for the leader of a process group, which is in no need of it: somebody's shell
    // job, started by hand
    if setsid().is_err() {
        tracing::debug!("already a process group leader");
    }
    ::io::inherit::close_on_exec_from(3)?;
    command(&env::current_exe()?)
        .args(arguments)
        .spawn()
        .map(drop)
}

/// A command with nothing of this process but the arguments that follow.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let kept = KEPT_VARIABLES
        .iter()
        .filter_map(|name| Some((name, env::var_os(name)?)));
    command
        .env_clear()
        .envs(kept)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Lets this process open as many descriptors as it may: a broker has 256 slots and as many
/// clients.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_looked_for_beside_the_library() {
        let found = candidates(Some(Path::new("/opt/softrdma/lib/libibverbs.so.1")));
        assert_eq!(
            found.last(),
            Some(&PathBuf::from("/opt/softrdma/bin/softrdma"))
        );
        assert!(candidates(Some(Path::new("libibverbs.so.1"))).len() <= 1);
    }

    #[test]
    fn a_program_that_fails_at_once_is_reported() {
        let error = start(Path::new("/bin/false"), &["--x"]).expect_err("it fails");
        assert!(error.to_string().contains("/bin/false"), "{error}");
        start(Path::new("/no/such/program"), &["--x"]).expect_err("there is none");
    }
}
