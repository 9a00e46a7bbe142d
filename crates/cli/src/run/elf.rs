//! What an ELF file says about how the dynamic loader will treat it (`elf(5)`, `ld.so(8)`).

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// The machine of this build; a program for another one cannot load our libraries.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(target_arch = "riscv64")]
const MACHINE: u16 = 243;

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Most bytes read of any part of a file: none of these is longer in a sane one.
const PART_MAX: u64 = 1 << 20;

/// How a file starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `#!` and the interpreter.
    Script(String),
    /// A dynamically linked program for this machine.
    Dynamic(Dynamic),
    /// A program without a loader.
    Static,
    /// A program for another machine, or of 32 bits.
    Foreign,
    /// Something else; the kernel will say what it thinks of it.
    Unknown,
}

/// What the loader reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dynamic {
    /// The loader.
    pub(super) interpreter: String,
    /// Folders that are searched before `LD_LIBRARY_PATH`; only without `DT_RUNPATH`.
    pub(super) rpath: Vec<String>,
    /// The libraries it asks for.
    pub(super) needed: Vec<String>,
}

/// Reads a file.
pub(super) fn inspect(path: &Path) -> io::Result<Kind> {
    inspect_file(&File::open(path)?)
}

fn inspect_file(file: &File) -> io::Result<Kind> {
    let start = read(file, 0, 256)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().unwrap_or_default();
        return Ok(Kind::Script(interpreter.to_owned()));
    }
    if !start.starts_with(b"\x7fELF") {
        return Ok(Kind::Unknown);
    }
    if start.get(4..6) != Some(&[CLASS_64, LITTLE_ENDIAN]) || u16_at(&start, 18) != Some(MACHINE) {
        return Ok(Kind::Foreign);
    }
    // a truncated file is the kernel's to refuse
    Ok(dynamic(file, &start).unwrap_or(Kind::Unknown))
}

/// A part of the file and of the memory it becomes.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn dynamic(file: &File, header: &[u8]) -> Option<Kind> {
    let (offset, size) = (u64_at(header, 32)?, u64::from(u16_at(header, 54)?));
    let count = u64::from(u16_at(header, 56)?);
    let table = read(file, offset, size * count).ok()?;
    let segments: Vec<Segment> = table
        .chunks_exact(usize::try_from(size.max(56)).ok()?)
        .filter_map(|entry| {
            Some(Segment {
                kind: u32_at(entry, 0)?,
                offset: u64_at(entry, 8)?,
                address: u64_at(entry, 16)?,
                size: u64_at(entry, 32)?,
            })
        })
        .collect();
    let find = |kind| segments.iter().find(|segment| segment.kind == kind);
    // a static program may have a dynamic section (static-pie), but never a loader
    let Some(interpreter) = find(PT_INTERP) else {
        return Some(Kind::Static);
    };
    let interpreter = text(&read(file, interpreter.offset, interpreter.size).ok()?, 0);
    let section = find(PT_DYNAMIC)?;
    let section = read(file, section.offset, section.size).ok()?;
    let entries: Vec<(u64, u64)> = section
        .chunks_exact(16)
        .filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let value = |wanted| {
        entries
            .iter()
            .find(|(tag, _)| *tag == wanted)
            .map(|(_, value)| *value)
    };
    let address = value(DT_STRTAB)?;
    let strings = segments.iter().find_map(|segment| {
        let within = address.checked_sub(segment.address)?;
        (segment.kind == PT_LOAD && within < segment.size)
            .then(|| (segment.offset + within, segment.size - within))
    })?;
    let strings = read(file, strings.0, strings.1).ok()?;
    let string = |at: u64| text(&strings, usize::try_from(at).unwrap_or(usize::MAX));
    let rpath = match (value(DT_RPATH), value(DT_RUNPATH)) {
        (Some(at), None) => string(at).split(':').map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let needed = entries
        .iter()
        .filter(|(tag, _)| *tag == DT_NEEDED)
        .map(|(_, at)| string(*at))
        .collect();
    Some(Kind::Dynamic(Dynamic {
        interpreter,
        rpath,
        needed,
    }))
}

