//! Every stream that the kernel's siw sent is understood, its CRCs are right where it has them, and
//! it is emitted again byte for byte. Worked examples of every message.

mod capture;

use std::collections::BTreeMap;

use capture::tcp::{self, Connection};
use softrdma_wire::MemoryKey;
use softrdma_wire::iwarp::{
    AtomicRequest, AtomicResponse, Body, Deframer, Depth, Enhanced, Framer, Header, Immediate,
    Kind, MessageOffset, Msn, Opcode, ReadRequest, Reading, Revision, Segment, StartFrame, Tagged,
    TaggedOffset, Terminate, TerminateCode, Untagged,
};

/// A connection's setup, what each side said from then on, in lines, and the bytes of it.
struct Told {
    has_crc: bool,
    request: Vec<String>,
    reply: Vec<String>,
}

/// Reads a connection, and writes it again.
fn tell(name: &str, connection: &Connection) -> Told {
    let start = |kind, bytes: &[u8]| {
        let parsed = StartFrame::parse(kind, bytes);
        let (frame, length) = parsed
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .unwrap_or_else(|| panic!("{name}: {kind:?} is cut off"));
        let mut again = Vec::new();
        frame.emit_into(&mut again).unwrap();
        assert_eq!(again, bytes[..length], "{name}: {frame}");
        (frame.to_string(), frame.wants_crc, length)
    };
    let (request, asked, request_length) = start(Kind::Request, &connection.request);
    let (reply, answered, reply_length) = start(Kind::Reply, &connection.reply);
    let has_crc = asked || answered;
    let lines = |first: String, stream: &[u8]| {
        let mut lines = vec![first];
        lines.extend(segments(name, has_crc, stream));
        lines
    };
    Told {
        has_crc,
        request: lines(request, &connection.request[request_length..]),
        reply: lines(reply, &connection.reply[reply_length..]),
    }
}

/// The segments of a stream in lines. Each is emitted again.
fn segments(name: &str, has_crc: bool, stream: &[u8]) -> Vec<String> {
    let mut deframer = Deframer::new(has_crc, false);
    let mut framer = Framer::new(has_crc, false);
    let mut lines = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let number = lines.len() + 1;
        let fpdu = deframer
            .next(&stream[at..])
            .unwrap_or_else(|error| panic!("{name} FPDU {number}: {error}"))
            .unwrap_or_else(|| panic!("{name} FPDU {number} is cut off"));
        let segment = Segment::parse(fpdu.ulpdu)
            .unwrap_or_else(|error| panic!("{name} FPDU {number}: {error}"));
        let mut again = (fpdu.ulpdu.len() as u16).to_be_bytes().to_vec();
        segment.emit_into(&mut again);
        framer.seal(&mut again, 0);
        let mut bytes = stream[at..at + fpdu.length].to_vec();
        let pad = 2 + fpdu.ulpdu.len()..fpdu.length - 4;
        if bytes[pad.clone()].iter().any(|&byte| byte != 0) {
            // siw sends there what happens to be in its memory, and its CRC covers that
            bytes[pad.clone()].fill(0);
            bytes.truncate(pad.end);
            again.truncate(pad.end);
        }
        assert_eq!(again, bytes, "{name} FPDU {number}: {segment}");
        lines.push(segment.to_string());
        at += fpdu.length;
    }
    lines
}

fn told(name: &str) -> Vec<Told> {
    let file = capture::iwarp_file(name);
    let connections = tcp::connections(&file);
    connections.iter().map(|one| tell(name, one)).collect()
}

#[test]
fn every_stream_is_emitted_again_byte_for_byte() {
    let mut counts = BTreeMap::new();
    let mut count = |what: String| *counts.entry(what).or_insert(0) += 1;
    for file in capture::iwarp_files() {
        for connection in tcp::connections(&file) {
            if connection.request.is_empty() {
                count("refused by TCP".to_owned());
                continue;
            }
            let told = tell(&file.name, &connection);
            let crc = if told.has_crc { " with CRC" } else { "" };
            for line in told.request.iter().skip(1).chain(told.reply.iter().skip(1)) {
                let message = line.split(' ').next().unwrap_or_default();
                count(format!("{message}{crc}"));
            }
            count("connection".to_owned());
        }
    }
    let counted: Vec<String> = counts
        .iter()
        .map(|(what, count)| format!("{what}: {count}"))
        .collect();
    assert_eq!(counted, COUNTS);
}

