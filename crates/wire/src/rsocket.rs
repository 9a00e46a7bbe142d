//! What rsockets say to each other: private data, the words of WRITEs, and the headers of
//! datagrams.
//!
//! Read first: `docs/rsocket` of rdma-core. A stream writes into the peer's receive buffer and into
//! a short list of free pieces of it, the peer's *target list*. Each WRITE carries a word as
//! immediate data that says what it was ([`Message`]). What a stream writes into the memory of the
//! peer has the byte order of the peer's host ([`ConnectionData::is_big_endian`]); everything else
//! is big-endian.

use core::ops::Range;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{header, read_u16, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::{MemoryKey, Qpn};

/// The version of streams that there is.
const VERSION: u8 = 1;
const FLAG_BIG_ENDIAN: u8 = 1 << 0;
const FLAG_IOMAP: u8 = 1 << 1;

/// Pieces of the target list of every implementation that there is.
pub const TARGETS: u32 = 2;

/// Memory of one side that the other may write: address, key, length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// First byte, in the memory of its owner.
    pub address: u64,
    /// R_Key.
    pub key: MemoryKey,
    /// Bytes; of a list, entries.
    pub length: u32,
}

impl Target {
    /// Bytes in private data and in a target list.
    pub const LENGTH: usize = 16;

    fn from_be_bytes(bytes: &[u8]) -> Self {
        Self {
            address: read_u64(&bytes[..8]),
            key: MemoryKey(read_u32(&bytes[8..12])),
            length: read_u32(&bytes[12..16]),
        }
    }

    fn to_be_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// As an entry of a target list on a host of that byte order.
    pub fn to_bytes(self, is_big_endian: bool) -> [u8; Self::LENGTH] {
        let mut bytes = self.to_be_bytes();
        if !is_big_endian {
            for field in [0..8, 8..12, 12..16] {
                bytes[field].reverse();
            }
        }
        bytes
    }

    /// An entry of the own target list.
    pub fn from_own_bytes(mut bytes: [u8; Self::LENGTH]) -> Self {
        if cfg!(target_endian = "little") {
            for field in [0..8, 8..12, 12..16] {
                bytes[field].reverse();
            }
        }
        Self::from_be_bytes(&bytes)
    }
}

/// A piece of memory that the peer may write at an offset of the owner's choice: an entry of an
/// iomap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// What the peer names its first byte.
    pub offset: u64,
    /// The memory.
    pub target: Target,
}

impl Mapping {
    /// Bytes in an iomap.
    pub const LENGTH: usize = 24;

    /// As an entry of the iomap on a host of that byte order.
    pub fn to_bytes(self, is_big_endian: bool) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let offset = if is_big_endian {
            self.offset.to_be_bytes()
        } else {
            self.offset.to_le_bytes()
        };
        bytes[..8].copy_from_slice(&offset);
        bytes[8..].copy_from_slice(&self.target.to_bytes(is_big_endian));
        bytes
    }

    /// An entry of the own iomap.
    pub fn from_own_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let (mut offset, mut target) = ([0; 8], [0; Target::LENGTH]);
        offset.copy_from_slice(&bytes[..8]);
        target.copy_from_slice(&bytes[8..]);
        Self {
            offset: u64::from_ne_bytes(offset),
            target: Target::from_own_bytes(target),
        }
    }
}

/// The private data of REQ and REP: what each side needs to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionData {
    /// Byte order of the side that says this.
    pub is_big_endian: bool,
    /// Messages that may be sent to it until it says more.
    pub credits: u16,
    /// Entries of its iomap, behind its target list; `None` if it does not know of iomaps.
    pub iomap: Option<u16>,
    /// Its target list.
    pub targets: Target,
    /// The first piece of its receive buffer.
    pub buffer: Target,
}

const CREDITS: Range<usize> = 2..4;
const IOMAP: usize = 7;
const LIST: Range<usize> = 8..24;
const BUFFER: Range<usize> = 24..40;

impl ConnectionData {
    /// Bytes on the wire.
    pub const LENGTH: usize = 40;

