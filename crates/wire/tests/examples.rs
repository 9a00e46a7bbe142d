//! Worked examples of whole frames: sealed by independent implementations, one by a NIC.

use softrdma_wire::icrc::Believe;
use softrdma_wire::ip::Frame;
use softrdma_wire::{
    Aeth, AtomicEth, Bth, Credits, Deth, Feth, HeaderRepr, MemoryKey, Msn, NakCode, Opcode, Packet,
    Psn, QKey, Qpn, Reth, RnrTimer, Syndrome,
};

/// A frame without its checksum sequence and the line that says what it is.
struct Example {
    name: &'static str,
    frame: &'static str,
    line: &'static str,
    /// The ICRC's value; on the wire low byte first.
    icrc: u32,
}

const EXAMPLES: [Example; 11] = [
    Example {
        name: "A: SEND Only with immediate over IPv4",
        frame: "0242ac110003 0242ac110002 0800
            4502 0038 0001 4000 4011 26b0 0a000001 0a000002
            c0de 12b7 0024 0000
            05b0 ffff 00000012 80123456
            deadbeef 68656c6c6f 000000
            0e6e30b9",
        line: "RC SEND_ONLY_WITH_IMMEDIATE qp=0x000012 psn=0x123456 SE A \
               pad=3 imm=0xdeadbeef len=5",
        icrc: 0xb930_6e0e,
    },
    Example {
        name: "B: WRITE Only over IPv6",
        frame: "0242ac110003 0242ac110002 86dd
            60012345 0038 1140
            fd000000000000000000000000000001 fd000000000000000000000000000002
            d345 12b7 0038 0000
            0a00 ffff 00000021 80000001
            00007f0011223344 00001234 00000010
            000102030405060708090a0b0c0d0e0f
            0d057042",
        line: "RC WRITE_ONLY qp=0x000021 psn=0x000001 A va=0x7f0011223344 \
               rkey=0x00001234 dma=16 len=16",
        icrc: 0x4270_050d,
    },
    Example {
        name: "C: ACK",
        frame:
            "0242ac1100030242ac11000208004502003000024000401126b70a0000020a000001c0de12b7001c0000
            1100ffff00000011001234561f0000018da80f07",
        line: "RC ACKNOWLEDGE qp=0x000011 psn=0x123456 ack msn=0x000001",
        icrc: 0x070f_a88d,
    },
    Example {
        name: "D: NAK PSN sequence error",
        frame:
            "0242ac1100030242ac11000208004502003000034000401126b60a0000020a000001c0de12b7001c0000
            1100ffff000000110000000760000007fc9860f9",
        line: "RC ACKNOWLEDGE qp=0x000011 psn=0x000007 nak=sequence-error msn=0x000007",
        icrc: 0xf960_98fc,
    },
    Example {
        name: "E: RNR NAK",
        frame:
            "0242ac1100030242ac11000208004502003000054000401126b40a0000020a000001c0de12b7001c0000
            1100ffff00000011000000092c000007affed5eb",
        line: "RC ACKNOWLEDGE qp=0x000011 psn=0x000009 rnr-nak wait=0.64ms msn=0x000007",
        icrc: 0xebd5_feaf,
    },
    Example {
        name: "F: CNP",
        frame:
            "0242ac1100030242ac110002080045c2003c00044000401125e90a0000020a000001c0de12b700280000
            8100ffff4000001100000000000000000000000000000000000000005e0747be",
        line: "CNP qp=0x000011 psn=0x000000 BECN",
        icrc: 0xbe47_075e,
    },
    Example {
        name: "G: UD SEND",
        frame:
            "0242ac1100030242ac11000208004500003800064000401126ad0a0000010a000002c0de12b700240000
            6400ffff0000002200000010111111110000003341424344b6d9defc",
        line: "UD SEND_ONLY qp=0x000022 psn=0x000010 qkey=0x11111111 src_qp=0x000033 len=4",
        icrc: 0xfcde_d9b6,
    },
    Example {
        name: "H: CNP of a NIC",
        frame:
            "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b700280000
            8100ffff40000118000000000000000000000000000000000000000082fd002a",
        line: "CNP qp=0x000118 psn=0x000000 BECN",
        icrc: 0x2a00_fd82,
    },
    Example {
        name: "I: COMPARE SWAP",
        frame:
            "0242ac1100030242ac110002080045000048000740004011269c0a0000010a000002c0de12b700340000
            1300ffff0000001280000020000000000000100000005678
            aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb098f8d8a",
        line: "RC COMPARE_SWAP qp=0x000012 psn=0x000020 A va=0x1000 rkey=0x00005678 \
               compare=0xbbbbbbbbbbbbbbbb swap=0xaaaaaaaaaaaaaaaa",
        icrc: 0x8a8d_8f09,
    },
    Example {
        name: "J: FLUSH",
        frame:
            "0242ac1100030242ac11000208004500004000084000401126a30a0000010a000002c0de12b7002c0000
            1c00ffff00000012800000210000000200000000000010000000567800000040f2c57130",
        line: "RC FLUSH qp=0x000012 psn=0x000021 A plt=0x2 sel=0 va=0x1000 rkey=0x00005678 dma=64",
        icrc: 0x3071_c5f2,
    },
    Example {
        name: "K: ATOMIC WRITE",
        frame:
            "0242ac1100030242ac110002080045000044000940004011269e0a0000010a000002c0de12b700300000
            1d00ffff000000128000002200000000000010000000567800000008010203040506070886dc4671",
        line: "RC ATOMIC_WRITE qp=0x000012 psn=0x000022 A va=0x1000 rkey=0x00005678 dma=8 len=8",
        icrc: 0x7146_dc86,
    },
];

