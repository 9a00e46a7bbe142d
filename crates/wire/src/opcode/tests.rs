use super::table::BTH_LENGTH;
use super::*;

/// Every opcode as `byte name, bytes of all headers, payload rule`: the standard's table written
/// out.
const ROWS: &str = "\
00 RC SEND_FIRST 12 ExactMtu
01 RC SEND_MIDDLE 12 ExactMtu
02 RC SEND_LAST 12 OneToMtu
03 RC SEND_LAST_WITH_IMMEDIATE 16 OneToMtu
04 RC SEND_ONLY 12 ZeroToMtu
05 RC SEND_ONLY_WITH_IMMEDIATE 16 ZeroToMtu
06 RC WRITE_FIRST 28 ExactMtu
07 RC WRITE_MIDDLE 12 ExactMtu
08 RC WRITE_LAST 12 OneToMtu
09 RC WRITE_LAST_WITH_IMMEDIATE 16 OneToMtu
0a RC WRITE_ONLY 28 ZeroToMtu
0b RC WRITE_ONLY_WITH_IMMEDIATE 32 ZeroToMtu
0c RC READ_REQUEST 28 None
0d RC READ_RESPONSE_FIRST 16 ExactMtu
0e RC READ_RESPONSE_MIDDLE 12 ExactMtu
0f RC READ_RESPONSE_LAST 16 OneToMtu
10 RC READ_RESPONSE_ONLY 16 ZeroToMtu
11 RC ACKNOWLEDGE 16 None
12 RC ATOMIC_ACKNOWLEDGE 24 None
13 RC COMPARE_SWAP 40 None
14 RC FETCH_ADD 40 None
16 RC SEND_LAST_WITH_INVALIDATE 16 OneToMtu
17 RC SEND_ONLY_WITH_INVALIDATE 16 ZeroToMtu
1c RC FLUSH 32 None
1d RC ATOMIC_WRITE 28 Exactly8
20 UC SEND_FIRST 12 ExactMtu
21 UC SEND_MIDDLE 12 ExactMtu
22 UC SEND_LAST 12 OneToMtu
23 UC SEND_LAST_WITH_IMMEDIATE 16 OneToMtu
24 UC SEND_ONLY 12 ZeroToMtu
25 UC SEND_ONLY_WITH_IMMEDIATE 16 ZeroToMtu
26 UC WRITE_FIRST 28 ExactMtu
27 UC WRITE_MIDDLE 12 ExactMtu
28 UC WRITE_LAST 12 OneToMtu
29 UC WRITE_LAST_WITH_IMMEDIATE 16 OneToMtu
2a UC WRITE_ONLY 28 ZeroToMtu
2b UC WRITE_ONLY_WITH_IMMEDIATE 32 ZeroToMtu
40 RD SEND_FIRST 24 ExactMtu
41 RD SEND_MIDDLE 24 ExactMtu
42 RD SEND_LAST 24 OneToMtu
43 RD SEND_LAST_WITH_IMMEDIATE 28 OneToMtu
44 RD SEND_ONLY 24 ZeroToMtu
45 RD SEND_ONLY_WITH_IMMEDIATE 28 ZeroToMtu
46 RD WRITE_FIRST 40 ExactMtu
47 RD WRITE_MIDDLE 24 ExactMtu
48 RD WRITE_LAST 24 OneToMtu
49 RD WRITE_LAST_WITH_IMMEDIATE 28 OneToMtu
4a RD WRITE_ONLY 40 ZeroToMtu
4b RD WRITE_ONLY_WITH_IMMEDIATE 44 ZeroToMtu
4c RD READ_REQUEST 40 None
4d RD READ_RESPONSE_FIRST 20 ExactMtu
4e RD READ_RESPONSE_MIDDLE 16 ExactMtu
4f RD READ_RESPONSE_LAST 20 OneToMtu
50 RD READ_RESPONSE_ONLY 20 ZeroToMtu
51 RD ACKNOWLEDGE 20 None
52 RD ATOMIC_ACKNOWLEDGE 28 None
53 RD COMPARE_SWAP 52 None
54 RD FETCH_ADD 52 None
55 RD RESYNC 24 None
5c RD FLUSH 44 None
5d RD ATOMIC_WRITE 40 Exactly8
64 UD SEND_ONLY 20 ZeroToMtu
65 UD SEND_ONLY_WITH_IMMEDIATE 24 ZeroToMtu
81 CNP 28 None
a0 XRC SEND_FIRST 16 ExactMtu
a1 XRC SEND_MIDDLE 16 ExactMtu
a2 XRC SEND_LAST 16 OneToMtu
a3 XRC SEND_LAST_WITH_IMMEDIATE 20 OneToMtu
a4 XRC SEND_ONLY 16 ZeroToMtu
a5 XRC SEND_ONLY_WITH_IMMEDIATE 20 ZeroToMtu
a6 XRC WRITE_FIRST 32 ExactMtu
a7 XRC WRITE_MIDDLE 16 ExactMtu
a8 XRC WRITE_LAST 16 OneToMtu
a9 XRC WRITE_LAST_WITH_IMMEDIATE 20 OneToMtu
aa XRC WRITE_ONLY 32 ZeroToMtu
ab XRC WRITE_ONLY_WITH_IMMEDIATE 36 ZeroToMtu
ac XRC READ_REQUEST 32 None
ad XRC READ_RESPONSE_FIRST 16 ExactMtu
ae XRC READ_RESPONSE_MIDDLE 12 ExactMtu
af XRC READ_RESPONSE_LAST 16 OneToMtu
b0 XRC READ_RESPONSE_ONLY 16 ZeroToMtu
b1 XRC ACKNOWLEDGE 16 None
b2 XRC ATOMIC_ACKNOWLEDGE 24 None
b3 XRC COMPARE_SWAP 44 None
b4 XRC FETCH_ADD 44 None
b6 XRC SEND_LAST_WITH_INVALIDATE 20 OneToMtu
b7 XRC SEND_ONLY_WITH_INVALIDATE 20 ZeroToMtu
";