    /// What the peer says. Refuses other versions.
    pub fn parse(private_data: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; Self::LENGTH] = header(private_data, Layer::Rsocket)?;
        if bytes[0] != VERSION {
            let value = bytes[0].into();
            return Err(ParseError::unsupported(Layer::Rsocket, "version", value));
        }
        let has = |flag| bytes[1] & flag != 0;
        Ok(Self {
            is_big_endian: has(FLAG_BIG_ENDIAN),
            credits: read_u16(&bytes[CREDITS]),
            iomap: has(FLAG_IOMAP).then(|| entries(bytes[IOMAP])),
            targets: Target::from_be_bytes(&bytes[LIST]),
            buffer: Target::from_be_bytes(&bytes[BUFFER]),
        })
    }

    /// The bytes of the private data.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = VERSION;
        if self.is_big_endian {
            bytes[1] |= FLAG_BIG_ENDIAN;
        }
        if let Some(count) = self.iomap {
            bytes[1] |= FLAG_IOMAP;
            bytes[IOMAP] = scale(count);
        }
        bytes[CREDITS].copy_from_slice(&self.credits.to_be_bytes());
        bytes[LIST].copy_from_slice(&self.targets.to_be_bytes());
        bytes[BUFFER].copy_from_slice(&self.buffer.to_be_bytes());
        bytes
    }
}

/// A number of iomap entries in a byte: up to 128 as it is, above in steps of 256.
const fn scale(count: u16) -> u8 {
    if count <= 128 {
        count as u8
    } else {
        0x80 | (count >> 8) as u8
    }
}

const fn entries(scaled: u8) -> u16 {
    if scaled <= 128 {
        scaled as u16
    } else {
        ((scaled & 0x7f) as u16) << 8
    }
}

/// The number of iomap entries nearest below `count` that a byte can say.
pub const fn sayable_entries(count: u16) -> u16 {
    entries(scale(count))
}

/// The word of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes were written to the end of the data.
    Data(u32),
    /// Messages up to this one in sequence may be sent. The next entry of the target list may have
    /// been written.
    Credit(u16),
    /// An entry of the iomap was written.
    Iomap(u16),
    /// Nothing more will be sent or received.
    Disconnect,
    /// The peer is there.
    KeepAlive,
    /// Nothing more will be sent.
    Shutdown,
}

const OPERATION_SHIFT: u32 = 29;
const OPERATION_DATA: u32 = 0;
const OPERATION_CREDIT: u32 = 4;
const OPERATION_IOMAP: u32 = 6;
const OPERATION_CONTROL: u32 = 7;
const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_KEEP_ALIVE: u32 = 1;
const CONTROL_SHUTDOWN: u32 = 2;

/// The most bytes that one word can speak of.
pub const DATA_MAX: u32 = (1 << OPERATION_SHIFT) - 1;

impl Message {
    /// What immediate data says; `None` for words that nobody has defined.
    pub fn from_immediate(bytes: [u8; 4]) -> Option<Self> {
        let word = u32::from_be_bytes(bytes);
        let data = word & DATA_MAX;
        match (word >> OPERATION_SHIFT, data) {
            (OPERATION_DATA, length) => Some(Self::Data(length)),
            // the sequence goes on above 16 bits in some, and only those count
            (OPERATION_CREDIT, sequence) => Some(Self::Credit(sequence as u16)),
            (OPERATION_IOMAP, index) => Some(Self::Iomap(index as u16)),
            (OPERATION_CONTROL, CONTROL_DISCONNECT) => Some(Self::Disconnect),
            (OPERATION_CONTROL, CONTROL_KEEP_ALIVE) => Some(Self::KeepAlive),
            (OPERATION_CONTROL, CONTROL_SHUTDOWN) => Some(Self::Shutdown),
            _ => None,
        }
    }

    /// The immediate data. Lengths are [`DATA_MAX`] at most.
    pub fn to_immediate(self) -> [u8; 4] {
        let (operation, data) = match self {
            Self::Data(length) => (OPERATION_DATA, length & DATA_MAX),
            Self::Credit(sequence) => (OPERATION_CREDIT, sequence.into()),
            Self::Iomap(index) => (OPERATION_IOMAP, index.into()),
            Self::Disconnect => (OPERATION_CONTROL, CONTROL_DISCONNECT),
            Self::KeepAlive => (OPERATION_CONTROL, CONTROL_KEEP_ALIVE),
            Self::Shutdown => (OPERATION_CONTROL, CONTROL_SHUTDOWN),
        };
        (operation << OPERATION_SHIFT | data).to_be_bytes()
    }
}

/// In front of a datagram between queue pairs: where it comes from, in words of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Address and UDP port of the sender.
    pub source: SocketAddr,
}

impl DatagramHeader {
    /// Bytes of the longer one.
    pub const LENGTH_MAX: usize = Self::V6_LENGTH;

