//! Every packet that the kernel's rxe sent is understood, its checksum is right, and it is emitted
//! again byte for byte.

mod capture;

use softrdma_wire::icrc::{Believe, PseudoHeader};
use softrdma_wire::ip::Ip;
use softrdma_wire::{HeaderRepr, Packet};

/// Files, RoCEv2 packets in them, other frames (IGMP).
const FILES: [(&str, usize, usize); 58] = [
    ("rxe-atomic-cmp-swap.pcap", 10, 0),
    ("rxe-atomic-fetch-add.pcap", 10, 0),
    ("rxe-cmtime.pcap", 15, 0),
    ("rxe-loss-read.pcap", 65, 0),
    ("rxe-loss-rping.pcap", 63, 0),
    ("rxe-loss-send.pcap", 47, 0),
    ("rxe-loss-write.pcap", 39, 0),
    ("rxe-multicast.pcap", 1, 3),
    ("rxe-no-answer-to-req.pcap", 11, 0),
    ("rxe-rc-pingpong-first-last.pcap", 18, 0),
    ("rxe-rc-pingpong-first-middle-last.pcap", 30, 0),
    ("rxe-rc-pingpong-ipv6.pcap", 18, 0),
    ("rxe-rc-pingpong-mtu256.pcap", 30, 0),
    ("rxe-rc-pingpong-odd.pcap", 12, 0),
    ("rxe-rc-pingpong-only.pcap", 12, 0),
    ("rxe-read-32k.pcap", 165, 0),
    ("rxe-read.pcap", 25, 0),
    ("rxe-reject-by-server.pcap", 7, 0),
    ("rxe-reject-no-listener.pcap", 2, 0),
    ("rxe-reorder-send.pcap", 93, 0),
    ("rxe-riostream.pcap", 68, 0),
    ("rxe-rnr-nak.pcap", 670, 0),
    ("rxe-rping-4k.pcap", 41, 0),
    ("rxe-rping.pcap", 41, 0),
    ("rxe-rsocket-write-imm.pcap", 29, 0),
    ("rxe-send-32k.pcap", 165, 0),
    ("rxe-send-inline.pcap", 20, 0),
    ("rxe-send-ud.pcap", 5, 0),
    ("rxe-send.pcap", 25, 0),
    ("rxe-srq-pingpong.pcap", 28, 0),
    ("rxe-uc-pingpong.pcap", 18, 0),
    ("rxe-ucmatose.pcap", 13, 0),
    ("rxe-ud-pingpong.pcap", 6, 0),
    ("rxe-udaddy.pcap", 6, 0),
    ("rxe-verbs-atomics.pcap", 12, 0),
    ("rxe-verbs-bad-rkey-read.pcap", 7, 0),
    ("rxe-verbs-bad-rkey-write.pcap", 7, 0),
    ("rxe-verbs-immediate.pcap", 22, 0),
    ("rxe-verbs-no-permission-write.pcap", 7, 0),
    ("rxe-verbs-odd-lengths.pcap", 48, 0),
    ("rxe-verbs-out-of-bounds-read.pcap", 7, 0),
    ("rxe-verbs-out-of-bounds-write.pcap", 9, 0),
    ("rxe-verbs-peer-silent.pcap", 14, 0),
    ("rxe-verbs-pipeline.pcap", 24, 0),
    ("rxe-verbs-rnr-exceeded.pcap", 12, 0),
    ("rxe-verbs-rnr.pcap", 10, 0),
    ("rxe-verbs-send-inv-mr.pcap", 7, 0),
    ("rxe-verbs-send-inv.pcap", 13, 0),
    ("rxe-verbs-too-long.pcap", 7, 0),
    ("rxe-verbs-unaligned-atomic.pcap", 6, 0),
    ("rxe-verbs-zero-length.pcap", 12, 0),
    ("rxe-write-2qp.pcap", 20, 0),
    ("rxe-write-cm.pcap", 89, 0),
    ("rxe-write-lat.pcap", 20, 0),
    ("rxe-write-uc.pcap", 20, 0),
    ("rxe-write.pcap", 25, 0),
    ("rxe-xsrq-pingpong.pcap", 0, 0),
    ("two-rxe-rping.pcap", 85, 0),
];

#[test]
fn the_files_hold_what_the_table_says() {
    let found: Vec<_> = capture::files()
        .iter()
        .map(|file| {
            let others = file
                .frames
                .iter()
                .filter(|frame| capture::roce(frame).is_none());
            let others = others.count();
            (file.name.clone(), file.frames.len() - others, others)
        })
        .collect();
    let expected: Vec<_> = FILES
        .iter()
        .map(|&(name, roce, others)| (name.to_owned(), roce, others))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_packet_is_emitted_again_byte_for_byte() {
    for file in capture::files() {
        for (index, bytes) in file.frames.iter().enumerate() {
            let Some(frame) = capture::roce(bytes) else {
                continue;
            };
            let context = format!("{} packet {}", file.name, index + 1);
            let packet = Packet::parse(frame.payload).unwrap_or_else(|e| panic!("{context}: {e}"));
            let pseudo = frame.pseudo_header();
            let identification = frame.ip.identification();
            assert_eq!(
                emitted(
                    &packet.header_repr(),
                    packet.payload(),
                    &pseudo,
                    identification
                ),
                frame.payload,
                "{context}: {packet}"
            );
            let mut again = Vec::new();
            frame.emit_into(&mut again).unwrap();
            assert_eq!(&again, bytes, "{context}: {packet}");
        }
    }
}

#[test]
fn every_checksum_is_right_and_tells_the_identification() {
    for file in capture::files() {
        for (index, bytes) in file.frames.iter().enumerate() {
            let Some(frame) = capture::roce(bytes) else {
                continue;
            };
            let context = format!("{} packet {}", file.name, index + 1);
            let pseudo = frame.pseudo_header();
            let identification = frame.ip.identification();
            assert!(pseudo.verify(frame.payload, identification), "{context}");
            let found = pseudo.recover(frame.payload, 0, Believe::Any);
            assert_eq!(found, Some(identification), "{context}");
            if matches!(frame.ip, Ip::V4(_)) {
                assert!(
                    !pseudo.verify(frame.payload, identification ^ 1),
                    "{context}"
                );
                let own = pseudo.recover(frame.payload, 0, Believe::Own);
                assert_eq!(own, found.filter(|&id| id < 128), "{context}");
            }
        }
    }
}

/// What the sender of `headers` and `payload` puts into the UDP datagram.
fn emitted(
    headers: &HeaderRepr,
    payload: &[u8],
    pseudo: &PseudoHeader,
    identification: u16,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    headers.emit_packet(payload, &mut bytes);
    pseudo.seal(&mut bytes, identification);
    bytes
}
