//! The opcode table: what each opcode of the BTH is and which headers follow it.
//!
//! Read first: IBA 9.2.1 (table 35), A14 (XRC), A17.9 (CNP), A19 (FLUSH, ATOMIC WRITE).
//! The idea: the low five bits name an operation, the high three a transport class. `OPERATIONS`
//! and `CLASSES` say both once; they are expanded at compile time to one row for each of the 256
//! byte values. Sender, receiver, checks, decoder and tests read those rows.

use core::fmt;

use crate::field::Mtu;

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

/// The extension headers, in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "each variant is the standard's name of a header"
)]
pub enum Header {
    Rdeth,
    Xrceth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    Immediate,
    Ieth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
}

impl Header {
    /// All of them, in their order on the wire.
    pub const ALL: [Self; 11] = [
        Self::Rdeth,
        Self::Xrceth,
        Self::Deth,
        Self::Feth,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::Immediate,
        Self::Ieth,
        Self::CnpReserved,
    ];

    /// Bytes on the wire.
    pub const fn length(self) -> usize {
        match self {
            Self::Rdeth | Self::Xrceth | Self::Feth => 4,
            Self::Aeth | Self::Immediate | Self::Ieth => 4,
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Reth | Self::CnpReserved => 16,
            Self::AtomicEth => 28,
        }
    }
}

/// A set of extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Headers(u16);

impl Headers {
    /// No extension header.
    pub const EMPTY: Self = Self(0);

    /// The set of `headers`.
    pub const fn of(headers: &[Header]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < headers.len() {
            bits |= 1 << headers[index] as u16;
            index += 1;
        }
        Self(bits)
    }

