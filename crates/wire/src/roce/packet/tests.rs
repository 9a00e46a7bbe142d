use super::*;
use crate::error::Reason;
use crate::field::{Psn, Qpn};

/// A packet of `opcode` with `payload` bytes; all header fields and the ICRC are zeros.
fn bytes_of(opcode: Opcode, payload: usize) -> Vec<u8> {
    let mut bth = Bth::new(opcode, Qpn::truncated(0x12), Psn::truncated(7));
    bth.pad = Bth::pad_of(payload);
    let mut bytes = bth.to_bytes().to_vec();
    let extension = usize::from(opcode.info().extension_length);
    bytes.resize(
        bytes.len() + extension + payload + usize::from(bth.pad) + 4,
        0,
    );
    bytes
}

#[test]
fn every_opcode_parses_and_is_emitted_again() {
    for opcode in Opcode::all() {
        let payload = match opcode.payload_rule() {
            PayloadRule::None => 0,
            _ => 5,
        };
        let mut bytes = bytes_of(opcode, payload);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.opcode(), opcode);
        assert_eq!(packet.payload().len(), payload);
        assert!(packet.header_repr().is_complete(), "{opcode}");
        // distinct bytes in the extension headers
        let headers_end = packet.header_repr().emitted_length();
        for (index, byte) in bytes[Bth::LENGTH..headers_end].iter_mut().enumerate() {
            *byte = index as u8 + 1;
        }
        let packet = Packet::parse(&bytes).unwrap();
        let repr = packet.header_repr();
        let mut again = Vec::new();
        repr.emit_packet(packet.payload(), &mut again);
        assert_eq!(again.len(), bytes.len(), "{opcode}");
        assert_eq!(
            Packet::parse(&again).unwrap().header_repr(),
            repr,
            "{opcode}"
        );
    }
}

#[test]
fn every_truncation_is_refused_and_names_what_is_missing() {
    for opcode in Opcode::all() {
        let bytes = bytes_of(opcode, 0);
        for length in 0..bytes.len() {
            let error = Packet::parse(&bytes[..length]).unwrap_err();
            assert!(
                matches!(error.reason, Reason::TooShort { needed, found } if found < needed),
                "{opcode}, {length} bytes: {error}"
            );
        }
        let error = Packet::parse(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(error.layer, Layer::Icrc, "{opcode}");
    }
}

#[test]
fn pad_beyond_the_payload_is_refused() {
    let mut bytes = bytes_of(Opcode::RC_SEND_ONLY, 0);
    bytes[1] |= 0x30; // three bytes of pad that are not there
    let error = Packet::parse(&bytes).unwrap_err();
    assert_eq!((error.layer, error.field), (Layer::Payload, "pad"));
    bytes.extend([0; 3]);
    assert_eq!(Packet::parse(&bytes).unwrap().payload(), b"");
}

#[test]
fn payload_where_the_opcode_has_none_is_refused() {
    let mut bytes = bytes_of(Opcode::RC_ACKNOWLEDGE, 0);
    bytes.extend([0; 4]);
    let error = Packet::parse(&bytes).unwrap_err();
    assert_eq!((error.layer, error.field), (Layer::Payload, "length"));
    bytes[1] |= 0x30; // nor as pad
    assert!(Packet::parse(&bytes).is_err());
}

#[test]
fn the_responder_sees_packets_that_break_the_mtu_rules() {
    let fits = |opcode, payload| {
        let bytes = bytes_of(opcode, payload);
        Packet::parse(&bytes).unwrap().payload_fits(Mtu::B256)
    };
    assert!(fits(Opcode::RC_SEND_FIRST, 256));
    assert!(!fits(Opcode::RC_SEND_FIRST, 252));
    assert!(!fits(Opcode::RC_SEND_LAST, 0));
    assert!(fits(Opcode::RC_SEND_ONLY, 0));
    assert!(!fits(Opcode::RC_SEND_ONLY, 257));
    assert!(!fits(Opcode::RC_ATOMIC_WRITE, 4));
    // nine bytes without the pad that they need
    let mut bytes = bytes_of(Opcode::RC_SEND_ONLY, 8);
    bytes.push(0);
    assert!(!Packet::parse(&bytes).unwrap().payload_fits(Mtu::B256));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "headers of another opcode")]
fn emitting_without_the_headers_of_the_opcode_is_a_bug() {
    let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::default(), Psn::default());
    HeaderRepr::new(bth).emit_into(&mut Vec::new());
}
