//! `run`: a program with our libraries in front of the system's.
//!
//! The program is *executed*, not started: its pid, terminal, signals and exit code are its own.
//! Its environment gets a folder in front of `LD_LIBRARY_PATH`, and nothing else unless its file
//! shows that this is not enough, or somebody asks for more.

mod elf;
mod namespace;
mod program;
mod sysfs;

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use broker::{CallError, Client, Refusal};
use softrdma::choice::VARIABLE;

use self::{
    program::{LIBRARIES, Verdict},
    sysfs::{Place, Wish},
};
use crate::connect::{Failure, connect_or_start, wait_for_port};

/// Run a program with the libraries of softrdma.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Show the program /sys/class/infiniband and /dev/infiniband, as if the kernel had the devices
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        default_value_t,
        default_missing_value = "always",
        num_args = 0..=1,
        require_equals = true
    )]
    sysfs: Wish,
    /// Try whether they can be shown, and end
    #[arg(long, hide = true)]
    try_sysfs: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// The link that is made when there is none.
const DEFAULT_LINK: (&str, &str, &str) = ("rxe_lo", "rxe", "lo");

/// We failed, not the program; as `env` and others have it.
const EXIT_OWN_FAILURE: u8 = 125;
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    if arguments.try_sysfs {
        return match sysfs::mount(&[]) {
            Ok(_) => ExitCode::SUCCESS,
            Err(text) => {
                crate::complain(text);
                ExitCode::from(EXIT_OWN_FAILURE)
            }
        };
    }
    let (code, text) = execute(&arguments);
    crate::complain(text);
    ExitCode::from(code)
}

/// Becomes the program; comes back only with a reason why not.
fn execute(arguments: &Arguments) -> (u8, String) {
    let Some((name, words)) = arguments.command.split_first() else {
        return (EXIT_OWN_FAILURE, "no program is given".into());
    };
    let Some(file) = program::find(name) else {
        return (
            EXIT_NOT_FOUND,
            format!("{}: command not found", name.display()),
        );
    };
    let libraries = match libraries() {
        Ok(folder) => folder,
        Err(text) => return (EXIT_OWN_FAILURE, text),
    };
    let verdict = program::judge(&file);
    if let Some(warning) = &verdict.warning {
        crate::complain(format_args!("warning: {warning}"));
    }
    let place = match prepare(arguments.sysfs.of(&verdict)) {
        Ok(place) => place,
        Err(text) => return (EXIT_OWN_FAILURE, text),
    };
    let mut command = Command::new(&file);
    command.arg0(name).args(words);
    let changes = environment(&libraries, &verdict, place.as_ref(), |name| {
        env::var_os(name)
    });
    for (variable, value) in changes {
        command.env(variable, value);
    }
    let error = command.exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_EXECUTABLE,
    };
    (code, format!("cannot execute {}: {error}", file.display()))
}

/// The folder of our libraries: beside that of this program.
fn libraries() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let folder = own
        .parent()
        .and_then(Path::parent)
        .map(|folder| folder.join("lib"))
        .ok_or_else(|| format!("{} is in no folder", own.display()))?;
    match missing(&folder) {
        None => Ok(folder),
        // the system's would find no device, or one of another kind
        Some(name) => Err(format!(
            "there is no {name} in {}: this program belongs in the bin folder beside that, as \
             `cargo xtask dist` puts it",
            folder.display()
        )),
    }
}

/// A library that should be in the folder and is not.
fn missing(folder: &Path) -> Option<&'static str> {
    LIBRARIES
        .into_iter()
        .find(|name| !folder.join(name).exists())
}

/// Sees to it that there is a broker with a link, for the life of this process and thus of the
/// program that it becomes, and that the program finds the files that are wished for.
fn prepare(sysfs: Wish) -> Result<Option<Place>, String> {
    let told = |failure: Failure| failure.to_string();
    let client = broker_with_link().map_err(told)?;
    if sysfs == Wish::Never {
        return Ok(None);
    }
    let links = client.links().map_err(|error| told(error.into()))?;
    let links = softrdma::choice::visible(links);
    let owner = client.status().map_err(|error| told(error.into()))?.uid;
    sysfs::show(sysfs, &links, owner).map_err(|text| format!("/sys/class/infiniband: {text}"))
}

/// A broker, with a link of its own if there is none, for as long as the value lives.
pub(crate) fn broker_with_link() -> Result<Client, Failure> {
    let client = connect_or_start()?;
    client.hold()?;
    wait_for_port(&client)?;
    if client.links()?.is_empty() {
        match env::var(VARIABLE) {
            // the program would not see it
            Ok(wish) if hides(&wish, DEFAULT_LINK.0) => crate::complain(format_args!(
                "no link is configured, and {VARIABLE}={wish} names none that would be made: \
                 `softrdma link add` makes one"
            )),
            _ => add_default_link(&client)?,
        }
    }
    Ok(client)
}

/// Whether this value of the variable names links, and none of this name.
fn hides(wish: &str, name: &str) -> bool {
    let mut names = wish
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    names.clone().next().is_some() && names.all(|shown| shown != name)
}

