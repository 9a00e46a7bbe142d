//! `cargo xtask dist`: assembles `target/dist/{bin,lib}`, what a user unpacks.
//!
//! The libraries are linked here and not by cargo: a version script gives each symbol its node, and
//! a `cdylib` can have none but rustc's own. Every file is made beside its place and renamed into
//! it, so a program that runs from the folder keeps the file it has.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// What to assemble, and where.
#[derive(clap::Args)]
pub struct Arguments {
    /// Optimised; what measurements and users want
    #[arg(long)]
    release: bool,
    /// The folder to fill; `target/dist` of the checkout if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A folder that has been filled.
pub struct Dist {
    /// Holds `bin` and `lib`.
    pub folder: PathBuf,
}

impl Dist {
    /// The `softrdma` command.
    pub fn command(&self) -> PathBuf {
        self.folder.join("bin/softrdma")
    }

    /// The folder for `LD_LIBRARY_PATH`.
    pub fn libraries(&self) -> PathBuf {
        self.folder.join("lib")
    }
}

/// A shared object: its file and SONAME, its name for `-l`, and its version script.
pub struct Library {
    /// The file's name and the SONAME.
    pub soname: &'static str,
    /// The name that linkers look for.
    pub link: &'static str,
    /// The version script in `crates/capi/maps`.
    pub map: &'static str,
}

/// All that `lib` holds. The first carries the device; the second jumps into it; the others are for
/// programs that are linked to them although no device of theirs is here.
pub const LIBRARIES: [Library; 5] = [
    Library {
        soname: "libibverbs.so.1",
        link: "libibverbs.so",
        map: "libibverbs.map",
    },
    Library {
        soname: "librdmacm.so.1",
        link: "librdmacm.so",
        map: "librdmacm.map",
    },
    Library {
        soname: "libmlx5.so.1",
        link: "libmlx5.so",
        map: "libmlx5.map",
    },
    Library {
        soname: "libefa.so.1",
        link: "libefa.so",
        map: "libefa.map",
    },
    Library {
        soname: "libibumad.so.3",
        link: "libibumad.so",
        map: "libibumad.map",
    },
];

/// What `softrdma run` preloads where it cannot make a namespace; nobody links to it.
const REDIRECTOR: &str = "libsoftrdma-paths.so";

/// `cargo xtask dist`
pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = arguments
        .out
        .clone()
        .unwrap_or_else(|| workspace::root().join("target/dist"));
    let dist = build(arguments.release, &folder)?;
    println!("{}", dist.folder.display());
    Ok(())
}

/// Builds everything and fills `folder`.
pub fn build(release: bool, folder: &Path) -> Result<Dist> {
    let built = cargo_build(release)?;
    for part in ["bin", "lib"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
    }
    let workshop = Workshop::open(folder)?;
    let dist = Dist {
        folder: folder.to_owned(),
    };

    let command = workshop.path("softrdma");
    fs::copy(built.join("softrdma"), &command).context("copy the softrdma command")?;
    place(&command, &dist.command())?;

    for library in &LIBRARIES {
        let made = workshop.path(library.soname);
        match library.soname {
            "libibverbs.so.1" => link_verbs(&workshop, &built, library, &made)?,
            "librdmacm.so.1" => link_connections(&workshop, library, &made)?,
            _ => link_companion(library, &made)?,
        }
        place(&made, &dist.libraries().join(library.soname))?;
        let link = workshop.path(library.link);
        symlink(library.soname, &link).with_context(|| format!("link {}", library.link))?;
        place(&link, &dist.libraries().join(library.link))?;
    }
    let redirector = workshop.path(REDIRECTOR);
    link_redirector(&redirector)?;
    place(&redirector, &dist.libraries().join(REDIRECTOR))?;
    Ok(dist)
}