    const V4_LENGTH: usize = 8;
    const V6_LENGTH: usize = 24;

    /// The header at the front of `bytes`, and how long it is.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let [version, length]: &[u8; 2] = header(bytes, Layer::Rsocket)?;
        let address = |start: usize| read_u32(&bytes[start..start + 4]).to_be_bytes();
        match (*version, usize::from(*length)) {
            (4, Self::V4_LENGTH) => {
                let bytes: &[u8; Self::V4_LENGTH] = header(bytes, Layer::Rsocket)?;
                let source = (address(4), read_u16(&bytes[2..4])).into();
                Ok((Self { source }, bytes.len()))
            }
            (6, Self::V6_LENGTH) => {
                let bytes: &[u8; Self::V6_LENGTH] = header(bytes, Layer::Rsocket)?;
                let mut octets = [0; 16];
                octets.copy_from_slice(&bytes[8..]);
                let (port, flow) = (read_u16(&bytes[2..4]), read_u32(&bytes[4..8]));
                let source = SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, 0).into();
                Ok((Self { source }, bytes.len()))
            }
            (version, _) => Err(ParseError::unsupported(
                Layer::Rsocket,
                "datagram version",
                version.into(),
            )),
        }
    }

    /// Appends the header.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let port = self.source.port().to_be_bytes();
        match self.source {
            SocketAddr::V4(v4) => {
                out.extend([4, Self::V4_LENGTH as u8]);
                out.extend(port);
                out.extend(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                out.extend([6, Self::V6_LENGTH as u8]);
                out.extend(port);
                out.extend(v6.flowinfo().to_be_bytes());
                out.extend(v6.ip().octets());
            }
        }
    }
}

/// In front of a datagram between UDP sockets, by which queue pairs find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Data of the program follow; without it this is the answer to such a datagram.
    pub has_data: bool,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's address.
    pub address: IpAddr,
}

const UDP_TAG: u32 = 0x5555_5555;

impl UdpHeader {
    const V4_LENGTH: usize = 16;
    const V6_LENGTH: usize = 28;
    const FIXED: usize = 12;