fn add_default_link(client: &Client) -> Result<(), Failure> {
    let (name, kind, netdev) = DEFAULT_LINK;
    match client.add_link(name, kind, netdev, false) {
        Ok(link) => {
            crate::complain(format_args!(
                "no link is configured: made {name} on {netdev} (`softrdma link add` makes others)"
            ));
            if !link.up {
                crate::complain(format_args!(
                    "{netdev} is down: `ip link set {netdev} up` activates {name}"
                ));
            }
            Ok(())
        }
        // somebody else just did the same
        Err(CallError::Refused(Refusal::NameInUse { .. } | Refusal::NetdevInUse { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What changes in the environment.
fn environment(
    libraries: &Path,
    verdict: &Verdict,
    place: Option<&Place>,
    current: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, OsString)> {
    let prepended = |name: &str, first: &OsStr, separator: &str| {
        let mut value = first.to_owned();
        // an empty entry would mean the working directory
        if let Some(rest) = current(name).filter(|rest| !rest.is_empty()) {
            value.push(separator);
            value.push(rest);
        }
        value
    };
    let search = "LD_LIBRARY_PATH";
    let mut changes = vec![(search, prepended(search, libraries.as_os_str(), ":"))];
    let mut preloaded = Vec::new();
    if verdict.preload {
        preloaded.extend(LIBRARIES);
    }
    match place {
        Some(Place::Mounted(namespace)) => changes.push((sysfs::VARIABLE, namespace.into())),
        Some(Place::Redirected(folder)) => {
            changes.push((sysfs::VARIABLE, folder.into()));
            preloaded.push(sysfs::REDIRECTOR);
        }
        None => {}
    }
    if !preloaded.is_empty() {
        let paths = preloaded.iter().map(|name| libraries.join(name));
        let list: Vec<_> = paths.map(PathBuf::into_os_string).collect();
        let list = list.join(OsStr::new(":"));
        changes.push(("LD_PRELOAD", prepended("LD_PRELOAD", &list, ":")));
        if verdict.sanitized {
            let option = OsStr::new("verify_asan_link_order=0");
            changes.push(("ASAN_OPTIONS", prepended("ASAN_OPTIONS", option, ":")));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(verdict: &Verdict, current: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        changes_at(None, verdict, current)
    }

    fn changes_at(
        place: Option<&Place>,
        verdict: &Verdict,
        current: &[(&str, &str)],
    ) -> Vec<(&'static str, String)> {
        let lookup = |name: &str| {
            current
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        };
        environment(Path::new("/dist/lib"), verdict, place, lookup)
            .into_iter()
            .map(|(name, value)| (name, value.into_string().expect("plain text")))
            .collect()
    }

    #[test]
    fn every_library_has_to_be_there() {
        let folder = env::temp_dir().join(format!("softrdma-run-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder of this test");
        for (index, name) in LIBRARIES.into_iter().enumerate() {
            assert_eq!(missing(&folder), Some(LIBRARIES[index]));
            std::fs::write(folder.join(name), "").expect("a file of this test");
        }
        assert_eq!(missing(&folder), None);
        std::fs::remove_dir_all(&folder).expect("made by this test");
    }

    #[test]
    fn our_folder_comes_first() {
        let plain = Verdict::default();
        assert_eq!(
            changes(&plain, &[]),
            [("LD_LIBRARY_PATH", "/dist/lib".to_owned())]
        );
        let empty = changes(&plain, &[("LD_LIBRARY_PATH", "")]);
        assert_eq!(empty, [("LD_LIBRARY_PATH", "/dist/lib".to_owned())]);
        let with_others = changes(&plain, &[("LD_LIBRARY_PATH", "/a:/b")]);
        assert_eq!(
            with_others,
            [("LD_LIBRARY_PATH", "/dist/lib:/a:/b".to_owned())]
        );
    }

    #[test]
    fn libraries_are_preloaded_only_where_they_would_lose() {
        let verdict = Verdict {
            preload: true,
            sanitized: true,
            ..Verdict::default()
        };
        assert_eq!(
            changes(&verdict, &[("LD_PRELOAD", "/x.so")])[1..],
            [
                (
                    "LD_PRELOAD",
                    "/dist/lib/libibverbs.so.1:/dist/lib/librdmacm.so.1:/x.so".to_owned()
                ),
                ("ASAN_OPTIONS", "verify_asan_link_order=0".to_owned()),
            ]
        );
    }

    #[test]
    fn where_the_files_are_is_told() {
        let plain = Verdict::default();
        let mounted = Place::Mounted("mnt:[7]".into());
        assert_eq!(
            changes_at(Some(&mounted), &plain, &[])[1..],
            [("SOFTRDMA_SYSFS", "mnt:[7]".to_owned())]
        );
        let redirected = Place::Redirected("/tmp/made".into());
        assert_eq!(
            changes_at(Some(&redirected), &plain, &[("LD_PRELOAD", "/x.so")])[1..],
            [
                ("SOFTRDMA_SYSFS", "/tmp/made".to_owned()),
                (
                    "LD_PRELOAD",
                    "/dist/lib/libsoftrdma-paths.so:/x.so".to_owned()
                ),
            ]
        );
    }
}