#[test]
fn the_table_written_out() {
    let mut rows = String::new();
    for opcode in Opcode::all() {
        let headers = BTH_LENGTH + usize::from(opcode.info().extension_length);
        let rule = opcode.payload_rule();
        rows.push_str(&format!(
            "{:02x} {opcode} {headers} {rule:?}\n",
            opcode.byte()
        ));
    }
    assert_eq!(rows, ROWS);
}

#[test]
fn every_row_is_consistent() {
    for opcode in Opcode::all() {
        let info = opcode.info();
        let found = Opcode::find(info.transport, info.operation, info.place, info.attached);
        assert_eq!(found, Some(opcode), "its meaning leads back to it");

        let mut offset = BTH_LENGTH;
        for header in Header::ALL {
            let expected = info.headers.contains(header).then_some(offset);
            assert_eq!(opcode.offset_of(header), expected, "{opcode} {header:?}");
            offset += expected.map_or(0, |_| header.length());
        }
        assert_eq!(offset, BTH_LENGTH + usize::from(info.extension_length));

        // the name says the place and what is attached
        let of_place = match info.place {
            Place::First => "_FIRST",
            Place::Middle => "_MIDDLE",
            Place::Last => "_LAST",
            Place::Only => "",
        };
        assert!(info.name.contains(of_place), "{opcode}");
        let (suffix, header) = match info.attached {
            Attached::Nothing => ("", None),
            Attached::Immediate => ("_WITH_IMMEDIATE", Some(Header::Immediate)),
            Attached::Invalidate => ("_WITH_INVALIDATE", Some(Header::Ieth)),
        };
        assert!(info.name.ends_with(suffix), "{opcode}");
        for attached in [Header::Immediate, Header::Ieth] {
            assert_eq!(
                info.headers.contains(attached),
                header == Some(attached),
                "{opcode}"
            );
        }
        assert_eq!(
            opcode.is_response(),
            opcode.offset_of(Header::Aeth).is_some() || info.name == "READ_RESPONSE_MIDDLE"
        );
        let whole = matches!(info.place, Place::First | Place::Middle);
        assert_eq!(info.payload == PayloadRule::ExactMtu, whole, "{opcode}");
    }
}

#[test]
fn meanings_without_an_opcode_are_not_found() {
    let none = Attached::Nothing;
    for (transport, operation, place, attached) in [
        (Transport::Uc, Operation::ReadRequest, Place::Only, none),
        (Transport::Ud, Operation::Send, Place::First, none),
        (
            Transport::Uc,
            Operation::Send,
            Place::Only,
            Attached::Invalidate,
        ),
        (
            Transport::Rc,
            Operation::Send,
            Place::First,
            Attached::Immediate,
        ),
        (
            Transport::Rc,
            Operation::Write,
            Place::Last,
            Attached::Invalidate,
        ),
        (Transport::Xrc, Operation::Flush, Place::Only, none),
    ] {
        let found = Opcode::find(transport, operation, place, attached);
        assert_eq!(
            found, None,
            "{transport} {operation:?} {place:?} {attached:?}"
        );
    }
}

#[test]
fn payload_rules_at_their_edges() {
    let mtu = Mtu::B1024;
    let admitted = |rule: PayloadRule| {
        let lengths = [0, 1, 7, 8, 9, 1023, 1024, 1025];
        lengths
            .into_iter()
            .filter(|&length| rule.admits(length, mtu))
            .collect::<Vec<_>>()
    };
    assert_eq!(admitted(PayloadRule::None), [0]);
    assert_eq!(admitted(PayloadRule::ExactMtu), [1024]);
    assert_eq!(admitted(PayloadRule::OneToMtu), [1, 7, 8, 9, 1023, 1024]);
    assert_eq!(
        admitted(PayloadRule::ZeroToMtu),
        [0, 1, 7, 8, 9, 1023, 1024]
    );
    assert_eq!(admitted(PayloadRule::Exactly8), [8]);
}
