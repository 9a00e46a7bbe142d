//! What is written is read again, whatever the values; what is read is never a panic.

use proptest::prelude::*;
use softrdma_wire::icrc::{Believe, PseudoHeader};
use softrdma_wire::roce::feth::{Placement, Selectivity};
use softrdma_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Header, HeaderRepr, MemoryKey, Msn, Opcode,
    PKey, Packet, PayloadRule, Psn, QKey, Qpn, Rdeth, Reth, Syndrome, Xrceth,
};

fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::all().collect::<Vec<_>>())
}

prop_compose! {
    fn bth()(
        opcode in opcode(),
        flags in any::<[bool; 5]>(),
        pkey in any::<u16>(),
        destination in any::<u32>(),
        psn in any::<u32>(),
    ) -> Bth {
        let [solicited, migrated, fecn, becn, ack_request] = flags;
        Bth {
            opcode,
            solicited,
            migrated,
            pad: 0,
            pkey: PKey(pkey),
            fecn,
            becn,
            destination: Qpn::truncated(destination),
            ack_request,
            psn: Psn::truncated(psn),
        }
    }
}

prop_compose! {
    /// Headers with exactly what the opcode wants.
    fn headers()(
        bth in bth(),
        words in any::<[u32; 7]>(),
        doubles in any::<[u64; 4]>(),
        selectivity in 0..4_usize,
        syndrome in any::<u8>(),
    ) -> HeaderRepr {
        let wants = bth.opcode.headers();
        let rkey = MemoryKey(words[0]);
        let selectivities = [
            Selectivity::Range,
            Selectivity::Region,
            Selectivity::Reserved2,
            Selectivity::Reserved3,
        ];
        let deth = Deth { qkey: QKey(words[3]), source: Qpn::truncated(words[4]) };
        let feth = Feth {
            placement: Placement::truncated(words[5] as u8),
            selectivity: selectivities[selectivity],
        };
        let reth = Reth { va: doubles[0], rkey, dma_length: words[6] };
        let atomic_eth =
            AtomicEth { va: doubles[0], rkey, swap_or_add: doubles[1], compare: doubles[2] };
        let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::truncated(words[1]) };
        HeaderRepr {
            bth,
            rdeth: wants.contains(Header::Rdeth).then_some(Rdeth::truncated(words[1])),
            xrceth: wants.contains(Header::Xrceth).then_some(Xrceth::truncated(words[2])),
            deth: wants.contains(Header::Deth).then_some(deth),
            feth: wants.contains(Header::Feth).then_some(feth),
            reth: wants.contains(Header::Reth).then_some(reth),
            atomic_eth: wants.contains(Header::AtomicEth).then_some(atomic_eth),
            aeth: wants.contains(Header::Aeth).then_some(aeth),
            atomic_ack: wants
                .contains(Header::AtomicAckEth)
                .then_some(AtomicAckEth { original: doubles[3] }),
            immediate: wants.contains(Header::Immediate).then_some(words[2].to_be_bytes()),
            ieth: wants.contains(Header::Ieth).then_some(rkey),
        }
    }
}

proptest! {
    #[test]
    fn a_packet_is_read_as_it_was_written(
        headers in headers(),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        identification: u16,
        expected: u16,
    ) {
        let payload = match headers.bth.opcode.payload_rule() {
            PayloadRule::None => &[],
            _ => &bytes[..],
        };
        let mut headers = headers;
        headers.bth.pad = Bth::pad_of(payload.len());
        let mut written = Vec::new();
        headers.emit_packet(payload, &mut written);
        prop_assert_eq!(written.len() % 4, 0);
        let source = "192.0.2.1:50000".parse().unwrap();
        let pseudo = PseudoHeader::new(source, "192.0.2.2:4791".parse().unwrap()).unwrap();
        pseudo.seal(&mut written, identification);

        let packet = Packet::parse(&written).unwrap();
        prop_assert_eq!(packet.header_repr(), headers);
        prop_assert_eq!(packet.payload(), payload);
        prop_assert_eq!(packet.bytes(), &written[..]);
        prop_assert!(pseudo.verify(&written, identification));
        prop_assert_eq!(pseudo.recover(&written, expected, Believe::Any), Some(identification));
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        match Packet::parse(&bytes) {
            Ok(packet) => {
                let length = packet.header_repr().emitted_length()
                    + packet.payload().len()
                    + usize::from(packet.pad())
                    + packet.icrc().len();
                prop_assert_eq!(length, bytes.len());
                prop_assert!(!packet.to_string().is_empty());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
