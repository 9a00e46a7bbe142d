//! A whole packet, BTH to ICRC: what a UDP datagram to port 4791 carries.
//!
//! Read first: IBA 9.2 and 9.3 for the order of headers; [`crate::opcode`] for which of them
//! follow. The idea: [`Packet::parse`] checks once that every header of the opcode, the pad and the
//! ICRC fit; after that all accessors are offsets. Rules that depend on the path MTU are *not*
//! checked here: breaking them is answered by a NAK, so the responder has to see such packets
//! ([`Packet::payload_fits`]). The ICRC is checked by [`crate::icrc`], which knows the addresses.

use crate::error::{Layer, ParseError};
use crate::field::{MemoryKey, Mtu};
use crate::opcode::{Header, Headers, Opcode, PayloadRule};
use crate::roce::aeth::Aeth;
use crate::roce::atomic_ack_eth::AtomicAckEth;
use crate::roce::atomic_eth::AtomicEth;
use crate::roce::bth::Bth;
use crate::roce::deth::Deth;
use crate::roce::feth::Feth;
use crate::roce::rdeth::Rdeth;
use crate::roce::reth::Reth;
use crate::roce::xrceth::Xrceth;
use crate::roce::{cnp, icrc, imm_ieth};

/// A view of a packet whose lengths were checked.
///
/// Invariant: `bytes` holds the BTH, every extension header of the opcode, the pad and the ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: Bth,
}

