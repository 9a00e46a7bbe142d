//! Links of type `siw`: the programs that other files run over RoCE, and what only these links are
//! asked.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::capi;
use super::connections::{self, RPing};
use super::exchanges::{self, Exchange};
use super::perftest::PerfTest;
use super::resource;
use super::rsockets::{self, Stream};
use super::scenes::Scene;
use super::succeeded;
use super::world::{Host, Net, World};
use crate::process::{GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 9] = [
    ("devinfo", devinfo),
    ("lacking", lacking),
    ("options", options),
    ("refused", refused),
    ("forks", capi::forks),
    ("hasty", capi::hasty),
    ("rping,persistent", connections::persistent),
    ("cmtime,-c=100", exchanges::cmtime),
    ("cmtime,ipv6,-c=100", |world| {
        exchanges::cmtime_at(world, Net::Lo.ipv6())
    }),
];

/// Those between two hosts.
pub const BETWEEN_HOSTS: [Scene; 2] = [
    ("extensions", extensions),
    ("cmtime,-c=100", exchanges::cmtime),
];

/// Runs of `rping` on a network.
pub fn pings(net: Net, full: bool) -> Vec<RPing> {
    let plain = connections::DEFAULT;
    let mut all = vec![
        plain,
        RPing {
            address: Some(net.ipv6()),
            ..plain
        },
    ];
    if net == Net::Lo || full {
        all.extend([
            RPing {
                size: 65_535,
                ..plain
            },
            RPing {
                count: 1000,
                ..plain
            },
        ]);
    }
    all
}

/// Programs that only connect and talk.
pub fn exchanges(net: Net, full: bool) -> Vec<Exchange> {
    let mut all = exchanges::on(net, full);
    all.retain(Exchange::is_of_connections);
    if net == Net::Lo && !full {
        all.push(exchanges::ucmatose_ipv6(net));
    }
    all
}

/// Programs over rsockets.
pub fn streams(net: Net, full: bool) -> Vec<Stream> {
    let mut all = match net {
        Net::Lo => {
            let mut some = rsockets::some();
            some.push(Stream {
                program: "riostream",
                address: Some(net.ipv6()),
                ..rsockets::DEFAULT
            });
            some
        }
        Net::Veth(_) => vec![rsockets::DEFAULT],
    };
    all.push(Stream {
        address: Some(net.ipv6()),
        ..rsockets::DEFAULT
    });
    if full {
        all.extend(rsockets::every());
    }
    all
}

/// The tool shows a device of iWARP.
fn devinfo(world: &World) -> Result<()> {
    let device = world.server.device;
    let shown = world.server.output(&["ibv_devinfo", "-v", "-d", device])?;
    for line in [
        "transport:\t\t\tiWARP (1)",
        "vendor_id:\t\t\t0x626d74",
        "max_sge_rd:\t\t\t1",
        "atomic_cap:\t\t\tATOMIC_NONE (0)",
        "gid_tbl_len:\t\t1",
    ] {
        ensure!(shown.contains(line), "no {line:?} in:\n{shown}");
    }
    let ours = world.server.softrdma(&["devinfo", "-v", "-d", device])?;
    let same = |text: &str| text.trim_end().to_owned();
    ensure!(
        same(&ours) == same(&shown),
        "the tool:\n{shown}\nours:\n{ours}"
    );
    Ok(())
}

