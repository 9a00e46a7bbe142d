//! Every management datagram that the kernel sent is understood and emitted again byte for byte.
//! Worked examples, whose checksums come from an independent implementation.

mod capture;

use std::collections::BTreeMap;

use softrdma_wire::icrc::PseudoHeader;
use softrdma_wire::mad::{
    self, Bits, CmaHeader, CommId, Drep, Dreq, Guid, Message, Padded, PortSpace, Rej, RejectReason,
    Rep, Req, RequestPath, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId,
    TransportService,
};
use softrdma_wire::{Gid, Mad, Mtu, PKey, Packet, Psn, QKey, Qpn};

/// The datagrams of a file; each is emitted again.
fn mads(file: &capture::Capture) -> Vec<Mad> {
    let frames = file.frames.iter().filter_map(|bytes| capture::roce(bytes));
    let packets = frames.map(|frame| Packet::parse(frame.payload).unwrap());
    packets
        .filter_map(|packet| {
            let mad = Mad::in_packet(&packet)?;
            let mad = mad.unwrap_or_else(|e| panic!("{}: {packet}: {e}", file.name));
            assert_eq!(mad.to_bytes(), packet.payload(), "{}: {mad}", file.name);
            let mut headers = packet.header_repr();
            // rxe asks for acknowledgements and for events, of datagrams too
            headers.bth.ack_request = false;
            headers.bth.solicited = false;
            assert_eq!(headers, mad::packet_headers(headers.bth.psn), "{packet}");
            Some(mad)
        })
        .collect()
}

fn lines(name: &str) -> Vec<String> {
    let mads = mads(&capture::file(name));
    mads.iter().map(Mad::to_string).collect()
}