impl<'a> Packet<'a> {
    /// The packet in the payload of a UDP datagram, BTH to ICRC.
    ///
    /// Refuses, in this order: a truncated BTH, an unknown opcode, another version than 0, too few
    /// bytes for the headers, pad and ICRC of the opcode, payload where the opcode has none.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, ParseError> {
        let bth = Bth::parse(udp_payload)?;
        let info = bth.opcode.info();
        let headers_end = Bth::LENGTH + usize::from(info.extension_length);
        let trailer = usize::from(bth.pad) + icrc::LENGTH;
        let Some(payload) = udp_payload.len().checked_sub(headers_end + trailer) else {
            return Err(Self::truncated(&bth, udp_payload.len()));
        };
        if info.payload == PayloadRule::None && payload + usize::from(bth.pad) > 0 {
            let found = payload + usize::from(bth.pad);
            return Err(ParseError::too_long(Layer::Payload, "length", 0, found));
        }
        Ok(Self {
            bytes: udp_payload,
            bth,
        })
    }

    /// The error that names the first part of the packet which does not fit in `length` bytes.
    #[cold]
    fn truncated(bth: &Bth, length: usize) -> ParseError {
        let mut end = Bth::LENGTH;
        for header in bth.opcode.headers().iter() {
            let needed = header.length();
            if end + needed > length {
                return ParseError::too_short(header.layer(), "header", needed, length - end);
            }
            end += needed;
        }
        let rest = length - end;
        match rest.checked_sub(icrc::LENGTH) {
            Some(rest) => ParseError::too_short(Layer::Payload, "pad", bth.pad.into(), rest),
            None => ParseError::too_short(Layer::Icrc, "checksum", icrc::LENGTH, rest),
        }
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        self.bth
    }

    /// What the packet is.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// Bytes of pad after the payload, 0 to 3.
    #[inline]
    pub fn pad(&self) -> u8 {
        self.bth.pad
    }

    /// The end-to-end context of RD packets.
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        self.extension(Header::Rdeth).map(Rdeth::from_bytes)
    }

    /// The shared receive queue of XRC requests.
    #[inline]
    pub fn xrceth(&self) -> Option<Xrceth> {
        self.extension(Header::Xrceth).map(Xrceth::from_bytes)
    }

    /// Q_Key and source of datagrams.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.extension(Header::Deth).map(Deth::from_bytes)
    }

    /// What a FLUSH asks for.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.extension(Header::Feth).map(Feth::from_bytes)
    }

    /// Remote memory of the first packet of a WRITE, of a READ request, FLUSH or ATOMIC WRITE.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.extension(Header::Reth).map(Reth::from_bytes)
    }

    /// Remote word and operands of COMPARE SWAP and FETCH ADD.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.extension(Header::AtomicEth).map(AtomicEth::from_bytes)
    }

    /// The acknowledgement of responses.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.extension(Header::Aeth).map(Aeth::from_bytes)
    }

    /// The original value in an ATOMIC ACKNOWLEDGE.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.extension(Header::AtomicAckEth)
            .map(AtomicAckEth::from_bytes)
    }

    /// Immediate data, in wire order.
    #[inline]
    pub fn immediate(&self) -> Option<[u8; imm_ieth::LENGTH]> {
        self.extension(Header::Immediate).copied()
    }

    /// The key that a SEND with invalidate names.
    #[inline]
    pub fn ieth(&self) -> Option<MemoryKey> {
        let bytes: &[u8; imm_ieth::LENGTH] = self.extension(Header::Ieth)?;
        Some(MemoryKey(u32::from_be_bytes(*bytes)))
    }

    /// The payload without its pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let start = Bth::LENGTH + usize::from(self.opcode().info().extension_length);
        let end = self.bytes.len() - icrc::LENGTH - usize::from(self.bth.pad);
        self.bytes.get(start..end).unwrap_or_default() // never the default: parse has checked
    }

    /// The four bytes of the ICRC as they came: low byte of the value first.
    #[inline]
    pub fn icrc(&self) -> [u8; icrc::LENGTH] {
        self.bytes.last_chunk().copied().unwrap_or_default() // never the default: parse has checked
    }

    /// Everything, BTH to ICRC.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the payload obeys the opcode's rule on a path of `mtu` and the pad is what such a
    /// payload needs. A request that does not gets NAK invalid request. spec: IBA C9-92, C9-94
    #[inline]
    pub fn payload_fits(&self, mtu: Mtu) -> bool {
        let length = self.payload().len();
        self.opcode().payload_rule().admits(length, mtu) && self.bth.pad == Bth::pad_of(length)
    }

    /// The values of all headers, to emit them again.
    pub fn header_repr(&self) -> HeaderRepr {
        HeaderRepr {
            bth: self.bth,
            rdeth: self.rdeth(),
            xrceth: self.xrceth(),
            deth: self.deth(),
            feth: self.feth(),
            reth: self.reth(),
            atomic_eth: self.atomic_eth(),
            aeth: self.aeth(),
            atomic_ack: self.atomic_ack(),
            immediate: self.immediate(),
            ieth: self.ieth(),
        }
    }

    #[inline]
    fn extension<const N: usize>(&self, header: Header) -> Option<&'a [u8; N]> {
        debug_assert_eq!(N, header.length());
        let offset = self.opcode().offset_of(header)?;
        self.bytes.get(offset..)?.first_chunk()
    }
}

impl Header {
    const fn layer(self) -> Layer {
        match self {
            Self::Rdeth => Layer::Rdeth,
            Self::Xrceth => Layer::Xrceth,
            Self::Deth => Layer::Deth,
            Self::Feth => Layer::Feth,
            Self::Reth => Layer::Reth,
            Self::AtomicEth => Layer::AtomicEth,
            Self::Aeth => Layer::Aeth,
            Self::AtomicAckEth => Layer::AtomicAckEth,
            Self::Immediate => Layer::Immediate,
            Self::Ieth => Layer::Ieth,
            Self::CnpReserved => Layer::Cnp,
        }
    }
}

/// The headers of a packet to send: BTH and extension headers, without payload, pad and ICRC.
///
/// Invariant: the extension headers that are `Some` are those of `bth.opcode`
/// ([`is_complete`](Self::is_complete)); the reserved bytes of a CNP need no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the header of that name")]
pub struct HeaderRepr {
    pub bth: Bth,
    pub rdeth: Option<Rdeth>,
    pub xrceth: Option<Xrceth>,
    pub deth: Option<Deth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack: Option<AtomicAckEth>,
    pub immediate: Option<[u8; imm_ieth::LENGTH]>,
    pub ieth: Option<MemoryKey>,
}