    /// The header at the front of `bytes`, and how long it is.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let fixed: &[u8; Self::FIXED] = header(bytes, Layer::Rsocket)?;
        let unsupported = |field, value| Err(ParseError::unsupported(Layer::Rsocket, field, value));
        if read_u32(&fixed[..4]) != UDP_TAG {
            return unsupported("UDP tag", read_u32(&fixed[..4]));
        }
        let has_data = match u32::from(fixed[5]) {
            OPERATION_DATA => true,
            OPERATION_CONTROL => false,
            other => return unsupported("UDP operation", other),
        };
        let (address, length) = match (fixed[4], usize::from(fixed[6])) {
            (4, Self::V4_LENGTH) => {
                let bytes: &[u8; Self::V4_LENGTH] = header(bytes, Layer::Rsocket)?;
                let octets = read_u32(&bytes[Self::FIXED..]).to_be_bytes();
                (IpAddr::from(octets), bytes.len())
            }
            (6, Self::V6_LENGTH) => {
                let bytes: &[u8; Self::V6_LENGTH] = header(bytes, Layer::Rsocket)?;
                let mut octets = [0; 16];
                octets.copy_from_slice(&bytes[Self::FIXED..]);
                (IpAddr::from(octets), bytes.len())
            }
            (version, _) => return unsupported("UDP version", version.into()),
        };
        let qpn = Qpn::truncated(read_u32(&fixed[8..12]) & 0xff_ffff);
        Ok((
            Self {
                has_data,
                qpn,
                address,
            },
            length,
        ))
    }

    /// Appends the header.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let operation = if self.has_data {
            OPERATION_DATA
        } else {
            OPERATION_CONTROL
        };
        let (version, length) = match self.address {
            IpAddr::V4(_) => (4, Self::V4_LENGTH),
            IpAddr::V6(_) => (6, Self::V6_LENGTH),
        };
        out.extend(UDP_TAG.to_be_bytes());
        out.extend([version, operation as u8, length as u8, 0]);
        out.extend(self.qpn.get().to_be_bytes());
        match self.address {
            IpAddr::V4(v4) => out.extend(v4.octets()),
            IpAddr::V6(v6) => out.extend(v6.octets()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_private_data_of_a_kernels_peer() {
        // of the REQ in rxe-rsocket-write-imm.pcap
        let bytes: [u8; ConnectionData::LENGTH] = [
            1, 2, 0x01, 0x80, 0, 0, 0, 0, 0, 0, 0x7f, 0x5b, 0xf4, 0, 0x20, 0, 0, 0, 0x23, 0x73, 0,
            0, 0, 2, 0, 0, 0x7f, 0x5b, 0xfb, 0x35, 0xa0, 0, 0, 0, 0x24, 0x67, 0, 8, 0, 0,
        ];
        let data = ConnectionData {
            is_big_endian: false,
            credits: 384,
            iomap: Some(0),
            targets: Target {
                address: 0x7f5b_f400_2000,
                key: MemoryKey(0x2373),
                length: TARGETS,
            },
            buffer: Target {
                address: 0x7f5b_fb35_a000,
                key: MemoryKey(0x2467),
                length: 1 << 19,
            },
        };
        assert_eq!(ConnectionData::parse(&bytes), Ok(data));
        assert_eq!(data.to_bytes(), bytes);
        assert!(ConnectionData::parse(&bytes[..39]).is_err());
        let mut other = bytes;
        other[0] = 2;
        assert!(ConnectionData::parse(&other).is_err());
    }

    #[test]
    fn memory_is_written_in_the_order_of_its_owner() {
        let mapping = Mapping {
            offset: 0x0102_0304_0506_0708,
            target: Target {
                address: 0x1112_1314_1516_1718,
                key: MemoryKey(0x2122_2324),
                length: 0x3132_3334,
            },
        };
        let big = mapping.to_bytes(true);
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
            0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
        ];
        assert_eq!(big, expected);
        let little = mapping.to_bytes(false);
        assert_eq!(little[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(little[16..20], [0x24, 0x23, 0x22, 0x21]);
        let own = mapping.to_bytes(cfg!(target_endian = "big"));
        assert_eq!(Mapping::from_own_bytes(own), mapping);
    }

    #[test]
    fn numbers_of_entries_fit_a_byte() {
        for (count, said) in [
            (0, 0),
            (1, 1),
            (128, 128),
            (129, 128),
            (256, 256),
            (1000, 768),
            (u16::MAX, 0x7f00),
        ] {
            assert_eq!(sayable_entries(count), said, "{count}");
        }
    }

    #[test]
    fn words_survive_and_unknown_ones_are_none() {
        let all = [
            (Message::Data(100), 100),
            (Message::Data(DATA_MAX), DATA_MAX),
            (Message::Credit(384), 0x8000_0180),
            (Message::Iomap(7), 0xc000_0007),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, word) in all {
            assert_eq!(message.to_immediate(), u32::to_be_bytes(word));
            assert_eq!(
                Message::from_immediate(u32::to_be_bytes(word)),
                Some(message)
            );
        }
        for word in [
            0x2000_0000,
            0x4000_0001,
            0x6000_0000,
            0xa000_0000,
            0xe000_0003_u32,
        ] {
            assert_eq!(
                Message::from_immediate(word.to_be_bytes()),
                None,
                "{word:#x}"
            );
        }
        // a sequence that its sender has not cut to 16 bits
        assert_eq!(
            Message::from_immediate(0x8001_0002_u32.to_be_bytes()),
            Some(Message::Credit(2))
        );
    }

    #[test]
    fn headers_of_datagrams_survive() {
        for text in ["10.0.0.1:7174", "[fd77::1]:7174"] {
            let source: SocketAddr = text.parse().unwrap();
            let mut bytes = Vec::new();
            DatagramHeader { source }.emit(&mut bytes);
            let length = bytes.len();
            bytes.extend(*b"data");
            let parsed = DatagramHeader::parse(&bytes);
            assert_eq!(parsed, Ok((DatagramHeader { source }, length)));
            for cut in 0..length {
                assert!(DatagramHeader::parse(&bytes[..cut]).is_err());
            }

            let header = UdpHeader {
                has_data: source.is_ipv4(),
                qpn: Qpn::truncated(0x12_3456),
                address: source.ip(),
            };
            let mut bytes = Vec::new();
            header.emit(&mut bytes);
            assert_eq!(UdpHeader::parse(&bytes), Ok((header, bytes.len())));
            for cut in 0..bytes.len() {
                assert!(UdpHeader::parse(&bytes[..cut]).is_err());
            }
            bytes[0] = 0;
            assert!(UdpHeader::parse(&bytes).is_err());
        }
    }
}