#[test]
fn every_captured_datagram_is_emitted_again_byte_for_byte() {
    let mut counts = BTreeMap::new();
    for mad in capture::files().iter().flat_map(mads) {
        *counts.entry(mad.message.name()).or_insert(0) += 1;
    }
    let expected = [
        ("REQ", 43),
        ("REP", 30),
        ("RTU", 30),
        ("REJ", 2),
        ("DREQ", 44),
        ("DREP", 29),
        ("SIDR_REQ", 1),
        ("SIDR_REP", 1),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
}

#[test]
fn captured_exchanges_in_lines() {
    assert_eq!(
        lines("rxe-rping.pcap"),
        [
            "CM REQ id=0xefccd3ea service=TCP:7174 Rc qp=0x000011 psn=0xec4fff resources=1 depth=1 \
             mtu=1024 path=10.77.1.1>10.77.1.2 tid=0x00000002ead3ccef",
            "CM REP id=0xecccd3ea to=0xefccd3ea qp=0x000011 psn=0x0448e8 resources=1 depth=1 \
             tid=0x00000002ead3ccef",
            "CM RTU id=0xefccd3ea to=0xecccd3ea tid=0x00000002ead3ccef",
            "CM DREQ id=0xefccd3ea to=0xecccd3ea qp=0x000011 tid=0x00000002ead3ccef",
            "CM DREP id=0xecccd3ea to=0xefccd3ea tid=0x00000002ead3ccef",
        ]
    );
    assert_eq!(
        lines("rxe-reject-no-listener.pcap")[1],
        "CM REJ id=0x00000000 to=0xcfccd3ea answers=REQ reason=invalid-service-id \
         tid=0x00000002ead3cccf"
    );
    assert_eq!(
        lines("rxe-udaddy.pcap"),
        [
            "CM SIDR_REQ id=0xf6ccd3ea service=UDP:7174 tid=0x00000002ead3ccf6",
            "CM SIDR_REP to=0xf6ccd3ea status=valid service=UDP:7174 qp=0x00002f qkey=0x01234567 \
             tid=0x00000002ead3ccf6",
        ]
    );
}

#[test]
fn a_captured_request_has_the_addresses_of_its_asker() {
    let mads = mads(&capture::file("rxe-rping.pcap"));
    let Message::Req(req) = mads[0].message else {
        panic!("{}", mads[0]);
    };
    let cma = CmaHeader::parse(req.private_data.bytes()).unwrap();
    assert_eq!(cma.source, req.primary.local_gid.ip());
    assert_eq!(cma.destination, req.primary.remote_gid.ip());
    // the flow label that rdma_cm makes of both ports
    let label = u32::from(cma.source_port) * 31 + u32::from(req.service.port());
    assert_eq!(req.primary.flow_label, Bits::truncated(label));
    assert_eq!(req.mtu(), Some(Mtu::B1024));
    assert_eq!(req.private_data.bytes()[..36], cma.to_bytes());
}

/// A message between 10.0.0.1 (ID 0x11223344, queue pair 0x11) and 10.0.0.2 (ID 0x55667788, queue
/// pair 0x12) and its bytes.
struct Example {
    is_from_first: bool,
    /// Of the packet.
    psn: u32,
    transaction: u64,
    message: Message,
    /// From the attribute ID on, without the zeros at the end.
    bytes: &'static str,
    /// As on the wire.
    icrc: &'static str,
}

#[test]
fn worked_examples() {
    for example in examples() {
        let mad = Mad {
            transaction: TransactionId(example.transaction),
            modifier: 0,
            message: example.message,
        };
        let transaction = format!("{:016x}", example.transaction);
        let text = ["0107020300000000", &transaction, example.bytes].concat();
        let mut bytes = hex(&text);
        bytes.resize(Mad::LENGTH, 0);
        assert_eq!(hex_of(&mad.to_bytes()), hex_of(&bytes), "{mad}");
        assert_eq!(Mad::parse(&bytes), Ok(mad));

        let (first, second) = ("10.0.0.1:49579", "10.0.0.2:49579");
        let (from, to) = match example.is_from_first {
            true => (first, "10.0.0.2:4791"),
            false => (second, "10.0.0.1:4791"),
        };
        let pseudo = PseudoHeader::new(from.parse().unwrap(), to.parse().unwrap()).unwrap();
        let mut packet = Vec::new();
        mad::packet_headers(Psn::truncated(example.psn)).emit_packet(&bytes, &mut packet);
        pseudo.seal(&mut packet, 0);
        assert_eq!(packet.len(), 280);
        assert_eq!(hex_of(&packet[276..]), example.icrc, "{mad}");
        let packet = Packet::parse(&packet).unwrap();
        assert_eq!(Mad::in_packet(&packet), Some(Ok(mad)));
    }
}

const FIRST: CommId = CommId(0x1122_3344);
const SECOND: CommId = CommId(0x5566_7788);

fn examples() -> [Example; 8] {
    let connect = 0x1_0000_0001;
    [
        Example {
            is_from_first: true,
            psn: 0,
            transaction: connect,
            message: request().into(),
            bytes: "0010 0000 00000000
                11223344 00 000000 0000000001061d2f 0042acfffe110002 00000000 00000000
                000011 04 000000 04 000000 a1 123456 a7 ffff 37 f0
                ffff ffff 00000000000000000000ffff0a000001 00000000000000000000ffff0a000002
                12345000 00 40 00 88
                0000000000000000000000000000000000000000000000000000000000000000000000000000000000
                000000
                00 40 8abc 0000000000000000000000000a000001 0000000000000000000000000a000002 6869",
            icrc: "b82e23a2",
        },
        Example {
            is_from_first: false,
            psn: 0,
            transaction: connect,
            message: reply().into(),
            bytes: "0013 0000 00000000 55667788 11223344 00000000 00001200 00000000 12345600
                04 04 79 e0 0042acfffe110003 6f6b",
            icrc: "b05b1c0b",
        },
        Example {
            is_from_first: true,
            psn: 1,
            transaction: connect,
            message: Message::Rtu(Rtu {
                local_id: FIRST,
                remote_id: SECOND,
                ..Rtu::default()
            }),
            bytes: "0014 0000 00000000 11223344 55667788",
            icrc: "0e90ac81",
        },
        Example {
            is_from_first: true,
            psn: 2,
            transaction: 0x1_0000_0002,
            message: Message::Dreq(Dreq {
                local_id: FIRST,
                remote_id: SECOND,
                remote_qpn: Qpn::truncated(0x12),
                ..Dreq::default()
            }),
            bytes: "0015 0000 00000000 11223344 55667788 00001200",
            icrc: "4420c1aa",
        },
        Example {
            is_from_first: false,
            psn: 1,
            transaction: 0x1_0000_0002,
            message: Message::Drep(Drep {
                local_id: SECOND,
                remote_id: FIRST,
                ..Drep::default()
            }),
            bytes: "0016 0000 00000000 55667788 11223344",
            icrc: "bb79acf5",
        },
        Example {
            is_from_first: false,
            psn: 2,
            transaction: connect,
            message: Message::Rej(Rej {
                remote_id: FIRST,
                reason: RejectReason::InvalidServiceId,
                ..Rej::default()
            }),
            bytes: "0012 0000 00000000 00000000 11223344 00 00 0008",
            icrc: "a5005166",
        },
        Example {
            is_from_first: true,
            psn: 3,
            transaction: 0x1_0000_0003,
            message: Message::SidrReq(SidrReq {
                request_id: CommId(0x1122_3345),
                pkey: PKey::DEFAULT,
                service: ServiceId::new(PortSpace::Udp, 7471),
                private_data: Padded::new(&addresses().to_bytes()).unwrap(),
            }),
            bytes: "0017 0000 00000000 11223345 ffff 0000 0000000001111d2f
                00408abc 000000000000000000000000 0a000001 000000000000000000000000 0a000002",
            icrc: "5c2703d2",
        },
        Example {
            is_from_first: false,
            psn: 3,
            transaction: 0x1_0000_0003,
            message: Message::SidrRep(SidrRep {
                request_id: CommId(0x1122_3345),
                status: SidrStatus::Valid,
                qpn: Qpn::truncated(0x22),
                service: ServiceId::new(PortSpace::Udp, 7471),
                qkey: QKey(0x0123_4567),
                ..SidrRep::default()
            }),
            bytes: "0018 0000 00000000 11223345 00 00 0000 00002200 0000000001111d2f 01234567",
            icrc: "6871b8c0",
        },
    ]
}

fn addresses() -> CmaHeader {
    CmaHeader {
        source_port: 0x8abc,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
    }
}

fn request() -> Req {
    let addresses = addresses();
    Req {
        local_id: FIRST,
        service: ServiceId::new(PortSpace::Tcp, 7471),
        local_guid: Guid(0x0042_acff_fe11_0002),
        local_qpn: Qpn::truncated(0x11),
        responder_resources: 4,
        initiator_depth: 4,
        remote_response_timeout: Bits::truncated(20),
        transport: TransportService::Rc,
        flow_control: true,
        starting_psn: Psn::truncated(0x12_3456),
        local_response_timeout: Bits::truncated(20),
        retry_count: Bits::truncated(7),
        pkey: PKey::DEFAULT,
        mtu_code: Bits::truncated(3),
        rnr_retry_count: Bits::truncated(7),
        cm_retries_max: Bits::truncated(15),
        primary: RequestPath {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from_ip(addresses.source),
            remote_gid: Gid::from_ip(addresses.destination),
            flow_label: Bits::truncated(0x12345),
            hop_limit: 64,
            ack_timeout: Bits::truncated(17),
            ..RequestPath::default()
        },
        private_data: Padded::new(&[&addresses.to_bytes()[..], b"hi"].concat()).unwrap(),
        ..Req::default()
    }
}

fn reply() -> Rep {
    Rep {
        local_id: SECOND,
        remote_id: FIRST,
        local_qpn: Qpn::truncated(0x12),
        starting_psn: Psn::truncated(0x12_3456),
        responder_resources: 4,
        initiator_depth: 4,
        target_ack_delay: Bits::truncated(15),
        flow_control: true,
        rnr_retry_count: Bits::truncated(7),
        local_guid: Guid(0x0042_acff_fe11_0003),
        private_data: Padded::new(b"ok").unwrap(),
        ..Rep::default()
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
