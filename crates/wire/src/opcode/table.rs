//! The rows: what each operation is, which class has it, and their expansion to all 256 byte
//! values.
//!
//! Read first: IBA 9.2.1 (table 35). A new opcode is a new row in [`OPERATIONS`], a new bit in
//! [`CLASSES`], and a line in the test that writes the table out.

use super::header::{Header, Headers};
use super::{Attached, OpcodeInfo, Operation, PayloadRule, Place, Transport};

/// All rows, by the byte on the wire.
pub(super) static TABLE: [OpcodeInfo; 256] = table();

/// Byte by `[transport][operation][place][attached]`.
pub(super) static BY_MEANING: [[[[u8; 3]; 4]; 12]; 6] = by_meaning();

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

/// One transport class: its high bits, the operations it has, and what it puts before their
/// headers.
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
    const fn class(
        transport: Transport, high: u8, operations: u32,
        request: &'static [Header], response: &'static [Header],
    ) -> ClassRow {
        ClassRow { transport, high, operations, request, response }
    }
    [
        class(Transport::Rc, 0x00, up_to(0x14) | INVALIDATE | EXTENDED, &[], &[]),
        class(Transport::Uc, 0x20, up_to(0x0b), &[], &[]),
        class(Transport::Rd, 0x40, up_to(0x15) | EXTENDED, &[Rdeth, Deth], &[Rdeth]),
        class(Transport::Ud, 0x60, bit(0x04) | bit(0x05), &[Deth], &[]),
        class(Transport::Cnp, 0x80, 0, &[], &[]),
        class(Transport::Xrc, 0xa0, up_to(0x14) | INVALIDATE, &[Xrceth], &[]),
    ]
};

#[rustfmt::skip]
const OPERATIONS: [OperationRow; 26] = {
    use Attached::{Immediate as Imm, Invalidate as Inv, Nothing as No};
    use Header::{Aeth, AtomicAckEth, AtomicEth, Feth, Ieth, Immediate, Reth};
    use Operation::*;
    use PayloadRule::{ExactMtu, Exactly8, None, OneToMtu, ZeroToMtu};
    use Place::{First, Last, Middle, Only};
    const fn row(
        low: u8, name: &'static str, operation: Operation, place: Place, attached: Attached,
        headers: &'static [Header], payload: PayloadRule,
    ) -> OperationRow {
        OperationRow { low, name, operation, place, attached, headers, payload }
    }
    [
        row(0x00, "SEND_FIRST", Send, First, No, &[], ExactMtu),
        row(0x01, "SEND_MIDDLE", Send, Middle, No, &[], ExactMtu),
        row(0x02, "SEND_LAST", Send, Last, No, &[], OneToMtu),
        row(0x03, "SEND_LAST_WITH_IMMEDIATE", Send, Last, Imm, &[Immediate], OneToMtu),
        row(0x04, "SEND_ONLY", Send, Only, No, &[], ZeroToMtu),
        row(0x05, "SEND_ONLY_WITH_IMMEDIATE", Send, Only, Imm, &[Immediate], ZeroToMtu),
        row(0x06, "WRITE_FIRST", Write, First, No, &[Reth], ExactMtu),
        row(0x07, "WRITE_MIDDLE", Write, Middle, No, &[], ExactMtu),
        row(0x08, "WRITE_LAST", Write, Last, No, &[], OneToMtu),
        row(0x09, "WRITE_LAST_WITH_IMMEDIATE", Write, Last, Imm, &[Immediate], OneToMtu),
        row(0x0a, "WRITE_ONLY", Write, Only, No, &[Reth], ZeroToMtu),
        row(0x0b, "WRITE_ONLY_WITH_IMMEDIATE", Write, Only, Imm, &[Reth, Immediate], ZeroToMtu),
        row(0x0c, "READ_REQUEST", ReadRequest, Only, No, &[Reth], None),
        row(0x0d, "READ_RESPONSE_FIRST", ReadResponse, First, No, &[Aeth], ExactMtu),
        row(0x0e, "READ_RESPONSE_MIDDLE", ReadResponse, Middle, No, &[], ExactMtu),
        row(0x0f, "READ_RESPONSE_LAST", ReadResponse, Last, No, &[Aeth], OneToMtu),
        row(0x10, "READ_RESPONSE_ONLY", ReadResponse, Only, No, &[Aeth], ZeroToMtu),
        row(0x11, "ACKNOWLEDGE", Acknowledge, Only, No, &[Aeth], None),
        row(0x12, "ATOMIC_ACKNOWLEDGE", AtomicAcknowledge, Only, No, &[Aeth, AtomicAckEth], None),
        row(0x13, "COMPARE_SWAP", CompareSwap, Only, No, &[AtomicEth], None),
        row(0x14, "FETCH_ADD", FetchAdd, Only, No, &[AtomicEth], None),
        row(0x15, "RESYNC", Resync, Only, No, &[], None),
        row(0x16, "SEND_LAST_WITH_INVALIDATE", Send, Last, Inv, &[Ieth], OneToMtu),
        row(0x17, "SEND_ONLY_WITH_INVALIDATE", Send, Only, Inv, &[Ieth], ZeroToMtu),
        row(0x1c, "FLUSH", Flush, Only, No, &[Feth, Reth], None),
        row(0x1d, "ATOMIC_WRITE", AtomicWrite, Only, No, &[Reth], Exactly8),
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
pub(super) const BTH_LENGTH: usize = 12;

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

/// A byte that is no opcode: marks meanings without one.
const NONE_BYTE: u8 = 0xff;

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
