//! The table of cases.

use std::time::Duration;

use anyhow::Result;

use super::capi;
use super::connections::{self, RPing};
use super::crowd;
use super::exchanges;
use super::iwarp;
use super::multicast;
use super::perftest::{self, PerfTest};
use super::ping;
use super::pingpong::{DATAGRAMS, DEFAULT, PingPong, SHARED};
use super::resource;
use super::rsockets;
use super::scenes;
use super::sudden_ends;
use super::terminates;
use super::tutorial;
use super::world::{Links, Net, World};
use crate::packages;
use crate::process::GUARD;
use crate::sandbox::Who;

/// What happens between two ends.
type Scene = dyn Fn(&World) -> Result<()> + Send + Sync;

/// One case: where, as whom, and what.
pub struct Case {
    /// Its name, as a path: network, who, what.
    pub name: String,
    /// As whom.
    pub who: Who,
    /// Over what.
    pub net: Net,
    /// Of which protocol.
    pub links: Links,
    /// A program that it needs and the others do not.
    pub needs: Option<&'static str>,
    /// When it counts as hung.
    pub guard: Duration,
    /// What happens; runs inside of the sandbox.
    pub run: Box<Scene>,
}

impl Case {
    /// Who starts in the sandbox: two hosts are made by root, also for an ordinary user.
    pub fn starts_as(&self) -> Who {
        match self.net {
            Net::Lo => self.who,
            Net::Veth(_) => Who::Root,
        }
    }

    /// Why it cannot be had here, or nothing.
    pub fn missing(&self) -> Option<String> {
        let program = self.needs.filter(|program| !packages::on_path(program));
        let program = program.map(|program| format!("needs {program}"));
        self.who.missing().map(str::to_owned).or(program)
    }
}

/// Loss, reordering, duplication and corruption as the acceptance of the device asks for.
const FAULTS: &str = "loss=2%,reorder=5%,duplicate=1%,corrupt=1%";

/// Every case; `full` with all that perftest can be asked for.
pub fn all(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    measurements(&mut cases, full);
    one_host(&mut cases);
    streams(&mut cases, full);
    for who in [Who::Root, Who::User, Who::UserNamespace] {
        everybody(&mut cases, who);
    }
    two_hosts(&mut cases);
    faults(&mut cases);
    found_by_librdmacm(&mut cases, full);
    over_iwarp(&mut cases, full);
    let scenes = scenes::ALL.into_iter();
    let scenes = scenes.chain(exchanges::SCENES).chain(sudden_ends::SCENES);
    let scenes = scenes.chain(crowd::SCENES).chain(capi::SCENES);
    let scenes = scenes.chain(connections::SCENES).chain(rsockets::SCENES);
    let scenes = scenes.chain(ping::SCENES);
    let scenes = scenes.chain(multicast::SCENES);
    for (what, run) in scenes.chain(resource::SCENES) {
        cases.push(case(Net::Lo, Who::Root, what, run));
    }
    cases.push(Case {
        needs: Some("tshark"),
        ..case(Net::Lo, Who::Root, "tutorial", tutorial::run)
    });
    cases
}

/// What every kind of user must be able to do.
fn everybody(cases: &mut Vec<Case>, who: Who) {
    let all = [
        PingPong { gid: 0, ..DEFAULT },
        PingPong { gid: 1, ..DEFAULT },
        PingPong { gid: 2, ..DEFAULT },
        PingPong {
            events: true,
            ..DEFAULT
        },
        PingPong { size: 1, ..DEFAULT },
        PingPong {
            size: 1 << 20,
            count: 100,
            ..DEFAULT
        },
        PingPong {
            gid: 0,
            ..DATAGRAMS
        },
        DATAGRAMS,
        PingPong {
            gid: 2,
            size: 4096,
            ..DATAGRAMS
        },
        PingPong {
            events: true,
            ..DATAGRAMS
        },
    ];
    cases.extend(
        all.into_iter()
            .map(|pingpong| exchange(Net::Lo, who, pingpong)),
    );
    let pings = [
        connections::DEFAULT,
        RPing {
            address: Some("::1"),
            ..connections::DEFAULT
        },
        RPing {
            size: 65_535,
            ..connections::DEFAULT
        },
        RPing {
            count: 1000,
            ..connections::DEFAULT
        },
    ];
    for ping in pings {
        cases.push(ping_case(Net::Lo, who, ping));
    }
    cases.push(case(Net::Lo, who, "devinfo", scenes::devinfo));
    cases.push(case(Net::Lo, who, "sysfs", scenes::sysfs));
    cases.push(case(Net::Lo, who, "twin", scenes::twin));
    cases.push(case(Net::Lo, who, "trials", scenes::trials));
}

