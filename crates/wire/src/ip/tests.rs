use super::*;
use crate::error::Reason;

fn v4() -> Frame<'static> {
    Frame {
        ethernet: Ethernet {
            destination: [2, 0, 0, 0, 0, 2],
            source: [2, 0, 0, 0, 0, 1],
            tag: None,
        },
        ip: Ip::V4(Ipv4 {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            tos: 2,
            ttl: 64,
            identification: 7,
            dont_fragment: true,
        }),
        udp: Udp {
            source_port: 0xc0de,
            destination_port: 4791,
            checksum: 0,
        },
        payload: b"payload",
    }
}

fn v6() -> Frame<'static> {
    Frame {
        ip: Ip::V6(Ipv6 {
            source: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
            destination: [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(),
            traffic_class: 0xc2,
            flow_label: 0x12345,
            hop_limit: 64,
        }),
        ..v4()
    }
}

fn emitted(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.emit_into(&mut bytes).unwrap();
    bytes
}

#[test]
fn frames_survive_with_and_without_tag_and_padding() {
    for mut frame in [v4(), v6()] {
        for tag in [None, Some(0x6002)] {
            frame.ethernet.tag = tag;
            let mut bytes = emitted(&frame);
            assert_eq!(Frame::parse(&bytes), Ok(frame));
            bytes.extend([0; 9]); // a short frame is padded by the link
            assert_eq!(Frame::parse(&bytes), Ok(frame));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for frame in [v4(), v6()] {
        let bytes = emitted(&frame);
        for length in 0..bytes.len() {
            let parsed = Frame::parse(&bytes[..length]);
            assert!(parsed.is_err(), "{length} bytes: {parsed:?}");
        }
    }
}

#[test]
fn what_is_not_ours_is_refused_with_its_field() {
    // byte to change, its new value, the field that is named; the header checksum comes before all
    // fields of IPv4 that it covers, so that is recomputed
    let cases: [(usize, u8, &str); 5] = [
        (12, 0x08 ^ 0xff, "type"),
        (14, 0x46, "version and header length"),
        (14 + 6, 0x20, "fragment"),
        (14 + 9, 6, "protocol"),
        (14 + 10, 0xff, "header checksum"),
    ];
    for (at, value, field) in cases {
        let mut bytes = emitted(&v4());
        bytes[at] = value;
        if at != 14 + 10 {
            bytes[24..26].fill(0);
            let sum: u32 = bytes[14..34]
                .chunks(2)
                .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
                .sum();
            let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
            bytes[24..26].copy_from_slice(&folded.to_be_bytes());
        }
        let error = Frame::parse(&bytes).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    let mut tcp = emitted(&v6());
    tcp[14 + 6] = 6;
    assert_eq!(Frame::parse(&tcp).unwrap_err().field, "next header");
    let mut version_4 = emitted(&v6());
    version_4[14] = 0x40;
    assert_eq!(Frame::parse(&version_4).unwrap_err().field, "version");
}

#[test]
fn a_udp_length_below_its_header_is_refused() {
    let mut bytes = emitted(&v6());
    let length = 14 + Ipv6::LENGTH + 4;
    bytes[length..length + 2].copy_from_slice(&7_u16.to_be_bytes());
    let error = Frame::parse(&bytes).unwrap_err();
    assert_eq!(
        (error.layer, error.field, error.reason),
        (
            Layer::Udp,
            "length",
            Reason::TooShort {
                needed: 8,
                found: 7
            }
        )
    );
}

#[test]
fn a_payload_longer_than_a_datagram_is_refused() {
    let huge = vec![0; 65_508];
    let mut frame = v4();
    frame.payload = &huge;
    assert!(frame.emit_into(&mut Vec::new()).is_err());
    frame.payload = &huge[1..];
    assert_eq!(emitted(&frame).len(), 14 + 65_535);
    let mut frame = v6();
    frame.payload = &huge;
    assert!(frame.emit_into(&mut Vec::new()).is_ok());
}
