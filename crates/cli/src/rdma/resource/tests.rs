//! What iproute2 printed while an rping client and server ran over the kernel's device is in
//! `testdata/`, and the same objects must be printed so by us; but for those of the kernel itself.

use broker::{
    LinkKind,
    resource::{Details, Object, Process, QueuePairPeer},
};
use serde_json::Value as Json;
use wire::Mtu;

use super::survey::Found;
use super::*;

const REFERENCE: &str = include_str!("../../../testdata/rdma-resource.txt");

fn link(name: &str) -> LinkInfo {
    LinkInfo {
        name: name.into(),
        kind: LinkKind::Rxe,
        index: 4,
        netdev: "eth0".into(),
        netdev_index: 2,
        mac: [0x52, 0x54, 0, 0x77, 0, 2],
        netdev_mtu: 1500,
        max_mtu: Mtu::B4096,
        active_mtu: Mtu::B1024,
        up: true,
        carrier: true,
        gids: Vec::new(),
        iwarp: None,
    }
}

fn found(pid: i32, number: u32, details: Details) -> Found {
    let any = matches!(details, Details::ConnectionId { state: 8, .. });
    Found {
        process: Process {
            key: 1,
            ordinal: 0,
            pid,
            program: "rping".into(),
        },
        object: Object {
            number,
            link: (!any).then(|| "rxe0".into()),
            details,
        },
    }
}

fn qp(psns: [u32; 2], peer: u32, pd: u32) -> Details {
    Details::QueuePair {
        transport: 2,
        state: 3,
        port: Some(1),
        peer: Some(QueuePairPeer {
            qpn: peer,
            rq_psn: psns[0],
        }),
        sq_psn: psns[1],
        pd,
        srq: None,
    }
}

fn mr(key: u32, length: u64, pd: u32) -> Details {
    Details::MemoryRegion { key, length, pd }
}

fn cm_id(state: u8, qpn: Option<u32>, source: &str, destination: Option<&str>) -> Details {
    let address = |text: &str| text.parse().expect("a literal");
    Details::ConnectionId {
        state,
        space: broker::PortSpace::Tcp,
        qpn,
        source: address(source),
        destination: destination.map(address),
    }
}

fn cq(context: u32) -> Details {
    Details::CompletionQueue {
        context,
        capacity: 63,
        users: 2,
    }
}

fn pd(context: u32, users: u32) -> Details {
    Details::ProtectionDomain { context, users }
}

/// What rping's two ends had; PSNs as one command saw them.
fn objects(psns: [u32; 2]) -> Vec<Found> {
    let [client, server] = [669, 666];
    let (client_at, server_at) = ("10.77.0.2:34783", "10.77.0.2:7300");
    vec![
        found(client, 17, qp(psns, 18, 3)),
        found(server, 18, qp([psns[1], psns[0]], 17, 4)),
        found(client, 1, cq(5)),
        found(server, 2, cq(4)),
        found(client, 0, mr(0x251, 16, 3)),
        found(client, 1, mr(0x3b1, 16, 3)),
        found(client, 2, mr(0x4fe, 64, 3)),
        found(client, 3, mr(0x58e, 64, 3)),
        found(server, 4, mr(0x67e, 16, 4)),
        found(server, 5, mr(0x7e8, 16, 4)),
        found(server, 6, mr(0x806, 64, 4)),
        found(server, 1, pd(4, 0)),
        found(671, 2, pd(5, 0)),
        found(client, 3, pd(5, 5)),
        found(server, 4, pd(4, 4)),
        found(server, 0, cm_id(8, None, server_at, None)),
        found(client, 1, cm_id(5, Some(17), client_at, Some(server_at))),
        found(server, 2, cm_id(5, Some(18), server_at, Some(client_at))),
        found(server, 4, Details::Context),
        found(671, 5, Details::Context),
    ]
}

