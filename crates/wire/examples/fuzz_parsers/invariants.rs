//! What holds for every input. Shared with the cargo-fuzz targets in `fuzz/` of the repository.

use std::net::SocketAddrV4;

use softrdma_wire::icrc::{self, Believe, PseudoHeader};
use softrdma_wire::ip::Frame;
use softrdma_wire::iwarp::{Deframer, Framer, Kind, Opcode as IwarpOpcode, Segment, StartFrame};
use softrdma_wire::mad::CmaHeader;
use softrdma_wire::rsocket::{ConnectionData, DatagramHeader, Mapping, Message, UdpHeader};
use softrdma_wire::{Header, Mad, Opcode, Packet};

/// Whether `input` is a packet, or what rule of the crate it broke. `buffer` is reused.
pub fn check_packet(input: &[u8], buffer: &mut Vec<u8>, with_text: bool) -> Result<bool, String> {
    match Packet::parse(input) {
        Ok(packet) => {
            check_emission(&packet, buffer)?;
            if with_text && packet.to_string().is_empty() {
                return Err("no line of text".to_owned());
            }
            Ok(true)
        }
        Err(error) if with_text && error.to_string().is_empty() => {
            Err("an error without text".to_owned())
        }
        Err(_) => Ok(false),
    }
}

/// Sealing and verifying agree, an identification is recovered, damage is seen. `word` chooses
/// addresses, identification and the damaged bit.
pub fn check_icrc(word: u64, packet: &mut [u8]) -> Result<(), String> {
    let source = SocketAddrV4::new((word as u32).into(), (word >> 32) as u16);
    let destination = SocketAddrV4::new([10, 0, 0, 2].into(), 4791);
    let pseudo = PseudoHeader::v4(source, destination);
    let identification = (word >> 48) as u16;
    // any result is right for what came; it only has to come back
    let _ = pseudo.recover(packet, identification, Believe::Any);
    pseudo.seal(packet, identification);
    let is_sealed = packet.len() >= icrc::PACKET_LENGTH_MIN;
    let expected = is_sealed.then_some(identification);
    let found = pseudo.recover(packet, 0, Believe::Any);
    if found != expected {
        return Err(format!(
            "identification {identification} recovered as {found:?}"
        ));
    }
    if is_sealed {
        let bit = (word.rotate_left(29) % (8 * packet.len() as u64)) as usize;
        packet[bit / 8] ^= 1 << (bit % 8);
        let is_right = pseudo.verify(packet, identification);
        packet[bit / 8] ^= 1 << (bit % 8);
        if is_right != (bit / 8 == 4) {
            return Err(format!("bit {bit} damaged, verifies: {is_right}"));
        }
    }
    Ok(())
}

/// A frame made of the input is an error or is emitted again.
pub fn check_frame(input: &[u8]) -> Result<bool, String> {
    let Ok(frame) = Frame::parse(input) else {
        return Ok(false);
    };
    let mut again = Vec::new();
    match frame.emit_into(&mut again) {
        Ok(()) if Frame::parse(&again) == Ok(frame) => Ok(true),
        outcome => Err(format!("frame emitted again: {outcome:?}")),
    }
}

/// A management datagram is an error or is emitted again, but for reserved bits. The header of the
/// RDMA IP CM service likewise.
pub fn check_mad(input: &[u8]) -> Result<bool, String> {
    if let Ok(cma) = CmaHeader::parse(input) {
        let again = CmaHeader::parse(&cma.to_bytes());
        if again != Ok(cma) {
            return Err(format!("{cma:?} read again: {again:?}"));
        }
    }
    let mad = match Mad::parse(input) {
        Ok(mad) => mad,
        Err(error) if error.to_string().is_empty() => {
            return Err("an error without text".to_owned());
        }
        Err(_) => return Ok(false),
    };
    let written = mad.to_bytes();
    let differing = input
        .iter()
        .zip(written)
        .map(|(&read, written)| read ^ written);
    let values = mad.message.value_bits();
    if let Some(at) = differing
        .zip(values)
        .position(|(bits, values)| bits & values != 0)
    {
        return Err(format!("byte {at} of {mad} was {:#04x}", input[at]));
    }
    match Mad::parse(&written) {
        Ok(again) if again == mad && !mad.to_string().is_empty() => Ok(true),
        again => Err(format!("{mad} read again: {again:?}")),
    }
}