/// Cargo's part: the static library and the command. Returns the folder that holds them.
fn cargo_build(release: bool) -> Result<PathBuf> {
    let mut cargo = Command::new(workspace::cargo());
    cargo
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--locked"]);
    cargo.args([
        "--package",
        "softrdma-capi",
        "--package",
        "softrdma-cli",
        "--lib",
        "--bins",
    ]);
    if release {
        cargo.arg("--release");
    }
    run_tool(&mut cargo)?;
    let target = workspace::metadata()?["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(Path::new(target).join(if release { "release" } else { "debug" }))
}

/// libibverbs: the Rust library whole, and the C files of `shim/` that it needs.
fn link_verbs(workshop: &Workshop, built: &Path, library: &Library, to: &Path) -> Result<()> {
    let capi = capi();
    let mut objects = Vec::new();
    for name in ["versions", "blocking", "rsocket"] {
        let object = workshop.path(&format!("{name}.o"));
        compile(&capi.join("shim").join(name).with_extension("c"), &object)?;
        objects.push(object);
    }
    let mut cc = shared_object(library, to);
    // the device's thread outlives a dlclose
    cc.arg("-Wl,-z,nodelete").args(&objects);
    cc.arg("-Wl,--whole-archive")
        .arg(built.join("libsoftrdma_capi.a"));
    cc.args([
        "-Wl,--no-whole-archive",
        "-Wl,--gc-sections",
        "-static-libgcc",
    ]);
    run_tool(&mut cc)
}

/// librdmacm: one jump for each name of its map.
fn link_connections(workshop: &Workshop, library: &Library, to: &Path) -> Result<()> {
    let capi = capi();
    let map = fs::read_to_string(capi.join("maps").join(library.map)).context(library.map)?;
    let mut source = String::from("#include \"jump.h\"\n\n");
    for (_, symbol) in map_symbols(&map) {
        source += &format!("JUMP({symbol})\n");
    }
    let file = workshop.path("librdmacm.c");
    fs::write(&file, source).context("write the jumps of librdmacm")?;
    let object = workshop.path("librdmacm.o");
    run_tool(
        compiler()
            .arg("-I")
            .arg(capi.join("shim"))
            .arg("-c")
            .arg(&file)
            .arg("-o")
            .arg(&object),
    )?;
    let mut cc = shared_object(library, to);
    // $ORIGIN: loaded by its path, it still brings the library that it belongs to.
    cc.args(["-nostdlib", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"])
        .arg(&object);
    cc.arg(workshop.placed("libibverbs.so.1"));
    run_tool(&mut cc)
}

/// A companion is one C file.
fn link_companion(library: &Library, to: &Path) -> Result<()> {
    let stem = library
        .map
        .trim_start_matches("lib")
        .trim_end_matches(".map");
    let source = capi()
        .join("companion")
        .join(stem.trim_start_matches("ib"))
        .with_extension("c");
    run_tool(
        shared_object(library, to)
            .args(["-O2", "-Wall", "-Wextra", "-Werror"])
            .arg(source),
    )
}

/// The library that changes paths is one C file, and all that it has is meant to be found.
fn link_redirector(to: &Path) -> Result<()> {
    let soname = format!("-Wl,-soname,{REDIRECTOR}");
    let mut cc = compiler();
    cc.args(["-shared", "-O2", "-Wall", "-Wextra", "-Werror"]);
    cc.args([&soname, "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,defs"]);
    cc.arg("-o").arg(to);
    run_tool(cc.arg(capi().join("preload/paths.c")))
}

fn capi() -> PathBuf {
    workspace::root().join("crates/capi")
}

/// The flags that all our shared objects have.
fn shared_object(library: &Library, to: &Path) -> Command {
    let mut script = OsString::from("-Wl,--version-script=");
    script.push(capi().join("maps").join(library.map));
    let mut cc = compiler();
    cc.arg("-shared").arg("-o").arg(to);
    cc.arg(format!("-Wl,-soname,{}", library.soname))
        .arg(script);
    // A call inside the library must not be caught by another library of the same process; a name
    // in a map that nobody defines is an error.
    cc.args([
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,defs",
        "-Wl,-z,noexecstack",
    ]);
    cc.args(["-Wl,--no-undefined-version", "-Wl,--as-needed"]);
    cc
}

/// Compiles a C file of ours for a shared object.
fn compile(source: &Path, object: &Path) -> Result<()> {
    run_tool(
        compiler()
            .args(["-O2", "-g1", "-Wall", "-Wextra", "-Werror", "-c"])
            .arg(source)
            .arg("-o")
            .arg(object),
    )
}

fn compiler() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.arg("-fPIC");
    cc
}

fn run_tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The (node, symbol) pairs of a version script, in its order.
pub fn map_symbols(map: &str) -> Vec<(&str, &str)> {
    let mut node = "";
    let mut pairs = Vec::new();
    let mut global = false;
    for line in map.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            (node, global) = (name, false);
        } else if line == "global:" || line == "local:" {
            global = line == "global:";
        } else if let Some(symbol) = line.strip_suffix(';').filter(|_| global)
            && !line.starts_with('}')
        {
            pairs.push((node, symbol));
        }
    }
    pairs
}

/// The folder where files are made before they are placed; gone when dropped.
struct Workshop {
    folder: PathBuf,
    libraries: PathBuf,
}

impl Workshop {
    /// Inside the target, so that a rename is atomic; two builds at once do not share one.
    fn open(dist: &Path) -> Result<Workshop> {
        let folder = dist.join(format!(".making.{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Workshop {
            folder,
            libraries: dist.join("lib"),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A library that is already in its place.
    fn placed(&self, soname: &str) -> PathBuf {
        self.libraries.join(soname)
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // Nothing depends on it; the next build uses another name.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn place(made: &Path, at: &Path) -> Result<()> {
    fs::rename(made, at).with_context(|| format!("place {}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::map_symbols;

    #[test]
    fn a_map_gives_its_global_names() {
        let map = "/* text; more */\nA_1 {\n\tglobal:\n\t\tone;\n\tlocal:\n\t\t*;\n};\n\
                   \nA_2 {\n\tglobal:\n\t\ttwo;\n\t\tthree;\n} A_1;\n\nA_3 {\n} A_2;\n";
        assert_eq!(
            map_symbols(map),
            [("A_1", "one"), ("A_2", "two"), ("A_2", "three")]
        );
    }
}
