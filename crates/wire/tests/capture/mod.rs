//! The frames of `testdata/captures` (rxe) and `testdata/iwarp` (siw).
#![allow(dead_code, reason = "each test uses its part")]

pub mod tcp;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use softrdma_wire::ip::Frame;
use softrdma_wire::roce::UDP_PORT;

/// One capture file.
pub struct Capture {
    /// File name without folder.
    pub name: String,
    /// Its frames, Ethernet first.
    pub frames: Vec<Vec<u8>>,
}

/// All files of rxe, by name.
pub fn files() -> Vec<Capture> {
    files_in(ROCE)
}

/// All files of siw, by name.
pub fn iwarp_files() -> Vec<Capture> {
    files_in(IWARP)
}

fn files_in(kind: &str) -> Vec<Capture> {
    let mut names: Vec<String> = fs::read_dir(folder(kind))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    names.sort();
    names.iter().map(|name| file_in(kind, name)).collect()
}

/// One file of rxe.
pub fn file(name: &str) -> Capture {
    file_in(ROCE, name)
}

/// One file of siw.
pub fn iwarp_file(name: &str) -> Capture {
    file_in(IWARP, name)
}

fn file_in(kind: &str, name: &str) -> Capture {
    let path = folder(kind).join(name);
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = reader.next_packet() {
        let record = record.unwrap();
        assert_eq!(
            record.data.len(),
            record.orig_len as usize,
            "{name}: cut off"
        );
        frames.push(record.data.into_owned());
    }
    Capture {
        name: name.to_owned(),
        frames,
    }
}

/// The frame, if it carries a RoCEv2 packet.
pub fn roce(bytes: &[u8]) -> Option<Frame<'_>> {
    let frame = Frame::parse(bytes).ok()?;
    (frame.udp.destination_port == UDP_PORT).then_some(frame)
}

const ROCE: &str = "captures";
const IWARP: &str = "iwarp";

fn folder(kind: &str) -> PathBuf {
    let testdata = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    Path::new(testdata).join(kind)
}
