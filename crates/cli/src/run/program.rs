//! Whether our libraries will reach a program, judged by its file.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::process::{getegid, geteuid};

use super::elf::{self, Dynamic, Kind};

/// Our libraries, in the order in which they must be loaded.
pub(super) const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Libraries that read the kernel's files about RDMA devices themselves, by the start of their
/// names: what infiniband-diags is made of, and NCCL.
const SYSFS_READERS: [&str; 4] = [
    "libibumad.so",
    "libibmad.so",
    "libibnetdisc.so",
    "libnccl.so",
];

/// Interpreters of interpreters: the kernel follows four.
const SCRIPTS_MAX: usize = 4;

/// How to start a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Libraries of its own would win over the search path: ours have to be preloaded.
    pub(super) preload: bool,
    /// It is built with the address sanitizer, which wants to be the first library.
    pub(super) sanitized: bool,
    /// It is linked to a library that reads the kernel's files about RDMA devices.
    pub(super) reads_sysfs: bool,
    /// Why our libraries will not reach it.
    pub(super) warning: Option<String>,
}

/// Finds a program as a shell does: in `PATH`, unless the name has a slash.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if name.as_encoded_bytes().contains(&b'/') {
        return path.exists().then(|| path.to_owned());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Judges the file that will be executed, or its interpreter.
pub(super) fn judge(program: &Path) -> Verdict {
    let mut file = program.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let kind = match elf::inspect(&file) {
            Ok(kind) => kind,
            Err(error) => {
                // executable but not readable is possible, and no business of ours
                tracing::debug!(%error, file = %file.display(), "cannot look into the program");
                return Verdict::default();
            }
        };
        match kind {
            Kind::Script(interpreter) => file = interpreter.into(),
            other => return judge_program(&file, &other),
        }
    }
    Verdict::default()
}

fn judge_program(file: &Path, kind: &Kind) -> Verdict {
    let warn = |why: &str| Verdict {
        warning: Some(format!("{} {why}", file.display())),
        ..Verdict::default()
    };
    match kind {
        Kind::Static => warn(
            "is statically linked: it cannot load libibverbs.so.1 at all, neither ours nor \
             another (programs that it starts can)",
        ),
        Kind::Foreign => warn(
            "is of another architecture than these libraries: it cannot load them (programs that \
             it starts can)",
        ),
        Kind::Dynamic(dynamic) if dynamic.interpreter.contains("ld-musl") => warn(
            "is linked to musl: these libraries need glibc, so it cannot load them (programs that \
             it starts can)",
        ),
        Kind::Dynamic(_) if gains_privileges(file) => warn(
            "runs with privileges of its own (setuid, setgid or capabilities): the loader ignores \
             LD_LIBRARY_PATH and the system's libraries are used; start softrdma with these \
             privileges instead",
        ),
        Kind::Dynamic(dynamic) => Verdict {
            preload: own_libraries_win(file, dynamic),
            sanitized: dynamic
                .needed
                .iter()
                .any(|name| name.starts_with("libasan.so")),
            reads_sysfs: dynamic
                .needed
                .iter()
                .any(|name| SYSFS_READERS.iter().any(|reader| name.starts_with(reader))),
            warning: None,
        },
        Kind::Script(_) | Kind::Unknown => Verdict::default(),
    }
}

/// Whether the kernel will mark the execution as secure, so that the loader ignores the
/// environment.
fn gains_privileges(file: &Path) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID_EXECUTABLE: u32 = 0o2010;
    let Ok(data) = fs::metadata(file) else {
        return false;
    };
    let other_user = data.mode() & SETUID != 0 && data.uid() != geteuid().as_raw();
    let other_group =
        data.mode() & SETGID_EXECUTABLE == SETGID_EXECUTABLE && data.gid() != getegid().as_raw();
    let capabilities = !geteuid().is_root()
        && rustix::fs::getxattr(file, "security.capability", &mut [0_u8; 64][..]).is_ok();
    other_user || other_group || capabilities
}

/// Whether the program's own search path, which comes before ours, has one of our libraries.
fn own_libraries_win(file: &Path, dynamic: &Dynamic) -> bool {
    let origin = file
        .canonicalize()
        .ok()
        .and_then(|file| Some(file.parent()?.to_owned()));
    let origin = origin.as_deref().and_then(Path::to_str).unwrap_or(".");
    dynamic
        .rpath
        .iter()
        .map(|folder| {
            folder
                .replace("${ORIGIN}", origin)
                .replace("$ORIGIN", origin)
        })
        .any(|folder| {
            LIBRARIES
                .iter()
                .any(|name| Path::new(&folder).join(name).exists())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dynamic(interpreter: &str, rpath: &[&str], needed: &[&str]) -> Kind {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Kind::Dynamic(Dynamic {
            interpreter: interpreter.into(),
            rpath: owned(rpath),
            needed: owned(needed),
        })
    }

    #[test]
    fn what_cannot_load_libraries_is_named() {
        let file = Path::new("/bin/sh");
        for (kind, word) in [
            (Kind::Static, "statically"),
            (Kind::Foreign, "architecture"),
            (dynamic("/lib/ld-musl-x86_64.so.1", &[], &[]), "musl"),
        ] {
            let warning = judge_program(file, &kind).warning.expect("it is of no use");
            assert!(
                warning.starts_with("/bin/sh ") && warning.contains(word),
                "{warning}"
            );
        }
        assert_eq!(
            judge_program(file, &dynamic("/lib/ld.so", &[], &[])),
            Verdict::default()
        );
    }

    #[test]
    fn readers_of_the_kernels_files_are_told_by_their_libraries() {
        let file = Path::new("/bin/sh");
        let needs = |library| judge_program(file, &dynamic("/lib/ld.so", &[], &[library]));
        assert!(needs("libibumad.so.3").reads_sysfs && needs("libnccl.so.2").reads_sysfs);
        assert!(!needs("libibverbs.so.1").reads_sysfs);
    }

    #[test]
    fn only_a_search_path_that_has_the_library_wins() {
        let folder = env::temp_dir().join(format!("softrdma-rpath-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).expect("there is room");
        let file = folder.join("program");
        fs::write(&file, "").expect("there is room");
        let kind = dynamic(
            "/lib/ld.so",
            &["/nothing", "$ORIGIN/lib"],
            &["libasan.so.8"],
        );
        let before = judge_program(&file, &kind);
        fs::write(folder.join("lib/librdmacm.so.1"), "").expect("there is room");
        let after = judge_program(&file, &kind);
        fs::remove_dir_all(&folder).expect("it is ours");
        assert!(!before.preload && after.preload);
        assert!(before.sanitized);
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let script = env::temp_dir().join(format!("softrdma-script-{}", std::process::id()));
        fs::write(&script, format!("#!{}\n", script.display())).expect("there is room");
        let verdict = judge(&script);
        fs::remove_file(&script).expect("it is ours");
        assert_eq!(
            verdict,
            Verdict::default(),
            "also if it is its own interpreter"
        );
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find(OsStr::new("/bin/sh")), Some("/bin/sh".into()));
    }
}
