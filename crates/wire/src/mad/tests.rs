use super::*;

#[test]
fn no_message_has_overlapping_fields_and_each_survives_all_ones_and_zeros() {
    RequestPath::check_layout();
    let samples = Message::samples();
    assert_eq!(samples.len(), 11);
    for message in samples {
        let zero = Mad {
            transaction: TransactionId(0),
            modifier: 0,
            message,
        };
        assert_eq!(Mad::parse(&zero.to_bytes()), Ok(zero));

        let mut ones = [0xff; Mad::LENGTH];
        ones[..4].copy_from_slice(&zero.to_bytes()[..4]);
        ones[ATTRIBUTE].copy_from_slice(&message.attribute().to_be_bytes());
        let read = Mad::parse(&ones).unwrap();
        let values = message.value_bits();
        let expected: Vec<u8> = ones
            .iter()
            .zip(values)
            .map(|(one, bits)| one & bits)
            .collect();
        assert_eq!(read.to_bytes()[..], expected, "{}", message.name());
    }
}

#[test]
fn what_is_not_a_message_of_connection_management_is_refused() {
    let good = Mad {
        transaction: TransactionId(1),
        modifier: 0,
        message: Rtu::default().into(),
    };
    let refusal = |at: usize, value: u8| {
        let mut bytes = good.to_bytes();
        bytes[at] = value;
        Mad::parse(&bytes).unwrap_err().to_string()
    };
    assert_eq!(refusal(0, 2), "MAD base version: unsupported value 0x2");
    assert_eq!(refusal(1, 3), "MAD class: unsupported value 0x3");
    assert_eq!(refusal(2, 1), "MAD class version: unsupported value 0x1");
    // no message of this class is a response: a set response bit is an error
    assert_eq!(refusal(3, 0x83), "MAD method: unsupported value 0x83");
    assert_eq!(refusal(17, 0x1b), "MAD attribute: unsupported value 0x1b");
    let bytes = good.to_bytes();
    assert!(Mad::parse(&bytes[..255]).is_err());
    assert!(Mad::parse(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn the_guid_of_a_timeout_is_read_from_its_additional_information() {
    let mut rej = Rej {
        reason: RejectReason::Timeout,
        info_length: Bits::truncated(8),
        info: Padded::new(&7_u64.to_be_bytes()).unwrap(),
        ..Rej::default()
    };
    assert_eq!(rej.guid(), Some(Guid(7)));
    rej.info_length = Bits::truncated(7);
    assert_eq!(rej.guid(), None);
    rej.info_length = Bits::truncated(8);
    rej.reason = RejectReason::Consumer;
    assert_eq!(rej.guid(), None);
}

#[test]
fn a_split_vendor_id_is_put_together() {
    let rep = Rep {
        vendor_high: 1,
        vendor_middle: 2,
        vendor_low: 3,
        ..Rep::default()
    };
    assert_eq!(rep.vendor().get(), 0x01_0203);
    let sidr = SidrRep {
        vendor_high: 0x0102,
        vendor_low: 3,
        ..SidrRep::default()
    };
    assert_eq!(sidr.vendor().get(), 0x01_0203);
}