const COUNTS: [&str; 12] = [
    "READ_REQUEST: 67",
    "READ_REQUEST with CRC: 14",
    "READ_RESPONSE: 144",
    "READ_RESPONSE with CRC: 18",
    "SEND: 351",
    "SEND with CRC: 97",
    "SEND_INVALIDATE: 2",
    "TERMINATE: 9",
    "WRITE: 97",
    "WRITE with CRC: 20",
    "connection: 56",
    "refused by TCP: 2",
];

#[test]
fn the_story_of_an_rping() {
    let [told] = &told("siw-rping.pcap")[..] else {
        panic!("one connection");
    };
    assert_eq!(
        told.request[..5],
        [
            "MPA request rev=2 ird=1 ord=1 private=0",
            "SEND msn=1 mo=0 length=16",
            "READ_RESPONSE stag=0x48913900 to=0x5646df91f550 length=64",
            "SEND msn=2 mo=0 length=16",
            "SEND msn=3 mo=0 length=16",
        ]
    );
    assert_eq!(
        told.reply[..5],
        [
            "MPA reply rev=2 ird=1 ord=1 private=0",
            "READ_REQUEST msn=1 mo=0 length=64 source=0x99bcd500@0x564d41c47c60 \
             sink=0x48913900@0x5646df91f550",
            "SEND msn=1 mo=0 length=16",
            "WRITE stag=0x9debb600 to=0x564d41c47ed0 length=64",
            "SEND msn=2 mo=0 length=16",
        ]
    );
}

#[test]
fn terminates_of_siw_are_read_as_it_means_them() {
    for (name, expected) in [
        (
            "bad-rkey-read",
            "0/1/00 remote-protection-invalid-stag (swapped) of READ_REQUEST",
        ),
        (
            "out-of-bounds-read",
            "0/1/01 remote-protection-base-or-bounds (swapped) of READ_REQUEST",
        ),
        (
            "bad-rkey-write",
            "1/1/00 tagged-invalid-stag (swapped) of WRITE",
        ),
        (
            "no-permission-write",
            "1/1/00 tagged-invalid-stag (swapped) of WRITE",
        ),
        (
            "out-of-bounds-write",
            "1/1/01 tagged-base-or-bounds (swapped) of WRITE",
        ),
        ("rnr", "1/2/02 no-buffer (swapped) of SEND"),
        ("too-long", "1/2/02 no-buffer (swapped) of SEND"),
        (
            "send-inv-mr",
            "0/2/09 stag-cannot-be-invalidated (swapped) of SEND_INVALIDATE",
        ),
    ] {
        let [told] = &told(&format!("siw-verbs-{name}.pcap"))[..] else {
            panic!("one connection in {name}");
        };
        let line = told.reply.last().unwrap();
        let expected = format!("TERMINATE msn=1 mo=0 {expected}");
        assert_eq!(*line, expected, "{name}");
    }
}

#[test]
fn setups_as_each_variant_of_siw_makes_them() {
    let plain = "rev=2 ird=1 ord=1 private=0";
    for (name, request, reply) in [
        ("siw-rping", plain, plain),
        (
            "siw-crc-rping",
            "rev=2 crc ird=1 ord=1 private=0",
            "rev=2 crc ird=1 ord=1 private=0",
        ),
        ("siw-v1-rping", "rev=1 private=0", "rev=1 private=0"),
        (
            "siw-p2p-rping",
            "rev=2 ird=1 ord=1 peer-to-peer rtr-write rtr-read private=0",
            "rev=2 ird=1 ord=1 peer-to-peer rtr-write private=0",
        ),
        (
            "siw-gso-rping",
            "rev=2 reserved=0x8 ird=1 ord=1 private=0",
            "rev=2 reserved=0x8 ird=1 ord=1 private=0",
        ),
        (
            "siw-reject-by-server",
            plain,
            "rev=2 rejected ird=1 ord=1 private=0",
        ),
    ] {
        let told = told(&format!("{name}.pcap"));
        let last = told.last().unwrap();
        assert_eq!(last.request[0], format!("MPA request {request}"), "{name}");
        assert_eq!(last.reply[0], format!("MPA reply {reply}"), "{name}");
    }
}