/// What iWARP lacks is refused, and nobody hangs.
fn lacking(world: &World) -> Result<()> {
    let World { server, client } = world;
    let device = server.device;
    // what finds its way with rdma_cm gets as far as over the kernel's device: to its queue pair
    let group = ["mckey", "-m", "239.1.1.1", "-b", client.address];
    let sender = [&group[..], &["-s"]].concat();
    for argv in [&["udaddy", "-s", client.address][..], &group, &sender] {
        let ended = client.start(argv, &[])?.wait()?;
        ensure!(
            ended.code != 0 && ended.output.contains("unable to create QP"),
            "{argv:?}:\n{}",
            ended.output
        );
    }
    for program in ["ibv_uc_pingpong", "ibv_ud_pingpong"] {
        let ended = server.start(&[program, "-d", device], &[])?.wait()?;
        ensure!(
            ended.code != 0 && ended.output.contains("Couldn't create QP"),
            "{program}:\n{}",
            ended.output
        );
    }
    for (argv, told) in [
        // a queue pair of iWARP has no way to RTS but a connection
        (
            &["ibv_rc_pingpong", "-d", device, "-g", "0"][..],
            "Failed to modify QP to RTS",
        ),
        (
            &["ib_send_bw", "-c", "UD", "-d", device],
            "Unable to create QP",
        ),
    ] {
        let mut server = server.start(argv, &[])?;
        server.wait_for_listener(18515)?;
        let argv = [argv, &[client.address]].concat();
        let ended = client.start(&argv, &[])?.wait()?;
        let end = server.wait()?;
        // which of them is first to see is not said: the other one may lose its peer before
        ensure!(
            ended.code != 0
                && end.code != 0
                && [&ended, &end].iter().any(|one| one.output.contains(told)),
            "{argv:?}:\n{}server:\n{}",
            ended.output,
            end.output
        );
    }
    Ok(())
}

/// A connection over each kind of link: with a CRC and markers, without the second revision of the
/// set-up, with the accepting side free to speak first; and a device beside one of RoCE.
fn options(world: &World) -> Result<()> {
    for options in [
        "crc required markers on",
        "mpa 1",
        "peer_to_peer on segment 512",
        "rfc7306 on",
    ] {
        delete(&world.server)?;
        let options: Vec<&str> = options.split(' ').collect();
        world.server.add_link_of("siw", &options)?;
        let shown = world.server.softrdma(&["-d", "link", "show"])?;
        for pair in options.chunks(2) {
            ensure!(shown.contains(&pair.join(" ")), "no {pair:?} in:\n{shown}");
        }
        // revision 1 says nothing of READs, and rping takes what it is told: none
        if options != ["mpa", "1"] {
            connections::DEFAULT
                .run(world)
                .with_context(|| options.join(" "))?;
        }
    }
    world
        .server
        .softrdma(&["link", "add", "rxe_lo", "type", "rxe", "netdev", "lo"])?;
    for (wish, names) in [("rxe_lo", "rxe_lo"), ("rxe_lo,siw_lo", "rxe_lo siw_lo")] {
        let listed = world
            .server
            .start(&["ibv_devinfo", "-l"], &[("SOFTRDMA_DEVICES", wish)])?
            .wait()?;
        succeeded("ibv_devinfo", &listed)?;
        let shown: Vec<&str> = listed.output.split_whitespace().skip(3).collect();
        ensure!(shown.join(" ") == names, "{wish}:\n{}", listed.output);
    }
    Ok(())
}

/// What RFC 7306 adds, between links that have it: atomics, and a WRITE with immediate data.
fn extensions(world: &World) -> Result<()> {
    for host in [&world.server, &world.client] {
        delete(host)?;
        host.add_link_of("siw", &["rfc7306", "on"])?;
    }
    for operation in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        let test = PerfTest {
            program: "ib_atomic_bw",
            options: vec!["-R", "-A", operation],
        };
        exchanges::with_connection_manager(world, &test)?;
    }
    connections::meet("/run/cm_extensions", world, world.server.address)
}

/// Takes the device away: the broker may not have seen yet that who used it has ended.
fn delete(host: &Host) -> Result<()> {
    let start = Instant::now();
    while let Err(error) = host.softrdma(&["link", "delete", host.device]) {
        ensure!(start.elapsed() < GUARD, error);
    }
    Ok(())
}

/// Without a server the client's call fails: TCP says so, and we say where. `rping` then waits for
/// its receive, which comes back.
fn refused(world: &World) -> Result<()> {
    let address = world.server.address;
    for argv in [
        &["rdma_client", "-s", address][..],
        &["rping", "-c", "-C", "1", "-p", "7998", "-a", address],
    ] {
        let ended = world.client.start(argv, &[])?.wait()?;
        let told = [
            "rdma_connect: Connection refused",
            "nobody listens at its TCP port",
        ];
        ensure!(
            ended.code != 0 && told.iter().all(|told| ended.output.contains(told)),
            "not refused by TCP:\n{}",
            ended.output
        );
    }
    let count = resource::counters(world)?("connect_err")?;
    ensure!(count == 2, "connect_err is {count}, not 2");
    Ok(())
}