/// What one end of a TCP connection sends: a start frame or an error, then FPDUs until one is none.
/// `word` chooses whether there are CRCs and markers. Whether all of it was understood.
pub fn check_iwarp(word: u64, input: &[u8], buffer: &mut Vec<u8>) -> Result<bool, String> {
    let mut stream = input;
    for kind in [Kind::Request, Kind::Reply] {
        if let Ok(Some((frame, length))) = StartFrame::parse(kind, input) {
            check_start_frame(&frame, &input[..length], buffer)?;
            stream = &input[length..];
        }
    }
    let (has_crc, has_markers) = (word & 1 != 0, word & 2 != 0);
    let mut deframer = Deframer::new(has_crc, has_markers);
    let mut framer = Framer::new(has_crc, has_markers);
    loop {
        match deframer.next(stream) {
            Ok(Some(fpdu)) => {
                if fpdu.length > stream.len() || fpdu.ulpdu.len() > fpdu.length {
                    return Err(format!("{} bytes of {}", fpdu.length, stream.len()));
                }
                check_segment(fpdu.ulpdu, buffer)?;
                check_fpdu(&mut framer, fpdu.ulpdu, fpdu.length, buffer)?;
                stream = &stream[fpdu.length..];
            }
            Ok(None) => return Ok(stream.is_empty()),
            Err(error) if error.to_string().is_empty() => {
                return Err("an error without text".to_owned());
            }
            Err(_) => return Ok(false),
        }
    }
}

/// What a peer of an rsocket says, wherever it says it, is an error or is written again. Whether
/// one of the parsers understood it.
pub fn check_rsocket(input: &[u8], buffer: &mut Vec<u8>) -> Result<bool, String> {
    if let Some(word) = input.first_chunk::<4>() {
        check_word(*word)?;
    }
    if let Some(entry) = input.first_chunk::<{ Mapping::LENGTH }>() {
        let written = Mapping::from_own_bytes(*entry).to_bytes(cfg!(target_endian = "big"));
        if written != *entry {
            return Err(format!("an entry is written {written:02x?}"));
        }
    }
    let mut is_known = false;
    if let Ok(data) = ConnectionData::parse(input) {
        is_known = true;
        let written = data.to_bytes();
        compare("private data", input, &written, |at| match at {
            1 => 0x03,
            4..7 => 0,
            7 if data.iomap.is_none() => 0,
            _ => 0xff,
        })?;
        if ConnectionData::parse(&written) != Ok(data) {
            return Err(format!("{data:?} is not read again"));
        }
    }
    if let Ok((header, length)) = DatagramHeader::parse(input) {
        is_known = true;
        buffer.clear();
        header.emit(buffer);
        if buffer.as_slice() != &input[..length] || length > DatagramHeader::LENGTH_MAX {
            return Err(format!("{header:?} is written {buffer:02x?}"));
        }
    }
    if let Ok((header, length)) = UdpHeader::parse(input) {
        is_known = true;
        buffer.clear();
        header.emit(buffer);
        let reserved = |at| if matches!(at, 7 | 8) { 0 } else { 0xff };
        compare("a UDP header", input, buffer, reserved)?;
        if UdpHeader::parse(buffer) != Ok((header, length)) {
            return Err(format!("{header:?} is not read again"));
        }
    }
    Ok(is_known)
}

/// A word that means something keeps its operation, and its meaning.
fn check_word(word: [u8; 4]) -> Result<(), String> {
    let Some(message) = Message::from_immediate(word) else {
        return Ok(());
    };
    let written = message.to_immediate();
    if written[0] >> 5 != word[0] >> 5 || Message::from_immediate(written) != Some(message) {
        return Err(format!(
            "{word:02x?}, {message:?}, is written {written:02x?}"
        ));
    }
    Ok(())
}