#[test]
fn each_is_read_verified_and_emitted_again() {
    for Example {
        name,
        frame,
        line,
        icrc,
    } in EXAMPLES
    {
        let bytes = hex(frame);
        let frame = Frame::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let packet = Packet::parse(frame.payload).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(packet.to_string(), line, "{name}");

        let (covered, _) = frame.payload.split_at(frame.payload.len() - 4);
        let pseudo = frame.pseudo_header();
        let identification = frame.ip.identification();
        let seed = pseudo.seed(frame.payload.len(), identification);
        assert_eq!(seed.finish(covered), icrc, "{name}");
        assert_eq!(packet.icrc(), icrc.to_le_bytes(), "{name}");
        let recovered = pseudo.recover(frame.payload, 0, Believe::Any);
        assert_eq!(recovered, Some(identification), "{name}");

        let mut payload = Vec::new();
        packet
            .header_repr()
            .emit_packet(packet.payload(), &mut payload);
        pseudo.seal(&mut payload, identification);
        let again = Frame {
            payload: &payload,
            ..frame
        };
        let mut emitted = Vec::new();
        again.emit_into(&mut emitted).unwrap();
        assert_eq!(emitted, bytes, "{name}");
    }
}

#[test]
fn their_headers_have_the_values_of_the_description() {
    let bth = |opcode, qpn, psn| Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(psn));
    let asking = |opcode, psn| Bth {
        ack_request: true,
        ..bth(opcode, 0x12, psn)
    };
    let ack = |psn, msn, syndrome| HeaderRepr {
        aeth: Some(Aeth {
            syndrome,
            msn: Msn::truncated(msn),
        }),
        ..HeaderRepr::new(bth(Opcode::RC_ACKNOWLEDGE, 0x11, psn))
    };
    let remote = |dma_length| Reth {
        va: 0x1000,
        rkey: MemoryKey(0x5678),
        dma_length,
    };
    let unlimited = Syndrome::Ack {
        credits: Credits::UNLIMITED,
    };
    let timer = RnrTimer::from_code(12).unwrap();

    assert_eq!(
        headers("A"),
        HeaderRepr {
            immediate: Some([0xde, 0xad, 0xbe, 0xef]),
            ..HeaderRepr::new(Bth {
                solicited: true,
                pad: 3,
                ..asking(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, 0x12_3456)
            })
        }
    );
    assert_eq!(
        headers("B").reth,
        Some(Reth {
            va: 0x7f00_1122_3344,
            rkey: MemoryKey(0x1234),
            dma_length: 16,
        })
    );
    assert_eq!(headers("C"), ack(0x12_3456, 1, unlimited));
    assert_eq!(
        headers("D"),
        ack(7, 7, Syndrome::Nak(NakCode::SequenceError))
    );
    assert_eq!(headers("E"), ack(9, 7, Syndrome::RnrNak { timer }));
    let cnp = softrdma_wire::roce::cnp::notification(Qpn::truncated(0x11));
    assert_eq!(headers("F"), cnp);
    assert_eq!(
        headers("G").deth,
        Some(Deth {
            qkey: QKey(0x1111_1111),
            source: Qpn::truncated(0x33),
        })
    );
    assert_eq!(
        headers("I").atomic_eth,
        Some(AtomicEth {
            va: 0x1000,
            rkey: MemoryKey(0x5678),
            swap_or_add: 0xaaaa_aaaa_aaaa_aaaa,
            compare: 0xbbbb_bbbb_bbbb_bbbb,
        })
    );
    let persistent = Feth::from_bytes(&[0, 0, 0, 2]);
    assert_eq!(
        headers("J"),
        HeaderRepr {
            feth: Some(persistent),
            reth: Some(remote(0x40)),
            ..HeaderRepr::new(asking(Opcode::RC_FLUSH, 0x21))
        }
    );
    assert_eq!(
        headers("K"),
        HeaderRepr {
            reth: Some(remote(8)),
            ..HeaderRepr::new(asking(Opcode::RC_ATOMIC_WRITE, 0x22))
        }
    );
}

/// The headers of the example whose name starts with `letter`.
fn headers(letter: &str) -> HeaderRepr {
    let example = EXAMPLES
        .iter()
        .find(|example| example.name.starts_with(letter))
        .unwrap();
    let bytes = hex(example.frame);
    let frame = Frame::parse(&bytes).unwrap();
    Packet::parse(frame.payload).unwrap().header_repr()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}
