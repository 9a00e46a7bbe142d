use super::*;

/// A Send on queue 0 with 24 zero bytes, as in the figures of RFC 5044.
fn ulpdu_of_the_figures(msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43];
    ulpdu.extend_from_slice(&[0; 11]);
    ulpdu.push(msn);
    ulpdu.extend_from_slice(&[0; 28]);
    ulpdu
}

fn sealed(framer: &mut Framer, ulpdu: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    out.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
    out.extend_from_slice(ulpdu);
    framer.seal(&mut out, 6);
    out.split_off(6)
}

#[test]
fn the_figures_of_rfc_5044() {
    let first = sealed(&mut Framer::new(true, true), &ulpdu_of_the_figures(1));
    assert_eq!(first[..6], [0, 0, 0, 0, 0, 0x2a]);
    assert_eq!(first[48..], [0x52, 0x23, 0x99, 0x83]);

    let mut framer = Framer::new(true, true);
    framer.markers = Some(0x1ec);
    let second = sealed(&mut framer, &ulpdu_of_the_figures(2));
    assert_eq!(second[..2], [0, 0x2a]);
    assert_eq!(second[0x14..0x18], [0, 0, 0, 0x14], "the marker");
    assert_eq!(second[48..], [0x84, 0x92, 0x58, 0x98]);
    assert_eq!(framer.markers, Some(0x1ec + 52));
}

#[test]
fn the_pad_counts_the_length_field() {
    for (length, expected) in [
        (14, 0),
        (15, 3),
        (16, 2),
        (17, 1),
        (18, 0),
        (23, 3),
        (30, 0),
    ] {
        assert_eq!(pad(length), expected, "{length}");
        let fpdu = sealed(&mut Framer::new(true, false), &vec![7; length]);
        assert_eq!(fpdu.len(), plain_length(length));
        assert_eq!(fpdu.len() % 4, 0);
        assert_eq!(fpdu[2 + length..2 + length + expected], vec![0; expected]);
    }
}

#[test]
fn a_crc_that_is_not_used_is_zero_and_not_looked_at() {
    let mut fpdu = sealed(&mut Framer::new(false, false), &[1; 20]);
    assert_eq!(fpdu[24..], [0; 4]);
    fpdu[25] = 9;
    let mut deframer = Deframer::new(false, false);
    assert_eq!(deframer.next(&fpdu).unwrap().unwrap().ulpdu, [1; 20]);
    let error = Deframer::new(true, false).next(&fpdu).unwrap_err();
    assert_eq!(error.reason, Reason::Checksum);
}

#[test]
fn one_bit_of_damage_anywhere_is_seen() {
    for has_markers in [false, true] {
        let whole = sealed(&mut Framer::new(true, has_markers), &[0x5a; 600]);
        for bit in 0..8 * whole.len() {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = Deframer::new(true, has_markers)
                .next(&damaged)
                .map(|found| found.map(|fpdu| fpdu.length));
            // a greater length waits for bytes that never come
            let is_length = bit / 16 == if has_markers { 2 } else { 0 };
            let is_seen = read.is_err() || is_length && read == Ok(None);
            assert!(is_seen, "bit {bit}: {read:?}");
        }
    }
}

/// ULPDUs whose lengths hit every place around markers, in one stream, and back again.
#[test]
fn a_stream_comes_out_as_it_went_in_with_and_without_markers() {
    for (has_crc, has_markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let lengths = (14..560).chain([4096, 65_000, 18, ULPDU_MAX - 1000]);
        let ulpdus: Vec<Vec<u8>> = lengths
            .enumerate()
            .map(|(number, length)| (0..length).map(|at| (at * 3 + number) as u8).collect())
            .collect();
        let mut framer = Framer::new(has_crc, has_markers);
        let mut stream = Vec::new();
        for ulpdu in &ulpdus {
            let start = stream.len();
            stream.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
            stream.extend_from_slice(ulpdu);
            framer.seal(&mut stream, start);
        }
        let mut deframer = Deframer::new(has_crc, has_markers);
        let mut rest = &stream[..];
        for ulpdu in &ulpdus {
            let fpdu = deframer.next(rest).unwrap().unwrap();
            assert_eq!(fpdu.ulpdu, ulpdu);
            assert!(fpdu.length <= FPDU_MAX);
            rest = &rest[fpdu.length..];
        }
        assert!(rest.is_empty());
        assert_eq!(deframer.next(rest), Ok(None));
    }
}

#[test]
fn a_part_of_an_fpdu_is_not_one_yet() {
    for has_markers in [false, true] {
        let whole = sealed(&mut Framer::new(true, has_markers), &[3; 1030]);
        let mut deframer = Deframer::new(true, has_markers);
        for length in 0..whole.len() {
            let part = deframer.next(&whole[..length]);
            assert_eq!(part, Ok(None), "{length} bytes");
        }
        let fpdu = deframer.next(&whole).unwrap().unwrap();
        assert_eq!((fpdu.ulpdu, fpdu.length), (&[3; 1030][..], whole.len()));
    }
}

#[test]
fn a_marker_that_points_elsewhere_is_an_error() {
    let mut whole = sealed(&mut Framer::new(false, true), &[3; 1030]);
    assert_eq!(whole[512..516], [0, 0, 0x01, 0xfc]);
    whole[515] = 0xf8;
    let error = Deframer::new(false, true).next(&whole).unwrap_err();
    assert_eq!(error.to_string(), "FPDU marker: unsupported value 0x1f8");
}

#[test]
fn an_empty_ulpdu_is_an_error_as_soon_as_its_length_is_there() {
    let error = Deframer::new(false, false).next(&[0, 0]).unwrap_err();
    let text = "FPDU ULPDU length: unsupported value 0x0";
    assert_eq!(error.to_string(), text);
}

#[test]
fn the_example_of_rfc_5044_for_the_longest_ulpdu() {
    assert_eq!(mulpdu(1460, false), 1454);
    assert_eq!(mulpdu(1460, true), 1442);
    assert_eq!(mulpdu(1448, false), 1442);
    assert_eq!(mulpdu(0, true), 0);
    assert_eq!(mulpdu(1 << 20, false), ULPDU_MAX);
}
