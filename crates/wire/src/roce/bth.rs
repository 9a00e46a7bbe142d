//! BTH, the base transport header: 12 bytes at the front of every packet.
//!
//! Read first: IBA 9.2. It says which operation, to which queue pair, with which PSN.

use core::ops::Range;

use crate::bytes::{header, read_u16, read_u24};
use crate::error::{Layer, ParseError};
use crate::field::{PKey, Psn, Qpn};
use crate::opcode::Opcode;

const OPCODE: usize = 0;
const FLAGS: usize = 1;
const PKEY: Range<usize> = 2..4;
/// FECN, BECN and six reserved bits: the one byte of the BTH that the ICRC does not cover.
pub(crate) const NOT_COVERED: usize = 4;
const DESTINATION: Range<usize> = 4..8; // the low 24 bits
const ACK_REQUEST: usize = 8;
const PSN: Range<usize> = 8..12; // the low 24 bits

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACKNOWLEDGE: u8 = 0x80;

/// The base transport header. Reserved bits are ignored when read and written as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver's completion is a solicited event.
    pub solicited: bool,
    /// M: the path state is Migrated. NICs send 1, rdma_rxe 0; without path migration it says
    /// nothing.
    pub migrated: bool,
    /// Bytes of pad after the payload, 0 to 3.
    pub pad: u8,
    /// Partition.
    pub pkey: PKey,
    /// Forward congestion notification; unused in RoCEv2.
    pub fecn: bool,
    /// Backward congestion notification: 1 in a CNP.
    pub becn: bool,
    /// Destination queue pair.
    pub destination: Qpn,
    /// A: the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 12;

    /// A header with all flags 0, no pad and the default partition.
    #[inline]
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// The header at the front of `bytes`. Refuses unknown opcodes before anything that depends on
    /// them, and any version but 0.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::from_bytes(header(bytes, Layer::Bth)?)
    }

    /// As [`parse`](Self::parse), from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Result<Self, ParseError> {
        let Some(opcode) = Opcode::from_byte(bytes[OPCODE]) else {
            let value = bytes[OPCODE].into();
            return Err(ParseError::unsupported(Layer::Bth, "opcode", value));
        };
        let flags = bytes[FLAGS];
        if flags & VERSION != 0 {
            let value = (flags & VERSION).into();
            return Err(ParseError::unsupported(Layer::Bth, "version", value));
        }
        Ok(Self {
            opcode,
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pad: (flags >> PAD_SHIFT) & 3,
            pkey: PKey(read_u16(&bytes[PKEY])),
            fecn: bytes[NOT_COVERED] & FECN != 0,
            becn: bytes[NOT_COVERED] & BECN != 0,
            destination: Qpn::truncated(read_u24(&bytes[DESTINATION])),
            ack_request: bytes[ACK_REQUEST] & ACKNOWLEDGE != 0,
            psn: Psn::truncated(read_u24(&bytes[PSN])),
        })
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[OPCODE] = self.opcode.byte();
        bytes[FLAGS] = flag(self.solicited, SOLICITED)
            | flag(self.migrated, MIGRATED)
            | ((self.pad & 3) << PAD_SHIFT);
        bytes[PKEY].copy_from_slice(&self.pkey.0.to_be_bytes());
        bytes[DESTINATION].copy_from_slice(&self.destination.get().to_be_bytes());
        bytes[NOT_COVERED] = flag(self.fecn, FECN) | flag(self.becn, BECN);
        bytes[PSN].copy_from_slice(&self.psn.get().to_be_bytes());
        bytes[ACK_REQUEST] = flag(self.ack_request, ACKNOWLEDGE);
        bytes
    }

    /// The pad that a payload of `length` bytes needs to end on a multiple of 4. spec: IBA 9.2
    #[inline]
    pub const fn pad_of(length: usize) -> u8 {
        (length.wrapping_neg() & 3) as u8
    }
}

#[inline]
const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_its_bit() {
        let plain = Bth::new(
            Opcode::RC_SEND_ONLY,
            Qpn::truncated(0x123456),
            Psn::truncated(0xabcdef),
        );
        assert_eq!(
            plain.to_bytes(),
            [4, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef]
        );
        type Set = fn(&mut Bth);
        let cases: [(Set, usize, u8); 7] = [
            (|b| b.solicited = true, 1, 0x80),
            (|b| b.migrated = true, 1, 0x40),
            (|b| b.pad = 3, 1, 0x30),
            (|b| b.fecn = true, 4, 0x80),
            (|b| b.becn = true, 4, 0x40),
            (|b| b.ack_request = true, 8, 0x80),
            (|b| b.pkey = PKey(0x7fff), 2, 0x7f),
        ];
        for (set, at, value) in cases {
            let mut bth = plain;
            set(&mut bth);
            let bytes = bth.to_bytes();
            assert_eq!(bytes[at], value, "byte {at}");
            assert_eq!(Bth::parse(&bytes), Ok(bth));
        }
    }

    #[test]
    fn refuses_unknown_opcodes_other_versions_and_short_input() {
        let good = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::default(), Psn::default()).to_bytes();
        for length in 0..Bth::LENGTH {
            assert!(Bth::parse(&good[..length]).is_err(), "{length} bytes");
        }
        let mut version_1 = good;
        version_1[1] = 1;
        let error = Bth::parse(&version_1).unwrap_err();
        assert_eq!((error.layer, error.field), (Layer::Bth, "version"));
        let mut unknown = good;
        unknown[0] = 0x1f;
        let error = Bth::parse(&unknown).unwrap_err();
        assert_eq!((error.layer, error.field), (Layer::Bth, "opcode"));
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncated(9));
        let mut bytes = bth.to_bytes();
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(Bth::parse(&bytes), Ok(bth));
    }

    #[test]
    fn pad_fills_to_a_multiple_of_four() {
        let pads: Vec<u8> = (0..6).map(Bth::pad_of).collect();
        assert_eq!(pads, [0, 3, 2, 1, 0, 3]);
    }
}
