use std::fs::File;

use pcap_file::pcap::PcapReader;
use wire::{
    Packet,
    ip::Frame,
    mad::{Bits, Padded, PortSpace, TransactionId},
    roce::UDP_PORT,
};

use super::*;
use crate::gsi;

/// The messages of a capture of the kernel's device.
fn captured(name: &str) -> Vec<Mad> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/testdata/captures/");
    let file = File::open(format!("{folder}{name}")).expect("it is in the repository");
    let mut reader = PcapReader::new(file).expect("a capture");
    let mut mads = Vec::new();
    while let Some(record) = reader.next_packet() {
        let record = record.expect("whole");
        let Ok(frame) = Frame::parse(&record.data) else {
            continue;
        };
        if frame.udp.destination_port == UDP_PORT
            && let Ok(packet) = Packet::parse(frame.payload)
            && let Ok(mad) = gsi::mad_of(&packet)
        {
            mads.push(mad);
        }
    }
    mads
}

#[test]
fn the_kernels_refusal_is_ours() {
    let [request, reject] = captured("rxe-reject-no-listener.pcap")[..] else {
        panic!("a REQ and a REJ");
    };
    let Way::Connect(called, requester) = Way::of(&request.message) else {
        panic!("{request}");
    };
    assert_eq!(called.service, ServiceId::new(PortSpace::Tcp, 9999));
    assert_eq!(called.destination, Some([10, 77, 1, 2].into()));
    assert_eq!(Way::of(&reject.message), Way::Peer(requester.1));
    assert_eq!(refusal(&request, Absence::NoListener), Some(reject));
}

#[test]
fn each_message_of_a_connection_finds_its_way() {
    let mads = captured("rxe-rping.pcap");
    let names: Vec<&str> = mads.iter().map(|mad| mad.message.name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let Way::Connect(_, (_, active)) = Way::of(&mads[0].message) else {
        panic!("{}", mads[0]);
    };
    let Message::Rep(reply) = mads[1].message else {
        panic!("{}", mads[1]);
    };
    let passive = reply.local_id;
    assert_eq!(Way::of(&mads[1].message), Way::Peer(active));
    assert_eq!(Way::of(&mads[2].message), Way::Peer(passive));
    for mad in &mads[3..] {
        match Way::of(&mad.message) {
            Way::Disconnect(id) | Way::Peer(id) => assert!([active, passive].contains(&id)),
            other => panic!("{mad}: {other:?}"),
        }
    }
}

#[test]
fn datagram_services_find_their_way() {
    let mads = captured("rxe-udaddy.pcap");
    let Way::Resolve(called) = Way::of(&mads[0].message) else {
        panic!("{}", mads[0]);
    };
    assert_eq!(called.service.port_space(), Some(PortSpace::Udp));
    assert!(called.destination.is_some());
    let Message::SidrReq(request) = mads[0].message else {
        panic!("{}", mads[0]);
    };
    let answer = refusal(&mads[0], Absence::NoListener).expect("a request");
    assert_eq!(answer.transaction, mads[0].transaction);
    assert_eq!(Way::of(&answer.message), Way::Peer(request.request_id));
    let status = |absence| match refusal(&mads[0], absence).map(|mad| mad.message) {
        Some(Message::SidrRep(reply)) => reply.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(Absence::NoListener), SidrStatus::Unsupported);
    assert_eq!(status(Absence::OtherAddress), SidrStatus::Rejected);
}

#[test]
fn a_requester_that_gives_up_is_known_by_its_own_id() {
    let mut reject = Rej {
        local_id: CommId(5),
        reason: RejectReason::Timeout,
        info_length: Bits::truncated(8),
        info: Padded::new(&[0, 0, 0, 0, 0, 0, 0, 9]).expect("eight of 72"),
        ..Rej::default()
    };
    let requester = (Guid(9), CommId(5));
    assert_eq!(Way::of(&reject.into()), Way::Abandon(requester));
    reject.remote_id = CommId(6);
    assert_eq!(Way::of(&reject.into()), Way::Peer(CommId(6)));
    reject.remote_id = CommId(0);
    reject.reason = RejectReason::Consumer;
    assert_eq!(Way::of(&reject.into()), Way::Peer(CommId(0)));
}

#[test]
fn a_release_swaps_the_ids() {
    let request = Mad {
        transaction: TransactionId(3),
        modifier: 0,
        message: Dreq {
            local_id: CommId(1),
            remote_id: CommId(2),
            ..Dreq::default()
        }
        .into(),
    };
    let expected = Drep {
        local_id: CommId(2),
        remote_id: CommId(1),
        ..Drep::default()
    };
    let answer = release(&request).expect("a DREQ");
    assert_eq!(answer.message, expected.into());
    assert_eq!(answer.transaction, request.transaction);
    assert_eq!(release(&answer), None);
    assert_eq!(refusal(&answer, Absence::NoListener), None);
}
