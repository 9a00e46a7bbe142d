//! The opcode table: what each opcode of the BTH is and which headers follow it.
//!
//! Read first: IBA 9.2.1 (table 35), A14 (XRC), A17.9 (CNP), A19 (FLUSH, ATOMIC WRITE).
//! The idea: the low five bits name an operation, the high three a transport class. `table.rs` says
//! both once and expands them at compile time to one row for each of the 256 byte values. Sender,
//! receiver, checks, decoder and tests read those rows.

use core::fmt;

use crate::field::Mtu;

mod header;
mod table;

pub use header::{Header, Headers};
use table::{BY_MEANING, TABLE};

/// A known opcode; made by [`Opcode::from_byte`] or [`Opcode::find`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// Transport class: bits 7:5 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram; decoded only.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification. spec: IBA A17.9
    Cnp,
    /// Extended reliable connection. spec: IBA A14
    Xrc,
}

/// What the message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "each variant is the standard's name of an operation"
)]
pub enum Operation {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    Resync,
    Flush,
    AtomicWrite,
    Cnp,
}

/// Where in its message the packet is. Operations of one packet are always `Only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "each variant is the standard's name of a place"
)]
pub enum Place {
    First,
    Middle,
    Last,
    Only,
}

/// What the last packet of a SEND or WRITE carries for the receiver's completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attached {
    /// Nothing.
    #[default]
    Nothing,
    /// Immediate data (ImmDt).
    Immediate,
    /// The R_Key of a region or window to invalidate (IETH).
    Invalidate,
}

/// How many bytes of payload an opcode may carry; pad not counted. spec: IBA C9-92, C9-94
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// No payload. [`Packet::parse`](crate::Packet::parse) holds this rule itself.
    None,
    /// Exactly one path MTU.
    ExactMtu,
    /// At least one byte, at most one path MTU.
    OneToMtu,
    /// At most one path MTU.
    ZeroToMtu,
    /// Exactly 8 bytes. spec: IBA oA19-28
    Exactly8,
}

impl PayloadRule {
    /// Whether `length` bytes obey the rule on a path of `mtu`.
    #[inline]
    pub const fn admits(self, length: usize, mtu: Mtu) -> bool {
        let mtu = mtu.bytes() as usize;
        match self {
            Self::None => length == 0,
            Self::ExactMtu => length == mtu,
            Self::OneToMtu => 1 <= length && length <= mtu,
            Self::ZeroToMtu => length <= mtu,
            Self::Exactly8 => length == 8,
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeInfo {
    /// Name without the transport, as `SEND_ONLY_WITH_IMMEDIATE`.
    pub name: &'static str,
    /// Transport class.
    pub transport: Transport,
    /// What the message does.
    pub operation: Operation,
    /// Place of the packet in its message.
    pub place: Place,
    /// Immediate data or a key to invalidate.
    pub attached: Attached,
    /// Extension headers.
    pub headers: Headers,
    /// Bytes of all extension headers.
    pub extension_length: u8,
    /// Bytes of payload.
    pub payload: PayloadRule,
    /// Offset of each header from the BTH's first byte, by `Header as usize`; 0 if absent.
    offsets: [u8; Header::ALL.len()],
    /// False for a byte value that is no opcode.
    known: bool,
}

impl Opcode {
    /// The opcode of a byte; `None` if the standard defines none.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        if TABLE[byte as usize].known {
            Some(Self(byte))
        } else {
            None
        }
    }

    /// For senders: the opcode that does `operation` at `place`; `None` if there is none.
    #[inline]
    pub const fn find(
        transport: Transport,
        operation: Operation,
        place: Place,
        attached: Attached,
    ) -> Option<Self> {
        let byte =
            BY_MEANING[transport as usize][operation as usize][place as usize][attached as usize];
        Self::from_byte(byte)
    }

    /// Every opcode there is, in the order of their bytes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(Self::from_byte)
    }