/// Programs over rsockets.
fn streams(cases: &mut Vec<Case>, full: bool) {
    let mut add = |net, who, stream: rsockets::Stream| {
        cases.push(case(net, who, &stream.to_string(), move |world| {
            stream.run(world)
        }));
    };
    let plain = rsockets::DEFAULT;
    for stream in rsockets::some() {
        add(Net::Lo, Who::Root, stream);
    }
    add(Net::Lo, Who::User, plain.clone());
    for (net, address) in [(Net::Lo, "::1"), (Net::Veth(1500), "fd77::1")] {
        let address = Some(address);
        add(
            net,
            Who::Root,
            rsockets::Stream {
                address,
                ..plain.clone()
            },
        );
    }
    add(Net::Veth(9000), Who::Root, plain);
    if full {
        for net in [Net::Lo, Net::Veth(1500)] {
            for stream in rsockets::every() {
                add(net, Who::Root, stream);
            }
        }
        cases.push(case(Net::Lo, Who::Root, "rcopy-1GiB", rsockets::copy_large));
        for net in [Net::Lo, Net::Veth(1500)] {
            let pongs = rsockets::datagrams_ipv6;
            cases.push(case(net, Who::Root, "udpong,ipv6", pongs));
        }
    }
}

/// perftest as root and as an ordinary user, on one host and between two.
fn measurements(cases: &mut Vec<Case>, full: bool) {
    let mut turn = 0;
    for net in [Net::Lo, Net::Veth(1500), Net::Veth(9000)] {
        for who in [Who::Root, Who::User] {
            let tests = if full {
                perftest::every(net)
            } else {
                perftest::some(net, turn)
            };
            turn += 1;
            cases.extend(tests.into_iter().map(|test| measurement(net, who, test)));
        }
    }
}

fn measurement(net: Net, who: Who, test: PerfTest) -> Case {
    case(net, who, &test.to_string(), move |world| test.run(world))
}

/// Sizes, MTUs, queue lengths on one host.
fn one_host(cases: &mut Vec<Case>) {
    let mut add = |pingpong| cases.push(exchange(Net::Lo, Who::Root, pingpong));
    for size in [2, 3, 7, 1023, 1025, 4095, 4097, 65_535, 65_536, 1_000_001] {
        let count = if size > 65_536 { 100 } else { 1000 };
        add(PingPong {
            size,
            count,
            ..DEFAULT
        });
    }
    for mtu in [256, 512, 2048, 4096] {
        add(PingPong { mtu, ..DEFAULT });
        add(PingPong {
            mtu,
            size: 100_001,
            ..DEFAULT
        });
    }
    for size in [1, 65_537] {
        add(PingPong {
            size,
            events: true,
            ..DEFAULT
        });
    }
    add(PingPong {
        count: 10_000,
        ..DEFAULT
    });
    add(PingPong {
        count: 10_000,
        events: true,
        ..DEFAULT
    });
    add(PingPong {
        receives: Some(1),
        ..DEFAULT
    });
    add(PingPong {
        receives: Some(1),
        size: 65_536,
        ..DEFAULT
    });
    add(SHARED);
    // as few receives as the program allows: somebody often has to come again
    add(PingPong {
        events: true,
        receives: Some(16),
        ..SHARED
    });
}

/// Two network namespaces with a broker in each.
fn two_hosts(cases: &mut Vec<Case>) {
    for (interface, mtu) in [(1500, 1024), (9000, 4096)] {
        let all = [
            PingPong { gid: 0, ..DEFAULT },
            PingPong { gid: 1, ..DEFAULT },
            PingPong { gid: 2, ..DEFAULT },
            PingPong { size: 1, ..DEFAULT },
            PingPong {
                size: 65_537,
                ..DEFAULT
            },
            PingPong {
                size: 1 << 20,
                count: 100,
                ..DEFAULT
            },
            PingPong {
                size: 65_536,
                gid: 2,
                events: true,
                ..DEFAULT
            },
            PingPong {
                count: 10_000,
                ..DEFAULT
            },
            PingPong {
                gid: 0,
                ..DATAGRAMS
            },
            DATAGRAMS,
            PingPong {
                gid: 2,
                size: 1,
                events: true,
                ..DATAGRAMS
            },
            SHARED,
        ];
        let net = Net::Veth(interface);
        cases.extend(all.map(|pingpong| exchange(net, Who::Root, PingPong { mtu, ..pingpong })));
        let pings = [None, Some("fd77::1")].map(|address| RPing {
            address,
            ..connections::DEFAULT
        });
        cases.extend(pings.map(|ping| ping_case(net, Who::Root, ping)));
        cases.push(case(net, Who::Root, "twin", scenes::twin));
    }
    cases.push(neighbourless());
    for (what, run) in multicast::SCENES
        .into_iter()
        .chain(multicast::BETWEEN_HOSTS)
    {
        cases.push(case(Net::Veth(1500), Who::User, what, run));
    }
}