    /// Whether `header` is in the set.
    #[inline]
    pub const fn contains(self, header: Header) -> bool {
        self.0 & (1 << header as u16) != 0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Bytes of all headers of the set on the wire.
    pub const fn length(self) -> usize {
        let (mut length, mut index) = (0, 0);
        while index < Header::ALL.len() {
            if self.contains(Header::ALL[index]) {
                length += Header::ALL[index].length();
            }
            index += 1;
        }
        length
    }

    /// The headers of the set, in their order on the wire.
    pub fn iter(self) -> impl Iterator<Item = Header> {
        Header::ALL
            .into_iter()
            .filter(move |&header| self.contains(header))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
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
                None => panic!("not in the table"), // at compile time
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

/// One operation: what the low five bits of an opcode mean in every class that has them.
struct OperationRow {
    low: u8,
    name: &'static str,
    operation: Operation,
    place: Place,
    attached: Attached,
    headers: &'static [Header],
    payload: PayloadRule,
}

/// One transport class: its high bits, the operations it has, and what it puts before their headers.
struct ClassRow {
    transport: Transport,
    high: u8,
    /// Bit n: the operation with low bits n exists.
    operations: u32,
    /// Headers before those of a request.
    request: &'static [Header],
    /// Headers before those of a response.
    response: &'static [Header],
}

#[rustfmt::skip]
const CLASSES: [ClassRow; 6] = {
    use Header::{Deth, Rdeth, Xrceth};
    /// Operations 0x00 to `last`.
    const fn up_to(last: u8) -> u32 { (2 << last) - 1 }
    /// One operation.
    const fn bit(low: u8) -> u32 { 1 << low }
    const EXTENDED: u32 = bit(0x1c) | bit(0x1d); // FLUSH, ATOMIC WRITE
    const INVALIDATE: u32 = bit(0x16) | bit(0x17);
    [
        ClassRow { transport: Transport::Rc,  high: 0x00, operations: up_to(0x14) | INVALIDATE | EXTENDED, request: &[], response: &[] },
        ClassRow { transport: Transport::Uc,  high: 0x20, operations: up_to(0x0b), request: &[], response: &[] },
        ClassRow { transport: Transport::Rd,  high: 0x40, operations: up_to(0x15) | EXTENDED, request: &[Rdeth, Deth], response: &[Rdeth] },
        ClassRow { transport: Transport::Ud,  high: 0x60, operations: bit(0x04) | bit(0x05), request: &[Deth], response: &[] },
        ClassRow { transport: Transport::Cnp, high: 0x80, operations: 0, request: &[], response: &[] },
        ClassRow { transport: Transport::Xrc, high: 0xa0, operations: up_to(0x14) | INVALIDATE, request: &[Xrceth], response: &[] },
    ]
};

#[rustfmt::skip]
const OPERATIONS: [OperationRow; 26] = {
    use Attached::{Immediate as Imm, Invalidate as Inv, Nothing};
    use Header::{Aeth, AtomicAckEth, AtomicEth, Feth, Ieth, Immediate, Reth};
    use Operation as Op;
    use PayloadRule::{ExactMtu, Exactly8, None, OneToMtu, ZeroToMtu};
    use Place::{First, Last, Middle, Only};
    const fn row(
        low: u8, name: &'static str, operation: Operation, place: Place, attached: Attached,
        headers: &'static [Header], payload: PayloadRule,
    ) -> OperationRow {
        OperationRow { low, name, operation, place, attached, headers, payload }
    }
    [
        row(0x00, "SEND_FIRST",                Op::Send,              First,  Nothing, &[],                   ExactMtu),
        row(0x01, "SEND_MIDDLE",               Op::Send,              Middle, Nothing, &[],                   ExactMtu),
        row(0x02, "SEND_LAST",                 Op::Send,              Last,   Nothing, &[],                   OneToMtu),
        row(0x03, "SEND_LAST_WITH_IMMEDIATE",  Op::Send,              Last,   Imm,     &[Immediate],          OneToMtu),
        row(0x04, "SEND_ONLY",                 Op::Send,              Only,   Nothing, &[],                   ZeroToMtu),
        row(0x05, "SEND_ONLY_WITH_IMMEDIATE",  Op::Send,              Only,   Imm,     &[Immediate],          ZeroToMtu),
        row(0x06, "WRITE_FIRST",               Op::Write,             First,  Nothing, &[Reth],               ExactMtu),
        row(0x07, "WRITE_MIDDLE",              Op::Write,             Middle, Nothing, &[],                   ExactMtu),
        row(0x08, "WRITE_LAST",                Op::Write,             Last,   Nothing, &[],                   OneToMtu),
        row(0x09, "WRITE_LAST_WITH_IMMEDIATE", Op::Write,             Last,   Imm,     &[Immediate],          OneToMtu),
        row(0x0a, "WRITE_ONLY",                Op::Write,             Only,   Nothing, &[Reth],               ZeroToMtu),
        row(0x0b, "WRITE_ONLY_WITH_IMMEDIATE", Op::Write,             Only,   Imm,     &[Reth, Immediate],    ZeroToMtu),
        row(0x0c, "READ_REQUEST",              Op::ReadRequest,       Only,   Nothing, &[Reth],               None),
        row(0x0d, "READ_RESPONSE_FIRST",       Op::ReadResponse,      First,  Nothing, &[Aeth],               ExactMtu),
        row(0x0e, "READ_RESPONSE_MIDDLE",      Op::ReadResponse,      Middle, Nothing, &[],                   ExactMtu),
        row(0x0f, "READ_RESPONSE_LAST",        Op::ReadResponse,      Last,   Nothing, &[Aeth],               OneToMtu),
        row(0x10, "READ_RESPONSE_ONLY",        Op::ReadResponse,      Only,   Nothing, &[Aeth],               ZeroToMtu),
        row(0x11, "ACKNOWLEDGE",               Op::Acknowledge,       Only,   Nothing, &[Aeth],               None),
        row(0x12, "ATOMIC_ACKNOWLEDGE",        Op::AtomicAcknowledge, Only,   Nothing, &[Aeth, AtomicAckEth], None),
        row(0x13, "COMPARE_SWAP",              Op::CompareSwap,       Only,   Nothing, &[AtomicEth],          None),
        row(0x14, "FETCH_ADD",                 Op::FetchAdd,          Only,   Nothing, &[AtomicEth],          None),
        row(0x15, "RESYNC",                    Op::Resync,            Only,   Nothing, &[],                   None),
        row(0x16, "SEND_LAST_WITH_INVALIDATE", Op::Send,              Last,   Inv,     &[Ieth],               OneToMtu),
        row(0x17, "SEND_ONLY_WITH_INVALIDATE", Op::Send,              Only,   Inv,     &[Ieth],               ZeroToMtu),
        row(0x1c, "FLUSH",                     Op::Flush,             Only,   Nothing, &[Feth, Reth],         None),
        row(0x1d, "ATOMIC_WRITE",              Op::AtomicWrite,       Only,   Nothing, &[Reth],               Exactly8),
    ]
};

/// The congestion notification packet: the one operation of its class. spec: IBA A17.9.3
const CNP: (u8, OperationRow) = (
    0x81,
    OperationRow {
        low: 0x01,
        name: "CNP",
        operation: Operation::Cnp,
        place: Place::Only,
        attached: Attached::Nothing,
        headers: &[Header::CnpReserved],
        payload: PayloadRule::None,
    },
);

/// Bytes before the first extension header: the BTH.
const BTH_LENGTH: usize = 12;

/// The row of a byte value that is no opcode.
const NO_OPCODE: OpcodeInfo = OpcodeInfo {
    name: "",
    transport: Transport::Rc,
    operation: Operation::Send,
    place: Place::Only,
    attached: Attached::Nothing,
    headers: Headers::EMPTY,
    extension_length: 0,
    payload: PayloadRule::None,
    offsets: [0; Header::ALL.len()],
    known: false,
};

/// All rows, by the byte on the wire.
static TABLE: [OpcodeInfo; 256] = table();

/// A byte that is no opcode: marks meanings without one.
const NONE_BYTE: u8 = 0xff;

/// Byte by `[transport][operation][place][attached]`.
static BY_MEANING: [[[[u8; 3]; 4]; 12]; 6] = by_meaning();

const fn table() -> [OpcodeInfo; 256] {
    let mut table = [NO_OPCODE; 256];
    let mut class_index = 0;
    while class_index < CLASSES.len() {
        let class = &CLASSES[class_index];
        let mut index = 0;
        while index < OPERATIONS.len() {
            let operation = &OPERATIONS[index];
            if class.operations & (1 << operation.low) != 0 {
                table[(class.high | operation.low) as usize] = expand(class, operation);
            }
            index += 1;
        }
        class_index += 1;
    }
    table[CNP.0 as usize] = expand(&CLASSES[Transport::Cnp as usize], &CNP.1);
    table
}

const fn expand(class: &ClassRow, row: &OperationRow) -> OpcodeInfo {
    let before = if row.operation.is_response() {
        class.response
    } else {
        class.request
    };
    let headers = Headers::of(before).union(Headers::of(row.headers));
    let mut offsets = [0; Header::ALL.len()];
    let mut offset = BTH_LENGTH;
    let mut index = 0;
    while index < Header::ALL.len() {
        if headers.contains(Header::ALL[index]) {
            offsets[index] = offset as u8;
            offset += Header::ALL[index].length();
        }
        index += 1;
    }
    OpcodeInfo {
        name: row.name,
        transport: class.transport,
        operation: row.operation,
        place: row.place,
        attached: row.attached,
        headers,
        extension_length: headers.length() as u8,
        payload: row.payload,
        offsets,
        known: true,
    }
}

const fn by_meaning() -> [[[[u8; 3]; 4]; 12]; 6] {
    let table = table();
    let mut found = [[[[NONE_BYTE; 3]; 4]; 12]; 6];
    let mut byte = 0;
    while byte < table.len() {
        let row = &table[byte];
        if row.known {
            found[row.transport as usize][row.operation as usize][row.place as usize]
                [row.attached as usize] = byte as u8;
        }
        byte += 1;
    }
    found
}

#[cfg(test)]
mod tests;
