//! Our Terminates as somebody else reads them: `tshark`, which decodes by the RFCs.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::connections;
use super::resource::signal;
use super::world::World;
use crate::process::{GUARD, Local, Running};

/// What is asked of each. An error type and a code have a field for each layer and kind, of which a
/// Terminate has one.
const FIELDS: [&str; 11] = [
    "iwarp_rdma.term_layer",
    "iwarp_rdma.term_etype_rdma",
    "iwarp_rdma.term_etype_ddp",
    "iwarp_rdma.term_errcode",
    "iwarp_rdma.term_errcode_rdma",
    "iwarp_rdma.term_errcode_ddp_tagged",
    "iwarp_rdma.term_errcode_ddp_untagged",
    "iwarp_rdma.term_hdrct_m",
    "iwarp_rdma.hdrct_d",
    "iwarp_rdma.hdrct_r",
    "_ws.malformed",
];

/// What ends the connections of `cm_errors`, with the fields that are there: layer, type, code, and
/// whether length, DDP header and RDMAP header of the refused segment follow.
/// spec: RFC 5040 4.8
const EXPECTED: [(&str, &str); 8] = [
    ("a WRITE to an unknown key", "0x01,,0x01,,,0x00,,1,1,0,"),
    ("a WRITE out of bounds", "0x01,,0x01,,,0x01,,1,1,0,"),
    ("a WRITE that is not permitted", "0x01,,0x01,,,0x00,,1,1,0,"),
    ("a READ of an unknown key", "0x00,0x01,,,0x00,,,1,1,1,"),
    ("a READ out of bounds", "0x00,0x01,,,0x01,,,1,1,1,"),
    ("a SEND that nobody expects", "0x01,,0x02,,,,0x02,1,1,0,"),
    ("a SEND that is too long", "0x01,,0x02,,,,0x05,1,1,0,"),
    ("a SEND from an unknown key", "0x00,0x00,,0x00,,,,0,0,0,"),
];

/// Both ends of `cm_errors`, and what a capture beside them shows.
pub fn run(world: &World) -> Result<()> {
    let mut argv = vec!["tshark", "-l", "-i", "lo", "-f", "tcp port 7176"];
    argv.extend(["-Y", "iwarp_rdma.opcode == 7"]);
    argv.extend(["-T", "fields", "-E", "separator=,"]);
    argv.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
    // a file that it removes at its end
    let mut tshark = world.server.start_plain(&argv, &[("TMPDIR", "/run/out")])?;
    let deadline = Instant::now() + GUARD;
    while !is_capturing()? {
        tshark.still_coming("capturing", deadline)?;
    }
    connections::meet("/run/cm_errors", world, world.server.address)?;
    while printed(&tshark).len() < EXPECTED.len() {
        let what = format!("printing {} Terminates", EXPECTED.len());
        tshark.still_coming(&what, deadline)?;
    }
    signal(&tshark, "TERM")?;
    tshark.wait().context("tshark")?;
    let printed = printed(&tshark);
    ensure!(
        printed.len() == EXPECTED.len(),
        "more Terminates than {}: {printed:#?}",
        EXPECTED.len()
    );
    for ((scene, expected), printed) in EXPECTED.iter().zip(&printed) {
        ensure!(
            printed == expected,
            "{scene}: {printed} instead of {expected}, of {}",
            FIELDS.join(",")
        );
    }
    Ok(())
}

/// Whether somebody has a socket for packets here.
fn is_capturing() -> Result<bool> {
    let sockets = fs::read_to_string("/proc/net/packet").context("/proc/net/packet")?;
    Ok(sockets.lines().count() > 1)
}

/// The lines of the Terminates so far.
fn printed(tshark: &Local) -> Vec<String> {
    let [output, _] = tshark.streams();
    // the last line may not be there as a whole
    let end = output.rfind('\n').unwrap_or(0);
    output[..end].lines().map(str::to_owned).collect()
}
