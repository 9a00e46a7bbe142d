use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

fn v4() -> PseudoHeader {
    PseudoHeader::v4(
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 0xc0de),
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4791),
    )
}

fn v6() -> PseudoHeader {
    let address = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    PseudoHeader::v6(
        SocketAddrV6::new(address(1), 0xd345, 0, 0),
        SocketAddrV6::new(address(2), 4791, 0, 0),
    )
}

/// A sealed packet of `length` bytes with arbitrary content.
fn sealed(pseudo: &PseudoHeader, length: usize, identification: u16) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..length).map(|i| (i * 31 + length) as u8).collect();
    pseudo.seal(&mut packet, identification);
    packet
}

#[test]
fn sealed_packets_verify_at_every_length() {
    for pseudo in [v4(), v6()] {
        for length in (PACKET_LENGTH_MIN..400).chain([1060, 4124, 65_507]) {
            let packet = sealed(&pseudo, length, 0x1234);
            assert!(pseudo.verify(&packet, 0x1234), "{length} bytes");
        }
    }
}

#[test]
fn the_fifth_byte_of_the_bth_is_not_covered_and_all_others_are() {
    for pseudo in [v4(), v6()] {
        let packet = sealed(&pseudo, 100, 0);
        for at in 0..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x40;
            assert_eq!(pseudo.verify(&damaged, 0), at == NOT_COVERED, "byte {at}");
        }
    }
}

#[test]
fn addresses_ports_and_lengths_are_covered() {
    let packet = sealed(&v4(), 60, 0);
    let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 0xc0de);
    let destination = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4791);
    let mut other_address = source;
    other_address.set_ip(Ipv4Addr::new(10, 0, 0, 3));
    let mut other_port = source;
    other_port.set_port(0xc0df);
    assert!(PseudoHeader::v4(source, destination).verify(&packet, 0));
    assert!(!PseudoHeader::v4(destination, source).verify(&packet, 0));
    assert!(!PseudoHeader::v4(other_address, destination).verify(&packet, 0));
    assert!(!PseudoHeader::v4(other_port, destination).verify(&packet, 0));
    assert_ne!(v4().seed(60, 0), v4().seed(64, 0));
    assert_ne!(v6().seed(60, 0), v6().seed(64, 0));
    assert_eq!(
        PseudoHeader::new(source.into(), "[::1]:4791".parse().unwrap()),
        None
    );
}

#[test]
fn the_identification_is_recovered_whatever_was_expected() {
    for length in [16, 20, 64, 255, 1060, 4124, 65_507] {
        for identification in [0, 1, 127, 128, 255, 256, 0x8000, 0xffff] {
            let packet = sealed(&v4(), length, identification);
            for expected in [0, identification, 0x55aa] {
                let found = v4().recover(&packet, expected, Believe::Any);
                assert_eq!(found, Some(identification), "{length} bytes");
                let own = v4().recover(&packet, expected, Believe::Own);
                assert_eq!(own, found.filter(|&id| id < OWN_IDENTIFICATIONS));
            }
        }
    }
}

#[test]
fn all_65536_identifications_are_recovered() {
    let pseudo = v4();
    let mut packet = sealed(&pseudo, 48, 0);
    for identification in 0..=u16::MAX {
        pseudo.seal(&mut packet, identification);
        assert_eq!(
            pseudo.recover(&packet, 0, Believe::Any),
            Some(identification)
        );
    }
}

#[test]
fn one_wrong_bit_is_never_explained_by_an_identification() {
    // Exhaustive for these packets, so not a matter of luck.
    for length in [20, 64, 1060] {
        let packet = sealed(&v4(), length, 0x4321);
        for bit in 0..8 * length {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = v4().recover(&damaged, 0x4321, Believe::Any);
            let expected = (bit / 8 == NOT_COVERED).then_some(0x4321);
            assert_eq!(found, expected, "{length} bytes, bit {bit}");
        }
    }
}

#[test]
fn random_damage_is_believed_about_once_in_65536_and_once_in_33_million() {
    let mut packet = sealed(&v4(), 64, 0);
    let (mut any, mut own) = (0, 0);
    // 2^20 different checksums in place of the right one
    for wrong in 0..1_u32 << 20 {
        let checksum = wrong.wrapping_mul(0x9e37_79b1);
        packet[60..].copy_from_slice(&checksum.to_le_bytes());
        any += u32::from(v4().recover(&packet, 0, Believe::Any).is_some());
        own += u32::from(v4().recover(&packet, 0, Believe::Own).is_some());
    }
    assert!((4..=40).contains(&any), "{any} of 2^20: 16 expected");
    assert!(own <= 1, "{own} of 2^20");
}

#[test]
fn ipv6_is_exact() {
    let mut packet = sealed(&v6(), 64, 99);
    assert_eq!(v6().recover(&packet, 7, Believe::Own), Some(7));
    packet[20] ^= 1;
    assert_eq!(v6().recover(&packet, 7, Believe::Any), None);
}

#[test]
fn what_is_too_short_is_neither_sealed_nor_verified() {
    for length in 0..PACKET_LENGTH_MIN {
        let packet = sealed(&v4(), length, 0);
        let unsealed: Vec<u8> = (0..length).map(|i| (i * 31 + length) as u8).collect();
        assert_eq!(packet, unsealed);
        assert!(!v4().verify(&packet, 0));
        assert_eq!(v4().recover(&packet, 0, Believe::Any), None);
    }
}