/// What was written differs from what was read in bits without a value alone.
fn compare(
    what: &str,
    read: &[u8],
    written: &[u8],
    value_bits: impl Fn(usize) -> u8,
) -> Result<(), String> {
    let differs = |at: &usize| (read[*at] ^ written[*at]) & value_bits(*at) != 0;
    match (0..written.len()).find(differs) {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} of {what} is written {:#04x}",
            written[at]
        )),
    }
}

/// A start frame is emitted as it was read.
fn check_start_frame(
    frame: &StartFrame<'_>,
    read: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<(), String> {
    buffer.clear();
    match frame.emit_into(buffer) {
        Ok(()) if buffer == read && !frame.to_string().is_empty() => Ok(()),
        outcome => Err(format!("{frame} is written {buffer:02x?}: {outcome:?}")),
    }
}

/// The ULPDU in an FPDU of its own takes as many bytes as it came in.
fn check_fpdu(
    framer: &mut Framer,
    ulpdu: &[u8],
    length: usize,
    buffer: &mut Vec<u8>,
) -> Result<(), String> {
    buffer.clear();
    buffer.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
    buffer.extend_from_slice(ulpdu);
    framer.seal(buffer, 0);
    if buffer.len() == length {
        return Ok(());
    }
    let written = buffer.len();
    Err(format!("an FPDU of {length} bytes is written in {written}"))
}

/// A segment is emitted as the same one, and byte for byte where it has no reserved bits.
fn check_segment(ulpdu: &[u8], buffer: &mut Vec<u8>) -> Result<(), String> {
    let Ok(segment) = Segment::parse(ulpdu) else {
        return Ok(());
    };
    buffer.clear();
    segment.emit_into(buffer);
    let has_reserved = matches!(
        segment.opcode,
        IwarpOpcode::AtomicRequest | IwarpOpcode::Terminate
    );
    if !has_reserved && buffer != ulpdu {
        return Err(format!("{segment} is written {buffer:02x?}"));
    }
    match Segment::parse(buffer) {
        Ok(again) if again == segment && !segment.to_string().is_empty() => Ok(()),
        // with its reserved bits gone, another reading may seem likelier
        Ok(_) if segment.opcode == IwarpOpcode::Terminate => Ok(()),
        again => Err(format!("{segment} read again: {again:?}")),
    }
}

/// What is written is read as the same packet, and differs from what was read in reserved bits
/// only.
fn check_emission(packet: &Packet<'_>, buffer: &mut Vec<u8>) -> Result<(), String> {
    let headers = packet.header_repr();
    buffer.clear();
    headers.emit_into(buffer);
    if buffer.len() != headers.emitted_length() {
        return Err(format!(
            "{} bytes of headers were announced",
            headers.emitted_length()
        ));
    }
    let original = &packet.bytes()[..buffer.len()];
    for (at, (&read, &written)) in original.iter().zip(buffer.iter()).enumerate() {
        if (read ^ written) & !reserved_bits(packet.opcode(), at) != 0 {
            return Err(format!(
                "byte {at} was {read:#04x} and is written {written:#04x}"
            ));
        }
    }
    buffer.extend_from_slice(&packet.bytes()[buffer.len()..]);
    match Packet::parse(buffer) {
        Ok(again) if again.header_repr() == headers && again.payload() == packet.payload() => {
            Ok(())
        }
        Ok(again) => Err(format!("read again as {again}")),
        Err(error) => Err(format!("not read again: {error}")),
    }
}

/// The bits of byte `at` that a sender writes as 0 and a receiver ignores.
fn reserved_bits(opcode: Opcode, at: usize) -> u8 {
    match at {
        4 => return 0x3f,
        8 => return 0x7f,
        _ => {}
    }
    let within = |header: Header| {
        let offset = opcode.offset_of(header)?;
        at.checked_sub(offset).filter(|&at| at < header.length())
    };
    if within(Header::Rdeth) == Some(0) || within(Header::Xrceth) == Some(0) {
        return 0xff;
    }
    match within(Header::Feth) {
        Some(3) => return 0xc0,
        Some(_) => return 0xff,
        None => {}
    }
    if within(Header::Deth) == Some(4) || within(Header::CnpReserved).is_some() {
        return 0xff;
    }
    0
}
