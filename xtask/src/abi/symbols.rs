//! Names and versions: what our libraries export, what others do, and what programs import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Findings, output_of};
use crate::dist::{self, LIBRARIES, Library};
use crate::workspace;

/// Packages whose programs and libraries must load with ours. The first three are what the tests
/// run; the others count if they are installed.
const PACKAGES: [(&str, bool); 10] = [
    ("ibverbs-utils", true),
    ("rdmacm-utils", true),
    ("perftest", true),
    ("infiniband-diags", false),
    ("libfabric1", false),
    ("libopenmpi3", false),
    ("libucx0", false),
    ("python3-pyverbs", false),
    ("srptools", false),
    ("ibacm", false),
];

/// Objects whose only purpose is one library of the distribution: they are never loaded with ours.
const NOT_FOR_US: [&str; 2] = ["libibverbs/", "librspreload"];

type Symbols = BTreeSet<(String, String)>;

/// Compares our five libraries in `folder` with everything that is here.
pub fn compare(folder: &Path, findings: &mut Findings) -> Result<()> {
    ensure!(
        folder.is_dir(),
        "no {} (cargo xtask dist makes it)",
        folder.display()
    );
    let mut ours: BTreeMap<String, Symbols> = BTreeMap::new();
    for library in &LIBRARIES {
        let file = folder.join(library.soname);
        ours.insert(library.soname.into(), exports(&file)?);
        object(library, &file, findings)?;
        map(library, &ours[library.soname], findings)?;
        distribution(library, &ours[library.soname], findings)?;
    }
    let everything: Symbols = ours.values().flatten().cloned().collect();
    for (package, expected) in PACKAGES {
        match files_of(package)? {
            Some(files) => programs(package, &files, folder, &everything, findings)?,
            None if expected => findings.skipped.push(format!(
                "{package}: not installed (apt-get install {package})"
            )),
            None => {}
        }
    }
    Ok(())
}

/// What the ELF header of one of our libraries promises.
fn object(library: &Library, file: &Path, findings: &mut Findings) -> Result<()> {
    let dynamic = output_of(Command::new("readelf").arg("-dW").arg(file))?;
    let named = |tag: &str| -> Vec<&str> {
        let lines = dynamic.lines().filter(|line| line.contains(tag));
        lines
            .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0))
            .collect()
    };
    let mut wrong = Vec::new();
    if named("(SONAME)") != [library.soname] {
        wrong.push(format!("SONAME {:?}", named("(SONAME)")));
    }
    for needed in named("(NEEDED)") {
        let libc = needed == "libc.so.6" || needed.starts_with("ld-linux");
        let device = library.soname == "librdmacm.so.1" && needed == "libibverbs.so.1";
        if !libc && !device {
            wrong.push(format!("needs {needed}"));
        }
    }
    if !dynamic.contains("BIND_NOW") || !dynamic.contains("SYMBOLIC") {
        wrong.push("is not linked -Bsymbolic -z now".into());
    }
    if library.soname == "libibverbs.so.1" && !dynamic.contains("NODELETE") {
        wrong.push("is not linked -z nodelete".into());
    }
    report(
        findings,
        &format!("{}: SONAME, dependencies, flags", library.soname),
        &wrong,
    );
    Ok(())
}

/// Exactly the names of its map.
fn map(library: &Library, exported: &Symbols, findings: &mut Findings) -> Result<()> {
    let file = workspace::root().join("crates/capi/maps").join(library.map);
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let pairs = dist::map_symbols(&text).into_iter();
    let promised: Symbols = pairs
        .map(|(node, name)| (name.into(), node.into()))
        .collect();
    let wrong: Vec<_> = promised
        .symmetric_difference(exported)
        .map(|symbol| {
            let side = if promised.contains(symbol) {
                "not exported"
            } else {
                "not in the map"
            };
            format!("{}@{} is {side}", symbol.0, symbol.1)
        })
        .collect();
    report(
        findings,
        &format!("{}: {} names of its map", library.soname, promised.len()),
        &wrong,
    );
    Ok(())
}

/// At least what the distribution's library of the same name exports, but for the twins of 2006.
fn distribution(library: &Library, exported: &Symbols, findings: &mut Findings) -> Result<()> {
    let Some(file) = installed(library.soname)? else {
        return Ok(());
    };
    let theirs = exports(&file)?;
    let wrong: Vec<_> = theirs
        .iter()
        .filter(|symbol| !exported.contains(*symbol))
        .filter(|(name, node)| {
            let twin = (name.clone(), "IBVERBS_1.1".to_owned());
            node != "IBVERBS_1.0" || !theirs.contains(&twin)
        })
        .map(|(name, node)| format!("{name}@{node} is in {} only", file.display()))
        .collect();
    report(
        findings,
        &format!("{}: superset of {}", library.soname, file.display()),
        &wrong,
    );
    Ok(())
}