impl HeaderRepr {
    /// A BTH alone; the caller adds what its opcode needs.
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            rdeth: None,
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            ieth: None,
        }
    }

    /// Whether exactly the headers of the opcode are there.
    pub fn is_complete(&self) -> bool {
        self.headers() == self.bth.opcode.headers()
    }

    /// Bytes that [`emit_into`](Self::emit_into) adds.
    #[inline]
    pub fn emitted_length(&self) -> usize {
        Bth::LENGTH + usize::from(self.bth.opcode.info().extension_length)
    }

    /// Appends the headers to `out`; the payload, its pad and the ICRC come after.
    #[inline]
    pub fn emit_into(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_complete(), "headers of another opcode: {self:?}");
        out.extend_from_slice(&self.bth.to_bytes());
        if self.bth.opcode.headers() == Headers::EMPTY {
            return;
        }
        if let Some(rdeth) = &self.rdeth {
            out.extend_from_slice(&rdeth.to_bytes());
        }
        if let Some(xrceth) = &self.xrceth {
            out.extend_from_slice(&xrceth.to_bytes());
        }
        if let Some(deth) = &self.deth {
            out.extend_from_slice(&deth.to_bytes());
        }
        if let Some(feth) = &self.feth {
            out.extend_from_slice(&feth.to_bytes());
        }
        if let Some(reth) = &self.reth {
            out.extend_from_slice(&reth.to_bytes());
        }
        if let Some(atomic_eth) = &self.atomic_eth {
            out.extend_from_slice(&atomic_eth.to_bytes());
        }
        if let Some(aeth) = &self.aeth {
            out.extend_from_slice(&aeth.to_bytes());
        }
        if let Some(atomic_ack) = &self.atomic_ack {
            out.extend_from_slice(&atomic_ack.to_bytes());
        }
        if let Some(immediate) = &self.immediate {
            out.extend_from_slice(immediate);
        }
        if let Some(ieth) = self.ieth {
            out.extend_from_slice(&imm_ieth::ieth_to_bytes(ieth));
        }
        if self.bth.opcode == Opcode::CNP {
            out.extend_from_slice(&[0; cnp::RESERVED_LENGTH]);
        }
    }

    /// A whole packet without its checksum: headers, `payload`, the pad of the BTH as zeros, and
    /// four bytes that [`icrc::PseudoHeader::seal`](crate::icrc::PseudoHeader::seal) fills. For
    /// tests and packets outside the hot path.
    pub fn emit_packet(&self, payload: &[u8], out: &mut Vec<u8>) {
        self.emit_into(out);
        out.extend_from_slice(payload);
        let trailer = usize::from(self.bth.pad & 3) + icrc::LENGTH;
        out.resize(out.len() + trailer, 0);
    }

    fn headers(&self) -> Headers {
        let mut headers = match self.bth.opcode {
            Opcode::CNP => Headers::of(&[Header::CnpReserved]),
            _ => Headers::EMPTY,
        };
        let present = [
            (self.rdeth.is_some(), Header::Rdeth),
            (self.xrceth.is_some(), Header::Xrceth),
            (self.deth.is_some(), Header::Deth),
            (self.feth.is_some(), Header::Feth),
            (self.reth.is_some(), Header::Reth),
            (self.atomic_eth.is_some(), Header::AtomicEth),
            (self.aeth.is_some(), Header::Aeth),
            (self.atomic_ack.is_some(), Header::AtomicAckEth),
            (self.immediate.is_some(), Header::Immediate),
            (self.ieth.is_some(), Header::Ieth),
        ];
        for (is_present, header) in present {
            if is_present {
                headers = headers.union(Headers::of(&[header]));
            }
        }
        headers
    }
}

#[cfg(test)]
mod tests;