/// What `command` prints of `objects`.
fn shown(command: &str, objects: &[Found]) -> String {
    let mut words: VecDeque<String> = command.split(' ').map(str::to_owned).collect();
    let options = OutputOptions {
        details: false,
        json: command.contains("-j"),
        pretty: command.contains("-p"),
    };
    while words.front().is_some_and(|word| word != "show") {
        words.pop_front();
    }
    let list = LISTS.iter().find(|list| list.name == words[1]);
    let list = list.expect("a list");
    let filters = Filters::parse(list.filters, words.split_off(2)).expect("right");
    let links = [link("rxe0")];
    let wanted = wanted(list, &filters, &links).expect("it is there");
    let kind = list.kind.expect("of objects");
    render(
        &admitted(row::of_objects(kind, objects, &wanted), &filters),
        options,
    )
}

/// Lines of the kernel's own objects have its name in brackets.
fn without_kernel(text: &str) -> String {
    text.lines()
        .filter(|line| !line.contains("[ib_core]"))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn reference(command: &str) -> String {
    crate::rdma::reference_output(REFERENCE, command, 0)
}

#[test]
fn lists_are_those_of_iproute2() {
    for (command, psns) in [
        ("rdma resource show qp", [15_120_703, 13_775_715]),
        ("rdma resource show cq", [0; 2]),
        ("rdma resource show mr", [0; 2]),
        ("rdma resource show pd", [0; 2]),
        ("rdma resource show cm_id", [0; 2]),
        ("rdma resource show ctx", [0; 2]),
        ("rdma resource show srq", [0; 2]),
        ("rdma -j -p resource show mr", [0; 2]),
        ("rdma -j -p resource show cm_id", [0; 2]),
        ("rdma -j -p resource show ctx", [0; 2]),
        ("rdma -j -p resource show srq", [0; 2]),
        (
            "rdma resource show qp link rxe0/1",
            [15_127_092, 13_778_910],
        ),
        ("rdma resource show qp pid 666", [15_127_263, 13_778_996]),
        ("rdma resource show cm_id dst-port 7300", [0; 2]),
    ] {
        let expected = without_kernel(&reference(command));
        assert_eq!(shown(command, &objects(psns)), expected, "{command}");
    }
}

#[test]
fn json_has_the_fields_of_iproute2_in_its_order() {
    for (command, psns) in [
        ("rdma -j -p resource show qp", [15_121_179, 13_775_953]),
        ("rdma -j -p resource show cq", [0; 2]),
        ("rdma -j -p resource show pd", [0; 2]),
    ] {
        let mut expected: Vec<Json> =
            serde_json::from_str(&reference(command)).expect("it is JSON");
        expected.retain(|object| object["comm"] != "ib_core");
        let text = shown(command, &objects(psns));
        let ours: Vec<Json> = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(ours, expected, "{command}");
    }
}

#[test]
fn a_summary_counts_what_is_of_the_link_or_of_any() {
    let of = objects([0; 2]);
    let entry = summary_of(&link("rxe0"), &of);
    let text = render(&[entry], OutputOptions::default());
    // the kernel has a queue pair, a queue and a domain of its own on each device
    let expected = reference("rdma resource show").replace("pd 5 cq 3 qp 3", "pd 4 cq 2 qp 2");
    assert_eq!(text, expected);
    let entry = summary_of(&link("rxe1"), &of);
    let text = render(&[entry], OutputOptions::default());
    assert_eq!(text, "4: rxe1: pd 0 cq 0 qp 0 cm_id 1 mr 0 ctx 0 srq 0 \n");
}

#[test]
fn filters_leave_what_they_say() {
    let of = objects([7, 8]);
    let lines = |command: &str| shown(command, &of).lines().count();
    assert_eq!(lines("resource show qp link rxe0 lqpn 17"), 1);
    assert_eq!(lines("resource show qp link rxe0/ lqpn 16-18"), 2);
    assert_eq!(lines("resource show qp lqpn 17,18 state rts type RC"), 2);
    assert_eq!(lines("resource show qp state INIT,ERR"), 0);
    assert_eq!(lines("resource show cq dev rxe0 users 2"), 2);
    assert_eq!(lines("resource show mr pdn 3 mrlen 64"), 2);
    assert_eq!(lines("resource show cm_id src-addr 10.77.0.2"), 3);
    assert_eq!(lines("resource show cm_id src-port 7300 state LISTEN"), 1);
    assert_eq!(
        lines("resource show cm_id lqpn 1-100"),
        2,
        "a listener has none"
    );
}

#[test]
fn a_shared_receive_queue_names_its_queue_pairs() {
    let sharer = |key, number, queue| {
        let mut found = found(7, number, qp([0; 2], 0, 1));
        found.process.key = key;
        if let Details::QueuePair { srq, .. } = &mut found.object.details {
            *srq = queue;
        }
        found
    };
    let of = [
        found(7, 4, Details::SharedReceiveQueue { pd: 1 }),
        found(7, 5, Details::SharedReceiveQueue { pd: 1 }),
        sharer(1, 130, Some(4)),
        sharer(1, 128, Some(4)),
        sharer(1, 127, Some(4)),
        sharer(1, 126, Some(4)),
        sharer(1, 129, None),
        // of another process, which counts for itself
        sharer(2, 140, Some(4)),
    ];
    let line = "dev rxe0 srqn 4 type BASIC lqpn 126-128,130 pdn 1 pid 7 comm rping \n";
    let alone = "dev rxe0 srqn 5 type BASIC pdn 1 pid 7 comm rping \n";
    assert_eq!(shown("resource show srq", &of), format!("{line}{alone}"));
    let narrow = line.replace("126-128,130", "127-128");
    assert_eq!(shown("resource show srq lqpn 127-129", &of), narrow);
    assert_eq!(shown("resource show srq lqpn 129", &of), "");
    let json = shown("-j resource show srq", &of);
    assert!(
        json.contains(r#""lqpn":["126-128","130"],"pdn":1"#),
        "{json}"
    );
}

#[test]
fn a_device_that_is_not_there_is_named_as_iproute2_does() {
    let error = |command: &str| {
        let words: VecDeque<String> = command.split(' ').map(str::to_owned).collect();
        let list = LISTS.iter().find(|list| list.name == words[0]);
        let list = list.expect("a list");
        let filters = Filters::parse(list.filters, words.into_iter().skip(1).collect());
        wanted(list, &filters.expect("right"), &[link("rxe0")]).expect_err("it is not there")
    };
    assert_eq!(error("qp link rxe1"), "Wrong device name\n");
    assert_eq!(error("qp link rxe0/2"), "Wrong device name\n");
    assert_eq!(error("cq dev rxe0/1"), "Wrong device name - rxe0/1\n");
}

#[test]
fn numbers_of_two_processes_differ() {
    let of = |ordinal| {
        let mut found = found(7, 1, pd(1, 0));
        found.process.ordinal = ordinal;
        let rows = row::of_objects(Kind::ProtectionDomain, &[found], &[&link("rxe0")]);
        let entries: Vec<Entry> = rows.into_iter().map(Row::into_entry).collect();
        render(&entries, OutputOptions::default())
    };
    assert!(of(0).contains(" pdn 1 ") && of(0).contains(" ctxn 1 "));
    assert!(of(2).contains(" pdn 2097153 ") && of(2).contains(" ctxn 2097153 "));
}

#[test]
fn a_queue_pair_without_a_port_is_shown_so() {
    let mut found = found(7, 17, qp([0; 2], 0, 1));
    if let Details::QueuePair {
        port, state, peer, ..
    } = &mut found.object.details
    {
        (*port, *state, *peer) = (None, 0, None);
    }
    let text = shown("resource show qp", std::slice::from_ref(&found));
    assert_eq!(
        text,
        "link rxe0/- lqpn 17 type RC state RESET sq-psn 0 pdn 1 pid 7 comm rping \n"
    );
    let json = shown("-j resource show qp", &[found]);
    assert!(!json.contains("\"port\""), "{json}");
}
