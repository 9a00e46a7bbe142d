//! The kernel's siw in the guest: its variants, and what is run against them.
//!
//! It has constants where other drivers have parameters, so each variant is a module of its own
//! (`interop/guest/build.sh`). Both ends then have no other device on the interface, so that
//! connection management has nothing to choose.

use anyhow::{Context, Result, ensure};

use super::connections::{Kill, Meeting, OUR_ADDRESS_V6};
use super::{OURS, Peer, Role};
use crate::guest::Guest;
use crate::process::Running;
use crate::programs::{Host, PerfTest, RPING, RPing, STREAM, Stream, succeeded};

/// Our end, once it speaks iWARP.
pub const OURS_SIW: Host = Host {
    device: "siw_br0",
    ..OURS
};

/// Of the kernel's module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is in the kernel's source.
    Default,
    /// Asks for CRCs.
    Crc,
    /// Asks by MPA revision 1, so that depths are not told.
    V1,
    /// Asks for the peer-to-peer model.
    P2p,
    /// Fills FPDUs as far as they go, and not only a TCP segment.
    Gso,
}

impl Variant {
    const ALL: [Self; 5] = [Self::Default, Self::Crc, Self::V1, Self::P2p, Self::Gso];

    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Crc => "crc",
            Self::V1 => "v1",
            Self::P2p => "p2p",
            Self::Gso => "gso",
        }
    }

    /// Gives both ends this device, and no other; `before` is what they have.
    pub fn prepare(self, before: Peer, guest: &mut Guest) -> Result<()> {
        let remove = match before {
            Peer::Rxe => {
                OURS.softrdma(&["link", "delete", OURS.device])?;
                OURS_SIW.add_link_of("siw", &[])?;
                "rdma link delete rxe0"
            }
            Peer::Siw(_) => "rdma link delete siw0 && rmmod siw",
        };
        let module = match self {
            Self::Default => "plain",
            _ => self.name(),
        };
        let change = format!(
            "set -e\n{remove}\nmodprobe libcrc32c\ninsmod /lib/siw/{module}.ko\n\
             rdma link add siw0 type siw netdev eth0"
        );
        succeeded(
            "the guest's change of devices",
            &guest.start(&change)?.wait()?,
        )
        .with_context(|| format!("the siw {}", self.name()))
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The cases, one variant after the other; `full` with all of them for each.
pub fn cases(full: bool) -> Vec<(Variant, Meeting)> {
    let mut cases = Vec::new();
    for variant in Variant::ALL {
        let meetings = if full { every(variant) } else { some(variant) };
        cases.extend(meetings.into_iter().map(|meeting| (variant, meeting)));
    }
    cases
}

/// Whether a case ends in this role. The server of ucmatose hears of a second caller only until it
/// has its first connection, which over iWARP it has as soon as it accepts: a slow caller comes too
/// late, and then both programs wait for each other. `cm_twin` is refused in both roles.
pub fn ends(meeting: &Meeting, role: Role) -> bool {
    !matches!((meeting, role), (Meeting::Refused, Role::Server))
}

const PING: RPing = RPing { count: 20, ..RPING };
const LARGE: RPing = RPing {
    size: 65_535,
    ..PING
};
const SENDS: Meeting = Meeting::Both("ucmatose", &["-c", "5", "-C", "5", "-S", "1000"]);

/// What shows most in the shortest time: all that differs from the others of a variant.
fn some(variant: Variant) -> Vec<Meeting> {
    match variant {
        Variant::Default => vec![
            Meeting::Twin,
            Meeting::Stream(STREAM),
            Meeting::Killed(Kill::Peer),
        ],
        // rping has no READs there: see `every`
        Variant::V1 => vec![SENDS, Meeting::Errors],
        Variant::P2p => vec![Meeting::Ping(PING)],
        Variant::Crc | Variant::Gso => vec![Meeting::Ping(LARGE)],
    }
}

fn every(variant: Variant) -> Vec<Meeting> {
    let mut all = vec![
        SENDS,
        Meeting::Both("ucmatose", &["-c", "1", "-C", "10", "-S", "65536"]),
        Meeting::Stream(STREAM),
        Meeting::Stream(Stream {
            manner: "nv",
            ..STREAM
        }),
        Meeting::Refused,
        Meeting::Errors,
        // of a hundred at once the guest's server was seen to fail to make the last queue pairs
        Meeting::Times(50),
    ];
    for program in PROGRAMS {
        all.push(measure(program, &[]));
    }
    all.push(measure("ib_write_bw", &["-q", "4", "-b"]));
    all.push(measure("ib_read_bw", &["-q", "4"]));
    // with -e its sender sleeps for a completion where it waits for credit, which is none
    all.push(measure("ib_send_bw", &["-s", "20001"]));
    // Revision 1 tells no depths: cm_twin compares them, and rping, which READs, takes what it is
    // told. cm_errors and perftest have their own.
    if variant != Variant::V1 {
        all.extend([
            Meeting::Twin,
            Meeting::Ping(PING),
            Meeting::Ping(LARGE),
            Meeting::Ping(RPing {
                address: Some(OUR_ADDRESS_V6),
                ..PING
            }),
            Meeting::Persistent,
            Meeting::Killed(Kill::Peer),
        ]);
    }
    all
}

/// Whether our Terminates came to the guest's kernel as the RFC has them. It logs each one, and
/// takes the halves of the first byte the other way around: the layer is printed as the type.
/// spec: RFC 5040 4.8
pub fn judge_terminates(guest: &mut Guest) -> Result<()> {
    // READs: remote protection; SENDs: no buffer, and too long for it
    const WANTED: [&str; 4] = [
        "layer 1, type 0, code 0",
        "layer 1, type 0, code 1",
        "layer 2, type 1, code 2",
        "layer 2, type 1, code 5",
    ];
    let log = guest.start("busybox dmesg | grep TERMINATE")?.wait()?;
    for wanted in WANTED {
        ensure!(
            log.output.contains(wanted),
            "no Terminate that siw reads as {wanted:?} in its log:\n{}",
            log.output
        );
    }
    Ok(())
}

/// perftest's, without those for atomics, which iWARP has not.
const PROGRAMS: [&str; 6] = [
    "ib_write_bw",
    "ib_write_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_read_bw",
    "ib_read_lat",
];

fn measure(program: &'static str, options: &[&'static str]) -> Meeting {
    let options = [&["-R", "-n", "50"], options].concat();
    Meeting::Measure(PerfTest { program, options })
}
