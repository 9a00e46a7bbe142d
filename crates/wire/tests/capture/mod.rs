//! The frames of `testdata/captures`.

use std::fs::{self, File};
use std::path::Path;

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

/// All files, by name.
pub fn files() -> Vec<Capture> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    names.sort();
    names.iter().map(|name| file(name)).collect()
}

/// One file.
pub fn file(name: &str) -> Capture {
    let mut reader = PcapReader::new(File::open(folder().join(name)).unwrap()).unwrap();
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

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/captures"))
}