/// The same over a network that loses, repeats, turns around and damages.
fn faults(cases: &mut Vec<Case>) {
    for net in [Net::Lo, Net::Veth(1500)] {
        for seed in 1..=3 {
            let plan = format!("{FAULTS},seed={seed}");
            let all = [
                PingPong { size: 1, ..DEFAULT },
                DEFAULT,
                PingPong {
                    size: 65_536,
                    count: 200,
                    ..DEFAULT
                },
                PingPong {
                    size: 1 << 20,
                    count: 20,
                    ..DEFAULT
                },
            ];
            for pingpong in all {
                let plan = plan.clone();
                let name = format!("faults/seed={seed},{pingpong}");
                cases.push(case(net, Who::Root, &name, move |world| {
                    scenes::pingpong(world, &pingpong, &[("SOFTRDMA_FAULTS", &plan)])
                }));
            }
            cases.push(case(
                net,
                Who::Root,
                &format!("faults/seed={seed},twin"),
                move |world| scenes::under_faults(world, &plan),
            ));
        }
    }
}

/// Programs whose ends find each other with librdmacm.
fn found_by_librdmacm(cases: &mut Vec<Case>, full: bool) {
    for net in [Net::Lo, Net::Veth(1500)] {
        for exchange in exchanges::on(net, full) {
            let name = exchange.to_string();
            cases.push(case(net, Who::Root, &name, move |world| {
                exchange.run(world)
            }));
        }
    }
    if full {
        let cmtime = exchanges::cmtime;
        cases.push(case(Net::Veth(1500), Who::Root, "cmtime,-c=100", cmtime));
    }
    for test in perftest::with_connection_manager(full) {
        cases.push(case(Net::Lo, Who::Root, &test.to_string(), move |world| {
            exchanges::with_connection_manager(world, &test)
        }));
    }
}

/// The same over links of the other protocol.
fn over_iwarp(cases: &mut Vec<Case>, full: bool) {
    let first = cases.len();
    for net in [Net::Lo, Net::Veth(1500)] {
        let pings = iwarp::pings(net, full).into_iter();
        cases.extend(pings.map(|ping| ping_case(net, Who::Root, ping)));
        for exchange in iwarp::exchanges(net, full) {
            let name = exchange.to_string();
            cases.push(case(net, Who::Root, &name, move |world| {
                exchange.run(world)
            }));
        }
        for stream in iwarp::streams(net, full) {
            let name = stream.to_string();
            cases.push(case(net, Who::Root, &name, move |world| stream.run(world)));
        }
    }
    for net in [Net::Lo, Net::Veth(1500), Net::Veth(9000)] {
        for test in perftest::over_iwarp(net, full) {
            cases.push(case(net, Who::Root, &test.to_string(), move |world| {
                exchanges::with_connection_manager(world, &test)
            }));
        }
    }
    cases.push(neighbourless());
    cases.push(case(Net::Lo, Who::Root, "cm-twin", connections::twin));
    cases.push(case(Net::Lo, Who::Root, "cm-errors", connections::errors));
    for (what, run) in iwarp::SCENES {
        cases.push(case(Net::Lo, Who::Root, what, run));
    }
    for (what, run) in iwarp::BETWEEN_HOSTS {
        cases.push(case(Net::Veth(1500), Who::Root, what, run));
    }
    cases.push(Case {
        needs: Some("tshark"),
        ..case(Net::Lo, Who::Root, "terminates", terminates::run)
    });
    for case in &mut cases[first..] {
        case.links = Links::Iwarp;
        case.name = format!("siw/{}", case.name);
    }
}

fn neighbourless() -> Case {
    case(
        Net::Veth(1500),
        Who::User,
        "nobody-there",
        connections::nobody,
    )
}

fn ping_case(net: Net, who: Who, ping: RPing) -> Case {
    case(net, who, &ping.to_string(), move |world| ping.run(world))
}

fn exchange(net: Net, who: Who, pingpong: PingPong) -> Case {
    case(net, who, &pingpong.to_string(), move |world| {
        scenes::pingpong(world, &pingpong, &[])
    })
}

fn case(
    net: Net,
    who: Who,
    what: &str,
    run: impl Fn(&World) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let net_name = match net {
        Net::Lo => "lo".to_string(),
        Net::Veth(mtu) => format!("veth{mtu}"),
    };
    let who_name = match who {
        Who::Root => "root",
        Who::User => "user",
        Who::UserNamespace => "userns",
    };
    // programs have a guard of their own; this one is for what goes wrong beyond them
    let guard = GUARD * 3;
    Case {
        name: format!("{net_name}/{who_name}/{what}"),
        who,
        net,
        links: Links::Roce,
        needs: None,
        guard,
        run: Box::new(run),
    }
}