#[test]
fn a_stream_in_any_fragmentation_is_the_same_stream() {
    for name in ["siw-crc-rping-4k.pcap", "siw-verbs-pipeline.pcap"] {
        let file = capture::iwarp_file(name);
        for connection in tcp::connections(&file) {
            let bytes = &connection.request;
            let has_crc = name.contains("crc");
            let mut end = 0;
            let (_, mut at) = loop {
                let part = StartFrame::parse(Kind::Request, &bytes[..end]);
                if let Some(found) = part.unwrap() {
                    break found;
                }
                end += 1;
            };
            assert_eq!(at, end, "not a byte too late");
            let mut deframer = Deframer::new(has_crc, false);
            while at < bytes.len() {
                let mut end = at;
                let length = loop {
                    let part = deframer.next(&bytes[at..end]).unwrap();
                    if let Some(fpdu) = part {
                        break fpdu.length;
                    }
                    end += 1;
                };
                assert_eq!(at + length, end, "not a byte too late");
                at = end;
            }
        }
    }
}

/// The FPDU with CRC of a segment.
fn fpdu(header: Header, body: Body<'_>) -> Vec<u8> {
    let control = header.control();
    let opcode = control.opcode().unwrap();
    let segment = Segment {
        header,
        opcode,
        body,
    };
    let mut bytes = vec![0; 2];
    segment.emit_into(&mut bytes);
    let length = bytes.len() as u16 - 2;
    bytes[..2].copy_from_slice(&length.to_be_bytes());
    Framer::new(true, false).seal(&mut bytes, 0);
    let mut deframer = Deframer::new(true, false);
    let fpdu = deframer.next(&bytes).unwrap().unwrap();
    assert_eq!(Segment::parse(fpdu.ulpdu), Ok(segment));
    bytes
}

fn untagged(opcode: Opcode, msn: u32, invalidate: u32) -> Header {
    let header = Untagged::new(opcode, true, Msn(msn), MessageOffset::default());
    Header::Untagged(Untagged {
        invalidate: MemoryKey(invalidate),
        ..header
    })
}

fn tagged(opcode: Opcode, stag: u32, offset: u64) -> Header {
    Header::Tagged(Tagged::new(
        opcode,
        true,
        MemoryKey(stag),
        TaggedOffset(offset),
    ))
}

/// FPDUs that an independent implementation made, and that tshark decodes.
#[test]
fn worked_examples() {
    let counting: Vec<u8> = (0..16).collect();
    let read = ReadRequest {
        sink: MemoryKey(0x5600),
        sink_offset: TaggedOffset(0x1000),
        length: 8,
        source: MemoryKey(0x7800),
        source_offset: TaggedOffset(0x2000),
    };
    let read_header = untagged(Opcode::ReadRequest, 1, 0);
    let refused_read = Terminate {
        segment_length: Some(28),
        header: Some(read_header),
        request: Some(read),
        ..Terminate::new(TerminateCode::REMOTE_BOUNDS)
    };
    let send_header = untagged(Opcode::Send, 1, 0);
    let refused_send = Terminate {
        segment_length: Some(5),
        header: Some(send_header),
        ..Terminate::new(TerminateCode::NO_BUFFER)
    };
    let terminate = |body| (untagged(Opcode::Terminate, 1, 0), body);
    let rfc = |terminate| Body::Terminate(terminate, Reading::Rfc);
    let examples = [
        (
            (send_header, Body::Data(b"hello")),
            "0017 4143 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c",
        ),
        (
            (
                untagged(Opcode::SendSolicited, 2, 0),
                Body::Data(b"12345678"),
            ),
            "001a 4145 00000000 00000000 00000002 00000000 3132333435363738 42dafd90",
        ),
        (
            (untagged(Opcode::SendInvalidate, 3, 0x1234), Body::Data(b"")),
            "0012 4144 00001234 00000000 00000003 00000000 e452cf12",
        ),
        (
            (
                tagged(Opcode::Write, 0x1234, 0x7f00_1122_3344),
                Body::Data(&counting),
            ),
            "001e c140 00001234 00007f0011223344 000102030405060708090a0b0c0d0e0f 2a6f9b30",
        ),
        (
            (read_header, Body::ReadRequest(read)),
            "002e 4141 00000000 00000001 00000001 00000000 00005600 0000000000001000 00000008 \
             00007800 0000000000002000 bb7a7da9",
        ),
        (
            (
                tagged(Opcode::ReadResponse, 0x5600, 0x1000),
                Body::Data(b"ABCDEFGH"),
            ),
            "0016 c142 00005600 0000000000001000 4142434445464748 a9366ef8",
        ),
        (
            (tagged(Opcode::Write, 1, 0), Body::Data(b"")),
            "000e c140 00000001 0000000000000000 ebd34c5f",
        ),
        (
            terminate(rfc(refused_read)),
            "0046 4147 00000000 00000002 00000001 00000000 0101e000 001c 4141 00000000 00000001 \
             00000001 00000000 00005600 0000000000001000 00000008 00007800 0000000000002000 \
             81db763b",
        ),
        (
            terminate(rfc(refused_send)),
            "002a 4147 00000000 00000002 00000001 00000000 1202c000 0005 4143 00000000 00000000 \
             00000001 00000000 4f2a5ca9",
        ),
        (
            terminate(rfc(Terminate::new(TerminateCode::CRC))),
            "0016 4147 00000000 00000002 00000001 00000000 20020000 7fe42585",
        ),
    ];
    for ((header, body), expected) in examples {
        let bytes = fpdu(header, body);
        let expected: String = expected.split_whitespace().collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "{body:?}");
    }
}

