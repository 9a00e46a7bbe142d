//! The texts of the kernel's devices and of iproute2 are in `testdata/`.

use broker::LinkKind;
use wire::Mtu;

use super::*;

fn link(index: u32, name: &str, up: bool) -> LinkInfo {
    LinkInfo {
        name: name.into(),
        kind: LinkKind::Rxe,
        index,
        netdev: "eth0".into(),
        netdev_index: 2,
        mac: [0x52, 0x54, 0, 0x77, 0, 2],
        netdev_mtu: 1500,
        max_mtu: Mtu::B4096,
        active_mtu: Mtu::B1024,
        up,
        carrier: up,
        gids: Vec::new(),
        iwarp: None,
    }
}

fn shown(details: bool, json: bool, pretty: bool, links: &[LinkInfo]) -> String {
    let options = OutputOptions {
        details,
        json,
        pretty,
    };
    let entries: Vec<Entry> = links.iter().map(|link| entry(link, options)).collect();
    render(&entries, options)
}

#[test]
fn listings_are_those_of_iproute2() {
    let reference = include_str!("../../testdata/rdma-link.txt");
    let links = [link(4, "rxe0", true), link(5, "siw0", true)];
    for (command, details, json, pretty) in [
        ("rdma link show", false, false, false),
        ("rdma -d link show", true, false, false),
        ("rdma -j link show", false, true, false),
        ("rdma -j -p link show", false, true, true),
        ("rdma -d -j -p link show", true, true, true),
    ] {
        let expected = crate::rdma::reference_output(reference, command, 0);
        assert_eq!(shown(details, json, pretty, &links), expected, "{command}");
    }
    let down = [link(4, "rxe0", false), link(5, "siw0", false)];
    let expected = crate::rdma::reference_output(reference, "rdma link show", 1);
    assert_eq!(shown(false, false, false, &down), expected);
}

#[test]
fn listings_of_nothing_are_those_of_iproute2() {
    let reference = include_str!("../../testdata/rdma-empty.txt");
    for (command, json) in [("rdma link", false), ("rdma -j link", true)] {
        let expected = crate::rdma::reference_output(reference, command, 0);
        assert_eq!(shown(false, json, false, &[]), expected, "{command}");
    }
    assert_eq!(shown(false, true, true, &[]), "[ ]\n");
}

#[test]
fn usage_errors_are_those_of_iproute2() {
    let reference = include_str!("../../testdata/rdma-link-add-delete.txt");
    for command in [
        "rdma link add rxe9 type rxe",
        "rdma link add rxe9 netdev eth0",
        "rdma link add",
        "rdma link delete",
        "rdma link bogus",
    ] {
        let words = command.split(' ').skip(2).map(str::to_owned).collect();
        let (text, code) = match run(OutputOptions::default(), words) {
            Ended::Usage(text) => (text, ""),
            Ended::Remarked(text, remark) if remark == NOTHING_DONE => (text, ""),
            Ended::Failed(text) => (text, "[exit code 1]\n"),
            ended => panic!("{command} succeeded: {ended:?}"),
        };
        let expected = crate::rdma::reference_output(reference, command, 0);
        assert_eq!(
            text.replace("Usage: softrdma", "Usage: rdma") + code,
            expected,
            "{command}"
        );
    }
}

#[test]
fn options_in_the_wrong_place_or_twice_are_failures() {
    for (command, remedy) in [
        ("add siw9 type siw crc on netdev lo", "behind the interface"),
        (
            "add siw9 rfc7306 on type siw netdev lo",
            "behind the interface",
        ),
        (
            "add siw9 type siw netdev lo crc on crc off",
            "crc is given twice",
        ),
    ] {
        let words = command.split(' ').map(str::to_owned).collect();
        match run(OutputOptions::default(), words) {
            Ended::Failed(text) => assert!(text.contains(remedy), "{command}: {text}"),
            ended => panic!("{command}: {ended:?}"),
        }
    }
}

#[test]
fn refusals_have_the_kernels_text_and_a_remedy() {
    let reference = include_str!("../../testdata/rdma-link-add-delete.txt");
    let long = "this_name_is_far_too_long_for_an_rdma_device_which_has_a_limit_of_64_characters";
    let netdev_in_use = Refusal::NetdevInUse {
        netdev: "eth0".into(),
        kind: "rxe".into(),
        link: "rxe0".into(),
    };
    let invalid = |name: &str| Refusal::InvalidName {
        name: name.into(),
        reason: "bad".into(),
    };
    for (command, refusal, remedy) in [
        (
            "rdma link add rxe0 type rxe netdev lo",
            Refusal::NameInUse {
                name: "rxe0".into(),
            },
            "another name",
        ),
        (
            "rdma link add rxe9 type rxe netdev eth0",
            netdev_in_use,
            "rxe0",
        ),
        (
            "rdma link add rxe9 type rxe netdev missing0",
            Refusal::NoSuchNetdev {
                netdev: "missing0".into(),
            },
            "ip link show",
        ),
        (
            "rdma link add rxe9 type nosuchtype netdev eth0",
            Refusal::UnknownKind {
                kind: "nosuchtype".into(),
            },
            "type rxe",
        ),
        (
            &format!("rdma link add {long} type rxe netdev lo"),
            invalid(long),
            "bad",
        ),
        (
            "rdma link add rxe%d type rxe netdev lo",
            invalid("rxe%d"),
            "bad",
        ),
    ] {
        let name = command.split(' ').nth(3).expect("the command has a name");
        let Ended::Failed(text) = explain_add(&Failure::Call(refusal.into()), name) else {
            panic!("{command} succeeded");
        };
        let expected = crate::rdma::reference_output(reference, command, 0);
        let kernel = expected.strip_suffix("[exit code 1]\n").expect("it fails");
        let ours = text
            .strip_prefix(kernel)
            .unwrap_or_else(|| panic!("{text:?}: {kernel:?}"));
        assert!(
            ours.starts_with("softrdma: ") && ours.contains(remedy),
            "{command}: {ours}"
        );
        assert_eq!(ours.lines().count(), 1, "{ours}");
    }
}