    /// The byte on the wire.
    #[inline]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Its row of the table.
    #[inline]
    pub const fn info(self) -> &'static OpcodeInfo {
        &TABLE[self.0 as usize]
    }

    /// Transport class.
    #[inline]
    pub const fn transport(self) -> Transport {
        self.info().transport
    }

    /// What the message does.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.info().operation
    }

    /// Place of the packet in its message.
    #[inline]
    pub const fn place(self) -> Place {
        self.info().place
    }

    /// Extension headers after the BTH.
    #[inline]
    pub const fn headers(self) -> Headers {
        self.info().headers
    }

    /// Rule of the payload's length.
    #[inline]
    pub const fn payload_rule(self) -> PayloadRule {
        self.info().payload
    }

    /// Where `header` is, counted from the BTH's first byte; `None` if this opcode has none.
    #[inline]
    pub const fn offset_of(self, header: Header) -> Option<usize> {
        match self.info().offsets[header as usize] {
            0 => None,
            offset => Some(offset as usize),
        }
    }

    /// Whether this goes from responder to requester (a READ response, an acknowledgement).
    #[inline]
    pub const fn is_response(self) -> bool {
        self.operation().is_response()
    }

    /// Whether this is the first packet of a message (FIRST or ONLY).
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(self.place(), Place::First | Place::Only)
    }

    /// Whether this is the final packet of a message (LAST or ONLY).
    #[inline]
    pub const fn ends_message(self) -> bool {
        matches!(self.place(), Place::Last | Place::Only)
    }
}

impl Operation {
    /// Whether this goes from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge
        )
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
        })
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport() {
            Transport::Cnp => f.write_str(self.info().name),
            transport => write!(f, "{transport} {}", self.info().name),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {self})", self.0)
    }
}

macro_rules! named_opcodes {
    ($($name:ident $byte:literal)*) => {
        /// Opcodes by name, for tests and for matching. Senders use [`Opcode::find`].
        impl Opcode { $(
            #[doc = concat!("`", stringify!($byte), "`")]
            pub const $name: Self = match Self::from_byte($byte) {
                Some(opcode) => opcode,
                // ok: met at compile time or never
                None => panic!("not in the table"), // ok: at compile time or never
            };
        )* }
    };
}

named_opcodes! {
    RC_SEND_FIRST 0x00
    RC_SEND_MIDDLE 0x01
    RC_SEND_LAST 0x02
    RC_SEND_LAST_WITH_IMMEDIATE 0x03
    RC_SEND_ONLY 0x04
    RC_SEND_ONLY_WITH_IMMEDIATE 0x05
    RC_WRITE_FIRST 0x06
    RC_WRITE_MIDDLE 0x07
    RC_WRITE_LAST 0x08
    RC_WRITE_LAST_WITH_IMMEDIATE 0x09
    RC_WRITE_ONLY 0x0a
    RC_WRITE_ONLY_WITH_IMMEDIATE 0x0b
    RC_READ_REQUEST 0x0c
    RC_READ_RESPONSE_FIRST 0x0d
    RC_READ_RESPONSE_MIDDLE 0x0e
    RC_READ_RESPONSE_LAST 0x0f
    RC_READ_RESPONSE_ONLY 0x10
    RC_ACKNOWLEDGE 0x11
    RC_ATOMIC_ACKNOWLEDGE 0x12
    RC_COMPARE_SWAP 0x13
    RC_FETCH_ADD 0x14
    RC_SEND_LAST_WITH_INVALIDATE 0x16
    RC_SEND_ONLY_WITH_INVALIDATE 0x17
    RC_FLUSH 0x1c
    RC_ATOMIC_WRITE 0x1d
    UC_SEND_FIRST 0x20
    UC_SEND_ONLY 0x24
    UC_WRITE_FIRST 0x26
    UC_WRITE_ONLY 0x2a
    UD_SEND_ONLY 0x64
    UD_SEND_ONLY_WITH_IMMEDIATE 0x65
    CNP 0x81
}

#[cfg(test)]
mod tests;