/// Up to `length` bytes at `offset`; fewer at the end of the file.
fn read(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    // bounded by a megabyte, so it fits everywhere
    let mut bytes = vec![0; length.min(PART_MAX) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn text(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const STRINGS: u64 = 0x200;
    const DYNAMIC: u64 = 0x400;
    /// Where the file is in memory.
    const BASE: u64 = 0x10000;

    fn put(file: &mut [u8], at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("within the file");
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A program that needs `libibverbs.so.1` and has a search path in the entry `path_tag`.
    fn program(path_tag: u64, path: &str, with_loader: bool) -> Vec<u8> {
        let mut file = vec![0; 0x600];
        put(
            &mut file,
            0,
            &[0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN],
        );
        put(&mut file, 18, &MACHINE.to_le_bytes());
        put(&mut file, 32, &64_u64.to_le_bytes());
        put(&mut file, 54, &56_u16.to_le_bytes());
        put(&mut file, 56, &(2 + u16::from(with_loader)).to_le_bytes());

        let strings = format!("\0/lib/loader\0libibverbs.so.1\0{path}\0");
        let at = |text: &str| strings.find(text).expect("it is in there") as u64;
        put(&mut file, STRINGS, strings.as_bytes());
        for (number, (kind, offset, address, size)) in (0_u64..).zip([
            (PT_LOAD, 0, BASE, 0x600_u64),
            (PT_DYNAMIC, DYNAMIC, BASE + DYNAMIC, 0x40),
            (PT_INTERP, STRINGS + 1, BASE + STRINGS + 1, 12),
        ]) {
            let entry = 64 + 56 * number;
            put(&mut file, entry, &kind.to_le_bytes());
            put(&mut file, entry + 8, &offset.to_le_bytes());
            put(&mut file, entry + 16, &address.to_le_bytes());
            put(&mut file, entry + 32, &size.to_le_bytes());
        }
        for (number, (tag, value)) in (0_u64..).zip([
            (DT_NEEDED, at("libibverbs")),
            (path_tag, at(path)),
            (DT_STRTAB, BASE + STRINGS),
        ]) {
            put(&mut file, DYNAMIC + 16 * number, &tag.to_le_bytes());
            put(&mut file, DYNAMIC + 16 * number + 8, &value.to_le_bytes());
        }
        file
    }

    fn kind_of(bytes: &[u8]) -> Kind {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(file.expect("descriptors are left"));
        file.write_all(bytes).expect("memory is left");
        inspect_file(&file).expect("it can be read")
    }

    #[test]
    fn an_rpath_counts_only_where_no_runpath_is() {
        let expected = |rpath: &[&str]| {
            Kind::Dynamic(Dynamic {
                interpreter: "/lib/loader".into(),
                rpath: rpath.iter().map(|folder| (*folder).to_owned()).collect(),
                needed: vec!["libibverbs.so.1".into()],
            })
        };
        let path = "$ORIGIN/../own:/opt/own";
        let with_rpath = kind_of(&program(DT_RPATH, path, true));
        assert_eq!(with_rpath, expected(&["$ORIGIN/../own", "/opt/own"]));
        assert_eq!(kind_of(&program(DT_RUNPATH, path, true)), expected(&[]));
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(kind_of(&program(DT_RPATH, "/own", false)), Kind::Static);
        assert_eq!(
            kind_of(b"#! /bin/sh -e\necho\n"),
            Kind::Script("/bin/sh".into())
        );
        assert_eq!(kind_of(b""), Kind::Unknown);
        let mut foreign = program(DT_RPATH, "/own", true);
        foreign[18] ^= 0xff;
        assert_eq!(kind_of(&foreign), Kind::Foreign);
        foreign[4] = 1;
        assert_eq!(kind_of(&foreign), Kind::Foreign);
    }

    #[test]
    fn damaged_files_do_not_disturb() {
        let whole = program(DT_RPATH, "/own", true);
        for length in 0..whole.len() {
            kind_of(&whole[..length]);
        }
        for position in 0..0x480 {
            let mut damaged = whole.clone();
            damaged[position] = 0xff;
            kind_of(&damaged);
        }
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = std::env::current_exe().expect("Linux knows it");
        let kind = inspect(&own).expect("it can be read");
        let Kind::Dynamic(dynamic) = kind else {
            panic!("{kind:?}");
        };
        assert!(dynamic.interpreter.contains("ld"), "{dynamic:?}");
        assert!(
            dynamic.needed.iter().any(|name| name.starts_with("libc.")),
            "{dynamic:?}"
        );
    }
}