/// All imports of a package from our libraries are there, and the loader agrees.
fn programs(
    package: &str,
    files: &[PathBuf],
    folder: &Path,
    exported: &Symbols,
    findings: &mut Findings,
) -> Result<()> {
    let nodes: BTreeSet<&str> = exported
        .iter()
        .map(|(_, node)| family(node))
        .filter(|family| *family != "SOFTRDMA")
        .collect();
    let mut wrong = Vec::new();
    let (mut objects, mut names) = (0, BTreeSet::new());
    for file in files {
        let imports: Vec<_> = imports(file)?
            .into_iter()
            .filter(|(_, node)| nodes.contains(family(node)))
            .collect();
        if imports.is_empty() {
            continue;
        }
        objects += 1;
        for symbol in imports {
            if !exported.contains(&symbol) {
                wrong.push(format!(
                    "{} needs {}@{}",
                    file.display(),
                    symbol.0,
                    symbol.1
                ));
            }
            names.insert(symbol);
        }
        wrong.extend(loader_complaints(file, folder)?);
    }
    let line = format!("{package}: {objects} objects import {} names", names.len());
    report(findings, &line, &wrong);
    Ok(())
}

/// What `ldd -r` says when our libraries come first.
fn loader_complaints(file: &Path, folder: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd")
        .arg("-r")
        .arg(file)
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .context("run ldd")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut wrong = Vec::new();
    for line in text.lines().map(str::trim) {
        let ours = LIBRARIES
            .iter()
            .any(|library| line.starts_with(library.soname));
        let elsewhere = ours && !line.contains(&*folder.to_string_lossy());
        let about_ours = [
            "ibv", "rdma", "mlx5dv", "efadv", "umad", "IBVERBS", "RDMACM",
        ]
        .iter()
        .any(|word| line.contains(word));
        let complaint = line.contains("undefined") || line.contains("not found");
        if elsewhere || (complaint && about_ours) {
            wrong.push(format!("{}: {line}", file.display()));
        }
    }
    Ok(wrong)
}

fn report(findings: &mut Findings, what: &str, wrong: &[String]) {
    if wrong.is_empty() {
        findings.checked.push(what.into());
    }
    findings
        .wrong
        .extend(wrong.iter().map(|line| format!("{what}: {line}")));
}

/// `IBVERBS_1.1` and `IBVERBS_PRIVATE_34` are of the family `IBVERBS`.
fn family(node: &str) -> &str {
    node.split('_').next().unwrap_or(node)
}

/// (name, node) of everything versioned that an object defines.
fn exports(file: &Path) -> Result<Symbols> {
    let table = nm(file, "--defined-only")?;
    Ok(table.lines().filter_map(versioned).collect())
}

/// (name, node) of everything versioned that an object wants.
fn imports(file: &Path) -> Result<Symbols> {
    let table = nm(file, "--undefined-only")?;
    Ok(table.lines().filter_map(versioned).collect())
}

fn nm(file: &Path, which: &str) -> Result<String> {
    output_of(
        Command::new("nm")
            .args(["-D", "--with-symbol-versions", which])
            .arg(file),
    )
    .with_context(|| file.display().to_string())
}

/// The last word of a line of `nm`: `name@@NODE` or `name@NODE`.
fn versioned(line: &str) -> Option<(String, String)> {
    let (name, node) = line.split_whitespace().last()?.split_once('@')?;
    Some((name.into(), node.trim_start_matches('@').into()))
}

/// The ELF files of an installed package that may meet our libraries.
fn files_of(package: &str) -> Result<Option<Vec<PathBuf>>> {
    let listing = Command::new("dpkg").args(["-L", package]).output();
    let Ok(listing) = listing else {
        return Ok(None);
    };
    if !listing.status.success() {
        return Ok(None);
    }
    let names = String::from_utf8(listing.stdout).context("output of dpkg")?;
    let files = names
        .lines()
        .filter(|name| !NOT_FOR_US.iter().any(|part| name.contains(part)))
        .map(PathBuf::from)
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) && is_elf(path));
    Ok(Some(files.collect()))
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    fs::File::open(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic))
        .is_ok_and(|()| magic == *b"\x7fELF")
}

/// The distribution's copy of a library.
fn installed(soname: &str) -> Result<Option<PathBuf>> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [
        "/usr/lib64".into(),
        format!("/usr/lib/{triplet}"),
        "/usr/lib".into(),
    ];
    Ok(places
        .iter()
        .map(|place| Path::new(place).join(soname))
        .find(|file| file.exists()))
}
