//! Management datagrams of connection management: 256 bytes from queue pair 1 to queue pair 1.
//!
//! Read first: IBA 13.4 for the header that all have, 12.6 for the messages. The idea: a message
//! is a struct whose definition *is* its table in the standard; see `layout.rs`. What is read and
//! written again differs in reserved bits at most ([`Message::value_bits`]).

mod alternate;
mod connect;
mod display;
mod field;
mod layout;
mod private_data;
mod sidr;
mod teardown;
#[cfg(test)]
mod tests;

pub use alternate::{Apr, Lap};
pub use connect::{Mra, Rej, Rep, Req, RequestPath, Rtu};
pub use field::{
    Answered, ApStatus, CommId, Guid, PortSpace, RejectReason, ServiceId, SidrStatus,
    TransactionId, TransportService,
};
pub use layout::{Bits, Padded};
pub use private_data::CmaHeader;
pub use sidr::{SidrRep, SidrReq};
pub use teardown::{Drep, Dreq};

use core::ops::Range;

use crate::bytes::{read_u16, read_u32, read_u64};
use crate::error::{Layer, ParseError};
use crate::field::{Psn, QKey, Qpn};
use crate::opcode::Opcode;
use crate::roce::bth::Bth;
use crate::roce::deth::Deth;
use crate::roce::packet::{HeaderRepr, Packet};

use layout::Field;

/// The Q_Key of queue pair 1. spec: IBA 10.2.5
pub const GSI_QKEY: QKey = QKey(0x8001_0000);

const BASE_VERSION: usize = 0;
const CLASS: usize = 1;
const CLASS_VERSION: usize = 2;
const METHOD: usize = 3;
const TRANSACTION: Range<usize> = 8..16;
const ATTRIBUTE: Range<usize> = 16..18;
const MODIFIER: Range<usize> = 20..24;
const BODY: Range<usize> = 24..256;

/// What these bytes have in every message of connection management: base version 1, class 7 in
/// version 2, method Send in both directions. spec: IBA 13.4.3, 16.7.1
const FIXED: [(usize, &str, u8); 4] = [
    (BASE_VERSION, "base version", 1),
    (CLASS, "class", 7),
    (CLASS_VERSION, "class version", 2),
    (METHOD, "method", 3),
];

/// A management datagram of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Which exchange it belongs to.
    pub transaction: TransactionId,
    /// The attribute modifier: 0, or a vendor's enhancements.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Bytes on the wire, always.
    pub const LENGTH: usize = 256;

    /// The datagram in the payload of a packet to queue pair 1.
    ///
    /// Refuses any other length, other classes (their queue pair is the same: not an error of the
    /// sender, and not answered), versions, methods and unknown messages.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(payload) else {
            let (length, found) = (Self::LENGTH, payload.len());
            return Err(if found < length {
                ParseError::too_short(Layer::Mad, "length", length, found)
            } else {
                ParseError::too_long(Layer::Mad, "length", length, found)
            });
        };
        for (at, name, value) in FIXED {
            if bytes[at] != value {
                return Err(ParseError::unsupported(Layer::Mad, name, bytes[at].into()));
            }
        }
        Ok(Self {
            transaction: TransactionId(read_u64(&bytes[TRANSACTION])),
            modifier: read_u32(&bytes[MODIFIER]),
            message: Message::read(read_u16(&bytes[ATTRIBUTE]), &bytes[BODY])?,
        })
    }

    /// The datagram in a packet, if the packet is one for queue pair 1 with that one's Q_Key.
    pub fn in_packet(packet: &Packet<'_>) -> Option<Result<Self, ParseError>> {
        let is_management = packet.opcode() == Opcode::UD_SEND_ONLY
            && packet.bth().destination == Qpn::GSI
            && packet.deth()?.qkey == GSI_QKEY;
        is_management.then(|| Self::parse(packet.payload()))
    }

    /// The datagram's bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        for (at, _, value) in FIXED {
            bytes[at] = value;
        }
        bytes[TRANSACTION].copy_from_slice(&self.transaction.0.to_be_bytes());
        bytes[ATTRIBUTE].copy_from_slice(&self.message.attribute().to_be_bytes());
        bytes[MODIFIER].copy_from_slice(&self.modifier.to_be_bytes());
        self.message.write(&mut bytes[BODY]);
        bytes
    }
}

/// The headers of a packet that carries a management datagram. `psn` counts up by one for each
/// packet of a sender; nobody looks at it. spec: IBA 13.5
pub fn packet_headers(psn: Psn) -> HeaderRepr {
    HeaderRepr {
        deth: Some(Deth {
            qkey: GSI_QKEY,
            source: Qpn::GSI,
        }),
        ..HeaderRepr::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn))
    }
}

macro_rules! messages {
    ($( $(#[$doc:meta])* $name:ident($type:ident) = $attribute:literal, $text:literal; )+) => {
        /// The messages, named by their attribute. spec: IBA 16.7.3
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "all come from and go to 232 bytes")]
        pub enum Message {
            $( $(#[$doc])* $name($type), )+
        }

        impl Message {
            /// The attribute ID.
            pub const fn attribute(&self) -> u16 {
                match self {
                    $( Self::$name(_) => $attribute, )+
                }
            }

            /// The name, as the standard writes it.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$name(_) => $text, )+
                }
            }

            /// For each byte of a datagram with this message, the bits that carry a value. The
            /// others are reserved: written as 0 and not looked at.
            pub fn value_bits(&self) -> [u8; Mad::LENGTH] {
                let mut bits = [0; Mad::LENGTH];
                for (at, ..) in FIXED {
                    bits[at] = 0xff;
                }
                for range in [TRANSACTION, ATTRIBUTE, MODIFIER] {
                    bits[range].fill(0xff);
                }
                match self {
                    $( Self::$name(_) => $type::mark(&mut bits[BODY], 0), )+
                }
                bits
            }

            fn read(attribute: u16, body: &[u8]) -> Result<Self, ParseError> {
                match attribute {
                    $( $attribute => Ok(Self::$name(Field::read(body, 0))), )+
                    _ => Err(ParseError::unsupported(Layer::Mad, "attribute", attribute.into())),
                }
            }

            fn write(&self, body: &mut [u8]) {
                match self {
                    $( Self::$name(message) => message.write(body, 0), )+
                }
            }
        }

        $(
            impl From<$type> for Message {
                fn from(message: $type) -> Self {
                    Self::$name(message)
                }
            }
        )+

        #[cfg(test)]
        impl Message {
            /// One of each, all zero.
            fn samples() -> Vec<Self> {
                $( $type::check_layout(); )+
                vec![$( Self::$name($type::default()) ),+]
            }
        }
    };
}

messages! {
    /// Request for communication.
    Req(Req) = 0x0010, "REQ";
    /// The answer will take longer.
    Mra(Mra) = 0x0011, "MRA";
    /// Reject.
    Rej(Rej) = 0x0012, "REJ";
    /// Reply to a request.
    Rep(Rep) = 0x0013, "REP";
    /// Ready to use.
    Rtu(Rtu) = 0x0014, "RTU";
    /// Request for release.
    Dreq(Dreq) = 0x0015, "DREQ";
    /// Reply to a request for release.
    Drep(Drep) = 0x0016, "DREP";
    /// Service ID resolution request.
    SidrReq(SidrReq) = 0x0017, "SIDR_REQ";
    /// Service ID resolution response.
    SidrRep(SidrRep) = 0x0018, "SIDR_REP";
    /// Load alternate path.
    Lap(Lap) = 0x0019, "LAP";
    /// Alternate path response.
    Apr(Apr) = 0x001a, "APR";
}