#[test]
fn messages_of_rfc_7306_in_lines() {
    let (key, at) = (MemoryKey(0x1234), TaggedOffset(0x40));
    let request = untagged(Opcode::AtomicRequest, 1, 0);
    let line = |header: Header, body| {
        let bytes = fpdu(header, body);
        let mut deframer = Deframer::new(true, false);
        let fpdu = deframer.next(&bytes).unwrap().unwrap();
        Segment::parse(fpdu.ulpdu).unwrap().to_string()
    };
    let add = AtomicRequest::fetch_add(7, key, at, 5);
    let swap = AtomicRequest::compare_swap(8, key, at, 5, 6);
    let response = AtomicResponse { id: 8, original: 5 };
    assert_eq!(
        [
            line(request, Body::AtomicRequest(add)),
            line(request, Body::AtomicRequest(swap)),
            line(
                untagged(Opcode::AtomicResponse, 1, 0),
                Body::AtomicResponse(response)
            ),
            line(
                untagged(Opcode::ImmediateSolicited, 1, 0),
                Body::Immediate(Immediate([0, 0, 0, 1, 0, 0, 0, 0]))
            ),
        ],
        [
            "ATOMIC_REQUEST msn=1 mo=0 add=0x5 id=7 remote=0x00001234@0x40",
            "ATOMIC_REQUEST msn=1 mo=0 compare=0x5 swap=0x6 id=8 remote=0x00001234@0x40",
            "ATOMIC_RESPONSE msn=1 mo=0 id=8 original=0x5",
            "IMMEDIATE_SOLICITED msn=1 mo=0 data=0x0000000100000000",
        ]
    );
}

#[test]
fn start_frames_of_the_worked_examples() {
    let enhanced = Enhanced {
        ird: Depth::saturating(2),
        ord: Depth::saturating(2),
        ..Enhanced::default()
    };
    let request = StartFrame {
        wants_crc: true,
        enhanced: Some(enhanced),
        private_data: b"hi",
        ..StartFrame::new(Kind::Request, Revision::Two)
    };
    let peer_to_peer = Enhanced {
        peer_to_peer: true,
        rtr_write: true,
        rtr_read: true,
        ..enhanced
    };
    let reply = StartFrame {
        wants_crc: true,
        enhanced: Some(enhanced),
        ..StartFrame::new(Kind::Reply, Revision::Two)
    };
    for (frame, expected) in [
        (
            request,
            &b"MPA ID Req Frame\x50\x02\x00\x06\x00\x02\x00\x02hi"[..],
        ),
        (
            StartFrame {
                enhanced: Some(peer_to_peer),
                ..request
            },
            b"MPA ID Req Frame\x50\x02\x00\x06\x80\x02\xc0\x02hi",
        ),
        (reply, b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x02\x00\x02"),
        (
            StartFrame {
                is_rejected: true,
                ..reply
            },
            b"MPA ID Rep Frame\x70\x02\x00\x04\x00\x02\x00\x02",
        ),
    ] {
        let mut bytes = Vec::new();
        frame.emit_into(&mut bytes).unwrap();
        assert_eq!(bytes, expected, "{frame}");
    }
}
