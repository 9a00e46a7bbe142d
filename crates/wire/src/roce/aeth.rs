//! AETH, the acknowledge extended transport header: accepted, not ready, or refused and why.
//!
//! Read first: IBA 9.3; tables 46 (credits) and 47 (RNR timer).

use core::fmt;
use core::ops::Range;

use crate::bytes::{header, read_u24};
use crate::error::{Layer, ParseError};
use crate::field::Msn;

const SYNDROME: usize = 0;
const MSN: Range<usize> = 0..4; // the low 24 bits

/// An acknowledgement, positive or negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What became of the packet.
    pub syndrome: Syndrome,
    /// How many request messages the responder has completed.
    pub msn: Msn,
}

/// What became of the packet that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Accepted, with all packets before it.
    Ack {
        /// How many receives are posted.
        credits: Credits,
    },
    /// Receiver not ready: resend after at least this time.
    RnrNak {
        /// How long to wait.
        timer: RnrTimer,
    },
    /// Refused.
    Nak(NakCode),
    /// A value that the standard reserves.
    Reserved(ReservedSyndrome),
}

/// Why a packet was refused; the wire's values. spec: IBA 9.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing; the PSN is the expected one.
    SequenceError = 0,
    /// The request makes no sense here, or is not enabled.
    InvalidRequest = 1,
    /// The key, range or rights do not fit.
    RemoteAccess = 2,
    /// The responder failed by itself.
    RemoteOperational = 3,
    /// RD only.
    InvalidRdRequest = 4,
}

/// A syndrome byte that the standard reserves; only reading the wire makes one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservedSyndrome(u8);

impl ReservedSyndrome {
    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for ReservedSyndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedSyndrome({:#04x})", self.0)
    }
}

/// Credit code: five bits that stand for a number of posted receives. spec: IBA table 46
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(u8);

impl Credits {
    /// No flow control: what shared receive queues must say and rdma_rxe always says.
    pub const UNLIMITED: Self = Self(31);

    /// The code's meaning in receives; `None` is no flow control.
    pub const fn count(self) -> Option<u32> {
        // 0 to 4 stand for themselves; from then on two codes a doubling: 4, 6, 8, 12, 16, …
        match self.0 {
            31 => None,
            code @ 0..=3 => Some(code as u32),
            code => {
                let doubled = 1 << (code / 2);
                Some(if code % 2 == 0 {
                    doubled
                } else {
                    doubled + doubled / 2
                })
            }
        }
    }

    /// The largest code whose meaning is at most `count` receives.
    pub const fn at_most(count: u32) -> Self {
        let mut code = 30;
        while code > 0 {
            if let Some(meaning) = Self(code).count()
                && meaning <= count
            {
                break;
            }
            code -= 1;
        }
        Self(code)
    }

    /// A code from its five bits; `None` above 31.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The five bits.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// RNR timer code: five bits that stand for a time to wait. spec: IBA table 47
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// A code from its five bits, as verbs give it (`min_rnr_timer`); `None` above 31.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The five bits.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long to wait at least, from 10 µs to 655.36 ms.
    pub const fn nanoseconds(self) -> u64 {
        const UNIT_NS: u64 = 10_000;
        // In units of 10 µs: 0 is the longest; 1 to 4 stand for themselves; from then on two codes
        // a doubling: 4, 6, 8, 12, 16, …
        let units = match self.0 {
            0 => 65_536,
            code @ 1..=3 => code as u64,
            code => {
                let doubled = 1 << (code / 2);
                if code % 2 == 0 {
                    doubled
                } else {
                    doubled + doubled / 2
                }
            }
        };
        units * UNIT_NS
    }
}

impl Syndrome {
    /// A positive acknowledgement without flow control.
    pub const ACK: Self = Self::Ack {
        credits: Credits::UNLIMITED,
    };

    /// What a syndrome byte means.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        let code = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack {
                credits: Credits(code),
            },
            1 => Self::RnrNak {
                timer: RnrTimer(code),
            },
            3 => match code {
                0 => Self::Nak(NakCode::SequenceError),
                1 => Self::Nak(NakCode::InvalidRequest),
                2 => Self::Nak(NakCode::RemoteAccess),
                3 => Self::Nak(NakCode::RemoteOperational),
                4 => Self::Nak(NakCode::InvalidRdRequest),
                _ => Self::Reserved(ReservedSyndrome(byte)),
            },
            _ => Self::Reserved(ReservedSyndrome(byte)),
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits.0,
            Self::RnrNak { timer } => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(reserved) => reserved.0,
        }
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LENGTH: usize = 4;

    /// The header at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        header(bytes, Layer::Aeth).map(Self::from_bytes)
    }

    /// The header from bytes of the right number.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            syndrome: Syndrome::from_byte(bytes[SYNDROME]),
            msn: Msn::truncated(read_u24(&bytes[MSN])),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = self.msn.get().to_be_bytes();
        bytes[SYNDROME] = self.syndrome.byte();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives() {
        let mut reserved = 0;
        for byte in 0..=u8::MAX {
            let syndrome = Syndrome::from_byte(byte);
            assert_eq!(syndrome.byte(), byte);
            reserved += u32::from(matches!(syndrome, Syndrome::Reserved(_)));
        }
        // 0x40-0x5f, 0x65-0x7f, 0x80-0xff
        assert_eq!(reserved, 32 + 27 + 128);
        let refused = Syndrome::from_byte(0x62);
        assert_eq!(refused, Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::ACK.byte(), 0x1f);
    }

    #[test]
    fn credit_codes_are_table_46() {
        const COUNTS: [u32; 31] = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, count) in COUNTS.into_iter().enumerate() {
            let credits = Credits::from_code(code as u8).unwrap();
            assert_eq!(credits.count(), Some(count), "code {code}");
            assert_eq!(Credits::at_most(count), credits);
            assert_eq!(Credits::at_most(count + 1).count() > Some(count), count < 4);
        }
        assert_eq!(Credits::UNLIMITED.count(), None);
        assert_eq!(Credits::at_most(u32::MAX).code(), 30);
        assert_eq!(Credits::from_code(32), None);
    }

    #[test]
    fn rnr_timers_are_table_47() {
        const HUNDREDTHS_OF_MS: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        for (code, hundredths) in HUNDREDTHS_OF_MS.into_iter().enumerate() {
            let timer = RnrTimer::from_code(code as u8).unwrap();
            assert_eq!(timer.nanoseconds(), hundredths * 10_000, "code {code}");
        }
        assert_eq!(RnrTimer::from_code(32), None);
    }

    #[test]
    fn layout() {
        let aeth = Aeth {
            syndrome: Syndrome::Nak(NakCode::SequenceError),
            msn: Msn::truncated(0x01_0203),
        };
        assert_eq!(aeth.to_bytes(), [0x60, 1, 2, 3]);
        assert_eq!(Aeth::parse(&[0x60, 1, 2, 3]), Ok(aeth));
        assert!(Aeth::parse(&[0; 3]).is_err());
    }
}
